//! The chip: its parts, and its side of [`crate::chip`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Mac, RegisterCount};

use super::pci;
use super::phy::Phy;
use super::plus::Rings;
use super::regs::{CPCR, CR, CSBAL, Kind, Registers, TCR, TIMERINT, cpcr, cr, tcr};
use super::sides::{Rx, Tx};
use crate::chip::held::{Held, Remains};
use crate::chip::pci::Pci;
use crate::chip::state::Fields;
use crate::chip::{
    After, Chip, ChipCore, Config, Control, ControlOf, Controlled, Delays, Gate, Host, Irq, Kinds,
    Layout, Made, PciFunction, StateError,
};
use crate::realtek::eeprom::Eeprom;
use crate::realtek::isr;
use crate::realtek::tally::{self, Tally};
use crate::realtek::timer::ChipTimer;

/// Which of the chip's own words in what outlives the process say when TCTR was 0. The first two
/// count rewinds.
const START: usize = 4;

const DEVICE: u16 = 0x8139; // The PCI device id.

/// What its causes are about: beside the RTL8169's, frames that could not be sent (TER), and what
/// is received with errors.
static KINDS: Kinds =
    Kinds { transmit: isr::TOK | isr::TER | isr::TDU, written: isr::TOK | isr::TER, ..isr::KINDS };

static LAYOUT: Layout = Layout {
    model: "rtl8139",
    bars: [256, 256, 0, 0, 0, 0],
    config: 256,
    pages: 0..0,
    msi: false,
    msix: 0,
    idle_page: None,
};

/// An RTL8139C+, or an RTL8139C.
pub struct Rtl8139 {
    /// As the EEPROM left the factory.
    mac: Mac,
    pub(super) core: ChipCore<Self>,
    pub(super) regs: Arc<Registers>,
    pub(super) clock: Arc<ChipTimer>,
    pub(super) tally: Tally,
    pub(super) rings: Rings,
    /// Frames missed when MPC was last written.
    pub(super) mpc: AtomicU64,
    /// What the VMM's side has decided: bits of `wire`.
    pub(super) wire: AtomicU32,
    /// Moves after each write to a register that the receive filter keeps a digest of.
    pub(super) filter_version: AtomicU32,
    /// After a process has died, and until a TSD is written: the one whose turn it is. 0: none.
    pub(super) due: AtomicU32,
    control: Mutex<ControlOf<Self>>,
}

/// Bits of [`Rtl8139::wire`].
pub mod wire {
    pub const DMA: u32 = 1; // PCI lets it use memory.
    pub const LINK: u32 = 2; // There is a link.
    pub const ASLEEP: u32 = 4; // In D3: nothing answers.
}

impl Rtl8139 {
    /// A chip after power-on: an 8139C+, or, if not `plus`, an 8139C, without C+ mode and CSB.
    pub fn new(config: Config, plus: bool, host: Arc<dyn Host>) -> Self {
        let config = Config { csb: config.csb && plus, ..config };
        let kind = Kind { plus, csb: config.csb };
        let table = if plus { &pci::PLUS } else { &pci::PLAIN };
        let clock = Arc::new(ChipTimer::new(host));
        let regs = Arc::new(Registers::new(kind));
        let sides = (Tx::new(&regs), Rx::default());
        let control = Control {
            pci: Pci::new(table, config.csb),
            eeprom: Eeprom::new(config.mac, DEVICE),
            phy: Phy::default(),
        };
        let irq = Irq::new(&KINDS, config.irq_rate_max);
        let chip = Self {
            mac: config.mac,
            core: ChipCore::new(config, irq, clock.clone(), sides),
            regs,
            clock,
            tally: Tally::default(),
            rings: Rings::default(),
            mpc: AtomicU64::new(0),
            wire: AtomicU32::new(0),
            filter_version: AtomicU32::new(0),
            due: AtomicU32::new(0),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }

    /// True if all of these bits of `wire` are set.
    pub(super) fn is(&self, bits: u32) -> bool {
        self.wire.load(Ordering::Acquire) & bits == bits
    }

    /// The rings of C+ mode begin anew.
    pub(super) fn rewind(&self, transmit: bool, receive: bool) {
        self.rings.rewind(transmit, receive);
        self.note_own();
    }

    /// What of the chip's own outlives the process.
    pub(super) fn note_own(&self) {
        self.due.store(0, Ordering::Relaxed);
        let Some(held) = self.regs.held() else { return };
        for (n, count) in self.rings.counts().into_iter().enumerate() {
            held.set_own(n, count.load(Ordering::Acquire));
        }
        held.set_own_long(START, self.clock.start());
    }

    /// TSD `at` is written. True: a process that has died knew of that, and may have sent the
    /// frame, before anybody noted that the access was made. Drivers use the four in turn, so
    /// another one would be due otherwise.
    pub(super) fn is_repeat(&self, at: u8) -> bool {
        let due = self.due.swap(0, Ordering::Relaxed);
        due != 0 && due != u32::from(at)
    }

    /// Frames that were lost for want of room, ever.
    pub(super) fn missed(&self) -> u64 {
        tally::missed(&self.core.stats, &self.core.counters)
    }
}

impl Controlled for Rtl8139 {
    type Eeprom = Eeprom;
    type Phy = Phy;
    const ON_BUS: &'static Layout = &LAYOUT;

    fn mutex(&self) -> &Mutex<ControlOf<Self>> {
        &self.control
    }

    fn made(&self) -> Made {
        Made { mac: self.mac, csb: self.core.has_csb(), variant: self.regs.kind().plus.into() }
    }

    fn new_eeprom(&self) -> Eeprom {
        Eeprom::new(self.mac, DEVICE)
    }

    fn plug(phy: &mut Phy, up: bool) {
        phy.set_cable(up);
    }

    fn reset_all(&self, control: &mut ControlOf<Self>) -> After {
        self.reset_function(control)
    }

    fn follow(&self, control: &mut ControlOf<Self>) -> After {
        self.update_link(control, false)
    }

    fn fields(&self, io: &mut Fields<'_>) {
        #[rustfmt::skip]
        let Self {
            mac: _, core: _, regs, clock, tally, rings, mpc, wire: _, filter_version: _,
            due: _, control: _,
        } = self;
        regs.fields(io);
        clock.fields(regs.get(TIMERINT), io);
        tally.fields(io);
        rings.fields(io);
        io.atomic_u64(mpc);
        if io.restores() {
            self.note_own();
        }
    }

    const LOST: u32 = isr::LOST | isr::TER;

    fn hold_own(&self, held: &Arc<Held>) -> bool {
        self.regs.hold(held)
    }

    fn revive_own(&self, remains: &Remains<'_>, _: bool) -> Result<(), StateError> {
        self.regs.revive(remains)?;
        if !remains.knows_csb() && self.core.has_csb() && self.regs.address(CSBAL) != 0 {
            return Err(StateError::Lost("an older release had a CSB"));
        }
        for (n, count) in self.rings.counts().into_iter().enumerate() {
            count.store(remains.own(n), Ordering::Release);
        }
        self.clock.set_limit(self.regs.get(TIMERINT));
        self.clock.restart_at(remains.own_long(START));
        self.note_own();
        Ok(())
    }

    fn derive(&self, control: &mut ControlOf<Self>) {
        let _nobody_is_told = self.update_link(control, false);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    fn resume(&self) {
        self.clock.resume();
        self.core.irq.resume(&*self.core.host);
    }

    fn read_bar(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            0 | 1 => self.read_registers(offset, data),
            _ => data.fill(u8::MAX),
        }
    }

    fn write_bar(&self, bar: u8, offset: u64, data: &[u8]) {
        if bar < 2 {
            self.write_registers(offset, data);
        }
    }

    /// As with the RTL8169; in classic mode a write of CAPR tells of room.
    fn posts_without_register(&self) -> bool {
        let plus = self.regs.get(CPCR) & cpcr::RXE != 0;
        plus && !self.core.irq.csb_on().load(Ordering::Relaxed)
    }
}

impl Chip for Rtl8139 {
    type Tx = Tx;
    type Rx = Rx;
    type Irq = Irq;

    fn core(&self) -> &ChipCore<Self> {
        &self.core
    }

    #[inline]
    fn gate(&self) -> Gate {
        let (wire, on) = (self.wire.load(Ordering::Acquire), self.regs.get(CR));
        Gate {
            dma: wire & wire::DMA != 0,
            link: wire & wire::LINK != 0,
            loopback: self.regs.get(TCR) & tcr::LBK == tcr::LBK,
            transmit: on & cr::TE != 0,
            receive: on & cr::RE != 0,
        }
    }

    /// The chip has none.
    fn delays(&self) -> Delays {
        Delays::default()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        tally::totals(&self.core.stats, &self.core.counters)
    }

    fn accesses(&self) -> Vec<RegisterCount> {
        self.regs.accesses()
    }

    fn tick(&self) {
        if self.clock.fired() {
            self.core.post(self, isr::TIMEOUT);
        }
    }
}
