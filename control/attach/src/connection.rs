//! A connection: messages are cut out of its bytes, and replies are sent. No wait is unbounded.

#[cfg(test)]
pub mod tests;

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use vmlan_keeper::{Descriptor, KeeperError, Kept, MAX_FDS};

use crate::budget::Takes;
use crate::death::point;
use crate::journal::{Journal, Phase};
use crate::poll::{Wait, poll};
use crate::send_recv::{peek, recv, send};
use crate::sys::{peek_offset, set_peek_offset};
use crate::waker::Waker;

/// How long a message that has begun may take to arrive, and a reply to be read. Between messages a
/// peer may be silent for as long as it likes.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Why the bytes of a connection are not messages. Nothing that follows can be trusted to start at
/// a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another version of the protocol, or a reply where a request belongs.
    #[error("flags {0:#x} are not those of a request")]
    Flags(u32),
    /// The body does not fit.
    #[error("a message of {0} bytes is longer than any request")]
    Oversize(u32),
    /// The header counts itself, and claims to be shorter than it is.
    #[error("a message of {0} bytes is shorter than its header")]
    Undersize(u32),
}

/// How a protocol marks where its messages end.
pub trait Framing {
    type Header: Copy + Debug;
    const HEADER: usize;
    /// Bytes that are taken up at once, at least a header and the longest body.
    const BUFFER: usize;
    /// Bytes behind the message that is due may be read along with it, which saves system calls.
    /// Descriptors then belong to the last message that the read touched: the kernel ends a read
    /// after the bytes that they came with.
    const AHEAD: bool;

    /// A message that changes more than a register. Where there is a journal, it is answered before
    /// anything else is done.
    fn is_control(_header: &Self::Header) -> bool {
        false
    }

    /// A message with several effects, which is not to be carried out again if that was begun.
    fn is_once(_header: &Self::Header) -> bool {
        false
    }

    /// Parses the [`Framing::HEADER`] bytes that a message starts with: its header, and the bytes
    /// that follow.
    ///
    /// # Errors
    /// [`Malformed`]: the connection cannot go on.
    fn parse(bytes: &[u8]) -> Result<(Self::Header, usize), Malformed>;
}

/// One whole message.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Message<'s, H> {
    pub header: H,
    pub body: &'s [u8],
    /// The descriptors that came along. They are closed with the message, unless a handler takes
    /// them.
    pub fds: Vec<Descriptor>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConnectionError {
    #[error("the VMM closed the connection")]
    Closed,
    #[error("malformed message")]
    Malformed(#[from] Malformed),
    #[error("a message lost descriptors: too many were sent, or this process has too many open")]
    LostFds,
    #[error("the VMM stopped in the middle of a message for {} s", DEADLINE.as_secs())]
    Stuck,
    #[error("the socket failed")]
    Io(#[from] io::Error),
    #[error("lost a message")]
    Keeper(#[source] KeeperError),
    #[error("the port is being removed")]
    Stopping,
    #[error("the journal and the socket say different things")]
    Unknown,
}

impl ConnectionError {
    /// The peer has gone, in whatever way, without breaking a rule.
    pub fn is_goodbye(&self) -> bool {
        match self {
            Self::Closed | Self::Stopping => true,
            Self::Io(e) => {
                matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            _ => false,
        }
    }

    /// The peer sent something that parks whoever touches it.
    pub fn has_parked(&self) -> bool {
        matches!(self, Self::Keeper(KeeperError::Parked))
    }
}

impl From<KeeperError> for ConnectionError {
    fn from(error: KeeperError) -> Self {
        match error {
            KeeperError::Closing => Self::Stopping,
            KeeperError::Io(errno) => Self::Io(errno.into()),
            other => Self::Keeper(other),
        }
    }
}

/// How long a write waits between two looks at the stop flag, while the waker is readable for
/// another reason.
const SLICE: Duration = Duration::from_millis(20);

/// Bytes that are peeked at where each control message is to be looked at anew: most are shorter.
const FEW: usize = 64;

/// One connection. Reading it never waits.
#[derive(Debug)]
pub struct Connection<F: Framing> {
    sock: Kept,
    buf: Box<[u8]>,
    /// What was read and not handed out yet: `buf[start..end]`.
    start: usize,
    end: usize,
    header: Option<(F::Header, usize)>,
    fds: Vec<Descriptor>,
    /// Where the bytes end that the descriptors came with.
    fds_end: usize,
    started: Option<Instant>,
    /// The last message was a control message that was handed out alone.
    alone: bool,
    /// With one, `buf` has what a peek has shown: it is in the socket still.
    journal: Option<Journal>,
    /// Descriptors are among what the peek has shown.
    shown_fds: bool,
    /// What was handed out last is a control message.
    control: bool,
    /// So many bytes of requests were carried out by the switch before.
    done: usize,
    /// Where the socket's next peek begins, if that is known.
    place: Option<usize>,
    framing: PhantomData<F>,
}

impl<F: Framing> Connection<F> {
    /// Takes over a connected socket. With a journal the next switch can go on where this one dies.
    pub fn new(sock: Kept, journal: Option<Journal>) -> Self {
        Self {
            sock,
            journal,
            shown_fds: false,
            control: false,
            done: 0,
            place: None,
            buf: vec![0; F::BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            header: None,
            fds: Vec::new(),
            fds_end: 0,
            started: None,
            alone: false,
            framing: PhantomData,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Time left for the message that has begun; `None` between messages.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.started.map(|t| DEADLINE.saturating_sub(now.saturating_duration_since(t)))
    }

    /// The next message, if it is there. `None`: not complete yet, or has descriptors, and `takes`
    /// is used up.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be dropped.
    pub fn read(
        &mut self,
        now: Instant,
        takes: &mut Takes,
    ) -> Result<Option<Message<'_, F::Header>>, ConnectionError> {
        loop {
            let goal = F::HEADER + self.header.map_or(0, |(_, size)| size);
            if self.end - self.start >= goal {
                match self.header.take() {
                    Some((header, _)) if self.must_finish(&header) => return Ok(None),
                    Some((header, _)) => return Ok(Some(self.take(header, goal))),
                    None => {
                        let bytes = self.buf.get(self.start..self.start + F::HEADER);
                        self.header = Some(F::parse(bytes.unwrap_or_default())?);
                    }
                }
            } else if !self.fill(goal, now, takes)? {
                let expired = self.time_left(now).is_some_and(|left| left.is_zero());
                return if expired { Err(ConnectionError::Stuck) } else { Ok(None) };
            }
        }
    }

    /// True if everything that was read was handed out.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.start == self.end
    }

    /// Reads more: up to `goal` bytes from `start`, or as much as there is room for. Never past
    /// `goal` while there are descriptors for the message that is due: the next one's must not be
    /// taken for its own.
    fn fill(
        &mut self,
        goal: usize,
        now: Instant,
        takes: &mut Takes,
    ) -> Result<bool, ConnectionError> {
        if self.journal.is_some() {
            return self.look(goal, now, takes);
        }
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let ahead = F::AHEAD && self.fds.is_empty();
        let limit = if ahead { self.buf.len() } else { goal };
        let free = self.buf.get_mut(self.end..limit).unwrap_or_default();
        let had = self.fds.len();
        let seen = match peek(self.sock.as_fd(), free) {
            Ok(seen) => seen,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if seen.bytes == 0 {
            return Err(ConnectionError::Closed);
        }
        let free = free.get_mut(..seen.bytes).unwrap_or_default();
        if seen.fds {
            if takes.left(now).is_some() {
                return Ok(false);
            }
            let taken = self.sock.take(free, &mut self.fds)?;
            takes.spend(now, self.fds.len() - had);
            if taken.truncated || self.fds.len() > MAX_FDS {
                return Err(ConnectionError::LostFds);
            }
            self.end += taken.bytes;
        } else {
            self.end += recv(self.sock.as_fd(), free)?;
        }
        if self.fds.len() > had {
            self.fds_end = self.end;
        }
        self.started.get_or_insert(now);
        Ok(true)
    }

    fn take(&mut self, header: F::Header, size: usize) -> Message<'_, F::Header> {
        let (start, end) = (self.start, self.start + size);
        self.control = self.journal.is_some() && F::is_control(&header);
        self.alone = self.control;
        if F::is_once(&header) {
            self.journal.iter().for_each(|journal| journal.set_once(true));
        }
        let ours = !self.fds.is_empty() && self.fds_end <= end;
        let fds = if ours { std::mem::take(&mut self.fds) } else { Vec::new() };
        self.start = end;
        if end == self.end {
            self.started = None;
            if self.journal.is_none() {
                (self.start, self.end) = (0, 0);
            }
        }
        let body = self.buf.get(start + F::HEADER..end).unwrap_or_default();
        Message { header, body, fds }
    }

    /// With a journal: what was handed out is to be answered before this is. A control message is
    /// alone, so at most one of them may or may not have had its effect when we die.
    fn must_finish(&self, header: &F::Header) -> bool {
        let control = self.journal.is_some() && F::is_control(header);
        self.control || control && self.start > 0
    }

    /// [`Connection::fill`] with a journal: peeks, as nothing is taken before it was answered. The
    /// kernel does not look past descriptors, behind which the rest of their message may be: then
    /// the next look goes on there.
    fn look(
        &mut self,
        goal: usize,
        now: Instant,
        takes: &mut Takes,
    ) -> Result<bool, ConnectionError> {
        if self.start > 0 {
            return Ok(false);
        }
        let from = self.end;
        let limit = match (self.fds.is_empty(), F::AHEAD && !self.alone) {
            (false, _) => goal,
            (true, true) => self.buf.len(),
            // What is behind a control message is looked at again after it: a flood of small ones
            // would be copied a hundred times.
            (true, false) => goal.max(FEW).min(self.buf.len()),
        };
        let free = self.buf.get_mut(from..limit).unwrap_or_default();
        let place = i32::try_from(from).map_err(|_| ConnectionError::Unknown)?;
        if self.place != Some(from) {
            set_peek_offset(self.sock.as_fd(), place)?;
            self.place = Some(from);
        }
        let seen = match peek(self.sock.as_fd(), free) {
            Ok(seen) => seen,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if seen.bytes == 0 {
            return Err(ConnectionError::Closed);
        }
        let takes_fds = seen.fds && self.fds.is_empty();
        if takes_fds && takes.left(now).is_some() {
            set_peek_offset(self.sock.as_fd(), place)?;
            return Ok(false);
        }
        self.end += seen.bytes;
        self.place = Some(self.end);
        self.started.get_or_insert(now);
        // A peek that ends where descriptors begin says that it has seen them: they are the next
        // message's, if this one has its own.
        self.shown_fds |= seen.fds;
        if takes_fds {
            self.place = None;
            set_peek_offset(self.sock.as_fd(), place)?;
            let shown = free.get_mut(..seen.bytes).unwrap_or_default();
            let taken = self.sock.peek(shown, &mut self.fds)?;
            takes.spend(now, self.fds.len());
            if taken.truncated || self.fds.len() > MAX_FDS {
                return Err(ConnectionError::LostFds);
            }
            self.end = from + taken.bytes;
            self.fds_end = self.end;
        }
        point();
        self.journal.iter().for_each(|journal| journal.set_shown(self.end));
        Ok(true)
    }

    /// What was peeked is to be looked at anew.
    fn forget(&mut self) {
        (self.start, self.end, self.fds_end) = (0, 0, 0);
        (self.header, self.shown_fds, self.control) = (None, false, false);
        self.fds.clear();
    }

    /// What was handed out was carried out, and what it has changed outlives us.
    #[inline]
    pub fn note_done(&self) {
        if let Some(journal) = &self.journal {
            journal.set_done(self.start.max(self.done));
            journal.set_once(false);
        }
    }

    /// True if a message is not whole. With a journal its first part makes the socket readable, so
    /// there is no point in polling it.
    pub fn is_half(&self) -> bool {
        self.journal.is_some() && self.end > 0
    }

    /// Replies to what was handed out: sends them, `fd` with the first of them, and takes it from
    /// the socket. Waits as [`Connection::write`] does.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be dropped.
    pub fn finish(
        &mut self,
        replies: &[u8],
        fd: Option<BorrowedFd<'_>>,
        waker: &Waker,
    ) -> Result<(), ConnectionError> {
        let Some(journal) = &self.journal else { return self.write(replies, fd, waker) };
        let taken = self.start;
        if taken == 0 {
            return Ok(());
        }
        let answered = self.control || !replies.is_empty();
        // A reply wakes its reader up, who competes with us for a core: all else is done before.
        // But what a descriptor is sent for is taken when that went, and no reply waits for a
        // keeper.
        let through_keeper = self.shown_fds;
        let at_once = fd.is_some() || through_keeper;
        if answered {
            journal.begin((self.end, taken), self.control.into(), replies)?;
            point();
            journal.answered(fd.is_some());
            point();
            if at_once {
                self.deliver(fd, waker)?;
            }
        }
        self.consume(taken, through_keeper)?;
        point();
        self.done = self.done.saturating_sub(taken);
        self.journal.iter().for_each(|journal| journal.set_left(self.done));
        point();
        if answered {
            self.deliver(None, waker)?;
            self.journal.iter().for_each(Journal::taken);
        }
        self.started = None;
        self.forget();
        Ok(())
    }

    /// Sends what is left of the replies, and `fd` with their first byte.
    fn deliver(&self, fd: Option<BorrowedFd<'_>>, waker: &Waker) -> Result<(), ConnectionError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let (mut left, mut end) = (journal.left()?, None);
        while !left.is_empty() {
            match journal.send(self.sock.as_fd(), fd, &left) {
                Ok(n) => left.start += n,
                Err(e) => self.wait_to_send(e, &mut end, waker)?,
            }
            point();
        }
        Ok(())
    }

    /// Takes so many bytes from the socket, which were peeked. Descriptors among them are the
    /// keeper's to drop.
    fn consume(&mut self, mut bytes: usize, through_keeper: bool) -> Result<(), ConnectionError> {
        // The kernel moves the place back by what is taken.
        let place = self.place.take().filter(|_| !through_keeper);
        let place = place.and_then(|place| place.checked_sub(bytes));
        while bytes > 0 {
            let buf = self.buf.get_mut(..bytes).ok_or(ConnectionError::Unknown)?;
            let taken = if through_keeper {
                self.sock.take(buf, &mut self.fds)?.bytes
            } else {
                recv(self.sock.as_fd(), buf)?
            };
            if taken == 0 {
                return Err(ConnectionError::Closed);
            }
            bytes = bytes.saturating_sub(taken);
        }
        self.place = place;
        Ok(())
    }

    /// Does what the switch that has died had still to do: sends the rest of its replies, takes
    /// what they answer. Returns how many bytes of requests follow that it has carried out.
    ///
    /// # Errors
    /// [`ConnectionError::Unknown`], or as [`Connection::finish`].
    pub fn recover(&mut self, waker: &Waker) -> Result<usize, ConnectionError> {
        let Some(journal) = &self.journal else { return Ok(0) };
        match journal.phase()? {
            Phase::Idle => {
                self.done = journal.done(peek_offset(self.sock.as_fd())?);
                journal.set_left(self.done);
                journal.begin_anew();
            }
            Phase::Answered { peeked, taken } => {
                self.deliver(None, waker)?;
                point();
                let place = peek_offset(self.sock.as_fd())?;
                let gone = peeked.checked_sub(place).ok_or(ConnectionError::Unknown)?;
                let left = taken.checked_sub(gone).filter(|left| *left <= self.buf.len());
                self.consume(left.ok_or(ConnectionError::Unknown)?, true)?;
                point();
                let place = peek_offset(self.sock.as_fd())?;
                if let Some(journal) = &self.journal {
                    self.done = journal.done(place);
                    journal.set_left(self.done);
                    point();
                    journal.taken();
                }
            }
        }
        self.forget();
        Ok(self.done)
    }

    /// Bytes that wait in the socket.
    ///
    /// # Errors
    /// That of the system.
    pub fn waiting(&self) -> io::Result<usize> {
        let bytes = rustix::io::ioctl_fionread(self.sock.as_fd())?;
        usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Its journal.
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// The slot that its keeper has it in.
    pub fn slot(&self) -> u8 {
        self.sock.slot()
    }

    /// Sends `bytes`, and `fd` with the first of them. Waits for a slow reader at most
    /// [`DEADLINE`], and no longer than until `waker` says stop.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must be dropped.
    pub fn write(
        &self,
        mut bytes: &[u8],
        mut fd: Option<BorrowedFd<'_>>,
        waker: &Waker,
    ) -> Result<(), ConnectionError> {
        let mut end = None;
        while !bytes.is_empty() {
            match send(self.sock.as_fd(), bytes, fd) {
                Ok(n) => {
                    bytes = bytes.get(n..).unwrap_or_default();
                    fd = None;
                }
                Err(e) => self.wait_to_send(e, &mut end, waker)?,
            }
        }
        Ok(())
    }

    /// Nothing could be sent, for this reason: waits until that is worth another try.
    fn wait_to_send(
        &self,
        e: io::Error,
        end: &mut Option<Instant>,
        waker: &Waker,
    ) -> Result<(), ConnectionError> {
        match e.kind() {
            io::ErrorKind::WouldBlock => {
                let end = *end.get_or_insert_with(|| Instant::now() + DEADLINE);
                self.wait_room(end, waker)
            }
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(e.into()),
        }
    }

    fn wait_room(&self, end: Instant, waker: &Waker) -> Result<(), ConnectionError> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectionError::Stuck);
        }
        if waker.stops() {
            return Err(ConnectionError::Stopping);
        }
        // Only "stop" matters here. For any other reason the waker stays readable, and polling it
        // would be a busy loop.
        let woken = poll([Some((waker.fd(), Wait::Read))], Some(Duration::ZERO))?[0];
        let stop = (!woken).then(|| (waker.fd(), Wait::Read));
        let left = if woken { left.min(SLICE) } else { left };
        poll([stop, Some((self.sock.as_fd(), Wait::Write))], Some(left))?;
        Ok(())
    }
}
