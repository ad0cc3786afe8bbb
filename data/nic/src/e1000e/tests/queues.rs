//! Two queues each way.

use vmlan_frame::Offload;

use super::*;
use crate::chip::Nic;
use crate::intel::guest::{LAST, RX_RING, TD, frame, tcp};

const RETA: u64 = 0x5c00;
const RSSRK: u64 = 0x5c80;
const SECOND: u64 = 0x100; // From a ring's registers to those of the second.
const SECOND_RING: u64 = 0x6000;
const SECOND_BUFFERS: u64 = 0x30_0000;

/// A ring with the given registers, buffers in it, and a tail.
fn second_ring(guest: &Guest) {
    guest.ring(RD + SECOND, SECOND_RING, 64);
    for i in 0..64u64 {
        guest.write(SECOND_RING + 16 * i, &(SECOND_BUFFERS + 2048 * i).to_le_bytes());
    }
    guest.set(RD + SECOND + TAIL, 63);
}

/// Packets of flows that differ in their ports.
fn flow(n: u8) -> (Vec<u8>, Offload) {
    let mut packet = tcp(false, 100);
    packet[35] = n;
    (packet, Offload { csum_valid: true, ..Offload::NONE })
}

/// RSS by TCP over IPv4, with a key and a table that names both queues.
fn spreading() -> Guest {
    let guest = with_vectors();
    guest.set(RFCTL, EXTEN);
    guest.set(RXCSUM, 1 << 13 | 3 << 8);
    second_ring(&guest);
    for i in 0..10 {
        guest.set(RSSRK + 4 * i, 0x9e37_79b9_u32.wrapping_mul(i as u32 + 1));
    }
    for i in 0..32 {
        guest.set(RETA + 4 * i, 0x8000_8000);
    }
    guest.set(MRQC, 1 | 3 << 16);
    guest.set(IVAR, 0x800a_09b8);
    guest.set(EIAC, RXQ0 | RXQ1 | TXQ0);
    guest.set(IMS, RXQ0 | RXQ1);
    guest
}

#[test]
fn flows_are_spread_by_hash_and_keep_their_order() {
    let guest = spreading();
    let frames: Vec<_> = (0..40).map(flow).collect();
    assert_eq!(guest.arrive(&frames), 40);
    let heads = [RD, RD + SECOND].map(|base| guest.get(base + HEAD));
    assert_eq!(heads[0] + heads[1], 40);
    assert!(heads.iter().all(|head| *head > 8), "{heads:?}");
    let mut messages = sent(&guest);
    messages.sort_unstable();
    assert_eq!(messages, [0, 3]);
    for (ring, buffers, queue) in
        [(RX_RING, crate::intel::guest::RX_BUFFERS, 0u64), (SECOND_RING, SECOND_BUFFERS, 1)]
    {
        let mut last = None;
        for i in 0..u64::from(heads[queue as usize]) {
            let (hash, done) = (guest.word(ring + 16 * i), guest.word(ring + 16 * i + 8));
            assert_eq!(done as u32 & 3, 3);
            assert_eq!((hash & 15, hash >> 8 & 31), (1, queue), "TCP over IPv4");
            // Bytes 1 and 3 of each word of the table name queue 1.
            assert_eq!(hash >> 32 & 1, queue);
            let n = guest.read(buffers + 2048 * i + 35, 1)[0];
            assert!(last < Some(n), "in order");
            last = Some(n);
        }
    }
}

/// A queue that is full holds up what comes for it, and nothing is lost.
#[test]
fn a_full_queue_makes_the_rest_wait() {
    let guest = spreading();
    guest.set(RD + SECOND + TAIL, 2);
    let frames: Vec<_> = (0..40).map(flow).collect();
    let dealt = guest.arrive(&frames);
    assert!(dealt < 40);
    assert_eq!(guest.get(RD + SECOND + HEAD), 2);
    assert!(!guest.chip.want_room());
    guest.set(RD + SECOND + TAIL, 63);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive(&frames[dealt..]), 40 - dealt);
}

/// A packet of each queue.
fn one_of_each() -> [(Vec<u8>, Offload); 2] {
    let goes_to = |queue: u64| {
        let goes = |n: &u8| {
            let guest = spreading();
            guest.arrive(&[flow(*n)]);
            guest.get(RD + queue * SECOND + HEAD) == 1
        };
        (0..40).find(goes).map(flow).unwrap()
    };
    [goes_to(0), goes_to(1)]
}

/// Both rings anew, large, and full of null descriptors but for each 1000th.
fn nearly_null() -> Guest {
    let guest = spreading();
    for (base, at) in [(RD, 0x10_0000), (RD + SECOND, 0x14_0000)] {
        for i in 0..16 {
            guest.write(at + 16 * (1000 * i + 999), &(SECOND_BUFFERS + 2048 * i).to_le_bytes());
        }
        guest.ring(base, at, 16_384);
        guest.set(base + TAIL, 16_383);
    }
    guest
}

/// CVE-2020-28916 with two queues: what one push visits is bounded for both together, however often
/// frames change from one to the other.
#[test]
fn null_descriptors_in_both_queues_cost_a_bounded_push() {
    let guest = nearly_null();
    let frames: Vec<_> = one_of_each().into_iter().cycle().take(32).collect();
    let visited = || guest.get(RD + HEAD) + guest.get(RD + SECOND + HEAD);
    let (mut dealt, mut before) = (0, 0);
    while dealt < 32 {
        dealt += guest.arrive(&frames[dealt..]);
        let now = visited();
        assert!(now > before && now - before <= 4096, "{before} {now}");
        assert!(guest.chip.want_room(), "no queue had too little");
        before = now;
    }
    assert_eq!(before, 32_000);
    assert_eq!(guest.dropped(), 0);
}

/// A push that was cut short goes on, though another queue has waited since one before it.
#[test]
fn a_queue_that_waits_does_not_stop_a_push_that_was_cut_short() {
    let guest = nearly_null();
    let [first, second] = one_of_each();
    guest.set(RD + SECOND + TAIL, 0);
    assert_eq!(guest.arrive(&[second]), 0);
    assert!(!guest.chip.want_room());
    assert_eq!(guest.arrive(&vec![first; 5]), 4);
    assert!(guest.chip.want_room());
}

/// RSS may name a queue that has no ring, or one that is nowhere: what comes for it waits, and
/// whoever has it is not told that there is room in the other.
#[test]
fn a_queue_without_a_ring_has_no_room() {
    let [first, second] = one_of_each();
    for (len, high) in [(0, 0), (64 * 16, 1)] {
        let guest = spreading();
        guest.set(RD + SECOND + LEN, len);
        guest.set(RD + SECOND + HIGH, high);
        assert_eq!(guest.arrive(&[first.clone(), second.clone()]), 1);
        assert!(!guest.chip.want_room(), "{len}");
        assert_eq!(guest.chip.room(), 0);
        assert!(!guest.chip.want_room(), "{len}");
        // It gets one.
        second_ring(&guest);
        assert!(guest.chip.want_room());
        assert_eq!(guest.arrive(std::slice::from_ref(&second)), 1);
        assert_eq!([RD, RD + SECOND].map(|base| guest.get(base + HEAD)), [1, 1]);
    }
}

/// RSS is turned off while a queue has too little room: its frames now go to the first.
#[test]
fn a_queue_that_is_no_longer_used_is_not_waited_for() {
    let guest = spreading();
    guest.set(RD + SECOND + TAIL, 0);
    let [_, second] = one_of_each();
    assert_eq!(guest.arrive(std::slice::from_ref(&second)), 0);
    assert!(!guest.chip.want_room());
    guest.set(MRQC, 0);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive(&[second]), 1);
    assert_eq!(guest.get(RD + HEAD), 1);
}

/// What is needed: MRQC, PCSD, extended descriptors. Linux' settings need none of it.
#[test]
fn without_rss_all_goes_to_the_first() {
    for (at, value) in [(MRQC, 0x37 << 16), (RXCSUM, 3 << 8), (RFCTL, 0), (MRQC, 2 | 1 << 16)] {
        let guest = spreading();
        guest.set(at, value);
        let frames: Vec<_> = (0..40).map(flow).collect();
        assert_eq!(guest.arrive(&frames), 40);
        assert_eq!([RD, RD + SECOND].map(|base| guest.get(base + HEAD)), [40, 0]);
    }
}

#[test]
fn both_transmit_queues_are_served_in_turn() {
    let mut guest = Guest::new();
    guest.ring(TD + SECOND, SECOND_RING, 64);
    let at = guest.fill(0, &frame([2; 6], 60));
    for i in 0..20u64 {
        guest.write(SECOND_RING + 16 * i, &at.to_le_bytes());
        guest.write(SECOND_RING + 16 * i + 8, &(60 | LAST).to_le_bytes());
    }
    guest.set(TD + SECOND + TAIL, 20);
    guest.post(&[(at, 60 | LAST); 20]);
    assert_eq!(guest.pull().len(), 40);
    assert_eq!([TD, TD + SECOND].map(|base| guest.get(base + HEAD)), [20, 20]);
    // With little room both have their share.
    guest.post(&[(at, 60 | LAST); 20]);
    for i in 20..40u64 {
        guest.write(SECOND_RING + 16 * i, &at.to_le_bytes());
        guest.write(SECOND_RING + 16 * i + 8, &(60 | LAST).to_le_bytes());
    }
    guest.set(TD + SECOND + TAIL, 40);
    for _ in 0..2 {
        let mut take = crate::chip::fixture::Take::default();
        guest.chip.pull(&mut guest.batch, 10, &mut take);
        assert_eq!(take.frames.len(), 10);
    }
    assert_eq!([TD, TD + SECOND].map(|base| guest.get(base + HEAD)), [30, 30]);
}

/// TARC: a queue that is off waits.
#[test]
fn a_queue_that_is_off_waits() {
    let mut guest = Guest::new();
    guest.set(0x3840, 3);
    guest.send(0, &frame([2; 6], 60));
    assert!(guest.pull().is_empty());
    assert!(!guest.chip.arm());
    let before = guest.host.rings();
    guest.set(0x3840, 0x403);
    assert_eq!(guest.host.rings(), before + 1, "the worker is told");
    assert_eq!(guest.pull().len(), 1);
}
