//! Vectors: masks, autoMask, the pin, messages, moderation.

use std::sync::atomic::Ordering;

use vmlan_ram::Window;

use super::super::vectors::TOGETHER;
use super::guest::*;

#[test]
fn a_message_masks_its_vector() {
    let mut guest = Guest::new();
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!((guest.messages(0), guest.is_masked(0)), (1, true));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.messages(0), 1, "masked");
    guest.mask(0, false);
    assert_eq!((guest.messages(0), guest.is_masked(0)), (2, true), "something new since");
    guest.mask(0, false);
    assert_eq!((guest.messages(0), guest.is_masked(0)), (2, false), "nothing new since");
    assert_eq!(guest.chip.counters().output.notifications.get(), 2);
}

#[test]
fn without_auto_mask_each_batch_is_a_message() {
    let guest = Guest::with(Setup { auto_mask: false, ..Setup::default() });
    for n in 1..4 {
        guest.arrive_plain(&[&frame(MAC, 60), &frame(MAC, 60)]);
        assert_eq!((guest.messages(0), guest.is_masked(0)), (n, false));
    }
}

/// FreeBSD names vectors for its transmit queues that it never has.
#[test]
fn a_vector_that_is_not_there_sends_nothing() {
    let mut guest = Guest::new();
    for vector in [25, 200, 255] {
        guest.write_shared();
        guest.put(guest.tx_queue(0) + 0x48, vector);
        assert_eq!(guest.command(ACTIVATE), 0);
        guest.send(0, &frame(MAC, 60));
        guest.pull();
        assert_eq!(guest.sent(), Some(0));
    }
    guest.write_shared();
    guest.put(SHARED + 0x50, 1 | 1 << 8 | 7 << 16);
    assert_eq!(guest.command(ACTIVATE), 0);
    guest.chip.set_link(false);
    assert!(guest.host.sent.lock().unwrap().is_empty());
}

#[test]
fn the_pin_is_asserted_until_icr_is_read() {
    let mut guest = Guest::with(Setup { vectors: false, ..Setup::default() });
    guest.config_write(0x9e, &[0x18, 0]);
    assert_eq!(guest.get(1, ICR), 0, "not ours");
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.host.raises(), guest.chip.is_asserted()), (1, true));
    assert_eq!(guest.config(6, 1) & 8, 8);
    assert!(!guest.is_masked(0));
    assert_ne!(guest.get(1, ICR), 0);
    assert!(!guest.chip.is_asserted() && guest.is_masked(0));
    assert_eq!(guest.get(1, ICR), 0);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.host.raises(), 1);
    guest.mask(0, false);
    assert_eq!((guest.host.raises(), guest.chip.is_asserted()), (2, true));
    // Masked while it stands: it falls, and comes back.
    guest.mask(0, true);
    assert!(!guest.chip.is_asserted());
    guest.mask(0, false);
    assert_eq!(guest.host.raises(), 3);
    assert!(guest.host.sent.lock().unwrap().is_empty());
}

#[test]
fn with_msi_there_is_one_message_for_all() {
    let mut guest = Guest::with(Setup { vectors: false, ..Setup::default() });
    guest.config_write(0x9e, &[0x18, 0]);
    guest.config_write(0x86, &[0x81, 0]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.host.raises(), guest.is_masked(0)), (1, true));
    assert!(!guest.chip.is_asserted());
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.host.raises(), 1);
    guest.mask(0, false);
    assert_eq!(guest.host.raises(), 2);
    guest.mask(0, false);
    assert_eq!(guest.host.raises(), 2);
    assert!(guest.take().is_some());
}

#[test]
fn levels_hold_messages_back() {
    let guest = Guest::with(Setup { level: 3, auto_mask: false, ..Setup::default() });
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.messages(0), 1, "the first after silence");
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.sleep(31_000);
    assert_eq!(guest.messages(0), 1);
    guest.sleep(1_000);
    assert_eq!(guest.messages(0), 2);
    // UPDATE_IML: none from now on.
    guest.write(SHARED + 0x53, &[0; 25]);
    guest.command(UPDATE_IML);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.messages(0), 3);
    let device = guest.chip.device();
    assert_eq!((device.raised, device.held, device.delivered), (3, 1, 3));
}

#[test]
fn the_host_has_its_floor() {
    let mut guest = Guest::cold(10_000);
    guest.start(Setup::default());
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.mask(0, false);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.sleep(99_000);
    assert_eq!(guest.messages(0), 1);
    guest.sleep(1_000);
    assert_eq!((guest.messages(0), guest.is_masked(0)), (2, true));
    // Held back and masked meanwhile: sent once it is unmasked.
    guest.mask(0, false);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.mask(0, true);
    guest.sleep(200_000);
    assert_eq!(guest.messages(0), 2);
    guest.mask(0, false);
    assert_eq!(guest.messages(0), 3);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.mask(0, false);
    guest.chip.set_irq_rate_max(0);
    assert_eq!(guest.messages(0), 4);
}

fn adaptive() -> Setup {
    Setup { auto_mask: false, level: 8, ..Setup::default() }
}

/// At level 8 they are worth no interrupt of their own.
#[test]
fn completed_transmissions_wait_for_company() {
    let mut guest = Guest::with(adaptive());
    let send = |guest: &mut Guest| {
        guest.send(0, &frame(MAC, 60));
        guest.pull();
    };
    send(&mut guest);
    guest.sleep(TOGETHER - 1);
    send(&mut guest);
    assert_eq!(guest.messages(0), 0);
    guest.sleep(1);
    assert_eq!(guest.messages(0), 1, "one for both, not long after the first");
    guest.sleep(TOGETHER);
    assert_eq!(guest.messages(0), 1, "nothing new since");

    // A reception is told at once, and they with it.
    send(&mut guest);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.messages(0), 2);
    guest.sleep(TOGETHER);
    assert_eq!(guest.messages(0), 2);

    // Masked meanwhile: told when the mask goes, if their time is up.
    send(&mut guest);
    guest.mask(0, true);
    guest.sleep(TOGETHER);
    assert_eq!(guest.messages(0), 2);
    guest.mask(0, false);
    assert_eq!(guest.messages(0), 3);
    let device = guest.chip.device();
    assert_eq!((device.raised, device.held, device.delivered), (4, 3, 3));
}

/// A driver with a small ring would wait for descriptors otherwise.
#[test]
fn completions_of_a_quarter_of_the_ring_wait_for_nobody() {
    let mut guest = Guest::with(adaptive());
    for n in 1..=3 * SIZE / 4 {
        guest.send(0, &frame(MAC, 60));
        guest.pull();
        assert_eq!(guest.messages(0), (n / (SIZE / 4)) as usize);
    }
}

/// Where the driver names a level, that holds for them as well.
#[test]
fn without_level_8_completions_do_not_wait() {
    let mut guest = Guest::with(Setup { auto_mask: false, ..Setup::default() });
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.messages(0), 1);
}

/// Times are not part of a state that goes to another process: what waited is told there.
#[test]
fn what_waited_is_told_by_the_successor() {
    let mut guest = Guest::with(adaptive());
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.messages(0), 0);
    guest.succeed();
    guest.sleep(TOGETHER);
    assert_eq!(guest.messages(0), 1);
}

/// A scheme of version 3: so many a second.
#[test]
fn a_rate_may_be_asked_for() {
    let guest = Guest::with(Setup { auto_mask: false, ..Setup::default() });
    let scheme = [3u32, 20_000, 0, 0].map(u32::to_le_bytes).concat();
    guest.write(0x5000, &scheme);
    guest.write(SHARED + 0x2c0, &[1u32, 16, 0x5000, 0].map(u32::to_le_bytes).concat());
    assert_eq!(guest.command(0xcafe_000e), 0);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.messages(0), 1);
    guest.sleep(50_000);
    assert_eq!(guest.messages(0), 2);
    guest.write(0x5000, &[0; 16]);
    assert_eq!(guest.command(0xf00d_000b), 0);
    assert_eq!(guest.read(0x5000, 16), scheme);
    guest.put(SHARED + 0x2c8, 0xffff_fff0);
    assert_eq!(guest.command(0xcafe_000e), 1, "not in memory");
}

/// Scheme 1 leaves it to the device, as level 8 does.
#[test]
fn it_may_be_left_to_the_device_again() {
    let mut guest = Guest::with(Setup { auto_mask: false, ..Setup::default() });
    guest.write(0x5000, &[1u32, 0, 0, 0].map(u32::to_le_bytes).concat());
    guest.write(SHARED + 0x2c0, &[1u32, 16, 0x5000, 0].map(u32::to_le_bytes).concat());
    assert_eq!(guest.command(0xcafe_000e), 0);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    assert_eq!(guest.messages(0), 0, "they wait for company");
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.messages(0), 2, "told at once");
}

const IMR_OF_0: usize = 0;

fn masked(page: &Window) -> bool {
    page.u32(IMR_OF_0, Ordering::SeqCst) != 0
}

fn unmask(page: &Window) {
    page.set_u32(IMR_OF_0, 0, Ordering::SeqCst);
}

#[test]
fn a_store_unmasks_a_vector_at_the_next_look() {
    let (mut guest, page) = Guest::mapped();
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.messages(0), masked(&page), guest.is_masked(0)), (1, true, true));
    unmask(&page);
    assert!(!guest.is_masked(0));
    guest.pull();
    assert_eq!((guest.messages(0), masked(&page)), (1, false), "nothing new since");
    let pull = |guest: &mut Guest| assert!(guest.pull().is_empty());
    let arm = |guest: &mut Guest| assert!(!guest.chip.arm());
    for look in [pull as fn(&mut Guest), arm] {
        guest.host.sent.lock().unwrap().clear();
        guest.arrive_plain(&[&frame(MAC, 60)]);
        guest.arrive_plain(&[&frame(MAC, 60)]);
        look(&mut guest);
        assert_eq!((guest.messages(0), masked(&page)), (1, true));
        unmask(&page);
        assert_eq!(guest.messages(0), 1, "nobody was told");
        look(&mut guest);
        assert_eq!((guest.messages(0), masked(&page)), (2, true), "something new since");
        unmask(&page);
    }
}

/// A worker that has nothing to do looks ever more rarely, one of a limited port not at all.
#[test]
fn where_nobody_looks_at_the_masks_the_timer_does() {
    let (guest, page) = Guest::mapped();
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    unmask(&page);
    guest.sleep(1_000_000);
    assert_eq!(guest.messages(0), 2);
    // Masked for a second: that is no reason to wake up a thousand times.
    guest.arrive_plain(&[&frame(MAC, 60)]);
    let set = || guest.host.timers_set.load(Ordering::SeqCst);
    let before = set();
    for _ in 0..1_000 {
        guest.sleep(1_000_000);
    }
    assert!((60..70).contains(&(set() - before)), "{}", set() - before);
    unmask(&page);
    guest.sleep(16_000_000);
    assert_eq!(guest.messages(0), 3);
    unmask(&page);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    unmask(&page);
    guest.sleep(1_000_000_000);
    let rests = set();
    guest.sleep(1_000_000_000);
    assert_eq!((guest.messages(0), set()), (4, rests), "nothing waits");
}

#[test]
fn masks_in_memory_are_reset_and_handed_over() {
    let (mut guest, page) = Guest::mapped();
    guest.arrive_plain(&[&frame(MAC, 60)]);
    page.set_u32(8 * 7, u32::MAX, Ordering::SeqCst);
    let all = |page: &Window| {
        (0..25).filter(|n| page.u32(8 * n, Ordering::SeqCst) & 1 != 0).collect::<Vec<_>>()
    };
    assert_eq!(all(&page), [0, 7]);
    let state = guest.chip.save();
    assert_eq!(page.u32(8 * 7, Ordering::SeqCst), u32::MAX, "saving stores nothing");
    let (successor, next) = Guest::cold_mapped();
    drop(successor.chip.set_map(guest.map.clone()));
    assert_eq!(successor.chip.restore(&state), Ok(()));
    assert_eq!(all(&next), [0, 7]);
    guest.command(RESET);
    assert_eq!(all(&page).len(), 25);
    guest.pull();
}

/// Whoever serves the port looks by itself, and no doorbell would be heard.
#[test]
fn where_no_doorbell_is_heard_none_is_wished_for() {
    let (mut guest, _page) = Guest::mapped();
    guest.send(0, &frame(MAC, 60));
    assert!(guest.chip.arm(), "there is something");
    guest.pull();
    assert_eq!(guest.threshold(0), u32::MAX);
    assert!(!guest.chip.arm());
    assert_eq!((guest.threshold(0), *guest.host.timer.lock().unwrap()), (u32::MAX, None));
    guest.send(0, &frame(MAC, 60));
    assert!(guest.chip.arm());
}

/// Each time anew after an interrupt of the pin, though nobody hears the guest unmask the vector.
#[test]
fn with_the_pin_completions_wait_each_time() {
    let (mut guest, page) = Guest::cold_mapped();
    guest.start(Setup { level: 8, vectors: false, ..Setup::default() });
    guest.config_write(0x9e, &[0x18, 0]);
    for n in 1..4 {
        guest.send(0, &frame(MAC, 60));
        guest.pull();
        assert_eq!(guest.host.raises(), n - 1);
        guest.sleep(TOGETHER);
        assert_eq!((guest.host.raises(), guest.get(1, ICR)), (n, 1));
        unmask(&page);
    }
}
