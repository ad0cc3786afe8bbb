//! What broke the emulated NICs of others, as far as this chip can be asked for it: a test for each
//! class of fault. `docs/known-faults.md` says who had it. (No fault of an emulated r8169 is known,
//! because there is none.)

use vmlan_frame::{Offload, Reason};

use super::guest::*;
use super::transmit::refused;

/// Descriptors one pull may visit: its budget, and one frame.
const VISITS: u32 = 4096 + 128;
/// Where QEMU's PCI bridge would put BAR1.
const BAR1: u64 = 0xfebc_0000;
const RES: u32 = 1 << 21;

/// A ring of the largest size, all alike, at 0x100000.
fn largest(guest: &Guest, opts1: u32, addr: u64) -> u64 {
    let ring = 0x10_0000;
    for i in 0..1024 {
        guest.tx_desc(ring, i, opts1, 0, addr);
    }
    guest.set64(TNPDS, ring);
    ring
}

#[test]
fn large_send_of_impossible_lengths() {
    let mut guest = Guest::new();
    let packet = packet(true, 5000);
    let at = guest.fill(0, &unfinished(&packet));
    let len = packet.len() as u32;
    // Headers cut off; nothing but headers; more than a packet can have.
    refused(&mut guest, &[(FS | LS | LGSEN | 1000 << 16 | 40, 0, at)], Reason::BadHeader);
    let mut long = vec![(FS | LGSEN | 1000 << 16 | len, 0, at)];
    long.extend([(0xffff, 0, at); 20]);
    long.push((LS | 0xffff, 0, at));
    refused(&mut guest, &long, Reason::TooLong);
    // A segment of one byte each is work for thousands: refused.
    refused(&mut guest, &[(FS | LS | LGSEN | 1 << 16 | len, 0, at)], Reason::BadOffload);
    // Descriptors that disagree: the first one's command counts.
    let (first, rest) = (1000, len - 1000);
    guest.give(&[(FS | LGSEN | 1000 << 16 | first, 0, at), (LS | rest, 0, at + 1000)]);
    assert_eq!(guest.pull()[0].offload.gso_size, 1000);
    let more = [(FS | first, 0, at), (LS | LGSEN | 1000 << 16 | rest, 0, at + 1000)];
    guest.give(&more);
    assert_eq!(guest.pull()[0].offload, Offload::NONE);
    // VLAN insertion before headers that are not there.
    refused(&mut guest, &[(FS | LS | LGSEN | 9 << 16 | 14, TAGC | 5, at)], Reason::BadHeader);
}

#[test]
fn frames_stay_in_their_buffers() {
    for len in [14usize, 60, 100, 1000, 1500, 2044] {
        for room in [1u32, 8, 60, 64, 65, 100, 104, 1500, 1504] {
            let guest = Guest::new();
            guest.write(RX_BUFFERS, &vec![0xee; (SIZE * ROOM) as usize]);
            for i in 0..SIZE {
                let eor = if i == SIZE - 1 { EOR } else { 0 };
                let at = RX_BUFFERS + u64::from(i * ROOM);
                guest.tx_desc(RX_RING, i, OWN | eor | room, 0, at);
            }
            guest.arrive_plain(&[&frame(MAC, len)]);
            for i in 0..SIZE {
                let at = RX_BUFFERS + u64::from(i * ROOM + room);
                let behind = guest.read(at, (ROOM - room) as usize);
                assert!(behind.iter().all(|byte| *byte == 0xee), "{len} in {room}");
            }
        }
    }
    // The last buffer of memory: one byte more would be outside.
    let guest = Guest::new();
    guest.tx_desc(RX_RING, 0, OWN | 64, 0, MEMORY - 64);
    guest.tx_desc(RX_RING, 1, OWN | 64, 0, MEMORY - 63);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60), &frame(MAC, 60)]), 2);
    assert_eq!((guest.received(0).0 & 0x3fff, guest.received(1).0), (64, FS | LS | RES));
}

#[test]
fn large_send_without_mss() {
    let mut guest = Guest::new();
    let packet = packet(true, 5000);
    let at = guest.fill(0, &unfinished(&packet));
    refused(&mut guest, &[(FS | LS | LGSEN | packet.len() as u32, 0, at)], Reason::BadOffload);
}

#[test]
fn buffers_of_no_length() {
    let mut guest = Guest::new();
    (0..10).for_each(|i| guest.tx_desc(RX_RING, i, OWN, 0, RX_BUFFERS));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert!((0..10).all(|i| guest.received(i) == (0, 0)), "given back, no data");
    assert_eq!(guest.received(10).0 & 0x3fff, 64);
    // A ring of nothing else is used up, and then full.
    guest.set8(CR, RST);
    guest.start();
    for i in 0..SIZE {
        guest.tx_desc(RX_RING, i, OWN | if i == SIZE - 1 { EOR } else { 0 }, 0, RX_BUFFERS);
    }
    (0..3).for_each(|_| assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0));
    assert!((0..SIZE).all(|i| guest.received(i).0 & OWN == 0));
    assert_eq!(guest.received(SIZE - 1).0, EOR, "EOR stays where it is");
}

/// Receive buffers of a byte each. A frame for which the whole ring is too small is dropped, not
/// tried for ever; one that just fits takes all of it, and what one push visits is bounded.
#[test]
fn buffers_of_one_byte() {
    let guest = Guest::new();
    let post = |len: u32| {
        for i in 0..SIZE {
            guest.tx_desc(
                RX_RING,
                i,
                OWN | len | if i == SIZE - 1 { EOR } else { 0 },
                0,
                RX_BUFFERS,
            );
        }
    };
    post(1);
    let flood = vec![frame(MAC, 60); 256];
    let flood: Vec<&[u8]> = flood.iter().map(Vec::as_slice).collect();
    assert_eq!(guest.arrive_plain(&flood), 256, "dealt with");
    assert_eq!(guest.chip.counters().output.dropped(Reason::TooLong), 256);
    assert!((0..SIZE).all(|i| guest.received(i).0 & OWN != 0), "nothing of it was used");
    // 32 of 2 bytes hold one, with its FCS; the ring has room for one such frame.
    post(2);
    assert_eq!(guest.arrive_plain(&flood), 1);
    assert_eq!((0..SIZE).filter(|i| guest.received(*i).0 & OWN == 0).count(), 32);
}

#[test]
fn rings_that_are_all_owned_cost_a_bounded_pass() {
    let patterns = [0, FS, LS, FS | LS, FS | LS | 13, FS | 100, LS | 100, FS | LGSEN | LS, 1];
    for opts1 in patterns {
        let mut guest = Guest::new();
        let ring = largest(&guest, OWN | opts1, TX_BUFFERS);
        let mut before = u64::MAX;
        for pass in 0.. {
            assert!(pass < 20, "{opts1:#x}");
            assert!(guest.pull().is_empty(), "{opts1:#x}");
            let owned = (0..1024).filter(|i| guest.word(ring + 16 * i) & OWN != 0).count() as u64;
            if owned == before || owned == 0 {
                break;
            }
            before = owned;
        }
        assert!(!guest.chip.arm(), "{opts1:#x}");
    }
}

/// The driver gives descriptors back as fast as they come: a pull ends all the same.
#[test]
fn a_ring_that_is_refilled() {
    let mut guest = Guest::new();
    guest.write(TX_BUFFERS, &frame([2; 6], 60));
    let ring = largest(&guest, OWN | FS | LS | 60, TX_BUFFERS);
    for _ in 0..20 {
        let n = guest.pull().len();
        assert!(n > 0 && n <= 256);
        for i in 0..1024 {
            guest.tx_desc(ring, i, OWN | FS | LS | 60, 0, TX_BUFFERS);
        }
    }
}

/// Behind a frame that is held nothing piles up that would be written back in one pass.
#[test]
fn descriptors_behind_a_held_frame() {
    let mut guest = Guest::new();
    guest.write(TX_BUFFERS, &frame([2; 6], 60));
    let ring = largest(&guest, OWN | FS | LS, TX_BUFFERS);
    guest.tx_desc(ring, 0, OWN | FS | LS | 60, 0, TX_BUFFERS);
    for _ in 0..20 {
        guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
        assert!((0..1024).all(|i| guest.word(ring + 16 * i) & OWN != 0));
    }
    assert!(!guest.chip.arm(), "it is the held frame that is waited for");
    assert_eq!(guest.pull().len(), 1);
    let given = (0..1024).filter(|i| guest.word(ring + 16 * i) & OWN == 0).count();
    assert!(given > 0 && given <= VISITS as usize);
}

#[test]
fn frames_and_buffers_in_registers() {
    let mut guest = Guest::new();
    for at in [BAR1, BAR1 + TPPOLL, MEMORY, MEMORY - 1, u64::MAX, u64::MAX - 59] {
        refused(&mut guest, &[(FS | LS | 60, 0, at)], Reason::BadDescriptor);
        let ok = guest.fill(0, &[1; 60]);
        refused(&mut guest, &[(FS | 60, 0, ok), (LS | 60, 0, at)], Reason::BadDescriptor);
        let receiver = Guest::new();
        receiver.tx_desc(RX_RING, 0, OWN | ROOM, 0, at);
        assert_eq!(receiver.arrive_plain(&[&frame(MAC, 60), &frame(MAC, 61)]), 2);
        assert_eq!((receiver.received(0).0, receiver.received(1).0 & 0x3fff), (FS | LS | RES, 65));
    }
}

/// Frames written over descriptors: garbage for that guest, and an end.
#[test]
fn buffers_in_the_ring_itself() {
    let mut guest = Guest::new();
    (0..SIZE).for_each(|i| guest.tx_desc(RX_RING, i, OWN | ROOM, 0, RX_RING));
    let frames = vec![frame(MAC, 1000); 40];
    let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    for _ in 0..5 {
        guest.arrive_plain(&all);
    }
    guest.set8(CR, RST);
    guest.start();
    assert_eq!(guest.arrive_plain(&all), 40);
}

#[test]
fn loopback_of_short_frames_is_no_recursion() {
    let mut guest = Guest::new();
    guest.set32(TCR, 1 << 17);
    for round in 0..100usize {
        let len = 14 + round % 60;
        guest.send(0, &frame(MAC, len));
        assert!(guest.pull().is_empty());
        assert_eq!(guest.take().unwrap().1 & 0x3fff, (len.max(60) + 4) as u32);
    }
    assert_eq!(guest.statistic("RxOk"), 100);
}

#[test]
fn loopback_with_a_tag() {
    let mut guest = Guest::new();
    guest.set32(TCR, 1 << 17);
    for len in [14, 16, 17, 18, 60, 1514] {
        let sent = frame(MAC, len);
        let at = guest.fill(0, &sent);
        guest.give(&[(FS | LS | len as u32, TAGC | 0x0500, at)]);
        guest.pull();
        let (mut got, ..) = guest.take().unwrap();
        assert_eq!(got.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 5]);
        assert!(got.drain(len..).all(|byte| byte == 0));
        assert_eq!(got, sent);
    }
}

#[test]
fn frames_of_too_many_pieces() {
    let mut guest = Guest::new();
    let ring = largest(&guest, OWN | 0xffff, TX_BUFFERS);
    guest.tx_desc(ring, 0, OWN | FS | 0xffff, 0, TX_BUFFERS);
    guest.tx_desc(ring, 1000, OWN | LS | 60, 0, TX_BUFFERS);
    guest.write(TX_BUFFERS, &frame([2; 6], 60));
    guest.tx_desc(ring, 1001, OWN | FS | LS | 60, 0, TX_BUFFERS);
    guest.tx_desc(ring, 1002, 0, 0, 0);
    let mut frames = 0;
    for _ in 0..20 {
        frames += guest.pull().len();
    }
    assert_eq!(frames, 1);
    assert_eq!(guest.chip.counters().input.dropped(Reason::TooLong), 1);
    assert!((0..1002).all(|i| guest.word(ring + 16 * i) & OWN == 0));
    // A frame without end that fills a small ring does not stay there.
    let mut guest = Guest::new();
    (0..8).for_each(|i| {
        let first = if i == 0 { FS } else { 0 };
        let eor = if i == 7 { EOR } else { 0 };
        guest.tx_desc(TX_RING, i, OWN | first | eor | 100, 0, TX_BUFFERS);
    });
    assert!(guest.pull().is_empty());
    assert_eq!(guest.dropped(), 1);
}

#[test]
fn large_send_of_what_is_no_tcp() {
    let mut guest = Guest::new();
    let command = FS | LS | LGSEN | 1000 << 16;
    let mut fragment = packet(true, 3000);
    fragment[20] = 0x20;
    let mut v6 = packet(true, 3000);
    (v6[12], v6[13], v6[14]) = (0x86, 0xdd, 0x60);
    for bytes in [frame([2; 6], 3000), packet(false, 3000), fragment, v6] {
        let at = guest.fill(0, &bytes);
        refused(&mut guest, &[(command | bytes.len() as u32, 0, at)], Reason::BadHeader);
    }
}

/// Headers that promise more than there is: nothing behind the frame is summed, or sent.
#[test]
fn checksums_of_headers_that_lie() {
    let command = IPCS | TCPCS;
    let lies: [(usize, u8); 6] = [(14, 0x4f), (14, 0x41), (16, 0xff), (17, 1), (46, 0xf0), (46, 0)];
    for (place, value) in lies {
        for len in [34, 40, 54, 66, 80] {
            let mut guest = Guest::new();
            let mut bytes = packet(true, 14);
            bytes[place] = value;
            guest.write(TX_BUFFERS, &[0xee; 4096]);
            let at = guest.fill(0, &bytes[..len]);
            guest.give(&[(FS | LS | command | len as u32, 0, at)]);
            for lent in guest.pull() {
                assert_eq!(lent.bytes.len(), len.max(60));
                assert!(lent.bytes[len..].iter().all(|byte| *byte == 0), "padding is zeros");
                for finished in finish(&lent) {
                    assert_eq!(finished.len(), len.max(60));
                }
            }
        }
    }
}

#[test]
fn nothing_moves_after_a_reset() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 60));
    guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
    guest.set8(CR, RST);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 1);
    guest.start();
    assert!(guest.pull().is_empty(), "the held frame is gone with its ring");
    // The same without the memory.
    guest.send(0, &frame([2; 6], 60));
    drop(guest.chip.set_map(memory(0x1000)));
    assert!(guest.pull().is_empty());
    assert!(matches!(guest.chip.fault(), Some(Fault::BadRing { ring: "transmit", .. })));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
    let map = guest.map.clone();
    drop(guest.chip.set_map(map));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.chip.fault(), None);
}

/// A receiver that is turned on before it is told where its ring is: nothing is written to page 0.
#[test]
fn no_ring_at_address_0() {
    let guest = Guest::cold(0, false);
    guest.config_write(4, &[7, 0]);
    guest.write(0, &[0xff; 0x1000]);
    guest.set32(RCR, 0xf);
    guest.set8(CR, RE | TE);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
    assert_eq!(guest.chip.room(), 0);
    assert_eq!(guest.read(0, 0x1000), vec![0xff; 0x1000]);
    assert_eq!(guest.chip.fault(), None, "it is on its way");
}

#[test]
fn rings_that_are_not_in_memory() {
    for at in [MEMORY, BAR1, u64::MAX - 255, 1 << 63] {
        let mut guest = Guest::new();
        guest.set64(TNPDS, at);
        guest.set64(RDSAR, at);
        guest.set8(TPPOLL, NPQ);
        assert!(guest.pull().is_empty());
        assert!(matches!(guest.chip.fault(), Some(Fault::BadRing { .. })), "{at:#x}");
        assert!(!guest.chip.arm());
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
        assert_eq!(guest.chip.room(), 0);
        guest.set8(CR, RST);
        guest.start();
        guest.send(0, &frame([2; 6], 60));
        assert_eq!(guest.pull().len(), 1);
        assert_eq!(guest.chip.fault(), None);
    }
}

#[test]
fn loopback_of_the_longest_frame() {
    let mut guest = Guest::new();
    guest.set32(TCR, 1 << 17);
    let long = frame(MAC, 9234);
    guest.send(0, &long);
    guest.pull();
    let mut got = Vec::new();
    for i in 0..5 {
        let n = (long.len() - got.len()).min(ROOM as usize);
        got.extend(guest.read(RX_BUFFERS + u64::from(ROOM * i), n));
    }
    assert_eq!(got, long);
}

#[test]
fn frames_shorter_than_their_headers() {
    let mut guest = Guest::new();
    for len in 0..14 {
        refused(&mut guest, &[(FS | LS | len, 0, TX_BUFFERS)], Reason::Runt);
        refused(&mut guest, &[(FS | LS | IPCS | TCPCS | len, 0, TX_BUFFERS)], Reason::Runt);
    }
    guest.set32(TCR, 1 << 16);
    for len in 0..18 {
        refused(&mut guest, &[(FS | LS | len, 0, TX_BUFFERS)], Reason::Runt);
    }
}

/// A first segment amid a frame, and a frame that begins without one.
#[test]
fn segments_out_of_order() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 300));
    refused(&mut guest, &[(100, 0, at), (LS | 100, 0, at)], Reason::BadDescriptor);
    let twice = [(FS | 100, 0, at), (FS | 100, 0, at), (LS | 100, 0, at)];
    refused(&mut guest, &twice, Reason::BadDescriptor);
    refused(&mut guest, &[(LS | 100, 0, at)], Reason::BadDescriptor);
}

#[test]
fn a_receive_claim_about_a_broken_header_is_harmless() {
    let mut guest = Guest::new();
    guest.set16(CPCR, 0x28);
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    for len in 14..80 {
        let mut bytes = packet(true, 100);
        bytes.truncate(len);
        guest.arrive(&[(bytes.clone(), valid)]);
        bytes.resize(len.max(15), 0);
        bytes[14] = 0x4f;
        guest.arrive(&[(bytes, valid)]);
        assert!(guest.take().is_some() && guest.take().is_some());
    }
    assert_eq!(guest.dropped(), 0);
}
