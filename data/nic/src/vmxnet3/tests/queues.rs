//! Several queues.

use super::guest::*;

fn with_queues(queues: u32) -> Guest {
    Guest::with(Setup { queues, ..Setup::default() })
}

/// One pull serves all, in turn, and each completes what is its own.
#[test]
fn transmit_queues_are_served_in_turn() {
    let mut guest = with_queues(8);
    let at = guest.fill(0, &frame(MAC, 60));
    for round in 0..3 {
        for queue in 0..8 {
            let descriptors = vec![(at, 60 + queue, EOP | CQ); 1 + queue as usize];
            guest.give_to(queue, &descriptors);
        }
        guest.succeed();
        let frames = guest.pull();
        let lens: Vec<_> = frames.iter().map(|frame| frame.bytes.len()).collect();
        assert_eq!(lens.len(), 36);
        assert_eq!(lens[0], 60 + round, "another one begins each time");
        for queue in 0..8 {
            for n in 0..=queue {
                assert_eq!(guest.sent_of(queue), Some((round as u32 * (queue + 1) + n) % SIZE));
            }
            assert_eq!(guest.sent_of(queue), None);
            assert_eq!(guest.messages(queue as u16), 1 + round);
            guest.mask(queue.into(), false);
            assert_eq!(guest.threshold(queue), u32::MAX);
        }
    }
    assert!(!guest.chip.arm());
    assert!((0..8).all(|queue| guest.threshold(queue) == 1));
}

/// A limit is one for all queues together; the next pull goes on with another.
#[test]
fn no_queue_starves_under_a_small_limit() {
    let mut guest = with_queues(4);
    let at = guest.fill(0, &frame(MAC, 60));
    for queue in 0..4 {
        guest.give_to(queue, &[(at, 60 + queue, EOP | CQ); 20]);
    }
    let mut seen = [0; 4];
    for _ in 0..8 {
        let mut take = Take::default();
        guest.chip.pull(&mut guest.batch, 5, &mut take);
        guest.succeed();
        assert_eq!(take.frames.len(), 5);
        take.frames.iter().for_each(|frame| seen[frame.bytes.len() - 60] += 1);
    }
    assert_eq!(seen, [10; 4]);
}

/// As a driver sets up RSS: TCP and IP, over a table of `entries`.
fn spread(guest: &Guest, entries: &[u8]) {
    let at = 0x6000;
    guest.put(at, 0xf | 1 << 16);
    guest.put(at + 4, 40 | (entries.len() as u32) << 16);
    let key: Vec<u8> = (0..40u8).map(|n| n.wrapping_mul(73).wrapping_add(11)).collect();
    guest.write(at + 8, &key);
    guest.write(at + 48, entries);
    guest.put(SHARED + 0x288, 1);
    guest.put(SHARED + 0x28c, 176);
    guest.put(SHARED + 0x290, at as u32);
    guest.put(SHARED + 0x18, 3);
    guest.command(UPDATE_FEATURE);
    guest.command(UPDATE_RSSIDT);
}

/// Packets of several flows.
fn flows() -> Vec<Vec<u8>> {
    let flow = |n: u8| {
        let mut bytes = packet(true, 100);
        bytes[35] = n;
        bytes
    };
    (0..64).map(flow).collect()
}

#[test]
fn flows_are_spread_over_receive_queues() {
    let mut guest = with_queues(4);
    let table: Vec<u8> = (0..128).map(|n| n % 4).collect();
    spread(&guest, &table);
    guest.succeed();
    let flows = flows();
    let list: Vec<&[u8]> = flows.iter().map(Vec::as_slice).collect();
    assert_eq!(guest.arrive_plain(&list), 64);
    guest.succeed();
    let mut hashes = Vec::new();
    for queue in 0..4 {
        let mut count = 0;
        while let Some((bytes, done)) = guest.take_of(queue) {
            assert_eq!(done.queue, queue);
            assert_eq!(done.words[0] >> 26 & 15, 2, "TCP on IPv4");
            assert_eq!(table[done.words[1] as usize % 128], queue as u8);
            hashes.push((bytes, done.words[1]));
            count += 1;
        }
        assert!(count > 4, "queue {queue}: {count}");
        assert_eq!(guest.messages(queue as u16), 1);
    }
    // The same flows again: the same hashes, now all to queue 3.
    spread(&guest, &[3]);
    let again: Vec<&[u8]> = hashes.iter().take(50).map(|(bytes, _)| bytes.as_slice()).collect();
    assert_eq!(guest.arrive_plain(&again), 50 - guest_room(&guest, 50));
    while let Some((bytes, done)) = guest.take_of(3) {
        assert!(hashes.contains(&(bytes, done.words[1])));
    }
    // What has no address goes to the first.
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    let done = guest.take_of(0).unwrap().1;
    assert_eq!((done.words[0] >> 26 & 15, done.words[1]), (0, 0));
}

/// Frames for which queue 3 has no room: none, if it was not used up before.
fn guest_room(guest: &Guest, frames: usize) -> usize {
    let used = guest.queues[3].rx_done.index as usize;
    frames.saturating_sub(SIZE as usize - 1 - used)
}

/// The first frame that finds no room stops the others, so that none is delivered twice.
#[test]
fn a_full_queue_holds_up_what_follows() {
    let mut guest = with_queues(2);
    let table: Vec<u8> = (0..128).map(|n| n % 2).collect();
    spread(&guest, &table);
    let flows: Vec<_> = flows().into_iter().cycle().take(200).collect();
    let list: Vec<&[u8]> = flows.iter().map(Vec::as_slice).collect();
    let mut got = Vec::new();
    let mut dealt = 0;
    while dealt < list.len() {
        let n = guest.arrive_plain(&list[dealt..]);
        guest.succeed();
        assert!(n > 0);
        for queue in 0..2 {
            while let Some((bytes, _)) = guest.take_of(queue) {
                got.push(bytes);
                guest.post_head(queue, ROOM);
            }
        }
        dealt += n;
    }
    let mut wanted = flows.clone();
    wanted.sort();
    got.sort();
    assert_eq!(got, wanted);
}

/// The largest rings, full of bodies where a head is wanted, but for each 200th: what one push
/// visits is bounded for all queues together, however often frames change between them.
#[test]
fn bodies_in_all_queues_cost_a_bounded_push() {
    let table: Vec<u8> = (0..128).map(|n| n % 2).collect();
    let mut guest = with_queues(2);
    spread(&guest, &table);
    let [first, second] = [0, 1].map(|queue| {
        let goes = |flow: &Vec<u8>| {
            guest.arrive_plain(&[flow.as_slice()]);
            [0, 1].map(|n| guest.take_of(n).is_some())[queue]
        };
        flows().into_iter().find(goes).unwrap()
    });
    guest.command(QUIESCE);
    guest.write_shared();
    for queue in 0..2 {
        let ring = 0x20_0000 + 0x1_0000 * u64::from(queue);
        for n in 0..4096 {
            let body = if n % 200 == 199 { 0 } else { 1 << 14 };
            guest.write(ring + 16 * n, &RX_BUFFERS.to_le_bytes());
            guest.put(ring + 16 * n + 8, ROOM | body | 1 << 31);
        }
        guest.put(guest.rx_queue(queue) + 0x10, ring as u32);
        guest.put(guest.rx_queue(queue) + 0x38, 4096);
        guest.put(guest.rx_queue(queue) + 0x3c, 0);
    }
    assert_eq!(guest.command(ACTIVATE), 0);
    spread(&guest, &table);
    let list: Vec<&[u8]> = [&*first, &*second].into_iter().cycle().take(40).collect();
    let mut dealt = 0;
    while dealt < 40 {
        let n = guest.arrive_plain(&list[dealt..]);
        assert!(n > 0 && 200 * n <= 4096, "{n}");
        assert!(guest.chip.want_room(), "no queue had too little");
        dealt += n;
    }
    assert_eq!(guest.dropped(), 0);
}

/// Tables of any size, with entries that name no queue, key sizes that cannot be.
#[test]
fn tables_of_any_kind_are_harmless() {
    let guest = with_queues(2);
    let flows = flows();
    for size in [0u32, 1, 3, 127, 128, 129, 255, 0xffff] {
        spread(&guest, &[200; 128]);
        guest.put(0x6004, 40 | size << 16);
        guest.command(UPDATE_RSSIDT);
        assert_eq!(guest.arrive_plain(&[&flows[0]]), 1);
    }
    guest.put(0x6004, 0xffff | 128 << 16);
    guest.command(UPDATE_RSSIDT);
    for place in [0xffff_fff0u32, MEMORY as u32 - 8, 0] {
        guest.put(SHARED + 0x290, place);
        guest.command(UPDATE_RSSIDT);
        assert_eq!(guest.arrive_plain(&[&flows[1]]), 1);
    }
}
