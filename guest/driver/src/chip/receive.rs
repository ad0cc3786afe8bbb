//! Receiving: a budget at a time, and when buffers are given back.

use super::{Batch, Bus, Chip, ChipDriver, FormatOf, Frame, RxSide};
use crate::notify;

/// Receive: [`ChipDriver::poll`] → [`ChipDriver::read`] ... → [`ChipDriver::release`].
impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// A batch with room for every descriptor.
    pub fn batch(&self) -> Batch<FormatOf<C>> {
        Batch { frames: Vec::with_capacity(self.options.size.into()) }
    }

    /// Adds received frames, no more than the budget, to a batch until it holds `most`; returns how
    /// many it holds. With [`Interrupts::Always`] nothing is looked at before an interrupt came,
    /// and a dry ring ends the polling.
    pub fn poll(&mut self, batch: &mut Batch<FormatOf<C>>, most: usize) -> usize {
        self.flush_due();
        let before = batch.frames.len();
        if !self.may_poll() {
            return before;
        }
        let most = most.min(before + usize::from(self.options.budget));
        if self.rx.poll(&mut self.registers, batch, most) == 0 && most > before {
            self.complete();
        }
        batch.frames.len()
    }

    /// Is there something to poll?
    #[inline]
    pub fn ready(&mut self) -> bool {
        if !self.may_poll() {
            return false;
        }
        let ready = self.rx.ready(&mut self.registers);
        if !ready {
            self.complete();
        }
        ready
    }

    /// Copies bytes of a frame, from byte `at` on, into `bytes`; returns how many there were.
    #[inline]
    pub fn read(&self, frame: Frame<FormatOf<C>>, at: usize, bytes: &mut [u8]) -> usize {
        self.rx.read(frame, at, bytes)
    }

    /// Gives the batch's buffers back to the device, tells it for every so many, and empties it.
    pub fn release(&mut self, batch: &mut Batch<FormatOf<C>>) {
        self.release_first(batch, batch.frames.len());
    }

    /// Gives the buffers of the first `count` frames back; the other frames move up.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn release_first(&mut self, batch: &mut Batch<FormatOf<C>>, count: usize) {
        let end = self.rx.start_of(&batch.frames[count..]);
        batch.frames.drain(..count);
        let whole = self.options.refill == 0 || self.is_csb_on();
        let most = if whole { u16::MAX } else { self.options.refill };
        let first = self.rx.tail();
        loop {
            let old = self.rx.tail();
            let count = self.rx.refill(most, end);
            if count == 0 {
                break;
            }
            self.untold += usize::from(count);
            self.return_buffers(old);
        }
        if C::TAILS || self.is_csb_on() {
            self.untold = 0;
        } else if self.rx.tail() != first && self.is_worth_telling(first) {
            self.publish_buffers();
        }
    }

    /// A chip that finds out by itself who owns a buffer may have stopped looking, and wait for
    /// more buffers than there were when `first` was the tail. A driver that will enable interrupts
    /// again does not tell it: enabling wakes it as well. A driver that polls does nothing else
    /// that the chip would notice. So it tells the chip when that may have run short, and for every
    /// eighth of the ring (a quarter of a small one): a sender that wants room for many frames
    /// waits for three quarters.
    fn is_worth_telling(&self, first: u16) -> bool {
        let size = usize::from(self.rx.size());
        let many = (size / 8).max(8).min(size / 4 - 1);
        (!self.is_plain() || self.polls()) && (self.untold >= many || self.rx.ran_short(first))
    }

    /// There are buffers that nothing has told the chip of.
    pub(super) fn publish_buffers(&mut self) {
        if std::mem::take(&mut self.untold) > 0 {
            self.rx.stats_mut().doorbells += 1;
            C::give(&mut self.registers, &mut self.rx);
        }
    }

    /// Tells the device of the buffers from `old` on: by its register if it wants that, or by
    /// `guest_rdt`, and then by the register only if the chip asked for that.
    #[inline]
    fn return_buffers(&mut self, old: u16) {
        let (mut tells, mut may_tell) = (C::wants_buffers(&self.shared, &self.rx), C::TAILS);
        if let Some(csb) = &self.csb {
            let (size, tail) = (self.rx.size().into(), self.rx.tail().into());
            let asked = notify::csb::refill(csb, size, old.into(), tail);
            if csb.is_on() {
                (tells, may_tell) = (asked, true);
            }
        }
        if tells {
            self.rx.stats_mut().doorbells += 1;
            C::give(&mut self.registers, &mut self.rx);
        } else if may_tell {
            self.rx.stats_mut().doorbells_saved += 1;
        }
    }

    /// Buffers the device has, as far as we know.
    pub fn outstanding(&self) -> u16 {
        self.rx.outstanding()
    }
}
