//! What the drivers of NICs with registers share: the whole driver but for what only one chip knows
//! ([`Chip`]: its registers, its descriptors, how it is started). A driver has the plain behaviour
//! of a kernel's unless [`Options`] say otherwise: one doorbell for each frame, each completion
//! reported, one interrupt for each unless the chip moderates them, and a receiver that polls from
//! an interrupt on until the ring is dry.
//!
//! What a guest can do against the price of leaving it, from the paper (sections 3 and 4): send
//! combining ([`Options::combine`]), lazy completion, polling, and the shared status block
//! ([`Options::csb`]), which does without registers and interrupts while both sides are awake.
//!
//! It reaches the chip by a [`Bus`]: over vfio-user ([`vmlan_transport::vfio_user::bus::VfioBus`]),
//! inside a VM ([`vmlan_transport::pci::PciBus`]), or in the same process for tests. Register
//! accesses are counted by name, for each is a trip out of the guest. Once the bus fails, registers
//! read as all ones and [`ChipDriver::wait`] answers [`Wake::Disconnected`];
//! [`ChipDriver::restart`] goes on with another chip.

mod combine;
mod csb;
mod diagnose;
mod error;
mod interrupt;
mod offload;
pub(crate) mod registers;
mod rx;
pub(crate) mod start;
mod traits;
mod tx;

use std::io;
use std::sync::Arc;

use crate::stats::QueueStats;
pub use crate::wait::{Interest, Prepared, Wake};
use crate::{notify, realtek, rtl8139};
use combine::Combine;
use csb::Csb;
pub use diagnose::Poke;
pub use error::ChipError;
pub use interrupt::Causes;
pub use offload::{Offload, Segmentation};
use vmlan_transport::memory::{Pool, Ram};
pub use vmlan_transport::{
    Bus, BusError, Completion, Conflict, Interrupts, Irq, Model, Options, Reception, Watched, Width,
};

pub use registers::{Access, Register, Registers};
pub use rx::{Batch, Frame, Report, RxFormat, RxRing};
pub use traits::{Chip, RxSide, TxSide};
pub(crate) use tx::stride;
pub use tx::{Part, TxFormat, TxRing};

/// Counters of the interrupt path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptStats {
    /// Interrupts the chip sent.
    pub sent: u64,
    /// Of these, those whose cause register had nothing we wait for.
    pub spurious: u64,
    /// Times a frame lay in the ring for 100 ms, enabled, and no interrupt came.
    pub missed: u64,
}

/// The format of a chip's received frames.
type FormatOf<C> = <<C as Chip>::Rx as RxSide<<C as Chip>::Register>>::Format;

/// A chip and its rings.
#[derive(Debug)]
pub struct ChipDriver<C: Chip, B: Bus> {
    pub(crate) options: Options,
    pub(crate) registers: Registers<C::Register, B>,
    pub(crate) tx: C::Tx,
    pub(crate) rx: C::Rx,
    combine: Combine,
    csb: Option<Csb>,
    /// Causes that may interrupt; 0 while the driver polls.
    enabled: u32,
    load: interrupt::Load,
    /// An interrupt said that frames were sent, and whoever waits for that does not know.
    sent: bool,
    /// Buffers given back since the chip was last told, where it need not be.
    untold: usize,
    mac: [u8; 6],
    interrupts: InterruptStats,
}

/// RAM for both rings, their buffers, and the CSB.
///
/// # Errors
/// Whatever making the memfd reports.
pub fn make_ram(options: &Options) -> io::Result<Arc<Ram>> {
    let (low, high) = ram_bytes(options);
    Ram::new(low, high)
}

/// The bytes that the driver takes, for rings and for buffers.
#[must_use]
pub fn ram_bytes(options: &Options) -> (usize, usize) {
    match options.model {
        Model::E1000 => ram_bytes_of::<crate::e1000::Intel>(options),
        Model::R8169 => ram_bytes_of::<realtek::Rings<realtek::Gigabit>>(options),
        Model::Rtl8139Plus => ram_bytes_of::<realtek::Rings<realtek::Plus>>(options),
        Model::Rtl8139Classic => ram_bytes_of::<rtl8139::Classic>(options),
    }
}

fn ram_bytes_of<C: Chip>(options: &Options) -> (usize, usize) {
    let (tx, rx) = (C::Tx::ram_bytes(options), C::Rx::ram_bytes(options));
    let csb = if options.csb { csb::RAM } else { 0 };
    (tx::ALIGN + tx.0 + rx.0 + csb, tx.1 + rx.1)
}

impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// Finds the chip on the bus, resets it and starts it, with rings and buffers in `ram` (see
    /// [`make_ram`]), which the device must be able to reach.
    ///
    /// # Errors
    /// See [`ChipError`].
    ///
    /// # Panics
    /// When `ram` is too small.
    pub fn new(options: Options, ram: &Arc<Ram>, bus: B) -> Result<Self, ChipError> {
        let options = Options { model: C::MODEL, ..options };
        options.check()?;
        // Some chips take a ring at address 0 for none.
        let mut low = Pool::new(tx::ALIGN, ram.buffers());
        let mut high = Pool::new(ram.buffers(), ram.size());
        let mut nic = Self {
            registers: Registers::new(bus),
            tx: C::Tx::new(ram, &mut low, &mut high, &options),
            rx: C::Rx::new(ram, &mut low, &mut high, &options),
            combine: Combine::new(&options),
            csb: options.csb.then(|| Csb::new(ram, &mut low)),
            enabled: 0,
            load: interrupt::Load::default(),
            sent: false,
            untold: 0,
            mac: [0; 6],
            interrupts: InterruptStats::default(),
            options,
        };
        nic.set_up()?;
        Ok(nic)
    }

    /// Goes on with another chip: both rings are empty again, what is in the transmit buffers
    /// stays, and so does the address.
    ///
    /// # Errors
    /// See [`ChipError`].
    pub fn restart(&mut self, bus: B) -> Result<(), ChipError> {
        let mac = self.mac;
        self.registers.replace(bus);
        self.tx.reset();
        self.rx.reset();
        self.combine.reset();
        self.load = interrupt::Load::default();
        self.sent = false;
        self.set_up()?;
        self.set_mac(mac);
        Ok(())
    }

    /// What the driver was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The address in force: the chip's own, unless [`Self::set_mac`] gave another.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Receives frames for another address.
    pub fn set_mac(&mut self, mac: [u8; 6]) {
        C::write_mac(&mut self.registers, mac);
        self.mac = mac;
    }

    /// The registers, their counts and the bus.
    #[must_use]
    pub fn registers(&self) -> &Registers<C::Register, B> {
        &self.registers
    }

    /// The same, to touch registers beside the driver.
    pub fn registers_mut(&mut self) -> &mut Registers<C::Register, B> {
        &mut self.registers
    }

    /// Counters of the interrupt path.
    #[must_use]
    pub fn interrupt_stats(&self) -> InterruptStats {
        self.interrupts
    }

    /// Counters of the transmit side; interrupts are counted on the receive side.
    #[must_use]
    pub fn tx_stats(&self) -> QueueStats {
        *self.tx.stats()
    }

    /// Counters of the receive side.
    #[must_use]
    pub fn rx_stats(&self) -> QueueStats {
        QueueStats { interrupts: self.interrupts.sent, ..*self.rx.stats() }
    }

    /// Were all descriptors written back in order, and all frames of a form that the manual allows?
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.tx.out_of_order() == 0 && self.rx.out_of_order() == 0 && self.rx.stats().malformed == 0
    }

    /// Does the chip take its indexes from the shared status block?
    #[inline]
    #[must_use]
    pub fn is_csb_on(&self) -> bool {
        self.csb.as_ref().is_some_and(Csb::is_on)
    }

    /// Is the device there?
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.registers.failure().is_none() && self.registers.bus().is_connected()
    }
}

/// Transmit: [`ChipDriver::next`] → [`ChipDriver::write`] → [`ChipDriver::send`] ...
/// [`ChipDriver::flush`].
impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.tx.slots()
    }

    /// Longest frame that fits a slot, in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.tx.room()
    }

    /// Slots that can be sent now.
    #[inline]
    #[must_use]
    pub fn free_slots(&self) -> u16 {
        self.tx.free_slots()
    }

    /// Slots under way.
    #[must_use]
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

    /// An interrupt says that asking pays, or, if it is none to come, that there is nothing else to
    /// do.
    fn look_for_sent(&mut self) {
        if self.is_plain() && self.enabled & C::CAUSES.sent != 0 {
            self.look_for_interrupt();
        } else {
            self.tx.note_sent();
        }
    }

    /// Nothing under way will be reported: what netmap's drivers do then is to read the head.
    #[cold]
    fn ask_for_head(&mut self) {
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
    #[must_use]
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
    fn ring(&mut self) {
        if let Some(csb) = &self.csb {
            let asked = notify::csb::send(csb, self.tx.tail().into());
            if csb.is_on() && !asked {
                self.tx.stats_mut().doorbells_saved += 1;
                return;
            }
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
    fn flush_due(&mut self) {
        if self.combine.defers() && self.combine.is_due(self.registers.bus().now()) {
            self.ring();
        }
    }

    /// Counts a moment in which the caller had frames and no slot.
    pub fn count_full(&mut self) {
        self.tx.stats_mut().full += 1;
    }
}

/// Receive: [`ChipDriver::poll`] → [`ChipDriver::read`] ... → [`ChipDriver::release`].
impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// A batch with room for every descriptor.
    #[must_use]
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

    /// The same for the first `count` frames only; the others move up.
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
            self.return_buffers(old, C::TAILS);
        }
        if C::TAILS || self.is_csb_on() {
            self.untold = 0;
        } else if self.rx.tail() != first && self.is_worth_telling(first) {
            self.tell_of_buffers();
        }
    }

    /// A chip that sees by itself whose a buffer is may have stopped looking, and wait for more
    /// than there were when `first` was the tail. A driver that is to enable interrupts again does
    /// not tell it: that wakes it as well. One that polls does nothing else that the chip would
    /// hear, so it tells when the chip may have run short, and for every eighth of the ring (a
    /// quarter of a small one): who wants room for many frames waits for three quarters.
    fn is_worth_telling(&self, first: u16) -> bool {
        let size = usize::from(self.rx.size());
        let many = (size / 8).max(8).min(size / 4 - 1);
        (!self.is_plain() || self.polls()) && (self.untold >= many || self.rx.ran_short(first))
    }

    /// There are buffers that nothing has told the chip of.
    fn tell_of_buffers(&mut self) {
        if std::mem::take(&mut self.untold) > 0 {
            self.rx.stats_mut().doorbells += 1;
            C::give(&mut self.registers, self.rx.tail());
        }
    }

    /// Tells the device of the buffers from `old` on: by its register, or by `guest_rdt`, and then
    /// by the register only if the chip asked for that.
    #[inline]
    fn return_buffers(&mut self, old: u16, tells: bool) {
        let (tail, mut tells) = (self.rx.tail(), tells);
        if let Some(csb) = &self.csb {
            let size = self.rx.size().into();
            let asked = notify::csb::refill(csb, size, old.into(), tail.into());
            if csb.is_on() {
                tells = asked;
                self.rx.stats_mut().doorbells_saved += u64::from(!asked);
            }
        }
        if tells {
            self.rx.stats_mut().doorbells += 1;
            C::give(&mut self.registers, tail);
        }
    }

    /// Buffers the device has, as far as we know.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.rx.outstanding()
    }
}

/// The chip must not look at a page that is no longer ours.
impl<C: Chip, B: Bus> Drop for ChipDriver<C, B> {
    fn drop(&mut self) {
        self.release_csb();
    }
}
