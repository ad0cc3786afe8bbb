//! Bytes over a UNIX socket, without waiting. Descriptors go out here; those that come in are for
//! the port's keeper.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// What a [`peek`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes; 0 is the end of the stream.
    pub bytes: usize,
    /// Descriptors came with one of these bytes. Whoever reads them without taking those drops
    /// them, and may be parked.
    pub fds: bool,
}

/// Copies what is there to `buf`, and takes nothing. The kernel does not look past the first
/// message with descriptors. If it saw none, nobody but the reader can change that: the same bytes
/// may be read with [`recv`].
pub fn peek(sock: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Seen> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut none = RecvAncillaryBuffer::default();
    let got = rustix::net::recvmsg(sock, &mut [IoSliceMut::new(buf)], &mut none, flags)?;
    Ok(Seen { bytes: got.bytes, fds: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// Receives what a [`peek`] showed to be plain bytes.
pub fn recv(sock: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(sock, buf, RecvFlags::DONTWAIT)?.1)
}

/// Sends `bytes`, and `fd` with the first of them, without waiting and without SIGPIPE. Returns how
/// many bytes went.
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
