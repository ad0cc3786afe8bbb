//! What the next switch has to know of a connection when this one dies, at whatever moment.
//!
//! Requests stay in the socket until they have been answered; only then are they taken
//! (`SO_PEEK_OFF`: a peek goes on where the last one ended, and the kernel keeps that place with
//! the socket). Replies are kept in a few pages of memory, and sent from there. How many of their
//! bytes went is noted in there by the very system call that sends them: `sendmmsg` stores it, and
//! the kernel's part of a call is completed before a process that is killed ends. Socket and memory
//! outlive the process. The memory says how far it was:
//!
//! | phase | then |
//! | --- | --- |
//! | idle | nothing was answered: all that is in the socket is still to be done |
//! | answered | the rest of the replies is to be sent, and the requests taken |
//! | passing | a descriptor goes with the first byte: if that was sent, answered; if not, idle |
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

use vmlan_ram::{Map, Mapping, Region, Window};

use crate::memory::sealed_memfd;
use crate::sys::{MESSAGE, send_noted};

/// Bytes of the memory.
const SIZE: usize = 4 * 4096;

/// Replies that are sent together, in bytes. One of the longest kind may be the last.
pub const ENOUGH: usize = 4096;

/// Places in it.
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
/// Bytes of the replies.
const POSTED: usize = 60;
/// The message as the kernel is given it. Behind it the kernel notes how many bytes it has sent;
/// behind that is how many went before. Both are one word.
const SENDING: usize = 512;
const SENT: usize = SENDING + MESSAGE;
const SENT_BEFORE: usize = SENT + 4;
/// A copy of 256 bytes that the owner wants to be found again.
const COPY: usize = 1024;
/// Bytes of that copy.
pub const COPIED: usize = 256;
/// The replies.
const REPLIES: usize = 4096;

const IDLE: u32 = 0;
const ANSWERED: u32 = 1;
const PASSING: u32 = 2;

/// How far it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing that is in the socket was answered.
    Idle,
    /// Of `peeked` bytes the first `taken` were answered. They may have been taken already.
    Answered { peeked: usize, taken: usize },
}

/// The journal of a connection.
#[derive(Clone, Debug)]
pub struct Journal {
    memory: Arc<Window>,
    file: Arc<OwnedFd>,
}

impl Journal {
    /// That of a connection on which nothing has happened.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> io::Result<Self> {
        Self::adopt(sealed_memfd(c"vmlan-journal", SIZE as u64)?)
    }

    /// That of a connection whose switch has died.
    ///
    /// # Errors
    /// The file is not what it should be.
    pub fn adopt(file: OwnedFd) -> io::Result<Self> {
        let size = SIZE as u64;
        let mapping = Mapping::new(file.as_fd(), 0, size).map_err(io::Error::other)?;
        let region = Region::new(0, size, 0, 0, Arc::new(mapping)).map_err(io::Error::other)?;
        let map = Arc::new(Map::new(vec![region], None).map_err(io::Error::other)?);
        let memory = map.window(0, SIZE, 8).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { memory: Arc::new(memory), file: Arc::new(file) })
    }

    /// Its file, for [`Journal::adopt`].
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn u32(&self, at: usize) -> u32 {
        self.memory.u32(at, Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u32) {
        self.memory.set_u32(at, value, Ordering::Release);
    }

    /// Requests that change more than a register, and were taken.
    pub fn controls(&self) -> u64 {
        self.memory.u64(CONTROLS, Ordering::Acquire)
    }

    /// The switch is at work.
    pub fn note_alive(&self, now: u64) {
        self.memory.set_u64(ALIVE, now, Ordering::Release);
    }

    /// When it last was.
    pub fn last_alive(&self) -> u64 {
        self.memory.u64(ALIVE, Ordering::Acquire)
    }

    /// Keeps a word.
    pub fn set_memo(&self, memo: u64) {
        self.memory.set_u64(MEMO, memo, Ordering::Release);
    }

    /// That word.
    pub fn memo(&self) -> u64 {
        self.memory.u64(MEMO, Ordering::Acquire)
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
        self.memory.set_u64(SHOWN, done << u32::BITS, Ordering::Release);
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
    /// The memory says what no switch writes.
    pub fn phase(&self) -> io::Result<Phase> {
        let [peeked, taken] = [PEEKED, TAKEN].map(|at| crate::bytes::widen(self.u32(at)));
        let (sent, posted) = self.sent();
        match self.u32(PHASE) {
            IDLE => Ok(Phase::Idle),
            PASSING if sent == 0 => Ok(Phase::Idle),
            ANSWERED | PASSING if taken <= peeked && sent <= posted && posted <= SIZE - REPLIES => {
                Ok(Phase::Answered { peeked, taken })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// How many bytes of the replies were sent, and how many there are.
    fn sent(&self) -> (usize, usize) {
        let [sent, before, posted] =
            [SENT, SENT_BEFORE, POSTED].map(|at| crate::bytes::widen(self.u32(at)));
        (before + sent, posted)
    }

    /// Of `peeked` bytes that are in the socket the first `taken` are about to be answered by
    /// `replies`; `controls` of them are no register accesses.
    ///
    /// # Errors
    /// The replies do not fit: more than [`ENOUGH`] and one.
    pub fn begin(
        &self,
        (peeked, taken): (usize, usize),
        controls: u64,
        replies: &[u8],
    ) -> io::Result<()> {
        self.set(PEEKED, crate::bytes::length(peeked));
        self.set(TAKEN, crate::bytes::length(taken));
        let next = self.controls().wrapping_add(controls);
        self.memory.set_u64(NEXT_CONTROLS, next, Ordering::Release);
        if replies.len() > SIZE - REPLIES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.store(REPLIES, replies);
        self.set(POSTED, crate::bytes::length(replies.len()));
        self.set_sent(0);
        Ok(())
    }

    fn set_sent(&self, bytes: usize) {
        let before = u64::from(crate::bytes::length(bytes)) << u32::BITS;
        self.memory.set_u64(SENT, before, Ordering::Release);
    }

    /// The replies are to be sent. `passing`: a descriptor goes with them.
    pub fn answered(&self, passing: bool) {
        self.set(PHASE, if passing { PASSING } else { ANSWERED });
    }

    /// Sends what is left of the replies, as much as the socket has room for; `fd` with their first
    /// byte. True: all were sent.
    ///
    /// # Errors
    /// `WouldBlock`, or that of the socket.
    pub fn deliver(&self, sock: BorrowedFd<'_>, fd: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let (sent, posted) = self.sent();
        if sent < posted {
            self.set_sent(sent);
            let rest = self.memory.slice(REPLIES + sent, posted - sent);
            if rest.is_empty() {
                // Whoever else has the memory writes to it.
                return Err(io::ErrorKind::InvalidData.into());
            }
            send_noted(sock, rest, fd.filter(|_| sent == 0), &self.memory, SENDING)?;
        }
        Ok(self.sent().0 >= posted)
    }

    /// The requests were taken.
    pub fn taken(&self) {
        let next = self.memory.u64(NEXT_CONTROLS, Ordering::Acquire);
        self.memory.set_u64(CONTROLS, next, Ordering::Release);
        self.set(PHASE, IDLE);
    }

    /// What the switch that has died was about to answer was not answered.
    pub fn begin_anew(&self) {
        self.set(PHASE, IDLE);
    }

    /// Keeps a copy. It may be torn by death: then the request that changed it was not answered,
    /// and is done again.
    pub fn copy(&self, bytes: &[u8; COPIED]) {
        self.store(COPY, bytes);
    }

    /// The last word's rest becomes zero.
    fn store(&self, at: usize, bytes: &[u8]) {
        for (at, part) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.memory.set_u64(at, u64::from_le_bytes(word), Ordering::Release);
        }
    }

    /// The copy.
    pub fn copied(&self) -> [u8; COPIED] {
        let mut bytes = [0; COPIED];
        for (at, word) in (COPY..).step_by(8).zip(bytes.as_chunks_mut().0) {
            *word = self.memory.u64(at, Ordering::Acquire).to_le_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;
    use crate::send_recv::recv;

    /// Ours, which has room for little, and the peer's.
    fn sockets() -> [OwnedFd; 2] {
        let flags = SocketFlags::NONBLOCK;
        let (ours, peer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
        [ours, peer]
    }

    /// The journal as the next switch has it.
    fn next(journal: &Journal) -> Journal {
        Journal::adopt(journal.file().try_clone_to_owned().unwrap()).unwrap()
    }

    /// What the peer finds, up to 256 bytes, and whether a descriptor is with it.
    fn look(peer: &OwnedFd) -> (Vec<u8>, bool) {
        let (mut bytes, mut space) = ([0; 256], [MaybeUninit::uninit(); 64]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(peer, &mut parts, &mut control, RecvFlags::empty());
        let n = got.map_or(0, |got| got.bytes);
        let fd = control.drain().any(|it| matches!(it, RecvAncillaryMessage::ScmRights(_)));
        (bytes[..n].to_vec(), fd)
    }

    #[test]
    fn a_reply_that_finds_room_for_parts_is_sent_once_by_several_switches() {
        let [ours, peer] = sockets();
        let replies: Vec<u8> = (0..12_000_u32).map(|n| (n % 251) as u8).collect();
        let first = Journal::new().unwrap();
        first.begin((100, 60), 0, &replies).unwrap();
        assert_eq!(first.phase().unwrap(), Phase::Idle);
        first.answered(false);
        let (mut journal, mut got, mut partly) = (first, Vec::<u8>::new(), 0);
        loop {
            let sent = journal.deliver(ours.as_fd(), None);
            journal = next(&journal);
            assert_eq!(journal.phase().unwrap(), Phase::Answered { peeked: 100, taken: 60 });
            match sent {
                Ok(true) => break,
                Ok(false) => partly += 1,
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                    let mut some = [0; 500];
                    let n = recv(peer.as_fd(), &mut some).unwrap();
                    got.extend(&some[..n]);
                }
            }
        }
        let mut rest = vec![0; 12_000];
        while let Ok(n @ 1..) = recv(peer.as_fd(), &mut rest) {
            got.extend(&rest[..n]);
        }
        assert!(got == replies && partly > 0, "{} bytes, {partly} parts", got.len());
        journal.taken();
        assert_eq!(journal.phase().unwrap(), Phase::Idle);
    }

    #[test]
    fn a_reply_with_a_descriptor_counts_once_its_first_byte_was_sent() {
        let [ours, peer] = sockets();
        let journal = Journal::new().unwrap();
        journal.begin((8, 8), 1, b"here it is").unwrap();
        journal.answered(true);
        assert_eq!(next(&journal).phase().unwrap(), Phase::Idle, "to be done again");
        assert!(journal.deliver(ours.as_fd(), Some(peer.as_fd())).unwrap());
        assert_eq!(next(&journal).phase().unwrap(), Phase::Answered { peeked: 8, taken: 8 });
        assert!(next(&journal).deliver(ours.as_fd(), None).unwrap(), "nothing is left");
        assert_eq!(look(&peer), (b"here it is".to_vec(), true));
        assert_eq!(look(&peer), (Vec::new(), false));
    }

    #[test]
    fn what_no_switch_writes_is_refused() {
        let journal = Journal::new().unwrap();
        assert!(journal.begin((1, 1), 0, &[0; SIZE]).is_err(), "more than there is room for");
        for (at, word) in [(PHASE, 9), (TAKEN, 2), (SENT, 5), (POSTED, 1 << 20)] {
            journal.begin((1, 1), 0, b"four").unwrap();
            journal.answered(false);
            assert!(journal.phase().is_ok());
            journal.set(at, word);
            assert!(journal.phase().is_err(), "{at}");
            journal.begin_anew();
        }
    }
}
