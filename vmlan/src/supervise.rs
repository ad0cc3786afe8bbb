//! `vmlan switch --supervise`: this process starts the switch, and another in its place whenever it
//! dies.
//!
//! It has nothing that a VM could reach: what outlives a switch is with the holder. A switch is its
//! child, so there is never a second one: the next is started when the last was reaped. And none
//! outlives it: a switch without its supervisor is told to end (`PR_SET_PDEATHSIG`).

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, waitpid,
};
use signal_hook::low_level::{pipe, signal_name};

use crate::exit::Failure;
use crate::successor::{self, Line};
use crate::{log_format, systemd};
use vmlan_config::settings::Settings;

/// The option that makes a switch a supervised one. Its standard input is a line to its supervisor.
pub(crate) const OPTION: &str = "--supervised";

/// The program, wherever its file has gone meanwhile: another release is for `vmlan upgrade`.
const PROGRAM: &str = "/proc/self/exe";

/// A switch that has served for so long has not died of how it was started.
const STEADY: Duration = Duration::from_secs(10);
/// Deaths in a row after which nobody is started any more. A VM whose bytes kill switches is
/// dropped by the sixth of them.
const MOST: u32 = 7;
/// Wait before the second start of a row, which doubles. Before the first there is none.
const WAIT: Duration = Duration::from_millis(100);

/// Supervises switches with these settings, until one ends as it was told to or too many have died.
/// This process ends as the last one did.
///
/// # Errors
/// A service manager has started this process, or signals cannot be handled.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    if systemd::has_started_this() {
        return Err(Failure::Usage(
            "--supervise: a service manager has started this, and starts it anew (Restart=): leave \
             it out"
                .into(),
        ));
    }
    let failed = |e| Failure::Failed(format!("cannot handle signals: {e}"));
    let line = settings.running.successor.then(|| Line::wait(settings)).transpose()?;
    log_format::init();
    let [term, int] = [Signal::TERM, Signal::INT].map(heard);
    let told = [(Signal::TERM, term.map_err(failed)?), (Signal::INT, int.map_err(failed)?)];
    let mut supervisor = Supervisor { line, told, stopping: false, served: false };
    std::process::exit(supervisor.run().into())
}

/// Has this switch depend on its supervisor: it is killed while it does not serve yet, and told to
/// end later.
///
/// # Errors
/// Its parent is not at its standard input: it has no supervisor.
pub(crate) fn depend(serving: bool) -> Result<(), Failure> {
    let failed = || Failure::Failed(format!("{OPTION}: only `vmlan switch --supervise` gives it"));
    let signal = if serving { Signal::TERM } else { Signal::KILL };
    // By its file's name, which was another one.
    let _ = rustix::thread::set_name(c"vmlan");
    set_parent_process_death_signal(Some(signal)).map_err(|_| failed())?;
    // It may have ended just before.
    let line = rustix::net::sockopt::socket_peercred(std::io::stdin());
    let parent = line.is_ok_and(|peer| Some(peer.pid) == getppid());
    parent.then_some(()).ok_or_else(failed)
}

/// Readable once this process was sent `signal`.
fn heard(signal: Signal) -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    pipe::register(signal.as_raw(), handlers)?;
    Ok(ours)
}

/// A process that starts switches.
struct Supervisor {
    /// To `vmlan upgrade`, which waits for the first one to serve.
    line: Option<Line>,
    /// Signals that are passed on.
    told: [(Signal, UnixStream); 2],
    /// One was.
    stopping: bool,
    /// Some switch has served.
    served: bool,
}

/// How a switch has ended.
struct Death {
    cause: String,
    /// As a shell has it.
    code: u8,
    /// How long it had served.
    served: Duration,
    /// It could not say why.
    silent: bool,
}

impl Supervisor {
    /// Returns the exit code.
    fn run(&mut self) -> u8 {
        let mut row = Row::default();
        loop {
            let Death { cause, code, served, silent } = self.one();
            // What is wrong with the first start is for who started it.
            if self.stopping || code == 0 || !self.served {
                if silent && !self.stopping {
                    log::error!("{cause}: it has not served yet, so no other is started");
                }
                return code;
            }
            let Some(wait) = row.next(served) else {
                log::error!(
                    "{cause}: as {MOST} before it, soon after its start: no other is started"
                );
                return code;
            };
            log::warn!("{cause}: another is started in {} ms", wait.as_millis());
            if self.pause(wait) {
                return 0;
            }
        }
    }

    /// Starts a switch and waits for its end.
    fn one(&mut self) -> Death {
        // Processes of the last one have come to this one if it is the first of its namespace.
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        let (begun, mut since) = (start(), None);
        let ended = begun.and_then(|(mut child, line)| {
            if let Err(e) = self.watch(&mut child, line, &mut since) {
                log::error!("the switch cannot be watched: {e}");
                let _ = child.kill();
            }
            Ok((child.id(), child.wait()?))
        });
        let served = since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
        match ended {
            Ok((pid, status)) => {
                let seconds = served.as_secs_f64();
                let cause =
                    format!("the switch (process {pid}) {}, after {seconds:.1} s", how(status));
                Death { cause, code: code(status), served, silent: status.code().is_none() }
            }
            Err(e) => {
                let cause = format!("no switch can be started: {e}");
                Death { cause, code: 1, served, silent: true }
            }
        }
    }

    /// Passes signals on until `child` has ended. It serves `since` then.
    fn watch(
        &mut self,
        child: &mut Child,
        mut line: UnixStream,
        since: &mut Option<Instant>,
    ) -> io::Result<()> {
        let pid = Pid::from_child(child);
        let death = pidfd_open(pid, PidfdFlags::empty())?;
        let mut listen = true;
        loop {
            let [(_, term), (_, int)] = &self.told;
            let says = listen.then_some(line.as_fd());
            let fds = [term.as_fd(), int.as_fd(), death.as_fd()].into_iter().chain(says);
            let ready = ready(fds, None)?;
            for ((signal, socket), _) in self.told.iter().zip(&ready).filter(|(_, ready)| **ready) {
                let mut socket = socket;
                let _ = socket.read(&mut [0; 64]);
                self.stopping = true;
                // It is there still, dead or alive: nobody has reaped it.
                let _ = kill_process(pid, *signal);
            }
            if ready.get(3) == Some(&true) {
                // One word. What else comes is of a switch that is not itself any more.
                listen = false;
                if line.read(&mut [0; 16]).is_ok_and(|n| n > 0) {
                    (self.served, *since) = (true, Some(Instant::now()));
                    self.line.take().into_iter().for_each(Line::serves);
                }
            }
            if ready.get(2) == Some(&true) {
                return Ok(());
            }
        }
    }

    /// True if a signal comes within `time`: no switch is there to have it.
    fn pause(&self, time: Duration) -> bool {
        let fds = self.told.iter().map(|(_, socket)| socket.as_fd());
        ready(fds, Some(time)).is_ok_and(|ready| ready.contains(&true))
    }
}

/// Starts a switch as this process was started; our end of its line.
fn start() -> io::Result<(Child, UnixStream)> {
    let (ours, its) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut words = successor::with_option(words, OPTION).into_iter();
    let mut command = Command::new(PROGRAM);
    command.arg0(words.next().unwrap_or_default()).args(words).stdin(OwnedFd::from(its));
    Ok((command.spawn()?, ours))
}

/// Which of `fds` are readable or at their end, within `time`.
fn ready<'f>(
    fds: impl Iterator<Item = BorrowedFd<'f>>,
    time: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let end = time.map(|time| Instant::now() + time);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done.map(|_| fds.iter().map(|f| !f.revents().is_empty()).collect())?),
        }
    }
}

/// How it ended, in words.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(n), _) => format!("was killed by {}", signal_name(n).unwrap_or("a signal")),
        (None, Some(vmlan_sandbox::EXIT_CODE)) => {
            format!("made a system call that none makes (exit code {})", vmlan_sandbox::EXIT_CODE)
        }
        (None, code) => format!("ended with exit code {}", code.unwrap_or_default()),
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Deaths, one after the other.
#[derive(Debug, Default)]
struct Row(u32);

impl Row {
    /// How long to wait before another is started for one that has died after it had `served` for
    /// so long. `None`: that does not help.
    fn next(&mut self, served: Duration) -> Option<Duration> {
        self.0 = if served >= STEADY { 1 } else { self.0 + 1 };
        (self.0 <= MOST).then(|| match self.0 {
            0 | 1 => Duration::ZERO,
            n => WAIT * 2_u32.pow(n - 2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(row: &mut Row, deaths: usize) -> Vec<Option<u128>> {
        let next = |_| row.next(STEADY / 2).map(|wait| wait.as_millis());
        (0..deaths).map(next).collect()
    }

    #[test]
    fn the_next_is_started_at_once_and_later_ones_ever_later() {
        let mut row = Row::default();
        let first = [0, 100, 200, 400, 800, 1600, 3200].map(Some);
        assert_eq!(waits(&mut row, 8), [&first[..], &[None]].concat());
        // What lasts begins a new row.
        assert_eq!(row.next(STEADY), Some(Duration::ZERO));
        assert_eq!(waits(&mut row, 7), [&first[1..], &[None]].concat());
    }

    #[test]
    fn the_end_is_said_and_passed_on_as_it_was() {
        let of = |raw| (how(ExitStatus::from_raw(raw)), code(ExitStatus::from_raw(raw)));
        assert_eq!(of(0), ("ended with exit code 0".into(), 0));
        assert_eq!(of(101 << 8), ("ended with exit code 101".into(), 101));
        assert_eq!(of(9), ("was killed by SIGKILL".into(), 137));
        let call = vmlan_sandbox::EXIT_CODE;
        assert_eq!(of(call << 8).1, 159);
        assert!(of(call << 8).0.contains("system call"));
    }
}
