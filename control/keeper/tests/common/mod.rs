//! A keeper, its port, and a peer.
#![allow(dead_code)] // each test file uses its own part

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use vmlan_keeper::{Keeper, Kept};

/// All keepers of these tests are confined.
pub fn listen(path: &Path) -> Keeper {
    vmlan_keeper::start(true).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let kind = SocketType::STREAM;
    let sock = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::bind(&sock, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let keeper = Keeper::new(Some(sock)).unwrap();
    rustix::net::listen(keeper.listener().unwrap(), 8).unwrap();
    keeper
}

/// A keeper, the connection it accepted, and the peer.
pub fn connected() -> (tempfile::TempDir, Keeper, Kept, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let keeper = listen(&dir.path().join("s"));
    let peer = UnixStream::connect(dir.path().join("s")).unwrap();
    let kept = keeper.accept().unwrap();
    (dir, keeper, kept, peer)
}

pub fn send(peer: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) {
    try_send(peer, bytes, fds, flags).unwrap();
}

pub fn try_send(
    peer: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(peer, &[IoSlice::new(bytes)], &mut control, flags)
}

pub fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}
