//! Packets and descriptors between a keeper and whom it serves: UNIX sockets that keep packets
//! apart. Allocates nothing.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most descriptors that the kernel delivers with one message, and one more: a count of
/// [`MAX_FDS`](crate::MAX_FDS) tells too many from enough.
const KERNEL_MAX: usize = 253;

/// Both ends of a new line.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Descriptors that came with a packet.
pub struct Fds {
    list: [Option<OwnedFd>; KERNEL_MAX],
    count: usize,
}

impl Fds {
    pub fn new() -> Self {
        Self { list: [const { None }; KERNEL_MAX], count: 0 }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = &OwnedFd> {
        self.list.iter().flatten()
    }

    pub fn drain(&mut self) -> impl Iterator<Item = OwnedFd> {
        self.count = 0;
        self.list.iter_mut().filter_map(Option::take)
    }

    pub fn add(&mut self, fd: OwnedFd) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = Some(fd);
            self.count += 1;
        }
    }
}

/// What a [`recv`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0 is the end of the line.
    pub bytes: usize,
    /// Descriptors were thrown away: this process has too many open.
    pub truncated: bool,
}

/// Receives a packet, or bytes of a stream, into `buf`, and the descriptors that came along into
/// `fds`, which is empty.
pub fn recv(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut Fds,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(sock, &mut [IoSliceMut::new(buf)], &mut control, flags)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|fd| fds.add(fd));
        }
    }
    Ok(Received { bytes: got.bytes, truncated: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// Receives what is there of a line. Whoever ended before it had read everything leaves an error
/// behind, and its last words.
pub fn recv_now(line: BorrowedFd<'_>, buf: &mut [u8], fds: &mut Fds) -> Result<Received, Errno> {
    match recv(line, buf, fds, RecvFlags::DONTWAIT) {
        Err(Errno::CONNRESET) => recv(line, buf, fds, RecvFlags::DONTWAIT),
        got => got,
    }
}

/// Sends a packet with at most as many descriptors as the kernel takes.
pub fn send(
    sock: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let iov = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(sock, &iov, &mut control, flags))?;
    Ok(())
}
