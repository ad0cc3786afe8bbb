//! Frames to the guest.

use vmlan_frame::{Gso, Offload, Offloads, Reason};

use super::guest::*;

const CNC: u32 = 1 << 30;

#[test]
fn frames_arrive_in_heads_round_the_ring() {
    let mut guest = Guest::new();
    for n in 0..300usize {
        let bytes = frame(MAC, 60 + n * 4);
        assert_eq!(guest.arrive_plain(&[&bytes]), 1);
        let (got, done) = guest.take().unwrap();
        assert_eq!(got, bytes);
        assert_eq!((done.index, done.queue), (n as u32 % SIZE, 0));
        assert_eq!(done.words[0] & CNC, CNC, "nobody vouches for it");
        assert_eq!(done.words[3] & 0x7fff_ffff, 3 << 24);
        guest.post_head(0, ROOM);
    }
    assert!(guest.take().is_none());
}

#[test]
fn a_full_ring_makes_frames_wait() {
    let mut guest = Guest::new();
    let frames: Vec<Vec<u8>> = (0..100).map(|n| frame(MAC, 60 + n)).collect();
    let list: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(guest.arrive_plain(&list), 63);
    assert_eq!(guest.arrive_plain(&list[63..]), 0);
    assert!(!guest.chip.want_room());
    assert_eq!(guest.word(guest.rx_queue(0)), 0, "no doorbell is wanted");
    assert!(guest.chip.posts_silently(), "or nobody looks again");
    for wanted in &frames[..63] {
        assert_eq!(&guest.take().unwrap().0, wanted);
        guest.post_head(0, ROOM);
    }
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive_plain(&list[63..]), 37);
    assert_eq!(guest.word(guest.rx_queue(0)), 0);
    for wanted in &frames[63..] {
        assert_eq!(&guest.take().unwrap().0, wanted);
    }
    let out_of_buffers = |guest: &Guest| {
        guest.command(GET_STATS);
        guest.long(guest.rx_queue(0) + 0x58 + 64)
    };
    assert_eq!(out_of_buffers(&guest), 0, "they have only waited");
    guest.chip.counters().output.drop(Reason::ReceiverFull, 3);
    assert_eq!(out_of_buffers(&guest), 3, "the switch gave up");
}

/// Ring 0 as Linux fills it for an MTU of 9000: a head, then bodies.
#[test]
fn long_frames_take_bodies_of_the_first_ring() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    guest.setup.second = 0;
    guest.command(QUIESCE);
    guest.write_shared();
    // All heads so far: write the pattern over them.
    guest.queues[0].rx = At::new(SIZE);
    for n in 0..SIZE - 1 {
        guest.post(0, n % 3 != 0, ROOM);
    }
    assert_eq!(guest.command(ACTIVATE), 0);
    let (long, short) = (frame(MAC, 5000), frame(MAC, 64));
    assert_eq!(guest.arrive_plain(&[&long, &short, &long]), 3);
    let mut indexes = Vec::new();
    let mut parts = Vec::new();
    while let Some(done) = guest.done_of(0) {
        indexes.push(done.index);
        parts.push((done.sop, done.eop, done.bytes.len(), done.queue));
    }
    assert_eq!(indexes, [0, 1, 2, 3, 6, 7, 8], "bodies on the way are passed over");
    assert_eq!(
        parts[..3],
        [(true, false, 2048, 0), (false, false, 2048, 0), (false, true, 904, 0)]
    );
    assert_eq!(parts[3], (true, true, 64, 0));
}

/// Heads in ring 0, bodies in ring 1, as DPDK and Linux (to an MTU of 3050) have them.
#[test]
fn long_frames_take_bodies_of_the_second_ring() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    for _ in 0..SIZE - 1 {
        guest.post_second(0, ROOM);
    }
    for n in 0..50usize {
        let bytes = frame(MAC, 4000 + 80 * n);
        assert_eq!(guest.arrive_plain(&[&bytes, &frame(MAC, 60)]), 2);
        let done = guest.done_of(0).unwrap();
        assert_eq!((done.queue, done.sop, done.eop), (0, true, false));
        let mut got = done.bytes.clone();
        let mut used = 0;
        loop {
            let done = guest.done_of(0).unwrap();
            assert_eq!((done.queue, done.sop), (1, false), "ring 1");
            got.extend(&done.bytes);
            used += 1;
            if done.eop {
                break;
            }
        }
        assert_eq!(got, bytes);
        (0..used).for_each(|_| guest.post_second(0, ROOM));
        assert_eq!(guest.take().unwrap().0.len(), 60);
        (0..2).for_each(|_| guest.post_head(0, ROOM));
    }
}

/// Heads so short that all of them together would not hold it: most of it goes to bodies.
#[test]
fn the_first_ring_need_not_hold_a_frame_by_itself() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    guest.write_shared();
    guest.queues[0].rx = At::new(SIZE);
    (0..SIZE - 1).for_each(|_| guest.post_head(0, 128));
    (0..SIZE - 1).for_each(|_| guest.post_second(0, ROOM));
    assert_eq!(guest.command(ACTIVATE), 0);
    let long = frame(MAC, 9000);
    assert_eq!((guest.arrive_plain(&[&long]), guest.dropped()), (1, 0));
    assert_eq!(guest.take().unwrap().0, long);
}

#[test]
fn frames_that_need_more_buffers_than_there_may_be_are_dropped() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    guest.command(QUIESCE);
    guest.write_shared();
    guest.put(SHARED + 0x3c, 2 | 1 << 16 | 1 << 24);
    assert_eq!(guest.command(ACTIVATE), 0);
    (0..10).for_each(|_| guest.post_second(0, ROOM));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 4097), &frame(MAC, 4096)]), 2);
    assert_eq!(guest.take().unwrap().0.len(), 4096);
    assert_eq!(guest.dropped(), 1);
    // Longer than the MTU.
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 9019)]), 1);
    assert_eq!(guest.dropped(), 2);
}

#[test]
fn without_bodies_a_long_frame_waits() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 4000)]), 0);
    assert!(guest.done_of(0).is_none());
    guest.post_second(0, ROOM);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 4000)]), 1);
    assert_eq!(guest.take().unwrap().0.len(), 4000);
}

#[test]
fn checksums_that_are_vouched_for_are_reported() {
    let mut guest = Guest::new();
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    let mut wrong = packet(true, 20);
    wrong[24] ^= 1;
    let frames = [packet(true, 100), packet(false, 100), wrong, frame(MAC, 100)];
    let frames = frames.map(|bytes| (bytes, valid));
    assert_eq!(guest.arrive(&frames), 4);
    let said = [(); 4].map(|()| {
        let done = guest.take().unwrap().1;
        (done.words[0] & CNC, done.words[3] & 0x00ff_ffff)
    });
    let (tuc, udp, tcp, ipc, v4) = (1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 21);
    assert_eq!(said, [(0, tuc | tcp | ipc | v4), (0, tuc | udp | ipc | v4), (CNC, 0), (CNC, 0)]);
    // A driver that did not ask.
    guest.put(SHARED + 0x18, 0);
    guest.command(UPDATE_FEATURE);
    assert_eq!(guest.arrive(&frames[..1]), 1);
    assert_eq!(guest.take().unwrap().1.words[0] & CNC, CNC);
}

#[test]
fn tags_are_taken_out_and_filtered() {
    let mut guest = Guest::with(Setup { features: 5, ..Setup::default() });
    let plain = frame(MAC, 100);
    let tagged = |vlan: u8| [&plain[..12], &[0x81, 0, 0xa0, vlan], &plain[12..]].concat();
    assert_eq!(guest.arrive_plain(&[&plain, &tagged(5), &plain]), 3);
    let got = [(); 3].map(|()| guest.take().unwrap());
    assert!(got.iter().all(|(bytes, _)| *bytes == plain));
    let tags = got.map(|(_, done)| done.words[2] >> 15);
    assert_eq!(tags, [0, 1 | 0xa005 << 1, 0]);
    // VLAN 5 and no other; frames without a tag pass.
    guest.put(SHARED + 0x88, 1 << 5);
    guest.command(UPDATE_VLAN_FILTERS);
    assert_eq!(guest.arrive_plain(&[&tagged(6), &tagged(5), &plain]), 3);
    assert_eq!(guest.take().unwrap().1.words[2] >> 15, 1 | 0xa005 << 1);
    assert_eq!(guest.take().unwrap().1.words[2] >> 15, 0);
    assert!(guest.take().is_none());
    guest.put(SHARED + 0x88, 0);
    guest.command(UPDATE_VLAN_FILTERS);
    assert_eq!(guest.arrive_plain(&[&tagged(6)]), 1);
    assert!(guest.take().is_some(), "an empty table filters nothing");
    guest.put(SHARED + 0x18, 1);
    guest.command(UPDATE_FEATURE);
    assert_eq!(guest.arrive_plain(&[&tagged(6)]), 1);
    assert_eq!(guest.take().unwrap().0, tagged(6), "left in");
}

#[test]
fn each_mode_lets_its_frames_in_and_no_others() {
    let mut guest = Guest::new();
    let group = [1, 0, 0x5e, 0, 0, 9];
    let all = [MAC, [0x52, 0, 0, 0, 0, 9], [0xff; 6], group, [1, 0, 0x5e, 0, 0, 8]];
    guest.write(0x5000, &[group, [3; 6], [1; 6]].concat());
    guest.put(SHARED + 0x7c, 18);
    guest.put(SHARED + 0x80, 0x5000);
    guest.command(UPDATE_MAC_FILTERS);
    // The table is freed as soon as the command is done.
    guest.write(0x5000, &[0xee; 18]);
    for (mode, wanted) in [
        (0, vec![]),
        (1, vec![0]),
        (4, vec![2]),
        (2, vec![3]),
        (8, vec![3, 4]),
        (0x10, vec![0, 1, 2, 3, 4]),
    ] {
        guest.put(SHARED + 0x78, mode);
        guest.command(UPDATE_RX_MODE);
        for (n, to) in all.iter().enumerate() {
            assert_eq!(guest.arrive_plain(&[&frame(*to, 60)]), 1);
            assert_eq!(guest.take().is_some(), wanted.contains(&n), "mode {mode:x}, frame {n}");
        }
    }
}

/// A guest that wants LRO, with bodies for the longest packet.
fn uncut() -> Guest {
    let mut guest = Guest::new();
    guest.command(QUIESCE);
    guest.setup.features = 1 | 8;
    guest.write_shared();
    for _ in 0..SIZE - 1 {
        guest.post_second(0, 4096);
    }
    assert_eq!(guest.command(ACTIVATE), 0);
    guest
}

/// A packet of TCP that is to be segmented.
fn large(payload: usize) -> (Vec<u8>, Offload) {
    let bytes = packet(true, payload);
    let offload = Offload {
        needs_csum: true,
        gso: Gso::Tcp4,
        gso_size: 1448,
        hdr_len: 66,
        csum_start: 34,
        csum_offset: 16,
        ..Offload::NONE
    };
    (bytes, offload)
}

#[test]
fn packets_are_handed_over_uncut() {
    let mut guest = uncut();
    let all = Offloads::CSUM.with(Offloads::TSO4).with(Offloads::TSO6);
    assert_eq!(guest.chip.offloads(), all);
    let (v4, ipc, tcp, tuc) = (1 << 21, 1 << 19, 1 << 18, 1 << 16);
    for payload in [65_000, 1448 * 3, 1449, 900] {
        // The buffers overlap in the test's memory; only what is said is looked at.
        assert_eq!(guest.arrive(&[large(payload), (frame(MAC, 60), Offload::NONE)]), 2);
        let first = guest.done_of(0).unwrap();
        assert!(first.sop);
        assert_eq!(first.words[3] >> 24 & 0x7f, 4, "it stands for several");
        assert_eq!(first.words[1] & 0xffff, payload.div_ceil(1448) as u32);
        assert_eq!(first.words[3] & 0xffff, 1448);
        let (mut total, mut last) = (first.bytes.len(), first);
        while !last.eop {
            last = guest.done_of(0).unwrap();
            assert_eq!(last.words[3] >> 24 & 0x7f, 3);
            total += last.bytes.len();
        }
        assert_eq!(total, 66 + payload);
        assert_eq!((last.words[0] & CNC, last.words[3] & 0xff_0000), (0, v4 | ipc | tcp | tuc));
        assert_eq!(guest.done_of(0).unwrap().bytes.len(), 60);
        (0..17).for_each(|_| guest.post_second(0, 4096));
        (0..2).for_each(|_| guest.post_head(0, ROOM));
    }
    assert_eq!(guest.statistic("LRO pkts rx"), 4);
    assert_eq!(guest.dropped(), 0);
}

/// As Linux has it with `ethtool -G eth0 rx 32`, but for the number: heads for the MTU only.
#[test]
fn a_short_first_ring_takes_the_longest_packet() {
    let mut guest = uncut();
    guest.write_shared();
    guest.queues[0].rx = At::new(SIZE);
    (0..SIZE - 1).for_each(|_| guest.post_head(0, 1000));
    (0..SIZE - 1).for_each(|_| guest.post_second(0, 4096));
    assert_eq!(guest.command(ACTIVATE), 0);
    assert_ne!(guest.chip.offloads(), Offloads::NONE);
    assert_eq!((guest.arrive(&[large(65_000)]), guest.dropped()), (1, 0));
    assert!(guest.done_of(0).unwrap().sop);
}

/// An unfinished checksum is filled in: the frame may be forwarded.
#[test]
fn checksums_of_single_frames_are_finished() {
    let mut guest = uncut();
    let good = packet(false, 500);
    let mut bytes = good.clone();
    let mut pseudo = good[26..34].to_vec();
    pseudo.extend([0, good[23]]);
    pseudo.extend(((good.len() - 34) as u16).to_be_bytes());
    bytes[40..42].copy_from_slice(&sum(&pseudo).to_be_bytes());
    let offload = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    assert_eq!(guest.arrive(&[(bytes, offload)]), 1);
    let (got, done) = guest.take().unwrap();
    assert_eq!((got, done.words[0] & CNC), (good, 0));
}

#[test]
fn only_those_who_can_take_them_get_packets_uncut() {
    let none = Offloads::NONE;
    let mut guest = uncut();
    guest.put(SHARED + 0x18, 1);
    guest.command(UPDATE_FEATURE);
    assert_eq!(guest.chip.offloads(), none, "turned off");
    assert_eq!(guest.arrive(&[large(3000)]), 1);
    assert_eq!((guest.dropped(), guest.done_of(0)), (1, None), "one that was under way");
    guest.put(SHARED + 0x18, 9);
    guest.command(UPDATE_FEATURE);
    assert_ne!(guest.chip.offloads(), none);
    guest.command(QUIESCE);
    assert_eq!(guest.chip.offloads(), none);
    guest.set(1, 0, 1);
    guest.write_shared();
    (0..SIZE - 1).for_each(|_| guest.post_second(0, 4096));
    guest.command(ACTIVATE);
    assert_eq!(guest.chip.offloads(), none, "version 1");
    guest.set(1, 0, 2);
    guest.write_shared();
    (0..SIZE - 1).for_each(|_| guest.post_second(0, 2048));
    guest.command(ACTIVATE);
    assert_eq!(guest.chip.offloads(), none, "too small bodies");
    guest.write_shared();
    guest.command(ACTIVATE);
    assert_eq!(guest.chip.offloads(), none, "no bodies");
}

/// Bodies come back after the heads that were posted with them.
#[test]
fn a_packet_waits_for_bodies() {
    let mut guest = uncut();
    let mut sent = 0;
    while guest.arrive(&[large(60_000)]) == 1 {
        sent += 1;
    }
    assert_eq!(sent, 4);
    assert!(!guest.chip.want_room());
    while guest.done_of(0).is_some() {}
    // A head alone makes the ring move on, and not enough.
    guest.post_head(0, ROOM);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive(&[large(60_000)]), 0);
    assert!(!guest.chip.want_room());
    (0..40).for_each(|_| guest.post_second(0, 4096));
    assert!(guest.chip.want_room(), "though the first ring stands still");
    assert_eq!(guest.arrive(&[large(60_000)]), 1);
}
