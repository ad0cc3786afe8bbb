//! A part of a test, one machine instruction at a time.
//!
//! The process that is looked at is the test program once more, with an ignored test that does
//! nothing unless it is [`asked`] to. It says that it wants to be looked at ([`watch_me`]) and
//! marks the parts in question ([`watched`]). The test that has started it ([`watch`]) sees it
//! stand still after each instruction of these.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

/// Says to the child that it is watched, and what it is to do.
const ASKED: &str = "VMLAN_STEPPED";

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// In the process that is watched: what it is to do.
#[must_use]
pub fn asked() -> Option<String> {
    std::env::var(ASKED).ok()
}

/// From now on what this thread does in [`watched`] is looked at. `says` is told to who looks.
///
/// # Panics
/// Outside of a process that [`watch`] has started.
pub fn watch_me(says: &str) {
    ptrace::traceme().expect("the test that has started this one traces it");
    println!("{ASKED} {} {says}", gettid());
    WATCHED.set(true);
}

/// Does it, looked at or not.
///
/// # Panics
/// Not.
pub fn watched<T>(does: impl FnOnce() -> T) -> T {
    if !WATCHED.get() {
        return does();
    }
    raise(Signal::SIGUSR1).expect("a signal to oneself");
    let done = does();
    raise(Signal::SIGUSR2).expect("a signal to oneself");
    done
}

/// A process that stands still.
#[derive(Debug)]
pub struct Stopped {
    pid: u32,
    thread: Pid,
    memory: File,
}

impl Stopped {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its registers: `rip` is that of the instruction that comes next.
    ///
    /// # Panics
    /// If it is gone.
    #[must_use]
    pub fn registers(&self) -> user_regs_struct {
        ptrace::getregs(self.thread).expect("a thread that stands still")
    }

    /// Reads its memory. Returns how many bytes there are.
    ///
    /// # Panics
    /// If there is nothing at that address.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> usize {
        self.memory.read_at(bytes, at).expect("mapped memory")
    }
}

/// Who looks.
pub trait Watcher {
    /// A part begins.
    fn begins(&mut self, process: &Stopped);
    /// An instruction of it was run.
    fn stepped(&mut self, process: &Stopped);
}

/// Runs the ignored test of this name, which does `what`, and has `watcher` look at it, to which
/// `hears` gives what the child says. Returns how many instructions were run.
///
/// # Panics
/// If the test fails.
pub fn watch<W: Watcher>(test: &str, what: &str, hears: impl FnOnce(&str) -> W) -> (W, u64) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(ASKED, what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program once more");
    let pid = child.id();
    // Open until it has ended: it says how its test went.
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let line = lines.by_ref().map_while(std::io::Result::ok).find_map(|line| {
        // The test's name stands before it.
        let (_, said) = line.split_once(&format!("{ASKED} "))?;
        let (thread, says) = said.split_once(' ')?;
        Some((thread.parse().ok()?, says.to_owned()))
    });
    let (thread, says) = line.unwrap_or_else(|| panic!("{test} says nothing"));
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let process = Stopped { pid, thread: Pid::from_raw(thread), memory };
    let mut watcher = hears(&says);
    let instructions = follow(&process, &mut watcher);
    assert!(child.wait().expect("an end").success(), "{test} fails: {what}");
    (watcher, instructions)
}

/// Until it ends.
fn follow(process: &Stopped, watcher: &mut impl Watcher) -> u64 {
    let thread = process.thread;
    let (mut instructions, mut inside) = (0, false);
    loop {
        let status = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("the child");
        let pass_on = match status {
            WaitStatus::Stopped(_, Signal::SIGUSR1) => {
                watcher.begins(process);
                inside = true;
                None
            }
            WaitStatus::Stopped(_, Signal::SIGUSR2) => {
                inside = false;
                None
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) if inside => {
                instructions += 1;
                watcher.stepped(process);
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return instructions,
            _ => continue,
        };
        let goes_on = if inside { ptrace::step } else { ptrace::cont };
        goes_on(thread, pass_on).expect("it goes on");
    }
}
