//! Death between any two machine instructions.
//!
//! Tests of death die at points in the source, one before each store to memory that outlives the
//! process. What death at an instruction leaves is what was stored until then. So it leaves what
//! death at some point leaves, if between two stores there is always a point: in the machine's
//! code, whatever the compiler made of the source. Here a process is run one instruction at a time,
//! and after each of them what it shares is looked at.
//!
//! The watched process is this test program once more, with a test of its own that does nothing
//! unless it is asked to.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

use super::held::fuse::POINTS;

/// Says to the child that it is watched, and what it is to do.
const ASKED: &str = "VMLAN_NIC_STEPPED";
/// What is looked at of each piece of shared memory: frames lie behind it.
const LOOKED_AT: usize = 0xa000;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// In the process that is watched: what it is to do.
pub fn asked() -> Option<String> {
    std::env::var(ASKED).ok()
}

/// From now on what this thread does in [`watched`] is looked at.
pub fn watch_me() {
    ptrace::traceme().expect("the test that has started this one traces it");
    println!("{} {}", gettid(), std::ptr::from_ref::<AtomicU32>(&POINTS).addr());
    WATCHED.set(true);
}

/// Does it, looked at or not.
pub fn watched<T>(does: impl FnOnce() -> T) -> T {
    if !WATCHED.get() {
        return does();
    }
    raise(Signal::SIGUSR1).expect("a signal to oneself");
    let done = does();
    raise(Signal::SIGUSR2).expect("a signal to oneself");
    done
}

/// What a process shares, as it is now.
struct Shared {
    memory: File,
    places: Vec<(u64, Vec<u8>)>,
}

impl Shared {
    fn of(pid: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
        let shared =
            maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/dev/shm/"));
        let places = shared.map(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("two ends");
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).expect("an address"));
            let len = usize::try_from(to - from).expect("a length").min(LOOKED_AT);
            (from, vec![0; len])
        });
        let places = places.collect();
        let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
        let mut shared = Self { memory, places };
        shared.changes();
        shared
    }

    /// Looks again; which addresses hold something else than before.
    fn changes(&mut self) -> Vec<u64> {
        let mut changes = Vec::new();
        for (from, old) in &mut self.places {
            let mut new = vec![0; old.len()];
            self.memory.read_exact_at(&mut new, *from).expect("its memory");
            if new != *old {
                let at = (*from..).zip(old.iter().zip(&new)).filter(|(_, (a, b))| a != b);
                changes.extend(at.map(|(at, _)| at));
                *old = new;
            }
        }
        changes
    }

    fn points(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read_exact_at(&mut bytes, at).expect("its memory");
        u32::from_ne_bytes(bytes)
    }
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    instructions: u64,
    stores: u64,
    /// Stores with no point since the one before.
    faults: String,
}

/// Watches a child until it ends.
fn watch(pid: u32, tid: Pid, points: u64) -> Seen {
    let mut seen = Seen::default();
    // How it was, and the points at the last store.
    let mut watched: Option<(Shared, u32)> = None;
    loop {
        let status = waitpid(tid, Some(WaitPidFlag::__WALL)).expect("the child");
        match status {
            WaitStatus::Stopped(_, Signal::SIGUSR1) => {
                let shared = Shared::of(pid);
                let before = shared.points(points);
                watched = Some((shared, before));
                ptrace::step(tid, None).expect("a step");
            }
            WaitStatus::Stopped(_, Signal::SIGUSR2) => {
                watched = None;
                ptrace::cont(tid, None).expect("to go on");
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) if let Some((shared, last)) = &mut watched => {
                seen.instructions += 1;
                let changes = shared.changes();
                if !changes.is_empty() {
                    seen.stores += 1;
                    let now = shared.points(points);
                    if now == *last {
                        let at = ptrace::getregs(tid).map_or(0, |regs| regs.rip);
                        let line = format!("before {at:#x}: a second store to {changes:x?}");
                        writeln!(seen.faults, "{line}").expect("a string");
                    }
                    *last = now;
                }
                ptrace::step(tid, None).expect("a step");
            }
            WaitStatus::Stopped(_, signal) => {
                ptrace::cont(tid, Some(signal)).expect("to go on");
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return seen,
            _ => {}
        }
    }
}

/// Runs the test of this name, which does what is [`asked`] for and calls [`watch_me`], and looks
/// at it.
///
/// # Panics
/// If there is no point between two of its stores.
pub fn has_a_point_before_each_store(test: &str, what: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(ASKED, what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program once more");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (tid, points) = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| {
            let words: Vec<_> = line.split(' ').rev().take(2).collect();
            Some((words.get(1)?.parse().ok()?, words.first()?.parse().ok()?))
        })
        .expect("its thread and where it counts points");
    let seen = watch(child.id(), Pid::from_raw(tid), points);
    assert!(child.wait().expect("an end").success(), "it failed");
    println!("{what}: {} instructions, {} stores", seen.instructions, seen.stores);
    assert!(seen.stores > 25, "{seen:?}");
    assert!(seen.faults.is_empty(), "{what}: {}", seen.faults);
}
