//! To the peer: frames that workers have pushed, in our own memory, until the port's thread has
//! sent them.
//!
//! Workers fill one chunk while the thread sends another, so nobody waits for a system call on the
//! peer's socket, and nothing is lost while that socket is full. Emptied chunks are filled again
//! last one first: a peer that keeps up costs the cache two of them.

use std::collections::VecDeque;
use std::mem;

use vmlan_frame::{Batch, Direction, FrameView, MAX_FRAME, Reason};

use super::PREFIX;

/// Bytes in one system call: two of the longest frames.
const CHUNK: usize = 2 * (PREFIX + MAX_FRAME);

/// All chunks together are 1 MiB, which is what a peer that never reads costs.
const CHUNKS: usize = 8;

const USUAL: usize = PREFIX + 1514; // Bytes that a frame of Ethernet's usual length takes.

/// Frames one after the other, each after its length.
#[derive(Debug)]
pub(super) struct Chunk {
    buf: Vec<u8>,
    len: usize,
    sent: usize,
}

impl Chunk {
    pub(super) fn new() -> Self {
        Self { buf: vec![0; CHUNK], len: 0, sent: 0 }
    }

    /// What is still to be sent.
    pub(super) fn rest(&self) -> &[u8] {
        self.buf.get(self.sent..self.len).unwrap_or_default()
    }

    /// Notes that `n` more bytes were sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n.min(self.len - self.sent);
    }

    fn room(&self) -> usize {
        CHUNK - self.len
    }

    /// Appends a frame for which there is room.
    fn add(&mut self, frame: &FrameView<'_, '_>) {
        let end = self.len + PREFIX + frame.len;
        let Some(room) = self.buf.get_mut(self.len..end) else { return };
        let Some((prefix, bytes)) = room.split_first_chunk_mut() else { return };
        *prefix = length(frame.len);
        frame.copy_to(bytes);
        self.len = end;
    }

    fn clear(&mut self) {
        (self.len, self.sent) = (0, 0);
    }
}

/// The prefix of a frame of `len` bytes.
fn length(len: usize) -> [u8; PREFIX] {
    debug_assert!(len <= MAX_FRAME, "no batch holds a frame of {len} bytes");
    let [.., a, b, c, d] = len.to_be_bytes();
    [a, b, c, d]
}

/// The queue. Its lock is held for copies and never for a system call.
#[derive(Debug)]
pub(super) struct Outbox {
    filling: Chunk,
    full: VecDeque<Chunk>,
    free: Vec<Chunk>,
    /// Somebody is there to send to.
    connected: bool,
    /// The thread has nothing to send: whoever pushes wakes it.
    thread_waits: bool,
    /// Somebody waits for room: the thread rings when there is some.
    room_wanted: bool,
    /// Somebody found less room than a packet's segments need: what is there does not count.
    short: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            filling: Chunk::new(),
            full: VecDeque::with_capacity(CHUNKS),
            free: (1..CHUNKS).map(|_| Chunk::new()).collect(),
            connected: false,
            thread_waits: false,
            room_wanted: false,
            short: false,
        }
    }

    /// Empties it, for a peer or for none.
    pub(super) fn set_connected(&mut self, connected: bool) {
        self.full.iter_mut().chain([&mut self.filling]).for_each(Chunk::clear);
        self.free.extend(self.full.drain(..));
        (self.connected, self.thread_waits, self.short) = (connected, false, false);
    }

    /// Copies what there is room for; returns how much of `list` is dealt with, and whether the
    /// thread is to be woken.
    pub(super) fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &[u16],
        output: &Direction,
    ) -> (usize, bool) {
        if !self.connected {
            // Frames that were under way when it went.
            output.drop(Reason::LinkDown, list.len() as u64);
            return (list.len(), false);
        }
        let (mut done, mut frames, mut bytes) = (0, 0, 0);
        for i in list {
            if let Some(frame) = batch.frame(usize::from(*i)) {
                if !self.make_room(PREFIX + frame.len) {
                    break;
                }
                self.filling.add(&frame);
                frames += 1;
                bytes += frame.len as u64;
            }
            done += 1;
        }
        output.count(frames, bytes);
        (done, frames > 0 && mem::take(&mut self.thread_waits))
    }

    /// True if `need` bytes, of one frame, fit the chunk that is being filled.
    fn make_room(&mut self, need: usize) -> bool {
        if self.filling.room() >= need {
            return true;
        }
        let Some(free) = self.free.pop() else { return false };
        self.full.push_back(mem::replace(&mut self.filling, free));
        true
    }

    /// Frames of the usual length that fit, beside what may be left over at the end of chunks or
    /// be longer than usual in one packet: what a packet becomes by segmentation is pushed as a
    /// whole.
    pub(super) fn room(&self) -> usize {
        if !self.connected {
            return usize::MAX;
        }
        (self.filling.room() + self.free.len() * CHUNK).saturating_sub(CHUNK) / USUAL
    }

    /// As [`Outbox::room`], for a worker that waits if it is less than `wanted`.
    pub(super) fn room_in(&mut self, wanted: usize) -> usize {
        let room = self.room();
        self.short |= room < wanted;
        room
    }

    /// True if any frame fits, and nobody found that too little; else the next room is to be told
    /// of.
    ///
    /// A worker notes under this lock that it is short and then, under it again, that it wants
    /// room, while the thread, under it too, takes back a chunk, notes that nobody is short any
    /// more, and rings if room is wanted: a chunk that comes between the worker's two calls lets
    /// it look again, and one that comes later rings. Nothing else makes room, and a chunk is
    /// always on its way, since with all of them here there is room for any packet; so whoever
    /// sleeps because another worker was short is rung for as well.
    pub(super) fn want_room(&mut self) -> bool {
        let any = self.room() > 0 && !self.short;
        self.room_wanted |= !any;
        any
    }

    /// Takes back a chunk that was sent. True if that is room that somebody waits for.
    pub(super) fn give_back(&mut self, mut chunk: Chunk) -> bool {
        chunk.clear();
        self.free.push(chunk);
        self.short = false;
        self.room() > 0 && mem::take(&mut self.room_wanted)
    }

    /// The next bytes to send.
    pub(super) fn take(&mut self) -> Option<Chunk> {
        self.thread_waits = false;
        if self.full.is_empty() && self.filling.len > 0 {
            let free = self.free.pop()?;
            return Some(mem::replace(&mut self.filling, free));
        }
        self.full.pop_front()
    }

    /// The thread is about to sleep. False if there is something to send.
    pub(super) fn arm(&mut self) -> bool {
        self.thread_waits = self.full.is_empty() && self.filling.len == 0;
        self.thread_waits
    }
}
