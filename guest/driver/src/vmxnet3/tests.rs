//! The driver against a model of the device.

mod fake;

use std::time::Duration;

use super::*;
use crate::chip::{Interrupts, Offload, Options, Segmentation};
use crate::realtek::tests::{frame, send, take};
use crate::wait::{Interest, Wake};
use fake::{Fake, Says, at};

const RX: Interest = Interest { rx: true, tx: false };
const TX: Interest = Interest { rx: false, tx: true };

fn options() -> Options {
    Options { size: 32, ..Options::of(Model::Vmxnet3) }
}

fn start(options: Options) -> Vmxnet3<Fake> {
    let ram = crate::nic::make_ram(&options).unwrap();
    let fake = Fake::new(&ram);
    ChipDriver::new(options, &ram, fake).unwrap_or_else(|error| panic!("{error}"))
}

fn chip(nic: &mut Vmxnet3<Fake>) -> &mut Fake {
    nic.registers_mut().bus_mut()
}

fn log(nic: &mut Vmxnet3<Fake>) -> Vec<String> {
    std::mem::take(&mut chip(nic).log)
}

#[test]
fn the_shared_area_says_what_the_options_say() {
    let all = Options { mtu: 9000, promisc: true, checksum: true, size: 64, ..options() };
    let mut nic = start(all);
    assert_eq!(nic.mac(), fake::MAC);
    assert_eq!((nic.slots(), nic.outstanding()), (63, 63), "one descriptor stays ours");
    let fake = chip(&mut nic);
    assert_eq!((fake.get(at::VRRS), fake.get(at::UVRS)), (4, 1), "version 3");
    assert_eq!((fake.config(0x9e), fake.config(0x9f)), (24, 0x80), "MSI-X is on");
    let word = |at| fake.shared(at);
    assert_eq!((word(0x18), word(0x38), word(0x3c)), (1, 9000, 0x0101_0005));
    assert_eq!((word(0x50), word(0x54), word(0x68)), (0x0801_0201, 0x0808_0808, 0x0808_0808));
    assert_eq!((word(0x6c), word(0x78)), (0, 0x1f), "enabled; everything");
    assert_eq!((word(0x34), fake.queue_word(0, 0x38), fake.queue_word(1, 0x40)), (512, 64, 128));
    // Doorbells for all buffers, then both vectors are unmasked.
    assert_eq!((fake.get(0x800), fake.get(0xa00)), (63, 63));
    assert_eq!((fake.get(at::IMR), fake.get(8)), (0, 0));

    let mut nic = start(Options { irq: Irq::Intx, ..options() });
    let word = |at| chip(&mut nic).shared(at);
    assert_eq!([0x18, 0x38, 0x3c, 0x50, 0x78].map(word), [0, 1500, 0x0101_0001, 0x0800_0101, 7]);
}

#[test]
fn what_is_no_such_device_or_refuses_is_an_error() {
    let options = options();
    let ram = crate::nic::make_ram(&options).unwrap();
    let mut old = Fake::new(&ram);
    old.set(at::VRRS, 1);
    Vmxnet3::new(options.clone(), &ram, old).unwrap();
    for (register, value) in [(at::VRRS, 0x38), (at::UVRS, 2)] {
        let mut other = Fake::new(&ram);
        other.set(register, value);
        let error = Vmxnet3::new(options.clone(), &ram, other).unwrap_err();
        assert!(error.to_string().contains("refuses all known versions"), "{error}");
    }
}

#[test]
fn frames_go_out_in_turn_for_many_laps() {
    for segment in [1024, 130] {
        let mut nic = start(Options { segment, batch: true, ..options() });
        for lap in 0..300_usize {
            let burst = 1 + lap % usize::from(nic.free_slots());
            let lens: Vec<_> = (0..burst).map(|n| 60 + 97 * n % 1400).collect();
            lens.iter().for_each(|len| send(&mut nic, &frame(*len)));
            assert_eq!(nic.flush(), u32::try_from(burst).unwrap());
            let sent = chip(&mut nic).transmit(burst - 1);
            nic.reap();
            assert!(nic.under_way() > 0, "one is not sent");
            let rest = chip(&mut nic).transmit(99);
            let found: Vec<_> = sent.iter().chain(&rest).cloned().collect();
            assert_eq!(found, lens.iter().map(|len| frame(*len)).collect::<Vec<_>>());
            while nic.under_way() > 0 {
                nic.reap();
            }
        }
        assert!(nic.is_sound());
    }
}

#[test]
fn descriptors_say_what_public_drivers_say() {
    let all =
        Options { segment: 1000, room: 9014, checksum: true, segmentation: true, ..options() };
    let mut nic = start(all);
    let sum =
        Offload { checksum: Some((34, 50)), ip: Some((14, 33)), tcp: true, ..Offload::default() };
    let tso = Offload {
        segmentation: Some(Segmentation { mss: 1448, header: 54 }),
        vlan: Some(0x2064),
        ..sum
    };
    for (offload, len, said) in [
        (Offload::default(), 60, [60 | 1 << 14, 1 << 12 | 1 << 13]),
        (sum, 60, [60 | 1 << 14 | 50 << 18, 34 | 2 << 10 | 1 << 12 | 1 << 13]),
        (tso, 2100, [1000 | 1 << 14 | 1448 << 18, 54 | 3 << 10 | 1 << 15 | 0x2064 << 16]),
    ] {
        let slot = nic.next().unwrap();
        nic.set_offload(slot, offload);
        send(&mut nic, &frame(len));
        let [low, high]: [u64; 2] = said;
        assert_eq!(chip(&mut nic).transmit_all(99), [(low | high << 32, frame(len))]);
        nic.reap();
    }
}

#[test]
fn the_device_says_when_it_wants_to_be_told_of_frames() {
    for fence in [true, false] {
        let mut nic = start(Options { fence, segmentation: true, room: 9000, ..options() });
        log(&mut nic);
        send(&mut nic, &frame(60));
        assert_eq!(log(&mut nic), ["W 600=1"], "from the beginning");
        chip(&mut nic).set_queue_word(0, 4, 3);
        send(&mut nic, &frame(60));
        send(&mut nic, &frame(60));
        assert_eq!(log(&mut nic), [""; 0]);
        assert_eq!(chip(&mut nic).queue_word(0, 0), 2, "deferred");
        send(&mut nic, &frame(60));
        assert_eq!(log(&mut nic), ["W 600=4"]);
        assert_eq!(chip(&mut nic).queue_word(0, 0), 0);
        // Segments count.
        let slot = nic.next().unwrap();
        let segmentation = Some(Segmentation { mss: 1448, header: 54 });
        let checksum = Some((34, 50));
        nic.set_offload(slot, Offload { segmentation, checksum, ..Offload::default() });
        send(&mut nic, &frame(3 * 1448 + 54));
        assert_eq!(log(&mut nic), ["W 600=6"], "in two descriptors");
        chip(&mut nic).set_queue_word(0, 4, u32::MAX);
        for _ in 0..5 {
            send(&mut nic, &frame(60));
        }
        assert_eq!(log(&mut nic), [""; 0]);
        let stats = nic.tx_stats();
        assert_eq!((stats.doorbells, stats.doorbells_saved), (3, 7));
    }
}

#[test]
fn the_device_says_when_it_wants_to_be_told_of_buffers() {
    // By Linux's driver at every 16th place, by ours after each poll and 16 buffers.
    for (fence, told) in [
        (false, [vec!["W 800=0"], vec!["W 800=10", "W 800=0"]]),
        (true, [vec!["W 800=e", "W 800=f"], vec!["W 800=1f", "W 800=0"]]),
    ] {
        let mut nic = start(Options { fence, interrupts: Interrupts::Idle, ..options() });
        log(&mut nic);
        for count in [1, 30] {
            for _ in 0..count {
                chip(&mut nic).receive(&frame(60));
            }
            assert_eq!(take(&mut nic).len(), count);
            assert_eq!(log(&mut nic), [""; 0], "not yet");
        }
        chip(&mut nic).set_queue_word(1, 0, 1);
        for told in told {
            for _ in 0..17 {
                chip(&mut nic).receive(&frame(60));
            }
            assert_eq!(take(&mut nic).len(), 17);
            assert_eq!(log(&mut nic), told);
        }
    }
}

#[test]
fn frames_come_in_whatever_their_buffers() {
    let mut nic = start(Options { buffer: 256, ..options() });
    for (n, len) in [60, 256, 257, 512, 513, 1000, 1514, 64].repeat(20).into_iter().enumerate() {
        chip(&mut nic).receive(&frame(len));
        if n % 3 == 0 {
            chip(&mut nic).skip();
        }
        assert_eq!(take(&mut nic), [frame(len)]);
        assert!(take(&mut nic).is_empty(), "interrupts are enabled again");
    }
    assert!(nic.is_sound());
    // A buffer that is passed over by a report.
    let (head, _) = chip(&mut nic).heads();
    chip(&mut nic).skip();
    chip(&mut nic).lie([head | 3 << 14, 0, 0, 3 << 24]);
    chip(&mut nic).receive(&frame(99));
    assert_eq!(take(&mut nic), [frame(99)]);
    assert!(nic.is_sound());
}

#[test]
fn parts_of_a_batch_are_given_back_in_turn() {
    let mut nic = start(options());
    for lap in 0..100 {
        for n in 0..20 {
            chip(&mut nic).receive(&frame(60 + n));
        }
        let mut batch = nic.batch();
        assert_eq!(nic.poll(&mut batch, usize::MAX), 20);
        for left in (0..20).rev() {
            nic.release_first(&mut batch, 1);
            assert_eq!(batch.frames().len(), left, "lap {lap}");
            let mut bytes = [0; 100];
            for (n, frame_of) in batch.frames().iter().enumerate() {
                let len = nic.read(*frame_of, 0, &mut bytes);
                assert_eq!(bytes[..len], frame(60 + 20 - left + n));
            }
        }
        assert_eq!(nic.outstanding(), 31);
    }
}

#[test]
fn lies_of_the_device_are_counted_and_do_no_harm() {
    let lies: [[u32; 4]; 7] = [
        [4095 | 3 << 14, 0, 60, 3 << 24],
        [3 << 14 | 2 << 16, 0, 60, 3 << 24],
        [3 << 14 | 1023 << 16, 0, 60, 3 << 24],
        [3 << 14 | 1 << 16, 0, 60, 3 << 24],
        [2 << 14 | 31, 0, 60, 3 << 24],
        [1 << 14, 0, 60, 3 << 24],
        [3 << 14, 0, 0x3fff, 3 << 24],
    ];
    for lie in lies {
        let mut nic = start(options());
        chip(&mut nic).lie(lie);
        chip(&mut nic).cause();
        assert!(take(&mut nic).iter().all(|bytes| bytes.len() <= 2048), "{lie:x?}");
        assert!(!nic.is_sound() || lie[0] & 1 << 14 == 0, "{lie:x?}");
    }
    // Frames without an end, for more than a lap.
    let mut nic = start(options());
    for n in 0..200 {
        chip(&mut nic).lie([(n % 32) | 1 << 15, 0, 60, 3 << 24]);
        take(&mut nic);
    }
    assert!(!nic.is_sound());
    // A queue that has stopped.
    let mut nic = start(options());
    chip(&mut nic).set_queue_word(1, 0x50, 1);
    assert!(!nic.is_sound());
}

#[test]
fn what_the_device_says_of_a_frame() {
    let mut nic = start(options());
    for (says, checksum, vlan) in [
        (Says::default(), None, None),
        (Says(0, 1 << 15 | 0x2064 << 16, 0), None, Some(0x2064)),
        (Says(0, 0, 1 << 16 | 1 << 18), Some(true), None),
        (Says(0, 0, 1 << 16 | 1 << 17), Some(true), None),
        (Says(0, 0, 1 << 17), Some(false), None),
        (Says(1 << 30, 0, 1 << 16 | 1 << 17), None, None),
    ] {
        chip(&mut nic).receive_with(&frame(60), says);
        let mut batch = nic.batch();
        assert_eq!(nic.poll(&mut batch, usize::MAX), 1);
        let got = batch.frames()[0];
        assert_eq!((got.checksum(), got.vlan()), (checksum, vlan), "{says:x?}");
        nic.release(&mut batch);
        assert!(take(&mut nic).is_empty());
    }
    chip(&mut nic).receive_with(&frame(60), Says(0, 1 << 14, 0));
    assert!(take(&mut nic).is_empty() && !nic.is_sound(), "an error");
}

#[test]
fn an_interrupt_costs_one_write_and_with_intx_a_read() {
    for (irq, expected) in [
        (Irq::Msix, vec!["W 0=0"]),
        (Irq::Msi, vec!["W 0=0"]),
        (Irq::Intx, vec!["R 1038", "W 0=0"]),
    ] {
        let mut nic = start(Options { irq, ..options() });
        log(&mut nic);
        for _ in 0..3 {
            chip(&mut nic).receive(&frame(60));
            chip(&mut nic).receive(&frame(61));
            assert_eq!(take(&mut nic).len(), 2);
            assert!(take(&mut nic).is_empty());
            assert_eq!(log(&mut nic), expected, "{irq:?}");
        }
        assert_eq!((nic.interrupt_stats().sent, nic.interrupt_stats().spurious), (3, 0));
    }
}

#[test]
fn what_comes_while_the_interrupt_is_masked_comes_again() {
    let mut nic = start(options());
    chip(&mut nic).receive(&frame(60));
    assert_eq!(take(&mut nic).len(), 1);
    chip(&mut nic).receive(&frame(61));
    chip(&mut nic).receive(&frame(62));
    assert_eq!(take(&mut nic).len(), 2, "still masked");
    assert!(take(&mut nic).is_empty());
    // It had not been told of those two by an interrupt, so there is one for nothing.
    assert!(take(&mut nic).is_empty());
    // Any interrupt may have been about a sent frame.
    assert_eq!(nic.wait(TX, Duration::ZERO).unwrap(), Wake::Ready);
    send(&mut nic, &frame(60));
    assert_eq!(nic.wait(TX, Duration::ZERO).unwrap(), Wake::Timeout);
    assert_eq!(chip(&mut nic).transmit(9).len(), 1);
    assert_eq!(nic.wait(TX, Duration::ZERO).unwrap(), Wake::Ready);
    nic.reap();
    assert_eq!(nic.under_way(), 0);
    assert_eq!(nic.wait(RX, Duration::ZERO).unwrap(), Wake::Timeout);
}

#[test]
fn events_are_acknowledged() {
    let mut nic = start(options());
    log(&mut nic);
    chip(&mut nic).share(0x2b8, 4);
    chip(&mut nic).receive(&frame(60));
    assert_eq!(take(&mut nic).len(), 1);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["W 1040=4", "W 8=0", "W 0=0"]);
    assert_eq!(chip(&mut nic).shared(0x2b8), 0);
}

#[test]
fn another_device_takes_over() {
    let options = options();
    let ram = crate::nic::make_ram(&options).unwrap();
    let mut nic = Vmxnet3::new(options, &ram, Fake::new(&ram)).unwrap();
    for n in 0..40 {
        send(&mut nic, &frame(60));
        chip(&mut nic).transmit(9);
        nic.reap();
        chip(&mut nic).receive(&frame(60 + n));
        assert_eq!(take(&mut nic).len(), 1);
    }
    send(&mut nic, &frame(60));
    nic.restart(Fake::new(&ram)).unwrap();
    assert_eq!((nic.under_way(), nic.outstanding()), (0, 31));
    send(&mut nic, &frame(70));
    assert_eq!(chip(&mut nic).transmit(9), [frame(70)]);
    chip(&mut nic).receive(&frame(71));
    assert_eq!(take(&mut nic), [frame(71)]);
    chip(&mut nic).gone = true;
    chip(&mut nic).cause();
    assert!(take(&mut nic).is_empty());
    assert!(nic.is_sound());
}
