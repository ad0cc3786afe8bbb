//! From the peer: its bytes cut into frames, on the port's own thread.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags};
use vmlan_frame::{Direction, MAX_FRAME, MIN_FRAME, Offload, Reason};

use super::PREFIX;
use crate::inbox::Inbox;

/// Longest frame that is skipped; a longer one means that we do not understand each other.
pub(super) const ABSURD: usize = 1024 * 1024;

/// Bytes that are read ahead of the worker, at most one more read than that.
const AHEAD: usize = 256 * 1024;

/// Frames in an inbox: as many as are read ahead, unless they are shorter than Ethernet's shortest.
pub(super) const FRAMES: usize = 4096;

/// Refused frames beyond the good ones that a peer may send. One costs as much as a good frame, and
/// many fit where one good one does; no peer sends them on purpose.
pub(super) const PATIENCE: usize = 4096;

/// What a read costs, in bytes that it should bring, unless it completes a frame.
const THIN: usize = 256;

/// How far a peer may fall behind that: as many reads of a byte as an honest one never needs.
const MOST_THIN: usize = 64 * THIN;

/// What is known after a look at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// There may be more.
    More,
    /// Nothing until the peer sends.
    Drained,
    /// The peer closed, or its socket failed.
    Closed,
    /// A length beyond [`ABSURD`], or refused frames beyond [`PATIENCE`].
    Nonsense,
    /// A descriptor, which nobody here may receive.
    Descriptor,
}

/// Frames and bytes that were read and passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) frames: usize,
    pub(super) bytes: u64,
}

impl Refused {
    pub(super) fn add(&mut self, other: Self) {
        self.frames = self.frames.saturating_add(other.frames);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The peer's sending side.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) inbox: Inbox,
    /// Bytes of a refused frame still to be passed over.
    skip: usize,
    /// Not told to the worker yet.
    pub(super) refused: Refused,
    /// Refused frames that no good ones make up for.
    faults: usize,
    /// Bytes read since the worker was given some.
    ahead: usize,
    /// Bytes that its reads have brought too few.
    thin: usize,
}

impl Reader {
    pub(super) fn new() -> Self {
        let (inbox, refused) = (Inbox::new(FRAMES), Refused::default());
        Self { inbox, skip: 0, refused, faults: 0, ahead: 0, thin: 0 }
    }

    /// Forgets what the peer has begun to send.
    pub(super) fn reset(&mut self) {
        self.inbox.clear();
        (self.skip, self.refused, self.faults, self.ahead) = (0, Refused::default(), 0, 0);
        self.thin = 0;
    }

    /// True if the peer sends so few bytes at a time that the next read is better put off: each
    /// costs as much as one that brings many frames.
    pub(super) fn is_thin(&self) -> bool {
        self.thin > MOST_THIN
    }

    /// True if the worker is to be given something.
    pub(super) fn has_news(&self) -> bool {
        self.inbox.len() > 0 || self.refused.bytes > 0
    }

    /// True if enough was read ahead of the worker. So a peer whose frames the worker does not
    /// take is not read from any more, whether they are fit to be taken or not.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead >= AHEAD || self.inbox.len() >= FRAMES
    }

    /// Exchanges what was read for an empty inbox. What is not cut yet stays.
    pub(super) fn exchange(&mut self, empty: &mut Inbox) -> Refused {
        self.ahead = self.inbox.move_tail(empty);
        std::mem::swap(&mut self.inbox, empty);
        std::mem::take(&mut self.refused)
    }

    /// Reads once, and cuts frames. `peeks`: descriptors may lie between the bytes.
    pub(super) fn read(&mut self, peer: BorrowedFd<'_>, peeks: bool, input: &Direction) -> Look {
        // Beside frames that wait there is room, or we were ahead: whatever the tail began, this
        // completes it.
        let Some(room) = self.inbox.free(PREFIX + MAX_FRAME) else { return Look::Drained };
        let wanted = room.len();
        let read = if peeks { receive_peeked(peer, room) } else { receive(peer, room) };
        match read {
            Ok(0) => Look::Closed,
            Ok(n) => {
                self.inbox.filled(n);
                self.ahead += n;
                let before = self.inbox.len();
                let look = self.cut(input);
                let worth = if self.inbox.len() > before { 2 * THIN.max(n) } else { n };
                self.thin = (self.thin + THIN).saturating_sub(worth).min(2 * MOST_THIN);
                if look == Look::Drained && n == wanted { Look::More } else { look }
            }
            Err(Errno::INTR) => Look::More,
            Err(Errno::AGAIN) => Look::Drained,
            Err(Errno::BADMSG) => Look::Descriptor,
            Err(_) => Look::Closed,
        }
    }

    /// Cuts complete frames off the tail. [`Look::Drained`]: what is left is no complete frame.
    pub(super) fn cut(&mut self, input: &Direction) -> Look {
        while self.inbox.len() < FRAMES {
            let n = self.skip.min(self.inbox.tail().len());
            self.inbox.skip(n);
            self.skip -= n;
            self.refused.bytes += n as u64;
            let Some(prefix) = self.inbox.tail().first_chunk::<PREFIX>() else {
                return Look::Drained;
            };
            let len = u32::from_be_bytes(*prefix) as usize;
            if len > ABSURD || self.faults >= PATIENCE {
                return Look::Nonsense;
            }
            if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
                let reason = if len < MIN_FRAME { Reason::Runt } else { Reason::TooLong };
                input.drop(reason, 1);
                self.inbox.skip(PREFIX);
                self.skip = len;
                self.refused.add(Refused { frames: 1, bytes: PREFIX as u64 });
                self.faults += 1;
            } else if self.inbox.tail().len() < PREFIX + len {
                return Look::Drained;
            } else {
                self.inbox.skip(PREFIX);
                self.inbox.take(len, Offload::NONE);
                self.faults = self.faults.saturating_sub(1);
            }
        }
        Look::More
    }
}

fn receive(peer: BorrowedFd<'_>, room: &mut [u8]) -> Result<usize, Errno> {
    Ok(rustix::net::recv(peer, room, RecvFlags::DONTWAIT)?.0)
}

/// Reads only what lies before the first descriptor. Without a control buffer the kernel says that
/// it cut some off, and looking leaves them where they are: whoever consumes them may have to close
/// them, which the peer can make last for ever. [`Errno::BADMSG`]: the next bytes carry some.
fn receive_peeked(peer: BorrowedFd<'_>, room: &mut [u8]) -> Result<usize, Errno> {
    let mut none = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let seen = rustix::net::recvmsg(peer, &mut [IoSliceMut::new(room)], &mut none, flags)?;
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::BADMSG);
    }
    receive(peer, room.get_mut(..seen.bytes).unwrap_or_default())
}
