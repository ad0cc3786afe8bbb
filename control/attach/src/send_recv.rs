//! Bytes and descriptors over a UNIX socket, without waiting.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Descriptors taken with one `recvmsg`. A message may carry 8 (`wire::Request::limits`); the rest
/// of the room is there so that a sender of a few too many gets an answer, instead of being cut off
/// by `MSG_CTRUNC`.
pub const MAX_FDS: usize = 16;

/// What one [`recv`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0 is the end of the stream.
    pub bytes: usize,
    /// More descriptors were sent than fit or than this process may open: the kernel threw some
    /// away.
    pub truncated: bool,
}

/// Receives into `buf` without waiting, and appends the descriptors that came along to `fds`.
///
/// # Errors
/// That of `recvmsg`.
pub fn recv(sock: BorrowedFd<'_>, buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(sock, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Received { bytes: got.bytes, truncated: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// Sends `bytes`, and `fd` with the first of them, without waiting and without SIGPIPE. Returns how
/// many bytes went.
///
/// # Errors
/// That of `sendmsg`.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fd = fd.as_slice();
    if !fd.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fd)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(sock, &[IoSlice::new(bytes)], &mut control, flags)?)
}
