//! `head`, `cur` and `tail` of one ring: netmap's arithmetic, and nothing else.

/// Positions in a ring of `slots` places. Going round from `seen`, they come in this order:
///
/// ```text
///   seen ────► head ────► cur ────► tail ────► (round to seen)
///     given back,   read or     not looked   the device's
///     not synced    written     at
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursors {
    slots: u16,
    /// `head`, as of the last sync.
    seen: u16,
    pub(super) head: u16,
    pub(super) cur: u16,
    pub(super) tail: u16,
}

impl Cursors {
    /// All at zero, in a ring of at least two places: one is always the device's, or full and empty
    /// would look the same.
    pub(super) fn new(slots: u16) -> Self {
        Self { slots: slots.max(2), seen: 0, head: 0, cur: 0, tail: 0 }
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    /// The position `count` (fewer than the slots) places on.
    #[inline]
    pub(super) fn ahead(&self, at: u16, count: u16) -> u16 {
        let left = self.slots - at;
        if count >= left { count - left } else { at + count }
    }

    /// Places from `from` on to `to`.
    #[inline]
    pub(super) fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { self.slots - (from - to) }
    }

    /// Places from the last sync's `head` on, for a position between `head` and `tail`.
    ///
    /// # Panics
    /// For any other: the device may be at work there.
    #[inline]
    pub(super) fn place(&self, at: u16) -> u16 {
        let inside = at < self.slots && self.distance(self.head, at) < self.owned();
        assert!(inside, "slot {at} is not between head {} and tail {}", self.head, self.tail);
        self.distance(self.seen, at)
    }

    /// Slots between `head` and `tail`.
    #[inline]
    pub(super) fn owned(&self) -> u16 {
        self.distance(self.head, self.tail)
    }

    /// Slots between `cur` and `tail`.
    #[inline]
    pub(super) fn space(&self) -> u16 {
        self.distance(self.cur, self.tail)
    }

    /// Slots that the program gave back since the last sync.
    #[inline]
    pub(super) fn given(&self) -> u16 {
        self.distance(self.seen, self.head)
    }

    /// Moves `head`, and `cur` with it where it would be left behind.
    ///
    /// # Panics
    /// When `to` is not from `head` to `tail`.
    #[inline]
    pub(super) fn set_head(&mut self, to: u16) {
        let count = self.distance(self.head, to);
        assert!(to < self.slots && count <= self.owned(), "head {to} is beyond tail {}", self.tail);
        if self.distance(self.head, self.cur) < count {
            self.cur = to;
        }
        self.head = to;
    }

    /// Moves `head` by one, and `cur` where it would be left behind. There is a slot between `head`
    /// and `tail`.
    #[inline]
    pub(super) fn step(&mut self) {
        let next = if self.head + 1 == self.slots { 0 } else { self.head + 1 };
        if self.cur == self.head {
            self.cur = next;
        }
        self.head = next;
    }

    /// Moves `cur`.
    ///
    /// # Panics
    /// When `to` is not from `head` to `tail`.
    #[inline]
    pub(super) fn set_cur(&mut self, to: u16) {
        let inside = to < self.slots && self.distance(self.head, to) <= self.owned();
        assert!(inside, "cur {to} is not from head {} to tail {}", self.head, self.tail);
        self.cur = to;
    }

    /// What was given back is the device's.
    #[inline]
    pub(super) fn sync(&mut self) {
        self.seen = self.head;
    }

    /// After a sync: the program has the next `count` slots, or all but one.
    #[inline]
    pub(super) fn set_owned(&mut self, count: u16) {
        self.tail = self.ahead(self.head, count.min(self.slots - 1));
    }
}
