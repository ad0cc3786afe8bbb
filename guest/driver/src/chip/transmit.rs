//! Sending: when the doorbell is rung, and how slots come back.

use super::{Bus, Chip, ChipDriver, Offload, TxSide};
use crate::notify;

/// Transmit: [`ChipDriver::next`] → [`ChipDriver::write`] → [`ChipDriver::send`] ...
/// [`ChipDriver::flush`].
impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// How many slots there are.
    pub fn slots(&self) -> u16 {
        self.tx.slots()
    }

    /// Longest frame that fits a slot, in bytes.
    pub fn room(&self) -> usize {
        self.tx.room()
    }

    /// Slots that can be sent now.
    #[inline]
    pub fn free_slots(&self) -> u16 {
        self.tx.free_slots()
    }

    /// Slots under way.
    pub fn under_way(&self) -> u16 {
        self.tx.under_way()
    }

    /// Takes sent slots back; returns how many are free now.
    #[inline]
    pub fn reap(&mut self) -> u16 {
        if self.combine.defers() {
            self.flush_due();
            self.look_for_interrupt();
        }
        let before = self.tx.under_way();
        self.take_sent();
        // While it polls, the driver sees by itself what an interrupt would tell.
        if self.load.polls && self.tx.under_way() < before && self.combine.complete() {
            self.ring();
        }
        self.tx.free_slots()
    }

    #[inline]
    fn take_sent(&mut self) {
        if self.tx.wants_to_ask() {
            self.look_for_sent();
        }
        if let Some(csb) = self.csb.as_ref().filter(|csb| csb.is_on())
            && self.tx.retire_to(csb.host_tdh())
        {
            return;
        }
        self.tx.reap(&mut self.registers);
        if self.tx.wants_head() {
            self.ask_for_head();
        }
    }

    /// An interrupt says that asking pays, or, if no interrupt will come, that there is nothing
    /// else to do.
    fn look_for_sent(&mut self) {
        if self.is_plain() && self.enabled & C::CAUSES.sent != 0 {
            self.look_for_interrupt();
        } else {
            self.tx.note_sent();
        }
    }

    /// Nothing under way will be reported: what netmap's drivers do then is to read the head.
    #[cold]
    pub(super) fn ask_for_head(&mut self) {
        let head = C::head(&mut self.registers);
        if self.registers.failure().is_none() {
            self.tx.retire_to(head);
        }
    }

    /// The next slot to fill; None when all are under way (counted as `full`). Slots are used in
    /// turn.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<u16> {
        self.tx.next()
    }

    /// The slot that [`Self::next`] gives after `ahead` others, of which there are fewer than
    /// [`Self::free_slots`].
    #[inline]
    pub fn slot_ahead(&self, ahead: u16) -> u16 {
        self.tx.slot_ahead(ahead)
    }

    /// Writes `bytes` of the frame from byte `at` on into the buffer of a slot.
    ///
    /// # Panics
    /// When they do not fit [`Self::room`].
    #[inline]
    pub fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        self.tx.write(slot, at, bytes);
    }

    /// What the device shall do with the frames sent from this slot from now on.
    pub fn set_offload(&mut self, slot: u16, offload: Offload) {
        self.tx.set_offload(slot, offload);
    }

    /// Describes the frame of `len` bytes in the next slot, and rings the doorbell unless bursts
    /// have one.
    ///
    /// # Panics
    /// When `len` exceeds [`Self::room`] or `slot` is not [`Self::next`].
    #[inline]
    pub fn send(&mut self, slot: u16, len: u32) {
        self.tx.send(slot, len);
        if !self.rings_by_burst() {
            self.offer(1);
        }
    }

    #[inline]
    fn rings_by_burst(&self) -> bool {
        self.options.batch || self.is_csb_on()
    }

    /// Sends up to `count` free slots whose buffers were filled before, all with `len` bytes;
    /// returns how many.
    #[inline]
    pub fn send_filled(&mut self, count: u32, len: u32) -> u32 {
        let count = count.min(self.tx.free_slots().into());
        for _ in 0..count {
            let Some(slot) = self.tx.next() else { break };
            self.send(slot, len);
        }
        count
    }

    /// The device is told of `frames`, now or by the completion of those before.
    #[inline]
    fn offer(&mut self, frames: u32) {
        let registers = &self.registers;
        if self.combine.offer(frames, || registers.bus().now()) {
            self.ring();
        }
    }

    /// The doorbell: the register, or `guest_tdt`, and the register only if the chip sleeps.
    #[inline]
    pub(super) fn ring(&mut self) {
        if let Some(csb) = &self.csb {
            let asked = notify::csb::send(csb, self.tx.tail().into());
            if csb.is_on() && !asked {
                self.tx.stats_mut().doorbells_saved += 1;
                return;
            }
        }
        if !C::wants_frames(&self.shared, &mut self.tx) {
            self.tx.stats_mut().doorbells_saved += 1;
            return;
        }
        self.tx.stats_mut().doorbells += 1;
        if C::ring(&mut self.registers, &mut self.tx) {
            self.look_for_interrupt();
        }
    }

    /// Ends a burst; returns its frames.
    #[inline]
    pub fn flush(&mut self) -> u32 {
        let count = self.tx.take_pending();
        if count > 0 {
            self.tx.stats_mut().batches += 1;
            if self.rings_by_burst() {
                self.offer(count);
            }
            self.flush_due();
            self.look_for_interrupt();
        }
        count
    }

    /// Frames that were deferred for as long as they may are sent.
    #[inline]
    pub(super) fn flush_due(&mut self) {
        if self.combine.defers() && self.combine.is_due(self.registers.bus().now()) {
            self.ring();
        }
    }

    /// Counts a moment in which the caller had frames and no slot.
    pub fn count_full(&mut self) {
        self.tx.stats_mut().full += 1;
    }
}
