//! The holder's own process: a table, and a conversation with one switch at a time. It looks at
//! nothing that it holds, reads no socket but its own, and maps no memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vmlan_sandbox::{Confinement, Thread};

use super::packet::{ALL, Kind, MAX_NAMES, MAX_PACKET, Packet, VERSION};
use crate::line::{self, Fds};
use crate::sys::keep_only;

/// How long things are held before a switch has said so.
const AT_FIRST: Duration = Duration::from_secs(10);

/// What is held under a name.
struct Entry {
    name: Vec<u8>,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// The switch that is served. The next one is refused until both its connection and its process
/// have ended: descriptors that two processes use at once are worth nothing.
#[derive(Default)]
struct Served {
    line: Option<OwnedFd>,
    /// Readable once the process has ended.
    process: Option<OwnedFd>,
    /// It has introduced itself.
    known: bool,
}

struct Holder<'l> {
    listener: BorrowedFd<'l>,
    entries: Vec<Entry>,
    served: Served,
    hold_for: Duration,
    /// Since when there has been no switch: none is connected, and the last one's process has
    /// ended. While that lives, its ports are in use: they must not be shut down.
    alone: Option<Instant>,
    /// It was told to end.
    ended: bool,
}

/// Serves switches that connect to `listener`, until one says that it is over or none has come for
/// as long as the last one wanted. All that is held is shut down then and closed, which may park
/// this process: it harms nobody.
pub fn run(listener: OwnedFd, mut confinement: Option<Confinement>) {
    crate::sys::ignore_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"vmlan-holder");
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_no_new_privs(true);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Some(confinement) = &mut confinement {
        // Nobody is told: its switch sees that the line has ended.
        confinement.begin(|_| {});
    }
    let Ok(listener) = keep_only(listener) else { return };
    if let Some(confinement) = &confinement {
        confinement.enter(Thread::Holder);
    }
    serve(listener);
}

/// As [`run`], in the process that there is.
pub fn serve(listener: BorrowedFd<'_>) {
    let mut holder = Holder {
        listener,
        entries: Vec::new(),
        served: Served::default(),
        hold_for: AT_FIRST,
        alone: Some(Instant::now()),
        ended: false,
    };
    let mut packet = vec![0; MAX_PACKET];
    while !holder.ended && holder.turn(&mut packet).is_ok() {}
    // Whoever connects from now on is refused, and starts a holder of its own.
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
    for fd in holder.entries.iter().flat_map(|entry| &entry.fds) {
        // Most are no sockets, which changes nothing.
        let _ = rustix::net::shutdown(fd, Shutdown::Both);
    }
}

impl Holder<'_> {
    /// Waits until something happens, and deals with it.
    ///
    /// # Errors
    /// It is time to end.
    fn turn(&mut self, packet: &mut [u8]) -> Result<(), Errno> {
        let left = self.alone.map(|since| self.hold_for.saturating_sub(since.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = left.map(|left| Timespec::try_from(left).unwrap_or_default());
        let Served { line, process, .. } = &self.served;
        let fds = [
            Some(self.listener),
            line.as_ref().map(AsFd::as_fd),
            process.as_ref().map(AsFd::as_fd),
        ];
        let present = fds.into_iter().flatten();
        let mut waits: Vec<_> =
            present.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut waits, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(()),
            other => other?,
        };
        let mut ready = waits.iter().map(|wait| !wait.revents().is_empty());
        let [knocked, said, died] = fds.map(|fd| fd.is_some() && ready.next().unwrap_or(false));
        if died {
            self.served.process = None;
            if self.served.line.is_none() {
                self.alone = Some(Instant::now());
            }
        }
        if said {
            self.answer(packet);
        }
        if knocked {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC;
        let Ok(line) = rustix::net::accept_with(self.listener, flags) else { return };
        let uid = rustix::net::sockopt::socket_peercred(&line).map(|peer| peer.uid);
        if uid != Ok(rustix::process::geteuid()) {
            let _ = say(&line, &Packet::refused(Errno::ACCESS), &[]);
        } else if self.served.line.is_some() || self.served.process.is_some() {
            let _ = say(&line, &Packet::refused(Errno::BUSY), &[]);
        } else {
            self.served.line = Some(line);
            self.alone = None;
        }
    }

    /// Receives one request, does it, and says so.
    fn answer(&mut self, packet: &mut [u8]) {
        let Some(line) = &self.served.line else { return };
        let mut fds = Fds::new();
        let got = match line::recv_now(line.as_fd(), packet, &mut fds) {
            Err(Errno::AGAIN) => return,
            Ok(got) if got.bytes > 0 => got,
            _ => return self.hang_up(),
        };
        let Some(request) = packet.get(..got.bytes).and_then(Packet::decode) else {
            return self.hang_up();
        };
        // Too many are open here: none is kept. The switch has all of them, so to close them parks
        // nobody.
        let lost = got.truncated || fds.count() != usize::from(request.fds);
        let done = if lost { Err(Errno::MFILE) } else { self.carry_out(&request, fds) };
        let said = match done {
            Ok(Some(place)) => self.show(place),
            Ok(None) => self.reply(&Packet::plain(Kind::Done, self.count()), &[]),
            Err(errno) => self.reply(&Packet::refused(errno), &[]),
        };
        // Who does not listen any more may have said something before it hung up.
        // Which error that leaves depends on whether it has read all answers.
        if said.is_err_and(|errno| !matches!(errno, Errno::PIPE | Errno::CONNRESET)) {
            self.hang_up();
        }
    }

    /// Returns the place whose contents are to be the answer.
    fn carry_out(&mut self, request: &Packet<'_>, mut fds: Fds) -> Result<Option<usize>, Errno> {
        let at = self.entries.iter().position(|entry| entry.name == request.name);
        match request.kind {
            Kind::Hello if request.bytes == [VERSION] => {
                self.served.process = fds.drain().next();
                self.served.known = self.served.process.is_some();
                self.hold_for = Duration::from_secs(request.number.into());
            }
            Kind::Hello => return Err(Errno::PROTONOSUPPORT),
            // Who has not said who it is may be dead soon, and nobody could tell.
            _ if !self.served.known => return Err(Errno::PERM),
            Kind::Put => {
                let (name, bytes) = (request.name.to_vec(), request.bytes.to_vec());
                let entry = Entry { name, bytes, fds: fds.drain().collect() };
                let full = self.entries.len() >= MAX_NAMES;
                match at.and_then(|at| self.entries.get_mut(at)) {
                    Some(old) => *old = entry,
                    None if full => return Err(Errno::NOSPC),
                    None => self.entries.push(entry),
                }
            }
            Kind::Forget if request.name == ALL => self.entries.clear(),
            Kind::Forget => drop(at.map(|at| self.entries.swap_remove(at))),
            Kind::Get => return Ok(Some(usize::try_from(request.number).unwrap_or(usize::MAX))),
            Kind::End => self.ended = true,
            Kind::Done | Kind::Refused => return Err(Errno::PROTO),
        }
        Ok(None)
    }

    fn show(&self, place: usize) -> Result<(), Errno> {
        let Some(Entry { name, bytes, fds }) = self.entries.get(place) else {
            return self.reply(&Packet::refused(Errno::NOENT), &[]);
        };
        let count = u16::try_from(fds.len()).map_err(|_| Errno::TOOBIG)?;
        let list: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.reply(
            &Packet { kind: Kind::Done, number: self.count(), fds: count, name, bytes },
            &list,
        )
    }

    fn count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    fn reply(&self, packet: &Packet<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.served.line.as_ref().map_or(Err(Errno::PIPE), |line| say(line, packet, fds))
    }

    fn hang_up(&mut self) {
        (self.served.line, self.served.known) = (None, false);
        if self.served.process.is_none() {
            self.alone = Some(Instant::now());
        }
    }
}

/// A switch has at most one answer to read: who has no room for it has gone mad.
fn say(line: &OwnedFd, packet: &Packet<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = Vec::new();
    packet.encode(&mut bytes)?;
    line::send(line.as_fd(), &bytes, fds, SendFlags::DONTWAIT)
}
