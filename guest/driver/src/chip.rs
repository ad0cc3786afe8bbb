//! What the drivers of NICs with registers share: the whole driver except what only one chip knows
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
//! accesses are counted by name, since each is a trip out of the guest. Once the bus fails,
//! registers read as all ones and [`ChipDriver::wait`] answers [`Wake::Disconnected`];
//! [`ChipDriver::restart`] goes on with another chip.

mod csb;
mod debug_dump;
mod error;
mod interrupt;
mod offload;
mod receive;
pub(crate) mod registers;
mod rx;
mod send_combining;
pub(crate) mod start;
mod traits;
mod transmit;
mod tx;

use std::sync::Arc;

use crate::stats::QueueStats;
pub(crate) use crate::wait::{Interest, Prepared, Wake};
use csb::Csb;
pub use debug_dump::Poke;
pub use error::ChipError;
pub use offload::{Offload, Segmentation};
use send_combining::Combine;
use vmlan_transport::memory::{Pool, Ram};
pub(crate) use vmlan_transport::{
    Bus, Completion, Interrupts, Irq, Model, Options, Reception, Width,
};

pub use registers::{Access, Register, Registers};
pub use rx::{Batch, Frame, Report, RxFormat, RxRing};
pub use traits::{Causes, Chip, RxSide, Shared, TxSide};
pub(crate) use tx::{ALIGN, stride};
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
    pub(crate) shared: C::Shared,
    combine: Combine,
    csb: Option<Csb>,
    /// Causes that may interrupt; 0 while the driver polls.
    enabled: u32,
    load: interrupt::Load,
    /// An interrupt said that frames were sent; the thread that waits for that does not know yet.
    sent: bool,
    /// Buffers given back since the chip was last told, where it need not be.
    untold: usize,
    mac: [u8; 6],
    interrupts: InterruptStats,
}

/// The bytes that the driver of a chip takes, for rings and for buffers.
pub(crate) fn ram_bytes<C: Chip>(options: &Options) -> (usize, usize) {
    let (tx, rx) = (C::Tx::ram_bytes(options), C::Rx::ram_bytes(options));
    let csb = if options.csb { csb::RAM } else { 0 };
    (ALIGN + C::Shared::ram_bytes() + tx.0 + rx.0 + csb, tx.1 + rx.1)
}

impl<C: Chip, B: Bus> ChipDriver<C, B> {
    /// Finds the chip on the bus, resets it and starts it, with rings and buffers in `ram` (see
    /// [`crate::nic::make_ram`]), which the device must be able to reach.
    ///
    /// # Panics
    /// When `ram` is too small.
    pub fn new(options: Options, ram: &Arc<Ram>, bus: B) -> Result<Self, ChipError> {
        let options = Options { model: C::MODEL, ..options };
        options.check()?;
        // Some chips take address 0 to mean that there is no ring.
        let mut low = Pool::new(ALIGN, ram.buffers());
        let mut high = Pool::new(ram.buffers(), ram.size());
        let mut nic = Self {
            registers: Registers::new(bus),
            shared: C::Shared::new(ram, &mut low, &options),
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
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The MAC address in force: the chip's own, unless [`Self::set_mac`] gave another.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Receives frames for another address.
    pub fn set_mac(&mut self, mac: [u8; 6]) {
        C::write_mac(&mut self.registers, mac);
        self.mac = mac;
    }

    /// The registers, their counts and the bus.
    pub fn registers(&self) -> &Registers<C::Register, B> {
        &self.registers
    }

    /// The registers, for programs that access some beside the driver.
    pub fn registers_mut(&mut self) -> &mut Registers<C::Register, B> {
        &mut self.registers
    }

    /// Counters of the interrupt path.
    pub fn interrupt_stats(&self) -> InterruptStats {
        self.interrupts
    }

    /// Counters of the transmit side; interrupts are counted on the receive side.
    pub fn tx_stats(&self) -> QueueStats {
        *self.tx.stats()
    }

    /// Counters of the receive side.
    pub fn rx_stats(&self) -> QueueStats {
        QueueStats { interrupts: self.interrupts.sent, ..*self.rx.stats() }
    }

    /// Were all descriptors written back in order, and did all frames have a form that the manual
    /// allows?
    pub fn is_sound(&self) -> bool {
        self.tx.out_of_order() == 0
            && self.rx.out_of_order() == 0
            && self.rx.stats().malformed == 0
            && self.shared.is_sound()
    }

    /// Does the chip take its indexes from the shared status block?
    #[inline]
    pub fn is_csb_on(&self) -> bool {
        self.csb.as_ref().is_some_and(Csb::is_on)
    }

    /// Is the device there?
    pub fn is_connected(&self) -> bool {
        self.registers.failure().is_none() && self.registers.bus().is_connected()
    }
}

/// The chip must not look at a page that is no longer ours.
impl<C: Chip, B: Bus> Drop for ChipDriver<C, B> {
    fn drop(&mut self) {
        self.release_csb();
    }
}
