//! Registers: their places, the commands, and how often each is touched. All are 32 bits wide.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::RegisterCount;

/// A register, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Interrupt mask of a vector.
    Imr(u32),
    /// A transmit queue has descriptors.
    TxProd(u32),
    /// A receive queue has buffers, in its first or second ring.
    RxProd(u32),
    RxProd2(u32),
    /// Versions of the device, and of its receive formats.
    Vrrs,
    Uvrs,
    /// The address of DriverShared.
    Dsal,
    Dsah,
    Cmd,
    /// The station's address.
    Macl,
    Mach,
    /// INTx: is it ours?
    Icr,
    /// Events that are taken.
    Ecr,
}

const NAMES: [&str; 13] = [
    "IMR", "TXPROD", "RXPROD", "RXPROD2", "VRRS", "UVRS", "DSAL", "DSAH", "CMD", "MACL", "MACH",
    "ICR", "ECR",
];

impl Register {
    /// The register at `offset` of a BAR.
    pub fn at(bar: u8, offset: u32) -> Option<Self> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let queue = (offset & 0x1ff) / 8;
        match (bar, offset) {
            (0, 0..0xc8) => Some(Self::Imr(offset / 8)),
            (0, 0x600..0x640) => Some(Self::TxProd(queue)),
            (0, 0x800..0x880) => Some(Self::RxProd(queue)),
            (0, 0xa00..0xa80) => Some(Self::RxProd2(queue)),
            (1, 0x00) => Some(Self::Vrrs),
            (1, 0x08) => Some(Self::Uvrs),
            (1, 0x10) => Some(Self::Dsal),
            (1, 0x18) => Some(Self::Dsah),
            (1, 0x20) => Some(Self::Cmd),
            (1, 0x28) => Some(Self::Macl),
            (1, 0x30) => Some(Self::Mach),
            (1, 0x38) => Some(Self::Icr),
            (1, 0x40) => Some(Self::Ecr),
            _ => None,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Imr(_) => 0,
            Self::TxProd(_) => 1,
            Self::RxProd(_) => 2,
            Self::RxProd2(_) => 3,
            Self::Vrrs => 4,
            Self::Uvrs => 5,
            Self::Dsal => 6,
            Self::Dsah => 7,
            Self::Cmd => 8,
            Self::Macl => 9,
            Self::Mach => 10,
            Self::Icr => 11,
            Self::Ecr => 12,
        }
    }
}

/// How often each register was read and written.
#[derive(Debug, Default)]
pub struct Accesses([[AtomicU64; 2]; NAMES.len()]);

impl Accesses {
    /// One more.
    #[inline]
    pub fn count(&self, register: Register, write: bool) {
        if let Some([reads, writes]) = self.0.get(register.index()) {
            if write { writes } else { reads }.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Registers that were touched.
    pub fn all(&self) -> Vec<RegisterCount> {
        let row = |(register, [reads, writes]): (&&'static str, &[AtomicU64; 2])| RegisterCount {
            register,
            reads: reads.load(Ordering::Relaxed),
            writes: writes.load(Ordering::Relaxed),
        };
        let all = NAMES.iter().zip(&self.0).map(row);
        all.filter(|count| count.reads | count.writes != 0).collect()
    }
}

/// Commands. Those that only read have results.
pub mod command {
    pub const ACTIVATE: u32 = 0xcafe_0000;
    pub const QUIESCE: u32 = 0xcafe_0001;
    pub const RESET: u32 = 0xcafe_0002;
    pub const UPDATE_RX_MODE: u32 = 0xcafe_0003;
    pub const UPDATE_GROUPS: u32 = 0xcafe_0004;
    pub const UPDATE_VLANS: u32 = 0xcafe_0005;
    pub const UPDATE_TABLE: u32 = 0xcafe_0006; // RSS: the indirection table.
    pub const UPDATE_LEVELS: u32 = 0xcafe_0007; // Moderation.
    pub const UPDATE_FEATURES: u32 = 0xcafe_0009;
    pub const LOAD_PLUGIN: u32 = 0xcafe_000b;
    pub const SET_COALESCE: u32 = 0xcafe_000e;
    pub const GET_STATS: u32 = 0xf00d_0001;
    pub const GET_LINK: u32 = 0xf00d_0002;
    pub const GET_MAC_LOW: u32 = 0xf00d_0003;
    pub const GET_MAC_HIGH: u32 = 0xf00d_0004;
    pub const GET_DEVICE_LOW: u32 = 0xf00d_0005;
    pub const GET_DEVICE_HIGH: u32 = 0xf00d_0006;
    pub const GET_INTERRUPTS: u32 = 0xf00d_0008;
    pub const GET_RING_INFO: u32 = 0xf00d_0009;
    pub const GET_COPY_SIZE: u32 = 0xf00d_000a; // Of an entry of the transmit data ring.
    pub const GET_COALESCE: u32 = 0xf00d_000b;
}
