//! Receive: what ends up in the guest's memory.

use vmlan_frame::{Offload, Reason};

use super::guest::*;

const PAM: u32 = 1 << 26;
const MAR: u32 = 1 << 27;
const BAR: u32 = 1 << 25;
const RES: u32 = 1 << 21;
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

#[test]
fn frames_arrive_with_status_and_fcs() {
    let mut guest = Guest::new();
    for (to, bit) in [(MAC, PAM), (GROUP, MAR), ([0xff; 6], BAR)] {
        for len in [14, 59, 60, 61, 128, 129, 1514, 2044] {
            let sent = frame(to, len);
            assert_eq!(guest.arrive_plain(&[&sent]), 1);
            let eor = if guest.rx == SIZE - 1 { EOR } else { 0 };
            let (mut got, opts1, opts2) = guest.take().unwrap();
            assert_eq!(opts1 & !EOR, FS | LS | bit | (len.max(60) + 4) as u32);
            assert_eq!((opts1 & EOR, opts2), (eor, 0));
            assert!(got.drain(len..).all(|byte| byte == 0));
            assert_eq!(got, sent);
        }
    }
    assert_eq!((guest.statistic("RxOk"), guest.statistic("RxOkPhy")), (24, 8));
}

#[test]
fn the_filter() {
    // Accept bits, MAR, and who gets through of: own, another's, a group, all.
    let cases: [(u32, u64, [bool; 4]); 6] = [
        (0, u64::MAX, [false; 4]),
        (2, u64::MAX, [true, false, false, false]),
        (1, 0, [true, true, false, false]),
        (4, u64::MAX, [false, false, true, false]),
        (4, 0, [false; 4]),
        (0xa, 0, [true, false, false, true]),
    ];
    for (rcr, mar, want) in cases {
        let mut guest = Guest::new();
        guest.set32(RCR, 0xe700 | rcr);
        guest.set64(MAR0, mar);
        for (to, want) in [MAC, [2; 6], GROUP, [0xff; 6]].into_iter().zip(want) {
            guest.arrive_plain(&[&frame(to, 60)]);
            assert_eq!(guest.take().is_some(), want, "{to:?} with {rcr:#x}");
        }
    }
    // A new address counts at once.
    let mut guest = Guest::new();
    guest.set8(CR9346, 0xc0);
    guest.set32(IDR0, 0x0202_0202);
    guest.set16(IDR0 + 4, 0x0202);
    guest.arrive_plain(&[&frame([2; 6], 60), &frame(MAC, 60)]);
    assert_eq!(guest.take().unwrap().1 & PAM, PAM);
    assert!(guest.take().is_none());
}

#[test]
fn tags_are_taken_out() {
    let mut guest = Guest::new();
    let plain = frame(MAC, 100);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0xa1, 0x23]);
    guest.arrive_plain(&[&tagged]);
    assert_eq!(guest.take().unwrap().0, tagged);
    guest.set16(CPCR, 0x48);
    guest.arrive_plain(&[&tagged, &plain]);
    let (got, opts1, opts2) = guest.take().unwrap();
    assert_eq!((got, opts1 & 0x3fff, opts2), (plain.clone(), 104, 1 << 16 | 0x23a1));
    assert_eq!(guest.take().unwrap().2, 0);
    // Of the shortest: as long as it was on the wire, less the tag.
    let mut short = frame(MAC, 14);
    short.splice(12..12, [0x81, 0, 0, 1]);
    guest.arrive_plain(&[&short]);
    assert_eq!(guest.take().unwrap().1 & 0x3fff, 60);
}

/// PID, and the fail bits, for IPv4 that somebody on this host vouches for.
#[test]
fn checksums_are_reported() {
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    const TCP: u32 = 1 << 17;
    const UDP: u32 = 2 << 17;
    const IPF: u32 = 1 << 16;
    for on in [false, true] {
        let mut guest = Guest::new();
        guest.set16(CPCR, if on { 0x28 } else { 8 });
        let mut bits = |bytes: Vec<u8>, offload| {
            guest.arrive(&[(bytes, offload)]);
            guest.take().unwrap().1 & 0x7_c000
        };
        let mut broken = packet(true, 100);
        broken[24] ^= 1;
        let mut other = packet(true, 100);
        other[23] = 50;
        other[24..26].fill(0);
        let check = !sum(&other[14..34]);
        other[24..26].copy_from_slice(&check.to_be_bytes());
        let got = [
            bits(packet(true, 100), valid),
            bits(packet(false, 100), valid),
            bits(broken, valid),
            bits(other, valid),
            bits(packet(true, 100), Offload::NONE),
            bits(frame(MAC, 100), valid),
        ];
        let want = [TCP, UDP, TCP | IPF, TCP | UDP, 0, 0];
        assert_eq!(got, if on { want } else { [0; 6] });
    }
}

/// A tap vouches for fragments too: their IP header is summed like others', nothing else is.
#[test]
fn the_header_sum_of_later_fragments_is_reported() {
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    const IP: u32 = 3 << 17;
    const IPF: u32 = 1 << 16;
    let mut guest = Guest::new();
    guest.set16(CPCR, 0x28);
    for options in [0, 4, 40] {
        let mut fragment = later_fragment(options);
        for want in [IP, IP | IPF] {
            guest.arrive(&[(fragment.clone(), valid)]);
            assert_eq!(guest.take().unwrap().1 & 0x7_c000, want, "{options}");
            fragment[33 + options] ^= 1;
        }
    }
}

#[test]
fn frames_over_several_buffers() {
    let guest = Guest::new();
    for i in 0..SIZE {
        let eor = if i == SIZE - 1 { EOR } else { 0 };
        guest.tx_desc(RX_RING, i, OWN | eor | 1000, 0, RX_BUFFERS + u64::from(i * ROOM));
    }
    let sent = frame(MAC, 2500);
    assert_eq!(guest.arrive_plain(&[&sent]), 1);
    let opts: Vec<u32> = (0..4).map(|i| guest.received(i).0).collect();
    assert_eq!(opts[..2], [FS | 1000, 1000]);
    assert_eq!(opts[2], LS | PAM | 2504, "the last one has the length of all");
    assert_ne!(opts[3] & OWN, 0);
    let mut got = guest.read(RX_BUFFERS, 1000);
    got.extend(guest.read(RX_BUFFERS + u64::from(ROOM), 1000));
    got.extend(guest.read(RX_BUFFERS + u64::from(2 * ROOM), 500));
    assert_eq!(got, sent);
}

/// RMS, FCS included; buffers of up to 16,383 bytes.
#[test]
fn jumbo_frames() {
    let guest = Guest::new();
    for i in 0..16 {
        let eor = if i == 15 { EOR } else { 0 };
        guest.tx_desc(RX_RING, i, OWN | eor | 0x3fff, 0, RX_BUFFERS + 0x4000 * u64::from(i));
    }
    for (i, len) in [9018usize, 9238].into_iter().enumerate() {
        let sent = frame(MAC, len);
        assert_eq!(guest.arrive_plain(&[&sent]), 1);
        assert_eq!(guest.received(i as u32).0 & 0x3fff, len as u32 + 4);
        assert_eq!(guest.read(RX_BUFFERS + 0x4000 * i as u64, len), sent);
    }
    guest.set16(RMS, 1518);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 1514), &frame(MAC, 1515)]), 2);
    assert_eq!(guest.chip.counters().output.dropped(Reason::TooLong), 1);
    guest.set16(RMS, 0);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 9000)]), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::TooLong), 1, "no limit");
}

#[test]
fn a_ring_goes_round() {
    let mut guest = Guest::new();
    let mut sent = 0;
    for round in 0..50 {
        let frames: Vec<_> = (0..round % 63 + 1).map(|i| frame(MAC, 60 + sent + i)).collect();
        let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        sent = (sent + all.len()) % 1000;
        let mut done = 0;
        while done < all.len() {
            done += guest.arrive_plain(&all[done..]);
        }
        for frame in &frames {
            assert_eq!(guest.take().unwrap().0, *frame);
        }
        assert!(guest.take().is_none());
    }
    assert_eq!(guest.dropped(), 0);
}

#[test]
fn room_is_what_is_posted() {
    let guest = Guest::new();
    assert!(guest.chip.room() > 60);
    for i in 0..SIZE {
        guest.tx_desc(RX_RING, i, if i == SIZE - 1 { EOR } else { 0 }, 0, 0);
    }
    guest.set8(CR, TE);
    guest.set8(CR, TE | RE);
    assert_eq!((guest.chip.room(), guest.arrive_plain(&[&frame(MAC, 60)])), (0, 0));
    guest.set8(CR, TE);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1, "one that is off drops what comes");
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 1);
}

#[test]
fn buffers_that_are_not_in_memory_cost_their_frame() {
    for addr in [MEMORY, MEMORY - 10, 0xfebc_0000, u64::MAX - 8] {
        let guest = Guest::new();
        guest.tx_desc(RX_RING, 0, OWN | ROOM, 0, addr);
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60), &frame(MAC, 61)]), 2);
        assert_eq!(guest.received(0).0, FS | LS | RES);
        assert_eq!(guest.received(1).0 & 0x3fff, 65);
        assert_eq!(guest.chip.counters().output.dropped(Reason::BadDescriptor), 1);
    }
}
