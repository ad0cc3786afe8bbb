//! The body of the fuzz target `stream`: a peer's bytes, cut into frames by the port's thread,
//! handed over to the worker, and lent. Kept inputs are replayed as a plain test.
//!
//! An input is a sequence of steps:
//!
//! | | meaning |
//! | --- | --- |
//! | 0 to 0x7f | the peer sends the next n + 1 bytes |
//! | 0x80 to 0xbf | it sends a frame: two bytes of length, shifted by n modulo 8 |
//! | 0xc0 to 0xdf | it sends n shortest frames |
//! | 0xe0 to 0xef | the thread reads: two bytes say how much, in units of 64 |
//! | 0xf0 to 0xff | it gives what it has; the worker takes that and has it lent, all but each nth |
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use vmlan_frame::{Batch, Direction, MAX_FRAME, MIN_FRAME, Sink};

use super::PREFIX;
use super::handover::{Found, Handover};
use super::read::{ABSURD, FRAMES, Look, PATIENCE, Reader, Refused};
use crate::inbox::Inbox;

/// Most bytes of one input's stream.
const MOST: usize = 4 << 20;

/// Plays one input.
///
/// # Panics
/// If a frame does not come out as it was sent.
pub fn stream(data: &[u8]) {
    let mut world = World::new();
    let mut input = data.iter().copied();
    while let Some(step) = input.next() {
        let n = usize::from(step & 15);
        match step {
            0..=0x7f => world.sent.extend(input.by_ref().take(usize::from(step) + 1)),
            0x80..=0xbf => {
                let len = word(&mut input) << (step & 7);
                world.send(len);
            }
            0xc0..=0xdf => (0..step & 31).for_each(|_| world.send(MIN_FRAME)),
            0xe0..=0xef => world.read(64 * word(&mut input)),
            _ => _ = world.work(n),
        }
    }
    world.end();
}

fn word(input: &mut impl Iterator<Item = u8>) -> usize {
    let mut byte = || usize::from(input.next().unwrap_or(0));
    byte() << 8 | byte()
}

struct World {
    sent: Vec<u8>,
    /// Bytes of it that were read.
    at: usize,
    reader: Reader,
    handover: Handover,
    inbox: Inbox,
    batch: Batch<'static>,
    counts: Direction,
    refused: Refused,
    nonsense: bool,
    lent: Vec<Vec<u8>>,
}

/// Keeps what it is lent, and holds each frame whose number is a multiple of this, if it is one.
struct Keep<'a>(&'a mut Vec<Vec<u8>>, usize);

impl Sink for Keep<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut held = false;
        for i in 0..batch.len() {
            // Frames keep their order: what comes behind one that is held is held too.
            held |= self.1 > 0 && i % self.1 == self.1 - 1;
            if held {
                batch.hold(i);
                continue;
            }
            let Some(frame) = batch.frame(i) else { panic!("no frame {i}") };
            let mut bytes = vec![0; frame.len];
            assert_eq!(frame.copy_to(&mut bytes), frame.len);
            self.0.push(bytes);
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            sent: Vec::new(),
            at: 0,
            reader: Reader::new(),
            handover: Handover::new(),
            inbox: Inbox::new(FRAMES),
            batch: Batch::new(),
            counts: Direction::default(),
            refused: Refused::default(),
            nonsense: false,
            lent: Vec::new(),
        }
    }

    fn send(&mut self, len: usize) {
        if self.sent.len() + len < MOST {
            let fill = self.sent.len().to_le_bytes()[0];
            self.sent.extend(u32::try_from(len).unwrap_or(0).to_be_bytes());
            let bytes = (0..=u8::MAX).cycle().skip(fill.into());
            self.sent.extend(bytes.take(if len > ABSURD { 0 } else { len }));
        }
    }

    fn note(&mut self, look: Look) {
        self.nonsense |= look == Look::Nonsense;
    }

    /// As a socket that has `n` bytes, or fewer.
    fn read(&mut self, n: usize) {
        while !self.nonsense && self.reader.inbox.len() < FRAMES {
            let Some(room) = self.reader.inbox.free(PREFIX + MAX_FRAME) else { return };
            let n = n.min(room.len()).min(self.sent.len() - self.at);
            if n == 0 {
                return;
            }
            room[..n].copy_from_slice(&self.sent[self.at..self.at + n]);
            self.at += n;
            self.reader.inbox.filled(n);
            let look = self.reader.cut(&self.counts);
            self.note(look);
        }
    }

    /// True if anything went on.
    fn work(&mut self, holds: usize) -> bool {
        let given = self.reader.has_news() && self.handover.give(&mut self.reader);
        if given && !self.nonsense {
            let look = self.reader.cut(&self.counts);
            self.note(look);
        }
        let (found, _) = self.handover.take(&mut self.inbox);
        if let Found::Frames(refused) = found {
            self.refused.add(refused);
        }
        let before = self.lent.len();
        let keep = &mut Keep(&mut self.lent, holds);
        self.inbox.lend(&mut self.batch, 256, keep, &self.counts);
        given || found != Found::Nothing || self.lent.len() > before
    }

    /// All of it comes out, and it is what was sent.
    fn end(mut self) {
        loop {
            let at = self.at;
            self.read(MOST);
            if !self.work(0) && self.at == at {
                break;
            }
        }
        let should = parse(&self.sent);
        assert_eq!(self.lent.len(), should.frames.len());
        for (n, (is, range)) in self.lent.iter().zip(should.frames).enumerate() {
            assert!(is[..] == self.sent[range], "frame {n}");
        }
        assert_eq!(self.nonsense, should.nonsense);
        assert_eq!(self.refused, should.refused);
        let dropped = vmlan_frame::Reason::ALL.iter().map(|r| self.counts.dropped(*r)).sum::<u64>();
        assert_eq!(dropped, should.refused.frames as u64);
        assert_eq!(self.counts.frames.get(), self.lent.len() as u64);
    }
}

/// What a stream is made of.
#[derive(Default)]
struct Parsed {
    frames: Vec<std::ops::Range<usize>>,
    refused: Refused,
    nonsense: bool,
}

fn parse(stream: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let (mut at, mut faults) = (0, 0usize);
    while let Some(prefix) = stream.get(at..at + 4) {
        let len = prefix.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        at += 4;
        if len > ABSURD || faults >= PATIENCE {
            parsed.nonsense = true;
            break;
        }
        let there = len.min(stream.len() - at);
        if !(MIN_FRAME..=MAX_FRAME).contains(&len) {
            parsed.refused.add(Refused { frames: 1, bytes: 4 + there as u64 });
            faults += 1;
        } else if there == len {
            parsed.frames.push(at..at + len);
            faults = faults.saturating_sub(1);
        }
        at += there;
    }
    parsed
}

#[cfg(test)]
#[test]
fn kept_inputs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/stream");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() >= 8, "the seeds are gone from {corpus}");
    for file in files {
        stream(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
