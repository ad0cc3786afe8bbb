//! Which frames are received, and how (SDM 3.2.1, 9.2, 13.4.22, 13.5): a copy of the registers,
//! taken again whenever one of them is written.

use std::sync::atomic::Ordering;

use super::E1000;
use super::desc::{CTRL_VME, rctl, rxcsum};
use super::regs::{self, Registers};
use super::ring::Ring;
use crate::chip::frame_totals::FCS;
use crate::chip::state::Fields;
use crate::ring::{self, Look, Shape};

const ADDRESSES: u32 = 16; // Address pairs RAL/RAH.
const TABLE: usize = 128; // Words of MTA and VFTA.
const VALID: u32 = 1 << 31; // RAH.AV: Address Valid.

const LONGEST: usize = 1522; // Longest frame without LPE, with its FCS (13.4.22).
const LONGEST_LPE: usize = 16_384; // With LPE.

/// Which frames are received, and how.
pub struct Filter {
    /// Of the registers when they were copied.
    version: Option<u32>,
    rctl: u32,
    /// Addresses as [`address`] makes them.
    addresses: [u64; ADDRESSES as usize],
    valid: usize,
    multicast: [u32; TABLE],
    vlans: [u32; TABLE],
    vet: [u8; 2],
    shape: Shape,
    /// Free descriptors at which RXDMT0 is raised: the ring's size is shifted right by this.
    pub threshold: u32,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            version: None,
            rctl: 0,
            addresses: [0; ADDRESSES as usize],
            valid: 0,
            multicast: [0; TABLE],
            vlans: [0; TABLE],
            vet: [0; 2],
            shape: Shape { buffer: 2048, longest: LONGEST, fcs: FCS, ..Shape::default() },
            threshold: 1,
        }
    }
}

/// A MAC address as one number.
#[inline]
fn address(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

impl Filter {
    #[cold]
    fn copy(&mut self, regs: &Registers) {
        self.rctl = regs.get(regs::RCTL);
        self.valid = 0;
        for i in 0..ADDRESSES {
            let (low, high) = (regs.get(regs::RA + 8 * i), regs.get(regs::RA + 8 * i + 4));
            if high & VALID != 0
                && let Some(place) = self.addresses.get_mut(self.valid)
            {
                *place = u64::from(low) | u64::from(high & 0xffff) << 32;
                self.valid += 1;
            }
        }
        let words = || (0u32..).step_by(4);
        for (word, at) in self.multicast.iter_mut().zip(words()) {
            *word = regs.get(regs::MTA + at);
        }
        for (word, at) in self.vlans.iter_mut().zip(words()) {
            *word = regs.get(regs::VFTA + at);
        }
        let [a, b, ..] = regs.get(regs::VET).to_le_bytes();
        self.vet = [b, a];
        let strip = regs.get(regs::CTRL) & CTRL_VME != 0;
        let sums = regs.get(regs::RXCSUM);
        self.set_shape(strip, (sums & rxcsum::IPOFL != 0, sums & rxcsum::TUOFL != 0));
    }

    /// BSIZE, BSEX, LPE, SECRC and RDMTS.
    fn set_shape(&mut self, strip: bool, sums: (bool, bool)) {
        let has = |bit| self.rctl & bit != 0;
        let size = self.rctl >> rctl::BSIZE_SHIFT & 3;
        let buffer = match (has(rctl::BSEX), size) {
            // BSEX with 00 is reserved.
            (_, 0) => 2048,
            (false, size) => 2048 >> size,
            (true, size) => 32_768 >> size,
        };
        let longest = if has(rctl::LPE) { LONGEST_LPE } else { LONGEST };
        let fcs = if has(rctl::SECRC) { 0 } else { FCS };
        // Without its FCS a frame may be 4 bytes shorter than its length is counted.
        let most = buffer.min(longest + fcs - FCS);
        let quick = if strip { 0 } else { most };
        let untagged = most;
        let shape =
            Shape { buffer, quick, longest, fcs, strip, untagged, sums, ..Shape::default() };
        self.shape = shape;
        self.threshold = 1 + (self.rctl >> rctl::RDMTS_SHIFT & 3).min(2);
    }

    #[inline]
    fn accepts_address(&self, bytes: [u8; 6]) -> bool {
        let wanted = address(bytes);
        let own = self.addresses.get(..self.valid).unwrap_or_default();
        if own.first() == Some(&wanted) {
            return true;
        }
        let [first, .., e, f] = bytes;
        if first & 1 == 0 {
            return self.rctl & rctl::UPE != 0 || own.contains(&wanted);
        }
        let broadcast = bytes == [0xff; 6] && self.rctl & rctl::BAM != 0;
        broadcast
            || self.rctl & rctl::MPE != 0
            || own.contains(&wanted)
            || self.hashed(u16::from_le_bytes([e, f]))
    }

    /// 12 bits of the last two bytes of the address, chosen by RCTL.MO, select a bit of the table.
    fn hashed(&self, last: u16) -> bool {
        let shift = match self.rctl >> rctl::MO_SHIFT & 3 {
            0 => 4,
            1 => 3,
            2 => 2,
            _ => 0,
        };
        bit(&self.multicast, last >> shift & 0xfff)
    }

    /// Tagged frames are looked up by VLAN; others pass.
    fn accepts_vlan(&self, head: &[u8]) -> bool {
        if !ring::Filter::is_tagged(self, head) {
            return true;
        }
        let Some([a, b]) = head.get(14..16).and_then(|t| t.first_chunk()) else { return false };
        let tag = u16::from_be_bytes([*a, *b]);
        let canonical = tag >> 12 & 1 == u16::from(self.rctl & rctl::CFI != 0);
        (self.rctl & rctl::CFIEN == 0 || canonical)
            && (self.rctl & rctl::VFE == 0 || bit(&self.vlans, tag & 0xfff))
    }
}

impl ring::Filter<Ring> for Filter {
    /// Copies the registers if they were written since: the version is bumped after each write.
    #[inline]
    fn update(&mut self, chip: &E1000, _: &Ring, _: &Look) {
        let version = chip.filter_version.load(Ordering::Acquire);
        if self.version != Some(version) {
            self.copy(&chip.regs);
            self.version = Some(version);
        }
    }

    #[inline]
    fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    fn accepts(&self, head: &[u8]) -> bool {
        let Some(bytes) = head.first_chunk::<6>() else { return false };
        self.accepts_address(*bytes) && (!self.by_more() || self.accepts_vlan(head))
    }

    #[inline]
    fn by_more(&self) -> bool {
        self.rctl & (rctl::VFE | rctl::CFIEN) != 0
    }

    fn fields(&mut self, io: &mut Fields<'_>) {
        if io.restores() {
            *self = Self::default();
        }
    }

    /// By VET.
    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        head.get(12..14) == Some(self.vet.as_slice())
    }
}

/// Bit `n` of a table of 4,096.
fn bit(table: &[u32; TABLE], n: u16) -> bool {
    table.get(usize::from(n >> 5)).is_some_and(|word| word >> (n & 31) & 1 != 0)
}
