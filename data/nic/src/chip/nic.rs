//! What a chip implements, and what embedders get.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::{Batch, Counters, NicCounters, Offloads, RegisterCount, Sink};
use vmlan_ram::{Map, Window};

use super::interrupts::Interrupts;
use super::irq::Delays;
use super::port::{self, Gate, ReceiveSide, TransmitSide};
use super::{ChipCore, Fault, Layout, Space, StateError};

/// The PCI function and the cable: what the VMM sees and does.
pub trait PciFunction: Send + Sync {
    /// What it looks like on its bus.
    fn layout(&self) -> &'static Layout;
    /// Reads registers. What lies outside its space reads as the chip has it (zeros or ones).
    fn read(&self, space: Space, offset: u64, data: &mut [u8]);
    /// Writes registers.
    fn write(&self, space: Space, offset: u64, data: &[u8]);
    /// PCI reset: everything as after power-on.
    fn reset(&self);
    /// A new machine takes the place of the old: a reset, and non-volatile memory as it left the
    /// factory. What the old guest wrote there is not for the next one's eyes, and a wrong checksum
    /// would keep its driver away.
    fn renew(&self);
    /// Plugs the cable in, or pulls it out.
    fn set_link(&self, up: bool);
    /// The driver need not touch a register when it gives receive buffers back: workers ask, see
    /// [`vmlan_frame::Port::posts_silently`].
    fn posts_silently(&self) -> bool;

    /// All of the chip's state, for a successor: see [`super::state`].
    ///
    /// The chip must be quiet, and stay so: no thread is in another call of it, so that what it
    /// told the host has been done (`Host::raise`, `Host::send`); no frame is lent, which none is
    /// when [`Nic::pull`] has returned; and none of these calls comes later. Frames that were held
    /// are in the ring, and in the state.
    fn save(&self) -> Vec<u8>;
    /// Goes on from a state that [`Self::save`] made, so that no guest can tell. On a chip of the
    /// same model that was made alike ([`super::Made`]), before it is used, and with the guest's
    /// memory already there ([`Nic::set_map`]).
    ///
    /// Neither the guest nor the host is told anything but [`super::Host::set_timer`], whose clock
    /// must be the one of the state. Whoever was waiting must look: workers at the rings, as after
    /// a doorbell; the VMM's side at the cable ([`Self::set_link`]), whose state here is the one
    /// that the guest knows. How often registers were touched is counted from 0.
    ///
    /// # Errors
    /// The state is none, or does not fit. The chip is as it was.
    fn restore(&self, state: &[u8]) -> Result<(), StateError>;

    /// From now on, what of the chip is to outlive its process goes to `memory`, of
    /// [`super::held::HELD`] zeros, whenever it changes. Call it before the chip is used. False:
    /// nothing of this model outlives it.
    ///
    /// To put other zeros there, do so and then [`Self::renew`] it.
    fn hold(&self, memory: Window) -> bool;
    /// Notes what the last access has changed, before it is answered. The first call says that all
    /// is there. Cheap, and does nothing where nobody holds it.
    fn note(&self);
    /// Goes on from what a process has left that died without [`Self::save`]. Each access that it
    /// has not noted is to be made again, in their order; and every interrupt is to be raised once,
    /// whatever is masked. Frames that were under way may move once more. Otherwise as
    /// [`Self::restore`]; statistics begin at 0. `mapped`: registers that a guest has mapped are as
    /// it has them, in their place.
    ///
    /// # Errors
    /// There is nothing, or it does not fit. The chip is as it was; rings may be changed.
    fn revive(&self, remains: &[u8], mapped: bool) -> Result<(), StateError>;
}

/// What only one chip knows: its registers, and what its descriptors mean (by the types of its two
/// sides). The rest of a [`Nic`] is written once, generic over this, and compiled for each chip.
pub trait Chip: PciFunction + Sized {
    /// Its transmit side.
    type Tx: TransmitSide<Self>;
    /// Its receive side.
    type Rx: ReceiveSide<Self>;
    /// Its interrupt block.
    type Irq: Interrupts;

    /// What it shares with the others.
    fn core(&self) -> &ChipCore<Self>;
    /// What lets frames pass now.
    fn gate(&self) -> Gate;
    /// Windows of moderation, from the registers as they are now, each read once.
    fn delays(&self) -> Delays;
    /// Statistics by their datasheet names, since the chip was made.
    fn statistics(&self) -> Vec<(&'static str, u64)>;
    /// Registers that were touched.
    fn accesses(&self) -> Vec<RegisterCount>;
    /// What its receiver takes unfinished: nothing, on most.
    fn takes(&self) -> Offloads {
        Offloads::NONE
    }
    /// The chip's own timer may be due ([`Nic::timer`] has been called).
    fn tick(&self) {}
    /// See [`Nic::memo`].
    fn memo_now(&self) -> u64 {
        0
    }
    /// See [`Nic::lost`].
    fn tell_lost(&self, _memo: u64) {}
}

/// An emulated NIC, as its embedder sees it. It has locks of its own. The first methods, and those
/// of [`PciFunction`], are called by the VMM's side; the others by workers, as
/// [`vmlan_frame::Port`] says.
pub trait Nic: PciFunction {
    /// Replaces the memory map, once no frame is lent or being written. Returns the old one, which
    /// nobody else holds: drop it without locks, since unmapping takes time.
    #[must_use]
    fn set_map(&self, map: Arc<Map>) -> Arc<Map>;
    /// From now on at most `rate_max` interrupts per second, whatever the guest asks for; 0: as the
    /// guest asks.
    fn set_irq_rate_max(&self, rate_max: u32);
    /// The time that `Host::set_timer` asked for has come.
    fn timer(&self);
    /// The VMM has unmasked INTA#: `Host::raise` again if it is still asserted, within the host's
    /// floor.
    fn reassert(&self);
    /// The level of INTA#, as the VMM sees it: for those that unmask a level interrupt.
    fn is_asserted(&self) -> bool;
    /// Why the chip stands still, until the guest resets it or moves its rings. Cheap; `None` while
    /// frames move.
    fn fault(&self) -> Option<Fault>;

    /// Lends up to `limit` frames to `sink`, in `batch`, whose storage is the caller's (see
    /// `Port::pull`). In loopback they go to the chip's own receive side instead.
    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize;
    /// Delivers the frames of `batch` that `list` names, in that order; returns how many were dealt
    /// with (see `Port::push`).
    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize;
    /// What its receiver takes unfinished.
    fn offloads(&self) -> Offloads;
    /// Frames that could be received now, roughly.
    fn room(&self) -> usize;
    /// Its driver has set it up to receive, link or not.
    fn is_set_up(&self) -> bool;
    /// The same with the link up: its driver is ready.
    fn is_up(&self) -> bool;
    /// Asks to be told of the next doorbell (see `Port::arm`). True if frames wait already.
    #[must_use]
    fn arm(&self) -> bool;
    /// The VMM's side has its locks or wants them (see `Port::is_being_changed`).
    fn is_being_changed(&self) -> bool;
    /// The worker looks by itself.
    fn disarm(&self);
    /// Asks to be told when there may be room (see `Port::want_room`). True if there is already.
    #[must_use]
    fn want_room(&self) -> bool;
    /// Its counters.
    fn counters(&self) -> &Counters;
    /// What it counts beside frames.
    fn device(&self) -> NicCounters;

    /// What [`Nic::lost`] of another one is to be told if this one dies without [`Nic::save`]. It
    /// changes with writes to registers only. Cheap.
    fn memo(&self) -> u64;
    /// A chip that was reset takes the place of one that has died, and its driver does not know.
    /// Tells it by what its model has for chips that fail, if anything, each time that this is
    /// called; the interrupts for it are the embedder's to raise, whatever is masked. `memo` is
    /// what the other one said last: nobody vouches for it.
    fn lost(&self, memo: u64);
}

impl<C: Chip> Nic for C {
    fn memo(&self) -> u64 {
        self.memo_now()
    }

    fn lost(&self, memo: u64) {
        self.tell_lost(memo);
    }

    fn set_map(&self, map: Arc<Map>) -> Arc<Map> {
        let core = self.core();
        let (old, same) = core.set_map(self, map);
        drop(same);
        // Rings that lay nowhere may be somewhere now.
        core.ring_tx();
        core.ring_rx();
        old
    }

    fn set_irq_rate_max(&self, rate_max: u32) {
        self.core().irq.set_rate_max(rate_max);
        self.timer();
    }

    fn timer(&self) {
        self.tick();
        let core = self.core();
        core.tell(core.irq.timer(self.delays(), &*core.host));
    }

    fn reassert(&self) {
        self.core().repeat();
    }

    fn is_asserted(&self) -> bool {
        let core = self.core();
        core.irq.level() && core.unmasked.load(Ordering::Acquire)
    }

    fn fault(&self) -> Option<Fault> {
        port::fault(self)
    }

    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        port::pull(self, batch, limit, sink)
    }

    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        port::push(self, batch, list)
    }

    fn offloads(&self) -> Offloads {
        self.takes()
    }

    fn room(&self) -> usize {
        port::room(self)
    }

    fn is_set_up(&self) -> bool {
        port::is_set_up(self)
    }

    fn is_up(&self) -> bool {
        port::is_up(self)
    }

    fn arm(&self) -> bool {
        port::arm(self)
    }

    fn is_being_changed(&self) -> bool {
        self.core().is_being_changed()
    }

    fn disarm(&self) {
        self.core().tx_bell.disarm();
    }

    fn want_room(&self) -> bool {
        port::want_room(self)
    }

    fn counters(&self) -> &Counters {
        &self.core().counters
    }

    fn device(&self) -> NicCounters {
        let core = self.core();
        let (raised, held, delivered) = core.irq.counts();
        let csb = core.csb_state();
        let (registers, statistics) = (self.accesses(), self.statistics());
        NicCounters { registers, raised, held, delivered, statistics, csb }
    }
}
