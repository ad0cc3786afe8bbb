//! Extended descriptors, and those with several buffers.

use vmlan_frame::Offload;

use super::*;
use crate::chip::Nic;
use crate::intel::guest::{MAC, RX_BUFFERS, RX_RING, frame, tcp, udp};

const GOOD: Offload = Offload { csum_valid: true, ..Offload::NONE };

fn extended() -> Guest {
    let guest = Guest::new();
    guest.set(RFCTL, EXTEN);
    guest.set(RXCSUM, 1 << 13 | 3 << 8);
    guest
}

/// Status and errors, length, tag of the extended descriptor in the unit `index`.
fn done(guest: &Guest, index: u32) -> (u32, usize, u16) {
    let word = guest.rx_word(index);
    (word as u32, usize::from((word >> 32) as u16), (word >> 48) as u16)
}

#[test]
fn an_extended_descriptor_is_written_whole() {
    let guest = extended();
    let plain = frame(MAC, 100);
    let arrived = guest.arrive(&[
        (plain.clone(), Offload::NONE),
        (tcp(false, 100), GOOD),
        (tcp(true, 100), GOOD),
        (udp(false, 100), GOOD),
    ]);
    assert_eq!(arrived, 4);
    assert_eq!(guest.read(RX_BUFFERS, 100), plain);
    assert_eq!(done(&guest, 0), (7, 104, 0), "DD, EOP, IXSM, with FCS");
    assert_eq!(done(&guest, 1).0, 0x63, "TCPCS, IPCS");
    assert_eq!(done(&guest, 2).0, 0x23, "TCPCS");
    assert_eq!(done(&guest, 3).0, 0x73, "UDPCS, TCPCS, IPCS");
    assert_eq!(guest.word(RX_RING), 0, "the address is gone: no hash");
    assert_eq!(guest.get(RD + HEAD), 4);
}

#[test]
fn a_tag_is_in_the_descriptor() {
    let guest = extended();
    guest.set(0, 1 << 6 | 1 << 30);
    let mut tagged = frame(MAC, 104);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0x20, 0x64]);
    guest.arrive(&[(tagged, Offload::NONE)]);
    assert_eq!(done(&guest, 0), (0xf, 104, 0x2064));
}

/// Legacy drivers know nothing of all this.
#[test]
fn without_exten_descriptors_are_the_old_ones() {
    for rctl in [ON, ON | SPLIT] {
        let guest = Guest::new();
        guest.set(RCTL, rctl);
        guest.arrive(&[(frame(MAC, 60), Offload::NONE)]);
        assert_eq!(guest.received(0), (64, 7, 0, 0));
        assert_eq!(guest.word(RX_RING), RX_BUFFERS, "the address stays");
    }
}

/// FLXBUF: buffers in KiB, whatever BSIZE says.
#[test]
fn flexible_buffers() {
    let guest = extended();
    guest.set(RCTL, ON | LPE | 3 << 27 | 3 << 16 | 1 << 26);
    guest.arrive(&[(frame(MAC, 4000), Offload::NONE)]);
    assert_eq!((done(&guest, 0).1, done(&guest, 1).1), (3072, 928));
    assert_eq!((done(&guest, 0).0 & 3, done(&guest, 1).0 & 3), (1, 3));
}

/// Packet split as Linux has it for an MTU of 9000: 128 bytes, then three pages.
fn split(psrctl: u32) -> Guest {
    let guest = Guest::new();
    guest.set(RFCTL, EXTEN);
    guest.set(PSRCTL, psrctl);
    guest.set(RXCSUM, 1 << 13 | 3 << 8);
    guest.set(RCTL, ON | LPE | SPLIT | 1 << 26);
    for i in 0..32u64 {
        for part in 0..4u64 {
            let at = RX_BUFFERS + 0x1_0000 * i + 0x1000 * part;
            guest.write(RX_RING + 32 * i + 8 * part, &at.to_le_bytes());
        }
    }
    receive_ring(&guest, RX_RING, 64, 62);
    guest
}

const PAGES: u32 = 4 << 24 | 4 << 16 | 4 << 8 | 1;

/// Lengths of the buffers of descriptor `index`, and its status.
fn lengths(guest: &Guest, index: u64) -> ([u16; 4], u32) {
    let at = RX_RING + 32 * index;
    let (middle, upper) = (guest.word(at + 8), guest.word(at + 16));
    let rest = [16, 32, 48].map(|shift| (upper >> shift) as u16);
    ([(middle >> 32) as u16, rest[0], rest[1], rest[2]], middle as u32)
}

#[test]
fn a_frame_fills_the_buffers_in_order() {
    let guest = split(PAGES);
    let frames = [60, 128, 129, 4224, 4225, 9014].map(|len| frame(MAC, len));
    for frame in &frames {
        assert_eq!(guest.arrive(&[(frame.clone(), Offload::NONE)]), 1);
    }
    let expected = [
        [60, 0, 0, 0],
        [128, 0, 0, 0],
        [128, 1, 0, 0],
        [128, 4096, 0, 0],
        [128, 4096, 1, 0],
        [128, 4096, 4096, 694],
    ];
    for (i, (frame, lens)) in (0u64..).zip(frames.iter().zip(expected)) {
        assert_eq!(lengths(&guest, i), (lens, 7), "frame {i}");
        let parts = (0u64..).zip(lens).flat_map(|(part, len)| {
            guest.read(RX_BUFFERS + 0x1_0000 * i + 0x1000 * part, len.into())
        });
        assert_eq!(&parts.collect::<Vec<_>>(), frame);
        assert_eq!(guest.word(RX_RING + 32 * i + 24), 0, "written out");
    }
    assert_eq!(guest.get(RD + HEAD), 12, "in units of 16 bytes");
    // The sums are those of other frames.
    guest.arrive(&[(tcp(false, 5000), GOOD)]);
    assert_eq!(lengths(&guest, 6), ([128, 4096, 842, 0], 0x63));
}

/// Without some of the buffers; over several descriptors if it must be.
#[test]
fn buffers_of_no_size_are_passed_over() {
    let guest = split(2 << 16 | 2);
    guest.arrive(&[(frame(MAC, 2500), Offload::NONE)]);
    assert_eq!(lengths(&guest, 0), ([256, 0, 2048, 0], 5));
    assert_eq!(lengths(&guest, 1), ([196, 0, 0, 0], 7));
    assert_eq!(guest.get(RD + HEAD), 4);
    assert_eq!(guest.read(RX_BUFFERS + 0x1_0000, 196), frame(MAC, 2500)[2304..]);
}

/// Room is counted in descriptors, and the ring goes round.
#[test]
fn the_ring_goes_round() {
    let guest = split(PAGES);
    let frame = frame(MAC, 9014);
    for n in 0..100u32 {
        assert_eq!(guest.arrive(&[(frame.clone(), Offload::NONE)]), 1, "{n}");
        let index = u64::from(n % 32);
        assert_eq!(lengths(&guest, index).0, [128, 4096, 4096, 694]);
        let at = RX_BUFFERS + 0x1_0000 * index;
        for part in 0..4u64 {
            let at = at + 0x1000 * part;
            guest.write(RX_RING + 32 * index + 8 * part, &at.to_le_bytes());
        }
        guest.set(RD + TAIL, 2 * (n % 32));
    }
    receive_ring(&guest, RX_RING, 64, 4);
    let three: Vec<_> = (0..3).map(|_| (frame.clone(), Offload::NONE)).collect();
    assert_eq!(guest.arrive(&three), 2, "the third waits");
    assert_eq!(guest.chip.room(), 0);
}
