//! Transmit: what comes out, byte by byte.

use vmlan_frame::{Batch, Finisher, Gso, Offload, Offloads, Reason};

use super::guest::*;

/// A context descriptor.
pub struct Context {
    pub ip: (u8, u8, u16),
    pub tu: (u8, u8, u16),
    pub paylen: u64,
    pub hdrlen: u64,
    pub mss: u64,
    pub tucmd: u64,
}

impl Context {
    pub fn descriptor(&self) -> (u64, u64) {
        let (ip, tu) = (self.ip, self.tu);
        let half = |(a, b, c): (u8, u8, u16)| u64::from(a) | u64::from(b) << 8 | u64::from(c) << 16;
        let second = self.paylen | (self.tucmd | 0x20) << 24 | self.hdrlen << 40 | self.mss << 48;
        (half(ip) | half(tu) << 32, second)
    }

    /// As Linux makes it for a packet of [`tcp`] or [`udp`].
    pub fn of(packet: &[u8], mss: u64) -> Self {
        let v6 = packet[12] == 0x86;
        let l4: u8 = if v6 { 54 } else { 34 };
        let tcp = packet[if v6 { 20 } else { 23 }] == 6;
        let (at, len) = if tcp { (16, 32) } else { (6, 8) };
        let hdrlen = u64::from(l4) + len;
        Self {
            ip: (14, 24, if v6 { 0 } else { 33 }),
            tu: (l4, l4 + at, 0),
            paylen: packet.len() as u64 - hdrlen,
            hdrlen: if mss > 0 { hdrlen } else { 0 },
            mss,
            tucmd: u64::from(tcp) | u64::from(!v6) << 1 | u64::from(mss > 0) << 2,
        }
    }
}

/// The packet as a driver leaves it to the chip: sums and, for segmentation, lengths left out.
pub fn unfinished(packet: &[u8], segment: bool) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let v6 = packet[12] == 0x86;
    let l4 = if v6 { 54 } else { 34 };
    let tcp = packet[if v6 { 20 } else { 23 }] == 6;
    let at = l4 + if tcp { 16 } else { 6 };
    let sum = pseudo(&packet, !segment);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    if !v6 {
        packet[24..26].fill(0);
    }
    if segment {
        let length = if v6 { 18 } else { 16 };
        packet[length..length + 2].fill(0);
    }
    packet
}

/// What a receiver without offloads gets.
pub fn finish(lent: &Lent) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    let head = &lent.bytes[..lent.bytes.len().min(128)];
    let rest = vmlan_ram::Slice::from_bytes(&lent.bytes[head.len()..]);
    batch.add_parts(head, [rest], lent.offload).unwrap();
    let mut finisher = Finisher::new(batch.frame(0).unwrap(), Offloads::NONE).unwrap();
    let mut frames = Vec::new();
    let mut out = Batch::new();
    loop {
        out.clear();
        let more = finisher.fill(&mut out).unwrap();
        for i in 0..out.len() {
            let frame = out.frame(i).unwrap();
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            frames.push(bytes);
        }
        if !more {
            return frames;
        }
    }
}

fn check_sums(packet: &[u8]) {
    if packet[12] == 8 {
        assert_eq!(sum(&packet[14..34]), 0xffff, "IP checksum");
    }
    assert_eq!(transport_sum(packet), 0xffff, "upper checksum");
}

#[test]
fn legacy_frames_come_out_and_are_written_back() {
    let mut guest = Guest::new();
    for round in 0..10u64 {
        let frames: Vec<_> = (0..40).map(|i| frame([2; 6], 60 + 31 * i + round as usize)).collect();
        for (n, frame) in frames.iter().enumerate() {
            guest.send(n as u64, frame);
        }
        let lent = guest.pull();
        assert_eq!(lent.len(), 40);
        for (lent, frame) in lent.iter().zip(&frames) {
            assert_eq!(lent.bytes, *frame);
            assert_eq!(lent.offload, Offload::NONE);
        }
        assert_eq!(guest.get(TD + HEAD), guest.tx_tail);
        assert!((0..40).all(|i| guest.tx_word((guest.tx_tail + SIZE - 1 - i) % SIZE) >> 32 == 1));
        assert_eq!(guest.get(ICR) & 3, 3, "TXDW and TXQE");
        assert!(guest.pull().is_empty());
    }
    assert_eq!((guest.statistic("GPTC"), guest.dropped()), (400, 0));
}

#[test]
fn without_rs_nothing_is_written_back() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 100));
    guest.post(&[(at, 100 | EOP | IFCS)]);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.tx_word(0), 100 | EOP | IFCS);
    assert_eq!((guest.get(TD + HEAD), guest.get(ICR) & 3), (1, 2));
}

#[test]
fn short_frames_are_padded_with_zeros_if_asked() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &[0xee; 200]);
    guest.write(at, &frame([2; 6], 20));
    guest.post(&[(at, 20 | LAST)]);
    let mut want = frame([2; 6], 20);
    want.resize(60, 0);
    assert_eq!(guest.pull()[0].bytes, want);
    guest.set(TCTL, 2);
    guest.post(&[(at, 20 | LAST)]);
    assert_eq!(guest.pull()[0].bytes, frame([2; 6], 20));
    // With an FCS of its own, which goes no further.
    guest.post(&[(at, 24 | EOP | RS)]);
    assert_eq!(guest.pull()[0].bytes, frame([2; 6], 20));
}

#[test]
fn scattered_frames_wait_for_their_end() {
    let mut guest = Guest::new();
    let whole = frame([2; 6], 1400);
    let at = guest.fill(0, &whole);
    guest.post(&[(at, 3 | IFCS), (at + 3, IFCS), (at + 3, 500 | IFCS)]);
    assert!(guest.pull().is_empty());
    assert!(!guest.chip.arm(), "an unfinished frame is nothing to stay awake for");
    assert_eq!(guest.get(TD + HEAD), 0);
    guest.post(&[(0, 77 | IFCS | RS), (at + 503, 897 | LAST)]);
    assert!(guest.chip.arm());
    assert_eq!(guest.pull()[0].bytes, whole);
    assert_eq!(guest.get(TD + HEAD), 5);
    assert_eq!((guest.tx_word(3) >> 32, guest.tx_word(4) >> 32), (1, 1));
}

#[test]
fn an_unfinished_frame_is_read_once_for_each_tail() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 100));
    guest.post(&[(at, 60 | IFCS), (at + 60, 40 | IFCS)]);
    assert!(guest.pull().is_empty());
    // Nobody may look: the next pulls cost nothing, which nobody is charged for.
    guest.tx_desc(1, at + 60, 40 | LAST);
    assert!(guest.pull().is_empty());
    guest.post(&[(at, 100 | LAST)]);
    assert_eq!(guest.pull().len(), 2);
}

#[test]
fn an_unfinished_frame_is_read_again_in_another_map() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 100));
    // As zeros, which is what memory that was cut short reads as.
    guest.post(&[(at, 60 | IFCS)]);
    assert!(guest.pull().is_empty());
    guest.tx_desc(0, at, 100 | LAST);
    drop(guest.chip.set_map(guest.map.clone()));
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn null_descriptors_between_frames_are_only_written_back() {
    let mut guest = Guest::new();
    guest.post(&[(0, 64 | LAST), (TX_BUFFERS, LAST)]);
    assert!(guest.pull().is_empty());
    assert_eq!((guest.get(TD + HEAD), guest.dropped()), (2, 0));
    assert_eq!((guest.tx_word(0) >> 32, guest.tx_word(1) >> 32), (1, 1));
}

#[test]
fn descriptors_without_a_frame_are_charged_for() {
    let mut guest = Guest::new();
    let (null, context, unfinished) = ((0, 64 | LAST), (0, DEXT), (TX_BUFFERS, 60 | IFCS));
    for posted in [vec![null; 40], vec![context; 40], vec![unfinished], vec![unfinished]] {
        guest.post(&posted);
        assert_eq!((guest.pull_to(&mut Take::default()), guest.dropped()), (1, 0));
        assert_eq!(guest.pull_to(&mut Take::default()), 0, "once");
    }
}

#[test]
fn vlan_tags_are_inserted() {
    let mut guest = Guest::new();
    guest.set(CTRL, SLU | VME);
    guest.set(VET, 0x8100);
    for len in [20usize, 60, 110, 130, 1500] {
        let plain = frame([2; 6], len);
        let at = guest.fill(1, &plain);
        guest.post(&[(at, len as u64 | LAST | VLE | 0x2abc << 48)]);
        let mut want = plain[..12].to_vec();
        want.extend([0x81, 0, 0x2a, 0xbc]);
        want.extend(&plain[12..]);
        want.resize(want.len().max(60), 0);
        assert_eq!(guest.pull()[0].bytes, want);
        assert_eq!(guest.read(at, len), plain, "the guest's memory is not touched");
    }
    guest.set(CTRL, SLU);
    let plain = frame([2; 6], 70);
    let at = guest.fill(1, &plain);
    guest.post(&[(at, 70 | LAST | VLE | 0x2abc << 48)]);
    assert_eq!(guest.pull()[0].bytes, plain);
}

#[test]
fn checksums_are_left_to_the_receiver_or_computed() {
    for (v6, is_tcp, vlan) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
        let mut guest = Guest::new();
        guest.set(CTRL, SLU | if vlan { VME } else { 0 });
        guest.set(VET, 0x8100);
        let packet = if is_tcp { tcp(v6, 1001) } else { udp(v6, 1001) };
        let at = guest.fill(0, &unfinished(&packet, false));
        let options = TXSM | if v6 { 0 } else { IXSM };
        let tag = if vlan { VLE | 5 << 48 } else { 0 };
        // A range that ends one byte early cannot be told to the receiver.
        for early in [0, 1] {
            let mut context = Context::of(&packet, 0);
            context.tu.2 = if early == 0 { 0 } else { packet.len() as u16 - 2 };
            let data = (at, packet.len() as u64 | DATA | LAST | options | tag);
            guest.post(&[context.descriptor(), data]);
            let lent = guest.pull().remove(0);
            assert_eq!(lent.offload.needs_csum, early == 0);
            let mut got = finish(&lent).remove(0);
            if vlan {
                assert_eq!(got.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 5]);
            }
            if early == 0 {
                assert_eq!(got, packet);
                continue;
            }
            let l4 = if v6 { 54 } else { 34 };
            let place = l4 + if is_tcp { 16 } else { 6 };
            let mut want = unfinished(&packet, false);
            want[24..26].copy_from_slice(&packet[24..26]);
            let sum = !sum(&want[l4..packet.len() - 1]);
            want[place..place + 2].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(got, want);
        }
    }
}

#[test]
fn legacy_checksum_command() {
    let mut guest = Guest::new();
    let packet = tcp(false, 300);
    let mut left = unfinished(&packet, false);
    left[24..26].copy_from_slice(&packet[24..26]);
    let at = guest.fill(0, &left);
    let place = 50 << 16 | 34u64 << 40;
    guest.post(&[(at, left.len() as u64 | LAST | IC | place)]);
    let lent = guest.pull().remove(0);
    assert!(lent.offload.needs_csum);
    assert_eq!(finish(&lent), [packet]);
}

#[test]
fn a_context_stays_in_force() {
    let mut guest = Guest::new();
    let packet = tcp(false, 200);
    let context = Context::of(&packet, 0).descriptor();
    let at = guest.fill(0, &unfinished(&packet, false));
    guest.post(&[context]);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.get(TD + HEAD), 1);
    let data = (at, packet.len() as u64 | DATA | LAST | IXSM | TXSM);
    // The segmentation context is another.
    let other = Context::of(&tcp(true, 3000), 1000).descriptor();
    guest.post(&[data, other, data, data]);
    let lent = guest.pull();
    assert_eq!(lent.len(), 3);
    lent.iter().for_each(|l| assert_eq!(finish(l), std::slice::from_ref(&packet)));
}

/// Segments must be those that the whole packet, cut by hand, gives.
fn check_segments(whole: &[u8], mss: usize, got: &[Vec<u8>]) {
    let v6 = whole[12] == 0x86;
    let l4 = if v6 { 54 } else { 34 };
    let is_tcp = whole[if v6 { 20 } else { 23 }] == 6;
    let header = l4 + if is_tcp { 32 } else { 8 };
    let payloads: Vec<&[u8]> = whole[header..].chunks(mss).collect();
    assert_eq!(got.len(), payloads.len());
    for (k, (segment, payload)) in got.iter().zip(&payloads).enumerate() {
        assert_eq!(&segment[header..], *payload);
        check_sums(segment);
        let length = |at: usize| usize::from(u16::from_be_bytes([segment[at], segment[at + 1]]));
        assert_eq!(if v6 { length(18) + 54 } else { length(16) + 14 }, segment.len());
        if is_tcp {
            let sequence = u32::from_be_bytes(segment[l4 + 4..l4 + 8].try_into().unwrap());
            assert_eq!(sequence as usize, 1000 + k * mss);
            assert_eq!(segment[l4 + 13], if k + 1 < payloads.len() { 0x10 } else { 0x18 });
        } else {
            assert_eq!(length(l4 + 4), 8 + payload.len());
        }
    }
}

#[test]
fn tso_goes_whole_to_who_takes_it_and_is_cut_for_others() {
    let cases = (0..16).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0, n & 8 != 0));
    for (v6, is_tcp, vlan, large) in cases {
        let mut guest = Guest::new();
        guest.set(CTRL, SLU | if vlan { VME } else { 0 });
        guest.set(VET, 0x8100);
        let payload = if large { 60_000 } else { 4_000 };
        let whole = if is_tcp { tcp(v6, payload) } else { udp(v6, payload) };
        let left = unfinished(&whole, true);
        let at = guest.fill(0, &left);
        let mss = 1000;
        let options = DATA | TSE | IFCS | TXSM | if v6 { 0 } else { IXSM };
        let tag = if vlan { VLE | 9 << 48 } else { 0 };
        let mut descriptors = vec![Context::of(&whole, mss).descriptor()];
        for from in (0..left.len()).step_by(4096) {
            let n = (left.len() - from).min(4096);
            let last = if from + n == left.len() { LAST } else { 0 };
            descriptors.push((at + from as u64, n as u64 | options | last | tag));
        }
        guest.post(&descriptors);
        let mut lent = guest.pull().remove(0);
        let kind = match (is_tcp, v6) {
            (true, false) => Gso::Tcp4,
            (true, true) => Gso::Tcp6,
            _ => Gso::Udp,
        };
        assert_eq!((lent.offload.gso, lent.offload.gso_size), (kind, 1000));
        let mut segments = finish(&lent);
        if vlan {
            for frame in segments.iter_mut().chain(std::iter::once(&mut lent.bytes)) {
                assert_eq!(frame.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 9]);
            }
        }
        check_segments(&whole, 1000, &segments);
        // The frame in one piece: as in virtio, all right but the unfinished sum.
        assert_eq!(lent.bytes, {
            let mut want = unfinished(&whole, false);
            want[24..26].copy_from_slice(&whole[24..26]);
            want
        });
        let n = payload as u64 / 1000;
        assert_eq!((guest.statistic("GPTC"), guest.statistic("TSCTC")), (n, 1));
        let header = whole.len() as u64 - payload as u64 + if vlan { 4 } else { 0 };
        assert_eq!(guest.statistic("GOTC"), n * (header + 1000 + 4));
    }
}

#[test]
fn what_fits_one_segment_is_not_segmented() {
    let mut guest = Guest::new();
    let whole = tcp(false, 900);
    let at = guest.fill(0, &unfinished(&whole, true));
    let data = (at, whole.len() as u64 | DATA | TSE | LAST | IXSM | TXSM);
    guest.post(&[Context::of(&whole, 1000).descriptor(), data]);
    let lent = guest.pull().remove(0);
    assert_eq!(lent.offload.gso, Gso::None);
    assert_eq!(finish(&lent), [whole]);
}

#[test]
fn held_frames_are_lent_again_and_complete_in_order() {
    let mut guest = Guest::new();
    let packet = tcp(false, 200);
    let at = guest.fill(40, &unfinished(&packet, false));
    guest.send(0, &frame([2; 6], 100));
    let context = Context::of(&packet, 0).descriptor();
    guest.post(&[context, (at, packet.len() as u64 | DATA | LAST | TXSM | IXSM)]);
    guest.send(2, &frame([2; 6], 102));
    guest.send(3, &frame([2; 6], 103));
    let mut take = Take { hold: vec![1, 3], ..Take::default() };
    assert_eq!(guest.pull_to(&mut take), 2);
    assert_eq!((take.frames.len(), guest.get(TD + HEAD)), (4, 2));
    // Another context arrives meanwhile: the held frame keeps its own.
    guest.post(&[Context::of(&udp(true, 9), 0).descriptor()]);
    guest.send(4, &frame([2; 6], 104));
    let mut again = Take { hold: vec![0], ..Take::default() };
    assert_eq!(guest.pull_to(&mut again), 2);
    let lens: Vec<_> = again.frames.iter().map(|f| f.bytes.len()).collect();
    assert_eq!((lens, guest.get(TD + HEAD)), (vec![packet.len(), 103, 104], 2));
    assert_eq!(finish(&again.frames[0]), [packet]);
    assert!(!guest.chip.arm(), "held frames are waited for elsewhere");
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.get(TD + HEAD), guest.tx_tail);
    assert_eq!(guest.statistic("GPTC"), 5);
}

#[test]
fn a_held_frame_that_became_another_is_dropped() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 100));
    guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
    guest.tx_desc(0, TX_BUFFERS, 100 | IFCS);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.chip.counters().input.dropped(Reason::BadDescriptor), 1);
    assert_eq!(guest.get(TD + HEAD), 1);
}

#[test]
fn a_cable_pulled_out_stops_the_ring() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 100));
    guest.chip.set_link(false);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.get(TD + HEAD), 0);
    guest.chip.set_link(true);
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn ide_delays_what_all_descriptors_asked_for() {
    let mut guest = Guest::new();
    // TIDV 100 us; IMS: TXDW.
    guest.set(TD + 0x20, 100);
    guest.set(0xd0, 1);
    let at = guest.fill(0, &frame([2; 6], 60));
    let raised = |guest: &Guest| guest.host.raises();
    for want in [1, 1] {
        guest.post(&[(at, 60 | LAST | IDE), (at, 60 | EOP | IFCS)]);
        assert_eq!(guest.pull().len(), 2);
        assert_eq!(raised(&guest), want, "the second waits for the first one's window");
        guest.get(ICR);
    }
    guest.post(&[(at, 60 | LAST | IDE), (at, 60 | LAST)]);
    assert_eq!(guest.pull().len(), 2);
    assert_eq!(raised(&guest), 2, "one without IDE is enough");
}

#[test]
fn idle_transmitter_is_rung() {
    let mut guest = Guest::new();
    assert!(!guest.chip.arm());
    guest.send(0, &frame([2; 6], 100));
    assert_eq!(guest.host.rings(), 1);
    assert!(guest.chip.arm());
}
