//! For tests that got stuck: what the driver knows, in one line, and what it can do to wake the
//! others up.

use super::{Bus, Chip, ChipDriver, Irq, RxSide, TxSide};

/// What wakes somebody up, harmlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poke {
    /// The doorbell for frames.
    Frames,
    /// The one for buffers.
    Buffers,
    /// The end of an interrupt: a level that stands interrupts again.
    Unmask,
    /// The mask, written again.
    Mask,
}

impl Poke {
    /// All of them, the least likely remedy first.
    pub const ALL: [Self; 4] = [Self::Unmask, Self::Mask, Self::Buffers, Self::Frames];
}

impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// What the driver waits for, where its rings stand, and the causes that the chip has latched
    /// (which it asks for).
    pub fn explain(&mut self) -> String {
        let causes = C::causes(self);
        let ready = self.rx.ready(&mut self.registers);
        let (tx, rx, combine, load) = (&self.tx, &self.rx, &self.combine, &self.load);
        let half_done = tx.is_half_done();
        format!(
            "enabled {:#x} of causes {causes:#x}, {load:?}, {combine:?}, untold buffers {}, {:?}; \
             tx: {} of {} slots under way, tail {}, half done {half_done}, {} doorbells; rx: next \
             {}, tail {}, {} outstanding, frame there {ready}, {} done out of order, {} frames; \
             bus: {:?}",
            self.enabled,
            self.untold,
            self.interrupts,
            tx.under_way(),
            tx.slots(),
            tx.tail(),
            tx.stats().doorbells,
            rx.start_of(&[]),
            rx.tail(),
            rx.outstanding(),
            rx.out_of_order(),
            rx.stats().frames,
            self.registers.failure(),
        )
    }

    /// Wakes somebody up who should be awake.
    pub fn poke(&mut self, poke: Poke) {
        match poke {
            Poke::Frames => _ = C::ring(&mut self.registers, &mut self.tx),
            Poke::Buffers => C::give(&mut self.registers, &mut self.rx),
            Poke::Unmask if self.options.irq == Irq::Intx => self.registers.with(Bus::unmask),
            Poke::Unmask => {}
            Poke::Mask => C::enable(self, self.enabled, self.enabled),
        }
    }
}
