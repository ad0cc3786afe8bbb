//! Whoever closes a descriptor of a stranger's as the last may be parked: neither the holder nor
//! the control thread is.

mod common;
mod vfio;

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use common::memfd;
use vfio::*;
use vmlan_attach::ask_keepers;
use vmlan_attach::vfio_user::{Config, adopt, attach};
use vmlan_frame::Mac;
use vmlan_keeper::hold::{Held, Hold, HoldError};

fn eventfd() -> File {
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    File::from(rustix::event::eventfd(0, flags).unwrap())
}

/// A holder that finds out whether it is the last that has what it lets go.
#[derive(Debug, Default)]
struct Last {
    fds: Mutex<Vec<OwnedFd>>,
    /// What it has let go, and what of that it was the last to have.
    gone: Mutex<(usize, Vec<String>)>,
}

/// What a descriptor is of, if that can be told: a file's number, an eventfd's.
fn what(fd: i32) -> Option<String> {
    let is_memfd = |link: std::path::PathBuf| link.to_string_lossy().contains("memfd:");
    let memfd = std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(is_memfd);
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let key = if memfd { "ino:" } else { "eventfd-id:" };
    info.lines().find(|line| line.starts_with(key)).map(str::to_owned)
}

impl Hold for Last {
    fn put(&self, _: &str, fds: &[BorrowedFd<'_>], _: &[u8]) -> Result<(), HoldError> {
        let new = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let old = std::mem::replace(&mut *self.fds.lock().unwrap(), new);
        let mut gone = self.gone.lock().unwrap();
        for fd in old {
            let Some(of) = what(fd.as_raw_fd()) else { continue };
            drop(fd);
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            gone.0 += 1;
            if !numbers.filter_map(what).any(|other| other == of) {
                gone.1.push(of);
            }
        }
        Ok(())
    }

    fn forget(&self, _: &str) -> Result<(), HoldError> {
        Ok(())
    }

    fn all(&self) -> Result<Vec<Held>, HoldError> {
        Ok(Vec::new())
    }

    fn end(&self) {}
}

/// What a client gave may park whoever closes it last: an eventfd with a crowd of watches, memory.
#[test]
fn the_holder_is_never_the_last_that_has_a_descriptor() {
    let hold = Arc::new(Last::default());
    let f = Fixture::with(|config| config.hold = Some(hold.clone()));
    let mut client = f.ready();
    for n in 0..4 {
        let (memory, event) = (memfd(1 << 20), eventfd());
        assert_eq!(client.map(0, n << 30, 1 << 20, memory.as_raw_fd()), Some(0));
        assert_eq!(client.set_irqs(0x24, MSI, 1, &[event.as_raw_fd()]), Some(0));
        // The client keeps none.
        drop((memory, event));
        if n % 2 == 0 {
            assert_eq!(client.unmap(n << 30, 1 << 20), Some(0));
            assert_eq!(client.set_irqs(0x21, MSI, 0, &[]), Some(0));
        }
    }
    let (gone, last) = &*hold.gone.lock().unwrap();
    assert!(*gone > 20 && last.is_empty(), "{gone}: {last:?}");
}

/// What the last switch has left of a port, and how many descriptors of its client's socket this
/// process has whenever something is put.
#[derive(Debug, Default)]
struct Left {
    held: Mutex<Option<Held>>,
    /// The link in /proc of that socket.
    socket: Mutex<Option<PathBuf>>,
    counts: Mutex<Vec<usize>>,
}

impl Left {
    fn count(&self) -> usize {
        let socket = self.socket.lock().unwrap();
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|entry| std::fs::read_link(entry.path()).ok() == *socket).count()
    }
}

impl Hold for Left {
    fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError> {
        if self.socket.lock().unwrap().is_some() {
            self.counts.lock().unwrap().push(self.count());
            return Ok(());
        }
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let held = Held { name: name.to_owned(), fds, bytes: bytes.to_owned() };
        *self.held.lock().unwrap() = Some(held);
        Ok(())
    }

    fn forget(&self, _: &str) -> Result<(), HoldError> {
        Ok(())
    }

    fn all(&self) -> Result<Vec<Held>, HoldError> {
        Ok(Vec::new())
    }

    fn end(&self) {}
}

/// Who starts a port has nothing of its client's any more when the port's thread may let it go.
#[test]
fn who_adopts_a_client_is_not_the_last_that_has_its_socket() {
    let hold = Arc::new(Left::default());
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("s"), Mac::new(MAC));
    config.hold = Some(hold.clone());
    let mut first = attach(config.clone(), Arc::new(|| {})).unwrap();
    let mut raw = Raw::new(UnixStream::connect(dir.path().join("s")).unwrap());
    assert_eq!(raw.ask(VERSION, &[&[0, 0, 1, 0][..], b"{}\0"].concat(), &[]), Some(0));
    raw.enable();
    first.hand_over();
    let held = hold.held.lock().unwrap().take().unwrap();
    // In a client's record its socket is the first.
    let socket = std::fs::read_link(format!("/proc/self/fd/{}", held.fds[0].as_raw_fd()));
    *hold.socket.lock().unwrap() = Some(socket.unwrap());
    let before = hold.count();
    let asked = ask_keepers([&held]);
    let second = adopt(config, held, asked, Arc::new(|| {})).unwrap();
    assert_eq!(raw.config16(4), 6);
    drop(second);
    let counts = hold.counts.lock().unwrap();
    // Of what was held it has a duplicate, in the place of that.
    assert_eq!(counts.first(), Some(&before), "{counts:?}");
}
