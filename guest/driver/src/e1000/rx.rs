//! The receive ring: each descriptor has its own buffer for ever, and is filled again in turn (SDM 3.2).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::descriptor::rx;
use super::options::Options;
use super::tx::stride;
use crate::mem::{Pool, Ram, View};
use crate::net::QueueStats;

/// Bytes of the CRC that the device leaves at a frame's end.
const CRC: usize = 4;

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    first: u16,
    descriptors: u16,
    /// Bytes, without CRC.
    pub len: usize,
    /// The second word of its last descriptor: see [`rx`] for status and errors.
    pub word: u64,
}

impl Frame {
    /// The 802.1Q tag the device stripped.
    #[must_use]
    pub fn vlan(&self) -> Option<u16> {
        let [.., low, high] = self.word.to_le_bytes();
        (self.word & rx::VP != 0).then_some(u16::from_le_bytes([low, high]))
    }

    /// What the device says about the TCP or UDP checksum: nothing, right, or wrong.
    #[must_use]
    pub fn checksum(&self) -> Option<bool> {
        let said = self.word & rx::IXSM == 0 && self.word & rx::TCPCS != 0;
        said.then_some(self.word & rx::TCPE == 0)
    }
}

/// Received frames that are not released yet.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) frames: Vec<Frame>,
}

impl Batch {
    /// The frames of the last poll.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }
}

/// The receive side.
#[derive(Debug)]
pub(super) struct RxRing {
    desc: View<AtomicU64>,
    ram: Arc<Ram>,
    size: u16,
    /// The next descriptor to look at.
    next: u16,
    /// The first one that is not the device's: what RDT says.
    pub(super) tail: u16,
    buffer: usize,
    first: usize,
    gpa: u64,
    stride: usize,
    crc: usize,
    pub(super) stats: QueueStats,
}

/// What the ring shows from the next descriptor on.
enum Found {
    Frame(Frame),
    /// The device gave a frame a form it must not have; it is skipped.
    Junk(u16),
    Nothing,
}

/// The length field of a descriptor's second word.
#[inline]
fn length(word: u64) -> usize {
    let [low, high, ..] = word.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high]))
}

impl RxRing {
    /// Bytes that the buffers need.
    pub(super) fn buffer_bytes(options: &Options) -> usize {
        usize::from(options.size) * stride(usize::from(options.buffer)) + 64
    }

    pub(super) fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let size = usize::from(options.size);
        let stride = stride(usize::from(options.buffer));
        let first = high.take(size * stride, 64);
        let ring = low.take(16 * size, 128);
        let mut new = Self {
            desc: ram.view(ring, 2 * size),
            ram: Arc::clone(ram),
            size: options.size,
            next: 0,
            tail: 0,
            buffer: usize::from(options.buffer),
            first,
            gpa: ram.guest_phys(first),
            stride,
            crc: if options.strip_crc { 0 } else { CRC },
            stats: QueueStats::default(),
        };
        new.reset();
        new
    }

    /// Guest-physical address of the ring.
    pub(super) fn base(&self) -> u64 {
        self.ram.guest_phys(self.desc.offset())
    }

    /// A full ring, for a device that has been reset: every buffer but one is the device's.
    pub(super) fn reset(&mut self) {
        (self.next, self.tail) = (0, self.size - 1);
        for at in 0..self.size {
            self.arm(at);
        }
    }

    #[inline]
    fn arm(&self, at: u16) {
        let address = self.gpa + (usize::from(at) * self.stride) as u64;
        self.desc[2 * usize::from(at)].store(address.to_le(), Relaxed);
        self.desc[2 * usize::from(at) + 1].store(0, Relaxed);
    }

    #[inline]
    fn after(&self, at: u16) -> u16 {
        if at + 1 == self.size { 0 } else { at + 1 }
    }

    #[inline]
    fn word(&self, at: u16) -> u64 {
        u64::from_le(self.desc[2 * usize::from(at) + 1].load(Acquire))
    }

    /// Is the next descriptor done?
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.next != self.tail && self.word(self.next) & rx::DD != 0
    }

    /// Buffers the device has, as far as we know.
    pub(super) fn outstanding(&self) -> u16 {
        if self.tail >= self.next {
            self.tail - self.next
        } else {
            self.tail + self.size - self.next
        }
    }

    #[inline]
    fn find(&self) -> Found {
        let (mut at, mut len, mut descriptors) = (self.next, 0, 0);
        while at != self.tail {
            let word = self.word(at);
            if word & rx::DD == 0 {
                return Found::Nothing;
            }
            descriptors += 1;
            let bytes = length(word);
            if bytes > self.buffer {
                return Found::Junk(descriptors);
            }
            len += bytes;
            if word & rx::EOP != 0 {
                return match len.checked_sub(self.crc) {
                    Some(len) if word & rx::BAD == 0 => {
                        Found::Frame(Frame { first: self.next, descriptors, len, word })
                    }
                    _ => Found::Junk(descriptors),
                };
            }
            at = self.after(at);
        }
        // A frame that fills the ring and has no end would never get one.
        if descriptors == self.size - 1 { Found::Junk(descriptors) } else { Found::Nothing }
    }

    /// The descriptor `count` places (at most all of them) after the next one. There are 4,096 at most, so nothing overflows.
    #[inline]
    fn ahead(&self, count: u16) -> u16 {
        let at = self.next + count;
        if at >= self.size { at - self.size } else { at }
    }

    fn skip(&mut self, descriptors: u16) {
        self.next = self.ahead(descriptors);
    }

    /// Adds frames to a batch until it holds `most`; returns how many were added.
    pub(super) fn poll(&mut self, batch: &mut Batch, most: usize) -> usize {
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
    pub(super) fn read(&self, frame: Frame, at: usize, bytes: &mut [u8]) -> usize {
        let (mut skip, mut left, mut done) = (at, frame.len, 0);
        let mut descriptor = frame.first;
        for _ in 0..frame.descriptors {
            // Only the last buffer of a frame is not full, and its length is what is left.
            let here = left.min(length(self.word(descriptor))).min(self.buffer);
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

    /// Where the first of these frames starts; without any, the next descriptor to look at.
    pub(super) fn start_of(&self, frames: &[Frame]) -> u16 {
        frames.first().map_or(self.next, |frame| frame.first)
    }

    /// Fills up to `most` of the descriptors that were taken, before `end`; returns how many. The device does not look before it is
    /// told of the tail.
    pub(super) fn refill(&mut self, most: u16, end: u16) -> u16 {
        let mut count = 0;
        while count < most && self.after(self.tail) != end {
            self.arm(self.tail);
            self.tail = self.after(self.tail);
            count += 1;
        }
        count
    }

    /// Descriptors that are done though an earlier one is not.
    pub(super) fn out_of_order(&self) -> u16 {
        let done = |n: &u16| self.word(self.ahead(*n)) & rx::DD != 0;
        let count = (0..self.outstanding()).skip_while(done).filter(done).count();
        u16::try_from(count).unwrap_or(u16::MAX)
    }
}
