//! Registers (datasheet chapter 6): offsets, bits, and which of them are where in which mode.

use vmlan_frame::RegisterCount;

use super::table;
use crate::realtek::regs::{self as realtek, Row, Write, offsets};

offsets! {
    /// ID registers, the address: the first four bytes.
    IDR0 = 0x00,
    /// The last two.
    IDR4 = 0x04,
    /// Multicast registers, the hash table: the first four bytes.
    MAR0 = 0x08,
    /// The last four.
    MAR4 = 0x0c,
    /// Transmit Status of Descriptor 0; three more behind it.
    TSD0 = 0x10,
    /// C+: Dump Tally Counter Command, and the low half of the address.
    DTCCR = 0x10,
    /// C+: its high half.
    DTCCR_HI = 0x14,
    /// Transmit Start Address of Descriptor 0; three more behind it.
    TSAD0 = 0x20,
    /// C+: Transmit Normal Priority Descriptors, start, low.
    TNPDS = 0x20,
    /// C+: high.
    TNPDS_HI = 0x24,
    /// C+: Transmit High Priority Descriptors, start, low.
    THPDS = 0x28,
    /// C+: high.
    THPDS_HI = 0x2c,
    /// Receive Buffer Start address.
    RBSTART = 0x30,
    /// Early Receive Byte Count: nothing is received early here.
    ERBCR = 0x34,
    /// Early Receive Status.
    ERSR = 0x36,
    /// Command.
    CR = 0x37,
    /// Current Address of Packet Read: what the driver has read, minus 16.
    CAPR = 0x38,
    /// Current Buffer Address: where the next frame goes.
    CBR = 0x3a,
    /// Interrupt Mask.
    IMR = 0x3c,
    /// Interrupt Status: bits written as 1 are cleared.
    ISR = 0x3e,
    /// Transmit Configuration.
    TCR = 0x40,
    /// Receive Configuration.
    RCR = 0x44,
    /// Timer Count.
    TCTR = 0x48,
    /// Missed Packet Counter.
    MPC = 0x4c,
    /// 93C46 (93C56) Command.
    EECR = 0x50,
    /// Configuration 0.
    CONFIG0 = 0x51,
    /// Configuration 1.
    CONFIG1 = 0x52,
    /// Timer Interrupt.
    TIMERINT = 0x54,
    /// Media Status.
    MSR = 0x58,
    /// Configuration 3.
    CONFIG3 = 0x59,
    /// Configuration 4.
    CONFIG4 = 0x5a,
    /// Multiple Interrupt Select.
    MULINT = 0x5c,
    /// PCI Revision ID, of the chip inside.
    RERID = 0x5e,
    /// Transmit Status of All Descriptors.
    TSAD = 0x60,
    /// Basic Mode Control.
    BMCR = 0x62,
    /// Basic Mode Status.
    BMSR = 0x64,
    /// Auto-negotiation Advertisement.
    ANAR = 0x66,
    /// Auto-negotiation Link Partner.
    ANLPAR = 0x68,
    /// Auto-negotiation Expansion.
    ANER = 0x6a,
    /// Disconnect Counter.
    DIS = 0x6c,
    /// False Carrier Sense Counter.
    FCSC = 0x6e,
    /// N-way Test.
    NWAYTR = 0x70,
    /// Receive Error Counter.
    REC = 0x72,
    /// CS Configuration.
    CSCR = 0x74,
    /// PHY parameter 1.
    PHY1_PARM = 0x78,
    /// Twister parameter.
    TW_PARM = 0x7c,
    /// PHY parameter 2.
    PHY2_PARM = 0x80,
    /// Flash memory, which the model does not have.
    FLASH = 0xd4,
    /// Configuration 5.
    CONFIG5 = 0xd8,
    /// C+: Transmit Priority Polling.
    TPPOLL = 0xd9,
    /// C+ Command.
    CPCR = 0xe0,
    /// C+: Receive Descriptor Start Address, low.
    RDSAR = 0xe4,
    /// C+: high.
    RDSAR_HI = 0xe8,
    /// C+: Early Transmit Threshold.
    ETTHR = 0xec,
    /// CSB address, low; writing it places the CSB (`chip/csb.rs`). The chip has function event
    /// registers of its CardBus variant here.
    CSBAL = 0xf0,
    /// CSB address, high.
    CSBAH = 0xf4,
}

/// Bits of TSD0 to TSD3.
pub mod tsd {
    /// Bytes of the frame.
    pub const SIZE: u32 = 0x1fff;
    /// The driver owns it: its frame was taken.
    pub const OWN: u32 = 1 << 13;
    /// Transmit FIFO Underrun: the frame could not be read in time.
    pub const TUN: u32 = 1 << 14;
    /// Transmit OK.
    pub const TOK: u32 = 1 << 15;
    /// Transmit Abort.
    pub const TABT: u32 = 1 << 30;
    /// SIZE, OWN, ERTXTH.
    pub const WRITABLE: u32 = 0x003f_3fff;
}

/// Bits of CR.
pub mod cr {
    /// Buffer Empty.
    pub const BUFE: u32 = 1;
    /// Transmitter Enable.
    pub const TE: u32 = 1 << 2;
    /// Receiver Enable.
    pub const RE: u32 = 1 << 3;
    /// Reset.
    pub const RST: u32 = 1 << 4;
}

/// Bits of TCR.
pub mod tcr {
    /// Clear Abort. Clears itself.
    pub const CLRABT: u32 = 1;
    /// The driver brings the FCS with it.
    pub const CRC: u32 = 1 << 16;
    /// Loopback: both bits.
    pub const LBK: u32 = 3 << 17;
    /// IFG, IFG2, LBK, CRC, MXDMA, TXRR, CLRABT.
    pub const WRITABLE: u32 = 0x030f_07f1;
    /// Hardware Version: 8139C.
    pub const VERSION: u32 = 0x7400_0000;
    /// And 8139C+.
    pub const VERSION_PLUS: u32 = 0x7480_0000;
}

/// Bits of RCR that concern the buffer; the filter's are `realtek`'s.
pub mod rcr {
    /// A frame that begins in the buffer goes on behind its end.
    pub const WRAP: u32 = 1 << 7;
    /// Buffer length: 8, 16, 32, 64 KiB.
    pub const RBLEN_SHIFT: u32 = 11;
}

/// Bits of CPCR.
pub mod cpcr {
    /// C+ transmitter on.
    pub const TXE: u32 = 1;
    /// C+ receiver on.
    pub const RXE: u32 = 2;
    /// Checksums of received frames are checked.
    pub const RXCHKSUM: u32 = 1 << 5;
    /// Tags are stripped.
    pub const RXVLAN: u32 = 1 << 6;
}

/// Bits of TPPoll.
pub mod tppoll {
    /// High priority queue.
    pub const HPQ: u32 = 1 << 7;
    /// Normal priority queue.
    pub const NPQ: u32 = 1 << 6;
    /// Forced Software Interrupt.
    pub const FSWINT: u32 = 1;
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
        Self { kind, all, mode: realtek::Registers::new(table::PLUS_MODE) }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The value of a register, in classic mode if it has another one in C+ mode.
    #[inline]
    pub fn get(&self, offset: u8) -> u32 {
        self.all.get(offset)
    }

    /// Stores its value.
    #[inline]
    pub fn set(&self, offset: u8, value: u32) {
        self.all.set(offset, value);
    }

    /// Of those that change, the one in C+ mode.
    #[inline]
    pub fn get_plus(&self, offset: u8) -> u32 {
        self.mode.get(offset)
    }

    /// Stores its value.
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
