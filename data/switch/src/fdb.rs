//! The forwarding table: which MAC address is behind which port, for each broadcast domain by
//! itself.
//!
//! ```text
//!  entry (AtomicU64):   63 .. 16   15 .. 6   5 .. 1      0
//!                        MAC        port      last seen   static
//!  set: 4 entries, 32 bytes. An address may lie in either of two sets, chosen by a keyed hash.
//!  domain (AtomicU16): one for each entry, in an array of their own. It is not read for entries of
//!                      the open domain. Those of other domains have the MAC's group bit set, which
//!                      no address in the table has by itself.
//! ```
//!
//! All workers look up and learn without a lock. An entry is one word, so it is never seen half
//! written. Its domain is kept elsewhere: to fill a slot, a worker first claims it by a word that
//! is not an entry, then writes the domain, then the entry. So whoever finds an entry finds its own
//! domain beside it, except after a delay: between the two reads the slot may have been given to
//! another entry, and between the read and a compare-exchange to one that differs in nothing but
//! the domain. Then a frame goes to where the address is in another domain, or the wrong learned
//! entry is moved or forgotten. The first is harmless, since the switch asks each port whether it
//! carries the domain. The second costs a flood. Pinned entries are written, moved and forgotten by
//! the control thread alone, which is never delayed against itself.
//!
//! "Last seen" counts ticks modulo 32; [`Fdb::tick`] removes entries of age 30, so two more ticks
//! would have to pass unnoticed before an old entry could look young again.
//!
//! An address is never evicted for another one: when both its sets are full it is not learned, and
//! frames to it are flooded. An attacker can fill no more than the cap per port, and cannot aim at
//! a set without knowing the seed.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use vmlan_frame::{Counter, Mac};

use crate::policy::Domain;
use crate::{MAX_PORTS, PortId};

mod control;
mod learn;
mod news;

pub use news::FdbNews;
use news::News;

const WAYS: usize = 4;
const STATIC: u64 = 1;
const TICK_SHIFT: u32 = 1;
const TICKS: u8 = 32;
const PORT_SHIFT: u32 = 6;
const MAC_SHIFT: u32 = 16;

/// Set in an entry's MAC address if it is in another domain than [`Domain::OPEN`].
const GROUP: u64 = 1 << 40;

/// The word in a slot that a worker is about to fill: no address, no port.
const CLAIMED: u64 = STATIC;

/// Ticks after which an entry is forgotten: [`Fdb::tick`] is called each ageing time / `AGE`.
pub(crate) const AGE: u8 = 30;

#[derive(Debug, Default)]
#[repr(align(32))]
struct Set([AtomicU64; WAYS]);

/// The place of an entry.
#[derive(Clone, Copy)]
struct Slot<'s> {
    word: &'s AtomicU64,
    domain: &'s AtomicU16,
}

/// The forwarding table.
#[derive(Debug)]
pub struct Fdb {
    sets: Box<[Set]>,
    /// The domains of the sets' entries.
    domains: Box<[[AtomicU16; WAYS]]>,
    mask: usize,
    keys: [u64; 2],
    now: AtomicU8,
    /// Dynamic entries of each port.
    counts: Box<[AtomicU32]>,
    port_cap: u32,
    unlearned: Counter,
    news: News,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct FdbEntry {
    pub mac: Mac,
    /// The broadcast domain in which it is there.
    pub domain: Domain,
    pub port: PortId,
    /// Ticks since it was last seen (ageing time / 30 each); `None` for a static entry.
    pub age: Option<u8>,
}

/// Why a static entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FdbError {
    /// A group address, or zero: it cannot be behind one port.
    #[error("{0} is not a unicast address")]
    NotUnicast(Mac),
    /// Both sets are full of static entries.
    #[error("no slot is left for {0}: give the table more entries")]
    Full(Mac),
}

/// What became of a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// Known now, or not learnable; the frame may pass.
    Pass,
    /// The address is pinned to another port: the frame must not pass.
    Refused,
}

/// What would become of the source address of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WouldLearn {
    /// It is behind this port already; ticks since it was last seen, `None` if it is pinned there.
    Known(Option<u8>),
    /// It would be learned.
    New,
    /// It would be learned; until now it was behind that port.
    Moves(PortId),
    /// It is pinned to that port: the frame would be refused.
    Pinned(PortId),
    /// It would not be learned, since the table, or the port's share of it, is full. It would stay
    /// behind that port, if it was known.
    Full(Option<PortId>),
}

/// An address as entries have it.
#[inline]
fn key(mac: Mac, domain: Domain) -> u64 {
    mac.bits() | if domain == Domain::OPEN { 0 } else { GROUP }
}

#[inline]
fn key_of(entry: u64) -> u64 {
    entry >> MAC_SHIFT
}

fn port_of(entry: u64) -> PortId {
    PortId::from_bits(entry >> PORT_SHIFT)
}

fn tick_of(entry: u64) -> u8 {
    let [low, ..] = (entry >> TICK_SHIFT).to_le_bytes();
    low % TICKS
}

fn entry(mac: Mac, domain: Domain, port: PortId, tick: u8) -> u64 {
    key(mac, domain) << MAC_SHIFT | port.bits() << PORT_SHIFT | u64::from(tick) << TICK_SHIFT
}

/// The low bits of a hash. Only these are used.
#[inline]
#[allow(clippy::cast_possible_truncation)] // wanted
fn low(hash: u64) -> usize {
    hash as usize
}

/// The two halves of a 128-bit product.
#[inline]
#[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
fn wide_mul(a: u64, b: u64) -> (u64, u64) {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64, (wide >> 64) as u64)
}

/// The domain beside an entry that was just read.
#[inline]
fn domain_of(domain: &AtomicU16) -> Domain {
    // Pairs with the release of the entry: its domain was written before it.
    fence(Ordering::Acquire);
    Domain::from_bits(domain.load(Ordering::Relaxed))
}

/// True for what is neither free nor being filled.
fn is_entry(word: u64) -> bool {
    word > CLAIMED
}

impl Fdb {
    /// A table of at least `slots` slots, at most `port_cap` learned addresses for each port.
    pub fn new(slots: usize, port_cap: u32) -> Self {
        let sets = (slots.clamp(WAYS, 1 << 26) / WAYS).next_power_of_two();
        let random = RandomState::new();
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            domains: (0..sets).map(|_| Default::default()).collect(),
            mask: sets - 1,
            keys: [random.hash_one(1), random.hash_one(2) | 1],
            now: AtomicU8::new(0),
            counts: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
            port_cap,
            unlearned: Counter::default(),
            news: News::default(),
        }
    }

    /// The keyed hash of an address, which selects the two sets that it may be in.
    #[inline]
    pub(crate) fn hash(&self, mac: Mac, domain: Domain) -> u64 {
        let [a, b] = self.keys;
        let key = mac.bits() | u64::from(domain.bits()) << 48;
        let (low, high) = wide_mul(key ^ a, b);
        low ^ high
    }

    /// The numbers of the two sets.
    #[inline]
    fn sets_of(&self, hash: u64) -> [usize; 2] {
        [hash, hash.rotate_left(32)].map(|h| low(h) & self.mask)
    }

    #[inline]
    fn words(&self, set: usize) -> &[AtomicU64] {
        self.sets.get(set).map_or(&[], |s| &s.0[..])
    }

    /// The slots of some sets, one set after the other.
    fn slots_of(&self, sets: impl IntoIterator<Item = usize>) -> impl Iterator<Item = Slot<'_>> {
        sets.into_iter().flat_map(|set| {
            let domains = self.domains.get(set).map_or(&[][..], |d| &d[..]);
            self.words(set).iter().zip(domains).map(|(word, domain)| Slot { word, domain })
        })
    }

    #[inline]
    fn find(&self, hash: u64, mac: Mac, domain: Domain) -> Option<(&AtomicU64, u64)> {
        if domain != Domain::OPEN {
            return self.find_beside(hash, mac, domain);
        }
        let key = mac.bits();
        let find = |set| {
            self.words(set).iter().find_map(|word| {
                let e = word.load(Ordering::Relaxed);
                (key_of(e) == key).then_some((word, e))
            })
        };
        let [first, second] = self.sets_of(hash);
        // Only the address that is none has the key of a slot without an entry.
        find(first).or_else(|| find(second)).filter(|(_, e)| is_entry(*e))
    }

    /// [`Fdb::find`] for domains that have to be compared.
    #[inline(never)] // or looking up in the open domain gets slower
    fn find_beside(&self, hash: u64, mac: Mac, domain: Domain) -> Option<(&AtomicU64, u64)> {
        let key = key(mac, domain);
        self.slots_of(self.sets_of(hash)).find_map(|slot| {
            let e = slot.word.load(Ordering::Relaxed);
            let found = key_of(e) == key && is_entry(e) && domain_of(slot.domain) == domain;
            found.then_some((slot.word, e))
        })
    }

    /// Fetches the set of an address that will be looked up soon.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let [first, _] = self.sets_of(hash);
        if let Some(word) = self.words(first).first() {
            vmlan_ram::prefetch(word);
        }
    }

    /// The port that `mac` is behind.
    pub fn lookup(&self, mac: Mac, domain: Domain) -> Option<PortId> {
        self.get(mac, domain).map(|e| e.port)
    }

    /// [`Fdb::lookup`] of a unicast address whose hash was computed before.
    #[inline]
    pub(crate) fn lookup_hashed(&self, mac: Mac, domain: Domain, hash: u64) -> Option<PortId> {
        self.find(hash, mac, domain).map(|(_, e)| port_of(e))
    }

    /// The entry of an address.
    pub fn get(&self, mac: Mac, domain: Domain) -> Option<FdbEntry> {
        let hash = (!mac.is_group()).then(|| self.hash(mac, domain));
        let found = hash.and_then(|hash| self.find(hash, mac, domain));
        found.map(|(_, e)| self.line(e, domain))
    }

    /// What [`Fdb::learn`] would do. Changes nothing.
    pub(crate) fn would_learn(&self, mac: Mac, domain: Domain, port: PortId) -> WouldLearn {
        match self.get(mac, domain) {
            Some(e) if e.port == port => WouldLearn::Known(e.age),
            Some(FdbEntry { age: None, port, .. }) => WouldLearn::Pinned(port),
            Some(e) if self.may_grow(port) => WouldLearn::Moves(e.port),
            None if self.may_grow(port) && mac != Mac::default() && self.has_room(mac, domain) => {
                WouldLearn::New
            }
            other => WouldLearn::Full(other.map(|e| e.port)),
        }
    }

    fn has_room(&self, mac: Mac, domain: Domain) -> bool {
        let sets = self.sets_of(self.hash(mac, domain));
        self.slots_of(sets).any(|slot| slot.word.load(Ordering::Relaxed) == 0)
    }

    fn may_grow(&self, port: PortId) -> bool {
        self.count(port).load(Ordering::Relaxed) < self.port_cap
    }

    #[allow(clippy::indexing_slicing)] // a PortId is below MAX_PORTS, the length of `counts`
    fn count(&self, port: PortId) -> &AtomicU32 {
        &self.counts[port.index()]
    }

    fn entries(&self) -> impl Iterator<Item = (Slot<'_>, u64)> {
        let all = self.slots_of(0..self.sets.len());
        all.map(|s| (s, s.word.load(Ordering::Relaxed))).filter(|(_, e)| is_entry(*e))
    }

    fn line(&self, e: u64, domain: Domain) -> FdbEntry {
        let now = self.now.load(Ordering::Relaxed);
        FdbEntry {
            mac: Mac::from_bits(key_of(e) & !GROUP),
            domain,
            port: port_of(e),
            age: (e & STATIC == 0).then(|| Self::age(now, e)),
        }
    }

    /// Gathers what is learned from now on, for [`Fdb::take_news`], or stops that.
    pub fn want_news(&self, wanted: bool) {
        self.news.want(wanted);
    }

    /// Appends what was learned since the last call to `into`. Returns how much, since the
    /// beginning, was learned too fast to be gathered. For the control thread.
    pub fn take_news(&self, into: &mut Vec<FdbNews>) -> u64 {
        self.news.take(into)
    }

    /// Source addresses that were not learned because the table or the port's share of it was full.
    pub fn unlearned(&self) -> u64 {
        self.unlearned.get()
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests;
