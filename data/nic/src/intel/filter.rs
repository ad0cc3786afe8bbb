//! Which frames are received, and how (SDM 3.2.1, 9.2, 13.4.22, 13.5): a copy of the registers,
//! taken again whenever one of them is written.

use std::sync::atomic::Ordering;

use super::chip::Intel;
use super::desc::{CTRL_VME, mrqc, rctl, rxcsum};
use super::model::Model;
use super::regs::{self, Registers};
use super::ring::{Format, Ring};
use crate::chip::frame_totals::FCS;
use crate::chip::state::Fields;
use crate::ring::spread::{KEY, Spread, TABLE as ENTRIES, kind};
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
    /// Of the descriptors then.
    format: Format,
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
    /// How frames are spread over queues, on chips that have several.
    spread: Option<Spread>,
    spreads: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            version: None,
            format: Format::Legacy,
            rctl: 0,
            addresses: [0; ADDRESSES as usize],
            valid: 0,
            multicast: [0; TABLE],
            vlans: [0; TABLE],
            vet: [0; 2],
            shape: Shape { buffer: 2048, longest: LONGEST, fcs: FCS, ..Shape::default() },
            threshold: 1,
            spread: None,
            spreads: false,
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
    /// One of a chip with several queues.
    pub fn spreading() -> Self {
        Self { spread: Some(Spread::default()), ..Self::default() }
    }

    /// How frames are spread over queues, if they are.
    #[inline]
    pub fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref().filter(|_| self.spreads)
    }

    /// MRQC, RETA, RSSRK. Hashes have the place of the packet checksum (RXCSUM.PCSD), in
    /// descriptors that have one.
    fn copy_spread(&mut self, regs: &Registers) {
        let Some(spread) = &mut self.spread else { return };
        let mrqc = regs.get(regs::MRQC);
        let hashes = regs.get(regs::RXCSUM) & rxcsum::PCSD != 0 && self.format != Format::Legacy;
        self.spreads = hashes && mrqc & mrqc::QUEUES == mrqc::TWO_QUEUES;
        if !self.spreads {
            return;
        }
        let asked = |bits, kind| if mrqc & bits != 0 { kind } else { 0 };
        let kinds = asked(mrqc::TCP4, kind::TCP4)
            | asked(mrqc::IPV4, kind::IPV4)
            | asked(mrqc::TCP6, kind::TCP6)
            | asked(mrqc::IPV6, kind::IPV6);
        let byte = |table: u32, at: usize| {
            let word = (0..).step_by(4).nth(at / 4).map_or(0, |place| regs.get(table + place));
            word.to_le_bytes().get(at % 4).copied().unwrap_or(0)
        };
        let key: [u8; KEY] = std::array::from_fn(|at| byte(regs::RSSRK, at));
        let table: [u8; ENTRIES] = std::array::from_fn(|at| byte(regs::RETA, at) >> 7);
        spread.set(kinds, &key, table, ENTRIES);
    }

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
        self.copy_spread(regs);
        let strip = regs.get(regs::CTRL) & CTRL_VME != 0;
        let sums = regs.get(regs::RXCSUM);
        self.set_shape(strip, (sums & rxcsum::IPOFL != 0, sums & rxcsum::TUOFL != 0));
    }

    /// FLXBUF, BSIZE, BSEX, LPE, SECRC and RDMTS.
    fn set_shape(&mut self, strip: bool, sums: (bool, bool)) {
        let has = |bit| self.rctl & bit != 0;
        let size = self.rctl >> rctl::BSIZE_SHIFT & 3;
        let flexible = (self.rctl >> rctl::FLXBUF_SHIFT & 15) as usize;
        let buffer = match (has(rctl::BSEX), size) {
            _ if flexible > 0 => flexible << 10,
            // BSEX with 00 is reserved.
            (_, 0) => 2048,
            (false, size) => 2048 >> size,
            (true, size) => 32_768 >> size,
        };
        // Of several buffers only the first is one that a whole frame may be in.
        let (first, buffer) = match self.format {
            Format::Split(sizes) => (sizes.first(), sizes.sum()),
            _ => (buffer, buffer),
        };
        let longest = if has(rctl::LPE) { LONGEST_LPE } else { LONGEST };
        let fcs = if has(rctl::SECRC) { 0 } else { FCS };
        // Without its FCS a frame may be 4 bytes shorter than its length is counted.
        let most = first.min(longest + fcs - FCS);
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

    #[inline]
    fn filters_vlans(&self) -> bool {
        self.rctl & (rctl::VFE | rctl::CFIEN) != 0
    }

    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        head.get(12..14) == Some(self.vet.as_slice())
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
        if !self.is_tagged(head) {
            return true;
        }
        let Some([a, b]) = head.get(14..16).and_then(|t| t.first_chunk()) else { return false };
        let tag = u16::from_be_bytes([*a, *b]);
        let canonical = tag >> 12 & 1 == u16::from(self.rctl & rctl::CFI != 0);
        (self.rctl & rctl::CFIEN == 0 || canonical)
            && (self.rctl & rctl::VFE == 0 || bit(&self.vlans, tag & 0xfff))
    }
}

impl<M: Model> ring::Filter<Ring<M>> for Filter {
    /// Copies the registers if they were written since: the version is bumped after each write.
    #[inline]
    fn update(&mut self, chip: &Intel<M>, ring: &Ring<M>, _: &Look) {
        let version = chip.filter_version.load(Ordering::Acquire);
        if self.version != Some(version) || self.format != ring.format {
            self.format = ring.format;
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
        self.accepts_address(*bytes) && (!self.filters_vlans() || self.accepts_vlan(head))
    }

    #[inline]
    fn by_more(&self) -> bool {
        self.filters_vlans()
    }

    fn fields(&mut self, io: &mut Fields<'_>) {
        if io.restores() {
            *self = Self { spread: self.spread.take(), ..Self::default() };
        }
    }

    /// By VET.
    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        self.is_tagged(head)
    }
}

/// Bit `n` of a table of 4,096.
fn bit(table: &[u32; TABLE], n: u16) -> bool {
    table.get(usize::from(n >> 5)).is_some_and(|word| word >> (n & 31) & 1 != 0)
}
