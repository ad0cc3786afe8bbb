//! The dirty log of live migration: it has every page that the device has written, in every shape
//! of ring, and a front end that asks for it in bad faith harms nobody.

mod common;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::time::Duration;

use common::mirror::*;
use common::*;
use vmlan_driver::virtio::VirtioNet;
use vmlan_frame::{Batch, Port};

const PAGE: usize = 4096;
/// `VHOST_F_LOG_ALL`
const LOG_ALL: u64 = 1 << 26;

fn memory(nic: &VirtioNet) -> Vec<u8> {
    let mut all = vec![0; nic.ram().size()];
    nic.ram().read(0, &mut all);
    all
}

/// Posts frames of lengths that fit in one buffer, and that do not.
fn post(nic: &mut VirtioNet, round: usize) {
    let tx = &mut nic.pairs[0].tx;
    tx.reap();
    let most = tx.room();
    for n in 0..40 {
        let Some(slot) = tx.next() else { break };
        let len = [60, most, most / 2 + n][(n + round) % 3].clamp(14, most);
        tx.write(slot, 0, &vec![0x40 | u8::try_from(round % 64).unwrap(); len]);
        tx.send(slot, u32::try_from(len).unwrap());
    }
    tx.flush();
}

/// All that a worker does with a port, until nothing moves.
fn serve(port: &dyn Port) {
    let mut batch = Batch::new();
    while bounce(port, &mut batch, false).0 > 0 {}
    port.want_room();
    port.arm(0);
    port.disarm(0);
}

#[test]
fn every_page_that_the_device_writes_is_logged() {
    for more in SHAPES {
        let f = Fixture::new();
        let port = f.door.port();
        let mut nic = VirtioNet::connect(&address(&f, more), Duration::from_secs(10)).unwrap();
        let mut batch = nic.pairs[0].rx.batch();
        let (mut frames, mut pages) = (0, 0);
        // A log of its own for each round: each ring is gone round more than once.
        for round in 0..30 {
            let log = nic.start_dirty_log().unwrap();
            post(&mut nic, round);
            // From here to there only the device writes.
            let before = memory(&nic);
            serve(&*port);
            let after = memory(&nic);
            let all = before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
            for (page, _) in all.filter(|(_, (was, is))| was != is) {
                let at = nic.ram().guest_phys(page * PAGE);
                assert!(log.is_dirty(at).unwrap(), "{more}, round {round}: page {at:#x}");
                pages += 1;
            }
            frames += nic.pairs[0].rx.poll(&mut batch, usize::MAX);
            nic.pairs[0].rx.release(&mut batch);
        }
        assert!(frames >= 30 && pages >= 60, "{more}: {frames} frames, {pages} pages");
        assert_eq!(f.faults(), 0, "{more}");
    }
}

#[test]
fn logging_begins_and_ends_under_traffic() {
    for more in ["", ",packed=on"] {
        let f = Fixture::new();
        let port = f.door.port();
        let mut nic = VirtioNet::connect(&address(&f, more), Duration::from_secs(10)).unwrap();
        with_worker(&*port, || {
            for _ in 0..20 {
                let log = nic.start_dirty_log().unwrap();
                round_trip(&mut nic, 40);
                assert!(log.dirty_pages().unwrap() > 0, "{more}");
                nic.stop_dirty_log().unwrap();
                let before = log.dirty_pages().unwrap();
                round_trip(&mut nic, 40);
                assert_eq!(log.dirty_pages().unwrap(), before, "{more}: nobody asks any more");
            }
        });
        assert_eq!(f.faults(), 0, "{more}");
    }
}

/// Starts logging to a file of the front end's own, as a hostile one would.
fn log_to(raw: &mut Raw, file: &File, [size, offset]: [u64; 2]) {
    raw.send(6, 1, &words(&[size, offset]), &[file.as_raw_fd()]);
    assert_eq!(raw.reply(), Some((6, words(&[size, offset]))));
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL | LOG_ALL]), &[]), Some(0));
}

/// A frame from the guest back to it. False: the port stands still.
fn passes(f: &Fixture, guest: &Guest, n: u16) -> bool {
    let high = guest.ram.guest_phys(1 << 20);
    guest.post(0, n, high + 8192, 2048, true);
    guest.post(1, n, high, 80, false);
    bounce(&*f.door.port(), &mut Batch::new(), false).0 == 1
}

#[test]
fn a_reset_device_logs_no_more() {
    let (f, guest) = (Fixture::new(), Guest::new());
    let mut raw = f.ready();
    guest.start(&mut raw);
    let file = memfd(1 << 18);
    log_to(&mut raw, &file, [1 << 18, 0]);
    assert_eq!(f.detail("migrating"), "yes");
    assert!(raw.base(0).is_some() && raw.base(1).is_some());
    assert_eq!(f.detail("migrating"), "", "its guest has gone");
    assert_eq!(raw.ask(34, &[], &[]), Some(0), "RESET_DEVICE");
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(0));
    guest.start_ring(&mut raw, 0);
    guest.start_ring(&mut raw, 1);
    assert!(passes(&f, &guest, 0));
    let mut log = Vec::new();
    (&file).read_to_end(&mut log).unwrap();
    assert!(log.iter().all(|byte| *byte == 0), "nobody asks for it");
}

#[test]
fn a_log_that_is_too_short_or_shrinks_is_its_owners_loss() {
    vmlan_ram::sigbus::install().unwrap();
    let (f, guest) = (Fixture::new(), Guest::new());
    let mut raw = f.ready();
    guest.start(&mut raw);
    // A bit for each of the first eight pages; one at an odd place; nothing, in the end.
    let file = memfd(1 << 18);
    for (n, place) in [(0, [1, 0]), (1, [1000, 4095]), (2, [1 << 18, 0])] {
        log_to(&mut raw, &file, place);
        assert!(passes(&f, &guest, n), "{place:?}");
    }
    file.set_len(0).unwrap();
    assert!(passes(&f, &guest, 3) && f.is_up(), "frames pass, and nobody hears of pages");
    let [desc, used, avail] = guest.ring_addr(0);
    let mut body = halves(&[0, 1]);
    body.extend(words(&[desc, used, avail, u64::MAX]));
    assert_eq!(raw.ask(9, &body, &[]), Some(0), "a used ring that is logged at the end of all");
    assert!(passes(&f, &guest, 4));
    assert_eq!(raw.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(0));
    assert!(passes(&f, &guest, 5));
    assert_eq!(f.faults(), 0);
}
