//! What the control thread does with the table: ageing, pinning, forgetting, listing.

use std::sync::atomic::{Ordering, fence};

use vmlan_frame::Mac;

use super::{
    AGE, Fdb, FdbEntry, FdbError, STATIC, Slot, TICKS, domain_of, entry, key_of, port_of, tick_of,
};
use crate::policy::Domain;
use crate::{PortId, PortSet};

impl Fdb {
    /// Lets addresses age: to be called once in a thirtieth of the ageing time. Removes learned
    /// entries that have not been seen for 30 calls, and returns how many are left.
    pub fn tick(&self) -> usize {
        let now = (self.now.load(Ordering::Relaxed) + 1) % TICKS;
        self.now.store(now, Ordering::Relaxed);
        let mut left = 0;
        for (slot, e) in self.entries().filter(|(_, e)| e & STATIC == 0) {
            if Self::age(now, e) < AGE || !self.clear(slot.word, e) {
                left += 1;
            }
        }
        left
    }

    pub(super) fn age(now: u8, entry: u64) -> u8 {
        (now + TICKS - tick_of(entry)) % TICKS
    }

    /// Pins `mac` to `port`: it neither ages nor moves, and other ports may not send from it.
    pub fn add_static(&self, mac: Mac, domain: Domain, port: PortId) -> Result<(), FdbError> {
        if mac.is_group() || mac == Mac::default() {
            return Err(FdbError::NotUnicast(mac));
        }
        let wanted = entry(mac, domain, port, 0) | STATIC;
        self.remove(mac, domain);
        let sets = self.by_room(self.sets_of(self.hash(mac, domain)));
        let slots = || self.slots_of(sets).map(|s| (s, s.word.load(Ordering::Relaxed)));
        // A learned address gives way only if no slot is free: it will be learned again.
        let free = slots().filter(|(_, e)| *e == 0);
        let learned = slots().filter(|(_, e)| *e != 0 && e & STATIC == 0);
        if free.chain(learned).any(|(slot, old)| self.replace(slot, old, wanted, domain)) {
            fence(Ordering::SeqCst);
            // It may have been learned again since it was removed, in a slot that is found first.
            let twin = |(s, e): &(Slot<'_>, u64)| {
                key_of(*e) == key_of(wanted) && e & STATIC == 0 && domain_of(s.domain) == domain
            };
            while let Some((slot, e)) = slots().find(twin) {
                self.clear(slot.word, e);
            }
            return Ok(());
        }
        Err(FdbError::Full(mac))
    }

    fn replace(&self, slot: Slot<'_>, old: u64, wanted: u64, domain: Domain) -> bool {
        let won = self.fill(slot, old, wanted, domain);
        if won && old != 0 {
            self.count(port_of(old)).fetch_sub(1, Ordering::Relaxed);
        }
        won
    }

    /// An address is behind `port`, as if a frame from it had come in: it is learned, unless it is
    /// pinned elsewhere or no unicast address.
    pub fn announced(&self, mac: Mac, domain: Domain, port: PortId) {
        if !mac.is_group() && mac != Mac::default() {
            self.learn(mac, domain, port);
        }
    }

    /// Forgets an address, pinned or learned; false if it was not known.
    pub fn remove(&self, mac: Mac, domain: Domain) -> bool {
        let hash = self.hash(mac, domain);
        let mut found = false;
        if mac.is_group() {
            return found;
        }
        while let Some((word, e)) = self.find(hash, mac, domain) {
            found |= self.clear(word, e);
        }
        found
    }

    /// True if any address is learned at one of these ports.
    pub(crate) fn has_learned(&self, ports: &PortSet) -> bool {
        ports.iter().any(|port| self.has_learned_at(port))
    }

    /// True if any address is learned at this port.
    pub(crate) fn has_learned_at(&self, port: PortId) -> bool {
        self.count(port).load(Ordering::Relaxed) > 0
    }

    /// Forgets what was learned at these ports; pinned entries stay.
    pub(crate) fn flush_learned(&self, ports: &PortSet) {
        let learned = |e: u64| e & STATIC == 0 && ports.has(port_of(e));
        for (slot, e) in self.entries().filter(|(_, e)| learned(*e)) {
            self.clear(slot.word, e);
        }
    }

    /// Forgets everything behind a port, pinned entries too.
    pub fn flush_port(&self, port: PortId) {
        for (slot, e) in self.entries().filter(|(_, e)| port_of(*e) == port) {
            self.clear(slot.word, e);
        }
    }

    /// All entries, in no order.
    pub fn list(&self) -> Vec<FdbEntry> {
        self.entries().map(|(slot, e)| self.line(e, domain_of(slot.domain))).collect()
    }
}
