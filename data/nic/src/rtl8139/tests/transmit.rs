//! Transmit in classic mode.

use super::guest::*;
use crate::chip::Nic;

#[test]
fn frames_are_sent_in_turn() {
    let mut guest = Guest::classic();
    for round in 0..20usize {
        let f = frame([0xff; 6], 60 + round * 50);
        guest.send(&f);
        let sent = guest.pull();
        assert_eq!((sent.len(), &sent[0].bytes), (1, &f));
        assert_eq!(guest.tsd(round as u64 % 4), T_OWN | T_TOK | f.len() as u32);
        assert_eq!(guest.get16(ISR), TOK);
        guest.ack(TOK);
    }
    assert_eq!(guest.chip.counters().input.frames.get(), 20);
    // All four at once, and in the order of their numbers.
    let frames: Vec<_> = (0..4).map(|i| frame([0xff; 6], 100 + i)).collect();
    frames.iter().for_each(|f| guest.send(f));
    assert_eq!(guest.get16(SUMMARY), 0);
    let sent: Vec<_> = guest.pull().into_iter().map(|l| l.bytes).collect();
    assert_eq!(sent, frames);
    assert_eq!(guest.get16(SUMMARY), 0xf00f, "TOK and OWN of all");
}

/// The chip takes descriptors in turn: one that is posted out of turn waits.
#[test]
fn out_of_turn() {
    let mut guest = Guest::classic();
    guest.next = 2;
    guest.send(&frame(MAC, 62));
    assert_eq!((guest.pull().len(), guest.tsd(2) & T_OWN), (0, 0));
    guest.next = 1;
    guest.send(&frame(MAC, 61));
    assert!(guest.pull().is_empty());
    guest.next = 0;
    guest.send(&frame(MAC, 60));
    let lens: Vec<_> = guest.pull().iter().map(|l| l.bytes.len()).collect();
    assert_eq!(lens, [60, 61, 62]);
}

/// Frames that the switch holds stay the chip's, and those behind them, too.
#[test]
fn held_frames() {
    let mut guest = Guest::classic();
    for i in 0..4 {
        guest.send(&frame(MAC, 60 + i));
    }
    let mut take = Take { hold: vec![1], ..Take::default() };
    assert_eq!(guest.pull_to(&mut take), 3);
    assert_eq!([0, 1, 2, 3].map(|n| guest.tsd(n) & T_OWN), [T_OWN, 0, 0, 0]);
    guest.send(&frame(MAC, 99));
    let again: Vec<_> = guest.pull().iter().map(|l| l.bytes.len()).collect();
    assert_eq!(again, [61, 99]);
    assert_eq!([0, 1, 2, 3].map(|n| guest.tsd(n) & T_OWN), [T_OWN; 4]);
    assert!(guest.pull().is_empty());
}

/// Bad frames are not sent, told by TUN and TER, and the next ones are.
#[test]
fn bad_frames_are_told() {
    let cases: [(u64, u32); 6] = [
        (TX_BUFFERS, 1793),
        (TX_BUFFERS, 0x1fff),
        (TX_BUFFERS, 0),
        (TX_BUFFERS, 13),
        (MEMORY - 30, 60),
        (0xffff_fff0, 60),
    ];
    for (at, len) in cases {
        let mut guest = Guest::classic();
        guest.set32(TSAD, at as u32);
        guest.set32(TSD, len);
        guest.next = 1;
        guest.send(&frame(MAC, 1792));
        let sent = guest.pull();
        assert_eq!((sent.len(), sent[0].bytes.len()), (1, 1792), "{at:#x} {len}");
        assert_eq!(guest.tsd(0), T_OWN | T_TUN | len);
        assert_eq!(guest.tsd(1), T_OWN | T_TOK | 1792);
        assert_eq!((guest.get16(ISR), guest.dropped()), (TOK | TER, 1));
        assert_eq!(guest.get16(SUMMARY) & 0x1100, 0x0100);
    }
}

/// Off, frames wait; on again, they are sent from where it stood. A reset begins again.
#[test]
fn off_and_on() {
    let mut guest = Guest::classic();
    guest.send(&frame(MAC, 60));
    guest.pull();
    guest.set8(CR, RE);
    guest.send(&frame(MAC, 61));
    assert!(guest.pull().is_empty());
    guest.set8(CR, RE | TE);
    assert_eq!(guest.pull()[0].bytes.len(), 61);
    guest.send(&frame(MAC, 62));
    guest.start_classic(0);
    assert_eq!([0, 1, 2, 3].map(|n| guest.tsd(n)), [T_OWN; 4]);
    assert!(guest.pull().is_empty());
    guest.next = 0;
    guest.send(&frame(MAC, 63));
    assert_eq!(guest.pull()[0].bytes.len(), 63);
}

/// With TCR.CRC the driver brings the FCS.
#[test]
fn own_fcs() {
    let mut guest = Guest::classic();
    guest.set32(TCR, 1 << 16);
    guest.send(&frame(MAC, 64));
    assert_eq!(guest.pull()[0].bytes.len(), 60);
    guest.send(&frame(MAC, 15));
    assert!(guest.pull().is_empty());
    assert_eq!(guest.dropped(), 1);
}

/// A frame that crosses regions of memory is one frame.
#[test]
fn frames_across_regions() {
    let mut guest = Guest::classic();
    let regions = vec![region(0, 0x1000), region(0x1000, 0x1000)];
    let map = std::sync::Arc::new(vmlan_ram::Map::new(regions, None).unwrap());
    drop(guest.chip.set_map(map.clone()));
    let f = frame(MAC, 1000);
    map.slice_mut(0xe00, 0x200).unwrap().write(0, &f[..0x200]);
    map.slice_mut(0x1000, 1000 - 0x200).unwrap().write(0, &f[0x200..]);
    guest.set32(TSAD, 0xe00);
    guest.set32(TSD, 1000);
    assert_eq!(guest.pull()[0].bytes, f);
    assert_eq!(guest.tsd(0), T_OWN | T_TOK | 1000);
}

/// The worker sleeps and is woken by TSD.
#[test]
fn doorbells() {
    let mut guest = Guest::classic();
    assert!(!guest.chip.arm());
    let rang = guest.rang();
    guest.set32(TSAD, TX_BUFFERS as u32);
    assert_eq!(guest.rang(), rang + 1, "may make a frame good");
    assert!(!guest.chip.arm());
    guest.set32(TSD, 60);
    assert_eq!(guest.rang(), rang + 2);
    assert!(guest.chip.arm(), "there is something to do");
    guest.chip.disarm();
    guest.set32(TSD + 4, T_OWN | 60);
    assert_eq!((guest.pull().len(), guest.chip.counters().input.notifications.get()), (1, 1));
}

/// Frames come back in loopback, and go nowhere else; a frame that finds no room is lost.
#[test]
fn loopback() {
    let mut guest = Guest::classic();
    guest.set32(TCR, 3 << 17);
    for _ in 0..2 {
        for _ in 0..4 {
            guest.send(&frame(MAC, 1514));
        }
        assert!(guest.pull().is_empty());
    }
    assert_eq!(guest.dropped(), 3, "8 KiB hold five");
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1, "the wire is off");
    let mut got = 0;
    while let Some((status, f)) = guest.take() {
        assert_eq!((status, &f[..1514]), (0x4001, frame(MAC, 1514).as_slice()));
        got += 1;
    }
    assert_eq!(got, 5);
    // One bit of the two is not loopback.
    guest.set32(TCR, 1 << 17);
    guest.send(&frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
}
