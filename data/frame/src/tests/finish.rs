//! The finisher against segments built from nothing.
use proptest::prelude::*;
use vmlan_ram::Slice;

use super::packet::{Packet, packets, same_zero, set_unfinished};
use crate::{BATCH, Batch, Finisher, FrameView, Gso, HEAD, Offload, Offloads, Reason};

pub fn whole(view: &FrameView<'_, '_>) -> Vec<u8> {
    let mut bytes = vec![0; view.len];
    assert_eq!(view.copy_to(&mut bytes), view.len);
    bytes
}

/// Cuts `bytes` into pieces of these sizes, over and over.
pub fn pieces<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<Slice<'a>> {
    let (mut rest, mut out) = (bytes, Vec::new());
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (a, b) = rest.split_at((*size).clamp(1, rest.len()));
        out.push(Slice::from_bytes(a));
        rest = b;
    }
    out
}

/// Sends `bytes` in pieces, with `offload`, to a receiver that takes `takes`.
pub fn run(
    bytes: &[u8],
    sizes: &[usize],
    offload: Offload,
    takes: Offloads,
) -> Result<Vec<(Vec<u8>, Offload)>, Reason> {
    let pieces = pieces(bytes, sizes);
    let mut batch = Batch::new();
    batch.add(&pieces, offload)?;
    let mut finisher = Finisher::new(batch.frame(0).unwrap(), takes)?;
    let (mut out, mut got) = (Batch::new(), Vec::new());
    loop {
        out.clear();
        let more = finisher.fill(&mut out)?;
        got.extend((0..out.len()).map(|i| out.frame(i).unwrap()).map(|f| (whole(&f), f.offload)));
        if !more {
            assert_eq!(got.len(), finisher.count());
            return Ok(got);
        }
        assert!(!out.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn segments_are_those_of_another_implementation(
        packet in packets(),
        size in 1..3000usize,
        sizes in prop::collection::vec(2..700usize, 1..5),
    ) {
        let (least, segments) = if packet.tcp { (8, 1366) } else { (1, 128) };
        let least = packet.payload.len().div_ceil(segments).max(least);
        let size = size.max(least);
        prop_assume!(packet.header_len() <= HEAD);
        let got = run(&packet.unfinished(), &sizes, packet.offload(size), Offloads::NONE).unwrap();
        let mut expected = packet.segments(size);
        prop_assert_eq!(got.len(), expected.len());
        for ((got, offload), expected) in got.iter().zip(&mut expected) {
            same_zero(expected, &packet);
            prop_assert_eq!(got, expected);
            prop_assert_eq!(*offload, Offload { csum_valid: true, ..Offload::NONE });
        }
        // A receiver that sums for itself gets the same, with only the pseudo-header summed.
        let left = run(&packet.unfinished(), &sizes, packet.offload(size), Offloads::CSUM).unwrap();
        for ((got, offload), expected) in left.iter().zip(&mut expected) {
            set_unfinished(expected, &packet);
            prop_assert_eq!(got, expected);
            prop_assert_eq!(offload.needs(), Offloads::CSUM);
            prop_assert_eq!(usize::from(offload.csum_start), packet.l4());
        }
    }

    #[test]
    fn a_checksum_is_that_of_another_implementation(
        packet in packets(),
        sizes in prop::collection::vec(2..700usize, 1..5),
    ) {
        prop_assume!(packet.header_len() <= HEAD);
        let got = run(&packet.unfinished(), &sizes, packet.offload(0), Offloads::NONE).unwrap();
        let mut expected = packet.whole();
        let sum = packet.l4() + packet.sum_offset();
        if expected[sum..sum + 2] == [0, 0] {
            expected[sum..sum + 2].copy_from_slice(&[0xff, 0xff]);
        }
        prop_assert_eq!(&got, &[(expected, Offload { csum_valid: true, ..Offload::NONE })]);
    }

    #[test]
    fn what_the_receiver_takes_passes_unchanged(packet in packets(), size in 48..3000usize) {
        prop_assume!(packet.header_len() <= HEAD && packet.payload.len() <= 128 * size);
        let bytes = packet.unfinished();
        for gso_size in [0, size] {
            let got = run(&bytes, &[200], packet.offload(gso_size), Offloads::ALL).unwrap();
            prop_assert_eq!(got.len(), 1);
            prop_assert_eq!(&got[0].0, &bytes);
            prop_assert_eq!(got[0].1.gso_size as usize, gso_size);
            prop_assert_eq!(got[0].1.hdr_len as usize, packet.header_len());
        }
    }
}

#[test]
fn the_output_may_be_full_at_any_frame() {
    let packet = Packet { payload: vec![5; 60_000], ..Packet::default() };
    let bytes = packet.unfinished();
    let pieces = pieces(&bytes, &[333]);
    let mut batch = Batch::new();
    batch.add(&pieces, packet.offload(100)).unwrap();
    let mut finisher = Finisher::new(batch.frame(0).unwrap(), Offloads::NONE).unwrap();
    assert_eq!(finisher.count(), 600);
    let (mut out, mut got) = (Batch::new(), Vec::new());
    for (round, expected) in [(0, 56), (1, BATCH), (2, BATCH), (3, 32)] {
        out.clear();
        // Somebody else's frames are in the batch already.
        let before = if round == 0 { 200 } else { 0 };
        for _ in 0..before {
            out.add_parts(&[0; 60], [], Offload::NONE).unwrap();
        }
        assert_eq!(finisher.fill(&mut out), Ok(round < 3));
        assert_eq!(out.len(), before + expected);
        got.extend((before..out.len()).map(|i| whole(&out.frame(i).unwrap())));
    }
    assert_eq!(finisher.fill(&mut out), Ok(false));
    assert_eq!(got, packet.segments(100));
}

#[test]
fn pieces_run_out_before_frames() {
    let packet = Packet { payload: vec![5; 60_000], ..Packet::default() };
    // 60,000 bytes in pieces of 15: 4,000, of which an output batch holds 4,096.
    let got = run(&packet.unfinished(), &[15], packet.offload(1448), Offloads::NONE).unwrap();
    let got: Vec<_> = got.into_iter().map(|(bytes, _)| bytes).collect();
    assert_eq!(got, packet.segments(1448));
}

#[test]
fn without_ecn_ability_a_frame_with_ecn_marks_is_cut() {
    let packet = Packet { flags: 0x99, ..Packet::default() };
    let offload = Offload { ecn: true, ..packet.offload(1000) };
    let takes = Offloads::CSUM.with(Offloads::TSO4);
    let got = run(&packet.unfinished(), &[100], offload, takes).unwrap();
    let flags: Vec<u8> = got.iter().map(|(bytes, _)| bytes[packet.l4() + 13]).collect();
    assert_eq!(flags, [0x90, 0x10, 0x10, 0x19], "CWR first, FIN and PSH last");
    let got = run(&packet.unfinished(), &[100], offload, takes.with(Offloads::ECN)).unwrap();
    assert_eq!(got.len(), 1);
}

#[test]
fn a_frame_of_one_segment_stays_one() {
    for payload in [0, 1, 999, 1000] {
        let packet = Packet { payload: vec![1; payload], flags: 0x99, ..Packet::default() };
        let got = run(&packet.unfinished(), &[50], packet.offload(1000), Offloads::NONE).unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].0, packet.whole());
    }
}

#[test]
fn lengths_left_to_the_device_are_filled_in() {
    for v6 in [false, true] {
        let packet = Packet { v6, ..Packet::default() };
        let mut bytes = packet.unfinished();
        let at = packet.l3() + if v6 { 4 } else { 2 };
        bytes[at..at + 2].copy_from_slice(&[0, 0]);
        // These drivers do not sum the length either.
        bytes[packet.l4() + 16..packet.l4() + 18].copy_from_slice(&[0xab, 0xcd]);
        let got = run(&bytes, &[700], packet.offload(1448), Offloads::NONE).unwrap();
        let got: Vec<_> = got.into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(got, packet.segments(1448));
    }
}

#[test]
fn numbers_wrap_around() {
    let packet = Packet { id: 0xffff, sequence: u32::MAX - 1000, ..Packet::default() };
    let got = run(&packet.unfinished(), &[700], packet.offload(500), Offloads::NONE).unwrap();
    let got: Vec<_> = got.into_iter().map(|(bytes, _)| bytes).collect();
    assert_eq!(got, packet.segments(500));
}

#[test]
fn a_view_that_nobody_checked_is_checked() {
    let packet = Packet::default();
    let bytes = packet.unfinished();
    let body = [Slice::from_bytes(&bytes[100..])];
    for gso_size in [0u16, 1, 7] {
        let offload = Offload { gso: Gso::Tcp4, gso_size, ..packet.offload(1) };
        let view = FrameView { head: &bytes[..100], body: &body, len: bytes.len(), offload };
        assert_eq!(Finisher::new(view, Offloads::NONE).err(), Some(Reason::BadOffload));
    }
    let view = FrameView { head: &bytes, body: &[], len: 0, offload: packet.offload(1448) };
    assert_eq!(Finisher::new(view, Offloads::NONE).err(), Some(Reason::BadHeader));
}

#[test]
fn segments_longer_than_any_packet_are_refused() {
    let headers = Packet::default().header_len();
    let packet = Packet { payload: vec![0; 65_535 - (headers - 14)], ..Packet::default() };
    let mut bytes = packet.unfinished();
    // Left to the device, as drivers do for segmentation.
    bytes[16..18].fill(0);
    let send = |bytes: &[u8], size| run(bytes, &[900], packet.offload(size), Offloads::ALL);
    assert_eq!(send(&bytes, 65_535).unwrap().len(), 1);
    bytes.push(0);
    assert_eq!(send(&bytes, 65_535), Err(Reason::TooLong));
    assert_eq!(send(&bytes, 1448).unwrap().len(), 1);
}
