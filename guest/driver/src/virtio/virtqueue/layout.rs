//! Where a ring's parts lie, and the audit that no descriptor was lost.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use super::slots::Owner;
use super::{AVAIL_RING, SplitRing};
use crate::notify::virtqueue;
use vmlan_transport::memory::Pool;

/// What a ring is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Descriptors: a power of two up to 32,768 (virtio 1.2, 2.7).
    pub size: u16,
    /// Most segments of one slot: 1, 2, 4 or 8.
    pub segments: u16,
    /// Segments lie in an indirect table (2.7.5.3), so that a slot costs one descriptor.
    pub indirect: bool,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// VIRTIO_F_IN_ORDER was negotiated.
    pub in_order: bool,
    /// VIRTIO_F_RING_PACKED was negotiated.
    pub packed: bool,
}

impl RingOptions {
    /// Descriptors that one slot takes.
    #[inline]
    pub fn per_slot(&self) -> u16 {
        if self.indirect { 1 } else { self.segments }
    }

    /// How many slots the ring has.
    #[inline]
    pub fn slots(&self) -> u16 {
        self.size / self.per_slot()
    }

    /// Bytes of RAM that [`super::either::Ring::new`] takes for a ring like this, with all padding.
    pub fn ram_bytes(&self) -> usize {
        let size = usize::from(self.size);
        let tables = 16 * size * usize::from(self.segments);
        16 * size + 6 + 2 * size + 6 + 8 * size + tables + 4 * 64
    }
}

/// A piece of guest memory in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub guest_phys: u64,
    /// Bytes.
    pub len: u32,
}

/// Offsets of a ring's parts in the RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Descriptor table or ring.
    pub desc: usize,
    /// Avail ring; of a packed ring the driver's event suppression structure ("driver area").
    pub avail: usize,
    /// Used ring; of a packed ring the device's event suppression structure ("device area").
    pub used: usize,
    /// Indirect tables, one for each slot; unused without `indirect`.
    pub tables: usize,
}

impl Places {
    /// Cache-line aligned, so that what the driver writes and what the device writes share no line
    /// (the specification asks for 16, 2 and 4).
    pub(super) fn take(low: &mut Pool, options: RingOptions) -> Self {
        let size = usize::from(options.size);
        let mut places = Self {
            desc: low.take(16 * size, 64),
            avail: low.take(6 + 2 * size, 64),
            used: low.take(6 + 8 * size, 64),
            tables: 0,
        };
        places.tables = low.take(places.table_bytes(options), 64);
        places
    }

    pub(super) fn table_bytes(self, options: RingOptions) -> usize {
        let table = 16 * usize::from(options.segments);
        if options.indirect { table * usize::from(options.size) } else { 0 }
    }
}

/// Where every slot of a ring is. A ring is sound when `slots == free + held + avail + used` and
/// every fault is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Slots of the ring.
    pub slots: u32,
    /// In the free queue.
    pub free: u32,
    /// In the driver's hands.
    pub held: u32,
    /// Owned by the device and not used yet, including posted but unpublished ones.
    pub avail: u32,
    /// In the used ring, not taken back yet.
    pub used: u32,
    /// In none of these places.
    pub lost: u32,
    /// In two of these places, or twice in one.
    pub twice: u32,
    /// Used entries, ever, that named a slot the device did not own.
    pub foreign: u64,
    /// Entries of the avail ring from the used index on that name a slot which was used already:
    /// with a device that uses buffers out of order, those are what a new device that starts at the
    /// used index would see twice.
    pub misplaced: u32,
}

impl Audit {
    /// No descriptor is lost, none is in two places, and the device never named one that was not
    /// its own.
    pub fn is_sound(&self) -> bool {
        let known = self.free + self.held + self.avail + self.used;
        self.lost == 0 && self.twice == 0 && self.foreign == 0 && known == self.slots
    }
}

impl SplitRing {
    /// Counts where every slot is, from the shared rings and the driver's own books. With a live
    /// device the answer is a snapshot; it is exact when the device is stopped or dead. Changes
    /// nothing.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit {
            slots: self.options.slots().into(),
            foreign: self.bad_used,
            ..Audit::default()
        };
        // Read once: a device that is at work moves it.
        let end = virtqueue::VirtqueueFields::used_idx(self);
        let used = self.audit_used(&mut audit, end);
        let free = self.audit_free(&mut audit);
        for slot in 0..self.options.slots() {
            let in_used = used.contains(&slot);
            match self.slots.owner(slot) {
                Owner::Free if free.contains(&slot) => audit.free += 1,
                Owner::Held => audit.held += 1,
                Owner::Device if in_used => audit.used += 1,
                Owner::Device => audit.avail += 1,
                Owner::Free => audit.lost += 1,
            }
        }
        self.audit_avail(&mut audit, end, &used);
        audit
    }

    /// The slots between our index and `end`, the device's index of the used ring.
    fn audit_used(&self, audit: &mut Audit, end: u16) -> BTreeSet<u16> {
        let mut seen = BTreeSet::new();
        let count = end.wrapping_sub(self.last_used);
        if count > self.outstanding() {
            audit.foreign += u64::from(count - self.outstanding());
        }
        for n in 0..count.min(self.outstanding()) {
            let position = usize::from(self.last_used.wrapping_add(n) & self.mask);
            let slot = match self.options.in_order {
                true => Some(self.posted[position]),
                false => self.element(position).map(|(slot, _)| slot),
            };
            match slot {
                Some(slot) if self.slots.owner(slot) != Owner::Device => audit.twice += 1,
                Some(slot) => audit.twice += u32::from(!seen.insert(slot)),
                None => audit.foreign += 1,
            }
        }
        seen
    }

    fn audit_free(&self, audit: &mut Audit) -> BTreeSet<u16> {
        let mut seen = BTreeSet::new();
        for n in 0..self.free_slots() {
            let slot = self.free_ahead(n);
            audit.twice += u32::from(!seen.insert(slot));
        }
        seen
    }

    /// The avail ring from the used index, `start`, on: what a device that starts there will see.
    /// It must hold as many slots as the device owes us, each once.
    fn audit_avail(&self, audit: &mut Audit, start: u16, used: &BTreeSet<u16>) {
        let mut seen = BTreeSet::new();
        let count = self.avail_idx.wrapping_sub(start);
        if count > self.options.slots() {
            audit.foreign += 1;
            return;
        }
        for n in 0..count {
            let position = usize::from(start.wrapping_add(n) & self.mask);
            let head = u16::from_le(self.avail[AVAIL_RING + position].load(Relaxed));
            let slot = head / self.options.per_slot();
            let ours = slot < self.options.slots()
                && self.slots.owner(slot) == Owner::Device
                && !used.contains(&slot);
            audit.misplaced += u32::from(!ours);
            audit.twice += u32::from(ours && !seen.insert(slot));
        }
        let owed = audit.avail;
        audit.lost += owed.saturating_sub(count.into());
    }
}
