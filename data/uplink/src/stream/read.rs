//! From the peer: its bytes cut into frames.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vmlan_frame::{BATCH, Direction, MAX_FRAME, MIN_FRAME, Offload, Reason};

use super::PREFIX;
use crate::inbox::Inbox;

/// Longest frame that is skipped; a longer one means that we do not understand each other.
pub(super) const ABSURD: usize = 1024 * 1024;

/// What is known after a look at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// There may be more.
    More,
    /// Nothing until the peer sends, or a held frame is finished.
    Drained,
    /// The peer closed, or its socket failed; every frame before that has been lent.
    Closed,
    /// A length beyond [`ABSURD`].
    Nonsense,
}

/// The peer's sending side.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) peer: Option<Arc<OwnedFd>>,
    pub(super) inbox: Inbox,
    /// Bytes of a refused frame still to be passed over.
    skip: usize,
    /// Frames refused since the last look, and bytes passed over.
    refused: (usize, u64),
}

impl Tx {
    pub(super) fn new() -> Self {
        Self { peer: None, inbox: Inbox::new(), skip: 0, refused: (0, 0) }
    }

    /// A new peer, or none.
    pub(super) fn set_peer(&mut self, peer: Option<Arc<OwnedFd>>, input: &Direction) {
        self.inbox.lose(input);
        self.skip = 0;
        self.peer = peer;
    }

    /// What was read and passed over since the last call, if anything was: frames (at least 1) and
    /// bytes.
    pub(super) fn take_refused(&mut self) -> Option<(usize, u64)> {
        let (frames, bytes) = std::mem::take(&mut self.refused);
        (bytes > 0).then_some((frames.max(1), bytes))
    }

    /// Gathers up to `limit` frames with at most one read.
    pub(super) fn fill(&mut self, limit: usize, input: &Direction) -> Look {
        if self.inbox.len() >= limit {
            return Look::Drained;
        }
        match self.cut(limit, input) {
            Look::Drained => {}
            other => return other,
        }
        match self.read() {
            Look::More => match self.cut(limit, input) {
                Look::Drained => Look::More,
                other => other,
            },
            // What was cut before is lent first; a later look comes to the same end.
            Look::Closed if self.inbox.len() > 0 => Look::Drained,
            other => other,
        }
    }

    fn read(&mut self) -> Look {
        let Some(peer) = self.peer.clone() else { return Look::Drained };
        // Held frames may fill the buffer; whatever the tail began, this completes it.
        let Some(room) = self.inbox.free(PREFIX + MAX_FRAME) else { return Look::Drained };
        match rustix::io::read(&peer, room) {
            Ok(0) => Look::Closed,
            Ok(n) => {
                self.inbox.filled(n);
                Look::More
            }
            Err(Errno::INTR) => Look::More,
            Err(Errno::AGAIN) => Look::Drained,
            Err(_) => Look::Closed,
        }
    }

    /// Cuts complete frames off the tail. [`Look::Drained`]: what is left is no complete frame.
    fn cut(&mut self, limit: usize, input: &Direction) -> Look {
        // Bounded, though a peer may fill the buffer with empty frames.
        for _ in 0..2 * BATCH {
            let n = self.skip.min(self.inbox.tail().len());
            self.inbox.skip(n);
            self.skip -= n;
            self.refused.1 += n as u64;
            let Some(prefix) = self.inbox.tail().first_chunk::<PREFIX>() else {
                return Look::Drained;
            };
            let len = u32::from_be_bytes(*prefix) as usize;
            if len > ABSURD {
                return Look::Nonsense;
            }
            if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
                let reason = if len < MIN_FRAME { Reason::Runt } else { Reason::TooLong };
                input.drop(reason, 1);
                self.inbox.skip(PREFIX);
                self.skip = len;
                self.refused.0 += 1;
                self.refused.1 += PREFIX as u64;
            } else if self.inbox.tail().len() < PREFIX + len {
                return Look::Drained;
            } else if self.inbox.len() >= limit {
                return Look::More;
            } else {
                self.inbox.skip(PREFIX);
                self.inbox.take(len, Offload::NONE);
            }
        }
        Look::More
    }
}
