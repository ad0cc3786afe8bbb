//! What the next switch has to know of a connection when this one dies, at whatever moment.
//!
//! Requests stay in the socket until they have been answered; only then are they taken
//! (`SO_PEEK_OFF`: a peek goes on where the last one ended, and the kernel keeps that place with
//! the socket). Replies leave by a pipe, the *outbox*: one write puts all of them in, and what
//! `splice` has moved to the socket is not in the pipe any more. Socket, pipe and a page of memory
//! outlive the process. The page says how far it was:
//!
//! | phase | pipe | then |
//! | --- | --- | --- |
//! | idle | empty | nothing was answered: all that is in the socket is still to be done |
//! | answering | empty | the same |
//! | answering | full | answered; the rest of the pipe is to be sent, and the requests taken |
//! | answered | any | the same |
//! | passing | empty | a reply with a descriptor was sent, or was not: see below |
//!
//! Nothing but its peer can tell that a descriptor was sent. One that waits for a reply says
//! nothing: if it has said more, it has it. If it says nothing more for a while the reply was not
//! sent, and the request is done anew. (A peer that stood still all that time, with the reply in
//! its hands, gets a second one, finds that out, and hangs up.)
//!
//! Whether the requests were taken shows in the socket's place: it moves back by what was.
//!
//! Several requests that want no reply are taken together. The page says which of them were carried
//! out, so that no older write follows a newer one.
//!
//! All of this is a model in `tests/journal_model.rs`, which tries every order, deaths while the
//! next switch recovers included.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use vmlan_ram::{Map, Mapping, Region, Window};

use crate::memory::sealed_memfd;
use crate::poll::{Wait, poll};

/// Bytes of the page.
const PAGE: usize = 4096;

/// Replies that one write puts into the pipe. Where its user has very many pipes, two pages are all
/// that the kernel gives it; a reply of the longest kind may be the last.
pub const ENOUGH: usize = 2048;

/// More than a pipe of ours can have in it.
const MOST: usize = 1 << 20;

/// Places in the page.
const PHASE: usize = 0;
const PEEKED: usize = 4;
const TAKEN: usize = 8;
const CONTROLS: usize = 16;
const NEXT_CONTROLS: usize = 24;
/// When its switch was last seen at work, in nanoseconds of the monotonic clock.
const ALIVE: usize = 32;
/// A word that the owner wants to be found again.
const MEMO: usize = 40;
/// Bytes that a peek has shown, and those of them whose requests were carried out, but not taken.
const SHOWN: usize = 48;
const DONE: usize = 52;
/// A request is under way that is not to be carried out twice.
const ONCE: usize = 56;
/// A copy of 256 bytes that the owner wants to be found again.
const COPY: usize = 1024;
/// Bytes of that copy.
pub const COPIED: usize = 256;

const IDLE: u32 = 0;
const ANSWERING: u32 = 1;
const ANSWERED: u32 = 2;
const PASSING: u32 = 3;

/// How far it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing that is in the socket was answered.
    Idle,
    /// Of `peeked` bytes the first `taken` were answered. They may have been taken already.
    Answered { peeked: usize, taken: usize },
    /// The same, or not: a reply was sent if the peer says more.
    Passing { peeked: usize, taken: usize },
}

/// The journal of a connection.
#[derive(Clone, Debug)]
pub struct Journal {
    page: Arc<Window>,
    file: Arc<OwnedFd>,
    /// Both ends of the outbox.
    out: [Arc<OwnedFd>; 2],
}

impl Journal {
    /// That of a connection on which nothing has happened.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> io::Result<Self> {
        let file = sealed_memfd(c"vmlan-journal", PAGE as u64)?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Self::adopt([file, read, write])
    }

    /// That of a connection whose switch has died: the page's file and both ends of the pipe.
    ///
    /// # Errors
    /// They are not what they should be.
    pub fn adopt(fds: [OwnedFd; 3]) -> io::Result<Self> {
        let [file, read, write] = fds.map(Arc::new);
        let size = PAGE as u64;
        let mapping = Mapping::new(file.as_fd(), 0, size).map_err(io::Error::other)?;
        let region = Region::new(0, size, 0, 0, Arc::new(mapping)).map_err(io::Error::other)?;
        let map = Arc::new(Map::new(vec![region], None).map_err(io::Error::other)?);
        let page = map.window(0, PAGE, 8).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { page: Arc::new(page), file, out: [read, write] })
    }

    /// The page's file and both ends of the pipe, for [`Journal::adopt`].
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        let [read, write] = &self.out;
        [self.file.as_fd(), read.as_fd(), write.as_fd()]
    }

    fn u32(&self, at: usize) -> u32 {
        self.page.u32(at, Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u32) {
        self.page.set_u32(at, value, Ordering::Release);
    }

    /// Requests that change more than a register, and were taken.
    pub fn controls(&self) -> u64 {
        self.page.u64(CONTROLS, Ordering::Acquire)
    }

    /// The switch is at work.
    pub fn note_alive(&self, now: u64) {
        self.page.set_u64(ALIVE, now, Ordering::Release);
    }

    /// When it last was.
    pub fn last_alive(&self) -> u64 {
        self.page.u64(ALIVE, Ordering::Acquire)
    }

    /// Keeps a word.
    pub fn set_memo(&self, memo: u64) {
        self.page.set_u64(MEMO, memo, Ordering::Release);
    }

    /// That word.
    pub fn memo(&self) -> u64 {
        self.page.u64(MEMO, Ordering::Acquire)
    }

    /// A peek has shown so many bytes. None of their requests was carried out.
    pub fn set_shown(&self, bytes: usize) {
        self.set(SHOWN, crate::bytes::length(bytes));
    }

    /// The requests in the first so many bytes were carried out, and what they have changed is
    /// noted.
    #[inline]
    pub fn set_done(&self, bytes: usize) {
        self.set(DONE, crate::bytes::length(bytes));
    }

    /// The requests in the first so many bytes of those that are in the socket were carried out,
    /// whatever was shown of them: one store, or the next switch could take one with the other's
    /// former value.
    pub fn set_left(&self, done: usize) {
        let done = u64::from(crate::bytes::length(done));
        self.page.set_u64(SHOWN, done << u32::BITS, Ordering::Release);
    }

    /// How many bytes of requests are in the socket that were carried out. `place`: the socket's.
    pub fn done(&self, place: usize) -> usize {
        let [shown, done] = [SHOWN, DONE].map(|at| crate::bytes::widen(self.u32(at)));
        done.saturating_sub(shown.saturating_sub(place))
    }

    /// A request is under way that is not to be carried out twice, or was.
    pub fn set_once(&self, is: bool) {
        self.set(ONCE, is.into());
    }

    /// One is.
    pub fn is_once(&self) -> bool {
        self.u32(ONCE) != 0
    }

    /// How far the switch was that has died.
    ///
    /// # Errors
    /// The page says what no switch writes.
    pub fn phase(&self) -> io::Result<Phase> {
        let [peeked, taken] = [PEEKED, TAKEN].map(|at| crate::bytes::widen(self.u32(at)));
        let answered = Phase::Answered { peeked, taken };
        match self.u32(PHASE) {
            IDLE => Ok(Phase::Idle),
            ANSWERING if !self.has_mail()? => Ok(Phase::Idle),
            ANSWERING | ANSWERED if taken <= peeked => Ok(answered),
            PASSING if taken <= peeked => Ok(Phase::Passing { peeked, taken }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Of `peeked` bytes that are in the socket the first `taken` are about to be answered;
    /// `controls` of them are no register accesses.
    pub fn begin(&self, peeked: usize, taken: usize, controls: u64) {
        self.set(PEEKED, crate::bytes::length(peeked));
        self.set(TAKEN, crate::bytes::length(taken));
        let next = self.controls().wrapping_add(controls);
        self.page.set_u64(NEXT_CONTROLS, next, Ordering::Release);
        self.set(PHASE, ANSWERING);
    }

    /// Puts all replies into the empty pipe.
    ///
    /// # Errors
    /// They do not fit: more than [`ENOUGH`] and one.
    pub fn post(&self, replies: &[u8]) -> io::Result<()> {
        let [_, write] = &self.out;
        let n = if replies.is_empty() { 0 } else { rustix::io::write(write, replies)? };
        if n == replies.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// A reply is sent past the pipe.
    pub fn passing(&self) {
        self.set(PHASE, PASSING);
    }

    /// The replies are in the pipe, or were sent past it.
    pub fn answered(&self) {
        self.set(PHASE, ANSWERED);
    }

    /// Moves bytes from the pipe to the socket, as many as it has room for. True: the pipe is
    /// empty. `has`: so many bytes are known to be in it; 0: that is not known.
    ///
    /// # Errors
    /// `WouldBlock`, or that of the socket.
    pub fn deliver(&self, sock: BorrowedFd<'_>, has: usize) -> io::Result<bool> {
        let [read, _] = &self.out;
        let splice = || splice(read, None, sock, None, MOST, SpliceFlags::NONBLOCK);
        if has > 0 {
            return Ok(splice()? == has);
        }
        if self.has_mail()? {
            splice()?;
        }
        Ok(!self.has_mail()?)
    }

    /// The requests were taken.
    pub fn taken(&self) {
        let next = self.page.u64(NEXT_CONTROLS, Ordering::Acquire);
        self.page.set_u64(CONTROLS, next, Ordering::Release);
        self.set(PHASE, IDLE);
    }

    /// What the switch that has died was about to answer was not answered.
    pub fn begin_anew(&self) {
        self.set(PHASE, IDLE);
    }

    fn has_mail(&self) -> io::Result<bool> {
        let [read, _] = &self.out;
        let [has] = poll([Some((read.as_fd(), Wait::Read))], Some(std::time::Duration::ZERO))?;
        Ok(has)
    }

    /// Keeps a copy. It may be torn by death: then the request that changed it was not answered,
    /// and is done again.
    pub fn copy(&self, bytes: &[u8; COPIED]) {
        for (at, word) in (COPY..).step_by(8).zip(bytes.as_chunks().0) {
            self.page.set_u64(at, u64::from_le_bytes(*word), Ordering::Release);
        }
    }

    /// The copy.
    pub fn copied(&self) -> [u8; COPIED] {
        let mut bytes = [0; COPIED];
        for (at, word) in (COPY..).step_by(8).zip(bytes.as_chunks_mut().0) {
            *word = self.page.u64(at, Ordering::Acquire).to_le_bytes();
        }
        bytes
    }
}
