mod fake;

use super::cursors::Cursors;
use super::*;
use fake::{Fake, Random, frame};
use vmlan_driver::nic::Receive;
use vmlan_transport::sys;

const RX: Interest = Interest { rx: true, tx: false };
const BOTH: Interest = Interest { rx: true, tx: true };
const NONE: Interest = Interest { rx: false, tx: false };

/// Can the port's descriptor be read, as a program finds with poll(2)?
fn readable(port: &Port<Fake>) -> bool {
    sys::poll_readable(&[port.as_fd()], Some(Duration::ZERO)).unwrap() == 1
}

fn port(fake: Fake) -> Port<Fake> {
    Port::new(fake).unwrap()
}

#[test]
fn cursors_count_as_a_row_of_places_does() {
    for slots in [2, 3, 4, 7] {
        for (start, owned) in (0..slots).flat_map(|s| (0..slots).map(move |o| (s, o))) {
            let mut at = Cursors::new(slots);
            // Gone round to `start`.
            for _ in 0..start {
                at.set_owned(1);
                at.set_head(at.tail);
                at.sync();
            }
            at.set_owned(owned);
            assert_eq!((at.owned(), at.space(), at.given()), (owned, owned, 0));
            assert_eq!(at.tail, (start + owned) % slots);
            for (cur, head) in (0..=owned).flat_map(|c| (0..=owned).map(move |h| (c, h))) {
                let mut at = at;
                at.set_cur((start + cur) % slots);
                at.set_head((start + head) % slots);
                assert_eq!((at.given(), at.owned()), (head, owned - head));
                assert_eq!(at.space(), owned - head.max(cur), "head takes cur along");
                if head < owned {
                    let (mut step, mut set) = (at, at);
                    step.step();
                    set.set_head((start + head + 1) % slots);
                    assert_eq!(step, set);
                }
                for n in head..owned {
                    assert_eq!(at.place((start + n) % slots), n);
                }
                at.sync();
                at.set_owned(slots);
                assert_eq!((at.given(), at.owned()), (0, slots - 1), "one is the device's");
            }
        }
    }
}

#[test]
fn the_largest_ring_does_not_overflow() {
    let mut at = Cursors::new(32_769);
    for step in [32_768, 32_768, 1, 32_767, 12_345] {
        at.set_owned(u16::MAX);
        assert_eq!(at.owned(), 32_768);
        let to = at.ahead(at.head, step);
        assert_eq!(u32::from(to), (u32::from(at.head) + u32::from(step)) % 32_769);
        at.set_head(to);
        assert_eq!((at.given(), at.owned()), (step, 32_768 - step));
        at.sync();
    }
}

#[test]
fn what_is_beyond_tail_is_not_the_programs() {
    let caught = |work: fn(&mut Port<Fake>)| {
        let mut port = port(Fake::new(4, 4));
        port.device.deliver(&frame(1));
        port.rxsync().unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut port))).is_err()
    };
    assert!(!caught(|port| _ = port.rx(0).slot(0).len()));
    assert!(caught(|port| _ = port.rx(0).slot(1).len()), "no frame");
    assert!(caught(|port| port.rx(0).set_head(2)), "beyond tail");
    assert!(caught(|port| port.rx(0).set_cur(3)), "beyond tail");
    assert!(caught(|port| port.rx(0).set_head(99)), "no position");
    assert!(!caught(|port| port.tx(0).slot(2).write(0, &[1])));
    assert!(caught(|port| port.tx(0).slot(3).write(0, &[1])), "the one that stays free");
    assert!(caught(|port| port.tx(0).set_head(1)), "never filled");
}

/// The program and the device do whatever comes to their minds; every frame is sent once, in order,
/// as it was.
#[test]
fn frames_leave_in_order_whatever_program_and_device_do() {
    for seed in 0..60 {
        let mut random = Random(seed + 1);
        let slots = u16::try_from(random.below(7)).unwrap() + 1;
        let mut port = port(Fake::new(slots, 1));
        port.device.shuffles = seed % 2 == 1;
        let (mut filled, mut expected) = (0, Vec::new());
        for _ in 0..400 {
            match random.below(4) {
                0 => fill_backwards(&mut port, &mut random, &mut filled, &mut expected),
                1 => {
                    if port.tx(0).push(&frame(filled)).is_ok() {
                        expected.push(frame(filled));
                        filled += 1;
                    }
                }
                2 => port.device.finish(random.below(4), &mut random),
                _ => {
                    let before = port.tx(0).space();
                    port.txsync().unwrap();
                    assert!(port.tx(0).space() >= before, "a sync takes no slot away");
                    assert_eq!(port.device.wire, expected, "seed {seed}");
                }
            }
            let tx = port.tx(0);
            assert!(tx.space() < tx.slots());
        }
        assert!(filled > 15, "seed {seed}: {filled}");
    }
}

/// Fills some of the free slots, the last one first, and gives them away.
fn fill_backwards(
    port: &mut Port<Fake>,
    random: &mut Random,
    filled: &mut usize,
    expected: &mut Vec<Vec<u8>>,
) {
    let mut tx = port.tx(0);
    let count = random.below(usize::from(tx.space()) + 1);
    let mut places = vec![tx.head()];
    (0..count).for_each(|_| places.push(tx.next(*places.last().unwrap())));
    for n in (0..count).rev() {
        tx.slot(places[n]).put(&frame(*filled + n)).unwrap();
    }
    if random.below(2) == 0 {
        tx.set_cur(places[count]);
        assert_eq!(usize::from(tx.cur()), usize::from(places[count]));
    }
    tx.set_head(places[count]);
    expected.extend((0..count).map(|n| frame(*filled + n)));
    *filled += count;
}

/// The program looks at any frame it has, in any order, and keeps some across syncs.
#[test]
fn frames_arrive_in_order_whatever_is_kept() {
    for seed in 0..60 {
        let mut random = Random(seed + 1);
        let mut port = port(Fake::new(1, u16::try_from(random.below(7)).unwrap() + 1));
        let (mut sent, mut taken) = (0, 0);
        for _ in 0..400 {
            match random.below(4) {
                0 => {
                    port.device.deliver(&frame(sent));
                    sent += 1;
                }
                1 => {
                    if let Some(bytes) = port.rx(0).pop() {
                        assert_eq!(*bytes, frame(taken), "seed {seed}");
                        taken += 1;
                    }
                }
                2 => taken += look_and_keep(&mut port, &mut random, taken),
                _ => {
                    let (tail, had) = (port.rx(0).tail(), port.rx(0).space());
                    port.rxsync().unwrap();
                    let rx = port.rx(0);
                    assert!(rx.space() >= had && rx.space() < rx.slots(), "from {tail}");
                }
            }
        }
        while taken < sent {
            port.rxsync().unwrap();
            while let Some(bytes) = port.rx(0).pop() {
                assert_eq!(*bytes, frame(taken));
                taken += 1;
            }
        }
        assert!(taken > 50 && port.device.posted(0) < port.rx(0).slots());
    }
}

fn look_and_keep(port: &mut Port<Fake>, random: &mut Random, first: usize) -> usize {
    let mut rx = port.rx(0);
    let owned = usize::from(rx.at.owned());
    let mut places = vec![rx.head()];
    (0..owned).for_each(|_| places.push(rx.next(*places.last().unwrap())));
    for n in (0..owned).rev() {
        let mut head = [0; 20];
        let whole = frame(first + n);
        assert_eq!(rx.slot(places[n]).len(), whole.len());
        assert_eq!(rx.slot(places[n]).read(&mut head), 20);
        assert_eq!((&head[..], &*rx.slot(places[n]).bytes()), (&whole[..20], &whole[..]));
    }
    rx.set_cur(places[owned]);
    let count = random.below(owned + 1);
    rx.set_head(places[count]);
    assert_eq!(rx.space(), 0, "cur stays at tail");
    count
}

#[test]
fn a_slot_refuses_what_is_no_frame_for_it() {
    let mut port = port(Fake::new(2, 1));
    let mut tx = port.tx(0);
    assert_eq!(tx.push(&[0; 13]), Err(Refused::TooShort(13)));
    let room = fake::ROOM;
    assert_eq!(tx.push(&[0; fake::ROOM + 1]), Err(Refused::TooLong { len: room + 1, room }));
    assert_eq!(tx.push(&[7; fake::ROOM]), Ok(()));
    assert_eq!(tx.push(&[7; 60]), Err(Refused::Full), "the other one stays free");
    assert!(tx.is_pending() && tx.is_empty());
    port.txsync().unwrap();
    assert_eq!(port.device.wire, [vec![7; room]]);
}

#[test]
fn a_slot_keeps_its_frame() {
    let mut port = port(Fake::new(4, 1));
    for n in 0..3 {
        port.tx(0).push(&frame(n)).unwrap();
    }
    let mut expected: Vec<_> = (0..3).map(frame).collect();
    port.txsync().unwrap();
    port.device.finish(9, &mut Random(1));
    port.txsync().unwrap();
    port.tx(0).push(&frame(3)).unwrap();
    port.tx(0).set_head(2);
    port.txsync().unwrap();
    expected.extend([frame(3), frame(0), frame(1)]);
    assert_eq!(port.device.wire, expected);
}

#[test]
fn the_descriptor_sleeps_only_while_armed() {
    let mut port = port(Fake::new(4, 4));
    assert!(readable(&port), "not armed: no sleep");
    assert!(port.arm(RX).unwrap());
    assert!(!readable(&port));
    port.device.deliver(&frame(0));
    assert!(readable(&port), "an interrupt");
    port.rxsync().unwrap();
    assert!(!port.device.armed && port.device.interrupts() == 0, "both are taken back");
    assert!(!port.arm(RX).unwrap() && readable(&port), "a frame is there");
    assert_eq!(port.rx(0).pop().unwrap(), frame(0));
    assert!(port.arm(RX).unwrap() && !readable(&port));
    // Armed again without a sync between, as when another descriptor woke the program.
    assert!(port.arm(BOTH).is_ok_and(|sleeps| !sleeps), "there is room to send");
    assert!(readable(&port) && !port.device.armed);
}

#[test]
fn a_frame_that_comes_while_arming_is_not_missed() {
    let mut port = port(Fake::new(4, 4));
    port.device.at_next_arm = Some(frame(5));
    assert!(!port.arm(RX).unwrap(), "the second look finds it");
    assert!(readable(&port));
    assert_eq!(port.rx(0).pop().unwrap(), frame(5), "and it is in the ring already");
    // One that did not care for the answer, or never armed, is woken all the same.
    port.device.at_next_arm = Some(frame(6));
    let _ = port.arm(RX);
    assert!(readable(&port));
}

#[test]
fn waiting_for_room_sends_first() {
    let mut port = port(Fake::new(3, 4));
    let room = Interest { rx: false, tx: true };
    while port.tx(0).push(&frame(1)).is_ok() {}
    assert!(!port.arm(room).unwrap(), "the one that stays free is another one now");
    assert_eq!(port.device.wire.len(), 2);
    port.tx(0).push(&frame(1)).unwrap();
    assert!(port.arm(room).unwrap());
    assert_eq!(port.device.wire.len(), 3);
    port.device.finish(1, &mut Random(1));
    assert!(readable(&port));
    port.txsync().unwrap();
    assert_eq!(port.tx(0).space(), 1);
    // What was filled leaves even if the program waits for something else.
    port.tx(0).push(&frame(2)).unwrap();
    assert!(port.arm(RX).unwrap());
    assert_eq!(port.device.wire.len(), 4);
}

#[test]
fn the_drivers_own_time_wakes_too() {
    let mut port = port(Fake::new(3, 4));
    port.device.limit = Duration::from_millis(300);
    assert!(port.arm(NONE).unwrap() && !readable(&port));
    let woken = sys::poll_readable(&[port.as_fd()], Some(Duration::from_secs(5))).unwrap();
    assert_eq!(woken, 1);
    port.device.limit = Duration::MAX;
    assert!(port.arm(NONE).unwrap() && !readable(&port), "once");
}

#[test]
fn a_ring_without_a_slot_left_does_not_wish_for_frames() {
    let mut port = port(Fake::new(3, 2));
    (0..3).for_each(|n| port.device.deliver(&frame(n)));
    port.rxsync().unwrap();
    let tail = port.rx(0).tail();
    port.rx(0).set_cur(tail);
    assert!(port.arm(RX).unwrap(), "nothing can come before head moves");
    assert!(!readable(&port));
    port.rx(0).set_head(tail);
    assert!(!port.arm(RX).unwrap());
}

#[test]
fn frames_left_behind_come_before_the_news() {
    let mut port = port(Fake::new(3, 4));
    port.device.deliver(&frame(0));
    port.device.hang_up();
    assert!(port.poll(RX, Duration::from_secs(5)).unwrap().rx);
    assert_eq!(port.rx(0).pop().unwrap(), frame(0));
    assert!(matches!(port.poll(RX, Duration::from_secs(5)), Err(NetmapError::Gone)));
    assert!(matches!(port.arm(RX), Err(NetmapError::Gone)));
    assert!(readable(&port), "whoever sleeps on it is told");
    port.tx(0).push(&frame(3)).unwrap();
    let descriptor = port.as_raw_fd();
    port.reconnect(Duration::ZERO).unwrap();
    assert_eq!((port.as_raw_fd(), port.tx(0).space()), (descriptor, 2));
    assert!(port.arm(RX).unwrap() && !readable(&port));
    port.device.deliver(&frame(1));
    assert!(readable(&port));
    assert!(port.poll(RX, Duration::ZERO).unwrap().rx);
    assert_eq!(port.rx(0).pop().unwrap(), frame(1));
}

#[test]
fn polling_waits_no_longer_than_asked() {
    let mut port = port(Fake::new(3, 4));
    let start = Instant::now();
    let ready = port.poll(RX, Duration::from_millis(20)).unwrap();
    assert_eq!(ready, Ready { rx: false, tx: false });
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(port.poll(BOTH, Duration::from_secs(5)).unwrap().tx, "there is room");
}
