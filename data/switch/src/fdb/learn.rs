//! What workers learn from source addresses.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use vmlan_frame::Mac;

use super::{
    CLAIMED, Fdb, FdbNews, GROUP, Learned, STATIC, Slot, WAYS, domain_of, entry, key_of, port_of,
};
use crate::PortId;
use crate::policy::Domain;

impl Fdb {
    /// A frame from `mac` came in by `port`. `mac` must be a unicast address.
    #[inline]
    pub(crate) fn learn(&self, mac: Mac, domain: Domain, port: PortId) -> Learned {
        let hash = self.hash(mac, domain);
        let now = self.now.load(Ordering::Relaxed);
        let wanted = entry(mac, domain, port, now);
        match self.find(hash, mac, domain) {
            Some((_, e)) if e == wanted => Learned::Pass,
            Some((word, e)) => self.refresh(word, e, wanted, domain),
            None => {
                self.insert(self.sets_of(hash), wanted, domain);
                Learned::Pass
            }
        }
    }

    /// The address is known, but was last seen earlier or elsewhere. Losing a race against another
    /// worker is fine: the next frame tries again.
    #[cold]
    fn refresh(&self, word: &AtomicU64, old: u64, wanted: u64, domain: Domain) -> Learned {
        let (from, to) = (port_of(old), port_of(wanted));
        if old & STATIC != 0 {
            return if from == to { Learned::Pass } else { Learned::Refused };
        }
        if from != to && !self.may_grow(to) {
            return Learned::Pass;
        }
        let won = word.compare_exchange(old, wanted, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won && from != to {
            self.count(from).fetch_sub(1, Ordering::Relaxed);
            self.count(to).fetch_add(1, Ordering::Relaxed);
            self.tell(wanted, domain, Some(from));
        }
        Learned::Pass
    }

    /// The two sets of an address in the order in which to look for a free slot: the first, since
    /// look-ups begin there, unless it is nearly full and the second has more room. So the last
    /// slots are left to addresses that have no other.
    pub(super) fn by_room(&self, [first, second]: [usize; 2]) -> [usize; 2] {
        let taken = |w: &&AtomicU64| w.load(Ordering::Relaxed) != 0;
        let used = |set| self.words(set).iter().filter(taken).count();
        let turned = used(first) + 1 >= WAYS && used(second) < used(first);
        if turned { [second, first] } else { [first, second] }
    }

    #[cold]
    fn insert(&self, sets: [usize; 2], wanted: u64, domain: Domain) {
        let port = port_of(wanted);
        if !self.may_grow(port) || key_of(wanted) & !GROUP == 0 {
            self.unlearned.add_shared(1);
            return;
        }
        for slot in self.slots_of(self.by_room(sets)) {
            if self.fill(slot, 0, wanted, domain) {
                self.count(port).fetch_add(1, Ordering::Relaxed);
                self.remove_twin(sets, slot.word, wanted, domain);
                self.tell(wanted, domain, None);
                return;
            }
        }
        self.unlearned.add_shared(1);
    }

    fn tell(&self, entry: u64, domain: Domain, from: Option<PortId>) {
        let mac = Mac::from_bits(key_of(entry) & !GROUP);
        self.news.tell(FdbNews { mac, domain, port: port_of(entry), from });
    }

    /// Writes an entry over `old`, and its domain beside it. False if another worker was faster.
    pub(super) fn fill(&self, slot: Slot<'_>, old: u64, wanted: u64, domain: Domain) -> bool {
        let mine = slot.word.compare_exchange(old, CLAIMED, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            slot.domain.store(domain.bits(), Ordering::Relaxed);
            slot.word.store(wanted, Ordering::Release);
        }
        mine.is_ok()
    }

    /// Two workers may have learned one address at the same time: then the later slot is cleared.
    /// Or the address was pinned meanwhile: then the learned entry is cleared, wherever it is. Of
    /// two threads that write and then look, at least one sees the other.
    fn remove_twin(&self, sets: [usize; 2], mine: &AtomicU64, wanted: u64, domain: Domain) {
        fence(Ordering::SeqCst);
        let mut earlier = true;
        let twin = |s: Slot<'_>| {
            earlier &= !std::ptr::eq(s.word, mine);
            let e = s.word.load(Ordering::Relaxed);
            let same = key_of(e) == key_of(wanted) && domain_of(s.domain) == domain;
            same && (earlier || e & STATIC != 0)
        };
        if self.slots_of(sets).any(twin) {
            self.clear(mine, wanted);
        }
    }

    pub(super) fn clear(&self, word: &AtomicU64, old: u64) -> bool {
        let won = word.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won && old & STATIC == 0 {
            self.count(port_of(old)).fetch_sub(1, Ordering::Relaxed);
        }
        won
    }
}
