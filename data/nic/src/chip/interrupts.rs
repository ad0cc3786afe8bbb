//! What the common machinery asks of an interrupt block, whichever kind a chip has: one register of
//! causes ([`Irq`]), or vectors of their own.

use super::Host;
use super::irq::{Delays, Edge, Irq};
use super::pci::Way;
use super::state::Fields;

/// An interrupt block: what is pending, and when the guest hears of it. Causes are bits, whose
/// meaning is the chip's.
pub trait Interrupts: Send + Sync {
    /// Something has happened.
    fn post(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge;
    /// As [`Interrupts::post`], for completed transmissions. `delayed`: they asked for delay.
    fn post_transmit(&self, causes: u32, _delayed: bool, delays: Delays, host: &dyn Host) -> Edge {
        self.post(causes, delays, host)
    }
    /// What was held back may be due, since moderation has changed.
    fn remoderate(&self, delays: Delays, host: &dyn Host) -> Edge;
    /// The host's timer has fired, early or late.
    fn timer(&self, delays: Delays, host: &dyn Host) -> Edge;
    /// The guest may have unmasked something by a store to shared memory, which nobody is told of.
    /// Called at each look at a port.
    fn look(&self, _host: &dyn Host) -> Edge {
        Edge::None
    }
    /// The VMM has unmasked INTA#. True: it still stands, and is to be delivered again now.
    fn repeat(&self, host: &dyn Host) -> bool;
    /// The level of INTA#.
    fn level(&self) -> bool;
    /// Raised, held back, delivered.
    fn counts(&self) -> (u64, u64, u64);
    /// From now on at most `rate_max` interrupts per second.
    fn set_rate_max(&self, rate_max: u32);
    /// How interrupts reach the guest from now on.
    fn set_way(&self, way: Way);
    /// Passes its state, but for what the CSB and configuration space say of it.
    fn fields(&self, io: &mut Fields<'_>);
    /// The causes that are enabled, if they are to outlive the process.
    fn enabled(&self) -> u32 {
        0
    }
    /// It goes on from what a process has left: these are enabled, and nothing is pending.
    fn revive(&self, _enabled: u32) {}
    /// It goes on from a state: sets the host's timer, if something waits for it.
    fn resume(&self, host: &dyn Host);
    /// The block as one that a CSB has a say in.
    fn with_csb(&self) -> Option<&Irq> {
        None
    }
    /// Something is enabled and not delivered, or not taken.
    #[cfg(any(test, feature = "fuzz"))]
    fn pending(&self) -> bool;
}

impl Interrupts for Irq {
    #[inline]
    fn post(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        Irq::post(self, causes, delays, host)
    }

    #[inline]
    fn post_transmit(&self, causes: u32, delayed: bool, delays: Delays, host: &dyn Host) -> Edge {
        Irq::post_transmit(self, causes, delayed, delays, host)
    }

    fn remoderate(&self, delays: Delays, host: &dyn Host) -> Edge {
        Irq::remoderate(self, delays, host)
    }

    fn timer(&self, delays: Delays, host: &dyn Host) -> Edge {
        Irq::timer(self, delays, host)
    }

    fn repeat(&self, host: &dyn Host) -> bool {
        Irq::repeat(self, host)
    }

    fn level(&self) -> bool {
        Irq::level(self)
    }

    fn counts(&self) -> (u64, u64, u64) {
        Irq::counts(self)
    }

    fn set_rate_max(&self, rate_max: u32) {
        Irq::set_rate_max(self, rate_max);
    }

    fn set_way(&self, way: Way) {
        self.set_messages(way == Way::Message);
    }

    fn fields(&self, io: &mut Fields<'_>) {
        Irq::fields(self, io);
    }

    fn enabled(&self) -> u32 {
        self.mask()
    }

    fn revive(&self, enabled: u32) {
        self.load(0, enabled);
    }

    fn resume(&self, host: &dyn Host) {
        Irq::resume(self, host);
    }

    fn with_csb(&self) -> Option<&Irq> {
        Some(self)
    }

    #[cfg(any(test, feature = "fuzz"))]
    fn pending(&self) -> bool {
        Irq::pending(self)
    }
}
