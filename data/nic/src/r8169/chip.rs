//! The chip: its parts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Mac, RegisterCount};

use super::DEVICE;
use super::moderate::Since;
use super::pci;
use super::phy::Phy;
use super::regs::*;
use crate::chip::frame_totals::FCS;
use crate::chip::held::{Held, Remains};
use crate::chip::pci::Pci;
use crate::chip::state::Fields;
use crate::chip::{
    After, Chip, ChipCore, Config, Control, ControlOf, Controlled, Delays, Gate, Host, Irq, Layout,
    Made, PciFunction, StateError,
};
use crate::realtek::cplus::{Cplus, Digest, Receiving, Which};
use crate::realtek::desc::{self, Status};
use crate::realtek::eeprom::Eeprom;
use crate::realtek::filter::Rules;
use crate::realtek::isr;
use crate::realtek::queues::Queues;
use crate::realtek::regs::Registers;
use crate::realtek::ring::{Place, Ring};
use crate::realtek::timer::ChipTimer;

use crate::realtek::tally::{self, Tally};
use crate::ring::{Receiver, Shape};

/// Which of the chip's own words in what outlives the process say when TCTR was 0. The first three
/// count rewinds.
const START: usize = 4;

const LONGEST: usize = 0x3fff; // Bytes of the longest frame, with its FCS: lengths have 14 bits.

/// An RTL8169SB.
pub struct R8169 {
    /// As the EEPROM left the factory.
    pub(super) mac: Mac,
    pub(super) core: ChipCore<Self>,
    pub(super) regs: Registers,
    pub(super) clock: Arc<ChipTimer>,
    pub(super) tally: Tally,
    /// Frames that found no buffer when MPC was cleared.
    pub(super) missed: AtomicU64,
    /// Frames since the last interrupt.
    pub(super) sent: Since,
    pub(super) received: Since,
    /// A packed `Wire`.
    pub(super) wire: AtomicU32,
    /// D3: a copy of what configuration space says, for those without the lock.
    pub(super) asleep: AtomicBool,
    /// Moves after each write to a register that the receive side keeps a digest of.
    pub(super) filter_version: AtomicU32,
    /// How often each ring was told to begin again.
    rewinds: [AtomicU32; 3],
    control: Mutex<ControlOf<Self>>,
}

/// On its bus: the same 256 bytes twice, as I/O ports and as memory; MSI.
static LAYOUT: Layout = Layout {
    model: "r8169",
    bars: [256, 256, 0, 0, 0, 0],
    config: 256,
    pages: 0..0,
    msi: true,
    msix: 0,
    idle_page: None,
};

impl R8169 {
    /// What it looks like on its bus.
    pub const LAYOUT: &'static Layout = &LAYOUT;

    /// A chip after power-on.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let clock = Arc::new(ChipTimer::new(host));
        let control = Control {
            pci: Pci::new(&pci::TABLE, config.csb),
            eeprom: Eeprom::new(config.mac, DEVICE),
            phy: Phy::default(),
        };
        let sides =
            (Queues::default(), Receiver::new(Ring::new(Which::Receive), Digest::default()));
        let irq = Irq::new(&isr::KINDS, config.irq_rate_max);
        let chip = Self {
            mac: config.mac,
            core: ChipCore::new(config, irq, clock.clone(), sides),
            regs: Registers::new(TABLE.iter().chain(if config.csb { CSB } else { CARDBUS })),
            clock,
            tally: Tally::default(),
            missed: AtomicU64::new(0),
            sent: Since::default(),
            received: Since::default(),
            wire: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            filter_version: AtomicU32::new(0),
            rewinds: Default::default(),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }

    /// The number of a ring, its rewinds, and where its address is.
    #[inline]
    fn ring(&self, which: Which) -> (usize, &AtomicU32, u8) {
        let [normal, high, receive] = &self.rewinds;
        match which {
            Which::Normal => (0, normal, TNPDS),
            Which::High => (1, high, THPDS),
            Which::Receive => (2, receive, RDSAR),
        }
    }

    /// The chip begins at the ring's first descriptor. What outlives the process says so first: the
    /// data path may look at the ring at once.
    pub(super) fn rewind(&self, which: Which) {
        let (n, rewinds, _) = self.ring(which);
        let next = rewinds.load(Ordering::Acquire).wrapping_add(1);
        self.regs.held().into_iter().for_each(|held| held.set_own(n, next));
        rewinds.store(next, Ordering::Release);
    }

    /// What of the chip's own outlives the process.
    pub(super) fn note_own(&self) {
        let Some(held) = self.regs.held() else { return };
        for (n, count) in self.rewinds.iter().enumerate() {
            held.set_own(n, count.load(Ordering::Acquire));
        }
        held.set_own_long(START, self.clock.start());
    }

    pub(super) fn rewind_all(&self) {
        [Which::Normal, Which::High, Which::Receive].into_iter().for_each(|r| self.rewind(r));
    }
}

impl Cplus for R8169 {
    const STATUS: Status = desc::RTL8169;
    const MOST: u32 = 1024;
    const USUAL_BUFFER: u32 = desc::RTL8169.len;

    #[inline]
    fn place(&self, which: Which) -> Place {
        let (_, rewinds, low) = self.ring(which);
        Place { rewinds: rewinds.load(Ordering::Acquire), base: self.regs.address(low) }
    }

    fn own_fcs(&self) -> bool {
        self.regs.get(TCR) & tcr::CRC != 0
    }

    #[inline]
    fn filter_version(&self) -> u32 {
        self.filter_version.load(Ordering::Acquire)
    }

    fn rules(&self) -> Rules {
        let get = |offset| self.regs.get(offset);
        Rules::new(get(RCR), (get(IDR0), get(IDR4)), (get(MAR0), get(MAR4)))
    }

    /// RMS, RxVLAN, RxChkSum. An RMS of 0 sets no limit.
    fn shape(&self) -> Shape {
        let command = self.regs.get(CPCR);
        let longest = match self.regs.get(RMS) as usize {
            0 => LONGEST,
            most => most.min(LONGEST),
        };
        let strip = command & cpcr::RXVLAN != 0;
        let sums = command & cpcr::RXCHKSUM != 0;
        let quick = if strip { 0 } else { longest };
        let (untagged, sums) = (longest, (sums, sums));
        Shape { quick, longest, fcs: FCS, strip, untagged, sums, ..Shape::default() }
    }
}

impl Controlled for R8169 {
    type Eeprom = Eeprom;
    type Phy = Phy;
    const ON_BUS: &'static Layout = &LAYOUT;

    fn mutex(&self) -> &Mutex<ControlOf<Self>> {
        &self.control
    }

    fn made(&self) -> Made {
        Made { mac: self.mac, csb: self.core.has_csb(), variant: 0 }
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
            mac: _, core: _, regs, clock, tally, missed, sent, received, wire: _, asleep: _,
            filter_version: _, rewinds, control: _,
        } = self;
        regs.fields(io);
        clock.fields(regs.get(TIMERINT), io);
        tally.fields(io);
        io.atomic_u64(missed);
        [sent, received].into_iter().for_each(|since| since.fields(io));
        rewinds.iter().for_each(|count| io.atomic(count));
        if io.restores() {
            self.note_own();
        }
    }

    const LOST: u32 = isr::LOST;

    fn hold_own(&self, held: &Arc<Held>) -> bool {
        self.regs.hold(held)
    }

    fn revive_own(&self, remains: &Remains<'_>, _: bool) -> Result<(), StateError> {
        self.regs.revive(remains)?;
        if !remains.knows_csb() && self.core.has_csb() && self.regs.address(CSBAL) != 0 {
            return Err(StateError::Lost("an older release had a CSB"));
        }
        for (n, count) in self.rewinds.iter().enumerate() {
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

    #[inline]
    fn read_bar(&self, _: u8, offset: u64, data: &mut [u8]) {
        self.regs.read(offset, data, |row| self.read_register(row));
    }

    #[inline]
    fn write_bar(&self, _: u8, offset: u64, data: &[u8]) {
        self.regs.write(offset, data, |write| {
            if !self.asleep.load(Ordering::Relaxed) {
                self.write_register(&write);
            }
        });
    }

    /// Only OWN tells of new buffers, unless a CSB asks for kicks.
    fn posts_without_register(&self) -> bool {
        !self.core.irq.csb_on().load(Ordering::Relaxed)
    }
}

impl Chip for R8169 {
    type Tx = Queues<Self>;
    type Rx = Receiver<Receiving<Self>>;
    type Irq = Irq;

    /// After an error of the bus Linux' driver sets up its chip again.
    fn tell_lost(&self, _: u64) {
        self.core.post(self, isr::SERR);
    }

    #[inline]
    fn core(&self) -> &ChipCore<Self> {
        &self.core
    }

    #[inline]
    fn gate(&self) -> Gate {
        let (wire, command) = (self.wire(), self.regs.get(CR));
        Gate {
            dma: wire.dma,
            link: wire.link,
            loopback: wire.loopback,
            transmit: command & cr::TE != 0,
            receive: command & cr::RE != 0,
        }
    }

    #[inline]
    fn delays(&self) -> Delays {
        self.windows()
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
