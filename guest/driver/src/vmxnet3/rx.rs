//! The receive side: a ring of buffers for the heads of frames, one for what does not fit there,
//! and a ring of reports, one for each buffer. Buffers stay where they are for ever, and are given
//! back in the order in which they were reported; those that the device has skipped as well.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::completions::Completions;
use super::registers::Register;
use crate::chip::{ALIGN, Batch, Bus, Frame, Options, Registers, Report, RxSide, stride};
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram, View};
use vmlan_transport::numbers::narrow16;

const HEADERS: u16 = 14 + 4 + 4; // Bytes of a frame that are not in the MTU.
const MOST: u16 = 18; // Buffers that a frame may have, as Linux's driver says.
const LEN: u64 = 0x3fff;
/// Of a descriptor: not for a frame's head; the bit that hands it over, set in odd laps.
const BODY: u64 = 1 << 14;
const GENERATION: u64 = 1 << 31;

/// Of a report, first words: which descriptor, of which ring; the frame begins or ends there;
/// nothing was looked at. Second words: worthless.
const INDEX: u64 = 0xfff;
const RING: u32 = 16;
const RING_MASK: u64 = 0x3ff;
const EOP: u64 = 1 << 14;
const SOP: u64 = 1 << 15;
const UNCHECKED: u64 = 1 << 30;
const ERROR: u64 = 1 << 14;
/// Second words: there was a tag; the TCP or UDP checksum is right; it is UDP, it is TCP.
const TAGGED: u64 = 1 << 15;
const TAG: u32 = 16;
const RIGHT: u64 = 1 << 48;
const UDP: u64 = 1 << 49;
const TCP: u64 = 1 << 50;

/// Linux's driver rings at these places only.
const STEP: u16 = 16;

/// What the device says in a frame's last report, second words. Without a check, no protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said;

impl Report for Said {
    fn vlan(word: u64) -> Option<u16> {
        (word & TAGGED != 0).then_some(narrow16(word >> TAG & 0xffff))
    }

    fn checksum(word: u64) -> Option<bool> {
        (word & (UDP | TCP) != 0).then_some(word & RIGHT != 0)
    }
}

/// A ring of buffers.
#[derive(Debug)]
struct Buffers {
    desc: View<AtomicU64>,
    gpa: u64,
    size: u16,
    first: usize,
    first_gpa: u64,
    stride: usize,
    empty: u64,
    /// The first one that is not the device's, and whether it is on an odd lap.
    tail: u16,
    lap: bool,
    /// The first one that the device may report.
    next: u16,
    /// The last tail that the device was told of.
    told: u16,
}

impl Buffers {
    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options, kind: u64) -> Self {
        let (size, stride) = (options.size, stride(options.buffer.into()));
        let first = high.take(usize::from(size) * stride, 64);
        let ring = low.take(16 * usize::from(size), ALIGN);
        Self {
            desc: ram.view(ring, 2 * usize::from(size)),
            gpa: ram.guest_phys(ring),
            size,
            first,
            first_gpa: ram.guest_phys(first),
            stride,
            empty: u64::from(options.buffer) | kind,
            tail: 0,
            lap: true,
            next: 0,
            told: 0,
        }
    }

    /// Every buffer but one is the device's, which was told of none.
    fn reset(&mut self) {
        self.desc.iter().for_each(|word| word.store(0, Relaxed));
        (self.tail, self.lap, self.next, self.told) = (0, true, 0, u16::MAX);
        while self.tail + 1 != self.size {
            self.arm();
        }
    }

    fn after(&self, at: u16) -> u16 {
        if at + 1 == self.size { 0 } else { at + 1 }
    }

    /// Gives the device the buffer at the tail.
    fn arm(&mut self) {
        let at = usize::from(self.tail);
        let address = self.first_gpa + (at * self.stride) as u64;
        let generation = if self.lap { GENERATION } else { 0 };
        self.desc[2 * at].store(address.to_le(), Relaxed);
        self.desc[2 * at + 1].store((self.empty | generation).to_le(), Release);
        self.tail = self.after(self.tail);
        self.lap ^= self.tail == 0;
    }

    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { to + self.size - from }
    }

    /// Buffers that the device has.
    fn outstanding(&self) -> u16 {
        self.distance(self.next, self.tail)
    }

    /// The device reports this one. False: it has not got it.
    fn take(&mut self, index: u16) -> bool {
        let has = index < self.size && self.distance(self.next, index) < self.outstanding();
        if has {
            self.next = self.after(index);
        }
        has
    }
}

/// Where the contents of a report lie.
#[derive(Clone, Copy, Debug)]
struct Place {
    body: bool,
    index: u16,
    len: u16,
}

/// The receive side.
#[derive(Debug)]
pub struct Rings {
    ram: Arc<Ram>,
    /// Heads and bodies.
    buffers: [Buffers; 2],
    reports: Completions,
    /// What each report was about, since it was taken; None: nothing that makes sense.
    places: Box<[Option<Place>]>,
    /// The first report whose buffer was not given back.
    released: u16,
    buffer: u16,
    /// Buffers of the longest frame.
    longest: u16,
    /// The device is told at [`STEP`]s only.
    stepwise: bool,
    out_of_order: u64,
    stats: QueueStats,
}

impl Rings {
    /// The rings of buffers, for the device: addresses and sizes.
    pub(super) fn rings(&self) -> [(u64, u16); 2] {
        [0, 1].map(|n| (self.buffers[n].gpa, self.buffers[n].size))
    }

    /// The ring of reports, for the device.
    pub(super) fn completions(&self) -> (u64, u16) {
        self.reports.ring()
    }

    /// Buffers of the longest frame.
    pub(super) fn longest(&self) -> u16 {
        self.longest
    }

    /// Tails that the device was not told of: of heads, of bodies.
    pub(super) fn take_untold(&mut self) -> [Option<u16>; 2] {
        let [heads, bodies] = &mut self.buffers;
        [heads, bodies].map(|ring| {
            let new = ring.told != ring.tail;
            ring.told = ring.tail;
            new.then_some(ring.tail)
        })
    }

    /// Is this a place at which the device may be told?
    pub(super) fn may_tell(&self) -> bool {
        !self.stepwise || self.buffers[0].tail.is_multiple_of(STEP)
    }

    /// How many reports the next frame has, if all have come. (Of one that would fill the ring and
    /// does not end: all there can be.)
    #[inline]
    fn find(&self) -> Option<u16> {
        for count in 0..self.reports.size() {
            self.reports.look(count)?;
            if self.reports.first(count) & EOP != 0 {
                return Some(count + 1);
            }
        }
        Some(self.reports.size())
    }

    /// The buffer that a report is about. None: the device has not got it.
    fn place(&mut self, what: u64, said: u64) -> Option<Place> {
        let index = narrow16(what & INDEX);
        let ring = usize::from(narrow16(what >> RING & RING_MASK));
        let has = self.buffers.get_mut(ring).is_some_and(|ring| ring.take(index));
        self.out_of_order += u64::from(!has);
        has.then(|| Place { body: ring > 0, index, len: narrow16(said & LEN) })
    }

    /// Takes the next frame, which has so many reports. None: the device gave it an invalid form,
    /// or says that it has skipped a buffer.
    fn take(&mut self, count: u16) -> Option<Frame<Said>> {
        let first = self.reports.next();
        let (mut len, mut good, mut word) = (0, true, 0);
        for n in 0..count {
            let (what, said) = (self.reports.first(0), self.reports.look(0)?);
            let place = self.place(what, said);
            self.places[usize::from(self.reports.pass())] = place;
            let fits = |place: &Place| place.body == (n > 0) && place.len <= self.buffer;
            good &= place.as_ref().is_some_and(fits);
            good &= (what & SOP != 0, what & EOP != 0) == (n == 0, n + 1 == count);
            good &= said & ERROR == 0;
            len += place.map_or(0, |place| usize::from(place.len));
            word = if what & UNCHECKED == 0 { said } else { said & !(UDP | TCP) };
        }
        self.stats.malformed += u64::from(!good);
        let of = PhantomData;
        (good && len > 0).then_some(Frame { first, descriptors: count, len, word, of })
    }
}

impl RxSide<Register> for Rings {
    type Format = Said;

    fn ram_bytes(options: &Options) -> (usize, usize) {
        let size = usize::from(options.size);
        let low = 2 * (16 * size + ALIGN) + Completions::ram_bytes(2 * size);
        (low, 2 * size * stride(options.buffer.into()) + 2 * 64)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let heads = Buffers::new(ram, low, high, options, 0);
        let bodies = Buffers::new(ram, low, high, options, BODY);
        let frame = options.mtu.max(1500).saturating_add(HEADERS);
        let mut new = Self {
            ram: Arc::clone(ram),
            buffers: [heads, bodies],
            reports: Completions::new(ram, low, 2 * options.size),
            places: vec![None; 2 * usize::from(options.size)].into(),
            released: 0,
            buffer: options.buffer,
            longest: if options.lro { MOST } else { frame.div_ceil(options.buffer) },
            stepwise: !options.fence,
            out_of_order: 0,
            stats: QueueStats::default(),
        };
        new.reset();
        new
    }

    fn reset(&mut self) {
        self.buffers.iter_mut().for_each(Buffers::reset);
        self.reports.reset();
        self.places.fill(None);
        self.released = 0;
    }

    fn size(&self) -> u16 {
        self.buffers[0].size
    }

    fn tail(&self) -> u16 {
        self.buffers[0].tail
    }

    #[inline]
    fn ready<B: Bus>(&mut self, _: &mut Registers<Register, B>) -> bool {
        self.reports.look(0).is_some()
    }

    /// It says by itself whether it wants to be told.
    fn ran_short(&self, _tail: u16) -> bool {
        false
    }

    fn poll<B: Bus>(
        &mut self,
        _: &mut Registers<Register, B>,
        batch: &mut Batch<Said>,
        most: usize,
    ) -> usize {
        let before = batch.frames.len();
        while batch.frames.len() < most {
            let Some(count) = self.find() else { break };
            if let Some(frame) = self.take(count) {
                self.stats.frames += 1;
                self.stats.bytes += frame.len as u64;
                batch.frames.push(frame);
            }
        }
        let new = batch.frames.len() - before;
        self.stats.batches += u64::from(new > 0);
        new
    }

    #[inline]
    fn read(&self, frame: Frame<Said>, at: usize, bytes: &mut [u8]) -> usize {
        let (mut skip, mut done) = (at, 0);
        let mut report = frame.first;
        for _ in 0..frame.descriptors {
            let Some(place) = self.places[usize::from(report)] else { break };
            let (ring, here) = (&self.buffers[usize::from(place.body)], usize::from(place.len));
            if skip < here {
                let take = (here - skip).min(bytes.len() - done);
                let from = ring.first + usize::from(place.index) * ring.stride + skip;
                self.ram.read(from, &mut bytes[done..done + take]);
                (done, skip) = (done + take, 0);
            } else {
                skip -= here;
            }
            report = self.reports.after(report);
        }
        done
    }

    fn start_of(&self, frames: &[Frame<Said>]) -> u16 {
        frames.first().map_or(self.reports.next(), |frame| frame.first)
    }

    /// Reports take the place of descriptors: up to `end` their buffers are given back.
    fn refill(&mut self, most: u16, end: u16) -> u16 {
        let mut count = 0;
        while count < most && self.released != end {
            if let Some(place) = self.places[usize::from(self.released)] {
                let ring = &mut self.buffers[usize::from(place.body)];
                while ring.tail != place.index {
                    ring.arm();
                    count += 1;
                }
            }
            self.released = self.reports.after(self.released);
            if self.stepwise && count > 0 && self.may_tell() {
                break;
            }
        }
        count
    }

    fn outstanding(&self) -> u16 {
        self.buffers[0].outstanding()
    }

    fn out_of_order(&self) -> u64 {
        self.out_of_order
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
