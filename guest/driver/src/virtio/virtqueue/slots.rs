//! Who owns each slot, and the queue of free ones.

/// Who owns a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Free,
    Held,
    Device,
}

/// The slots of a ring.
#[derive(Debug)]
pub(super) struct Slots {
    owners: Box<[Owner]>,
    free: Box<[u16]>,
    mask: u16,
    head: u16,
    tail: u16,
}

impl Slots {
    /// `count` free slots of a ring of `size` descriptors, a power of two.
    pub(super) fn new(count: u16, size: u16) -> Self {
        let (owners, free) = (vec![Owner::Free; count.into()], vec![0; size.into()]);
        let (owners, free) = (owners.into(), free.into());
        let mut slots = Self { owners, free, mask: size - 1, head: 0, tail: 0 };
        slots.reset();
        slots
    }

    /// All are free.
    pub(super) fn reset(&mut self) {
        self.owners.fill(Owner::Free);
        let count = self.count();
        self.free.iter_mut().zip(0..count).for_each(|(to, slot)| *to = slot);
        (self.head, self.tail) = (0, count);
    }

    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.owners.len()).unwrap_or(u16::MAX)
    }

    #[inline]
    pub(super) fn owner(&self, slot: u16) -> Owner {
        self.owners[usize::from(slot)]
    }

    #[inline]
    pub(super) fn free(&self) -> u16 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<u16> {
        if self.head == self.tail {
            return None;
        }
        let slot = self.ahead(0);
        self.head = self.head.wrapping_add(1);
        self.owners[usize::from(slot)] = Owner::Held;
        Some(slot)
    }

    /// The free slot behind `n` others.
    #[inline]
    pub(super) fn ahead(&self, n: u16) -> u16 {
        self.free[usize::from(self.head.wrapping_add(n) & self.mask)]
    }

    /// # Panics
    /// When the slot is not held.
    #[inline]
    pub(super) fn release(&mut self, slot: u16) {
        self.pass(slot, Owner::Free);
        self.free[usize::from(self.tail & self.mask)] = slot;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Gives a held slot to the device.
    ///
    /// # Panics
    /// When the slot is not held.
    #[inline]
    pub(super) fn post(&mut self, slot: u16) {
        self.pass(slot, Owner::Device);
    }

    #[inline]
    fn pass(&mut self, slot: u16, to: Owner) {
        let owner = &mut self.owners[usize::from(slot)];
        assert!(*owner == Owner::Held, "slot {slot} is not held");
        *owner = to;
    }

    /// Takes a slot from the device; false if it is not the device's.
    #[inline]
    pub(super) fn take_back(&mut self, slot: u16) -> bool {
        let owner = &mut self.owners[usize::from(slot)];
        let is = *owner == Owner::Device;
        if is {
            *owner = Owner::Held;
        }
        is
    }

    /// # Panics
    /// For a slot of the device.
    #[inline]
    pub(super) fn assert_ours(&self, slot: u16) {
        assert!(self.owner(slot) != Owner::Device, "slot {slot} is the device's");
    }
}
