//! Registers that both chips have (SDM chapter 13): offsets, and where their values live.
//!
//! Scalars live in atomics, so that the data path reads them without a lock. The pages 0x2000 and
//! 0x3000 live in the shared window.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vmlan_frame::RegisterCount;
use vmlan_ram::Window;

use super::table::{COMMON, Row};
use crate::chip::StateError;
use crate::chip::held::{Held, Remains, point};
use crate::chip::state::Fields;

pub const PAGES_START: u32 = 0x2000; // First byte of BAR0 that lies in the shared window.
pub const PAGES_END: u32 = 0x4000; // One past the last.

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident = $offset:literal,)*) => {
        $($(#[$doc])* pub const $name: u32 = $offset;)*
    };
}

offsets! {
    CTRL = 0x0000, // Device Control (13.4.1).
    CTRL_DUP = 0x0004, // Device Control, duplicate (13.4.1).
    STATUS = 0x0008, // Device Status (13.4.2).
    EECD = 0x0010, // EEPROM/Flash Control and Data (13.4.3).
    EERD = 0x0014, // EEPROM Read (13.4.4).
    CTRL_EXT = 0x0018, // Extended Device Control (13.4.6).
    MDIC = 0x0020, // MDI Control (13.4.7).
    FCAL = 0x0028, // Flow Control Address Low (13.4.8).
    FCAH = 0x002c, // Flow Control Address High (13.4.9).
    FCT = 0x0030, // Flow Control Type (13.4.10).
    VET = 0x0038, // VLAN Ether Type (13.4.11).
    ICR = 0x00c0, // Interrupt Cause Read (13.4.17).
    ITR = 0x00c4, // Interrupt Throttling (13.4.18), 256 ns.
    ICS = 0x00c8, // Interrupt Cause Set (13.4.19).
    IMS = 0x00d0, // Interrupt Mask Set/Read (13.4.20).
    IMC = 0x00d8, // Interrupt Mask Clear (13.4.21).
    RCTL = 0x0100, // Receive Control (13.4.22).
    FCTTV = 0x0170, // Flow Control Transmit Timer Value (13.4.12).
    TXCW = 0x0178, // Transmit Configuration Word (13.4.13).
    RXCW = 0x0180, // Receive Configuration Word (13.4.14).
    TCTL = 0x0400, // Transmit Control (13.4.33).
    TIPG = 0x0410, // Transmit Inter Packet Gap (13.4.34).
    AIFS = 0x0458, // Adaptive IFS Throttle (13.4.35).
    LEDCTL = 0x0e00, // LED Control (13.4.15).
    PBA = 0x1000, // Packet Buffer Allocation (13.4.16).
    FCRTL = 0x2160, // Flow Control Receive Threshold Low (13.4.23).
    FCRTH = 0x2168, // Flow Control Receive Threshold High (13.4.24).
    RDBAL = 0x2800, // Receive Descriptor Base Low (13.4.25).
    RDBAH = 0x2804, // Receive Descriptor Base High (13.4.26).
    RDLEN = 0x2808, // Receive Descriptor Length (13.4.27).
    RDH = 0x2810, // Receive Descriptor Head (13.4.28).
    RDT = 0x2818, // Receive Descriptor Tail (13.4.29).
    RDTR = 0x2820, // Receive Delay Timer (13.4.30), 1.024 us.
    RXDCTL = 0x2828, // Receive Descriptor Control (13.4.46).
    RADV = 0x282c, // Receive Interrupt Absolute Delay Timer (13.4.31), 1.024 us.
    CSBAL = 0x2830, // CSB address, low; writing it places the CSB (`csb.rs`).
    CSBAH = 0x2834, // CSB address, high.
    RDBAL1 = 0x2900, // The second receive queue's ring, on chips that have one.
    RDT1 = 0x2918, // Its tail.
    RSRPD = 0x2c00, // Receive Small Packet Detect Interrupt (13.4.32).
    TDBAL = 0x3800, // Transmit Descriptor Base Low (13.4.36).
    TDBAH = 0x3804, // Transmit Descriptor Base High (13.4.37).
    TDLEN = 0x3808, // Transmit Descriptor Length (13.4.38).
    TDH = 0x3810, // Transmit Descriptor Head (13.4.39).
    TDT = 0x3818, // Transmit Descriptor Tail (13.4.40).
    TIDV = 0x3820, // Transmit Interrupt Delay Value (13.4.41), 1.024 us.
    TXDCTL = 0x3828, // Transmit Descriptor Control (13.4.43).
    TADV = 0x382c, // Transmit Absolute Interrupt Delay Value (13.4.44), 1.024 us.
    TSPMT = 0x3830, // TCP Segmentation Pad and Minimum Threshold (13.4.45).
    TDBAL1 = 0x3900, // The second transmit queue's ring, on chips that have one.
    TDT1 = 0x3918, // Its tail.
    STATS = 0x4000, // First statistics register (13.7.1).
    STATS_END = 0x4100, // One past the last (13.7.54).
    RXCSUM = 0x5000, // Receive Checksum Control (13.4.47).
    RFCTL = 0x5008, // Receive Filter Control, of later chips.
    MTA = 0x5200, // Multicast Table Array, 128 words (13.5.1).
    RA = 0x5400, // Receive Address Low/High, 16 pairs (13.5.2, 13.5.3).
    VFTA = 0x5600, // VLAN Filter Table Array, 128 words (13.5.4).
    FILTERS_END = 0x5800, // One past the filter registers.
    MRQC = 0x5818, // Multiple Receive Queues Command, of the 82574L.
    MANC2H = 0x5860, // Management Control to Host, of later chips.
    SWSM = 0x5b50, // Software Semaphore, of later chips: who has set bit 1 may use the EEPROM.
    /// Software-Firmware Synchronization, of later chips: which side uses which resource.
    SW_FW_SYNC = 0x5b5c,
    RETA = 0x5c00, // Redirection Table, 32 words, of the 82574L.
    RSSRK = 0x5c80, // RSS Random Key, 10 words, of the 82574L.
}

/// Bits of registers that more than one file looks at.
pub mod bit {
    pub const CTRL_FD: u32 = 1; // Full Duplex.
    pub const CTRL_SLU: u32 = 1 << 6; // Set Link Up.
    pub const CTRL_FRCSPD: u32 = 1 << 11; // Force Speed.
    pub const CTRL_FRCDPLX: u32 = 1 << 12; // Force Duplex.
    pub const CTRL_RST: u32 = 1 << 26; // Device Reset.
    pub const CTRL_PHY_RST: u32 = 1 << 31; // PHY Reset.
    pub const STATUS_FD: u32 = 1; // Full duplex.
    pub const STATUS_LU: u32 = 1 << 1; // Link Up.
    pub const RCTL_EN: u32 = 1 << 1; // Receiver enable.
    pub const RCTL_LBM: u32 = 3 << 6; // Loopback mode.
    pub const TCTL_EN: u32 = 1 << 1; // Transmit enable.
    pub const FPD: u32 = 1 << 31; // Flush Partial Descriptor block (RDTR, TIDV).
}

/// Values of all registers of BAR0 that are plain words, and how often each register was touched.
pub struct Registers {
    /// Offsets 0..0x2000 and 0x4000.., by word.
    words: Box<[AtomicU32]>,
    /// For each word, the index of its row in the table plus 1; 0: no register.
    rows: Box<[u8]>,
    table: Box<[&'static Row]>,
    /// For each row: reads, writes.
    accesses: Box<[(AtomicU64, AtomicU64)]>,
    pages: Window,
    /// The pages hold what a guest has stored there while there was no chip: nothing is written to
    /// them before the chip goes on from a state.
    kept: AtomicBool,
    /// Where the values go as well, to outlive the process.
    held: OnceLock<Arc<Held>>,
}

const END: u32 = 0xa000; // Registers with values of their own end here.
const MAPPED_END: u32 = 0x2_0000; // The packet buffer memory, which reads as 0, ends here.

impl Registers {
    /// All zero: those that both chips have, and `own`. Without `csb` there are no registers for
    /// the CSB. Never panics: rows that do not fit are left out, and a test looks for them.
    pub fn new(own: &'static [Row], pages: Window, kept: bool, csb: bool) -> Self {
        let mut rows = vec![0u8; (MAPPED_END / 4) as usize].into_boxed_slice();
        let exists = |row: &Row| csb || !matches!(row.offset, CSBAL | CSBAH);
        let table: Box<[_]> = COMMON.iter().chain(own).collect();
        for (number, row) in (1u8..).zip(&table).filter(|(_, row)| exists(row)) {
            for i in 0..row.count {
                if let Some(slot) = rows.get_mut(((row.offset + i * row.stride) / 4) as usize) {
                    *slot = number;
                }
            }
        }
        Self {
            words: (0..END / 4).map(|_| AtomicU32::new(0)).collect(),
            rows,
            accesses: table.iter().map(|_| Default::default()).collect(),
            table,
            pages,
            kept: AtomicBool::new(kept),
            held: OnceLock::new(),
        }
    }

    /// The value of the register at `offset`, read once. The ring registers may change at any time.
    #[inline]
    pub fn get(&self, offset: u32) -> u32 {
        if (PAGES_START..PAGES_END).contains(&offset) {
            return self.pages.u32((offset - PAGES_START) as usize, Ordering::Acquire);
        }
        self.words.get((offset / 4) as usize).map_or(0, |w| w.load(Ordering::Acquire))
    }

    #[inline]
    pub fn set(&self, offset: u32, value: u32) {
        self.note(offset, value);
        if (PAGES_START..PAGES_END).contains(&offset) {
            point();
            self.pages.set_u32((offset - PAGES_START) as usize, value, Ordering::Release);
        } else if let Some(word) = self.words.get((offset / 4) as usize) {
            word.store(value, Ordering::Release);
        }
    }

    /// Replaces the value of a ring register if it is still `old`; false: somebody has written it
    /// since.
    #[must_use]
    #[inline]
    pub fn replace(&self, offset: u32, old: u32, new: u32) -> bool {
        // Whoever is about to set another has noted that: both take the same.
        self.held.get().into_iter().for_each(|held| held.replace_register(offset, old, new));
        point();
        self.pages.replace_u32((offset - PAGES_START) as usize, old, new)
    }

    /// What outlives the process has the value before anybody can act on it.
    #[inline]
    fn note(&self, offset: u32, value: u32) {
        if offset < END
            && let Some(held) = self.held.get()
        {
            held.set_register(offset, value);
        }
    }

    /// A word of the chip's own outlives the process.
    pub fn set_own(&self, n: usize, value: u32) {
        self.held.get().into_iter().for_each(|held| held.set_own(n, value));
    }

    /// They outlive the process in there.
    pub fn hold(&self, held: &Arc<Held>) -> bool {
        self.held.set(Arc::clone(held)).is_ok()
    }

    /// Finds them in what a process has left. `mapped`: the pages have their values already.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn revive(&self, remains: &Remains<'_>, mapped: bool) -> Result<(), StateError> {
        let all = self.table.iter().flat_map(|row| row.offsets().map(move |at| (*row, at)));
        for (row, at) in all.filter(|(_, at)| *at < END && *at != STATUS) {
            let in_pages = (PAGES_START..PAGES_END).contains(&at);
            let exists = self.row(at).is_some();
            let value = if in_pages && mapped { self.get(at) } else { remains.register(at) };
            if exists && !in_pages && !row.may_be(value) {
                return Err(StateError::Lost("a register has bits that do not exist"));
            }
            self.note(at, value);
            if exists && !(in_pages && mapped) {
                self.set(at, value);
            }
        }
        Ok(())
    }

    /// Two registers as one address: `low` with its 4 lowest bits cleared (descriptor rings are
    /// aligned to 16 bytes).
    #[inline]
    pub fn base(&self, low: u32, high: u32) -> u64 {
        u64::from(self.get(low) & !0xf) | u64::from(self.get(high)) << 32
    }

    /// The register at `offset` (a multiple of 4), counted as read or written.
    pub fn touch(&self, offset: u32, write: bool) -> Option<&'static Row> {
        let index = usize::from(*self.rows.get((offset / 4) as usize)?).checked_sub(1)?;
        let (reads, writes) = self.accesses.get(index)?;
        if write { writes } else { reads }.fetch_add(1, Ordering::Relaxed);
        self.table.get(index).copied()
    }

    /// Registers that were touched.
    pub fn accesses(&self) -> Vec<RegisterCount> {
        let all =
            self.table.iter().zip(&self.accesses).map(|(row, (reads, writes))| RegisterCount {
                register: row.name,
                reads: reads.load(Ordering::Relaxed),
                writes: writes.load(Ordering::Relaxed),
            });
        all.filter(|a| a.reads | a.writes != 0).collect()
    }

    /// Sets all to their values after power-on, or after CTRL.RST.
    pub fn reset(&self, power_on: bool) {
        for row in self.table.iter().filter(|row| power_on || !row.sticky) {
            for offset in row.offsets().filter(|offset| !self.keeps(*offset)) {
                self.set(offset, row.reset);
            }
        }
    }

    /// It lies in pages that are kept.
    fn keeps(&self, offset: u32) -> bool {
        self.kept.load(Ordering::Relaxed) && (PAGES_START..PAGES_END).contains(&offset)
    }

    /// The pages are the chip's from now on.
    pub fn release(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }

    /// Passes the registers that are not as after power-on. A store to a mapped page may have set
    /// any bit, else there are only those that exist.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { words: _, table, rows: _, accesses: _, pages: _, kept: _, held: _ } = self;
        let mut list: Vec<(u32, u32)> = table
            .iter()
            .filter(|row| row.offset != STATUS)
            .flat_map(|row| row.offsets().map(|offset| (offset, row.reset)))
            .filter(|(offset, reset)| self.row(*offset).is_some() && self.get(*offset) != *reset)
            .map(|(offset, _)| (offset, self.get(offset)))
            .collect();
        list.sort_unstable();
        io.list(&mut list, MAPPED_END as usize / 4, |io, (offset, value)| {
            io.u32(offset);
            io.u32(value);
        });
        if !io.restores() {
            return;
        }
        self.reset(true);
        for (offset, value) in list {
            let mapped = (PAGES_START..PAGES_END).contains(&offset);
            let exists = self.row(offset).is_some_and(|row| mapped || row.may_be(value));
            io.check(offset.is_multiple_of(4) && offset != STATUS && exists);
            if !self.keeps(offset) {
                self.set(offset, value);
            }
        }
    }

    /// The register at `offset`.
    fn row(&self, offset: u32) -> Option<&'static Row> {
        let index = usize::from(*self.rows.get((offset / 4) as usize)?).checked_sub(1)?;
        self.table.get(index).copied()
    }
}
