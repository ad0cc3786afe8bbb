//! The guest's ways to leave it less often, alone and in all combinations that are allowed: send
//! combining, lazy completion, polling and adaptive receivers, CSB. Every frame arrives, once, in
//! order, unchanged; sleepers wake.

use std::time::Duration;

use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::chip::Offload;
use vmlan_driver::e1000::registers::Register;
use vmlan_driver::wait::Interest;
use vmlan_tests::chip_guest::E1000Guest;
use vmlan_tests::exchange::{TestGuest, exchange, exchange_known, one_way};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, STALL, Sizes, frame, mac};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::address::VfioUser;
use vmlan_transport::{AddressError, Bus, Wake};

const SHORT: Sizes = Sizes { least: 60, most: 60 };
const ALL: Sizes = Sizes { least: 14, most: 1514 };
const RX: Interest = Interest { rx: true, tx: false };
const BOTH: Interest = Interest { rx: true, tx: true };

/// Each option's values; the first is the default.
const OPTIONS: [&[&str]; 6] = [
    &["", ",csb"],
    &["", ",combine"],
    &["", ",completion=lazy"],
    &["", ",receive=poll", ",receive=adaptive"],
    &["", ",interrupts=idle"],
    &["", ",batch"],
];

/// All combinations: those that are allowed, and how many are not.
fn combinations() -> (Vec<String>, usize) {
    let mut all = vec![String::new()];
    for values in OPTIONS {
        let with = |keys: &String| values.iter().map(|v| format!("{keys}{v}")).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
    }
    let count = all.len();
    all.retain(|keys| match format!("vfio-user:/a{keys}").parse::<VfioUser>() {
        Ok(_) => true,
        Err(AddressError::Conflict(_)) => false,
        Err(other) => panic!("{keys}: {other}"),
    });
    let refused = count - all.len();
    (all, refused)
}

/// A port that offers CSB.
fn add(lan: &mut Lan, name: &str) -> std::path::PathBuf {
    lan.add_e1000(name, |config| config.csb = true)
}

/// Trips to the chip, and the interrupts and doorbells that they are for.
fn costs<B: Bus>(guest: &E1000Guest<B>) -> (u64, u64, u64) {
    let counts = guest.nic.registers().counts();
    let trips = counts.iter().map(|c| c.reads + c.writes).sum();
    let doorbells = guest.nic.tx_stats().doorbells + guest.nic.rx_stats().doorbells;
    (trips, guest.nic.interrupt_stats().sent, doorbells)
}

#[test]
fn all_combinations_carry_all_frames() {
    let (all, refused) = combinations();
    assert!(all.len() > 20 && refused > 20, "{} allowed, {refused} refused", all.len());
    for (n, of_a) in all.iter().enumerate() {
        // Each meets another one, with rings of another size; some are moderated.
        let of_b = format!("{},size=32", all[(n * 7 + 3) % all.len()]);
        let of_a = format!("{of_a},size=64{}", if n % 3 == 0 { ",itr=200" } else { "" });
        let mut lan = Lan::new(1, FULL_WAIT);
        let mut a = E1000Guest::in_process(&mut lan, "a", 1, false, &of_a);
        let mut b = E1000Guest::in_process(&mut lan, "b", 2, false, &of_b);
        println!("{of_a} and {of_b}");
        exchange(&mut a, &mut b, 200, SHORT);
        exchange_known(&mut a, &mut b, 200, ALL);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0), "{of_a} and {of_b}");
    }
}

/// One of each technique, and what goes well with it.
const WAYS: [&str; 8] = [
    ",csb",
    ",csb,size=8",
    ",csb,receive=poll,irq=msi,size=64",
    ",csb,writes=posted,segment=200,size=128,itr=200",
    ",combine,itr=200",
    ",combine,combine_frames=3,combine_us=20,writes=posted,size=32",
    ",completion=lazy,receive=adaptive,size=64",
    ",completion=lazy,receive=poll,batch",
];

#[test]
fn every_length_over_a_socket() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b, at_c) = (add(&mut lan, "a"), add(&mut lan, "b"), lan.add("c", 1));
    for (n, of_a) in WAYS.iter().enumerate() {
        let mut a = E1000Guest::connect(&at_a, 1, of_a);
        let mut b = E1000Guest::connect(&at_b, 2, WAYS[(n * 3 + 1) % WAYS.len()]);
        exchange(&mut a, &mut b, ALL.all(), ALL);
        let mut c = VirtioGuest::connect(&at_c, 3, ",size=64");
        c.expect_padding();
        exchange(&mut a, &mut c, ALL.all(), ALL);
    }
    assert_eq!((lan.drops("a"), lan.drops("b"), lan.drops("c")), (0, 0, 0));
}

#[test]
fn with_csb_every_access_is_a_kick_or_an_interrupt() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let mut a = E1000Guest::in_process(&mut lan, "a", 1, false, ",csb");
    let mut b = E1000Guest::in_process(&mut lan, "b", 2, false, ",csb");
    exchange(&mut a, &mut b, 10, SHORT);
    let before = [costs(&a), costs(&b)];
    for _ in 0..10 {
        exchange_known(&mut a, &mut b, 2000, SHORT);
    }
    for (guest, before) in [&a, &b].into_iter().zip(before) {
        let (trips, interrupts, doorbells) = costs(guest);
        let trips = trips - before.0;
        assert_eq!(trips, interrupts - before.1 + doorbells - before.2);
        // How many those are depends on who sleeps when: told, not judged.
        println!("{trips} register accesses for 20,000 frames each way");
    }
    assert!(a.nic.tx_stats().doorbells_saved > 0);
}

#[test]
fn a_guest_with_csb_works_with_a_chip_that_has_none_as_any_other() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add_e1000_with("a", Doorbell::Trapped), add(&mut lan, "b"));
    let address: VfioUser = format!("vfio-user:{},csb", at_a.display()).parse().unwrap();
    let ram = vmlan_driver::nic::make_ram(&address.driver).unwrap();
    let bus = vmlan_transport::vfio_user::VfioBus::connect(&address, &ram, STALL).unwrap();
    let error = vmlan_driver::e1000::E1000::new(address.driver, &ram, bus).unwrap_err();
    assert!(error.to_string().contains("offers no CSB"), "{error}");
    let mut a = E1000Guest::connect(&at_a, 1, "");
    let mut b = E1000Guest::connect(&at_b, 2, "");
    exchange(&mut a, &mut b, 300, ALL);
}

/// Answers with the same number, until `count` frames came; sleeps in between.
fn answer<B: Bus>(guest: &mut E1000Guest<B>, to: u8, count: u64) {
    let mut done = 0;
    while done < count {
        let now = guest.receive_next(guest.id(), ALL);
        done += now;
        let sent = guest.send_next(to, done, ALL);
        if now + sent == 0 {
            let wake = guest.wait(RX, STALL);
            assert_eq!(wake, Wake::Ready, "guest {}: {done} of {count}", guest.id());
        }
    }
    // A doorbell that is put off is rung by whoever waits, and here nobody would any more.
    let mut progress = Progress::default();
    while guest.nic.under_way() > 0 {
        guest.wait(BOTH, Duration::from_millis(1));
        guest.nic.reap();
        progress.note(0, || format!("{} are under way", guest.nic.under_way()));
    }
}

/// One frame at a time, there and back, each end asleep until it comes.
fn ping_pong<A: Bus + Send, B: Bus + Send>(
    a: &mut E1000Guest<A>,
    b: &mut E1000Guest<B>,
    count: u64,
) {
    exchange(a, b, 1, ALL);
    a.start_over();
    b.start_over();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| answer(b, 1, count));
        for n in 0..count {
            while a.send_next(2, n + 1, ALL) == 0 {
                a.wait(BOTH, Duration::from_millis(10));
            }
            while a.receive_next(1, ALL) == 0 {
                assert_eq!(a.wait(RX, STALL), Wake::Ready, "frame {n}");
            }
            if n % 64 == 0 {
                // Both ends, and the worker, fall asleep.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        echo.join().expect("the other end");
    });
    a.assert_sound();
    b.assert_sound();
}

#[test]
fn sleepers_wake_thousands_of_times() {
    for keys in [",csb", ",csb,irq=msi,size=8", ",combine,combine_us=50", ",receive=adaptive"] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (at_a, at_b) = (add(&mut lan, "a"), add(&mut lan, "b"));
        let mut a = E1000Guest::connect(&at_a, 1, keys);
        let mut b = E1000Guest::connect(&at_b, 2, keys);
        ping_pong(&mut a, &mut b, 1500);
        println!("{keys}: {:?} {:?}", costs(&a), costs(&b));
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
    let mut lan = Lan::new(2, FULL_WAIT);
    let mut a = E1000Guest::in_process(&mut lan, "a", 1, false, ",csb,size=8");
    let mut b = E1000Guest::in_process(&mut lan, "b", 2, false, ",csb,size=8");
    ping_pong(&mut a, &mut b, 3000);
}

/// Bursts that fill the ring, with both ends going to sleep as soon as they can: the sender for
/// slots, the receiver for frames. A receiver that sleeps now and then fills its ring, so that the
/// switch waits for room.
#[test]
fn sleepers_for_room_wake_too() {
    for (of_a, of_b) in [(",csb,size=16", ",csb,size=8"), (",csb,size=256", ",csb,size=64")] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let mut a = E1000Guest::in_process(&mut lan, "a", 1, false, of_a);
        let mut b = E1000Guest::in_process(&mut lan, "b", 2, false, of_b);
        exchange(&mut a, &mut b, 1, SHORT);
        a.start_over();
        b.start_over();
        let count = 20_000;
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                while sent < count {
                    sent += a.send_next(2, count, SHORT);
                    if sent < count && a.nic.free_slots() == 0 && a.nic.reap() == 0 {
                        let interest = Interest { rx: false, tx: true };
                        assert_eq!(a.wait(interest, STALL), Wake::Ready, "{sent} sent");
                    }
                }
            });
            let mut got = 0;
            while got < count {
                let now = b.receive_next(2, SHORT);
                got += now;
                if now == 0 {
                    assert_eq!(b.wait(RX, STALL), Wake::Ready, "{got} received");
                } else if got % 512 < now {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
            sender.join().expect("the sender");
        });
        a.assert_sound();
        b.assert_sound();
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

#[test]
fn csb_is_turned_off_and_on_in_mid_traffic() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add(&mut lan, "a"), add(&mut lan, "b"));
    for keys in [",csb,size=32", ",csb,size=8,writes=posted,irq=msi", ",csb,receive=poll"] {
        let mut a = E1000Guest::connect(&at_a, 1, keys);
        let mut b = E1000Guest::connect(&at_b, 2, keys);
        exchange(&mut a, &mut b, 10, ALL);
        a.start_over();
        b.start_over();
        let (mut got, mut progress) = ([0, 0], Progress::default());
        let (count, mut turn) = (3000, 0_u64);
        while got != [count; 2] {
            let quota = (turn * 5).min(count);
            let sent = a.send_next(2, quota, ALL) + b.send_next(1, quota, ALL);
            match turn % 7 {
                0 | 3 => a.nic.set_csb(turn % 2 == 0),
                2 | 5 => b.nic.set_csb(turn % 3 == 0),
                _ => {}
            }
            let now = [a.receive_next(1, ALL), b.receive_next(2, ALL)];
            got = [got[0] + now[0], got[1] + now[1]];
            turn += 1;
            let moved = sent + now[0] + now[1] + u64::from(quota < count);
            progress.note(moved, || format!("{keys}: {got:?} of {count}, turn {turn}"));
        }
        a.assert_sound();
        b.assert_sound();
    }
    assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
}

#[test]
fn a_driver_with_csb_starts_anew_in_mid_traffic() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add(&mut lan, "a"), add(&mut lan, "b"));
    let mut b = E1000Guest::connect(&at_b, 2, ",csb,size=64");
    for round in 0..20 {
        let keys = [",csb,size=64", "", ",csb,size=8", ",combine"][round % 4];
        let mut a = E1000Guest::connect(&at_a, 1, keys);
        exchange(&mut a, &mut b, 60, ALL);
        // It goes with frames under way, both ways.
        a.start_over();
        b.start_over();
        a.send_next(2, 40 + round as u64, ALL);
        b.send_next(1, 40, ALL);
        drop(a);
        lan.wait_gone("a");
        while b.receive_next(2, ALL) > 0 {}
    }
    let (trips, ..) = costs(&b);
    assert!(trips > 0 && b.nic.is_csb_on());
    assert_eq!(b.nic.registers().counts()[Register::TDT as usize].mapped, 0);
}

#[test]
fn polling_receivers_take_no_interrupts() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add(&mut lan, "a"), add(&mut lan, "b"));
    for keys in [",receive=poll,completion=lazy", ",csb,receive=poll"] {
        let mut a = E1000Guest::connect(&at_a, 1, keys);
        let mut b = E1000Guest::connect(&at_b, 2, keys);
        one_way(&mut a, &mut b, ALL.all(), ALL);
        one_way(&mut b, &mut a, ALL.all(), ALL);
        let sent = [&a, &b].map(|guest| guest.nic.interrupt_stats().sent);
        assert_eq!(sent, [0, 0], "{keys}");
        // Asleep, too.
        let hello = frame(mac(2, 0), mac(1, 0), 0, 60);
        assert!(a.send(Offload::default(), &hello));
        a.flush();
        assert_eq!(b.wait(RX, STALL), Wake::Ready);
        let mut came = 0;
        b.receive(|_, bytes| came += u64::from(bytes == hello));
        assert_eq!((came, b.nic.interrupt_stats().sent), (1, 0), "{keys}");
    }
}
