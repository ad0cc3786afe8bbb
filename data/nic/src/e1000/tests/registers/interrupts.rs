//! Interrupt registers and moderation.

use proptest::prelude::*;

use super::super::super::cause;
use super::*;
use crate::chip::Host;

const RXT0: u32 = cause::RXT0;
const TXDW: u32 = cause::TXDW;
const LSC: u32 = cause::LSC;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.start();
    bench.write(IMS, 0x1_ffff);
    bench
}

/// A cause comes and the driver serves it, as often as `n` says, `gap` ns apart. Returns the
/// interrupts it got.
fn traffic(bench: &Bench, causes: u32, n: u32, gap: u64) -> u32 {
    let before = bench.host.raises();
    for _ in 0..n {
        bench.post_transmit(causes, true);
        if bench.chip.is_asserted() {
            bench.read(ICR);
        }
        bench.sleep(gap);
        if bench.chip.is_asserted() {
            bench.read(ICR);
        }
    }
    bench.host.raises() - before
}

/// The successor of a chip that has died: its driver is to look at the cable.
#[test]
fn a_driver_is_told_that_its_chip_has_died() {
    let bench = Bench::new();
    bench.start();
    bench.chip.renew();
    bench.chip.lost(bench.chip.memo());
    assert!(!bench.chip.is_asserted(), "all is masked");
    assert_eq!(bench.read(ICR) & LSC, LSC);
}

#[test]
fn icr_latches_whatever_the_mask_says_and_reading_clears_it() {
    let bench = Bench::new();
    bench.start();
    bench.write(ICS, RXT0 | TXDW);
    assert!(!bench.chip.is_asserted());
    assert_eq!(bench.read(ICR), RXT0 | TXDW);
    assert_eq!(bench.read(ICR), 0);
}

#[test]
fn icr_clears_what_is_written_as_1() {
    let bench = bench();
    bench.write(ICS, RXT0 | TXDW);
    bench.write(ICR, RXT0);
    assert!(bench.chip.is_asserted());
    bench.write(ICR, TXDW);
    assert!(!bench.chip.is_asserted());
    assert_eq!(bench.read(ICR), 0);
}

#[test]
fn ims_sets_and_imc_clears() {
    let bench = Bench::new();
    bench.write(IMS, RXT0);
    bench.write(IMS, TXDW);
    assert_eq!(bench.read(IMS), RXT0 | TXDW);
    bench.write(IMC, RXT0);
    assert_eq!(bench.read(IMS), TXDW);
    bench.write(IMC, u32::MAX);
    assert_eq!(bench.read(IMS), 0);
}

#[test]
fn unmasking_a_pending_cause_raises_and_masking_lowers() {
    let bench = Bench::new();
    bench.start();
    bench.write(ICS, RXT0);
    bench.write(IMS, RXT0);
    assert!(bench.chip.is_asserted());
    assert_eq!(bench.host.raises(), 1);
    bench.write(IMC, RXT0);
    assert!(!bench.chip.is_asserted());
    bench.write(IMS, RXT0);
    assert_eq!(bench.host.raises(), 2);
}

/// What `ethtool -t` does to each of the ten lowest bits (Linux, e1000_intr_test).
#[test]
fn the_interrupt_test_of_the_linux_driver_passes() {
    for rate in [0, 8000] {
        let bench = Bench::with_rate(rate);
        bench.start();
        let handle = || if bench.chip.is_asserted() { bench.read(ICR) } else { 0 };
        let wait = || {
            (0..3).fold(handle(), |seen, _| {
                bench.sleep(10_000_000);
                seen | handle()
            })
        };
        for mask in (0..10).map(|i| 1u32 << i) {
            bench.write(IMC, mask);
            bench.write(ICS, mask);
            assert_eq!(wait() & mask, 0, "masked {mask:#x}");
            bench.write(IMS, mask);
            bench.write(ICS, mask);
            assert_ne!(wait() & mask, 0, "enabled {mask:#x}");
            bench.write(IMC, !mask & 0x7fff);
            bench.write(ICS, !mask & 0x7fff);
            assert_eq!(wait(), 0, "others than {mask:#x}");
        }
    }
}

#[test]
fn the_first_interrupt_is_delivered_at_once_and_the_next_after_itr() {
    let bench = bench();
    bench.write(ITR, 1000); // 256 us
    bench.post(RXT0);
    assert_eq!(bench.host.raises(), 1);
    bench.read(ICR);
    bench.post(RXT0);
    assert!(!bench.chip.is_asserted(), "held back");
    assert_eq!(bench.read(ICR), RXT0, "but latched");
    bench.post(RXT0);
    assert_eq!(bench.timer(), Some(256_000));
    bench.sleep(255_999);
    assert!(!bench.chip.is_asserted());
    bench.sleep(1);
    assert!(bench.chip.is_asserted());
    let device = bench.chip.device();
    assert_eq!((device.raised, device.held, device.delivered), (3, 2, 2));
}

#[test]
fn link_changes_are_never_held() {
    let bench = bench();
    bench.write(ITR, 0xffff);
    bench.post(RXT0);
    bench.read(ICR);
    bench.post(RXT0);
    assert!(!bench.chip.is_asserted());
    bench.chip.set_link(false);
    assert!(bench.chip.is_asserted());
    assert_eq!(bench.read(ICR), LSC | RXT0);
}

#[test]
fn the_hosts_floor_holds_whatever_the_guest_asks() {
    let bench = Bench::with_rate(1000);
    bench.start();
    bench.write(IMS, 0x1_ffff);
    // 100 ms of a cause each 10 us.
    let n = traffic(&bench, RXT0, 10_000, 10_000);
    assert!((99..=102).contains(&n), "{n}");
    bench.write(ITR, 0);
    assert!(traffic(&bench, RXT0, 10_000, 10_000) <= 102);
}

#[test]
fn receive_windows_need_rdtr() {
    let bench = bench();
    bench.write(RADV, 100);
    assert_eq!(traffic(&bench, RXT0, 100, 1000), 100, "RDTR is 0");
    bench.write(RDTR, 200);
    // The shorter of the two: 102.4 us.
    let n = traffic(&bench, RXT0, 1024, 1000);
    assert!((9..=12).contains(&n), "{n}");
    assert_eq!(traffic(&bench, cause::RXO, 10, 1000), 10, "an overrun is not a reception");
}

#[test]
fn transmit_windows_need_ide() {
    let bench = bench();
    bench.write(TIDV, 100);
    bench.write(TADV, 400);
    let n = traffic(&bench, TXDW, 1024, 1000);
    assert!((9..=12).contains(&n), "{n}");
    bench.post_transmit(TXDW, true);
    bench.read(ICR);
    bench.post_transmit(TXDW, true);
    assert!(!bench.chip.is_asserted());
    bench.post_transmit(TXDW, false);
    assert!(bench.chip.is_asserted(), "one descriptor without IDE");
    // Windows of one direction do not hold the other.
    bench.read(ICR);
    bench.post(RXT0);
    assert!(bench.chip.is_asserted());
}

#[test]
fn a_shortened_window_lets_go_at_once() {
    for register in [ITR, TIDV] {
        let bench = bench();
        bench.write(register, 0xffff);
        bench.post_transmit(TXDW, true);
        bench.read(ICR);
        bench.sleep(1_000_000);
        bench.post_transmit(TXDW, true);
        assert!(!bench.chip.is_asserted());
        bench.write(register, 10);
        assert!(bench.chip.is_asserted(), "{register:#x}");
    }
}

#[test]
fn a_store_to_the_mapped_page_is_seen_at_the_next_look() {
    let bench = bench();
    bench.write(TIDV, 0xffff);
    bench.post_transmit(TXDW, true);
    bench.read(ICR);
    bench.post_transmit(TXDW, true);
    bench.chip.regs.set(TIDV, 0x5a5a_0000);
    bench.sleep(1000);
    assert!(!bench.chip.is_asserted(), "nobody has looked");
    bench.post(cause::RXO);
    assert!(bench.chip.is_asserted());
}

#[test]
fn a_lengthened_window_sets_the_timer_again() {
    let bench = bench();
    bench.write(ITR, 100);
    bench.post(RXT0);
    bench.read(ICR);
    bench.post(RXT0);
    assert_eq!(bench.timer(), Some(25_600));
    bench.write(ITR, 200);
    bench.sleep(25_600);
    assert!(!bench.chip.is_asserted());
    assert_eq!(bench.timer(), Some(51_200));
    bench.sleep(25_600);
    assert!(bench.chip.is_asserted());
}

#[test]
fn fpd_ends_a_window() {
    for (register, causes) in [(RDTR, RXT0), (TIDV, TXDW)] {
        let bench = bench();
        bench.write(register, 0xffff);
        bench.post_transmit(causes, true);
        bench.read(ICR);
        bench.post_transmit(causes, true);
        assert!(!bench.chip.is_asserted());
        bench.write(register, 0x8000_ffff);
        assert!(bench.chip.is_asserted());
        assert_eq!(bench.read(register), 0xffff, "FPD clears itself");
    }
}

#[test]
fn an_early_timer_is_set_again_and_a_late_one_is_harmless() {
    let bench = bench();
    bench.write(ITR, 100);
    bench.post(RXT0);
    bench.read(ICR);
    bench.post(RXT0);
    for _ in 0..3 {
        *bench.host.timer.lock().unwrap() = None;
        bench.chip.timer();
        assert_eq!(bench.timer(), Some(25_600));
    }
    bench.read(ICR);
    bench.sleep(1_000_000);
    assert!(!bench.chip.is_asserted(), "the cause was read in the meantime");
    assert_eq!(bench.timer(), None, "an idle chip wakes nobody");
}

#[test]
fn without_moderation_no_timer_is_ever_set() {
    let bench = bench();
    assert_eq!(traffic(&bench, RXT0, 1000, 100), 1000);
    assert_eq!(bench.host.timers_set.load(Ordering::Relaxed), 0);
    let device = bench.chip.device();
    assert_eq!((device.raised, device.held, device.delivered), (1000, 0, 1000));
}

/// One timer for each interrupt at most, however many causes come.
#[test]
fn a_storm_of_causes_is_no_storm_of_timers() {
    let bench = bench();
    bench.write(ITR, 4000); // 1.024 ms
    let interrupts = traffic(&bench, RXT0, 100_000, 100);
    let timers = bench.host.timers_set.load(Ordering::Relaxed);
    assert!(timers <= interrupts + 1, "{timers} timers for {interrupts} interrupts");
}

#[test]
fn a_mask_storm_raises_no_more_than_the_floor_allows() {
    let bench = Bench::with_rate(1000);
    bench.start();
    bench.post(RXT0);
    let before = bench.host.raises();
    for _ in 0..10_000 {
        bench.write(IMC, u32::MAX);
        bench.write(IMS, RXT0);
        bench.sleep(1000);
    }
    // 10 ms.
    let n = bench.host.raises() - before;
    assert!((10..=11).contains(&n), "{n}");
    assert!(bench.host.timers_set.load(Ordering::Relaxed) <= 25);
}

#[test]
fn reset_forgets_causes_mask_and_windows() {
    let bench = bench();
    bench.write(ITR, 0xffff);
    bench.post(RXT0);
    bench.write(CTRL, bit::CTRL_RST);
    assert!(!bench.chip.is_asserted());
    assert_eq!((bench.read(ICR), bench.read(IMS), bench.read(ITR)), (0, 0, 0));
    bench.write(IMS, RXT0);
    bench.post(RXT0);
    assert!(bench.chip.is_asserted());
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32),
    Read,
    Post(u32, bool),
    Sleep(u64),
    Early,
}

fn step() -> impl Strategy<Value = Step> {
    let register = prop::sample::select(vec![ICR, ICS, IMS, IMC, ITR, RDTR, RADV, TIDV, TADV]);
    prop_oneof![
        (register, any::<u32>()).prop_map(|(r, v)| Step::Write(r, v)),
        Just(Step::Read),
        (any::<u32>(), any::<bool>()).prop_map(|(c, d)| Step::Post(c & 0xff, d)),
        (0u64..100_000_000).prop_map(Step::Sleep),
        Just(Step::Early),
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
        let bench = Bench::with_rate(rate);
        bench.start();
        for step in steps {
            match step {
                Step::Write(register, value) => bench.write(register, value),
                Step::Read => { bench.read(ICR); }
                Step::Post(causes, delayed) => bench.post_transmit(causes, delayed),
                Step::Sleep(ns) => bench.sleep(ns),
                Step::Early => {
                    *bench.host.timer.lock().unwrap() = None;
                    bench.chip.timer();
                }
            }
            let pending = bench.chip.core.irq.pending();
            prop_assert!(!bench.chip.is_asserted() || pending, "asserted for nothing");
            if pending && !bench.chip.is_asserted() {
                let now = bench.host.now();
                let at = bench.timer();
                let set = at.is_some_and(|at| at <= now + 1_000_000_000);
                prop_assert!(set, "held, and no timer: {at:?}");
            }
        }
    }
}

#[test]
fn repeats_of_a_standing_level_keep_to_the_hosts_floor() {
    let bench = Bench::with_rate(1000);
    bench.start();
    bench.write(IMS, 0x1_ffff);
    bench.write(ICS, RXT0);
    // A guest that ends interrupts and never looks at ICR, for 10 ms.
    for _ in 0..10_000 {
        bench.chip.reassert();
        bench.sleep(1000);
    }
    let raises = bench.host.raises();
    assert!((10..=12).contains(&raises), "{raises} in 10 ms at 1,000/s");
    // Without a floor each end is answered.
    let free = Bench::with_rate(0);
    free.start();
    free.write(IMS, 0x1_ffff);
    free.write(ICS, RXT0);
    (0..5).for_each(|_| free.chip.reassert());
    assert_eq!(free.host.raises(), 6);
}

#[test]
fn a_repeat_that_waits_is_forgotten_when_the_cause_goes() {
    let bench = Bench::with_rate(1000);
    bench.start();
    bench.write(IMS, 0x1_ffff);
    bench.write(ICS, RXT0);
    bench.chip.reassert();
    assert_ne!(bench.read(ICR), 0);
    bench.sleep(10_000_000);
    assert_eq!(bench.host.raises(), 1);
}

#[test]
fn a_flood_of_link_changes_keeps_to_the_floor_and_a_single_one_is_never_held() {
    let bench = Bench::with_rate(1000);
    bench.start();
    bench.write(IMS, 0x1_ffff);
    bench.write(ICS, RXT0);
    bench.read(ICR);
    bench.write(ICS, LSC);
    assert!(bench.chip.is_asserted(), "held by another kind's window");
    let before = bench.host.raises();
    for _ in 0..10_000 {
        bench.read(ICR);
        bench.write(ICS, LSC);
        bench.sleep(1000);
    }
    let raises = bench.host.raises() - before;
    assert!((9..=11).contains(&raises), "{raises} in 10 ms at 1,000/s");
}
