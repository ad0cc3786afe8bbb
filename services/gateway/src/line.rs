//! The line to the switch: one message in each packet.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlan_config::gateway::{FromGateway, MAX_MESSAGE, ToGateway};

/// The gateway's end.
#[derive(Debug)]
pub(crate) struct Line {
    fd: OwnedFd,
    room: Vec<u8>,
}

impl Line {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, room: vec![0; MAX_MESSAGE] }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// The switch is gone, or says what cannot be understood.
    pub(crate) fn receive(&mut self, wait: bool) -> Result<Option<ToGateway>, Errno> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let got =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut self.room[..], flags));
        match got {
            Ok((_, 0)) => Err(Errno::PIPE),
            Ok((_, len)) => {
                let bytes = self.room.get(..len).ok_or(Errno::MSGSIZE)?;
                serde_json::from_slice(bytes).map(Some).map_err(|_| Errno::BADMSG)
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Tells the switch, which reads all that it is told.
    ///
    /// # Errors
    /// The switch is gone.
    pub(crate) fn send(&self, message: &FromGateway) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
        let send = || rustix::net::send(&self.fd, &bytes, SendFlags::NOSIGNAL);
        rustix::io::retry_on_intr(send).map(drop)
    }
}
