//! A keeper's own process. It allocates nothing, and calls nothing but the system.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};
use vmlan_sandbox::{Confinement, Thread};

use crate::MAX_FDS;
use crate::budget::Budget;
use crate::descriptor::{Kind, MAX_TEXT, look};
use crate::line::{self, Fds};
use crate::packet::{HEAD, Head, MAX_TAKE, REPLY, REQUEST, Request, SLOTS, encode_line};
use crate::sys::keep_only;

/// Serves whoever has the other end of `line`, until it is closed.
pub fn run(line: OwnedFd, confinement: Option<&Confinement>) {
    let Ok(line) = keep_only(line) else { return };
    let _ = rustix::thread::set_name(c"vmlan-keeper");
    if let Some(confinement) = confinement {
        confinement.enter(Thread::Keeper);
    }
    let mut keeps = Keeps { listener: None, sockets: [const { None }; SLOTS] };
    let mut budget = Budget::new();
    let mut said = reply(line, Head::default(), &[]);
    let mut request = [0; REQUEST];
    while said.is_ok() {
        let mut fds = Fds::new();
        let got = line::recv(line, &mut request, &mut fds, RecvFlags::empty());
        let Ok(got) = got else { break };
        let Some(request) = request.get(..got.bytes).and_then(Request::decode) else { break };
        said = keeps.serve(line, request, fds.drain().next());
        // What it got is harmless; the answer was sent before.
        budget.keep();
    }
    keeps.end();
}

struct Keeps {
    listener: Option<OwnedFd>,
    sockets: [Option<OwnedFd>; SLOTS],
}

impl Keeps {
    fn serve(
        &mut self,
        line: BorrowedFd<'_>,
        request: Request,
        fd: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        match request {
            Request::Listen => self.listener = fd,
            Request::Hold(slot) => {
                if let (Some(fd), Some(place)) = (fd, self.sockets.get_mut(usize::from(slot))) {
                    *place = Some(prepared(fd));
                }
            }
            Request::Accept(slot) => return self.accept(line, slot),
            Request::Take(slot, len) => {
                return self.take(line, slot, len, RecvFlags::DONTWAIT);
            }
            Request::Peek(slot, len) => {
                return self.take(line, slot, len, RecvFlags::DONTWAIT | RecvFlags::PEEK);
            }
            Request::Mark(bytes) => return reply(line, Head { bytes, ..Head::default() }, &[]),
            Request::LetGo(slot) => {
                if let Some(place) = self.sockets.get_mut(usize::from(slot)) {
                    *place = None;
                }
                return reply(line, Head::default(), &[]);
            }
        }
        Ok(())
    }

    fn accept(&mut self, line: BorrowedFd<'_>, slot: u8) -> Result<(), Errno> {
        let (Some(place), Some(listener)) =
            (self.sockets.get_mut(usize::from(slot)), &self.listener)
        else {
            return refuse(line, Errno::BADF);
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let sock = match rustix::net::accept_with(listener, flags) {
            Ok(sock) => place.insert(prepared(sock)),
            Err(e) => return refuse(line, e),
        };
        let Err(e) = reply(line, Head::default(), &[sock.as_fd()]) else { return Ok(()) };
        *place = None;
        refuse(line, e)
    }

    fn take(
        &self,
        line: BorrowedFd<'_>,
        slot: u8,
        len: u32,
        flags: RecvFlags,
    ) -> Result<(), Errno> {
        let Some(sock) = self.sockets.get(usize::from(slot)).and_then(Option::as_ref) else {
            return refuse(line, Errno::BADF);
        };
        let mut packet = [0; REPLY];
        let mut fds = Fds::new();
        let len = usize::try_from(len).unwrap_or(0).min(MAX_TAKE);
        let room = packet.get_mut(HEAD..HEAD + len).unwrap_or_default();
        match line::recv(sock.as_fd(), room, &mut fds, flags) {
            Ok(got) => pass_on(line, &mut packet, got, fds),
            Err(e) => refuse(line, e),
        }
    }

    /// Shuts everything down before anything is closed: from the first close on, this process may
    /// be parked.
    fn end(&self) {
        for sock in self.listener.iter().chain(self.sockets.iter().flatten()) {
            let _ = rustix::net::shutdown(sock, Shutdown::Both);
        }
    }
}

/// Bytes sent out of band stay in line, and the descriptors that come with them. Otherwise whoever
/// reads what follows throws them away, though a peek at it showed no descriptor.
fn prepared(sock: OwnedFd) -> OwnedFd {
    let _ = rustix::net::sockopt::set_socket_oobinline(&sock, true);
    sock
}

/// Sends what was taken: `packet` has the bytes. What is harmless goes along with them, and all
/// else is closed first, however long that takes: the switch is to know whom it waited for.
fn pass_on(
    line: BorrowedFd<'_>,
    packet: &mut [u8; REPLY],
    got: line::Received,
    mut fds: Fds,
) -> Result<(), Errno> {
    let truncated = got.truncated || fds.count() > MAX_FDS;
    let mut head = Head { truncated, ..Head::default() };
    head.bytes = u32::try_from(got.bytes).map_err(|_| Errno::TOOBIG)?;
    let mut good = Fds::new();
    let mut end = HEAD + got.bytes;
    for fd in fds.drain() {
        let mut text = [MaybeUninit::uninit(); MAX_TEXT];
        let (kind, text) = look(fd.as_fd(), &mut text);
        if !truncated {
            end += encode_line(packet.get_mut(end..).unwrap_or_default(), kind, text);
            head.count += 1;
        }
        if kind != Kind::Other && !truncated {
            good.add(fd);
        }
    }
    packet.iter_mut().zip(head.encode()).for_each(|(to, from)| *to = from);
    let mut list = [line; MAX_FDS];
    list.iter_mut().zip(good.iter()).for_each(|(to, from)| *to = from.as_fd());
    let packet = packet.get(..end).unwrap_or_default();
    let list = list.get(..good.count()).unwrap_or_default();
    line::send(line, packet, list, SendFlags::empty()).or_else(|e| refuse(line, e))
}

/// Says that a request was in vain. So is one whose descriptors the kernel does not pass on: a
/// stranger can have too many of this user's under way, and a keeper must not end of that. Where
/// the line is at its end, this fails too.
fn refuse(line: BorrowedFd<'_>, why: Errno) -> Result<(), Errno> {
    reply(line, Head::of(Err(why)), &[])
}

fn reply(line: BorrowedFd<'_>, head: Head, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    line::send(line, &head.encode(), fds, SendFlags::empty())
}
