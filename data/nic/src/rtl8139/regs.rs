//! Registers (datasheet chapter 6): offsets, bits, and which of them are where in which mode.

use std::sync::Arc;

use vmlan_frame::RegisterCount;

use super::table;
use crate::chip::StateError;
use crate::chip::held::{Held, Remains};
use crate::chip::state::Fields;
use crate::realtek::regs::{self as realtek, Row, Write, offsets};

offsets! {
    IDR0 = 0x00, // ID registers, the address: the first four bytes.
    IDR4 = 0x04, // The last two.
    MAR0 = 0x08, // Multicast registers, the hash table: the first four bytes.
    MAR4 = 0x0c, // The last four.
    TSD0 = 0x10, // Transmit Status of Descriptor 0; three more behind it.
    DTCCR = 0x10, // C+: Dump Tally Counter Command, and the low half of the address.
    DTCCR_HI = 0x14, // C+: its high half.
    TSAD0 = 0x20, // Transmit Start Address of Descriptor 0; three more behind it.
    TNPDS = 0x20, // C+: Transmit Normal Priority Descriptors, start, low.
    TNPDS_HI = 0x24, // C+: high.
    THPDS = 0x28, // C+: Transmit High Priority Descriptors, start, low.
    THPDS_HI = 0x2c, // C+: high.
    RBSTART = 0x30, // Receive Buffer Start address.
    ERBCR = 0x34, // Early Receive Byte Count: nothing is received early here.
    ERSR = 0x36, // Early Receive Status.
    CR = 0x37, // Command.
    CAPR = 0x38, // Current Address of Packet Read: what the driver has read, minus 16.
    CBR = 0x3a, // Current Buffer Address: where the next frame goes.
    IMR = 0x3c, // Interrupt Mask.
    ISR = 0x3e, // Interrupt Status: bits written as 1 are cleared.
    TCR = 0x40, // Transmit Configuration.
    RCR = 0x44, // Receive Configuration.
    TCTR = 0x48, // Timer Count.
    MPC = 0x4c, // Missed Packet Counter.
    EECR = 0x50, // 93C46 (93C56) Command.
    CONFIG0 = 0x51, // Configuration 0.
    CONFIG1 = 0x52, // Configuration 1.
    TIMERINT = 0x54, // Timer Interrupt.
    MSR = 0x58, // Media Status.
    CONFIG3 = 0x59, // Configuration 3.
    CONFIG4 = 0x5a, // Configuration 4.
    MULINT = 0x5c, // Multiple Interrupt Select.
    RERID = 0x5e, // PCI Revision ID, of the chip inside.
    TSAD = 0x60, // Transmit Status of All Descriptors.
    BMCR = 0x62, // Basic Mode Control.
    BMSR = 0x64, // Basic Mode Status.
    ANAR = 0x66, // Auto-negotiation Advertisement.
    ANLPAR = 0x68, // Auto-negotiation Link Partner.
    ANER = 0x6a, // Auto-negotiation Expansion.
    DIS = 0x6c, // Disconnect Counter.
    FCSC = 0x6e, // False Carrier Sense Counter.
    NWAYTR = 0x70, // N-way Test.
    REC = 0x72, // Receive Error Counter.
    CSCR = 0x74, // CS Configuration.
    PHY1_PARM = 0x78, // PHY parameter 1.
    TW_PARM = 0x7c, // Twister parameter.
    PHY2_PARM = 0x80, // PHY parameter 2.
    FLASH = 0xd4, // Flash memory, which the model does not have.
    CONFIG5 = 0xd8, // Configuration 5.
    TPPOLL = 0xd9, // C+: Transmit Priority Polling.
    CPCR = 0xe0, // C+ Command.
    RDSAR = 0xe4, // C+: Receive Descriptor Start Address, low.
    RDSAR_HI = 0xe8, // C+: high.
    ETTHR = 0xec, // C+: Early Transmit Threshold.
    /// CSB address, low; writing it places the CSB (`chip/csb.rs`). The chip has function event
    /// registers of its CardBus variant here.
    CSBAL = 0xf0,
    /// CSB address, high.
    CSBAH = 0xf4,
}

pub mod tsd {
    pub const SIZE: u32 = 0x1fff; // Bytes of the frame.
    pub const OWN: u32 = 1 << 13; // The driver owns it: its frame was taken.
    pub const TUN: u32 = 1 << 14; // Transmit FIFO Underrun: the frame could not be read in time.
    pub const TOK: u32 = 1 << 15; // Transmit OK.
    pub const TABT: u32 = 1 << 30; // Transmit Abort.
    pub const WRITABLE: u32 = 0x003f_3fff; // SIZE, OWN, ERTXTH.
    pub const MARK: u32 = 1 << 23; // Only in what outlives the process: our mark.
}

pub mod cr {
    pub const BUFE: u32 = 1; // Buffer Empty.
    pub const TE: u32 = 1 << 2; // Transmitter Enable.
    pub const RE: u32 = 1 << 3; // Receiver Enable.
    pub const RST: u32 = 1 << 4; // Reset.
}

pub mod tcr {
    pub const CLRABT: u32 = 1; // Clear Abort. Clears itself.
    pub const CRC: u32 = 1 << 16; // The driver brings the FCS with it.
    pub const LBK: u32 = 3 << 17; // Loopback: both bits.
    pub const WRITABLE: u32 = 0x030f_07f1; // IFG, IFG2, LBK, CRC, MXDMA, TXRR, CLRABT.
    pub const VERSION: u32 = 0x7400_0000; // Hardware Version: 8139C.
    pub const VERSION_PLUS: u32 = 0x7480_0000; // And 8139C+.
}

/// Bits of RCR that concern the buffer; the filter's are `realtek`'s.
pub mod rcr {
    pub const WRAP: u32 = 1 << 7; // A frame that begins in the buffer goes on behind its end.
    pub const RBLEN_SHIFT: u32 = 11; // Buffer length: 8, 16, 32, 64 KiB.
}

pub mod cpcr {
    pub const TXE: u32 = 1; // C+ transmitter on.
    pub const RXE: u32 = 2; // C+ receiver on.
    pub const RXCHKSUM: u32 = 1 << 5; // Checksums of received frames are checked.
    pub const RXVLAN: u32 = 1 << 6; // Tags are stripped.
}

pub mod tppoll {
    pub const HPQ: u32 = 1 << 7; // High priority queue.
    pub const NPQ: u32 = 1 << 6; // Normal priority queue.
    pub const FSWINT: u32 = 1; // Forced Software Interrupt.
}

/// Which chip it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// 8139C+, not 8139C.
    pub plus: bool,
    /// With a CSB.
    pub csb: bool,
}

/// Where registers change their meaning with the C+ transmitter.
const CHANGES: std::ops::Range<u64> = TSD0 as u64..RBSTART as u64;

/// Values of all registers, and how often each was touched.
#[derive(Debug)]
pub struct Registers {
    kind: Kind,
    all: realtek::Registers,
    /// In the place of some of them while the C+ transmitter is on.
    mode: realtek::Registers,
}

impl Registers {
    /// With their values after power-on.
    pub fn new(kind: Kind) -> Self {
        let plus = table::PLUS.iter().filter(|_| kind.plus);
        let csb = table::CSB.iter().filter(|_| kind.plus && kind.csb);
        let all = realtek::Registers::new(table::CLASSIC.iter().chain(plus).chain(csb));
        Self { kind, all, mode: realtek::Registers::new(table::PLUS_MODE).second() }
    }

    /// They outlive the process in there.
    pub fn hold(&self, held: &Arc<Held>) -> bool {
        self.all.hold(held) && self.mode.hold(held)
    }

    /// What outlives the process, if something does.
    pub fn held(&self) -> Option<&Held> {
        self.all.held()
    }

    /// Finds them in what a process has left.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn revive(&self, remains: &Remains<'_>) -> Result<(), StateError> {
        self.all.revive(remains)?;
        for at in (TSD0..TSAD0).step_by(4) {
            self.set(at, self.get(at) & !tsd::MARK);
        }
        self.mode.revive(remains)
    }

    /// Marks a TSD in what outlives the process, until it is set.
    pub fn mark(&self, offset: u8) {
        self.all.note(offset, self.get(offset) | tsd::MARK);
    }

    /// A TSD had a mark.
    pub fn was_marked(&self, offset: u8, remains: &Remains<'_>) -> bool {
        remains.register(self.all.place(offset)) & tsd::MARK != 0
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The value of a register, in classic mode if it has another one in C+ mode.
    #[inline]
    pub fn get(&self, offset: u8) -> u32 {
        self.all.get(offset)
    }

    #[inline]
    pub fn set(&self, offset: u8, value: u32) {
        self.all.set(offset, value);
    }

    /// Of those that change, the one in C+ mode.
    #[inline]
    pub fn get_plus(&self, offset: u8) -> u32 {
        self.mode.get(offset)
    }

    pub fn set_plus(&self, offset: u8, value: u32) {
        self.mode.set(offset, value);
    }

    /// Two registers of C+ mode as one address.
    #[inline]
    pub fn address(&self, low: u8) -> u64 {
        if low < RBSTART { self.mode.address(low) } else { self.all.address(low) }
    }

    /// Stores what is written and can be. Returns the value before and after.
    pub fn store(&self, write: &Write) -> (u32, u32) {
        if self.is_plus(write.row) { self.mode.store(write) } else { self.all.store(write) }
    }

    /// The row is one of C+ mode, in the place of another.
    pub fn is_plus(&self, row: &Row) -> bool {
        table::PLUS_MODE.as_ptr_range().contains(&std::ptr::from_ref(row))
    }

    /// The C+ transmitter, and the C+ receiver, is on.
    #[inline]
    pub fn plus_mode(&self) -> (bool, bool) {
        let cpcr = self.get(CPCR);
        (cpcr & cpcr::TXE != 0, cpcr & cpcr::RXE != 0)
    }

    /// Reads registers: see `realtek`.
    pub fn read(&self, offset: u64, data: &mut [u8], read: &mut dyn FnMut(&'static Row) -> u32) {
        for (view, at, part) in self.split(offset, data.len()) {
            view.read(at, data.get_mut(part).unwrap_or_default(), &mut *read);
        }
    }

    /// Writes registers: see `realtek`.
    pub fn write(&self, offset: u64, data: &[u8], write: &mut dyn FnMut(Write)) {
        for (view, at, part) in self.split(offset, data.len()) {
            view.write(at, data.get(part).unwrap_or_default(), &mut *write);
        }
    }

    /// An access as up to three: below, in and behind the registers that change. The mode is that
    /// at its beginning.
    fn split(
        &self,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = (&realtek::Registers, u64, std::ops::Range<usize>)> {
        // An end behind the access is its end.
        let until = |end: u64| usize::try_from(end.saturating_sub(offset)).unwrap_or(len).min(len);
        let (start, end) = (until(CHANGES.start), until(CHANGES.end));
        let mode = if self.plus_mode().0 { &self.mode } else { &self.all };
        let parts = [(&self.all, 0..start), (mode, start..end), (&self.all, end..len)];
        parts
            .into_iter()
            .filter(|(_, part)| !part.is_empty())
            .map(move |(view, part)| (view, offset.saturating_add(part.start as u64), part))
    }

    /// The C+ transmitter goes on: the registers are the same, only their meaning has changed. It
    /// goes off: what is in them now is not a frame to send.
    pub fn change_mode(&self, on: bool) {
        for row in table::PLUS_MODE.iter().filter(|row| on && row.offset >= TNPDS) {
            self.mode.set(row.offset, self.all.get(row.offset) & row.mask);
        }
        for i in (0..16).step_by(4) {
            self.all.set(TSD0 + i, tsd::OWN);
        }
    }

    /// Passes all that are not as after power-on.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { kind: _, all, mode } = self;
        [all, mode].into_iter().for_each(|view| view.fields(io));
    }

    /// Registers that were touched.
    pub fn accesses(&self) -> Vec<RegisterCount> {
        let mut all = self.all.accesses();
        all.extend(self.mode.accesses());
        all
    }

    /// Sets all to their values after power-on, or after a software reset.
    pub fn reset(&self, power_on: bool) {
        self.all.reset(|row| !power_on && table::is_sticky(row));
        self.mode.reset(|_| false);
    }
}
