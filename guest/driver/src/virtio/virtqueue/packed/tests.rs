use super::*;

/// Offset in the RAM, length, may the device write.
type Piece = (usize, usize, bool);

/// The device's side, written from virtio 1.2 section 2.8 alone: raw offsets, no code of the
/// driver.
struct Device {
    ram: Arc<Ram>,
    places: Places,
    size: usize,
    /// Descriptors read and descriptors passed by used ones, since the beginning.
    read: usize,
    used: usize,
}

impl Device {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.ram.read(at, &mut bytes);
        bytes
    }

    fn entry(&self, n: usize) -> usize {
        self.places.desc + 16 * (n % self.size)
    }

    fn flags(&self, n: usize) -> u16 {
        u16::from_le_bytes(self.bytes(self.entry(n) + 14))
    }

    fn offset(&self, guest_phys: u64) -> usize {
        let region = self.ram.regions().into_iter().find(|region| {
            (region.guest_phys..region.guest_phys + region.size).contains(&guest_phys)
        });
        let region = region.expect("an address inside the RAM");
        usize::try_from(guest_phys - region.guest_phys + region.offset).unwrap()
    }

    fn piece(&self, entry: usize) -> Piece {
        let at = self.offset(u64::from_le_bytes(self.bytes(entry)));
        let len = u32::from_le_bytes(self.bytes(entry + 8)) as usize;
        (at, len, self.bytes::<2>(entry + 14)[0] & 2 != 0)
    }

    /// The next available list: its id, its descriptors in the ring, its pieces.
    fn pop(&mut self) -> Option<(u16, usize, Vec<Piece>)> {
        let even = (self.read / self.size).is_multiple_of(2);
        let (avail, used) = if even { (0x80, 0) } else { (0, 0x8000) };
        let (begin, mut pieces) = (self.read, Vec::new());
        if self.flags(begin) & 0x8080 != avail | used {
            return None;
        }
        loop {
            let (entry, flags) = (self.entry(self.read), self.flags(self.read));
            let (at, len, write) = self.piece(entry);
            if flags & 4 == 0 {
                pieces.push((at, len, write));
            } else {
                pieces.extend((0..len / 16).map(|n| self.piece(at + 16 * n)));
            }
            self.read += 1;
            if flags & 1 == 0 {
                let id = u16::from_le_bytes(self.bytes(entry + 12));
                return Some((id, self.read - begin, pieces));
            }
        }
    }

    /// Writes a used descriptor, which passes `count` descriptors.
    fn push(&mut self, id: u16, count: usize, len: u32) {
        let flags = if (self.used / self.size).is_multiple_of(2) { 0x8080u16 } else { 0 };
        let flags = flags | if len > 0 { 2 } else { 0 };
        let at = self.entry(self.used);
        self.ram.write(at + 8, &len.to_le_bytes());
        self.ram.write(at + 12, &id.to_le_bytes());
        self.ram.write(at + 14, &flags.to_le_bytes());
        self.used += count;
    }

    fn wants(&self, word: u32) {
        self.ram.write(self.places.used, &word.to_le_bytes());
    }

    /// What the driver asks for: place and flags.
    fn wish(&self) -> (u16, u16) {
        let word = u32::from_le_bytes(self.bytes(self.places.avail));
        (u16::try_from(word & 0xffff).unwrap(), u16::try_from(word >> 16).unwrap())
    }
}

const PLAIN: RingOptions = RingOptions {
    size: 8,
    segments: 1,
    indirect: false,
    event_idx: false,
    in_order: false,
    packed: true,
};

fn ring(options: RingOptions) -> (Arc<Ram>, PackedRing, Device) {
    let ram = Ram::new(options.ram_bytes(), 1 << 16).unwrap();
    let mut ring = PackedRing::new(&ram, &mut Pool::new(0, ram.buffers()), options);
    for slot in 0..options.slots() {
        let start = ram.guest_phys(ram.buffers() + 1024 * usize::from(slot));
        let piece = |n: u64| Segment { guest_phys: start + 64 * n, len: 64 };
        // Not all are equally long.
        let count = u64::from(options.segments) - u64::from(slot % 2 == 1 && options.segments > 1);
        let pieces: Vec<_> = (0..count).map(piece).collect();
        ring.write_slot(slot, slot % 2 == 0, &pieces);
    }
    let size = options.size.into();
    let device = Device { ram: ram.clone(), places: ring.places(), size, read: 0, used: 0 };
    device.wants(1 << 16);
    (ram, ring, device)
}

fn post(ring: &mut PackedRing, count: usize) -> bool {
    for _ in 0..count {
        let slot = ring.take().unwrap();
        ring.post(slot);
    }
    ring.publish()
}

fn take_back(ring: &mut PackedRing) -> Vec<(u16, u32)> {
    let all: Vec<_> = std::iter::from_fn(|| ring.next_used()).collect();
    all.iter().for_each(|(slot, _)| ring.release(*slot));
    all
}

#[test]
fn lists_are_seen_as_written_lap_after_lap() {
    for (segments, indirect) in [(1, false), (2, false), (4, false), (1, true), (4, true)] {
        let (ram, mut ring, mut device) = ring(RingOptions { segments, indirect, ..PLAIN });
        let slots = ring.options().slots();
        for _ in 0..9 {
            post(&mut ring, slots.into());
            for _ in 0..slots {
                let (slot, count, pieces) = device.pop().unwrap();
                let start = ram.buffers() + 1024 * usize::from(slot);
                let many = segments - u16::from(slot % 2 == 1 && segments > 1);
                let piece = |n: usize| (start + 64 * n, 64, slot % 2 == 0);
                assert_eq!(pieces, (0..many.into()).map(piece).collect::<Vec<_>>());
                assert_eq!(count, if indirect { 1 } else { many.into() });
                device.push(slot, count, 7);
            }
            assert!(device.pop().is_none());
            assert_eq!(take_back(&mut ring).len(), slots.into());
            let audit = ring.audit();
            assert!(audit.is_sound() && audit.free == slots.into(), "{audit:?}");
        }
    }
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    let (_ram, mut ring, mut device) = ring(RingOptions { segments: 2, ..PLAIN });
    for round in 0..5 {
        for _ in 0..3 {
            let slot = ring.take().unwrap();
            ring.post(slot);
            assert!(device.pop().is_none(), "{round}");
        }
        assert_eq!(ring.outstanding(), 0);
        let _ = ring.publish();
        let lists: Vec<_> = std::iter::from_fn(|| device.pop()).collect();
        assert_eq!((lists.len(), ring.outstanding()), (3, 3));
        lists.iter().for_each(|(slot, count, _)| device.push(*slot, *count, 0));
        take_back(&mut ring);
    }
}

#[test]
fn slots_come_back_in_any_order() {
    let (_ram, mut ring, mut device) = ring(RingOptions { segments: 2, ..PLAIN });
    let mut state = 1_u64;
    for _ in 0..5000 {
        post(&mut ring, 4);
        let mut lists: Vec<_> = std::iter::from_fn(|| device.pop()).collect();
        assert_eq!(lists.len(), 4);
        while !lists.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = usize::try_from(state >> 33).unwrap() % lists.len();
            let (slot, count, _) = lists.swap_remove(n);
            device.push(slot, count, 5);
        }
        assert!(take_back(&mut ring).iter().all(|(_, len)| *len == 5));
        assert_eq!((ring.free_slots(), ring.outstanding()), (4, 0));
    }
    assert!(ring.audit().is_sound());
}

#[test]
fn doorbells_follow_the_devices_wish() {
    let (_ram, mut ring, device) = ring(PLAIN);
    device.wants(0);
    assert!(post(&mut ring, 1), "any");
    device.wants(1 << 16);
    assert!(!post(&mut ring, 1), "none");
    assert!(!ring.publish(), "nothing new is no reason");
    device.wants(2 << 16 | 0x8000 | 3);
    assert!(!post(&mut ring, 1), "the third is before it");
    assert!(post(&mut ring, 2), "the fourth is it");
    assert!(!post(&mut ring, 1), "it was passed already");
    device.wants(2 << 16 | 6);
    assert!(!post(&mut ring, 2), "that one is in the next lap");
}

#[test]
fn interrupts_follow_our_wish() {
    for event_idx in [false, true] {
        let (_ram, mut ring, mut device) = ring(RingOptions { event_idx, segments: 2, ..PLAIN });
        ring.disarm();
        assert_eq!(device.wish(), (0, 1));
        post(&mut ring, 4);
        assert!(!ring.arm(1));
        assert_eq!(device.wish(), if event_idx { (0x8000, 2) } else { (0, 0) });
        let mut use_one = || {
            let (slot, count, _) = device.pop().unwrap();
            device.push(slot, count, 0);
            device.wish()
        };
        use_one();
        assert!(ring.arm(1), "the second look");
        // Of two more, after the first: lists of 2, 1, 2 and 1 descriptors.
        assert_eq!(ring.arm(3), !event_idx);
        let wish = use_one();
        assert_eq!(wish, if event_idx { (0x8003, 2) } else { (0, 0) });
        assert_eq!(ring.arm(3), !event_idx);
        use_one();
        assert!(ring.arm(3));
        assert_eq!(take_back(&mut ring).len(), 3);
    }
}

/// Out of order a device may pass the place of the wish with fewer slots used than were asked for:
/// nobody would interrupt then.
#[test]
fn a_place_that_was_passed_is_no_reason_to_sleep() {
    let options = RingOptions { event_idx: true, segments: 2, ..PLAIN };
    let (_ram, mut ring, mut device) = ring(options);
    post(&mut ring, 4);
    let lists: Vec<_> = std::iter::from_fn(|| device.pop()).collect();
    assert!(!ring.arm(2), "the second in order is at 2");
    device.push(lists[0].0, lists[0].1, 0);
    assert!(!ring.arm(2), "the device is there, not beyond");
    device.push(lists[2].0, lists[2].1, 0);
    assert!(ring.arm(3), "the third in order would have been at 3");
}

#[test]
fn in_order_devices_may_write_one_descriptor_for_a_batch() {
    let (_ram, mut ring, mut device) = ring(RingOptions { in_order: true, ..PLAIN });
    post(&mut ring, 6);
    device.push(3, 4, 70);
    device.push(4, 1, 40);
    device.push(5, 1, 50);
    let audit = ring.audit();
    assert!(audit.is_sound() && audit.used == 6, "{audit:?}");
    let expected = [(0, WHOLE), (1, WHOLE), (2, WHOLE), (3, 70), (4, 40), (5, 50)];
    assert_eq!(take_back(&mut ring), expected);
    assert!(ring.audit().is_sound());
}

#[test]
fn lies_are_counted_and_harmless() {
    for id in [5, 8, 0x7fff, 0xffff] {
        let (_ram, mut ring, mut device) = ring(PLAIN);
        post(&mut ring, 4);
        device.push(1, 1, 9);
        device.push(id, 1, 9);
        device.push(2, 1, 9);
        assert_eq!(take_back(&mut ring), [(1, 9)]);
        assert_eq!((ring.bad_used(), ring.has_used()), (1, false), "behind it nothing is known");
        assert!(!ring.audit().is_sound());
        ring.reset();
    }
    let (_ram, mut ring, mut device) = ring(PLAIN);
    post(&mut ring, 2);
    device.push(1, 1, 0);
    device.push(1, 1, 0);
    assert_eq!(take_back(&mut ring), [(1, 0)]);
    assert_eq!(ring.bad_used(), 1, "twice");
}

#[test]
fn the_audit_sees_lost_and_misplaced_slots() {
    let (_ram, mut ring, mut device) = ring(RingOptions { segments: 2, ..PLAIN });
    post(&mut ring, 4);
    let (slot, count, _) = device.pop().unwrap();
    device.push(slot, count, 0);
    let audit = ring.audit();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!((audit.avail, audit.used, audit.misplaced), (3, 1, 0));
    // One that is used out of order: what a new device sees there is not available.
    let _ = device.pop().unwrap();
    let (slot, count, _) = device.pop().unwrap();
    device.push(slot, count, 0);
    let audit = ring.audit();
    assert!(audit.misplaced > 0 && audit.lost > 0, "{audit:?}");
}
