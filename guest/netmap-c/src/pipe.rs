//! Pipes: two ends of one process, each with a transmit and a receive ring. What one end sends the
//! other gets in the same slot of its ring, and gives it back there: no byte is copied.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::io::Errno;

use super::counters::{Counters, SyncError, answer};
use super::region::Region;
use super::ring::{CHANGED, Ring, Slot};
use vmlan_tools::netmap::Interest;
use vmlan_transport::sys::EventFd;

/// Slots of a ring where nobody asks for another number, and the most; netmap's.
const SLOTS: u32 = 1024;
const MOST_SLOTS: u32 = 4096;

/// One direction. Both rings have the same buffers in their slots, of which those from `rx.seen` to
/// `tx.seen` are the reader's.
struct Way {
    tx: Ring,
    rx: Ring,
    /// Where the writer's part is to end from its next sync on, and the reader's.
    room: u32,
    filled: u32,
}

impl Way {
    fn new(region: &'static Region, slots: u32) -> Result<Self, Errno> {
        let slots = if slots == 0 { SLOTS } else { slots.clamp(2, MOST_SLOTS) };
        let mut tx = Ring::new(region, (0, false), slots)?;
        let rx = Ring::bare(region, (0, true), slots)?;
        (0..slots).for_each(|at| rx.put(at, tx.slot(at)));
        let room = tx.most();
        tx.publish(room);
        Ok(Self { tx, rx, room, filled: 0 })
    }

    /// Hands over the frames that are whole; whether all were sound, and how many.
    fn send(&mut self, counters: &mut Counters) -> (bool, u64) {
        let (mut frames, rx) = (0, &self.rx);
        let sound = self.tx.send(false, counters, |at, slot, ends| {
            rx.put(at, Slot { flags: slot.flags & !CHANGED, ..slot });
            frames += u64::from(ends);
            true
        });
        self.filled = self.tx.seen;
        self.tx.publish(self.room);
        (sound, frames)
    }

    /// Gives read slots back to the writer, which sees by NS_BUF_CHANGED what is no longer the
    /// buffer that it had there; whether all were sound.
    fn take_back(&mut self, counters: &mut Counters) -> bool {
        let tx = &self.tx;
        let sound = self.rx.take_back(counters, |at, slot| {
            tx.put(at, slot);
            slot
        });
        self.room = self.rx.ahead(self.rx.seen, self.rx.most());
        if self.rx.tail != self.filled {
            self.rx.stamp();
        }
        self.rx.publish(self.filled);
        sound
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // The transmit ring gives the buffers back: where the reader has a slot, its buffer.
        let mut at = self.rx.seen;
        while at != self.tx.seen {
            self.tx.put(at, self.rx.slot(at));
            at = self.tx.next(at);
        }
    }
}

/// What one end sleeps on: for frames, and for room. Two, so that a thread that waits for the one
/// takes no news from a thread that waits for the other.
struct End {
    bells: [EventFd; 2],
    wishes: [bool; 2],
    counters: Counters,
}

impl End {
    fn new() -> Result<Self, Errno> {
        let bell = || EventFd::new().map_err(|_| Errno::MFILE);
        Ok(Self { bells: [bell()?, bell()?], wishes: [false; 2], counters: Counters::default() })
    }

    /// There is news for who waits for it.
    fn ring(&mut self, which: usize) {
        if std::mem::take(&mut self.wishes[which]) {
            self.bells[which].signal();
        }
    }
}

const FRAMES: usize = 0;
const ROOM: usize = 1;

/// A pipe. Way 0 is the master's to send.
pub(crate) struct Pipe {
    ways: [Way; 2],
    ends: [End; 2],
}

impl Pipe {
    /// With so many slots for what the master sends and receives.
    ///
    /// # Errors
    /// ENOMEM when the region is full; EMFILE.
    pub(crate) fn new(region: &'static Region, [tx, rx]: [u32; 2]) -> Result<Self, Errno> {
        let ways = [Way::new(region, tx)?, Way::new(region, rx)?];
        Ok(Self { ways, ends: [End::new()?, End::new()?] })
    }

    /// The end of one side: 0 is the master's.
    pub(crate) fn end(&mut self, side: usize) -> PipeEnd<'_> {
        PipeEnd { pipe: self, side }
    }
}

/// One end, for its calls.
pub(crate) struct PipeEnd<'a> {
    pipe: &'a mut Pipe,
    side: usize,
}

impl PipeEnd<'_> {
    pub(crate) fn tx(&self) -> &Ring {
        &self.pipe.ways[self.side].tx
    }

    pub(crate) fn rx(&self) -> &Ring {
        &self.pipe.ways[1 - self.side].rx
    }

    pub(crate) fn counters(&self) -> Counters {
        self.pipe.ends[self.side].counters
    }

    pub(crate) fn txsync(&mut self) -> Result<(), SyncError> {
        let (side, pipe) = (self.side, &mut *self.pipe);
        let (sound, frames) = pipe.ways[side].send(&mut pipe.ends[side].counters);
        if frames > 0 {
            pipe.ends[side].counters.tx_frames += frames;
            pipe.ends[1 - side].counters.rx_frames += frames;
            pipe.ends[1 - side].ring(FRAMES);
        }
        answer(sound)
    }

    pub(crate) fn rxsync(&mut self) -> Result<(), SyncError> {
        let (side, pipe) = (self.side, &mut *self.pipe);
        let way = &mut pipe.ways[1 - side];
        let before = way.room;
        let sound = way.take_back(&mut pipe.ends[side].counters);
        if way.room != before {
            pipe.ends[1 - side].ring(ROOM);
        }
        answer(sound)
    }

    /// Gets ready for a sleep; false if there must be none, since there is something by now.
    pub(crate) fn arm(&mut self, want: Interest) -> bool {
        let (sends, gets) = (&self.pipe.ways[self.side], &self.pipe.ways[1 - self.side]);
        let room = sends.tx.is_ready() || sends.room != sends.tx.tail;
        let frames = gets.rx.is_ready() || gets.filled != gets.rx.tail;
        if want.rx && frames || want.tx && room {
            return false;
        }
        let end = &mut self.pipe.ends[self.side];
        for (which, wanted) in [(FRAMES, want.rx), (ROOM, want.tx)] {
            if wanted {
                end.bells[which].take();
                end.wishes[which] = true;
            }
        }
        true
    }

    /// What a sleep is for.
    pub(crate) fn watched(&self, want: Interest) -> Vec<RawFd> {
        let bells = self.pipe.ends[self.side].bells.iter().zip([want.rx, want.tx]);
        bells.filter(|(_, wanted)| *wanted).map(|(bell, _)| bell.as_fd().as_raw_fd()).collect()
    }
}
