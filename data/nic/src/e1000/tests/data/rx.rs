//! Receive: what the guest finds in its memory.

use vmlan_frame::{Offload, Reason};

use super::guest::*;

const DD: u8 = 1;
const EOP_: u8 = 2;
const IGNORE: u8 = 4;
const VP: u8 = 8;
const TCPCS: u8 = 0x20;
const IPCS: u8 = 0x40;

/// RCTL: on, broadcasts.
const ON: u32 = 2 | 1 << 15;
const LPE: u32 = 1 << 5;
const SECRC: u32 = 1 << 26;

const VALID: Offload = Offload { csum_valid: true, ..Offload::NONE };

/// What is written for a frame in one buffer.
fn wire(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    bytes.resize(bytes.len().max(60) + 4, 0);
    bytes
}

#[test]
fn frames_lie_in_the_buffers_with_padding_and_fcs() {
    let guest = Guest::new();
    guest.write(RX_BUFFERS, &[0xee; 64 * 2048]);
    let frames: Vec<_> = (0..40).map(|i| frame(MAC, 14 + 37 * i)).collect();
    let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    for round in 0..3 {
        assert_eq!(guest.arrive_plain(&refs), 40);
        for (k, frame) in (0u32..).zip(&frames) {
            let index = (round * 40 + k) % SIZE;
            let want = wire(frame);
            assert_eq!(guest.received(index), (want.len(), DD | EOP_ | IGNORE, 0, 0));
            let at = RX_BUFFERS + 2048 * u64::from(index);
            assert_eq!(guest.read(at, want.len()), want);
        }
        let head = (round * 40 + 40) % SIZE;
        assert_eq!(guest.get(RD + HEAD), head);
        guest.set(RD + TAIL, (head + SIZE - 1) % SIZE);
        assert_eq!(guest.get(ICR) & 0x80, 0x80, "RXT0");
    }
    assert_eq!(guest.statistic("GPRC"), 120);
    assert_eq!(guest.host.raises(), 0, "all causes are masked");
}

#[test]
fn nothing_is_written_behind_the_frame() {
    let guest = Guest::new();
    guest.write(RX_BUFFERS, &[0xee; 2048]);
    guest.set(RCTL, ON | SECRC);
    guest.arrive_plain(&[&frame(MAC, 100)]);
    assert_eq!(guest.received(0).0, 100);
    assert_eq!(guest.read(RX_BUFFERS + 100, 50), [0xee; 50]);
}

#[test]
fn long_frames_take_several_buffers_of_each_size() {
    // RCTL.BSEX, BSIZE and the bytes they mean (13.4.22).
    let sizes = [(0, 0, 2048), (0, 1, 1024), (0, 2, 512), (0, 3, 256)];
    let large = [(1, 1, 16_384), (1, 2, 8192), (1, 3, 4096)];
    for (bsex, bsize, bytes) in sizes.into_iter().chain(large) {
        let guest = Guest::new();
        guest.set(RCTL, ON | LPE | bsex << 25 | bsize << 16);
        for i in 0..SIZE {
            guest.rx_desc(i, RX_BUFFERS + 0x4000 * u64::from(i));
        }
        let mut index = 0;
        for len in [60, 252, 253, 256, 1514, 4092, 4093, 9000] {
            let frame = frame(MAC, len);
            assert_eq!(guest.arrive_plain(&[&frame]), 1);
            let want = wire(&frame);
            let mut got = Vec::new();
            let count = want.len().div_ceil(bytes);
            for k in 1..=count {
                let (n, status, errors, _) = guest.received(index);
                let end = if k == count { EOP_ } else { 0 };
                assert_eq!((status, errors), (DD | IGNORE | end, 0));
                assert!(k == count || n == bytes);
                got.extend(guest.read(RX_BUFFERS + 0x4000 * u64::from(index), n));
                index = (index + 1) % SIZE;
            }
            assert_eq!(got, want, "{len} bytes in buffers of {bytes}");
            guest.set(RD + TAIL, (index + SIZE - 1) % SIZE);
        }
    }
}

#[test]
fn without_lpe_long_frames_are_refused_and_counted() {
    let guest = Guest::new();
    guest.arrive_plain(&[&frame(MAC, 1519), &frame(MAC, 1518)]);
    assert_eq!(guest.received(0).0, 1522);
    assert_eq!((guest.statistic("ROC"), guest.statistic("GPRC")), (1, 1));
    assert_eq!(guest.chip.counters().output.dropped(Reason::TooLong), 1);
}

fn accepted(guest: &Guest, frame: &[u8]) -> bool {
    let before = guest.statistic("GPRC");
    assert_eq!(guest.arrive_plain(&[frame]), 1);
    guest.set(RD + TAIL, (guest.get(RD + HEAD) + SIZE - 1) % SIZE);
    guest.statistic("GPRC") > before
}

#[test]
fn addresses_are_filtered() {
    let guest = Guest::new();
    let to = |dst| accepted(&guest, &frame(dst, 60));
    let other = [0x52, 0x54, 0, 7, 7, 7];
    assert!(to(MAC) && to([0xff; 6]) && !to(other) && !to([1, 0, 0x5e, 0, 0, 1]));
    guest.set(RCTL, 2);
    assert!(to(MAC) && !to([0xff; 6]));
    guest.set(RCTL, 2 | 1 << 3);
    assert!(to(other) && !to([0xff; 6]) && !to([1, 0, 0x5e, 0, 0, 1]), "UPE");
    guest.set(RCTL, 2 | 1 << 4);
    assert!(!to(other) && to([0xff; 6]) && to([1, 0, 0x5e, 0, 0, 1]), "MPE");
    guest.set(RCTL, 2);
    // A second address, valid only with AV.
    guest.set(RA + 8 * 15, u32::from_le_bytes([0x52, 0x54, 0, 7]));
    guest.set(RA + 8 * 15 + 4, 0x0707);
    assert!(!to(other));
    guest.set(RA + 8 * 15 + 4, 0x0707 | 1 << 31);
    assert!(to(other) && to(MAC));
    assert_eq!(guest.statistic("TPR"), 15);
    assert_eq!(guest.dropped(), 0, "what is not meant for us is not lost");
}

#[test]
fn multicast_hash_has_four_offsets() {
    // 12 bits of the address's bits 47:32, beginning with bit 36, 35, 34 or 32.
    let dst = [1, 0, 0x5e, 0x12, 0x35, 0xa7];
    let high = 0xa735u32;
    for (mo, shift) in [(0, 4), (1, 3), (2, 2), (3, 0)] {
        let guest = Guest::new();
        guest.set(RCTL, 2 | mo << 12);
        assert!(!accepted(&guest, &frame(dst, 60)));
        let hash = high >> shift & 0xfff;
        guest.set(MTA + u64::from(hash >> 5) * 4, 1 << (hash & 31));
        assert!(accepted(&guest, &frame(dst, 60)), "MO {mo}");
        assert_eq!(guest.statistic("MPRC"), 1);
    }
}

fn tagged(vid: u16, len: usize) -> Vec<u8> {
    let mut bytes = frame(MAC, len);
    bytes[12..14].copy_from_slice(&[0x81, 0]);
    bytes[14..16].copy_from_slice(&vid.to_be_bytes());
    bytes
}

#[test]
fn vlans_are_filtered() {
    let guest = Guest::new();
    guest.set(VET, 0x8100);
    assert!(accepted(&guest, &tagged(100, 64)));
    guest.set(RCTL, ON | 1 << 18);
    assert!(!accepted(&guest, &tagged(100, 64)) && accepted(&guest, &frame(MAC, 64)));
    guest.set(VFTA + 4 * (100 / 32), 1 << (100 % 32));
    assert!(accepted(&guest, &tagged(100, 64)) && accepted(&guest, &tagged(0xe000 | 100, 64)));
    assert!(!accepted(&guest, &tagged(101, 64)));
    // CFIEN: the bit must be as RCTL.CFI says.
    guest.set(RCTL, ON | 1 << 19);
    assert!(accepted(&guest, &tagged(100, 64)) && !accepted(&guest, &tagged(0x1000 | 100, 64)));
}

#[test]
fn tags_are_stripped() {
    let guest = Guest::new();
    guest.set(VET, 0x8100);
    guest.set(CTRL, SLU | VME);
    guest.set(RCTL, ON | LPE | 3 << 16);
    let mut index = 0;
    for len in [20, 60, 64, 128, 132, 300, 1518] {
        let with = tagged(0x2abc, len);
        guest.arrive_plain(&[&with]);
        let mut want = wire(&with);
        want.drain(12..16);
        let mut got = Vec::new();
        loop {
            let (n, status, _, special) = guest.received(index);
            got.extend(guest.read(RX_BUFFERS + 2048 * u64::from(index), n));
            index += 1;
            if status & EOP_ != 0 {
                assert_eq!((status & VP, special), (VP, 0x2abc));
                break;
            }
        }
        assert_eq!(got, want);
    }
    guest.arrive_plain(&[&frame(MAC, 100)]);
    assert_eq!(guest.received(index), (104, DD | EOP_ | IGNORE, 0, 0));
}

#[test]
fn checksums_are_reported_as_asked() {
    let status = |sums: u32, frame: Vec<u8>, offload| {
        let guest = Guest::new();
        guest.set(RXCSUM, sums);
        guest.arrive(&[(frame, offload)]);
        let (_, status, errors, _) = guest.received(0);
        (status & !(DD | EOP_), errors)
    };
    assert_eq!(status(0x300, tcp(false, 50), VALID), (IPCS | TCPCS, 0));
    assert_eq!(status(0x100, tcp(false, 50), VALID), (IPCS, 0));
    assert_eq!(status(0x200, udp(false, 50), VALID), (TCPCS, 0));
    assert_eq!(status(0x300, udp(true, 50), VALID), (TCPCS, 0));
    assert_eq!(status(0, tcp(false, 50), VALID), (IGNORE, 0));
    assert_eq!(status(0x300, tcp(false, 50), Offload::NONE), (IGNORE, 0));
    assert_eq!(status(0x300, frame(MAC, 80), VALID), (IGNORE, 0));
    let mut broken = tcp(false, 50);
    broken[25] ^= 1;
    assert_eq!(status(0x300, broken, VALID), (IPCS | TCPCS, 0x40), "IPE");
}

#[test]
fn without_room_frames_are_left_to_their_sender() {
    let guest = Guest::new();
    guest.set(RD + TAIL, 3);
    let small = frame(MAC, 60);
    assert_eq!(guest.arrive_plain(&[small.as_slice(); 5]), 3);
    assert_eq!((guest.statistic("RNBC"), guest.dropped(), guest.chip.room()), (1, 0, 0));
    assert!(!guest.chip.want_room());
    guest.set(RD + TAIL, 5);
    assert_eq!(guest.host.rings(), 1);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive_plain(&[small.as_slice(); 2]), 2);
    // A frame of several buffers is not begun without room for all of it.
    guest.set(RCTL, ON | LPE | 3 << 16);
    guest.set(RD + TAIL, 8);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 1000)]), 0);
    assert_eq!((guest.get(RD + HEAD), guest.rx_word(5)), (5, 0));
    assert!(!guest.chip.want_room(), "descriptors are there, but too few");
    guest.set(RD + TAIL, 9);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 1000)]), 1);
}

#[test]
fn room_is_counted_in_frames() {
    let guest = Guest::new();
    assert!(guest.chip.room() >= 128, "all is posted");
    guest.set(RD + TAIL, 32);
    assert_eq!(guest.chip.room(), 32);
    guest.set(RCTL, ON | 3 << 16);
    assert_eq!(guest.chip.room(), 5, "6 buffers of 256 bytes for 1522");
    assert!(!guest.chip.want_room(), "whoever asked found it too little");
    guest.set(RCTL, ON | LPE | 1 << 25 | 3 << 16);
    assert_eq!(guest.chip.room(), 10, "3 buffers of 4 KiB for 9022");
    guest.set(RD + TAIL, 33);
    assert!(guest.chip.want_room());
}

#[test]
fn overrun_and_minimum_threshold_are_said() {
    let guest = Guest::new();
    let small = frame(MAC, 60);
    for (rdmts, free) in [(0, 32), (1, 16), (2, 8)] {
        guest.set(RCTL, ON | rdmts << 8);
        guest.get(ICR);
        let head = guest.get(RD + HEAD);
        guest.set(RD + TAIL, (head + free + 2) % SIZE);
        guest.arrive_plain(&[&small]);
        assert_eq!(guest.get(ICR) & 0x10, 0);
        guest.arrive_plain(&[&small]);
        assert_eq!(guest.get(ICR) & 0x10, 0x10, "RXDMT0 at {free} free");
        guest.arrive_plain(&[&small]);
        assert_eq!(guest.get(ICR) & 0x50, 0, "once");
    }
    guest.chip.counters().output.drop(Reason::ReceiverFull, 3);
    guest.arrive_plain(&[&small]);
    assert_eq!(guest.get(ICR) & 0x40, 0x40, "RXO");
    assert_eq!((guest.get(0x4010), guest.get(0x4010)), (3, 0), "MPC");
}

#[test]
fn a_receiver_that_is_off_drops() {
    let guest = Guest::new();
    guest.set(RCTL, 0);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    guest.set(RCTL, ON);
    guest.chip.set_link(false);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 2);
    assert_eq!(guest.get(RD + HEAD), 0);
}

#[test]
fn statistics_count_what_the_wire_would_see() {
    let mut guest = Guest::new();
    let lens = [14, 60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1514];
    for (n, len) in lens.iter().enumerate() {
        assert!(accepted(&guest, &frame(MAC, *len)));
        guest.send(n as u64, &frame([0xff; 6], *len));
    }
    assert_eq!(guest.pull().len(), 12);
    let bytes: usize = lens.iter().map(|len| len.max(&60) + 4).sum();
    for (rx, tx) in [("PRC64", "PTC64"), ("PRC127", "PTC127"), ("PRC1522", "PTC1522")] {
        assert_eq!((guest.statistic(rx), guest.statistic(tx)), (2, 2));
    }
    // GORCL, GOTCL, GPRC, GPTC, BPTC as the guest reads them: once.
    for (at, want) in [(0x4088, bytes), (0x4090, bytes), (0x4074, 12), (0x4080, 12), (0x40f4, 12)] {
        assert_eq!(guest.get(at) as usize, want, "{at:#x}");
        assert_eq!(guest.get(if at == 0x4088 || at == 0x4090 { at + 4 } else { at }), 0);
        assert_eq!(guest.get(at), 0);
    }
    assert_eq!(guest.statistic("GORC") as usize, bytes, "never cleared for us");
}

#[test]
fn mac_loopback_comes_back_and_goes_nowhere_else() {
    let mut guest = Guest::new();
    guest.set(RCTL, ON | 1 << 6);
    guest.send(0, &frame(MAC, 40));
    let packet = tcp(false, 3000);
    let at = guest.fill(1, &super::tx::unfinished(&packet, true));
    let context = super::tx::Context::of(&packet, 1000).descriptor();
    guest.post(&[context, (at, packet.len() as u64 | DATA | TSE | LAST | TXSM | IXSM)]);
    let mut take = Take::default();
    assert_eq!(guest.pull_to(&mut take), 2);
    assert!(take.frames.is_empty());
    assert_eq!(guest.get(TD + HEAD), 3);
    let mut short = frame(MAC, 40);
    short.resize(64, 0);
    assert_eq!(guest.read(RX_BUFFERS, 64), short);
    assert_eq!(guest.received(1).0, 1000 + 66 + 4);
    assert_eq!((guest.get(RD + HEAD), guest.get(ICR) & 0x83), (4, 0x83));
    // The wire is cut off, and what finds no room is lost.
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 1);
    guest.set(RD + TAIL, 4);
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull_to(&mut take), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::ReceiverFull), 1);
    assert_eq!(guest.get(TD + HEAD), guest.tx_tail);
}
