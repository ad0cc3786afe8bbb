//! To the peer: many frames in one system call, straight from where they lie.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::Shutdown;
use vmlan_frame::{Batch, Counters, FrameView, MAX_FRAME, Reason};
use vmlan_ram::Slice;

use super::PREFIX;
use crate::sys::Gather;

/// Frames in one system call.
const FRAMES: usize = 64;

/// Runs in one system call.
const RUNS: usize = 256;

/// What came of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// These entries of the list are dealt with.
    Frames(usize),
    /// The same, and the socket is full.
    Full(usize),
    /// The peer is gone.
    Gone,
}

/// The peer's receiving side.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) peer: Option<Arc<OwnedFd>>,
    /// The frame that was sent in part: at most one, since whatever follows waits with its sender.
    /// So a peer that never reads costs 64 KiB here.
    rest: Vec<u8>,
    sent: usize,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self { peer: None, rest: Vec::with_capacity(PREFIX + MAX_FRAME), sent: 0 }
    }

    /// A new peer, or none.
    pub(super) fn set_peer(&mut self, peer: Option<Arc<OwnedFd>>) {
        self.rest.clear();
        self.sent = 0;
        self.peer = peer;
    }

    /// Sends what is left of a frame; `Frames(0)` if nothing is left.
    pub(super) fn flush(&mut self) -> Sent {
        let Some(peer) = &self.peer else { return Sent::Gone };
        while let Some(rest) = self.rest.get(self.sent..).filter(|r| !r.is_empty()) {
            let mut runs = Gather::<1>::new();
            runs.add(Slice::from_bytes(rest));
            match outcome(runs.send(peer.as_fd())) {
                Ok(n) => self.sent += n,
                Err(sent) => return sent,
            }
        }
        self.rest.clear();
        self.sent = 0;
        Sent::Frames(0)
    }

    /// Sends the first frames of `list`, as many as fit one call.
    pub(super) fn send(&mut self, batch: &Batch<'_>, list: &[u16], counters: &Counters) -> Sent {
        let Some(peer) = self.peer.clone() else { return Sent::Gone };
        let mut prefixes = [[0; PREFIX]; FRAMES];
        for (prefix, i) in prefixes.iter_mut().zip(list) {
            let len = batch.frame_len(usize::from(*i));
            *prefix = length(len);
        }
        let mut runs = Gather::<RUNS>::new();
        let mut taken = 0;
        for (prefix, i) in prefixes.iter().zip(list) {
            let Some(frame) = batch.frame(usize::from(*i)) else { break };
            if !runs.has_room(frame.body.len() + 2) {
                break;
            }
            runs.add(Slice::from_bytes(prefix));
            runs.add(Slice::from_bytes(frame.head));
            frame.body.iter().for_each(|run| runs.add(*run));
            taken += 1;
        }
        if taken == 0 {
            return self.send_alone(batch, list, counters);
        }
        match runs.send(peer.as_fd()) {
            // A sender's memory file shrank. The kernel does not say which frame's: copies find
            // out, for `vmlan_ram::sigbus` gives them zeros. It must not cost the peer, who has
            // done nothing.
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                self.send_alone(batch, list, counters)
            }
            sent => match outcome(sent) {
                Ok(n) => self.settle(batch, list.get(..taken).unwrap_or_default(), n, counters),
                Err(sent) => sent,
            },
        }
    }

    /// A frame in too many pieces for one call: copied together, then sent. Or no frame at all.
    fn send_alone(&mut self, batch: &Batch<'_>, list: &[u16], counters: &Counters) -> Sent {
        let Some(frame) = list.first().and_then(|i| batch.frame(usize::from(*i))) else {
            return Sent::Frames(1);
        };
        if frame.len > MAX_FRAME {
            counters.output.drop(Reason::TooLong, 1);
            return Sent::Frames(1);
        }
        self.keep(&frame, 0);
        counters.output.count(1, frame.len as u64);
        match self.flush() {
            Sent::Full(_) => Sent::Full(1),
            Sent::Frames(_) => Sent::Frames(1),
            Sent::Gone => Sent::Gone,
        }
    }

    /// `n` bytes of the listed frames went out: a frame of which only a part did is kept.
    fn settle(&mut self, batch: &Batch<'_>, list: &[u16], n: usize, counters: &Counters) -> Sent {
        let (mut left, mut frames, mut bytes) = (n, 0, 0);
        for frame in list.iter().filter_map(|i| batch.frame(usize::from(*i))) {
            if left == 0 {
                break;
            }
            if left < PREFIX + frame.len {
                self.keep(&frame, left);
            }
            left = left.saturating_sub(PREFIX + frame.len);
            frames += 1;
            bytes += frame.len as u64;
        }
        counters.output.count(frames, bytes);
        let full = frames < list.len() || !self.rest.is_empty();
        if full { Sent::Full(frames) } else { Sent::Frames(frames) }
    }

    /// Keeps a copy of a frame of which `sent` bytes went out. Its storage is there already.
    fn keep(&mut self, frame: &FrameView<'_, '_>, sent: usize) {
        self.rest.clear();
        self.rest.extend_from_slice(&length(frame.len));
        self.rest.resize(PREFIX + frame.len.min(MAX_FRAME), 0);
        frame.copy_to(self.rest.get_mut(PREFIX..).unwrap_or_default());
        self.sent = sent;
    }
}

/// The prefix of a frame of `len` bytes.
fn length(len: usize) -> [u8; PREFIX] {
    debug_assert!(len <= MAX_FRAME, "no batch holds a frame of {len} bytes");
    let [.., a, b, c, d] = len.to_be_bytes();
    [a, b, c, d]
}

fn outcome(r: io::Result<usize>) -> Result<usize, Sent> {
    match r {
        Ok(n) => Ok(n),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        // ENOBUFS and ENOMEM pass, as a full socket does.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(Sent::Full(0)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
            Err(Sent::Full(0))
        }
        Err(_) => Err(Sent::Gone),
    }
}

/// Ends the connection for whoever still holds the descriptor.
pub(super) fn hang_up(peer: Option<Arc<OwnedFd>>) {
    if let Some(peer) = peer {
        let _ = rustix::net::shutdown(&peer, Shutdown::Both);
    }
}
