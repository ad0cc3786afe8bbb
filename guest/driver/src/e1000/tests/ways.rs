//! Send combining, lazy completion, polling, CSB: what they cost in register accesses, and that
//! nothing waits for ever.

use super::fake::word;
use super::*;
use crate::chip::{Completion, Prepared, Reception};
use vmlan_transport::Conflict;

const BOTH: Interest = Interest { rx: true, tx: true };
const TX: Interest = Interest { rx: false, tx: true };
const LONG: Duration = Duration::from_secs(1);

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Register accesses so far.
fn trips(nic: &E1000<Fake>) -> u64 {
    nic.registers().counts().iter().map(|access| access.reads + access.writes).sum()
}

fn writes(nic: &E1000<Fake>, register: Register) -> u64 {
    accesses(nic, register).1
}

fn start_csb(options: Options) -> E1000<Fake> {
    let options = Options { csb: true, ..options };
    let ram = crate::nic::make_ram(&options).unwrap();
    let mut fake = Fake::new(&ram);
    fake.offer_csb();
    E1000::new(options, &ram, fake).unwrap()
}

/// Both sides look by themselves.
fn awake(options: Options) -> E1000<Fake> {
    let mut nic = start_csb(options);
    chip(&mut nic).share(word::HOST_NEED_TXKICK, 0);
    nic
}

/// Sends `count` frames as one burst; the chip's answer.
fn burst(nic: &mut E1000<Fake>, count: usize) -> usize {
    for n in 0..count {
        send(nic, &frame(60 + n));
    }
    nic.flush();
    chip(nic).waiting()
}

#[test]
fn the_block_is_handed_over_as_the_protocol_says() {
    let nic = start_csb(small());
    let fake = nic.registers().bus();
    let expected = [
        (word::GUEST_TDT, 0),
        (word::GUEST_NEED_TXKICK, 0),
        (word::GUEST_NEED_RXKICK, 0),
        (word::GUEST_CSB_ON, 1),
        (word::GUEST_RDT, 7),
        (0x14, u32::MAX),
        (0x18, 0),
        (word::HOST_TDH, u32::MAX),
        (word::HOST_NEED_TXKICK, 1),
        (0x48, 1),
        (word::HOST_RXKICK_AT, u32::MAX),
        (0x60, 0),
        (0x64, 0),
        (0x68, 0),
    ];
    for (word, value) in expected {
        assert_eq!(fake.shared(word), value, "{word:#x}");
    }
    assert_eq!(fake.get(Register::CSBAL) % 4096, 0);
    assert_eq!(fake.get(Register::IMS), cause::CSB);
}

#[test]
fn a_chip_without_a_block_is_refused_with_what_to_do() {
    let options = Options { csb: true, ..small() };
    let ram = crate::nic::make_ram(&options).unwrap();
    let error = E1000::new(options, &ram, Fake::new(&ram)).unwrap_err();
    assert!(matches!(error, ChipError::NoCsb { found: 0 }));
    assert!(error.to_string().contains("csb=on to the switch's port"), "{error}");
    let both = Options { csb: true, combine: true, ..small() };
    let error = E1000::new(both, &ram, Fake::new(&ram)).unwrap_err();
    assert!(matches!(error, ChipError::Options(Conflict::CombineCsb)), "{error}");
}

#[test]
fn with_both_sides_awake_csb_takes_no_register_access() {
    let mut nic = awake(small());
    let mut batch = nic.batch();
    let before = trips(&nic);
    for lap in 0..100_usize {
        let count = 1 + lap % 7;
        assert_eq!(burst(&mut nic, count), count, "published");
        assert_eq!(chip(&mut nic).transmit().len(), count);
        assert_eq!(nic.reap(), 7, "by the chip's index");
        for n in 0..count {
            chip(&mut nic).receive(&frame(60 + n));
        }
        assert!(nic.ready());
        let lens: Vec<_> = take(&mut nic, &mut batch, 9).iter().map(Vec::len).collect();
        assert_eq!(lens, (60..60 + count).collect::<Vec<_>>());
        nic.release(&mut batch);
        assert_eq!(nic.outstanding(), 7);
        assert_eq!(nic.poll(&mut batch, 9), 0);
    }
    assert_eq!(trips(&nic) - before, 0);
    assert_eq!(nic.interrupt_stats(), InterruptStats::default());
    assert!(nic.is_sound());
}

#[test]
fn frames_of_several_descriptors_come_back_by_the_index() {
    let mut nic = awake(Options { size: 32, segment: 100, room: 400, ..small() });
    for lap in 0..50_usize {
        let lens = [60 + lap, 100, 101, 399];
        for len in lens {
            send(&mut nic, &frame(len));
        }
        nic.flush();
        // A part of the last frame is no frame.
        let all = chip(&mut nic).waiting();
        assert_eq!(chip(&mut nic).transmit_some(all - 1).len(), 3);
        nic.reap();
        assert_eq!(nic.under_way(), 1);
        assert_eq!(chip(&mut nic).transmit().len(), 1);
        nic.reap();
        assert_eq!(nic.under_way(), 0);
    }
    assert!(nic.is_sound());
}

#[test]
fn heads_that_cannot_be_are_counted_and_free_nothing() {
    let mut nic = awake(small());
    burst(&mut nic, 3);
    for lie in [4, 7, 8, 4096, u32::MAX - 1] {
        chip(&mut nic).share(word::HOST_TDH, lie);
        nic.reap();
        assert_eq!(nic.under_way(), 3, "{lie}");
    }
    assert!(!nic.is_sound());
}

#[test]
fn a_chip_that_sleeps_is_kicked() {
    let mut nic = awake(small());
    for (wish, kicks) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        chip(&mut nic).share(word::HOST_NEED_TXKICK, wish);
        let before = trips(&nic);
        burst(&mut nic, 3);
        assert_eq!(trips(&nic) - before, kicks, "host_need_txkick = {wish}");
        chip(&mut nic).transmit();
        nic.reap();
    }
    assert_eq!((nic.tx_stats().doorbells, nic.tx_stats().doorbells_saved), (2, 2));
}

#[test]
fn a_chip_that_waits_for_buffers_is_kicked_when_they_are_there() {
    let mut nic = awake(small());
    let mut batch = nic.batch();
    // After four frames RDT goes from 7 over 0, 1 and 2 to 3.
    for (at, kicks) in [(7, 0), (0, 1), (2, 1), (3, 1), (4, 0), (u32::MAX, 0)] {
        nic.restart_for_test();
        for _ in 0..4 {
            chip(&mut nic).receive(&frame(60));
        }
        assert_eq!(take(&mut nic, &mut batch, 9).len(), 4);
        chip(&mut nic).share(word::HOST_RXKICK_AT, at);
        let before = (trips(&nic), writes(&nic, Register::RDT));
        nic.release(&mut batch);
        let after = (trips(&nic), writes(&nic, Register::RDT));
        assert_eq!((after.0 - before.0, after.1 - before.1), (kicks, kicks), "{at}");
    }
}

#[test]
fn a_driver_with_csb_is_interrupted_only_while_it_sleeps() {
    let mut nic = awake(small());
    let mut batch = nic.batch();
    for lap in 0..20 {
        assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Timeout, "lap {lap}");
        let wishes = [word::GUEST_NEED_RXKICK, word::GUEST_NEED_TXKICK];
        assert_eq!(wishes.map(|word| chip(&mut nic).shared(word)), [0, 0], "taken back");
        assert!(matches!(nic.prepare_wait(BOTH).unwrap(), Prepared::Sleep(Duration::MAX)));
        assert_eq!(wishes.map(|word| chip(&mut nic).shared(word)), [1, 1]);
        let before = trips(&nic);
        chip(&mut nic).receive(&frame(60));
        assert_eq!(nic.finish_wait(true, false).unwrap(), Wake::Ready);
        assert_eq!(trips(&nic) - before, 1, "ICR, and that is all");
        assert_eq!(take(&mut nic, &mut batch, 9), [frame(60)]);
        nic.release(&mut batch);
    }
    assert_eq!(nic.interrupt_stats(), InterruptStats { sent: 20, ..Default::default() });
    // There is something already.
    chip(&mut nic).receive(&frame(61));
    assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Ready);
    burst(&mut nic, 2);
    assert_eq!(nic.wait(TX, QUIET).unwrap(), Wake::Timeout);
    chip(&mut nic).transmit();
    assert_eq!(nic.wait(TX, LONG).unwrap(), Wake::Ready);
    assert_eq!(nic.interrupt_stats().missed, 0);
}

#[test]
fn a_chip_that_forgets_to_interrupt_a_sleeper_is_found_out() {
    let mut nic = awake(small());
    chip(&mut nic).deaf = true;
    chip(&mut nic).at_next_wait = Some(frame(60));
    let wake = nic.wait(RX, QUIET).unwrap();
    assert_eq!((wake, nic.interrupt_stats().missed), (Wake::Ready, 1));
}

#[test]
fn csb_goes_off_and_on_in_mid_traffic() {
    let mut nic = awake(Options { size: 64, ..small() });
    let mut batch = nic.batch();
    for lap in 0..40_usize {
        nic.set_csb(lap % 2 == 1);
        nic.set_csb(lap % 2 == 1);
        let fake = chip(&mut nic);
        assert_eq!(fake.shared(word::GUEST_CSB_ON) == 1, lap % 2 == 1);
        assert_eq!(fake.shared(word::GUEST_TDT), fake.get(Register::TDT));
        // Under way, received and not yet seen, while it changes.
        assert_eq!(burst(&mut nic, 5 + lap % 3), 5 + lap % 3, "lap {lap}");
        chip(&mut nic).receive(&frame(60 + lap));
        nic.set_csb(lap % 2 == 0);
        assert_eq!(chip(&mut nic).transmit().len(), 5 + lap % 3);
        (0..200).for_each(|_| _ = nic.reap());
        assert_eq!(nic.under_way(), 0, "lap {lap}");
        assert_eq!(take(&mut nic, &mut batch, 9), [frame(60 + lap)]);
        nic.release(&mut batch);
        assert!(!nic.ready());
        chip(&mut nic).share(word::HOST_NEED_TXKICK, 0);
    }
    assert_eq!(nic.interrupt_stats().missed, 0);
    assert!(nic.is_sound());
}

/// The chip takes the later of register and word as the tail, modulo the ring's size: what is old
/// looks late. So the registers must be current, and settled, before the block goes off.
#[test]
fn an_old_kick_does_not_outlive_the_block() {
    let mut nic = awake(Options { size: 8, ..small() });
    let mut batch = nic.batch();
    for lap in 0..20 {
        nic.set_csb(true);
        assert_eq!(burst(&mut nic, 3), 3);
        chip(&mut nic).receive(&frame(60 + lap));
        assert_eq!(take(&mut nic, &mut batch, 9).len(), 1);
        nic.release(&mut batch);
        let words = [word::GUEST_TDT, word::GUEST_RDT].map(|word| chip(&mut nic).shared(word));
        chip(&mut nic).set(Register::TDT, (words[0] + 7) % 8);
        chip(&mut nic).set(Register::RDT, (words[1] + 7) % 8);
        nic.set_csb(false);
        assert_eq!(chip(&mut nic).settled, words, "lap {lap}");
        assert_eq!(chip(&mut nic).transmit().len(), 3);
        (0..200).for_each(|_| _ = nic.reap());
    }
}

#[test]
fn another_chip_finds_a_fresh_block_and_the_last_one_loses_it() {
    let mut nic = awake(small());
    burst(&mut nic, 3);
    nic.restart_for_test();
    assert_eq!(chip(&mut nic).shared(word::GUEST_TDT), 0);
    assert_eq!(chip(&mut nic).shared(word::GUEST_RDT), 7);
    assert_eq!(chip(&mut nic).shared(word::HOST_NEED_TXKICK), 1);
    nic.release_csb();
    assert!(!nic.is_csb_on());
    assert_eq!(chip(&mut nic).get(Register::CSBAL), 0);
    assert_eq!(chip(&mut nic).get(Register::CSBAH), 0);
}

impl E1000<Fake> {
    /// As [`E1000::restart`], with a new chip that offers the block.
    fn restart_for_test(&mut self) {
        let mut fake = self.registers().bus().another();
        fake.offer_csb();
        self.restart(fake).unwrap();
    }
}

fn combining(frames: u16, us: u16) -> E1000<Fake> {
    let (combine_frames, combine_us) = (frames, us);
    start(Options { size: 64, combine: true, combine_frames, combine_us, ..small() })
}

#[test]
fn combining_writes_tdt_once_for_each_completion_interrupt() {
    let mut nic = combining(100, 1000);
    let before = writes(&nic, Register::TDT);
    send(&mut nic, &frame(60));
    nic.flush();
    assert_eq!(chip(&mut nic).waiting(), 1, "nothing is under way: at once");
    for lap in 1..50_u64 {
        let count = 1 + usize::try_from(lap).unwrap() % 9;
        // The interrupt of the last write stands; the driver sees it where it comes by next.
        assert_eq!(writes(&nic, Register::TDT) - before, lap);
        for n in 0..count {
            send(&mut nic, &frame(60 + n));
        }
        assert_eq!(writes(&nic, Register::TDT) - before, lap, "deferred");
        chip(&mut nic).transmit();
        nic.flush();
        nic.reap();
        assert_eq!(chip(&mut nic).waiting(), count, "flushed by the interrupt");
        assert_eq!(nic.interrupt_stats().sent, lap);
    }
    chip(&mut nic).transmit();
    assert!(!nic.ready());
    nic.reap();
    assert_eq!(nic.under_way(), 0);
    send(&mut nic, &frame(60));
    assert_eq!(chip(&mut nic).waiting(), 1, "nothing is under way again");
}

#[test]
fn combining_holds_back_so_many_frames() {
    let mut nic = combining(8, 1000);
    let before = writes(&nic, Register::TDT);
    for _ in 0..1 + 24 {
        send(&mut nic, &frame(60));
    }
    assert_eq!(writes(&nic, Register::TDT) - before, 1 + 3);
    assert_eq!(chip(&mut nic).waiting(), 25);
}

#[test]
fn combining_holds_back_so_long_even_while_the_caller_sleeps() {
    for (timeout, finished) in [(us(50), 1), (us(200), 2), (LONG, 2)] {
        let mut nic = combining(100, 200);
        send(&mut nic, &frame(60));
        send(&mut nic, &frame(61));
        nic.flush();
        assert_eq!(chip(&mut nic).waiting(), 1, "one is held back, and no interrupt comes");
        assert_eq!(nic.wait(RX, timeout).unwrap(), Wake::Timeout);
        let slept = chip(&mut nic).clock.get();
        assert_eq!(slept, timeout, "all of it, though it woke in between");
        assert_eq!(chip(&mut nic).waiting(), finished);
    }
    // A caller that sleeps by itself is told when to come back, and one that is busy sends as it
    // comes by.
    let mut nic = combining(100, 200);
    let mut batch = nic.batch();
    for what in 0..4 {
        send(&mut nic, &frame(60));
        send(&mut nic, &frame(61));
        let waiting = chip(&mut nic).waiting();
        let start = chip(&mut nic).clock.get();
        assert_eq!(nic.prepare_wait(RX).unwrap(), Prepared::Sleep(us(200)));
        chip(&mut nic).clock.set(start + us(199));
        assert_eq!(nic.prepare_wait(RX).unwrap(), Prepared::Sleep(us(1)));
        assert_eq!(chip(&mut nic).waiting(), waiting);
        chip(&mut nic).clock.set(start + us(200));
        match what {
            0 => drop(nic.finish_wait(false, false).unwrap()),
            1 => drop(nic.reap()),
            2 => drop(nic.poll(&mut batch, 1)),
            _ => drop(nic.prepare_wait(RX).unwrap()),
        }
        assert_eq!(chip(&mut nic).waiting(), waiting + if what == 0 { 1 } else { 2 });
    }
}

#[test]
fn lazy_completion_reports_now_and_then_and_never_interrupts() {
    let options = Options { size: 16, completion: Completion::Lazy, ..small() };
    let mut nic = start(Options { batch: true, ..options });
    assert_eq!(nic.slots(), 15);
    assert_eq!(chip(&mut nic).get(Register::IMS), cause::ALL & !cause::TXDW);
    for lap in 0..60 {
        assert_eq!(burst(&mut nic, 15), 15);
        let mut reported = |n| chip(&mut nic).descriptor(Register::TDBAL, n)[1] & command::RS != 0;
        let count = (0..16).filter(|n| reported(*n)).count();
        assert!((5..=6).contains(&count), "lap {lap}: {count} reports");
        assert_eq!(chip(&mut nic).transmit_some(7).len(), 7);
        assert!((3..=7).contains(&nic.reap()), "what is reported: {}", nic.free_slots());
        chip(&mut nic).transmit();
        assert_eq!(nic.reap(), 15, "the ring's last slot is always reported");
    }
    assert_eq!((nic.interrupt_stats().sent, accesses(&nic, Register::TDH).0), (0, 0));
    // Too few for a report: after a while the head is read, once.
    assert_eq!(burst(&mut nic, 2), 2);
    assert_eq!(nic.reap(), 13);
    chip(&mut nic).transmit();
    (0..100).for_each(|_| _ = nic.reap());
    assert_eq!((nic.free_slots(), accesses(&nic, Register::TDH).0), (15, 1));
    assert!(nic.is_sound());
}

#[test]
fn a_lazy_driver_sleeps_for_slots_all_the_same() {
    let mut nic = start(Options { size: 16, completion: Completion::Lazy, ..small() });
    burst(&mut nic, 15);
    assert!(matches!(nic.prepare_wait(TX).unwrap(), Prepared::Sleep(Duration::MAX)));
    chip(&mut nic).transmit();
    assert_eq!(nic.finish_wait(true, false).unwrap(), Wake::Ready);
    assert_eq!((nic.reap(), nic.interrupt_stats().sent), (15, 1));
    assert!(!nic.ready());
    assert_eq!(chip(&mut nic).get(Register::IMS), cause::ALL & !cause::TXDW, "and no more");
    // Without a report under way nobody would interrupt.
    burst(&mut nic, 1);
    assert!(matches!(nic.prepare_wait(TX).unwrap(), Prepared::Sleep(time) if time < QUIET));
    chip(&mut nic).transmit();
    assert_eq!(nic.wait(TX, LONG).unwrap(), Wake::Ready);
}

#[test]
fn a_polling_receiver_is_never_interrupted_by_frames() {
    let completion = Completion::Lazy;
    let mut nic = start(Options { receive: Reception::Poll, completion, ..small() });
    let mut batch = nic.batch();
    assert_eq!(chip(&mut nic).get(Register::IMS), cause::LSC);
    let before = trips(&nic);
    for lap in 0..30 {
        assert!(!nic.ready());
        assert_eq!(nic.wait(RX, us(700)).unwrap(), Wake::Timeout);
        assert_eq!(chip(&mut nic).waits(), 4 * (lap + 1), "ticks of 200 us");
        chip(&mut nic).receive(&frame(60));
        assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Ready);
        assert_eq!(take(&mut nic, &mut batch, 9), [frame(60)]);
        nic.release(&mut batch);
    }
    assert_eq!(trips(&nic) - before, 30, "RDT");
    assert_eq!(nic.interrupt_stats(), InterruptStats::default());
}

#[test]
fn a_polling_receiver_takes_the_interrupts_of_what_it_sends() {
    let mut nic = start(Options { receive: Reception::Poll, ..small() });
    for _ in 0..30 {
        burst(&mut nic, 2);
        chip(&mut nic).transmit();
        chip(&mut nic).receive(&frame(60));
        assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Ready);
        let mut batch = nic.batch();
        assert_eq!(take(&mut nic, &mut batch, 9).len(), 1);
        nic.release(&mut batch);
        assert!(!nic.ready());
        nic.reap();
    }
    assert_eq!(nic.free_slots(), 7);
    assert_eq!(nic.interrupt_stats().missed, 0);
}

#[test]
fn an_adaptive_receiver_polls_under_load_and_goes_back() {
    let mut nic = start(Options { size: 64, receive: Reception::Adaptive, ..small() });
    let mut batch = nic.batch();
    let mut receive = |nic: &mut E1000<Fake>, count: usize| {
        (0..count).for_each(|_| chip(nic).receive(&frame(60)));
        assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Ready);
        assert_eq!(take(nic, &mut batch, 99).len(), count);
        nic.release(&mut batch);
        assert!(!nic.ready());
        chip(nic).get(Register::IMS)
    };
    for _ in 0..5 {
        assert_eq!(receive(&mut nic, 3), cause::ALL, "a few frames: interrupts");
    }
    let light = nic.interrupt_stats().sent;
    assert_eq!(light, 5);
    assert_eq!(receive(&mut nic, 40), 0, "many: no interrupts any more");
    for _ in 0..20 {
        assert_eq!(receive(&mut nic, 2), 0);
        assert_eq!(nic.wait(RX, us(500)).unwrap(), Wake::Timeout, "a few ticks of silence");
    }
    assert_eq!(nic.interrupt_stats().sent, light + 1);
    assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Ready, "a cause of before stands in ICR");
    assert!(!nic.ready());
    assert_eq!(nic.wait(RX, LONG).unwrap(), Wake::Timeout);
    assert_eq!(chip(&mut nic).get(Register::IMS), cause::ALL, "silence: interrupts again");
    assert_eq!(receive(&mut nic, 3), cause::ALL);
    assert_eq!(nic.interrupt_stats().missed, 0);
}

#[test]
fn while_it_polls_an_adaptive_driver_flushes_what_it_combined() {
    let receive = Reception::Adaptive;
    let mut nic = start(Options { size: 64, receive, combine: true, ..small() });
    let mut batch = nic.batch();
    (0..40).for_each(|_| chip(&mut nic).receive(&frame(60)));
    assert_eq!(take(&mut nic, &mut batch, 99).len(), 40);
    nic.release(&mut batch);
    assert!(!nic.ready());
    assert_eq!(chip(&mut nic).get(Register::IMS), 0);
    for lap in 0..20 {
        assert_eq!(burst(&mut nic, 4), 1, "lap {lap}");
        chip(&mut nic).transmit();
        assert!(!nic.ready(), "a look at the rings");
        assert_eq!(chip(&mut nic).waiting(), 3);
        chip(&mut nic).transmit();
        assert!(!nic.ready());
        assert_eq!((chip(&mut nic).waiting(), nic.free_slots()), (0, 63));
    }
    assert_eq!(nic.interrupt_stats().sent, 1);
}
