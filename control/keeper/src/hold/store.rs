//! Holding by a service manager: the file descriptor store of systemd (sd_pid_notify_with_fds(3)).
//!
//! That store has descriptors with names, one at a time: it neither replaces several of them at
//! once, nor keeps bytes beside them, nor has one under two names. So what it gets is a **drawer**
//! for each name of ours: both ends of a pair of sockets. What is held lies in it as a packet,
//! bytes and descriptors together, which the kernel keeps for whoever has the drawer. The next
//! packet is put behind the last one before that is taken out: at every moment the last packet is
//! what is held. The service manager hears of a name when it is new and when it goes, and of
//! nothing else.
//!
//! A drawer that is given up is emptied first, while its owner has its own descriptors still. So
//! the service manager closes none of a stranger's as the last, unless the service has ended.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::packet::{Kind, MAX_PACKET, Packet};
use super::{Held, Hold, HoldError, PATIENCE};
use crate::line::{self, Fds};
use crate::wait;

/// What the service manager calls drawers: this and a number.
const DRAWER: &str = "vmlan-held-";

/// Descriptors of a drawer.
const ENDS: usize = 2;

/// A service manager's store, as a switch sees it. Threads share it.
#[derive(Debug)]
pub struct Store {
    /// To the service manager.
    notify: OwnedFd,
    /// Drawers that it has room for.
    room: usize,
    drawers: Mutex<Vec<Arc<Drawer>>>,
}

#[derive(Debug)]
struct Drawer {
    /// Of what is held in it.
    name: Vec<u8>,
    number: u32,
    /// Packets that are sent here
    front: OwnedFd,
    /// wait here.
    back: OwnedFd,
}

impl Store {
    /// True if a descriptor that a service manager has given to this process, under this name, is
    /// for [`Store::new`].
    pub fn is_drawers(name: &str) -> bool {
        number(name).is_some()
    }

    /// The store of the service manager that listens at `notify` and has room for so many
    /// descriptors (`NOTIFY_SOCKET` and `FDSTORE` of its environment). `given` are those that it
    /// has kept, with their names.
    ///
    /// # Errors
    /// [`HoldError`].
    pub fn new(
        notify: &OsStr,
        room: usize,
        given: Vec<(String, OwnedFd)>,
    ) -> Result<Self, HoldError> {
        let kind = SocketType::DGRAM;
        let sock = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let address = match notify.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(notify)?,
        };
        rustix::net::connect(&sock, &address)?;
        rustix::net::sockopt::set_socket_timeout(&sock, Timeout::Send, Some(PATIENCE))?;
        let store = Self { notify: sock, room: room / ENDS, drawers: Mutex::default() };
        store.find(given);
        Ok(store)
    }

    /// Has the drawers that another switch has left.
    fn find(&self, mut given: Vec<(String, OwnedFd)>) {
        given.sort_by_key(|(name, _)| number(name));
        let mut given = given.into_iter().peekable();
        while let Some((name, fd)) = given.next() {
            let Some(number) = number(&name) else { continue };
            let mut ends = vec![fd];
            while let Some((_, fd)) = given.next_if(|(other, _)| *other == name) {
                ends.push(fd);
            }
            match <[_; ENDS]>::try_from(ends).ok().and_then(|ends| Drawer::adopt(number, ends)) {
                Some(drawer) => self.lock().push(drawer.into()),
                // Nothing was put into it before its switch died, or it is none.
                None => drop(self.say(&removal(number), &[])),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Drawer>>> {
        self.drawers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, text: &str, fds: &[BorrowedFd<'_>]) -> Result<(), HoldError> {
        let said = line::send(self.notify.as_fd(), text.as_bytes(), fds, SendFlags::empty());
        said.map_err(|errno| match errno {
            Errno::CONNREFUSED | Errno::NOENT => HoldError::NoManager,
            Errno::AGAIN => HoldError::SilentManager,
            other => other.into(),
        })
    }

    /// Returns once all has been done that was said.
    fn wait(&self) -> Result<(), HoldError> {
        let (done, ours) = std::io::pipe().map_err(|_| HoldError::Descriptors)?;
        self.say("BARRIER=1", &[ours.as_fd()])?;
        drop(ours);
        let end = Instant::now() + PATIENCE;
        wait::readable(done.as_fd(), end, || false).map_err(|_| HoldError::SilentManager)
    }
}

impl Hold for Store {
    fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError> {
        let (count, name) = (u16::try_from(fds.len()).map_err(|_| Errno::TOOBIG)?, name.as_bytes());
        let mut packet = Vec::new();
        Packet { kind: Kind::Put, number: 0, fds: count, name, bytes }.encode(&mut packet)?;
        let mut drawers = self.lock();
        if let Some(drawer) = drawers.iter().find(|drawer| drawer.name == name) {
            drawer.put(&packet, fds)?;
            drawer.take_out();
            return Ok(());
        }
        if drawers.len() >= self.room {
            return Err(HoldError::FullManager(self.room));
        }
        let is_free = |number: &u32| drawers.iter().all(|drawer| drawer.number != *number);
        let number = (0..).find(is_free).ok_or(Errno::NOSPC)?;
        let drawer = Arc::new(Drawer::new(name, number)?);
        drawer.put(&packet, fds)?;
        drawers.push(Arc::clone(&drawer));
        // Others need not wait for the service manager.
        drop(drawers);
        let text = format!("FDSTORE=1\nFDNAME={DRAWER}{number}");
        let said = self.say(&text, &[drawer.front.as_fd(), drawer.back.as_fd()]);
        if let Err(e) = said.and_then(|()| self.wait()) {
            // Its number is free once its removal was said.
            let mut drawers = self.lock();
            drawers.retain(|other| other.number != number);
            drawer.take_out();
            let _ = self.say(&removal(number), &[]);
            return Err(e);
        }
        Ok(())
    }

    fn forget(&self, name: &str) -> Result<(), HoldError> {
        let mut drawers = self.lock();
        let Some(at) = drawers.iter().position(|drawer| drawer.name == name.as_bytes()) else {
            return Ok(());
        };
        let drawer = drawers.swap_remove(at);
        drawer.take_out();
        self.say(&removal(drawer.number), &[])
    }

    fn all(&self) -> Result<Vec<Held>, HoldError> {
        let mut packet = vec![0; MAX_PACKET];
        self.lock().iter().map(|drawer| drawer.look(&mut packet)).collect()
    }

    fn end(&self) {
        for drawer in self.lock().drain(..) {
            let number = drawer.number;
            // The last that has what is in it is not to be this process.
            drop(drawer);
            let _ = self.say(&removal(number), &[]);
        }
    }
}

impl Drawer {
    fn new(name: &[u8], number: u32) -> Result<Self, Errno> {
        let (front, back) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok(Self { name: name.to_owned(), number, front, back })
    }

    /// One that another switch has left. `None`: there is nothing in it.
    fn adopt(number: u32, [one, other]: [OwnedFd; ENDS]) -> Option<Self> {
        let is_back = |end: &OwnedFd| rustix::io::ioctl_fionread(end).is_ok_and(|bytes| bytes > 0);
        let (front, back) = if is_back(&one) { (other, one) } else { (one, other) };
        let mut drawer = Self { name: Vec::new(), number, front, back };
        let mut packet = vec![0; MAX_PACKET];
        loop {
            let len = drawer.peek(&mut packet, &mut Fds::new()).ok()?;
            // If it died in the midst of a change, the older one is to be taken out still.
            if rustix::io::ioctl_fionread(&drawer.back).ok()? <= u64::try_from(len).ok()? {
                let held = packet.get(..len).and_then(Packet::decode)?;
                drawer.name = held.name.to_owned();
                return Some(drawer);
            }
            drawer.take_out();
        }
    }

    fn put(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), HoldError> {
        let sent = line::send(self.front.as_fd(), packet, fds, SendFlags::DONTWAIT);
        sent.map_err(|errno| match errno {
            Errno::TOOMANYREFS => HoldError::Descriptors,
            other => other.into(),
        })
    }

    /// Takes out what lies there longest. Whoever put it there has the descriptors still.
    fn take_out(&self) {
        let _ = line::recv_now(self.back.as_fd(), &mut [0; 1], &mut Fds::new());
    }

    fn peek(&self, packet: &mut [u8], fds: &mut Fds) -> Result<usize, Errno> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        Ok(line::recv(self.back.as_fd(), packet, fds, flags)?.bytes)
    }

    fn look(&self, packet: &mut [u8]) -> Result<Held, HoldError> {
        let mut fds = Fds::new();
        let len = self.peek(packet, &mut fds)?;
        let held = packet.get(..len).and_then(Packet::decode).ok_or(Errno::PROTO)?;
        if fds.count() != usize::from(held.fds) {
            return Err(HoldError::Descriptors);
        }
        Ok(Held {
            name: String::from_utf8_lossy(held.name).into_owned(),
            fds: fds.drain().collect(),
            bytes: held.bytes.to_vec(),
        })
    }
}

fn number(name: &str) -> Option<u32> {
    name.strip_prefix(DRAWER)?.parse().ok()
}

/// Has the service manager let a drawer go.
fn removal(number: u32) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={DRAWER}{number}")
}

#[cfg(test)]
mod tests;
