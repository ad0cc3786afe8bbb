//! The drivers of both chips with descriptor rings, against a model of them.

pub(crate) mod fake;

use std::time::Duration;

use super::*;
use crate::chip::{Interrupts, Offload, Reception, Segmentation};
use crate::wait::{Interest, Wake};
use fake::{Fake, at, word};

const RX: Interest = Interest { rx: true, tx: false };

pub(crate) fn options(model: Model) -> Options {
    Options { size: 8, flush: false, ..Options::of(model) }
}

fn start<K: Kind>(options: Options) -> ChipDriver<Rings<K>, Fake> {
    let options = Options { model: K::MODEL, ..options };
    let ram = crate::nic::make_ram(&options).unwrap();
    let mut fake = Fake::new(&ram, K::MODEL);
    if options.csb {
        fake.offer_csb();
    }
    ChipDriver::new(options, &ram, fake).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn chip<C: Chip>(nic: &mut ChipDriver<C, Fake>) -> &mut Fake {
    nic.registers_mut().bus_mut()
}

pub(crate) fn frame(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

pub(crate) fn send<C: Chip, B: Bus>(nic: &mut ChipDriver<C, B>, bytes: &[u8]) {
    let slot = nic.next().unwrap();
    nic.write(slot, 0, bytes);
    nic.send(slot, u32::try_from(bytes.len()).unwrap());
}

pub(crate) fn log<C: Chip>(nic: &mut ChipDriver<C, Fake>) -> Vec<String> {
    std::mem::take(&mut chip(nic).log)
}

/// Polls once; the bytes of the frames, which are given back.
pub(crate) fn take<C: Chip, B: Bus>(nic: &mut ChipDriver<C, B>) -> Vec<Vec<u8>> {
    let mut batch = nic.batch();
    nic.poll(&mut batch, usize::MAX);
    let read = |frame: &chip::Frame<_>| {
        let mut bytes = vec![0; frame.len];
        assert_eq!(nic.read(*frame, 0, &mut bytes), frame.len);
        bytes
    };
    let frames = batch.frames().iter().map(read).collect();
    nic.release(&mut batch);
    frames
}

#[test]
fn rings_are_handed_over_with_their_ends() {
    fn check<K: Kind>() {
        let mut nic = start::<K>(options(K::MODEL));
        assert_eq!(nic.mac(), fake::MAC);
        assert_eq!((nic.slots(), nic.outstanding()), (7, 7), "one descriptor stays ours");
        let fake = chip(&mut nic);
        assert_eq!(fake.get(at::CR), 0xc);
        assert_eq!(fake.get(at::IMR), 0x7f, "all but what the block adds");
        for base in [at::TNPDS, at::RDSAR] {
            assert!(fake.get(base) > 0 && fake.get(base).is_multiple_of(256), "{base:x}");
            for n in 0..8 {
                let [word, _] = fake.descriptor(base, n);
                assert_eq!(word >> 30 & 1 == 1, n == 7, "EOR of {n} at {base:x}");
                let ours = base == at::TNPDS || n == 7;
                assert_eq!(word >> 31 & 1 == 0, ours, "OWN of {n} at {base:x}");
            }
        }
        let [word, address] = fake.descriptor(at::RDSAR, 1);
        assert_eq!((word, address >> 32), (1 << 31 | 2048, 1));
    }
    check::<Gigabit>();
    check::<Plus>();
    let mut nic = start::<Gigabit>(Options {
        mitigate: 0x5f51,
        mitigate_unit: 2,
        checksum: true,
        ..options(Model::R8169)
    });
    let fake = chip(&mut nic);
    assert_eq!((fake.get(0xe2), fake.get(0xe0), fake.get(0xda)), (0x5f51, 0x22, 1522));
    let mut nic = start::<Plus>(options(Model::Rtl8139Plus));
    assert_eq!(chip(&mut nic).get(0xe0), 3, "both rings are on");
}

#[test]
fn what_is_no_such_chip_is_left_alone() {
    let options = options(Model::R8169);
    let ram = crate::nic::make_ram(&options).unwrap();
    let other = Fake::new(&ram, Model::Rtl8139Plus);
    let error = R8169::new(options, &ram, other).unwrap_err();
    assert!(matches!(error, ChipError::NotFound { found: 0x8139_10ec, model: Model::R8169 }));
    assert!(error.to_string().contains("not r8169 (0x816910ec)"), "{error}");
}

#[test]
fn a_plain_8139_is_not_taken_for_a_plus_and_a_plus_goes_as_a_plain_one() {
    let plus = options(Model::Rtl8139Plus);
    let ram = crate::nic::make_ram(&plus).unwrap();
    let plain = Fake::new(&ram, Model::Rtl8139Classic);
    let error = Rtl8139::new(plus.clone(), &ram, plain).unwrap_err();
    assert!(matches!(error, ChipError::NoPlus { found: 0x10 }), "{error}");
    assert!(error.to_string().contains("give the address the port's plus=off"), "{error}");
    let mut nic = Rtl8139::new(plus.clone(), &ram, Fake::new(&ram, Model::Rtl8139Plus)).unwrap();
    let error = nic.restart(Fake::new(&ram, Model::Rtl8139Classic)).unwrap_err();
    assert!(matches!(error, ChipError::NoPlus { .. }), "nor later: {error}");

    let classic = Options { buffer: 8192, ..options(Model::Rtl8139Classic) };
    let ram = crate::nic::make_ram(&classic).unwrap();
    for model in [Model::Rtl8139Plus, Model::Rtl8139Classic] {
        crate::rtl8139::Rtl8139Classic::new(classic.clone(), &ram, Fake::new(&ram, model)).unwrap();
    }
}

#[test]
fn frames_go_out_in_turn_for_many_laps() {
    for size in [8, 64] {
        let mut nic = start::<Gigabit>(Options { size, batch: true, ..options(Model::R8169) });
        for lap in 0..200_usize {
            let burst = 1 + lap % usize::from(nic.free_slots());
            for n in 0..burst {
                send(&mut nic, &frame(60 + n));
            }
            assert_eq!(nic.flush(), u32::try_from(burst).unwrap());
            let sent = chip(&mut nic).transmit(burst - 1);
            nic.reap();
            assert!(usize::from(nic.under_way()) > 0, "one is not sent");
            let rest = chip(&mut nic).transmit(99);
            let lens: Vec<_> = sent.iter().chain(&rest).map(Vec::len).collect();
            assert_eq!(lens, (60..60 + burst).collect::<Vec<_>>());
            while nic.under_way() > 0 {
                nic.reap();
            }
        }
        assert!(nic.is_sound());
    }
}

#[test]
fn descriptors_say_what_the_datasheets_say() {
    let all = Options {
        size: 32,
        segment: 1000,
        room: 9014,
        checksum: true,
        segmentation: true,
        ..options(Model::R8169)
    };
    let mut nic = start::<Gigabit>(all);
    let sum =
        Offload { checksum: Some((34, 50)), ip: Some((14, 33)), tcp: true, ..Offload::default() };
    let tso = Offload {
        segmentation: Some(Segmentation { mss: 1448, header: 54 }),
        vlan: Some(0x2064),
        ..sum
    };
    let udp = Offload { tcp: false, ip: None, ..sum };
    for (offload, len, words) in [
        (Offload::default(), 60, vec![0xb000_0000 + 60]),
        (sum, 60, vec![0xb005_0000 + 60]),
        (udp, 60, vec![0xb002_0000 + 60]),
        (tso, 2100, vec![0xada8_0000 + 1000, 0x8da8_0000 + 1000, 0x9da8_0000 + 100]),
    ] {
        let first = chip(&mut nic).tdh;
        let slot = nic.next().unwrap();
        nic.set_offload(slot, offload);
        send(&mut nic, &frame(len));
        for (n, word) in (first..).zip(words) {
            let [found, _] = chip(&mut nic).descriptor(at::TNPDS, n);
            let tag = if offload.vlan.is_some() { 0x0002_6420 << 32 } else { 0 };
            assert_eq!(found, word | tag, "{offload:?}: {found:#x}");
        }
        assert_eq!(chip(&mut nic).transmit(99), [frame(len)]);
        nic.reap();
        nic.set_offload(slot, Offload::default());
    }
}

#[test]
fn frames_come_in_whatever_their_buffers() {
    fn check<K: Kind>(shift: u32) {
        let mut nic = start::<K>(Options { buffer: 256, ..options(K::MODEL) });
        for len in [60, 252, 253, 508, 1000, 1514, 64].repeat(9) {
            chip(&mut nic).receive(&frame(len), 0);
            assert_eq!(take(&mut nic), [frame(len)]);
            assert!(take(&mut nic).is_empty(), "interrupts are enabled again");
        }
        chip(&mut nic).receive(&frame(60), 1 << (shift + 7));
        assert!(take(&mut nic).is_empty() && !nic.is_sound(), "RES");
        // A whole frame is not shorter than the buffers before its last.
        chip(&mut nic).receive(&frame(300), 0);
        let last = (chip(&mut nic).rdh + 7) % 8;
        let [word, _] = chip(&mut nic).descriptor(at::RDSAR, last);
        chip(&mut nic).write_back(at::RDSAR, last, word & !0x1fff | 9);
        assert!(take(&mut nic).iter().all(|bytes| bytes.len() <= 256));
        assert_eq!(nic.outstanding(), 7);
    }
    check::<Gigabit>(14);
    check::<Plus>(13);
}

#[test]
fn what_the_chip_says_of_a_frame() {
    use crate::chip::Report;
    type Long = RxDescriptor<14>;
    type Short = RxDescriptor<13>;
    assert_eq!(Long::vlan(0x0001_23a1 << 32), Some(0xa123));
    assert_eq!(Long::vlan(0x23a1 << 32), None);
    for (word, said) in [
        (0, None),
        (3 << 17, None),
        (1 << 17, Some(true)),
        (1 << 17 | 1 << 14, Some(false)),
        (1 << 17 | 1 << 15, Some(true)),
        (1 << 18 | 1 << 15, Some(false)),
        (1 << 18 | 1 << 16, Some(true)),
    ] {
        assert_eq!(Long::checksum(word), said, "{word:#x}");
        assert_eq!(Short::checksum(word >> 1), said, "{word:#x}");
    }
}

#[test]
fn an_interrupt_takes_the_accesses_of_a_kernels_driver() {
    let mut nic = start::<Gigabit>(options(Model::R8169));
    log(&mut nic);
    chip(&mut nic).receive(&frame(60), 0);
    assert_eq!(take(&mut nic).len(), 1);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["R 3e", "W 3c=0", "W 3e=1", "W 3c=7f"]);
    send(&mut nic, &frame(60));
    assert_eq!(chip(&mut nic).transmit(9).len(), 1);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["W 38=40", "R 3e", "W 3c=0", "W 3e=4", "W 3c=7f"]);
    // 8139cp does not mask for sent frames.
    let mut nic = start::<Plus>(Options { flush: true, ..options(Model::Rtl8139Plus) });
    log(&mut nic);
    send(&mut nic, &frame(60));
    assert_eq!(chip(&mut nic).transmit(9).len(), 1);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["W d9=40", "R 3e", "W 3e=4", "R 3c"]);
    chip(&mut nic).receive(&frame(60), 0);
    assert_eq!(take(&mut nic).len(), 1);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["R 3e", "W 3c=0", "W 3e=1", "R 3c", "W 3c=7f", "R 3c"]);
    assert_eq!(nic.interrupt_stats().spurious, 0);
}

/// Frames that come together, and how often the chip is told of their buffers.
fn told(options: Options, rows: &[(usize, usize)]) {
    let mut nic = start::<Gigabit>(options);
    for (row, (frames, told)) in rows.iter().enumerate() {
        log(&mut nic);
        for _ in 0..*frames {
            chip(&mut nic).receive(&frame(60), 0);
        }
        assert_eq!(take(&mut nic).len(), *frames);
        assert_eq!(log(&mut nic), vec!["W 38=0"; *told], "row {row}: {frames} frames");
    }
    assert_eq!(nic.wait(RX, Duration::from_millis(1)).unwrap(), Wake::Timeout);
}

#[test]
fn a_driver_that_polls_tells_a_chip_that_ran_short() {
    let polls =
        Options { receive: Reception::Poll, interrupts: Interrupts::Idle, ..options(Model::R8169) };
    // Every eighth of the ring, and when all was used.
    told(Options { size: 64, ..polls.clone() }, &[(7, 0), (1, 1), (7, 0), (63, 1), (7, 0), (1, 1)]);
    told(Options { size: 256, ..polls.clone() }, &[(31, 0), (1, 1), (31, 0)]);
    // Of a small one each quarter, nearly.
    told(Options { size: 16, ..polls.clone() }, &[(2, 0), (1, 1), (2, 0), (13, 1)]);
    told(polls.clone(), &[(1, 1), (7, 1), (1, 1)]);
    // The longest frame takes six buffers: with five of 255 left the chip may wait for more.
    for (frames, told) in [(249, 0), (250, 1)] {
        let small = Options { size: 256, buffer: 256, budget: 4, ..polls.clone() };
        let mut nic = start::<Gigabit>(small);
        log(&mut nic);
        for _ in 0..frames {
            chip(&mut nic).receive(&frame(60), 0);
        }
        assert_eq!(take(&mut nic).len(), 4);
        assert_eq!(log(&mut nic), vec!["W 38=0"; told], "{frames} frames");
    }
}

#[test]
fn a_driver_that_goes_on_polling_says_what_the_mask_would_have_said() {
    let mut nic = start::<Gigabit>(Options {
        receive: Reception::Adaptive,
        size: 32,
        ..options(Model::R8169)
    });
    log(&mut nic);
    for _ in 0..31 {
        chip(&mut nic).receive(&frame(60), 0);
    }
    assert_eq!(take(&mut nic).len(), 31);
    assert_eq!(log(&mut nic), ["R 3e", "W 3c=0", "W 3e=1"], "the chip waits for buffers, perhaps");
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), ["W 38=0"]);
    assert!(take(&mut nic).is_empty());
    assert_eq!(log(&mut nic), [""; 0], "once");
}

#[test]
fn with_both_sides_awake_csb_takes_no_register_access() {
    fn check<K: Kind>(poll: &str) {
        let mut nic = start::<K>(Options { csb: true, ..options(K::MODEL) });
        let fake = chip(&mut nic);
        assert_eq!((fake.shared(word::GUEST_CSB_ON), fake.shared(word::GUEST_RDT)), (1, 7));
        fake.share(word::HOST_NEED_TXKICK, 0);
        log(&mut nic);
        let mut tail = 0;
        for lap in 0..100_u32 {
            let count = 1 + lap % 7;
            for n in 0..count {
                send(&mut nic, &frame(60 + n as usize));
            }
            nic.flush();
            tail = (tail + count) % 8;
            assert_eq!(chip(&mut nic).shared(word::GUEST_TDT), tail);
            assert_eq!(chip(&mut nic).transmit(99).len(), count as usize);
            assert_eq!(nic.reap(), 7, "by the chip's index");
            for _ in 0..count {
                chip(&mut nic).receive(&frame(60), 0);
            }
            assert_eq!(take(&mut nic).len(), count as usize);
            assert_eq!(chip(&mut nic).shared(word::GUEST_RDT), (tail + 7) % 8);
        }
        assert_eq!(log(&mut nic), [""; 0]);
        // It sleeps: either ring's kick is a write of the same register.
        chip(&mut nic).share(word::HOST_NEED_TXKICK, 1);
        send(&mut nic, &frame(60));
        nic.flush();
        assert_eq!(log(&mut nic), [format!("W {poll}=40")]);
        chip(&mut nic).share(word::HOST_RXKICK_AT, (tail + 1) % 8);
        for left in [1, 0] {
            chip(&mut nic).receive(&frame(60), 0);
            assert_eq!(take(&mut nic).len(), 1);
            let kicks = if left == 0 { vec![format!("W {poll}=0")] } else { vec![] };
            assert_eq!(log(&mut nic), kicks);
        }
        assert!(nic.is_sound());
        nic.set_csb(false);
        assert_eq!(chip(&mut nic).shared(word::GUEST_CSB_ON), 0);
    }
    check::<Gigabit>("38");
    check::<Plus>("d9");
}

#[test]
fn send_combining_rings_once_for_each_interrupt() {
    let combine = Options { combine: true, combine_frames: 100, ..options(Model::R8169) };
    let mut nic = start::<Gigabit>(combine);
    log(&mut nic);
    for n in 0..5 {
        send(&mut nic, &frame(60 + n));
    }
    assert_eq!(log(&mut nic), ["W 38=40"], "four are deferred");
    assert_eq!(chip(&mut nic).transmit(1).len(), 1);
    take(&mut nic);
    assert_eq!(log(&mut nic), ["R 3e", "W 3c=0", "W 3e=4", "W 38=40", "W 3c=7f"]);
    assert_eq!(chip(&mut nic).transmit(9).len(), 4);
}

#[test]
fn a_chip_that_is_gone_is_noticed() {
    let mut nic = start::<Gigabit>(options(Model::R8169));
    chip(&mut nic).gone = true;
    chip(&mut nic).cause(1);
    assert!(take(&mut nic).is_empty());
    assert!(!nic.is_connected());
    assert!(nic.wait(RX, Duration::ZERO).is_err());
}

/// A chip that is at work while its rings are looked at is not at fault.
#[test]
fn rings_are_sound_while_the_chip_is_at_work() {
    for _ in 0..300 {
        let options = Options { size: 256, ..options(Model::R8169) };
        let ram = crate::nic::make_ram(&options).unwrap();
        let fake = Fake::new(&ram, Model::R8169);
        let mut nic = ChipDriver::<Rings<Gigabit>, _>::new(options, &ram, fake).unwrap();
        for _ in 0..200 {
            send(&mut nic, &frame(60));
        }
        nic.flush();
        let rings = [nic.tx.base(), nic.rx.base()].map(|gpa| {
            let at = usize::try_from(gpa - ram.guest_phys(0)).unwrap();
            ram.view::<std::sync::atomic::AtomicU64>(at, 2 * 200)
        });
        std::thread::scope(|scope| {
            let chip = scope.spawn(|| {
                for n in 0..200 {
                    for ring in &rings {
                        ring[2 * n].fetch_and(!fake::OWN, std::sync::atomic::Ordering::Release);
                    }
                }
            });
            while !chip.is_finished() {
                assert!(nic.is_sound());
            }
        });
    }
}
