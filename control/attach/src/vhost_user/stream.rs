//! A connection's bytes: messages cut out of the stream, replies put into it, no wait unbounded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::wire::{HEADER, Header, MAX_BODY, Malformed, Message};
use crate::sys::{self, Wait};

/// How long a started message may take to arrive, and a reply to be taken. Between messages a front end may be
/// silent for as long as it likes.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The front end hung up.
    #[error("the front end closed the connection")]
    Closed,
    /// What came is no message.
    #[error("malformed message")]
    Malformed(#[from] Malformed),
    /// Descriptors were lost on the way: more than any request has, or this process is at its limit.
    #[error("a message lost descriptors: too many were sent, or this process has too many open")]
    LostFds,
    /// A message was begun and not finished, or a reply not taken.
    #[error("the front end stopped in the middle of a message for {} s", DEADLINE.as_secs())]
    Stuck,
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[from] io::Error),
    /// We are being closed.
    #[error("the port is being removed")]
    Stopping,
}

/// One connection, read without ever waiting.
#[derive(Debug)]
pub struct Stream {
    sock: OwnedFd,
    buf: Box<[u8; HEADER + MAX_BODY]>,
    have: usize,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
    started: Option<Instant>,
}

impl Stream {
    /// Takes over a connected socket.
    #[must_use]
    pub fn new(sock: OwnedFd) -> Self {
        let buf = Box::new([0; HEADER + MAX_BODY]);
        Self { sock, buf, have: 0, header: None, fds: Vec::new(), started: None }
    }

    /// The socket, to poll.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Time left for the message that has begun; `None` between messages.
    #[must_use]
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.started.map(|t| DEADLINE.saturating_sub(now.saturating_duration_since(t)))
    }

    /// Reads what is there, up to one message's end. `None`: not complete yet.
    ///
    /// # Errors
    /// [`Error`]: the connection must be dropped.
    pub fn read(&mut self, now: Instant) -> Result<Option<Message>, Error> {
        loop {
            let goal = HEADER + self.header.map_or(0, |h| h.size);
            if self.have >= goal {
                match self.header {
                    Some(header) => return Ok(Some(self.take(header))),
                    None => self.parse_header()?,
                }
            } else if !self.fill(goal, now)? {
                let expired = self.time_left(now).is_some_and(|left| left.is_zero());
                return if expired { Err(Error::Stuck) } else { Ok(None) };
            }
        }
    }

    /// Never reads past `goal`: descriptors that come with the next message must not be taken for this one's.
    fn fill(&mut self, goal: usize, now: Instant) -> Result<bool, Error> {
        let free = self.buf.get_mut(self.have..goal).unwrap_or_default();
        let got = match sys::recv(self.sock.as_fd(), free, &mut self.fds) {
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if got.truncated || self.fds.len() > sys::MAX_FDS {
            return Err(Error::LostFds);
        }
        if got.bytes == 0 {
            return Err(Error::Closed);
        }
        self.have += got.bytes;
        self.started.get_or_insert(now);
        Ok(true)
    }

    fn parse_header(&mut self) -> Result<(), Error> {
        if let Some(bytes) = self.buf.first_chunk() {
            self.header = Some(Header::parse(bytes)?);
        }
        Ok(())
    }

    fn take(&mut self, header: Header) -> Message {
        let body = self.buf.get(HEADER..self.have).unwrap_or_default().to_vec();
        self.have = 0;
        self.header = None;
        self.started = None;
        Message { header, body, fds: std::mem::take(&mut self.fds) }
    }

    /// Sends `bytes`, and `fd` with the first of them. Waits for a slow reader at most [`DEADLINE`], and no longer
    /// than until `stop` becomes readable.
    ///
    /// # Errors
    /// [`Error`]: the connection must be dropped.
    pub fn write(
        &self,
        mut bytes: &[u8],
        mut fd: Option<BorrowedFd<'_>>,
        stop: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let end = Instant::now() + DEADLINE;
        while !bytes.is_empty() {
            match sys::send(self.sock.as_fd(), bytes, fd) {
                Ok(n) => {
                    bytes = bytes.get(n..).unwrap_or_default();
                    fd = None;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait_room(end, stop)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn wait_room(&self, end: Instant, stop: BorrowedFd<'_>) -> Result<(), Error> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Stuck);
        }
        let wait = [Some((stop, Wait::Read)), Some((self.sock.as_fd(), Wait::Write))];
        let [stopping, _] = sys::poll(wait, Some(left))?;
        if stopping { Err(Error::Stopping) } else { Ok(()) }
    }
}
