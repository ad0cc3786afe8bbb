//! IMR, ISR, IntrMitigate.

use proptest::prelude::*;

use super::guest::*;

/// The MSI capability.
const MSI: u64 = 0x50;

#[test]
fn isr_is_read_without_effect_and_cleared_by_ones() {
    let guest = Guest::new();
    guest.set8(TPPOLL, 1);
    guest.chip.set_link(false);
    assert_eq!((guest.isr(), guest.isr(), guest.host.raises()), (LINK | SWINT, LINK | SWINT, 0));
    guest.set16(ISR, SWINT | TOK);
    assert_eq!(guest.isr(), LINK);
    // Byte by byte.
    guest.set8(TPPOLL, 1);
    guest.set8(ISR + 1, 0xff);
    assert_eq!(guest.isr(), LINK);
    guest.set8(ISR, 0xff);
    assert_eq!(guest.isr(), 0);
}

/// The successor of a chip that has died. Who sees it is the embedder's to say: all is masked.
#[test]
fn a_driver_is_told_that_its_chip_has_died() {
    let guest = Guest::new();
    guest.chip.renew();
    guest.chip.lost(guest.chip.memo());
    assert_eq!((guest.isr(), guest.host.raises()), (SERR, 0));
    guest.set16(ISR, SERR);
    assert_eq!(guest.isr(), 0);
}

#[test]
fn imr_lets_causes_out() {
    let guest = Guest::new();
    guest.set8(TPPOLL, 1);
    guest.set16(IMR, LINK);
    assert!(!guest.chip.is_asserted());
    guest.set16(IMR, LINK | SWINT);
    assert!(guest.chip.is_asserted());
    guest.set8(IMR + 1, 0);
    assert_eq!((guest.get(IMR, 2), guest.chip.is_asserted()), (LINK, false));
    // Both in one access, in order: mask, then clear.
    guest.set32(IMR, (SWINT) << 16 | SWINT);
    assert_eq!((guest.isr(), guest.host.raises()), (0, 2));
}

#[test]
fn frames_are_reported() {
    let mut guest = Guest::new();
    guest.set16(IMR, 0xffff);
    guest.send(0, &frame([2; 6], 60));
    guest.pull();
    assert_eq!((guest.isr(), guest.host.raises()), (TOK | TDU, 1));
    guest.set16(ISR, 0xffff);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.isr(), guest.host.raises()), (ROK, 2));
    guest.set16(ISR, 0xffff);
    let frames = vec![frame(MAC, 60); 64];
    let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let n = guest.arrive_plain(&all);
    guest.arrive_plain(&all[n..]);
    assert_eq!(guest.isr(), ROK | RDU, "the ring is used up");
    guest.set16(ISR, 0xffff);
    guest.chip.counters().output.drop(vmlan_frame::Reason::ReceiverFull, 1);
    guest.arrive_plain(&all[..1]);
    assert_eq!(guest.isr(), RDU | FOVW, "and a frame was lost");
}

/// A driver's acknowledgement that was long on its way (posted writes): a frame that came meanwhile
/// is still reported. But a driver that never reads ISR is believed before long, or it would be
/// interrupted for ever.
#[test]
fn what_was_posted_since_isr_was_read_is_not_acknowledged() {
    let guest = Guest::new();
    guest.set16(IMR, ROK | TOK);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.isr(), ROK);
    guest.set16(IMR, 0);
    // The driver has looked at its ring by now; its write of ISR is still in the socket.
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.set16(ISR, ROK);
    guest.set16(IMR, ROK | TOK);
    assert_eq!((guest.host.raises(), guest.isr()), (2, ROK));
    guest.set16(ISR, ROK);
    assert_eq!((guest.isr(), guest.chip.is_asserted()), (0, false));
    // One that polls again and again, and acknowledges each time without looking (8139cp): two are
    // under way.
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.set16(ISR, ROK);
    guest.set16(ISR, ROK);
    assert_eq!((guest.isr(), guest.chip.is_asserted()), (ROK, true));
    guest.set16(ISR, ROK);
    // One that never looks is believed in the end.
    guest.arrive_plain(&[&frame(MAC, 60)]);
    let refused = (0..100).take_while(|_| {
        guest.set16(ISR, ROK);
        guest.chip.is_asserted()
    });
    assert_eq!(refused.count(), 64);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.set16(ISR, ROK);
    assert!(!guest.chip.is_asserted());
    // What is not about frames is cleared at once.
    guest.set8(TPPOLL, 1);
    guest.set16(ISR, SWINT);
    assert_eq!(guest.isr(), 0);
}

/// A guest that resets the chip after each interrupt has no more of them than any other.
#[test]
fn a_reset_does_not_shorten_the_hosts_floor() {
    let guest = Guest::cold(100, false);
    for _ in 0..100 {
        guest.set8(CR, 0x10);
        guest.set16(IMR, SWINT);
        guest.set8(TPPOLL, 1);
    }
    assert_eq!(guest.host.raises(), 1);
    guest.sleep(10_000_000);
    assert_eq!(guest.host.raises(), 2);
}

/// A message is for what was pending when it was sent: what an acknowledgement leaves is worth
/// another.
#[test]
fn with_messages_what_is_left_is_told_again() {
    let mut guest = Guest::new();
    guest.config_write(MSI + 2, &[1]);
    guest.set16(IMR, ROK | TOK);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.host.raises(), guest.isr()), (1, ROK));
    guest.send(0, &frame([2; 6], 60));
    guest.pull();
    assert_eq!(guest.host.raises(), 1);
    guest.set16(ISR, ROK);
    assert_eq!(guest.host.raises(), 2);
    assert_eq!(guest.isr() & (ROK | TOK), TOK);
    guest.set16(ISR, TOK | TDU);
    assert_eq!((guest.host.raises(), guest.isr()), (2, 0));
}

/// A cause comes and the driver serves it, `n` times, `gap` ns apart. Returns the interrupts it
/// got.
fn traffic(guest: &mut Guest, receive: bool, n: u32, gap: u64) -> u32 {
    let before = guest.host.raises();
    let packet = frame(MAC, 60);
    for _ in 0..n {
        if receive {
            guest.arrive_plain(&[&packet]);
            guest.take();
        } else {
            guest.send(0, &packet);
            guest.pull();
        }
        for gap in [0, gap] {
            guest.sleep(gap);
            if guest.chip.is_asserted() {
                guest.set16(ISR, guest.isr());
            }
        }
    }
    guest.host.raises() - before
}

/// 15:12 and 7:4: timers; their unit by C+CR 1:0 and speed.
#[test]
fn mitigation_timers() {
    for receive in [false, true] {
        let mut guest = Guest::new();
        guest.set16(IMR, ROK | TOK);
        assert_eq!(traffic(&mut guest, receive, 100, 1000), 100, "none is set");
        assert_eq!(guest.host.timers_set.load(std::sync::atomic::Ordering::Relaxed), 0);
        // 10 units of 10.24 us.
        guest.set16(CPCR, 0xb);
        guest.set16(INTMIT, if receive { 0x00a0 } else { 0xa000 });
        let n = traffic(&mut guest, receive, 1024, 1000);
        assert!((9..=12).contains(&n), "{n} in 1.024 ms");
        assert_eq!(traffic(&mut guest, !receive, 10, 1000), 10, "the other direction");
        // 320 ns.
        guest.set16(CPCR, 8);
        assert!(traffic(&mut guest, receive, 100, 3200) >= 99);
        // At 100 Mbit/s: 25.6 us.
        guest.set_phy(9, 0);
        guest.set_phy(4, 0x181);
        guest.set16(ISR, guest.isr());
        let n = traffic(&mut guest, receive, 256, 1000);
        assert!((9..=12).contains(&n), "{n} in 256 us");
    }
}

/// 11:8 and 3:0: frames, by fours.
#[test]
fn mitigation_frames() {
    for receive in [false, true] {
        let mut guest = Guest::new();
        guest.set16(IMR, ROK | TOK);
        guest.set16(CPCR, 0xb);
        // 153 us, or 8 frames.
        guest.set16(INTMIT, if receive { 0x00f2 } else { 0xf200 });
        let n = traffic(&mut guest, receive, 1024, 10);
        assert!((1024 / 9..=1024 / 7).contains(&n), "{n} for 1024 frames");
        guest.set16(INTMIT, if receive { 0x00f0 } else { 0xf000 });
        assert!(traffic(&mut guest, receive, 1024, 10) <= 2);
    }
}

#[test]
fn a_shortened_window_lets_go_at_once() {
    let mut guest = Guest::new();
    guest.set16(IMR, ROK);
    guest.set16(CPCR, 0xb);
    guest.set16(INTMIT, 0x00f0);
    traffic(&mut guest, true, 1, 0);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    guest.sleep(50_000);
    assert!(!guest.chip.is_asserted());
    guest.set16(INTMIT, 0x0010);
    assert!(guest.chip.is_asserted());
}

#[test]
fn the_hosts_floor_holds_whatever_the_guest_asks() {
    let mut guest = Guest::cold(1000, false);
    guest.start();
    guest.set16(IMR, 0xffff);
    let n = traffic(&mut guest, true, 10_000, 1000);
    assert!((10..=12).contains(&n), "{n} in 10 ms at 1,000/s");
    // Its timer does not get round it.
    let before = guest.host.raises();
    for _ in 0..1000 {
        guest.set32(TIMERINT, 1);
        guest.set32(TCTR, 0);
        guest.sleep(10_000);
        guest.set16(ISR, guest.isr());
    }
    assert!((9..=12).contains(&(guest.host.raises() - before)));
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u16),
    Arrive,
    Send,
    Sleep(u64),
    Early,
}

fn step() -> impl Strategy<Value = Step> {
    let register = prop::sample::select(vec![IMR, ISR, INTMIT, CPCR, TPPOLL, TIMERINT, TCTR]);
    prop_oneof![
        3 => (register, any::<u16>()).prop_map(|(r, v)| Step::Write(r, v)),
        2 => Just(Step::Arrive),
        2 => Just(Step::Send),
        2 => (0u64..100_000_000).prop_map(Step::Sleep),
        1 => Just(Step::Early),
    ]
}

proptest! {
    /// Whatever happens: a pending enabled cause is delivered, or the timer is set for a time
    /// within the longest window.
    #[test]
    fn no_interrupt_is_ever_lost(
        steps in prop::collection::vec(step(), 1..60),
        rate in 0u32..20_000,
    ) {
        let mut guest = Guest::cold(rate, false);
        guest.start();
        for step in steps {
            match step {
                Step::Write(register, value) => guest.set16(register, value.into()),
                Step::Arrive => {
                    guest.arrive_plain(&[&frame(MAC, 60)]);
                    guest.take();
                }
                Step::Send => {
                    guest.send(0, &frame([2; 6], 60));
                    guest.pull();
                }
                Step::Sleep(ns) => guest.sleep(ns),
                Step::Early => {
                    *guest.host.timer.lock().unwrap() = None;
                    guest.chip.timer();
                }
            }
            let pending = guest.isr() & guest.get(IMR, 2) != 0;
            prop_assert!(!guest.chip.is_asserted() || pending, "asserted for nothing");
            if pending && !guest.chip.is_asserted() {
                let now = guest.host.clock.load(std::sync::atomic::Ordering::Relaxed);
                let at = *guest.host.timer.lock().unwrap();
                let set = at.is_some_and(|at| at <= now + 1_000_000_000);
                prop_assert!(set, "held, and no timer: {at:?}");
            }
        }
    }
}
