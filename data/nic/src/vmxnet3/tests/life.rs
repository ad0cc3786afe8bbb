//! Activation, quiescence, resets, the link, and what survives what.

use super::guest::*;

#[test]
fn a_driver_finds_what_it_looks_for() {
    let guest = Guest::cold(0);
    assert_eq!(guest.get(1, 0x00) & 7, 7, "versions 1 to 3");
    assert_eq!(guest.get(1, 0x08) & 1, 1);
    assert_eq!(guest.command(0xf00d_0008), 0, "any kind of interrupt");
    let mac = [0x28, 0x30].map(|at| guest.get(1, at));
    assert_eq!(mac, [0x0100_5452, 0x0302]);
    assert_eq!([0xf00d_0003, 0xf00d_0004].map(|what| guest.command(what)), mac);
    assert_eq!([0xf00d_0005, 0xf00d_0006].map(|what| guest.command(what)), [0x07b0, 1]);
    assert_eq!(guest.command(GET_LINK), 10_000 << 16 | 1);
    guest.chip.set_link(false);
    assert_eq!(guest.command(GET_LINK), 0);
    assert_eq!(guest.command(0xcafe_1234), 0, "unknown");
    assert!(guest.is_masked(0) && guest.is_masked(24));
}

#[test]
fn activation_prepares_the_queues() {
    let mut guest = Guest::new();
    assert!(guest.chip.is_up());
    guest.put(guest.tx_queue(0) + 0x50, 1);
    guest.put(guest.rx_queue(0) + 0x54, 7);
    guest.put(guest.tx_queue(0) + 4, 99);
    assert_eq!(guest.command(QUIESCE), 0);
    assert!(!guest.chip.is_up());
    // As OpenBSD: neither a reset nor a new address.
    guest.write_shared();
    guest.put(guest.tx_queue(0) + 0x50, 1);
    assert_eq!(guest.command(ACTIVATE), 0);
    assert_eq!(guest.word(guest.tx_queue(0) + 0x50), 0, "not stopped");
    assert_eq!(guest.threshold(0), 1, "a doorbell is wanted");
    assert_eq!(guest.word(guest.rx_queue(0)), 0, "none for buffers");
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn nothing_moves_before_activation_or_after_quiescence() {
    let mut guest = Guest::cold(0);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.dropped(), 1);
    guest.start(Setup::default());
    guest.send(0, &frame(MAC, 60));
    guest.command(QUIESCE);
    assert!(guest.pull().is_empty() && !guest.chip.arm());
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert!(guest.take().is_none() && guest.sent().is_none());
    assert_eq!(guest.threshold(0), 1, "as it was");
}

/// Two drivers in a row, without a reset between.
#[test]
fn a_second_activation_begins_again() {
    let mut guest = Guest::new();
    for n in 0..40 {
        guest.send(n % 4, &frame(MAC, 60));
    }
    assert_eq!(guest.pull().len(), 40);
    guest.write_shared();
    assert_eq!(guest.command(ACTIVATE), 0);
    guest.send(0, &frame(MAC, 61));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.sent(), Some(0));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.take().unwrap().1.index, 0);
}

/// A changed address survives activation (QEMU's model forgets it there), and is gone after a
/// reset.
#[test]
fn a_changed_address_is_heard_until_a_reset() {
    let mut guest = Guest::new();
    let other = [0x52, 0x54, 0, 7, 7, 7];
    guest.set(1, 0x28, 0x0700_5452);
    guest.set(1, 0x30, 0x0707);
    guest.command(QUIESCE);
    guest.write_shared();
    assert_eq!(guest.command(ACTIVATE), 0);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60), &frame(other, 61)]), 2);
    assert_eq!(guest.take().unwrap().0.len(), 61);
    assert!(guest.take().is_none());
    guest.command(RESET);
    assert_eq!(guest.get(1, 0x28), 0x0100_5452);
    assert_eq!(guest.get(1, 0x10), 0, "the address of DriverShared is forgotten");
    assert_eq!(guest.command(ACTIVATE), 1);
}

#[test]
fn an_address_of_zero_stops_the_device() {
    let guest = Guest::new();
    guest.set(1, 0x10, 0);
    assert!(!guest.chip.is_up());
}

#[test]
fn the_link_is_an_event() {
    let mut guest = Guest::new();
    guest.chip.set_link(false);
    assert_eq!((guest.word(SHARED + 0x2b8), guest.messages(1)), (4, 1));
    assert!(!guest.chip.is_up());
    assert_eq!(guest.get(1, ECR), 4, "DPDK's driver looks here");
    guest.set(1, ECR, 4);
    assert_eq!((guest.word(SHARED + 0x2b8), guest.get(1, ECR)), (0, 0), "taken");
    guest.mask(1, false);
    guest.chip.set_link(true);
    assert_eq!((guest.word(SHARED + 0x2b8), guest.messages(1)), (4, 2));
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn counters_are_written_when_they_are_asked_for() {
    let mut guest = Guest::new();
    let at = |queue: u64, n: u64| queue + 0x58 + 8 * n;
    guest.send(0, &frame([2, 0, 0, 0, 0, 1], 100));
    guest.send(1, &frame([0xff; 6], 60));
    guest.send(2, &frame([1, 0, 0x5e, 0, 0, 1], 70));
    assert_eq!(guest.pull().len(), 3);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 200), &frame([0xff; 6], 64)]), 2);
    let (tx, rx) = (guest.tx_queue(0), guest.rx_queue(0));
    assert_eq!(guest.long(at(tx, 2)), 0, "not before");
    assert_eq!(guest.command(GET_STATS), 0);
    let sent: Vec<u64> = (0..10).map(|n| guest.long(at(tx, n))).collect();
    assert_eq!(sent, [0, 0, 1, 100, 1, 70, 1, 60, 0, 0]);
    let received: Vec<u64> = (0..10).map(|n| guest.long(at(rx, n))).collect();
    assert_eq!(received, [0, 0, 1, 200, 0, 0, 1, 64, 0, 0]);
    // From 0 with each activation.
    guest.write_shared();
    guest.command(ACTIVATE);
    guest.command(GET_STATS);
    assert_eq!((guest.long(at(tx, 2)), guest.long(at(rx, 2))), (0, 0));
    assert_eq!(guest.statistic("ucast pkts tx"), 1);
}

/// The chip forgets everything, and a new machine finds it as the factory left it.
#[test]
fn a_reset_of_the_function_is_as_power_on() {
    let mut guest = Guest::new();
    guest.mask(3, false);
    guest.chip.reset();
    assert!(!guest.chip.is_up() && guest.is_masked(3));
    assert_eq!(guest.config(4, 2), 0);
    guest.start(Setup::default());
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
    guest.chip.renew();
    assert_eq!(guest.get(1, 0x10), 0);
}

#[test]
fn without_the_right_to_use_memory_nothing_is_activated() {
    let mut guest = Guest::cold(0);
    guest.write_shared();
    guest.set(1, 0x10, SHARED as u32);
    assert_eq!(guest.command(ACTIVATE), 1);
    guest.start(Setup::default());
    guest.config_write(4, &[2, 0]);
    guest.send(0, &frame(MAC, 60));
    assert!(guest.pull().is_empty());
    // Its rings are where they were.
    guest.config_write(4, &[6, 0]);
    assert_eq!(guest.pull().len(), 1);
}

/// Memory that goes away and comes back (a VMM rearranges it).
#[test]
fn rings_are_found_again_in_another_map() {
    let mut guest = Guest::new();
    guest.send(0, &frame(MAC, 60));
    drop(guest.chip.set_map(Default::default()));
    assert!(guest.pull().is_empty());
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0, "it waits");
    assert!(guest.chip.fault().is_some());
    drop(guest.chip.set_map(guest.map.clone()));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert!(guest.chip.fault().is_none());
}

/// Its worker may go to sleep before anything has looked at the rings in the new map.
#[test]
fn a_doorbell_is_wanted_at_once_in_another_map() {
    let mut guest = Guest::new();
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.threshold(0), u32::MAX, "the worker is awake");
    drop(guest.chip.set_map(guest.map.clone()));
    assert!(!guest.chip.arm());
    assert_eq!(guest.threshold(0), 1);
    // A ring that is nowhere keeps nobody awake.
    drop(guest.chip.set_map(Default::default()));
    assert!(!guest.chip.arm() && guest.chip.fault().is_some());
}

/// The successor of a device that has died: queues that have failed are an event.
#[test]
fn a_driver_is_told_that_its_device_has_died() {
    let mut guest = Guest::new();
    let (memo, events) = (guest.chip.memo(), SHARED + 0x2b8);
    let die = |guest: &Guest, memo| {
        guest.chip.renew();
        guest.config_write(4, &[6, 0]);
        guest.chip.lost(memo);
    };
    die(&guest, memo);
    assert_eq!(guest.word(events), 3);
    assert!(!guest.chip.is_up(), "rings of which nothing is known are left alone");
    guest.set(1, ECR, 3);
    assert_eq!(guest.word(events), 0, "taken");
    guest.command(RESET);
    guest.start(Setup::default());
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
    // What nobody vouches for.
    let beyond = [0, 1, SHARED + 8, SHARED + 4, MEMORY - 2, MEMORY, 1 << 55, u64::MAX];
    for memo in beyond {
        die(&guest, memo);
        assert_eq!(guest.word(events), 0, "{memo:#x}");
    }
}
