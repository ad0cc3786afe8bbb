//! The driver of classic mode against a model of the chip.

use std::time::Duration;

use super::*;
use crate::chip::{Interrupts, Offload, Options};
use crate::realtek::tests::fake::{Fake, at};
use crate::realtek::tests::{chip, frame, log, options, send, take};
use crate::wait::{Interest, Wake};

const LONG: Duration = Duration::from_secs(1);

fn start(options: Options) -> Rtl8139Classic<Fake> {
    let ram = crate::nic::make_ram(&options).unwrap();
    let fake = Fake::new(&ram, Model::Rtl8139Classic);
    ChipDriver::new(options, &ram, fake).unwrap_or_else(|error| panic!("{error}"))
}

fn small() -> Options {
    Options { buffer: 8192, ..options(Model::Rtl8139Classic) }
}

#[test]
fn the_chip_is_started_with_addresses_it_can_reach() {
    let mut nic = start(Options { buffer: 32_768, ..small() });
    assert_eq!((nic.slots(), nic.room()), (4, 1792));
    let fake = chip(&mut nic);
    assert_eq!(fake.get(at::CR), 0xc);
    assert_eq!(fake.get(at::RCR) >> 11 & 3, 2, "32 KiB");
    assert_ne!(fake.get(at::RBSTART), 0);
    let addresses: Vec<_> = (0..4).map(|n| fake.get(at::TSAD + 4 * n)).collect();
    assert!(addresses.windows(2).all(|pair| pair[1] >= pair[0] + 1792), "{addresses:x?}");
    let far = Options { csb: true, ..small() };
    assert!(far.check().is_err());
}

/// Figure 11 of the KVM analysis: (2) W fire, (4) R status, (5) W ACK; and what it leaves out, the
/// read of TSD.
#[test]
fn a_frame_out_takes_the_accesses_of_the_analysis() {
    let mut nic = start(small());
    log(&mut nic);
    for n in 0..9_u32 {
        send(&mut nic, &frame(60));
        assert_eq!(chip(&mut nic).transmit_pairs(4), [frame(60)]);
        assert!(take(&mut nic).is_empty());
        assert_eq!(nic.reap(), 4);
        let tsd = at::TSD + 4 * (n % 4);
        let fire = format!("W {tsd:x}=8003c");
        assert_eq!(log(&mut nic), [fire, "R 3e".into(), "W 3e=4".into(), format!("R {tsd:x}")]);
    }
    // In bursts: one interrupt for all.
    for _ in 0..4 {
        send(&mut nic, &frame(60));
    }
    assert_eq!(nic.next(), None);
    assert_eq!(chip(&mut nic).transmit_pairs(4).len(), 4);
    assert_eq!(nic.reap(), 4, "which the driver looks for once it has no slot");
    assert_eq!(log(&mut nic).len(), 4 + 2 + 4);
    assert!(nic.is_sound());
}

/// (2) R status, (3) W disable; then (5) R interrupt, (6) while R not empty, (b) R interrupt, W
/// ACK; (7) W enable; and the W CAPR.
#[test]
fn a_frame_in_takes_the_accesses_of_the_analysis() {
    let mut nic = start(Options { size: 64, ..small() });
    log(&mut nic);
    chip(&mut nic).receive_classic(&frame(60));
    assert_eq!(take(&mut nic), [frame(60)]);
    assert!(take(&mut nic).is_empty());
    let sparse = ["R 3e", "W 3c=0", "R 3e", "R 37", "W 38=34", "R 3e", "W 3e=1", "R 37", "W 3c=7f"];
    assert_eq!(log(&mut nic), sparse);
    for _ in 0..40 {
        chip(&mut nic).receive_classic(&frame(60));
    }
    assert_eq!(take(&mut nic).len(), 40);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic).len(), 3 + 40 * 3 + 1 + 2, "R CR, W CAPR, R ISR");
}

#[test]
fn short_frames_are_padded_and_long_ones_refused() {
    let mut nic = start(small());
    send(&mut nic, &frame(1792));
    assert_eq!(chip(&mut nic).transmit_pairs(4), [frame(1792)]);
    for _ in 0..4 {
        send(&mut nic, &frame(14));
        let sent = chip(&mut nic).transmit_pairs(4);
        assert_eq!(sent, [[frame(14), vec![0; 46]].concat()]);
        nic.poll(&mut nic.batch(), 1);
        nic.reap();
    }
}

#[test]
fn frames_are_taken_round_the_buffer() {
    let mut nic = start(small());
    let mut all = 0;
    for lap in 0..2000_usize {
        let lens: Vec<_> = (0..1 + lap % 5).map(|n| 60 + (lap * 37 + n * 411) % 1454).collect();
        for len in &lens {
            chip(&mut nic).receive_classic(&frame(*len));
        }
        let frames = take(&mut nic);
        assert_eq!(frames, lens.iter().map(|len| frame(*len)).collect::<Vec<_>>(), "lap {lap}");
        all += lens.iter().sum::<usize>();
        assert!(take(&mut nic).is_empty());
    }
    assert!(all > 100 * 8192 && nic.is_sound());
}

#[test]
fn frames_wait_in_the_buffer_while_all_slots_are_held() {
    let mut nic = start(Options { size: 8, ..small() });
    for len in 60..70 {
        chip(&mut nic).receive_classic(&frame(len));
    }
    let mut batch = nic.batch();
    assert_eq!(nic.poll(&mut batch, 7), 7);
    assert_eq!(nic.outstanding(), 0);
    nic.release_first(&mut batch, 2);
    assert_eq!(nic.poll(&mut batch, 7), 7);
    let lens: Vec<_> = batch.frames().iter().map(|frame| frame.len).collect();
    assert_eq!(lens, (62..69).collect::<Vec<_>>());
    nic.release(&mut batch);
    assert_eq!(take(&mut nic), [frame(69)]);
}

#[test]
fn a_header_that_cannot_be_is_passed_over() {
    for (status, len) in [(0, 64), (1, 0xfff0), (1, 17), (1, 1793), (1, 0), (0xfffe, 64)] {
        let mut nic = start(small());
        chip(&mut nic).receive_raw(status, len, &frame(64));
        chip(&mut nic).receive_classic(&frame(70));
        assert!(take(&mut nic).is_empty(), "all is given back");
        assert_eq!(nic.rx_stats().malformed, 1);
        chip(&mut nic).receive_classic(&frame(80));
        let mut seen = take(&mut nic);
        seen.extend(take(&mut nic));
        assert_eq!(seen, [frame(80)], "{status:#x} {len}");
    }
}

#[test]
fn whatever_the_registers_say_nothing_is_read_outside() {
    let mut nic = start(small());
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..20_000 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let [a, b, c, d, e, f, ..] = dice.to_le_bytes();
        let base = usize::try_from(chip(&mut nic).get(at::RBSTART)).unwrap();
        let place = base + usize::from(u16::from_le_bytes([a, b])) % 8192;
        chip(&mut nic).poke(place & !3, &[a | 1, b, c, d & 7]);
        chip(&mut nic).set(at::CBR, u16::from_le_bytes([e, f]).into());
        chip(&mut nic).cause(1);
        take(&mut nic);
    }
}

#[test]
fn who_sleeps_is_woken_by_either_side() {
    for interrupts in [Interrupts::Always, Interrupts::Idle] {
        let mut nic = start(Options { interrupts, ..small() });
        let wait = |nic: &mut Rtl8139Classic<Fake>| {
            nic.wait(Interest { rx: true, tx: true }, LONG).unwrap()
        };
        assert_eq!(wait(&mut nic), Wake::Timeout);
        for _ in 0..4 {
            send(&mut nic, &frame(60));
        }
        assert_eq!(wait(&mut nic), Wake::Timeout);
        chip(&mut nic).transmit_pairs(1);
        assert_eq!(wait(&mut nic), Wake::Ready);
        assert_eq!(nic.reap(), 1, "{interrupts:?}");
        chip(&mut nic).receive_classic(&frame(60));
        assert_eq!(wait(&mut nic), Wake::Ready);
        assert_eq!(take(&mut nic).len(), 1);
    }
}

#[test]
#[should_panic = "nothing but send"]
fn it_has_no_offloads() {
    let mut nic = start(small());
    nic.set_offload(0, Offload { tcp: true, ..Offload::default() });
}
