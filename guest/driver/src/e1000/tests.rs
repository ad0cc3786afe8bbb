//! The driver against a model of a chip that does what the manual says and no more.

mod fake;
mod ways;

use super::descriptor::{command, rx as bits};
use super::registers::{cause, rctl};
use super::*;
use crate::chip::{
    Interest, InterruptStats, Interrupts, Irq, Offload, Options, Segmentation, Wake,
};
use fake::Fake;
use std::time::Duration;

const QUIET: Duration = Duration::from_millis(1);
const RX: Interest = Interest { rx: true, tx: false };

fn start(options: Options) -> E1000<Fake> {
    let ram = crate::nic::make_ram(&options).unwrap();
    let fake = Fake::new(&ram);
    E1000::new(options, &ram, fake).unwrap()
}

fn small() -> Options {
    Options { size: 8, flush: false, ..Options::default() }
}

fn chip(nic: &mut E1000<Fake>) -> &mut Fake {
    nic.registers_mut().bus_mut()
}

fn frame(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

/// Sends one frame and lets the chip have it.
fn send(nic: &mut E1000<Fake>, bytes: &[u8]) {
    let slot = nic.next().unwrap();
    nic.write(slot, 0, bytes);
    nic.send(slot, u32::try_from(bytes.len()).unwrap());
}

fn accesses(nic: &E1000<Fake>, register: Register) -> (u64, u64) {
    let access = nic.registers().counts()[register as usize];
    assert_eq!(access.register, register.name());
    (access.reads, access.writes)
}

fn take(nic: &mut E1000<Fake>, batch: &mut Batch, most: usize) -> Vec<Vec<u8>> {
    nic.poll(batch, most);
    let read = |frame: &Frame| {
        let mut bytes = vec![0; frame.len];
        assert_eq!(nic.read(*frame, 0, &mut bytes), frame.len);
        bytes
    };
    batch.frames().iter().map(read).collect()
}

#[test]
fn the_chip_is_started_after_the_manual() {
    let options = Options { itr: 488, tidv: 1, tadv: 2, rdtr: 3, radv: 4, mtu: 9000, ..small() };
    let nic = start(Options { buffer: 4096, promisc: true, ..options });
    assert_eq!(nic.mac(), fake::MAC);
    let fake = nic.registers().bus();
    let expected = [
        (Register::RAL, 0x1200_5452),
        (Register::RAH, 0x8000_5634),
        (Register::TDLEN, 128),
        (Register::RDLEN, 128),
        (Register::RDT, 7),
        (Register::ITR, 488),
        (Register::TIDV, 1),
        (Register::TADV, 2),
        (Register::RDTR, 3),
        (Register::RADV, 4),
        (Register::TCTL, 0x0004_00fa),
        (Register::TIPG, 0x0060_200a),
        (Register::RCTL, 0x0203_803a),
        (Register::IMS, cause::ALL),
    ];
    for (register, value) in expected {
        assert_eq!(fake.get(register), value, "{}", register.name());
    }
    assert_eq!(fake.config_command(), 7, "memory, I/O, bus master");
    assert_eq!(fake.io_resets, 1);
    let nic = start(Options { reset_by_io: false, ..small() });
    assert_eq!(nic.registers().bus().io_resets, 0);
    assert_eq!(accesses(&nic, Register::CTRL).1, 2, "reset, link up");
}

#[test]
fn what_is_no_82540em_is_left_alone() {
    let ram = crate::nic::make_ram(&small()).unwrap();
    let mut other = Fake::new(&ram);
    other.set_config(0, 0x100f_8086);
    let error = E1000::new(small(), &ram, other).unwrap_err();
    assert!(matches!(error, ChipError::NotFound { found: 0x100f_8086, .. }), "{error}");
    let mut broken = Fake::new(&ram);
    broken.eeprom[9] ^= 1;
    assert!(matches!(E1000::new(small(), &ram, broken), Err(ChipError::Eeprom(0xbabb | 0xbab9))));
    let mut down = Fake::new(&ram);
    down.stuck_in_reset = true;
    assert!(matches!(E1000::new(small(), &ram, down), Err(ChipError::Stuck(_))));
    let msi = Options { irq: Irq::Msi, ..small() };
    assert!(matches!(E1000::new(msi, &ram, Fake::new(&ram)), Err(ChipError::NoMsi)));
}

#[test]
fn one_doorbell_for_each_frame_or_for_each_burst() {
    for (batch, doorbells) in [(false, 5), (true, 1)] {
        let mut nic = start(Options { batch, ..small() });
        let before = accesses(&nic, Register::TDT).1;
        for len in 60..65 {
            send(&mut nic, &frame(len));
        }
        assert_eq!(nic.flush(), 5);
        assert_eq!(accesses(&nic, Register::TDT).1 - before, doorbells);
        assert_eq!(nic.tx_stats().doorbells, doorbells);
        let sent = chip(&mut nic).transmit();
        assert_eq!(sent, (60..65).map(frame).collect::<Vec<_>>());
    }
}

#[test]
fn slots_come_back_in_turn_for_many_laps() {
    for size in [8, 64] {
        let mut nic = start(Options { size, batch: true, ..small() });
        assert_eq!(nic.slots(), size - 1, "one descriptor stays free");
        for lap in 0..200_usize {
            let burst = 1 + lap % usize::from(nic.free_slots());
            for n in 0..burst {
                send(&mut nic, &frame(60 + n));
            }
            nic.flush();
            assert_eq!(usize::from(nic.under_way()), burst);
            let sent = chip(&mut nic).transmit();
            assert_eq!(
                sent.iter().map(Vec::len).collect::<Vec<_>>(),
                (60..60 + burst).collect::<Vec<_>>()
            );
            while nic.under_way() > 0 {
                nic.reap();
            }
        }
        assert!(nic.is_sound());
    }
}

#[test]
fn a_full_ring_gives_no_slot_and_nothing_is_freed_too_early() {
    let mut nic = start(Options { size: 64, batch: true, ..small() });
    assert_eq!(nic.send_filled(1000, 60), 63);
    nic.flush();
    assert!(nic.next().is_none());
    assert_eq!(nic.tx_stats().full, 1);
    assert_eq!(nic.reap(), 0);
    // The device has finished 20: no more than these come back.
    chip(&mut nic).transmit_some(20);
    assert!((1..=20).contains(&nic.reap()), "{} free", nic.free_slots());
    chip(&mut nic).transmit();
    assert_eq!(nic.reap(), 63);
}

#[test]
fn long_frames_take_several_descriptors() {
    let options = Options { size: 32, segment: 1000, room: 9014, ..small() };
    let mut nic = start(Options { batch: true, ..options });
    assert_eq!(nic.slots(), 3, "ten descriptors each");
    for len in [9014, 1000, 1001, 60, 9000] {
        send(&mut nic, &frame(len));
        nic.flush();
        let count = chip(&mut nic).waiting();
        assert_eq!(count, len.div_ceil(1000), "{len} bytes");
        assert_eq!(chip(&mut nic).transmit(), [frame(len)]);
        assert_eq!(nic.reap(), 3);
    }
}

#[test]
fn offloads_are_written_as_the_manual_says() {
    let options = Options { checksum: true, segmentation: true, tidv: 8, room: 4096, ..small() };
    let mut nic = start(Options { size: 16, ..options });
    let tso = Offload {
        checksum: Some((34, 50)),
        ip: Some((14, 33)),
        tcp: true,
        segmentation: Some(Segmentation { mss: 1448, header: 66 }),
        vlan: Some(0x2064),
    };
    let slot = nic.next().unwrap();
    nic.set_offload(slot, tso);
    send(&mut nic, &frame(3000));
    let all = command::DEXT | command::IDE;
    // IPCSS 14, IPCSO 24, IPCSE 33, TUCSS 34, TUCSO 50; PAYLEN, TUCMD TCP IP TSE, HDRLEN, MSS.
    let context = [0x0000_3222_0021_180e, 2934 | 7 << 24 | all | 66 << 40 | 1448 << 48];
    assert_eq!(chip(&mut nic).descriptor(Register::TDBAL, 0), context);
    let [_, data] = chip(&mut nic).descriptor(Register::TDBAL, 1);
    let last = command::EOP | command::IFCS | command::RS | command::VLE;
    assert_eq!(data, 3000 | 1 << 20 | last | all | command::TSE | 3 << 40 | 0x2064 << 48);
    assert_eq!(chip(&mut nic).transmit(), [frame(3000)]);
    assert_eq!(nic.reap(), nic.slots(), "DD of the data descriptor, not of the context");
    // A tag alone needs no context.
    let slot = nic.next().unwrap();
    nic.set_offload(slot, Offload { vlan: Some(5), ..Offload::default() });
    send(&mut nic, &frame(60));
    let [_, legacy] = chip(&mut nic).descriptor(Register::TDBAL, 2);
    assert_eq!(legacy, 60 | last | command::IDE | 5 << 48);
}

#[test]
fn frames_are_received_from_an_interrupt_on_until_the_ring_is_dry() {
    let mut nic = start(small());
    let mut batch = nic.batch();
    let quiet = accesses(&nic, Register::ICR).0;
    assert!(!nic.ready(), "no interrupt, no look");
    for round in 0..30 {
        let lens = [60 + round, 61 + round, 62 + round];
        lens.iter().for_each(|len| chip(&mut nic).receive(&frame(*len)));
        assert!(nic.ready());
        assert_eq!(chip(&mut nic).get(Register::IMS), 0, "masked while polling");
        assert_eq!(take(&mut nic, &mut batch, 2), [frame(lens[0]), frame(lens[1])]);
        nic.release(&mut batch);
        assert_eq!(take(&mut nic, &mut batch, 9), [frame(lens[2])]);
        nic.release(&mut batch);
        assert_eq!(nic.outstanding(), 7);
        assert!(!nic.ready());
        assert_eq!(chip(&mut nic).get(Register::IMS), cause::ALL, "dry: enabled again");
    }
    assert_eq!(accesses(&nic, Register::ICR).0 - quiet, 30, "one interrupt for each round");
    assert_eq!(nic.interrupt_stats(), InterruptStats { sent: 30, ..Default::default() });
    assert_eq!(accesses(&nic, Register::IMC).1, 2 + 30, "two of the reset");
    assert_eq!(accesses(&nic, Register::IMS).1, 1 + 30);
    assert!(nic.is_sound());
}

#[test]
fn a_frame_between_the_last_look_and_the_mask_still_interrupts() {
    let mut nic = start(small());
    chip(&mut nic).receive(&frame(60));
    let mut batch = nic.batch();
    assert_eq!(take(&mut nic, &mut batch, 9).len(), 1);
    nic.release(&mut batch);
    chip(&mut nic).at_next_ims = Some(frame(77));
    assert!(!nic.ready());
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Ready);
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(77)]);
}

#[test]
fn a_chip_that_forgets_its_interrupt_is_found_out() {
    let mut nic = start(small());
    chip(&mut nic).deaf = true;
    chip(&mut nic).receive(&frame(60));
    assert!(!nic.ready());
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Ready);
    assert_eq!(nic.interrupt_stats().missed, 1);
    let mut batch = nic.batch();
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(60)]);
}

#[test]
fn a_driver_that_owns_its_core_is_interrupted_only_while_it_sleeps() {
    let mut nic = start(Options { interrupts: Interrupts::Idle, ..small() });
    assert_eq!(chip(&mut nic).get(Register::IMS), 0);
    let mut batch = nic.batch();
    chip(&mut nic).receive(&frame(60));
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(60)], "no interrupt is needed");
    nic.release(&mut batch);
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Ready, "the cause of before is still there");
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Timeout);
    chip(&mut nic).receive(&frame(61));
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Ready);
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(61)]);
}

#[test]
fn the_budget_bounds_a_poll_and_rdt_is_written_for_every_sixteen_buffers() {
    for (refill, writes) in [(16, 4), (0, 1), (64, 1)] {
        let mut nic = start(Options { size: 128, refill, ..small() });
        for _ in 0..100 {
            chip(&mut nic).receive(&frame(60));
        }
        let mut batch = nic.batch();
        let before = accesses(&nic, Register::RDT).1;
        assert_eq!(take(&mut nic, &mut batch, 1000).len(), 64);
        nic.release(&mut batch);
        assert_eq!(accesses(&nic, Register::RDT).1 - before, writes);
        assert_eq!(take(&mut nic, &mut batch, 1000).len(), 36);
    }
}

#[test]
fn a_frame_in_several_buffers_is_one_frame() {
    let mut nic = start(Options { buffer: 256, mtu: 9000, ..small() });
    assert_ne!(chip(&mut nic).get(Register::RCTL) & rctl::LPE, 0);
    let mut batch = nic.batch();
    for len in [252, 253, 300, 508, 509, 1200, 60] {
        chip(&mut nic).receive(&frame(len));
        assert_eq!(take(&mut nic, &mut batch, 9), [frame(len)], "with its CRC cut off");
        let got = batch.frames()[0];
        let mut middle = [0; 20];
        assert_eq!(nic.read(got, 30, &mut middle), 20);
        assert_eq!(middle, frame(len)[30..50]);
        nic.release(&mut batch);
        assert_eq!(nic.outstanding(), 7);
        assert!(!nic.ready());
    }
}

#[test]
fn lies_of_the_device_are_counted_and_harmless() {
    let mut nic = start(Options { buffer: 256, interrupts: Interrupts::Idle, ..small() });
    let mut batch = nic.batch();
    for word in [
        257 | bits::DD | bits::EOP,
        0xffff | bits::DD | bits::EOP,
        3 | bits::DD | bits::EOP,
        60 | bits::DD | bits::EOP | 1 << 40,
    ] {
        chip(&mut nic).write_back(word);
        assert_eq!(nic.poll(&mut batch, 9), 0);
        nic.release(&mut batch);
    }
    assert_eq!(nic.rx_stats().malformed, 4);
    // A frame without an end fills the ring.
    for _ in 0..7 {
        chip(&mut nic).write_back(256 | bits::DD);
    }
    assert_eq!(nic.poll(&mut batch, 9), 0);
    nic.release(&mut batch);
    assert_eq!((nic.rx_stats().malformed, nic.outstanding()), (5, 7));
    assert!(!nic.is_sound());
    chip(&mut nic).receive(&frame(60));
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(60)], "and goes on");
}

#[test]
fn what_the_device_says_about_a_frame_is_passed_on() {
    let mut nic = start(Options { interrupts: Interrupts::Idle, ..small() });
    let mut batch = nic.batch();
    let done = 64 | bits::DD | bits::EOP;
    chip(&mut nic).write_back(done | bits::VP | 0x6005 << 48);
    chip(&mut nic).write_back(done | bits::TCPCS);
    chip(&mut nic).write_back(done | bits::TCPCS | bits::TCPE);
    chip(&mut nic).write_back(done | bits::TCPCS | bits::IXSM);
    nic.poll(&mut batch, 9);
    let said: Vec<_> = batch.frames().iter().map(|f| (f.vlan(), f.checksum())).collect();
    let none = (None, None);
    assert_eq!(said, [(Some(0x6005), None), (None, Some(true)), (None, Some(false)), none]);
}

#[test]
fn mapped_doorbells_are_stores_and_the_rest_is_trapped() {
    let ram = crate::nic::make_ram(&small()).unwrap();
    let mut fake = Fake::new(&ram);
    fake.map();
    let mut nic = E1000::new(small(), &ram, fake).unwrap();
    let trips = accesses(&nic, Register::TDT);
    assert_eq!(trips, (0, 0));
    for len in 60..65 {
        send(&mut nic, &frame(len));
    }
    nic.flush();
    assert_eq!(accesses(&nic, Register::TDT), trips);
    assert_eq!(nic.registers().counts()[Register::TDT as usize].mapped, 1 + 5);
    assert_eq!(chip(&mut nic).transmit().len(), 5);
    // The chip interrupted once for all five; the handler is three trips.
    nic.flush();
    chip(&mut nic).receive(&frame(60));
    assert!(nic.ready());
    assert_eq!(nic.interrupt_stats().sent, 1);
}

#[test]
fn after_a_failure_registers_are_ones_and_another_chip_can_go_on() {
    let ram = crate::nic::make_ram(&small()).unwrap();
    let mut nic = E1000::new(small(), &ram, Fake::new(&ram)).unwrap();
    nic.set_mac([2; 6]);
    send(&mut nic, &frame(60));
    chip(&mut nic).gone = true;
    assert_eq!(nic.registers_mut().read(Register::STATUS), u32::MAX);
    send(&mut nic, &frame(60));
    assert!(!nic.is_connected());
    assert_eq!(nic.wait(RX, QUIET).unwrap(), Wake::Disconnected);
    nic.restart(Fake::new(&ram)).unwrap();
    assert_eq!((nic.free_slots(), nic.outstanding(), nic.mac()), (7, 7, [2; 6]));
    chip(&mut nic).receive(&frame(77));
    let mut batch = nic.batch();
    assert_eq!(take(&mut nic, &mut batch, 9), [frame(77)]);
}

#[test]
fn extended_descriptors_say_it_in_other_places() {
    use super::descriptor::ExtendedDescriptor as Extended;
    use crate::chip::{Report, RxFormat};
    let done = 64 << 32 | 3;
    assert!(Extended::is_done(done) && Extended::is_end(done) && !Extended::is_bad(done));
    let said = (Extended::len(done), Extended::vlan(done), Extended::checksum(done));
    assert_eq!(said, (64, None, None));
    assert_eq!(Extended::vlan(done | 8 | 0x6005 << 48), Some(0x6005));
    let checksum = |bits| Extended::checksum(done | bits);
    assert_eq!([0x20, 0x20 | 1 << 29, 0x24].map(checksum), [Some(true), Some(false), None]);
    assert!(Extended::is_bad(done | 1 << 31) && !Extended::is_done(2));
}
