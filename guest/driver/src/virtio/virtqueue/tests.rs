use std::sync::Arc;

use super::*;

/// Offset in the RAM, length, may the device write.
type Piece = (usize, usize, bool);

/// The device's side, written from virtio 1.2 section 2.7 alone: raw offsets, no code of the
/// driver.
pub(crate) struct Device {
    ram: Arc<Ram>,
    places: Places,
    size: usize,
    pub(crate) avail_seen: u16,
    pub(crate) used_idx: u16,
    event_idx: bool,
}

impl Device {
    pub(crate) fn new(ram: &Arc<Ram>, places: Places, options: RingOptions) -> Self {
        Self {
            ram: Arc::clone(ram),
            places,
            size: options.size.into(),
            avail_seen: 0,
            used_idx: 0,
            event_idx: options.event_idx,
        }
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.ram.read(at, &mut bytes);
        bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn offset(&self, guest_phys: u64) -> usize {
        let region = self.ram.regions().into_iter().find(|region| {
            (region.guest_phys..region.guest_phys + region.size).contains(&guest_phys)
        });
        let region = region.expect("an address inside the RAM");
        usize::try_from(guest_phys - region.guest_phys + region.offset).unwrap()
    }

    pub(crate) fn waiting(&self) -> u16 {
        self.u16(self.places.avail + 2).wrapping_sub(self.avail_seen)
    }

    /// The next available chain: its head and its pieces.
    pub(crate) fn pop(&mut self) -> Option<(u16, Vec<Piece>)> {
        if self.waiting() == 0 {
            return None;
        }
        let position = usize::from(self.avail_seen) % self.size;
        let head = self.u16(self.places.avail + 4 + 2 * position);
        self.avail_seen = self.avail_seen.wrapping_add(1);
        let (mut table, mut at) = (self.places.desc, usize::from(head));
        let mut pieces = Vec::new();
        loop {
            let entry = table + 16 * at;
            let address = self.offset(u64::from_le_bytes(self.bytes(entry)));
            let len = u32::from_le_bytes(self.bytes(entry + 8)) as usize;
            let flags = self.u16(entry + 12);
            if flags & 4 != 0 {
                (table, at) = (address, 0);
                continue;
            }
            pieces.push((address, len, flags & 2 != 0));
            if flags & 1 == 0 {
                return Some((head, pieces));
            }
            at = self.u16(entry + 14).into();
        }
    }

    pub(crate) fn put(&self, pieces: &[Piece], mut bytes: &[u8]) {
        for &(at, len, writable) in pieces {
            assert!(writable);
            let (now, rest) = bytes.split_at(len.min(bytes.len()));
            self.ram.write(at, now);
            bytes = rest;
        }
        assert!(bytes.is_empty(), "the chain is too short");
    }

    pub(crate) fn get(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut all = Vec::new();
        for &(at, len, writable) in pieces {
            assert!(!writable);
            let mut bytes = vec![0; len];
            self.ram.read(at, &mut bytes);
            all.extend(bytes);
        }
        all
    }

    /// Writes a used element without showing it.
    pub(crate) fn push(&mut self, id: u32, len: u32) {
        let at = self.places.used + 4 + 8 * (usize::from(self.used_idx) % self.size);
        self.ram.write(at, &id.to_le_bytes());
        self.ram.write(at + 4, &len.to_le_bytes());
        self.used_idx = self.used_idx.wrapping_add(1);
    }

    /// Shows used elements up to `used_idx`; does the driver want an interrupt?
    pub(crate) fn publish(&self) -> bool {
        let old = self.u16(self.places.used + 2);
        self.ram.write(self.places.used + 2, &self.used_idx.to_le_bytes());
        if self.event_idx {
            let event = self.u16(self.places.avail + 4 + 2 * self.size);
            (old..).take(self.used_idx.wrapping_sub(old).into()).any(|idx| idx == event)
        } else {
            self.u16(self.places.avail) & 1 == 0
        }
    }

    /// States whether a doorbell is wanted: with EVENT_IDX for the next buffer.
    pub(crate) fn want_doorbell(&self, wanted: bool) {
        if self.event_idx {
            let event = if wanted { self.avail_seen } else { self.avail_seen.wrapping_sub(1) };
            self.ram.write(self.places.used + 4 + 8 * self.size, &event.to_le_bytes());
        } else {
            self.ram.write(self.places.used, &u16::from(!wanted).to_le_bytes());
        }
    }
}

pub(crate) const PLAIN: RingOptions = RingOptions {
    size: 8,
    segments: 1,
    indirect: false,
    event_idx: false,
    in_order: false,
    packed: false,
};

fn ring(options: RingOptions) -> (Arc<Ram>, SplitRing, Device) {
    let ram = Ram::new(options.ram_bytes(), 1 << 16).unwrap();
    let mut ring = SplitRing::new(&ram, &mut Pool::new(0, ram.buffers()), options);
    ring.disarm();
    for slot in 0..options.slots() {
        let start = ram.guest_phys(ram.buffers() + 256 * usize::from(slot));
        let piece = |n: u64| Segment { guest_phys: start + 64 * n, len: 64 };
        let pieces: Vec<_> = (0..options.segments.into()).map(piece).collect();
        ring.write_slot(slot, slot % 2 == 0, &pieces);
    }
    let device = Device::new(&ram, ring.places(), ring.options());
    (ram, ring, device)
}

fn post(ring: &mut SplitRing, count: usize) -> bool {
    for _ in 0..count {
        let slot = ring.take().unwrap();
        ring.post(slot);
    }
    ring.publish()
}

fn take_back(ring: &mut SplitRing) -> Vec<(u16, u32)> {
    let all: Vec<_> = std::iter::from_fn(|| ring.next_used()).collect();
    all.iter().for_each(|(slot, _)| ring.release(*slot));
    all
}

#[test]
fn chains_are_seen_as_written() {
    for (segments, indirect) in [(1, false), (2, false), (4, false), (1, true), (4, true)] {
        let (ram, mut ring, mut device) = ring(RingOptions { segments, indirect, ..PLAIN });
        let slots = ring.options().slots();
        assert_eq!(slots, if indirect { 8 } else { 8 / segments });
        post(&mut ring, slots.into());
        for slot in 0..slots {
            let (head, pieces) = device.pop().unwrap();
            assert_eq!(head, slot * ring.options().per_slot());
            let start = ram.buffers() + 256 * usize::from(slot);
            let expected: Vec<_> =
                (0..segments.into()).map(|n| (start + 64 * n, 64, slot % 2 == 0)).collect();
            assert_eq!(pieces, expected);
        }
        assert!(device.pop().is_none());
    }
}

#[test]
fn slots_come_back_in_any_order_through_index_wrap() {
    let (_ram, mut ring, mut device) = ring(PLAIN);
    let mut state = 1_u64;
    for _ in 0..70_000 / 8 {
        post(&mut ring, 8);
        let mut heads: Vec<_> = std::iter::from_fn(|| device.pop()).map(|chain| chain.0).collect();
        assert_eq!(heads.len(), 8);
        while !heads.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = usize::try_from(state >> 33).unwrap() % heads.len();
            device.push(heads.swap_remove(n).into(), 5);
        }
        device.publish();
        assert!(take_back(&mut ring).iter().all(|(_, len)| *len == 5));
        assert_eq!((ring.free_slots(), ring.outstanding()), (8, 0));
    }
    assert!(ring.audit().is_sound());
}

#[test]
fn doorbells_follow_the_devices_wish() {
    for event_idx in [false, true] {
        let (_ram, mut ring, mut device) = ring(RingOptions { event_idx, ..PLAIN });
        device.want_doorbell(true);
        assert!(post(&mut ring, 2), "the device waits");
        device.want_doorbell(false);
        assert!(!post(&mut ring, 2), "the device is awake");
        assert!(!ring.publish(), "nothing new is no reason");
        while device.pop().is_some() {}
        device.want_doorbell(true);
        assert!(post(&mut ring, 1));
        if event_idx {
            assert!(!post(&mut ring, 1), "the event was passed already");
        }
    }
}

#[test]
fn interrupts_follow_our_wish() {
    for event_idx in [false, true] {
        let (_ram, mut ring, mut device) = ring(RingOptions { event_idx, ..PLAIN });
        post(&mut ring, 8);
        let mut use_one = || {
            let (head, _) = device.pop().unwrap();
            device.push(head.into(), 1);
            device.publish()
        };
        assert!(!use_one(), "nobody asked");
        assert_eq!(take_back(&mut ring).len(), 1);
        assert!(!ring.arm(1));
        assert!(use_one(), "armed");
        assert!(ring.arm(1), "the second look finds what came before the wish");
        ring.disarm();
        assert!(!use_one());
        assert_eq!(take_back(&mut ring).len(), 2);
        if event_idx {
            assert!(!ring.arm(3));
            assert_eq!([use_one(), use_one(), use_one(), use_one()], [false, false, true, false]);
        }
    }
}

#[test]
fn in_order_devices_may_write_one_entry_for_a_batch() {
    let (_ram, mut ring, mut device) = ring(RingOptions { in_order: true, ..PLAIN });
    post(&mut ring, 6);
    // Slots 0 to 3 as one batch: an entry where the batch starts, naming its last; then 4 and 5
    // each with its own.
    device.push(3, 70);
    device.used_idx = 4;
    device.push(4, 40);
    device.push(5, 50);
    device.publish();
    let expected = [(0, WHOLE), (1, WHOLE), (2, WHOLE), (3, 70), (4, 40), (5, 50)];
    assert_eq!(take_back(&mut ring), expected);
    assert!(ring.audit().is_sound());
}

#[test]
fn lies_are_counted_and_harmless() {
    let (_ram, mut ring, mut device) = ring(RingOptions { segments: 2, ..PLAIN });
    post(&mut ring, 4);
    for id in [1, 0x1_0000, 2, 2, 8, 0xffff] {
        device.push(id, 9);
    }
    device.publish();
    assert_eq!(take_back(&mut ring), [(1, 9)], "only head 2 was ours, and only once");
    assert_eq!(ring.bad_used(), 4, "odd head, huge id, twice; then more than was ever posted");
    assert!(!ring.audit().is_sound());
    ring.reset();
    post(&mut ring, 1);
    device.used_idx = 30_000;
    device.publish();
    let _ = take_back(&mut ring);
    assert!(ring.next_used().is_none());
}

#[test]
fn a_new_device_goes_on_from_the_used_index() {
    let (ram, mut ring, mut device) = ring(PLAIN);
    for _ in 0..5 {
        post(&mut ring, 5);
        while let Some((head, _)) = device.pop() {
            device.push(head.into(), 0);
        }
        device.publish();
        take_back(&mut ring);
    }
    post(&mut ring, 8);
    for _ in 0..5 {
        device.pop().unwrap();
    }
    let (first, second) = (1, 2);
    for head in [first, second] {
        device.push(head, 0);
    }
    device.publish();
    // Killed: five taken, two of them used. Nothing is lost, and the next device sees the other
    // six, each once.
    let audit = ring.audit();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!((audit.avail, audit.used, audit.misplaced), (6, 2, 0));
    assert_eq!(ring.base(), 27);
    let mut next = Device::new(&ram, ring.places(), ring.options());
    (next.avail_seen, next.used_idx) = (ring.base(), ring.base());
    let mut heads: Vec<_> = std::iter::from_fn(|| next.pop()).map(|chain| chain.0).collect();
    assert_eq!(heads, [3, 4, 5, 6, 7, 0]);
    heads.drain(..).for_each(|head| next.push(head.into(), 0));
    next.publish();
    assert_eq!(take_back(&mut ring).len(), 8);
    assert_eq!(ring.audit().free, 8);
}

#[test]
fn the_audit_sees_what_out_of_order_use_would_repeat() {
    let (_ram, mut ring, mut device) = ring(PLAIN);
    post(&mut ring, 4);
    device.push(2, 0);
    device.publish();
    let audit = ring.audit();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!(audit.misplaced, 1, "slot 2 was used, but a device that starts at 1 sees 1, 2, 3");
    device.push(2, 0);
    device.publish();
    assert_eq!(ring.audit().twice, 1);
}
