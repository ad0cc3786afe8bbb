//! The ring as the transmit side of a driver.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{Bus, Offload, Register, Registers, TxSide};
use super::{ALIGN, CHUNK, PATIENCE, TxFormat, TxRing, stride};
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram};
use vmlan_transport::{Completion, Options};

impl<R: Register, F: TxFormat> TxSide<R> for TxRing<F> {
    fn ram_bytes(options: &Options) -> (usize, usize) {
        let slots = usize::from(Self::slots_of(options));
        let low = 16 * usize::from(options.size) + ALIGN + F::ram_bytes(options);
        (low, slots * stride(options.room) + 64)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let slots = Self::slots_of(options);
        let stride = stride(options.room);
        let first = high.take(usize::from(slots) * stride, 64);
        let rings = low.take(16 * usize::from(options.size), ALIGN);
        let seldom = !Self::WATCHED && (options.completion == Completion::Lazy || options.csb);
        let every = if seldom { (slots / 4).max(1) } else { 1 };
        let mut new = Self {
            format: F::new(options, ram, low),
            desc: ram.view(rings, 2 * usize::from(options.size)),
            ram: Arc::clone(ram),
            size: options.size,
            slots,
            chunk: CHUNK.min(slots / 4).max(1),
            next: 0,
            oldest: 0,
            under_way: 0,
            head: 0,
            tail: 0,
            lap: true,
            every,
            report: every - 1,
            vain: 0,
            first,
            gpa: ram.guest_phys(first),
            stride,
            segment: usize::from(options.segment),
            ends: vec![0; usize::from(slots)].into(),
            offloads: vec![Offload::default(); usize::from(slots)].into(),
            bad_heads: 0,
            pending: 0,
            stats: QueueStats::default(),
        };
        TxSide::<R>::reset(&mut new);
        new
    }

    fn reset(&mut self) {
        self.desc.iter().for_each(|word| word.store(0, Relaxed));
        // The chip finds the ring's size by this.
        self.desc[2 * usize::from(self.size - 1)].store(F::END.to_le(), Relaxed);
        (self.next, self.oldest, self.under_way, self.pending) = (0, 0, 0, 0);
        (self.head, self.tail, self.report) = (0, 0, self.every - 1);
        self.lap = true;
        self.format.reset();
    }

    fn slots(&self) -> u16 {
        self.slots
    }

    fn room(&self) -> usize {
        self.stride
    }

    #[inline]
    fn free_slots(&self) -> u16 {
        self.slots - self.under_way
    }

    fn under_way(&self) -> u16 {
        self.under_way
    }

    #[inline]
    fn tail(&self) -> u16 {
        self.tail
    }

    fn next(&mut self) -> Option<u16> {
        let free = self.under_way < self.slots;
        self.stats.full += u64::from(!free);
        free.then_some(self.next)
    }

    /// There are fewer than 4,096 slots, so nothing overflows.
    #[inline]
    fn slot_ahead(&self, ahead: u16) -> u16 {
        let slot = self.next + ahead;
        if slot >= self.slots { slot - self.slots } else { slot }
    }

    #[inline]
    fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.stride, "{} bytes at {at} leave the slot", bytes.len());
        self.ram.write(self.first + usize::from(slot) * self.stride + at, bytes);
    }

    fn set_offload(&mut self, slot: u16, offload: Offload) {
        self.offloads[usize::from(slot)] = offload;
    }

    #[inline]
    fn send(&mut self, slot: u16, len: u32) {
        assert!(self.under_way < self.slots && slot == self.next, "slot {slot} is not the next");
        let len = len as usize;
        let at = usize::from(slot);
        let start = self.gpa + (at * self.stride) as u64;
        let report = self.reports(slot);
        if len <= self.segment && !F::has_context(&self.offloads[at]) {
            self.put(self.format.whole(start, len as u64, report, &self.offloads[at]));
        } else {
            self.describe(at, start, len, report);
        }
        self.format.count(&self.offloads[at], len);
        self.next = if slot + 1 == self.slots { 0 } else { slot + 1 };
        self.under_way += 1;
        self.pending += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
    }

    #[inline]
    fn take_pending(&mut self) -> u32 {
        std::mem::take(&mut self.pending)
    }

    /// Takes slots back whose descriptors are reported; returns how many are free now.
    #[inline]
    fn reap<B: Bus>(&mut self, _: &mut Registers<R, B>) -> u16 {
        if self.every > 1 {
            while self.is_reported() {
                self.retire(self.to_report() + 1);
            }
            return self.slots - self.under_way;
        }
        while self.under_way >= self.chunk && self.is_done(self.chunk - 1) {
            self.retire(self.chunk);
        }
        if self.under_way < self.chunk {
            while self.under_way > 0 && self.is_done(0) {
                self.retire(1);
            }
        }
        self.slots - self.under_way
    }

    /// Frames are under way, and none of them will be reported.
    fn is_blind(&self) -> bool {
        self.under_way > 0 && self.to_report() >= self.under_way
    }

    /// Reports were looked for in vain many times: the device's head is worth a read.
    #[inline]
    fn wants_head(&mut self) -> bool {
        if self.every == 1 || !TxSide::<R>::is_blind(self) {
            return false;
        }
        self.vain += 1;
        let wants = self.vain >= PATIENCE;
        if wants {
            self.vain = 0;
        }
        wants
    }

    /// Takes slots back up to the device's head; false if it said nothing yet.
    #[inline]
    fn retire_to(&mut self, head: u32) -> bool {
        let Some(mut left) = self.finished(head) else {
            self.bad_heads += u64::from(head != u32::MAX);
            return false;
        };
        if left == 0 {
            return true;
        }
        if self.distance(self.head, self.tail) == self.under_way {
            // One descriptor each.
            self.retire(left);
            return true;
        }
        while self.under_way > 0 {
            let end = self.ends[usize::from(self.oldest)];
            let frame = self.distance(self.head, end) + 1;
            if frame > left {
                break;
            }
            left -= frame;
            self.retire(1);
        }
        true
    }

    /// Has the device's head moved?
    fn has_moved(&self, head: u32) -> bool {
        self.finished(head).is_some_and(|count| count > 0)
    }

    /// Has a good part of what is under way been sent?
    fn is_half_done(&self) -> bool {
        if self.every > 1 {
            return self.is_reported();
        }
        self.under_way > 0
            && self.is_done((self.under_way / 2).max(self.chunk.min(self.under_way)) - 1)
    }

    /// Descriptors that are not done though a later one is, and heads that cannot be: the device
    /// must do neither. The last is looked at first, as a device may be at work meanwhile.
    fn out_of_order(&self) -> u64 {
        let reported = |n: &u16| self.report_after(self.slot_after(*n)) == self.slot_after(*n);
        let open = |n: &u16| !self.is_done(*n);
        let all = (0..self.under_way).rev().filter(reported);
        all.skip_while(open).filter(open).count() as u64 + self.bad_heads
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
