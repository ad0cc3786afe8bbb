//! A ring of receive descriptors: each has its own buffer for ever, and is filled again in turn.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::tx::{ALIGN, stride};
use super::{Bus, Register, Registers, RxSide};
use crate::stats::QueueStats;
use vmlan_transport::Options;
use vmlan_transport::memory::{Pool, Ram, View};

/// Bytes of a frame that are not in the MTU: its header, a tag, the CRC.
const HEADERS: u16 = 14 + 4 + 4;

/// What a chip says about a frame that it has received.
pub trait Report: Copy + Debug + Send {
    /// The 802.1Q tag that the chip stripped.
    fn vlan(_word: u64) -> Option<u16> {
        None
    }
    /// What it says about the TCP or UDP checksum: nothing, right, or wrong.
    fn checksum(_word: u64) -> Option<bool> {
        None
    }
}

/// Receive descriptors of a chip: two words of 64 bits.
pub trait RxFormat: Report {
    /// A bit in the descriptor's first word says who owns it, and hands it over instead of a tail.
    /// Otherwise the chip reports in the second word.
    const OWNED: bool;
    /// The length in a frame's last descriptor is the whole frame's, and the others have none.
    const WHOLE: bool;

    /// Bytes of CRC that the chip leaves at a frame's end.
    fn crc(options: &Options) -> usize;
    /// The bits of the first word that say that the ring ends here.
    const END: u64 = 0;

    /// The word of a descriptor with an empty buffer of this many bytes.
    #[inline]
    fn empty(_buffer: usize) -> u64 {
        0
    }
    /// Has the chip written back so?
    fn is_done(word: u64) -> bool;
    /// Does the frame end here?
    fn is_end(word: u64) -> bool;
    /// Is the frame worthless?
    fn is_bad(word: u64) -> bool;
    /// The length.
    fn len(word: u64) -> usize;
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<F> {
    pub(crate) first: u16,
    pub(crate) descriptors: u16,
    /// Bytes, without CRC.
    pub len: usize,
    /// The word of its last descriptor that the chip wrote: status and errors.
    pub word: u64,
    pub(crate) of: PhantomData<F>,
}

impl<F: Report> Frame<F> {
    /// The 802.1Q tag the device stripped.
    pub fn vlan(&self) -> Option<u16> {
        F::vlan(self.word)
    }

    /// What the device says about the TCP or UDP checksum: nothing, right, or wrong.
    pub fn checksum(&self) -> Option<bool> {
        F::checksum(self.word)
    }
}

/// Received frames that are not released yet.
#[derive(Debug)]
pub struct Batch<F> {
    pub(crate) frames: Vec<Frame<F>>,
}

impl<F> Default for Batch<F> {
    fn default() -> Self {
        Self { frames: Vec::new() }
    }
}

impl<F> Batch<F> {
    /// The frames of the last poll.
    pub fn frames(&self) -> &[Frame<F>] {
        &self.frames
    }
}

/// The receive side.
#[derive(Debug)]
pub struct RxRing<F> {
    desc: View<AtomicU64>,
    ram: Arc<Ram>,
    size: u16,
    /// The next descriptor to look at.
    next: u16,
    /// The first one that is not the device's: what RDT says.
    tail: u16,
    buffer: usize,
    /// Buffers of the longest frame.
    longest: u16,
    first: usize,
    gpa: u64,
    stride: usize,
    crc: usize,
    stats: QueueStats,
    of: PhantomData<F>,
}

/// What the ring shows from the next descriptor on.
enum Found<F> {
    Frame(Frame<F>),
    /// The device gave a frame an invalid form; the frame is skipped.
    Junk(u16),
    Nothing,
}

impl<F: RxFormat> RxRing<F> {
    /// The word that the chip reports in, and the one of the address.
    const STATUS: usize = if F::OWNED { 0 } else { 1 };
    const ADDRESS: usize = 1 - Self::STATUS;

    /// Guest-physical address of the ring.
    pub(crate) fn base(&self) -> u64 {
        self.ram.guest_phys(self.desc.offset())
    }

    #[inline]
    fn arm(&self, at: u16) {
        let address = self.gpa + (usize::from(at) * self.stride) as u64;
        self.desc[2 * usize::from(at) + Self::ADDRESS].store(address.to_le(), Relaxed);
        let end = if at + 1 == self.size { F::END } else { 0 };
        let order = if F::OWNED { Release } else { Relaxed };
        let empty = F::empty(self.buffer) | end;
        self.desc[2 * usize::from(at) + Self::STATUS].store(empty.to_le(), order);
    }

    #[inline]
    fn after(&self, at: u16) -> u16 {
        if at + 1 == self.size { 0 } else { at + 1 }
    }

    #[inline]
    fn word(&self, at: u16) -> u64 {
        u64::from_le(self.desc[2 * usize::from(at) + Self::STATUS].load(Acquire))
    }

    #[inline]
    fn find(&self) -> Found<F> {
        let (mut at, mut len, mut descriptors) = (self.next, 0, 0);
        while at != self.tail {
            let word = self.word(at);
            if !F::is_done(word) {
                return Found::Nothing;
            }
            descriptors += 1;
            let end = F::is_end(word);
            let bytes = match (F::WHOLE, end) {
                (false, _) => F::len(word),
                (true, false) => self.buffer,
                (true, true) => F::len(word).saturating_sub(len),
            };
            if bytes > self.buffer {
                return Found::Junk(descriptors);
            }
            len += bytes;
            if end {
                let (first, of) = (self.next, PhantomData);
                return match len.checked_sub(self.crc) {
                    Some(len) if !F::is_bad(word) => {
                        Found::Frame(Frame { first, descriptors, len, word, of })
                    }
                    _ => Found::Junk(descriptors),
                };
            }
            at = self.after(at);
        }
        // A frame that fills the ring and has no end would never get one.
        if descriptors == self.size - 1 { Found::Junk(descriptors) } else { Found::Nothing }
    }

    /// The descriptor `count` places (at most all of them) after the next one. There are 4,096 at
    /// most, so nothing overflows.
    #[inline]
    fn ahead(&self, count: u16) -> u16 {
        let at = self.next + count;
        if at >= self.size { at - self.size } else { at }
    }

    #[inline]
    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { to + self.size - from }
    }

    fn skip(&mut self, descriptors: u16) {
        self.next = self.ahead(descriptors);
    }
}

impl<R: Register, F: RxFormat> RxSide<R> for RxRing<F> {
    type Format = F;

    fn ram_bytes(options: &Options) -> (usize, usize) {
        let size = usize::from(options.size);
        (16 * size + ALIGN, size * stride(usize::from(options.buffer)) + 64)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let size = usize::from(options.size);
        let stride = stride(usize::from(options.buffer));
        let first = high.take(size * stride, 64);
        let ring = low.take(16 * size, ALIGN);
        let mut new = Self {
            desc: ram.view(ring, 2 * size),
            ram: Arc::clone(ram),
            size: options.size,
            next: 0,
            tail: 0,
            buffer: usize::from(options.buffer),
            longest: options.mtu.max(1500).saturating_add(HEADERS).div_ceil(options.buffer),
            first,
            gpa: ram.guest_phys(first),
            stride,
            crc: F::crc(options),
            stats: QueueStats::default(),
            of: PhantomData,
        };
        RxSide::<R>::reset(&mut new);
        new
    }

    /// Every buffer but one is the device's.
    fn reset(&mut self) {
        (self.next, self.tail) = (0, self.size - 1);
        for at in 0..self.tail {
            self.arm(at);
        }
        // The chip does not own it, but finds the ring's end there.
        self.desc[2 * usize::from(self.tail) + Self::STATUS].store(F::END.to_le(), Relaxed);
    }

    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn tail(&self) -> u16 {
        self.tail
    }

    #[inline]
    fn ready<B: Bus>(&mut self, _: &mut Registers<R, B>) -> bool {
        self.next != self.tail && F::is_done(self.word(self.next))
    }

    fn ran_short(&self, tail: u16) -> bool {
        fence(SeqCst);
        let had = self.distance(self.next, tail);
        had < self.longest || F::is_done(self.word(self.ahead(had - self.longest)))
    }

    fn outstanding(&self) -> u16 {
        self.distance(self.next, self.tail)
    }

    /// Adds frames to a batch until it holds `most`; returns how many were added.
    fn poll<B: Bus>(
        &mut self,
        _: &mut Registers<R, B>,
        batch: &mut Batch<F>,
        most: usize,
    ) -> usize {
        let before = batch.frames.len();
        while batch.frames.len() < most {
            match self.find() {
                Found::Frame(frame) => {
                    self.skip(frame.descriptors);
                    self.stats.frames += 1;
                    self.stats.bytes += frame.len as u64;
                    batch.frames.push(frame);
                }
                Found::Junk(descriptors) => {
                    self.skip(descriptors);
                    self.stats.malformed += 1;
                }
                Found::Nothing => break,
            }
        }
        let new = batch.frames.len() - before;
        self.stats.batches += u64::from(new > 0);
        new
    }

    /// Copies bytes of a frame, from byte `at` on, into `bytes`; returns how many there were.
    #[inline]
    fn read(&self, frame: Frame<F>, at: usize, bytes: &mut [u8]) -> usize {
        let (mut skip, mut left, mut done) = (at, frame.len, 0);
        let mut descriptor = frame.first;
        for _ in 0..frame.descriptors {
            // Only the last buffer of a frame is not full, and its length is what is left.
            let most = if F::WHOLE { left } else { left.min(F::len(self.word(descriptor))) };
            let here = most.min(self.buffer);
            left -= here;
            if skip < here {
                let take = (here - skip).min(bytes.len() - done);
                let from = self.first + usize::from(descriptor) * self.stride + skip;
                self.ram.read(from, &mut bytes[done..done + take]);
                (done, skip) = (done + take, 0);
            } else {
                skip -= here;
            }
            descriptor = self.after(descriptor);
        }
        done
    }

    /// Where the first of these frames starts; if there are none, the next descriptor to look at.
    fn start_of(&self, frames: &[Frame<F>]) -> u16 {
        frames.first().map_or(self.next, |frame| frame.first)
    }

    /// Fills up to `most` of the descriptors that were taken, before `end`; returns how many. The
    /// device does not look before it is told of the tail.
    fn refill(&mut self, most: u16, end: u16) -> u16 {
        let mut count = 0;
        while count < most && self.after(self.tail) != end {
            self.arm(self.tail);
            self.tail = self.after(self.tail);
            count += 1;
        }
        count
    }

    /// Descriptors that are not done though a later one is. The last is looked at first: a device
    /// that is at work meanwhile finishes those before it earlier.
    fn out_of_order(&self) -> u64 {
        let open = |n: &u16| !F::is_done(self.word(self.ahead(*n)));
        let all = (0..RxSide::<R>::outstanding(self)).rev();
        all.skip_while(open).filter(open).count() as u64
    }

    #[inline]
    fn stats(&self) -> &QueueStats {
        &self.stats
    }

    #[inline]
    fn stats_mut(&mut self) -> &mut QueueStats {
        &mut self.stats
    }
}
