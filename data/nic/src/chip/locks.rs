//! What every chip has beside its registers, and how it is locked.
//!
//! Order of locks: the chip's own (its control lock), transmit side, receive side, interrupt block.
//! The data path (`port.rs`) takes the last three, the VMM's side all of them. The host is called
//! only after all of them are released: see [`After`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use vmlan_frame::{Counters, lock_unless};
use vmlan_ram::Map;

use super::csb::{Csb, Placed};
use super::frame_totals::Stats;
use super::held::{Held, Remains};
use super::interrupts::Interrupts;
use super::irq::{Edge, Irq};
use super::pci::{Change, Pci};
use super::port::{ReceiveSide, TransmitSide};
use super::state::{Fields, Parts, StateError, Tag, counter_fields};
use super::{Chip, Config, Fault, Host};
use crate::notify::bell::Bell;

/// What a chip has beside its registers.
pub struct ChipCore<C: Chip> {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) irq: C::Irq,
    pub(crate) counters: Counters,
    pub(crate) stats: Stats,
    pub(crate) tx: Mutex<C::Tx>,
    pub(crate) rx: Mutex<C::Rx>,
    /// The CSB, as CSBAL was last written. Only with both sides' locks.
    csb: Mutex<Placed>,
    /// Threads that want the lock of a side: a busy worker lets them in.
    wanted: AtomicU32,
    /// The worker sleeps until there is something to send.
    pub(crate) tx_bell: Bell,
    /// The worker sleeps until there is room.
    pub(crate) rx_bell: Bell,
    /// Interrupts are let out: a copy of what configuration space says, for those without the lock.
    pub(super) unmasked: AtomicBool,
    /// There are CSBAL and CSBAH.
    pub(super) has_csb: bool,
    /// Kicks asked for in the CSB.
    pub(crate) wishes: AtomicU64,
    /// What outlives the process.
    pub(super) held: OnceLock<Arc<Held>>,
    /// What only the VMM's side touches has changed since it was noted there.
    pub(super) unnoted: AtomicBool,
    /// The interrupts that were noted as enabled.
    pub(super) noted_mask: AtomicU32,
    /// It goes on from what a process has left, and no register was written since. So the first
    /// write may be one that was made already.
    pub(super) revived: AtomicBool,
}

/// What is to be done once no lock is held.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct After {
    pub(crate) edge: Edge,
    pub(crate) causes: u32,
    pub(crate) ring_tx: bool,
    pub(crate) ring_rx: bool,
    /// If INTA# is asserted, say so again.
    pub(crate) repeat: bool,
}

impl After {
    pub(crate) fn merge(&mut self, other: Self) {
        self.edge = self.edge.then(other.edge);
        self.causes |= other.causes;
        self.ring_tx |= other.ring_tx;
        self.ring_rx |= other.ring_rx;
        self.repeat |= other.repeat;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Chip> ChipCore<C> {
    /// As after power-on: nothing on, nothing pending. `irq`: its interrupt block; `tx` and `rx`:
    /// its sides.
    pub(crate) fn new(
        config: Config,
        irq: C::Irq,
        host: Arc<dyn Host>,
        (tx, rx): (C::Tx, C::Rx),
    ) -> Self {
        Self {
            host,
            irq,
            counters: Counters::default(),
            stats: Stats::default(),
            tx: Mutex::new(tx),
            rx: Mutex::new(rx),
            csb: Mutex::default(),
            wanted: AtomicU32::new(0),
            tx_bell: Bell::default(),
            rx_bell: Bell::default(),
            unmasked: AtomicBool::new(true),
            has_csb: config.csb,
            wishes: AtomicU64::new(0),
            held: OnceLock::new(),
            unnoted: AtomicBool::new(false),
            noted_mask: AtomicU32::new(0),
            revived: AtomicBool::new(false),
        }
    }

    /// See [`Config::csb`].
    pub(crate) fn has_csb(&self) -> bool {
        self.has_csb
    }

    /// Configuration space lets interrupts out, or not, and says as what.
    pub(crate) fn let_interrupts(&self, pci: &Pci) {
        self.unmasked.store(pci.may_interrupt(), Ordering::Release);
        self.irq.set_way(pci.way());
    }

    /// The receive side for a worker; `None` while the VMM's side has it or is about to: its thread
    /// may be kept from running, and who has a frame for this port is not to wait for that. (If
    /// somebody has the lock and nobody wants it, it is another worker.)
    pub(super) fn receive_side(&self) -> Option<MutexGuard<'_, C::Rx>> {
        lock_unless(&self.rx, || self.is_being_changed())
    }

    /// The VMM's side has a side's lock or wants it.
    pub(super) fn is_being_changed(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > 0
    }

    /// Runs `change` with both sides' locks: when it returns, and while it runs, none of their DMA
    /// does.
    pub(crate) fn stopped<T>(&self, change: impl FnOnce(&mut C::Tx, &mut C::Rx) -> T) -> T {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let done = {
            let (mut tx, mut rx) = (lock(&self.tx), lock(&self.rx));
            change(&mut tx, &mut rx)
        };
        self.wanted.fetch_sub(1, Ordering::Release);
        done
    }

    /// Stops the transmit side: when this returns, none of its DMA runs.
    pub(crate) fn stop_tx(&self, chip: &C) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        lock(&self.tx).stop(chip);
        self.wanted.fetch_sub(1, Ordering::Release);
    }

    /// Stops the receive side.
    pub(crate) fn stop_rx(&self, chip: &C) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        lock(&self.rx).stop(chip);
        self.wanted.fetch_sub(1, Ordering::Release);
    }

    /// Configuration space has changed, and the gate with it. `after`: what else there is to do.
    pub(crate) fn reconfigured(&self, chip: &C, change: Change, mut after: After) -> After {
        // A level that was kept in comes out now.
        after.repeat = change.let_out;
        if change.stops {
            self.stop_tx(chip);
            self.stop_rx(chip);
        }
        after
    }

    /// The transmit side has something to look at: wakes its worker, if that sleeps.
    pub(crate) fn ring_tx(&self) {
        if self.tx_bell.ring() {
            self.host.doorbell();
        }
    }

    /// The receive side may have room: wakes whoever waits for it.
    pub(crate) fn ring_rx(&self) {
        if self.rx_bell.ring() {
            self.host.doorbell();
        }
    }

    /// Tells the host of an edge of INTA#, unless configuration space keeps it in. Call without
    /// locks.
    pub(crate) fn tell(&self, edge: Edge) {
        match edge {
            Edge::None => {}
            Edge::Messages(vectors) => self.send(vectors),
            Edge::Rise if self.unmasked.load(Ordering::Acquire) => self.raise(),
            Edge::Rise => {}
            Edge::Fall => self.host.lower(),
        }
    }

    fn send(&self, vectors: u32) {
        if !self.unmasked.load(Ordering::Acquire) {
            return;
        }
        for vector in (0..32).filter(|vector| vectors >> vector & 1 != 0) {
            self.counters.output.notifications.add_shared(1);
            self.host.send(vector);
        }
    }

    pub(super) fn raise(&self) {
        self.counters.output.notifications.add_shared(1);
        self.host.raise();
    }

    /// Posts causes and tells the host. Call without locks.
    pub(crate) fn post(&self, chip: &C, causes: u32) {
        self.tell(self.irq.post(causes, chip.delays(), &*self.host));
    }

    /// As [`ChipCore::post`], for completed transmissions. `delayed`: every descriptor that is
    /// reported asked for delay.
    pub(crate) fn post_transmit(&self, chip: &C, causes: u32, delayed: bool) {
        self.tell(self.irq.post_transmit(causes, delayed, chip.delays(), &*self.host));
    }

    /// A moderation register has changed, or what kept interrupts in is gone.
    pub(crate) fn remoderate(&self, chip: &C) {
        self.tell(self.irq.remoderate(chip.delays(), &*self.host));
    }

    /// Tells the host, and rings. Call without locks.
    pub(crate) fn run(&self, chip: &C, after: After) {
        self.tell(after.edge);
        if after.causes != 0 {
            self.post(chip, after.causes);
        }
        if after.repeat {
            self.repeat();
        }
        if after.ring_tx {
            self.ring_tx();
        }
        if after.ring_rx {
            self.ring_rx();
        }
    }

    /// INTA#, if it is still asserted, within the host's floor.
    pub(super) fn repeat(&self) {
        if self.unmasked.load(Ordering::Acquire) && self.irq.repeat(&*self.host) {
            self.raise();
        }
    }

    /// Replaces the memory map, once no frame is lent or being written. Returns the old ones.
    pub(super) fn set_map(&self, chip: &C, map: Arc<Map>) -> (Arc<Map>, Arc<Map>) {
        self.stopped(|tx, rx| {
            let old = tx.set_map(Arc::clone(&map));
            let same = rx.set_map(map);
            self.replace_csb(chip, tx, rx);
            (old, same)
        })
    }

    /// CSBAL was written: the CSB is at `address` from now on; 0: there is none.
    pub(crate) fn place_csb(&self, chip: &C, address: u64) {
        self.stopped(|tx, rx| {
            let before = std::mem::replace(&mut *lock(&self.csb), Placed { address, fault: None });
            if self.may_repeat() && before.address == address {
                // What the guest has published there since need not be doubted.
                self.replace_csb(chip, tx, rx);
            } else {
                let csb = self.find_csb(tx);
                tx.place_csb(chip, csb.clone());
                rx.place_csb(chip, csb);
                self.note_csb(address);
            }
            if lock(&self.csb).fault.is_some() {
                self.counters.faults.add_shared(1);
            }
        });
        // What the old CSB kept in may come out.
        self.remoderate(chip);
        // Workers that sleep state their wishes in the new one.
        self.ring_tx();
        self.ring_rx();
    }

    /// As after power-on: there is no CSB. With both sides' locks.
    pub(crate) fn drop_csb(&self, chip: &C, tx: &mut C::Tx, rx: &mut C::Rx) {
        *lock(&self.csb) = Placed::default();
        self.replace_csb(chip, tx, rx);
        self.note_csb(0);
    }

    /// The CSB was placed there, and has been found or not. Workers are kept out.
    fn note_csb(&self, address: u64) {
        let csb = self.irq.with_csb().and_then(Irq::csb_now);
        let by_message = csb.is_some_and(|csb| csb.by_message());
        self.held.get().into_iter().for_each(|held| held.set_csb(address, by_message));
    }

    /// The CSB of a chip that goes on from what a process has left, whose sides do already. The
    /// heads are told there again, in case it did not come to that.
    pub(super) fn revive_csb(
        &self,
        chip: &C,
        (tx, rx): (&mut C::Tx, &mut C::Rx),
        remains: &Remains<'_>,
    ) -> Result<(), StateError> {
        let (address, by_message) = remains.csb();
        if address != 0 && !self.has_csb {
            return Err(StateError::Lost("it has no CSB"));
        }
        *lock(&self.csb) = Placed { address, fault: None };
        self.replace_csb(chip, tx, rx);
        let csb = self.irq.with_csb().and_then(Irq::csb_now);
        csb.into_iter().for_each(|csb| csb.placed_as(by_message));
        self.note_csb(address);
        Ok(())
    }

    /// See [`Self::revived`].
    #[inline]
    pub(crate) fn may_repeat(&self) -> bool {
        self.revived.load(Ordering::Relaxed)
    }

    /// The map has been replaced: the CSB is now elsewhere, gone, or back.
    fn replace_csb(&self, chip: &C, tx: &mut C::Tx, rx: &mut C::Rx) {
        let csb = self.find_csb(tx);
        let gate = chip.gate();
        tx.replace_csb(chip, csb.clone(), gate.dma && gate.transmit);
        rx.replace_csb(chip, csb, gate.dma && gate.receive);
    }

    /// Looks for the CSB where it was placed, in the map that both sides have now, and tells the
    /// interrupt block.
    fn find_csb(&self, tx: &C::Tx) -> Option<Arc<Csb>> {
        let mut placed = lock(&self.csb);
        let address = placed.address;
        let irq = self.irq.with_csb()?;
        let csb = (address != 0).then(|| Csb::find(tx.map(), address, irq.csb_on()));
        let fault = csb.as_ref().and_then(|found| found.as_ref().err().copied());
        placed.fault = fault.map(|fault| Fault::BadCsb { address, fault });
        let csb = csb.and_then(Result::ok);
        irq.set_csb(csb.clone());
        csb
    }

    /// What is wrong with the CSB's place. Workers ask for it. They do not wait for a thread that
    /// looks for it in the guest's memory, which may be slow.
    pub(super) fn csb_fault(&self) -> Option<Fault> {
        self.csb.try_lock().ok().and_then(|placed| placed.fault)
    }

    /// What the CSB was good for.
    pub(super) fn csb_state(&self) -> Option<vmlan_frame::CsbCounters> {
        let irq = self.irq.with_csb().filter(|_| self.has_csb)?;
        let (on, suppressed, guest_asked) = irq.csb_state();
        let host_asked = self.wishes.load(Ordering::Relaxed);
        Some(vmlan_frame::CsbCounters { on, suppressed, guest_asked, host_asked })
    }
}

/// The state of what all chips have.
impl<C: Chip> ChipCore<C> {
    /// Passes its parts, with both sides' locks. What configuration space says is known already.
    pub(super) fn fields(&self, chip: &C, (tx, rx): (&mut C::Tx, &mut C::Rx), parts: &mut Parts) {
        #[rustfmt::skip]
        let Self {
            host: _, irq, counters, stats, tx: _, rx: _, csb, wanted: _, tx_bell, rx_bell,
            unmasked: _, has_csb: _, wishes, held: _, unnoted: _, noted_mask: _, revived: _,
        } = self;
        parts.part(Tag(*b"STAT"), 1, |io| {
            stats.fields(io);
            counter_fields(counters, io);
            io.atomic_u64(wishes);
        });
        parts.part(Tag(*b"IRQ "), 1, |io| irq.fields(io));
        parts.part(Tag(*b"TX  "), <C::Tx as TransmitSide<C>>::STATE, |io| tx.fields(chip, io));
        parts.part(Tag(*b"RX  "), 1, |io| rx.fields(chip, io));
        parts.part(Tag(*b"WAIT"), 1, |io| [tx_bell, rx_bell].iter().for_each(|b| b.fields(io)));
        let placed = &mut *lock(csb);
        parts.part(Tag(*b"CSB "), 1, |io| self.csb_fields(placed, (tx, rx), io));
    }

    /// Where the CSB is, and what was found there. The guest's words in it are not touched.
    fn csb_fields(
        &self,
        Placed { address, fault }: &mut Placed,
        (tx, rx): (&mut C::Tx, &mut C::Rx),
        io: &mut Fields<'_>,
    ) {
        let irq = self.irq.with_csb();
        let csb = irq.and_then(Irq::csb_now);
        let (mut there, mut on) = (csb.is_some(), irq.is_some_and(|irq| irq.csb_state().0));
        let mut by_message = csb.is_some_and(|csb| csb.by_message());
        io.u64(address);
        [&mut there, &mut on, &mut by_message].into_iter().for_each(|flag| io.flag(flag));
        io.check((self.has_csb || *address == 0) && (*address != 0 || !there));
        let Some(irq) = irq.filter(|_| io.restores()) else { return };
        io.check(*address != 0 || !irq.is_shut());
        let found = (*address != 0).then(|| Csb::find(tx.map(), *address, irq.csb_on()));
        let missing = found.as_ref().and_then(|found| found.as_ref().err());
        *fault = missing.map(|fault| Fault::BadCsb { address: *address, fault: *fault });
        let csb = found.and_then(Result::ok).filter(|_| there);
        csb.iter().for_each(|csb| csb.placed_as(by_message));
        irq.set_csb(csb.clone());
        irq.csb_on().store(on, Ordering::Relaxed);
        tx.adopt_csb(csb.clone());
        rx.adopt_csb(csb);
        self.note_csb(*address);
    }
}
