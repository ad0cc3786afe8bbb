//! What broke other devices of this kind, as far as this chip can be asked for it.
//! `docs/known-faults.md` says who had it.

use vmlan_frame::{Offload, Reason};

use super::*;
use crate::chip::{Controlled, Nic};
use crate::intel::guest::{MAC, MEMORY, RX_BUFFERS, RX_RING, frame};

fn frames(n: usize, len: usize) -> Vec<(Vec<u8>, Offload)> {
    (0..n).map(|_| (frame(MAC, len), Offload::NONE)).collect()
}

/// CVE-2020-28916: descriptors with address 0 were looked at for ever.
#[test]
fn null_descriptors_are_given_back() {
    for exten in [0, EXTEN] {
        let guest = Guest::new();
        guest.set(RFCTL, exten);
        for i in 0..64 {
            guest.rx_desc(i, if i == 40 { RX_BUFFERS } else { 0 });
        }
        assert_eq!(guest.arrive(&frames(1, 60)), 1);
        assert_eq!(guest.get(RD + HEAD), 41);
        assert_eq!(guest.read(RX_BUFFERS, 60), frame(MAC, 60));
        // Nothing but null descriptors: the frame waits.
        guest.set(RD + TAIL, 40);
        assert_eq!(guest.arrive(&frames(1, 60)), 0);
        assert_eq!(guest.get(RD + HEAD), 40, "all of them are given back");
    }
}

/// Packet split with buffers of no size at all: no loop, no division by it, nothing written.
#[test]
fn packet_split_without_sizes() {
    for psrctl in [0, 4 << 8, 0x3f << 24] {
        let guest = Guest::new();
        guest.write(RX_BUFFERS, &[0xee; 4096]);
        guest.set(RFCTL, EXTEN);
        guest.set(PSRCTL, psrctl);
        guest.set(RCTL, ON | LPE | SPLIT);
        receive_ring(&guest, RX_RING, 64, 62);
        guest.arrive(&frames(10, 60));
        guest.arrive(&frames(10, 9000));
        assert!(guest.read(RX_BUFFERS, 4096).iter().all(|byte| *byte == 0xee), "{psrctl:#x}");
        guest.chip.room();
        assert!(guest.chip.fault().is_none());
    }
}

/// A ring shorter than the frame; one of one descriptor.
#[test]
fn a_ring_shorter_than_a_frame() {
    let guest = Guest::new();
    guest.set(RFCTL, EXTEN);
    guest.set(RCTL, ON | LPE | 3 << 16);
    receive_ring(&guest, RX_RING, 8, 7);
    let before = guest.chip.counters().output.dropped(Reason::TooLong);
    assert_eq!(guest.arrive(&frames(1, 9000)), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::TooLong), before + 1);
    assert_eq!(guest.arrive(&frames(1, 60)), 1);
    assert_eq!(guest.get(RD + HEAD), 1);
}

/// Heads and tails count units of 16 bytes: an odd one names the middle of a descriptor.
#[test]
fn the_middle_of_a_descriptor() {
    let guest = Guest::new();
    guest.set(RFCTL, EXTEN);
    guest.set(RCTL, ON | SPLIT);
    for i in 0..32u64 {
        guest.write(RX_RING + 32 * i, &(RX_BUFFERS + 2048 * i).to_le_bytes());
    }
    receive_ring(&guest, RX_RING, 64, 63);
    guest.set(RD + HEAD, 1);
    assert_eq!(guest.arrive(&frames(31, 60)), 31);
    assert_eq!(guest.get(RD + HEAD), 62);
    assert_eq!(guest.arrive(&frames(1, 60)), 0, "none is left");
    for index in [64, 65, 0xffff] {
        guest.set(RD + TAIL, index);
        assert_eq!(guest.arrive(&frames(1, 60)), 0);
        assert!(guest.chip.fault().is_some(), "{index}");
    }
}

/// The kind of descriptors changes while frames are on their way: each pass has one kind.
#[test]
fn the_kind_of_descriptors_changes_under_way() {
    let guest = Guest::new();
    guest.set(PSRCTL, 4 << 24 | 4 << 16 | 4 << 8 | 1);
    for i in 0..128u64 {
        let exten = if i & 1 == 0 { EXTEN } else { 0 };
        let dtyp = if i & 2 == 0 { SPLIT } else { 0 };
        guest.set(RFCTL, exten);
        guest.set(RCTL, ON | LPE | dtyp);
        guest.set(RD + TAIL, (guest.get(RD + HEAD) + 62) % 64);
        guest.arrive(&frames(3, 40 * i as usize + 60));
        assert!(guest.get(RD + HEAD) < 64);
        assert!(guest.chip.fault().is_none());
    }
}

/// CVE-2020-16092, CVE-2021-3416: fragments that cannot be mapped, the chip's own registers as
/// their target.
#[test]
fn buffers_that_are_no_memory() {
    for at in [MEMORY - 16, MEMORY, 0xfebc_0000, 1 << 40, u64::MAX - 100] {
        for rctl in [ON, ON | SPLIT] {
            let guest = Guest::new();
            guest.set(RFCTL, EXTEN);
            guest.set(RCTL, rctl);
            for unit in 0..64u64 {
                guest.write(RX_RING + 16 * unit, &at.to_le_bytes());
                guest.write(RX_RING + 16 * unit + 8, &at.to_le_bytes());
            }
            receive_ring(&guest, RX_RING, 64, 62);
            assert_eq!(guest.arrive(&frames(4, 1000)), 4);
            let dropped = guest.chip.counters().output.dropped(Reason::BadDescriptor);
            assert_eq!(dropped, 4, "{at:#x}");
            let word = guest.rx_word(0);
            assert_eq!(word as u32, 1 << 31 | 7, "the ring goes on, with RXE");
        }
    }
}

/// A reset while a message is held back, and a table of queues of any bytes.
#[test]
fn any_table_and_key() {
    let guest = with_vectors();
    guest.set(RFCTL, EXTEN);
    guest.set(RXCSUM, 1 << 13);
    for i in 0..32 {
        guest.set(0x5c00 + 4 * i, u32::MAX);
    }
    guest.set(MRQC, !2);
    // The second queue has no ring.
    let packets: Vec<_> =
        (0..8).map(|_| (crate::intel::guest::tcp(true, 9), Offload::NONE)).collect();
    assert_eq!(guest.arrive(&packets), 0);
    assert!(guest.chip.fault().is_none());
    guest.set(0, 1 << 26);
    guest.chip.write_config(4, &[7, 0]);
    assert_eq!(guest.get(MRQC), 0);
}
