//! What the next switch has to know of a connection when this one dies, at whatever moment.
//!
//! Requests stay in the socket until their replies are kept in a few pages of memory; only then are
//! they taken (`SO_PEEK_OFF`: a peek goes on where the last one ended, and the kernel keeps that
//! place with the socket). The replies are sent from that memory. How many of their bytes went is
//! noted in there by the very system call that sends them: `sendmmsg` stores it, and
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
//! Several requests that want no reply are taken together. The memory says which of them were
//! carried out, so that no older write follows a newer one.
//!
//! All of this is a model in `tests/journal_model.rs`, which tries every order, deaths while the
//! next switch recovers included.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::Window;

use crate::memory::sealed_memfd;
use crate::sys::Sending;

/// Bytes of the memory.
const SIZE: usize = 4 * 4096;

/// Replies that are sent together, in bytes. One of the longest kind may be the last.
pub const ENOUGH: usize = 4096;

/// Places in it. The kernel notes how many bytes it has sent, which has to be the first word
/// ([`Sending`]); how many went before is the other half of that word.
const SENT: usize = 0;
const SENT_BEFORE: usize = 4;
const PHASE: usize = 8;
const PEEKED: usize = 12;
const TAKEN: usize = 16;
/// Bytes of the replies.
const POSTED: usize = 20;
const CONTROLS: usize = 24;
const NEXT_CONTROLS: usize = 32;
/// When its switch was last seen at work, in nanoseconds of the monotonic clock.
const ALIVE: usize = 40;
/// A word that the owner wants to be found again.
const MEMO: usize = 48;
/// Bytes that a peek has shown, and those of them whose requests were carried out, but not taken.
const SHOWN: usize = 56;
const DONE: usize = 60;
/// A request is under way that is not to be carried out twice.
const ONCE: usize = 64;
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
    sending: Arc<Sending>,
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
        let sending = Sending::noted_in(&file, SIZE)?;
        Ok(Self { sending: Arc::new(sending), file: Arc::new(file) })
    }

    /// Its file, for [`Journal::adopt`].
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn memory(&self) -> &Window {
        self.sending.notes()
    }

    fn u32(&self, at: usize) -> u32 {
        self.memory().u32(at, Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u32) {
        self.memory().set_u32(at, value, Ordering::Release);
    }

    /// Requests that change more than a register, and were taken.
    pub fn controls(&self) -> u64 {
        self.memory().u64(CONTROLS, Ordering::Acquire)
    }

    /// The switch is at work.
    pub fn note_alive(&self, now: u64) {
        self.memory().set_u64(ALIVE, now, Ordering::Release);
    }

    /// When it last was.
    pub fn last_alive(&self) -> u64 {
        self.memory().u64(ALIVE, Ordering::Acquire)
    }

    /// Keeps a word.
    pub fn set_memo(&self, memo: u64) {
        self.memory().set_u64(MEMO, memo, Ordering::Release);
    }

    /// That word.
    pub fn memo(&self) -> u64 {
        self.memory().u64(MEMO, Ordering::Acquire)
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
        self.memory().set_u64(SHOWN, done << u32::BITS, Ordering::Release);
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
        let begun = || self.left().map(|left| left.start > 0);
        match self.u32(PHASE) {
            IDLE => Ok(Phase::Idle),
            PASSING if !begun()? => Ok(Phase::Idle),
            ANSWERED | PASSING if taken <= peeked => Ok(Phase::Answered { peeked, taken }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Which bytes of the replies were not sent.
    ///
    /// # Errors
    /// The memory says what no switch writes.
    pub fn left(&self) -> io::Result<Range<usize>> {
        let [before, posted] = [SENT_BEFORE, POSTED].map(|at| crate::bytes::widen(self.u32(at)));
        let sent = before.saturating_add(self.went());
        let right = sent <= posted && posted <= SIZE - REPLIES;
        if right { Ok(sent..posted) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// How many bytes the last system call has sent, a number of the kernel's.
    fn went(&self) -> usize {
        crate::bytes::widen(self.u32(SENT).to_le())
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
        self.memory().set_u64(NEXT_CONTROLS, next, Ordering::Release);
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
        self.memory().set_u64(SENT, before, Ordering::Release);
    }

    /// The replies are to be sent. `passing`: a descriptor goes with them.
    pub fn answered(&self, passing: bool) {
        self.set(PHASE, if passing { PASSING } else { ANSWERED });
    }

    /// Sends these bytes of the replies, as many as the socket has room for; `fd` with the first of
    /// all. Returns how many went: one at least.
    ///
    /// # Errors
    /// `WouldBlock`, or that of the socket; or somebody else writes to the memory.
    pub fn send(
        &self,
        sock: BorrowedFd<'_>,
        fd: Option<BorrowedFd<'_>>,
        left: &Range<usize>,
    ) -> io::Result<usize> {
        self.set_sent(left.start);
        let rest = self.memory().slice(REPLIES + left.start, left.len());
        self.sending.send(sock, rest, fd.filter(|_| left.start == 0))?;
        let went = self.went();
        if (1..=left.len()).contains(&went) {
            Ok(went)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    /// The requests were taken.
    pub fn taken(&self) {
        let next = self.memory().u64(NEXT_CONTROLS, Ordering::Acquire);
        self.memory().set_u64(CONTROLS, next, Ordering::Release);
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
            self.memory().set_u64(at, u64::from_le_bytes(word), Ordering::Release);
        }
    }

    /// The copy.
    pub fn copied(&self) -> [u8; COPIED] {
        let mut bytes = [0; COPIED];
        for (at, word) in (COPY..).step_by(8).zip(bytes.as_chunks_mut().0) {
            *word = self.memory().u64(at, Ordering::Acquire).to_le_bytes();
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

    /// Words stay where they are, or records get another version: the next switch may be a newer
    /// one.
    #[test]
    fn what_earlier_builds_have_noted_is_read() {
        let journal = Journal::new().unwrap();
        let words: [(u64, u32); 10] = [
            (0, 4u32.to_le()),
            (4, 5),
            (8, 1),
            (12, 100),
            (16, 60),
            (20, 30),
            (24, 7),
            (40, 8),
            (48, 9),
            (64, 1),
        ];
        for (at, word) in words {
            rustix::io::pwrite(&*journal.file, &word.to_le_bytes(), at).unwrap();
        }
        rustix::io::pwrite(&*journal.file, &[90u32, 70].map(u32::to_le_bytes).concat(), 56)
            .unwrap();
        rustix::io::pwrite(&*journal.file, &[3; COPIED], 1024).unwrap();
        let next = next(&journal);
        assert_eq!(next.phase().unwrap(), Phase::Answered { peeked: 100, taken: 60 });
        assert_eq!((next.left().unwrap(), next.controls()), (9..30, 7));
        assert_eq!((next.last_alive(), next.memo(), next.is_once()), (8, 9, true));
        assert_eq!((next.done(90), next.done(80), next.copied()), (70, 60, [3; COPIED]));
    }

    #[test]
    fn a_reply_that_finds_room_for_parts_is_sent_once_by_several_switches() {
        let [ours, peer] = sockets();
        let replies: Vec<u8> = (0..12_000_u32).map(|n| (n % 251) as u8).collect();
        let first = Journal::new().unwrap();
        first.begin((100, 60), 0, &replies).unwrap();
        assert_eq!(first.phase().unwrap(), Phase::Idle);
        first.answered(false);
        let (mut journal, mut got, mut parts) = (first, Vec::<u8>::new(), 0);
        loop {
            let left = journal.left().unwrap();
            if left.is_empty() {
                break;
            }
            let sent = journal.send(ours.as_fd(), None, &left);
            journal = next(&journal);
            assert_eq!(journal.phase().unwrap(), Phase::Answered { peeked: 100, taken: 60 });
            match sent {
                Ok(n) => {
                    assert_eq!(journal.left().unwrap(), left.start + n..12_000);
                    parts += 1;
                }
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
        assert!(got == replies && parts > 1, "{} bytes, {parts} parts", got.len());
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
        assert_eq!(journal.send(ours.as_fd(), Some(peer.as_fd()), &(0..10)).unwrap(), 10);
        assert_eq!(next(&journal).phase().unwrap(), Phase::Answered { peeked: 8, taken: 8 });
        assert!(next(&journal).left().unwrap().is_empty());
        // What the kernel was told to send is nowhere in there: others may have that memory.
        let mut bytes = [0; SIZE];
        journal.memory().slice(0, SIZE).read(&mut bytes);
        assert!(bytes[ONCE..REPLIES].iter().chain(&bytes[REPLIES + 16..]).all(|byte| *byte == 0));
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
            assert!(journal.phase().map(drop).and(journal.left().map(drop)).is_err(), "{at}");
            journal.begin_anew();
        }
    }

    const REPLY: usize = 36;

    /// Answers on the socket that is its standard input, in the journal that a variable names,
    /// until it is killed.
    #[test]
    #[ignore = "a process of the test below"]
    fn answers_for_ever() {
        let place = std::env::var_os("VMLAN_JOURNAL").unwrap();
        let file = std::fs::File::options().read(true).write(true).open(place).unwrap();
        let journal = Journal::adopt(file.into()).unwrap();
        let (sock, mut full) = (std::io::stdin(), 0);
        while full < 1_000_000 {
            journal.begin((1, 1), 1, &[7; REPLY]).unwrap();
            journal.answered(false);
            let mut left = journal.left().unwrap();
            while !left.is_empty() {
                match journal.send(sock.as_fd(), None, &left) {
                    Ok(n) => left.start += n,
                    Err(_) => full += 1,
                }
            }
            journal.taken();
        }
    }

    #[test]
    fn what_was_sent_is_what_is_noted_whenever_its_sender_is_killed() {
        use std::os::fd::AsRawFd as _;
        use std::process::{Command, Stdio};
        for kill in 0..30 {
            let [ours, peer] = sockets();
            sockopt::set_socket_send_buffer_size(&ours, 1 << 18).unwrap();
            let journal = Journal::new().unwrap();
            let (me, fd) = (std::process::id(), journal.file().as_raw_fd());
            let mut sender = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--ignored", "journal::tests::answers_for_ever"])
                .env("VMLAN_JOURNAL", format!("/proc/{me}/fd/{fd}"))
                .stdin(ours)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let (mut got, mut some) = (0, vec![0; 1 << 16]);
            // It has begun, and goes on for a while that differs.
            while got < 10_000 + 777 * kill {
                got += recv(peer.as_fd(), &mut some).unwrap_or(0);
                assert!(sender.try_wait().unwrap().is_none(), "it has ended by itself");
            }
            sender.kill().unwrap();
            sender.wait().unwrap();
            while let Ok(n @ 1..) = recv(peer.as_fd(), &mut some) {
                got += n;
            }
            let taken = usize::try_from(journal.controls()).unwrap();
            let next = usize::try_from(journal.memory().u64(NEXT_CONTROLS, Ordering::Acquire));
            let noted = match journal.phase().unwrap() {
                Phase::Idle => taken * REPLY,
                Phase::Answered { .. } => {
                    (next.unwrap() - 1) * REPLY + journal.left().unwrap().start
                }
            };
            assert_eq!(got, noted, "kill {kill}");
        }
    }
}
