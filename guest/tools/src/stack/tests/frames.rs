//! Frames by their bytes.

use std::net::SocketAddrV4;

use super::super::frame::{Flow, Template, Udp, complete_checksum, flow, fold, sum};
use super::super::inbox::FrameQueue;
use crate::workload::{self, Pattern};

fn a_flow() -> Flow {
    let mut ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    ethernet[5] = 9;
    let from: SocketAddrV4 = "10.0.0.1:4000".parse().unwrap();
    let to: SocketAddrV4 = "10.0.0.2:7009".parse().unwrap();
    Flow { ethernet, from, to }
}

#[test]
fn sums_are_those_of_rfc_1071() {
    // The example of its section 3.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(fold(sum(&bytes)), 0xddf2);
    // Odd ends are filled with zero.
    for len in 0..16_u8 {
        let bytes: Vec<u8> = (1..=len).map(|n| n.wrapping_mul(37)).collect();
        let padded =
            bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |b| u64::from(*b)));
        assert_eq!(fold(sum(&bytes)), fold(padded.sum()), "{len} bytes");
    }
}

#[test]
fn templates_are_datagrams_with_right_checksums() {
    for size in [1, 7, 8, 9, 1460, 1472] {
        let mut template = Template::new(&a_flow(), size, 1500);
        for number in [0, 1, 0xffff, u64::MAX] {
            let frames = template.stamp(number);
            assert_eq!(frames.len(), 1);
            let frame = &frames[0];
            assert_eq!(frame.len(), (42 + size).max(60));
            assert_eq!(flow(frame), Some(a_flow()));
            assert_eq!(fold(sum(&frame[14..34])), 0xffff, "the IPv4 header");
            let udp = Udp::parse(frame).unwrap();
            let payload = udp.payload(frame).expect("a right checksum");
            assert_eq!((payload.len(), udp.to_port(frame)), (size, 7009));
            if size >= 8 {
                assert_eq!(payload[..8], number.to_be_bytes());
            }
            // Any changed bit is seen.
            let mut wrong = frame.clone();
            wrong[42 + size - 1] ^= 4;
            assert_eq!(Udp::parse(&wrong).unwrap().payload(&wrong), None);
        }
    }
}

#[test]
fn fragments_cover_a_datagram_once() {
    let mut template = Template::new(&a_flow(), 4000, 1500);
    let first = template.stamp(5).to_vec();
    let mut next = 0;
    for (n, frame) in first.iter().enumerate() {
        assert_eq!(fold(sum(&frame[14..34])), 0xffff);
        let udp = Udp::parse(frame).unwrap();
        assert_eq!((udp.offset, udp.more), (next, n < 2));
        next += udp.piece(frame).unwrap().len();
    }
    assert_eq!(next, 4008);
    let second = template.stamp(6);
    assert_ne!(first[0][18..20], second[0][18..20], "another identification");
}

#[test]
fn lengths_that_lie_are_no_datagrams() {
    let mut template = Template::new(&a_flow(), 100, 1500);
    let good = template.stamp(1)[0].clone();
    for (at, value) in [(16, 0xff), (17, 10), (38, 0xff), (39, 7), (39, 107)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(Udp::parse(&bad).and_then(|udp| udp.payload(&bad)), None, "byte {at}");
    }
    for len in 0..good.len() {
        assert_eq!(Udp::parse(&good[..len]).and_then(|udp| udp.payload(&good[..len])), None);
    }
    for (at, value) in [(12, 0x86), (14, 0x46), (23, 6)] {
        let mut other = good.clone();
        other[at] = value;
        assert_eq!(Udp::parse(&other), None, "byte {at}");
    }
}

#[test]
fn checksums_left_to_a_device_are_completed() {
    let mut template = Template::new(&a_flow(), 101, 1500);
    let good = template.stamp(1)[0].clone();
    let mut frame = good.clone();
    frame[40..42].copy_from_slice(&[0x12, 0x34]);
    complete_checksum(&mut frame);
    assert_eq!(frame, good);
    // Nothing to complete, or nonsense: left alone.
    for len in 14..42 {
        let mut short = good[..len].to_vec();
        complete_checksum(&mut short);
    }
    // Header lengths that lie.
    for (first, len) in (0..=255).flat_map(|first| (14..80).map(move |len| (first, len))) {
        let mut odd = good[..len].to_vec();
        odd[14..].iter_mut().take(1).for_each(|byte| *byte = first);
        complete_checksum(&mut odd);
    }
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let before = arp.clone();
    complete_checksum(&mut arp);
    assert_eq!(arp, before);
}

#[test]
fn a_queue_is_bounded_and_keeps_order() {
    let queue = FrameQueue::new(3, 16);
    let put = |byte: u8| {
        queue.put(|bytes| {
            bytes[0] = byte;
            1
        })
    };
    let take = || queue.take(|bytes| bytes.to_vec());
    assert_eq!(take(), None);
    for round in 0..5 {
        assert!(put(round) && put(round + 1) && put(round + 2));
        assert!(queue.is_full() && !put(99));
        assert_eq!((take(), take()), (Some(vec![round]), Some(vec![round + 1])));
        assert!(put(7));
        assert_eq!((take(), take(), take()), (Some(vec![round + 2]), Some(vec![7]), None));
        assert_eq!(queue.len(), 0);
    }
}

#[test]
fn a_queue_joins_two_threads() {
    let queue = FrameQueue::new(4, 8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000_u64 {
                let fill = |bytes: &mut [u8]| {
                    bytes.copy_from_slice(&n.to_le_bytes());
                    8
                };
                while !queue.put(fill) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 20_000_u64 {
            match queue.take(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())) {
                Some(n) => {
                    assert_eq!(n, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

#[test]
fn the_pattern_goes_on_from_any_place() {
    let pattern = Pattern::new(1000);
    for place in [0, 1, 250, 251, 1_000_003] {
        let bytes = pattern.at(place, 1000);
        let start = usize::try_from(place).unwrap();
        assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == workload::byte(start + n)));
    }
}
