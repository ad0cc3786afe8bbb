//! Which frames are received, and how they are handed over: rxMode, the address, the tables of
//! groups and of VLANs, uptFeatures. What the guest says of it is copied when it says so, by
//! ACTIVATE and by the commands about each; it is never looked at again.

use std::sync::Arc;

use vmlan_frame::{MAX_FRAME, Mac};
use vmlan_ram::Map;

use super::shared::{MTU, Shared, Words, copy, feature};
use super::spread::Spread;
use crate::chip::frame_totals::FCS;
use crate::chip::state::{Fields, Stateful};
use crate::ring::{MAX_PARTS, Shape};

/// Bits of rxMode.
mod mode {
    pub const UNICAST: u32 = 1;
    pub const MULTICAST: u32 = 2; // By the table.
    pub const BROADCAST: u32 = 4;
    pub const ALL_GROUPS: u32 = 8;
    pub const PROMISCUOUS: u32 = 16;
}

/// Places in DriverShared.
const FEATURES: u64 = 0x18;
const MODE: u64 = 0x78;
const GROUPS: u64 = 0x7c;
const VLANS: u64 = 0x88;
const SPREAD: u64 = 0x290;

/// Addresses of a table of groups; whoever has more gets them all.
const MOST_GROUPS: usize = 512;
/// Words of the table of VLANs.
const VLAN_WORDS: usize = 128;
/// Buffers of a frame, if the driver names no limit: no Linux driver holds more fragments.
const MOST_BUFFERS: usize = 18;
const HEADERS: usize = 14 + 4; // Bytes of a frame beside its packet: addresses, type, a tag.

const TAG_AT: usize = 12;
const TAG: [u8; 2] = [0x81, 0x00];

/// What the driver has said about frames that it wants.
#[derive(Clone, Debug)]
pub struct Rules {
    pub own: Mac,
    /// The driver understands what is said about packets that stand for several (version 2).
    pub knows_uncut: bool,
    mode: u32,
    /// In order.
    groups: Vec<u64>,
    too_many: bool,
    /// `None`: all. A table without any VLAN means that: some drivers leave it empty.
    vlans: Option<[u32; VLAN_WORDS]>,
    features: u32,
    mtu: usize,
    most_buffers: usize,
    spread: Option<Spread>,
}

impl Default for Rules {
    /// No frames.
    fn default() -> Self {
        Self {
            own: Mac::default(),
            knows_uncut: false,
            mode: 0,
            groups: Vec::new(),
            too_many: false,
            vlans: None,
            features: 0,
            mtu: 0,
            most_buffers: MOST_BUFFERS,
            spread: None,
        }
    }
}

/// Little-endian words at `address`; zeros if they are not in memory.
fn words<const N: usize>(map: &Map, address: u64, at: u64) -> [u8; N] {
    let address = address.checked_add(at);
    address.and_then(|address| copy(map, address)).unwrap_or([0; N])
}

impl Rules {
    /// All that DriverShared at `address` says, to a device with the address `own`.
    pub fn read(map: &Arc<Map>, address: u64, shared: &Shared, own: Mac) -> Self {
        let most = usize::from(shared.most_buffers);
        let mut rules = Self {
            own,
            mtu: shared.mtu.into(),
            most_buffers: if most == 0 { MOST_BUFFERS } else { most.min(MAX_PARTS) },
            ..Self::default()
        };
        rules.read_mode(map, address);
        rules.read_groups(map, address);
        rules.read_vlans(map, address);
        rules.read_features(map, address);
        rules.read_spread(map, address);
        rules
    }

    /// rxMode.
    pub fn read_mode(&mut self, map: &Map, address: u64) {
        self.mode = u32::from_le_bytes(words(map, address, MODE));
    }

    /// uptFeatures, as far as they are known.
    pub fn read_features(&mut self, map: &Map, address: u64) {
        self.features = u32::from_le_bytes(words(map, address, FEATURES));
    }

    /// The table for RSS, and what else is said about that.
    pub fn read_spread(&mut self, map: &Map, address: u64) {
        let place = u64::from_le_bytes(words(map, address, SPREAD));
        self.spread = Spread::read(map, place);
    }

    /// How frames are spread over receive queues, if they are.
    #[inline]
    pub fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref().filter(|_| self.features & feature::SPREAD != 0)
    }

    /// The table of groups. One that is not in memory is empty.
    pub fn read_groups(&mut self, map: &Map, address: u64) {
        let bytes: [u8; 12] = words(map, address, GROUPS);
        let said = Words(&bytes);
        let count = usize::from(said.u16(0)) / 6;
        self.groups.clear();
        self.too_many = count > MOST_GROUPS;
        let Some(table) = map.slice(said.u64(4), 6 * count).filter(|_| !self.too_many) else {
            return;
        };
        let group = |n: usize| table.sub(6 * n, 6).read_array().map(|to| Mac::new(to).bits());
        self.groups.extend((0..count).filter_map(group));
        self.groups.sort_unstable();
    }

    /// The table of VLANs.
    pub fn read_vlans(&mut self, map: &Map, address: u64) {
        let bytes: [u8; 4 * VLAN_WORDS] = words(map, address, VLANS);
        let said = Words(&bytes);
        let mut table = [0; VLAN_WORDS];
        for (n, word) in table.iter_mut().enumerate() {
            *word = said.u32(4 * n);
        }
        self.vlans = table.iter().any(|word| *word != 0).then_some(table);
    }

    fn has(&self, bit: u32) -> bool {
        self.mode & bit != 0
    }

    /// Frames without a tag always pass the table.
    #[inline]
    pub fn filters_vlans(&self) -> bool {
        self.vlans.is_some() && !self.has(mode::PROMISCUOUS)
    }

    /// True if the frame that begins with `head` is for this station.
    #[inline]
    pub fn accepts(&self, head: &[u8]) -> bool {
        let Some(to) = head.first_chunk::<6>() else { return false };
        if self.has(mode::PROMISCUOUS) {
            return true;
        }
        let wanted = match Mac::new(*to) {
            Mac::BROADCAST => self.has(mode::BROADCAST),
            to if to.is_group() => self.accepts_group(to),
            to => self.has(mode::UNICAST) && to == self.own,
        };
        wanted && self.accepts_vlan(head)
    }

    fn accepts_group(&self, to: Mac) -> bool {
        let named = || self.too_many || self.groups.binary_search(&to.bits()).is_ok();
        self.has(mode::ALL_GROUPS) || self.has(mode::MULTICAST) && named()
    }

    fn accepts_vlan(&self, head: &[u8]) -> bool {
        let Some(table) = self.vlans.as_ref().filter(|_| is_tagged(head)) else { return true };
        let Some([a, b]) = head.get(TAG_AT + 2..TAG_AT + 4).and_then(|tag| tag.first_chunk())
        else {
            return false;
        };
        let vlan = u16::from_be_bytes([*a, *b]) & 0xfff;
        table.get(usize::from(vlan >> 5)).is_some_and(|word| word >> (vlan & 31) & 1 != 0)
    }

    /// Packets may be handed over uncut, as far as the driver is concerned.
    pub fn wants_uncut(&self) -> bool {
        self.knows_uncut && self.features & feature::UNCUT != 0
    }

    /// The longest packet fits buffers of these lengths: a head's, and those of bodies.
    pub fn fits_uncut(&self, head: usize, body: usize) -> bool {
        head + body * (self.most_buffers - 1) >= MAX_FRAME
    }

    /// How frames are handed over, without [`Shape::buffer`].
    pub fn shape(&self) -> Shape {
        let most = self.mtu + HEADERS;
        let strip = self.features & feature::STRIP != 0;
        let sums = self.features & feature::SUMS != 0;
        Shape {
            quick: if strip { 0 } else { most },
            longest: most + FCS,
            strip,
            untagged: most,
            most: self.most_buffers,
            uncut: if self.wants_uncut() { MAX_FRAME + FCS } else { 0 },
            sums: (sums, sums),
            ..Shape::default()
        }
    }
}

/// `head` begins a frame with a VLAN tag.
#[inline]
pub fn is_tagged(head: &[u8]) -> bool {
    head.get(TAG_AT..TAG_AT + 2) == Some(&TAG)
}

impl Stateful for Rules {
    #[rustfmt::skip]
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self {
            own, knows_uncut, mode, groups, too_many, vlans, features, mtu, most_buffers, spread,
        } = self;
        own.fields(io);
        [knows_uncut, too_many].into_iter().for_each(|flag| io.flag(flag));
        [mode, features].into_iter().for_each(|word| io.u32(word));
        io.list(groups, MOST_GROUPS, Fields::u64);
        io.check(groups.is_sorted());
        let mut table = vlans.unwrap_or([0; VLAN_WORDS]);
        table.fields(io);
        *vlans = table.iter().any(|word| *word != 0).then_some(table);
        io.count(mtu, (*MTU.end()).into());
        io.count(most_buffers, MAX_PARTS);
        io.check(*mtu >= usize::from(*MTU.start()) && *most_buffers > 0);
        io.option(spread, |io, spread| spread.fields(io));
    }
}
