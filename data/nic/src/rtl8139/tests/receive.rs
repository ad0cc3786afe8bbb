//! Receive in classic mode, but for the buffer itself (`buffer.rs`): the filter, the header, the
//! counters.

use vmlan_frame::Reason;

use super::guest::*;
use crate::chip::Nic;

const OTHER: [u8; 6] = [0x52, 0x54, 0, 7, 7, 7];
const ALL: [u8; 6] = [0xff; 6];
/// Bit 31 of the hash table.
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

#[test]
fn the_filter_and_what_the_header_says() {
    let guest = Guest::classic();
    let bit = crate::realtek::filter::hash(GROUP);
    guest.set32(MAR + u64::from(bit / 32) * 4, 1 << (bit % 32));
    let status = |rcr: u32, to: [u8; 6]| {
        guest.set32(RCR, rcr);
        assert_eq!(guest.arrive(&[frame(to, 60)]), 1);
        guest.take().map(|(status, _)| status)
    };
    assert_eq!(status(0xf, MAC), Some(0x4001));
    assert_eq!(status(0xf, OTHER), Some(0x0001));
    assert_eq!(status(0xf, GROUP), Some(0x8001));
    assert_eq!(status(0xf, ALL), Some(0x2001));
    assert_eq!([MAC, OTHER, GROUP, ALL].map(|to| status(0, to)), [None; 4]);
    assert_eq!(status(2, MAC), Some(0x4001));
    assert_eq!(status(2, OTHER), None);
    assert_eq!(status(4, GROUP), Some(0x8001));
    assert_eq!(status(4, [1, 0, 0x5e, 0, 0, 2]), None);
    // The address is a register, too, and counts at once.
    guest.set32(IDR, u32::from_le_bytes([OTHER[0], OTHER[1], OTHER[2], OTHER[3]]));
    guest.set16(IDR + 4, u16::from_le_bytes([OTHER[4], OTHER[5]]));
    assert_eq!(status(2, OTHER), Some(0x4001));
    assert_eq!(status(2, MAC), None);
    assert_eq!(guest.dropped(), 0, "what is for others is not lost");
}

#[test]
fn statistics() {
    let guest = Guest::classic();
    guest.arrive(&[frame(MAC, 60), frame(ALL, 60), frame(OTHER, 60)]);
    let device = guest.chip.device();
    let of = |name: &str| device.statistics.iter().find(|(n, _)| *n == name).unwrap().1;
    assert_eq!((of("RxOk"), of("RxOkPhy"), of("RxOkBrd")), (2, 1, 1));
    assert_eq!(guest.chip.counters().output.frames.get(), 2);
}

/// Off, it drops what comes.
#[test]
fn off() {
    let guest = Guest::classic();
    guest.set8(CR, TE);
    assert_eq!((guest.chip.is_up(), guest.arrive(&[frame(MAC, 60)])), (false, 1));
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 1);
    assert!(guest.chip.room() > 0 && guest.chip.want_room());
}

/// What is promised: as many as fit, and all if nearly all of the buffer is free.
#[test]
fn room() {
    let guest = Guest::classic();
    assert_eq!(guest.chip.room(), 128);
    for left in [128, 128, 3, 2, 1, 0] {
        assert_eq!(guest.chip.room(), left);
        guest.arrive(&[frame(MAC, 1514)]);
    }
    guest.start_classic(3 << 11);
    guest.arrive(&vec![frame(MAC, 1514); 20]);
    assert_eq!(guest.chip.room(), (0x1_0000 - 1 - 20 * 1524) / 1528);
}

/// ISR says that frames have come, once for all of them.
#[test]
fn a_batch_is_one_interrupt() {
    let guest = Guest::classic();
    let raised = guest.raised();
    guest.arrive(&vec![frame(MAC, 60); 50]);
    assert_eq!((guest.raised(), guest.get16(ISR)), (raised + 1, ROK));
    let mut n = 0;
    while guest.take().is_some() {
        n += 1;
    }
    assert_eq!(n, 50);
    assert_eq!(guest.count("CAPR").1, 50);
}

/// A buffer across regions of memory is one buffer.
#[test]
fn a_buffer_across_regions() {
    let guest = Guest::classic();
    let regions = vec![region(0x1000, 0x1000), region(0x2000, 0x800), region(0x2800, 0x2000)];
    let map = std::sync::Arc::new(vmlan_ram::Map::new(regions, None).unwrap());
    drop(guest.chip.set_map(map.clone()));
    guest.set32(RBSTART, 0x1000);
    let f = frame(MAC, 1514);
    for _ in 0..5 {
        assert_eq!(guest.arrive(std::slice::from_ref(&f)), 1);
    }
    for i in 0..5u64 {
        let at = 0x1000 + 1524 * i + 4;
        let mut got = vec![];
        for byte in at..at + 1514 {
            let mut one = [0];
            map.slice(byte, 1).unwrap().read(&mut one);
            got.push(one[0]);
        }
        assert_eq!(got, f, "{i}");
    }
}

/// The map goes while the driver runs, and comes back.
#[test]
fn memory_goes_and_comes() {
    let mut guest = Guest::classic();
    drop(guest.chip.set_map(std::sync::Arc::default()));
    guest.set32(TSD, 60);
    assert_eq!((guest.arrive(&[frame(MAC, 60)]), guest.pull().len()), (0, 0));
    assert!(guest.chip.fault().is_some());
    drop(guest.chip.set_map(guest.map.clone()));
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    assert!(guest.chip.fault().is_none());
}
