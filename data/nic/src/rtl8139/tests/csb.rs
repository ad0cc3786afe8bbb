//! The CSB in C+ mode. What it does is `chip/csb.rs`'s, and tested there and with e1000; here is
//! what is this chip's: where it is placed, its kicks, and modes.

use super::guest::*;
use crate::chip::{Nic, PciFunction};

const TDT: u64 = 0;
const NEED_TX: u64 = 4;
const NEED_RX: u64 = 8;
const ON: u64 = 0xc;
const RDT: u64 = 0x10;
const HOST_TDH: u64 = 0x40;
const HOST_NEED_TX: u64 = 0x44;
const HOST_RDH: u64 = 0x50;
const HOST_RXKICK_AT: u64 = 0x5c;

fn guest() -> Guest {
    let guest = Guest::plus_with(true);
    guest.write(CSB, &[0; 104]);
    guest.write(CSB + HOST_RXKICK_AT, &[0xff; 4]);
    guest.set32(CSBAH, 0);
    guest.set32(CSBAL, CSB as u32);
    guest.write(CSB + ON, &[1]);
    guest
}

#[test]
fn no_register_is_needed_while_both_are_awake() {
    let mut guest = guest();
    let touched = |guest: &Guest| -> u64 {
        guest.chip.device().registers.iter().map(|r| r.reads + r.writes).sum()
    };
    guest.ack(0xffff);
    let (before, raised) = (touched(&guest), guest.raised());
    for round in 0..100u32 {
        let n = round % SIZE;
        let at = guest.fill(n, &frame(MAC, 60));
        let eor = if n == SIZE - 1 { EOR } else { 0 };
        let next = (n + 1) % SIZE;
        guest.tx_desc(n, OWN | FS | LS | eor | 60, 0, at);
        guest.write(CSB + TDT, &next.to_le_bytes());
        assert_eq!(guest.pull().len(), 1);
        assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
        guest.post_buffer(n, RX_BUFFERS + 2048 * u64::from(n), RX_LEN);
        guest.write(CSB + RDT, &next.to_le_bytes());
        assert_eq!(guest.word(CSB + HOST_TDH), (round + 1) % SIZE);
        assert_eq!(guest.word(CSB + HOST_RDH), (round + 1) % SIZE);
    }
    assert_eq!((touched(&guest), guest.raised()), (before, raised));
    let csb = guest.chip.device().csb.unwrap();
    assert!(csb.on && csb.suppressed > 100);
}

#[test]
fn kicks_and_wishes() {
    let mut guest = guest();
    guest.ack(0xffff);
    // The first look finds the ring, the second the CSB.
    assert_eq!((guest.pull().len(), guest.pull().len()), (0, 0));
    assert_eq!(guest.word(CSB + HOST_NEED_TX), 0, "awake");
    assert!(!guest.chip.arm());
    assert_eq!(guest.word(CSB + HOST_NEED_TX), 1);
    let rang = guest.rang();
    let at = guest.fill(0, &frame(MAC, 60));
    guest.tx_desc(0, OWN | FS | LS | 60, 0, at);
    guest.set8(TPPOLL, 0x40);
    assert_eq!(guest.rang(), rang + 1);
    assert!(guest.chip.arm(), "found, though its tail is not told");
    guest.chip.disarm();
    assert_eq!(guest.pull().len(), 1);
    // Room: asked for when there is none, kicked by TPPoll with no queue.
    while guest.arrive(&[frame(MAC, 60)]) == 1 {}
    assert!(!guest.chip.want_room());
    assert_ne!(guest.word(CSB + HOST_RXKICK_AT), u32::MAX);
    let (rang, kicks) = (guest.rang(), guest.chip.counters().rx_doorbells.get());
    for i in 0..40 {
        guest.post_buffer(i, RX_BUFFERS + 2048 * u64::from(i), RX_LEN);
    }
    guest.set8(TPPOLL, 0);
    assert_eq!(guest.rang(), rang + 1);
    assert_eq!(guest.chip.counters().rx_doorbells.get(), kicks + 1);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    assert_eq!(guest.word(CSB + HOST_RXKICK_AT), u32::MAX);
    // Interrupts only for what is wished for.
    guest.ack(0xffff);
    let raised = guest.raised();
    guest.arrive(&[frame(MAC, 60)]);
    assert_eq!(guest.raised(), raised);
    guest.write(CSB + NEED_RX, &[1]);
    guest.arrive(&[frame(MAC, 60)]);
    assert_eq!(guest.raised(), raised + 1);
    guest.ack(0xffff);
    guest.write(CSB + NEED_TX, &[1]);
    guest.next = 1;
    guest.send_plus(&frame(MAC, 60), 0, 0);
    guest.write(CSB + TDT, &[2]);
    guest.pull();
    assert_eq!(guest.raised(), raised + 2);
    // The link always is.
    guest.write(CSB + NEED_TX, &[0, 0, 0, 0, 0]);
    guest.ack(0xffff);
    guest.chip.set_link(false);
    assert_eq!(guest.raised(), raised + 3);
}

/// A CSB that cannot be is told, and does nothing.
#[test]
fn bad_places() {
    let mut guest = Guest::plus_with(true);
    for address in [CSB as u32 + 4, MEMORY as u32 - 64, 0xffff_ffc0] {
        guest.set32(CSBAL, address);
        assert!(guest.chip.fault().is_some_and(|fault| !fault.stops()), "{address:#x}");
        guest.next = 0;
        guest.start_plus();
        guest.send_plus(&frame(MAC, 60), 0, 0);
        assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (1, 1));
    }
    guest.set32(CSBAL, 0);
    assert!(guest.chip.fault().is_none());
}

/// In classic mode the CSB stands by: indexes in it mean nothing there.
#[test]
fn classic_mode_beside_a_csb() {
    let mut guest = Guest::plus_with(true);
    assert!(guest.chip.posts_silently());
    guest.set32(CSBAL, CSB as u32);
    guest.set8(CR, RST);
    guest.start_classic(0);
    assert!(!guest.chip.posts_silently(), "CAPR is written");
    guest.write(CSB, &[0xff; 0x20]);
    guest.next = 0;
    guest.send(&frame(MAC, 60));
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (1, 1));
    assert!(guest.take().is_some());
    assert!(!guest.chip.arm());
}

/// The CSB is C+ chips' only.
#[test]
fn an_8139c_has_none() {
    let guest = Guest::bare(true, crate::chip::Config { csb: true, ..Guest::config() });
    guest.set32(CSBAL, CSB as u32);
    assert!(guest.chip.device().csb.is_none());
    assert_eq!(guest.get32(CSBAL), 0);
}
