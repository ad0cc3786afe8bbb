//! The processes that fork keepers, and how they are asked to.
//!
//! There are two of them. Each can replace the other: a switch in its sandbox can fork no more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlan_sandbox::{Confinement, Thread, name_of};

use crate::line::{self, Fds};
use crate::packet::{HEAD, Head};
use crate::{process, sys, wait};

/// How long a new process may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Spawners that there are: one works, the others are spare.
const COUNT: usize = 2;

/// Our ends of the spawners' lines. A spawner ends when its line is closed: with this process.
static SPAWNERS: Mutex<Spawners> = Mutex::new(Spawners { started: false, lines: Vec::new() });

struct Spawners {
    started: bool,
    lines: Vec<OwnedFd>,
}

/// What a spawner is asked to fork, as a byte on its line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Keeper = 0,
    Spawner = 1,
}

/// Forks the spawners, unless they are there. To be called before this process has a second thread,
/// memory worth keeping, or descriptors. With `confined` they and all keepers lose every right that
/// they do not need.
pub fn start(confined: bool) -> io::Result<()> {
    let mut spawners = SPAWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    spawners.start(confined)
}

/// A new keeper: our end of its line.
///
/// # Errors
/// There is none to be had.
pub fn spawn() -> io::Result<OwnedFd> {
    // Held until the keeper is there: requests would otherwise fill the spawner's line.
    let mut spawners = SPAWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    spawners.start(false)?;
    spawners.fork(Wanted::Keeper)
}

impl Spawners {
    fn start(&mut self, confined: bool) -> io::Result<()> {
        if self.started {
            return Ok(());
        }
        let (ours, theirs) = line::pair()?;
        let confinement = confined.then(Confinement::new);
        sys::fork(|| run(theirs, confinement))?;
        self.started = true;
        self.lines.push(ours);
        self.fill()
    }

    /// Replaces spawners that were killed.
    fn fill(&mut self) -> io::Result<()> {
        while self.lines.len() < COUNT {
            let spare = self.fork(Wanted::Spawner)?;
            self.lines.push(spare);
        }
        Ok(())
    }

    /// A new process, forked by the first spawner that lives.
    fn fork(&mut self, wanted: Wanted) -> io::Result<OwnedFd> {
        let before = self.lines.len();
        let mut why = "were killed".to_owned();
        while let Some(spawner) = self.lines.first() {
            let (ours, theirs) = line::pair()?;
            let asked = line::send(
                spawner.as_fd(),
                &[wanted as u8],
                &[theirs.as_fd()],
                SendFlags::DONTWAIT,
            );
            drop(theirs);
            let made = asked.map_err(io::Error::from).and_then(|()| first_words(ours.as_fd()));
            match made {
                Err(_) if wait::is_at_end(spawner.as_fd()) => {
                    if let Some(call) = last_words(spawner.as_fd()) {
                        why = format!("made the system call {}, which none needs", name_of(call));
                    }
                    self.lines.remove(0);
                }
                made => {
                    made?;
                    if wanted == Wanted::Keeper && before > self.lines.len() {
                        // Where it fails, the next call tries again.
                        let _ = self.fill();
                    }
                    return Ok(ours);
                }
            }
        }
        Err(io::Error::other(format!(
            "the processes that start keepers (vmlan-spawner) {why}: restart the switch; until \
             then its ports go on, and none can be added"
        )))
    }
}

/// What a new process says: that it is there, or why it is not.
fn first_words(line: BorrowedFd<'_>) -> io::Result<()> {
    let mut head = [0; HEAD];
    wait::readable(line, Instant::now() + PATIENCE, || false)?;
    let got = line::recv_now(line, &mut head, &mut Fds::new())?;
    let head = head.get(..got.bytes).unwrap_or_default();
    if let Some(call) = Head::is_forbidden(head) {
        return Err(io::Error::other(crate::KeeperError::Forbidden(call)));
    }
    let (head, _) = Head::decode(head).ok_or(Errno::PIPE)?;
    Ok(head.outcome()?)
}

/// The call that ended a spawner, if one did.
fn last_words(line: BorrowedFd<'_>) -> Option<i32> {
    let mut head = [0; HEAD];
    let got = line::recv_now(line, &mut head, &mut Fds::new()).ok()?;
    Head::is_forbidden(head.get(..got.bytes)?)
}

/// The first spawner's own process.
fn run(line: OwnedFd, mut confinement: Option<Confinement>) {
    sys::ignore_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"vmlan-spawner");
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_no_new_privs(true);
    if let Some(confinement) = &mut confinement {
        confinement.begin(report);
    }
    let Ok(line) = sys::keep_only(line) else { return };
    if let Some(confinement) = &confinement {
        confinement.enter(Thread::Spawner);
    }
    serve(line, confinement.as_ref());
}

/// Forks what is asked for, until the line is closed. A spawner that was forked has all else of its
/// parent.
fn serve(line: BorrowedFd<'_>, confinement: Option<&Confinement>) {
    let (mut fds, mut wanted) = (Fds::new(), [0; 1]);
    while let Ok(got) = line::recv(line, &mut wanted, &mut fds, RecvFlags::empty()) {
        if got.bytes == 0 {
            return;
        }
        let Some(theirs) = fds.drain().next() else { continue };
        let mut given = Some(theirs);
        let forked = sys::fork(|| {
            let Some(line) = given.take() else { return };
            if wanted == [Wanted::Keeper as u8] {
                return process::run(line, confinement);
            }
            let Ok(line) = sys::keep_only(line) else { return };
            if say(line, Ok(())).is_ok() {
                serve(line, confinement);
            }
        });
        if let (Err(e), Some(theirs)) = (forked, &given) {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
            let _ = say(theirs.as_fd(), Err(errno));
        }
    }
}

fn say(line: BorrowedFd<'_>, outcome: Result<(), Errno>) -> Result<(), Errno> {
    line::send(line, &Head::of(outcome).encode(), &[], SendFlags::DONTWAIT)
}

/// Tells whoever has the other end, from the handler of SIGSYS.
fn report(call: i32) {
    let words = Head::forbidden(call).encode();
    let _ = line::send(rustix::stdio::stdin(), &words, &[], SendFlags::DONTWAIT);
}
