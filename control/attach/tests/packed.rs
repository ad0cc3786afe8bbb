//! What is different over vhost-user when packed virtqueues were negotiated: sizes, bases, the
//! inflight region.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use common::*;

const PACKED: u64 = 1 << 34;

/// A front end that has negotiated packed virtqueues.
fn packed(f: &Fixture) -> Raw {
    let mut raw = f.ready();
    let offered = raw.get(1, &[]).unwrap();
    assert_ne!(offered & PACKED, 0);
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | PACKED | F_PROTOCOL]), &[]), Some(0));
    assert_eq!(f.detail("layout"), "packed");
    raw
}

fn set_base(raw: &mut Raw, base: u32) -> Option<u64> {
    raw.ask(10, &halves(&[1, base]), &[])
}

#[test]
fn a_packed_ring_has_any_size_and_a_base_of_two_halves() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = f.ready();
    assert_eq!(f.detail("layout"), "split");
    assert_eq!(raw.set_num(1, 60), Some(1), "split: a power of two");
    assert_eq!(set_base(&mut raw, 0x8000_8000), Some(1), "split: 16 bits");
    drop(raw);
    until("free", || f.detail("state").contains("waiting"));
    let mut raw = packed(&f);
    guest.give_memory(&mut raw);
    for num in [0, 0x8001, 0x1_0000, 0x1_0040] {
        assert_eq!(raw.set_num(1, num), Some(1), "size {num}");
    }
    assert_eq!(raw.set_num(1, 60), Some(0));
    // A new ring, all zero: whatever the base, it begins at descriptor 0 with wrap counter 1.
    assert_eq!(set_base(&mut raw, 0x1234_0007), Some(0));
    let [desc, used, avail] = guest.ring_addr(1);
    assert_eq!(raw.set_addr(1, desc, used, avail), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(0));
    assert_eq!(set_base(&mut raw, 0), Some(1), "started");
    assert_eq!(raw.base(1), Some(0x8000_8000));
    // One that USED flags do not explain begins at the base, by its lower half, or not at all.
    for slot in [1, 3] {
        guest.ram.write(guest.ring_at(1) + 16 * slot + 14, &0x8000u16.to_le_bytes());
    }
    assert_eq!(set_base(&mut raw, 60), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(1), "beyond the ring");
    assert_eq!(set_base(&mut raw, 0x803b), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(0));
    assert_eq!(raw.base(1), Some(0x803b_803b));
    f.assert_alive_after(raw);
}

trait AliveAfter {
    fn assert_alive_after(&self, raw: Raw);
}

impl AliveAfter for Fixture {
    fn assert_alive_after(&self, raw: Raw) {
        drop(raw);
        self.assert_alive();
    }
}

#[test]
fn the_inflight_region_has_the_packed_form() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = packed(&f);
    guest.give_memory(&mut raw);
    let body = |size: u64, ring: u16| {
        let mut body = words(&[size, 0]);
        body.extend([2u16, ring].iter().flat_map(|n| n.to_ne_bytes()));
        body.extend([0; 4]);
        body
    };
    // 32 bytes, and 32 for each descriptor.
    let file = sealed(1 << 16);
    let fd = [file.as_raw_fd()];
    let part = (32 + 32 * u64::from(NUM)).next_multiple_of(64);
    assert_eq!(raw.ask(32, &body(2 * part - 1, 64), &fd), Some(1), "too small");
    assert_eq!(raw.ask(32, &body(2 * part, 64), &fd), Some(0));
    let [desc, used, avail] = guest.ring_addr(1);
    assert_eq!(raw.set_num(1, NUM), Some(0));
    assert_eq!(raw.set_addr(1, desc, used, avail), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(0));
    let mut head = [0; 32 + 64];
    file.read_exact_at(&mut head, part).unwrap();
    assert_eq!(head[8..16], [1, 0, 64, 0, 0, 0, 0, 0], "version, descriptors, free_head twice");
    assert_eq!(head[16..24], [0, 0, 0, 0, 1, 1, 0, 0], "used_idx twice, wrap counter twice");
    assert_eq!((head[34], head[66]), (1, 2), "the free descriptors are a list");
    assert_eq!(raw.base(1), Some(0x8000_8000));
    // Made for the other layout.
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(1));
    f.assert_alive_after(raw);
}

#[test]
fn the_layout_does_not_change_under_a_started_ring() {
    let f = Fixture::new();
    let guest = Guest::new();
    let mut raw = packed(&f);
    guest.give_memory(&mut raw);
    let [desc, used, avail] = guest.ring_addr(1);
    assert_eq!(raw.set_num(1, 48), Some(0));
    assert_eq!(raw.set_addr(1, desc, used, avail), Some(0));
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(0));
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(1));
    raw.base(1);
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(0));
    // The size that only a packed ring may have was set before.
    assert_eq!(raw.kick(1, guest.kick_fd()), Some(1));
    f.assert_alive_after(raw);
}
