//! What a client can do with an interrupt's eventfd, whose open file it shares with us: nothing
//! that others notice.

mod common;
mod vfio;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, clear_nonblocking, crowd, is_slow, make_blocking, until};
use vfio::*;
use vmlan_attach::vfio_user::Model;
use vmlan_transport::sys::EventFd;

/// Each vector is a stranger's eventfd as the others are.
#[test]
fn a_vector_that_hangs_ends_its_connection() {
    let f = Fixture::with(|config| config.model = Model::Vmxnet3);
    let (line, other) = (eventfd(), eventfd());
    let mut client = f.ready();
    assert_eq!(client.set_vectors(EVENTFD | TRIGGER, 0, 1, &[raw(&other)]), Some(0));
    assert_eq!(client.set_vectors(EVENTFD | TRIGGER, 24, 1, &[raw(&line)]), Some(0));
    make_blocking(&line);
    // The write to it is ended, but whoever did that is not served any more.
    let _ = client.set_vectors(NONE | TRIGGER, 0, 25, &[]);
    assert!(client.is_closed());
    assert_eq!(count(&other), 1);
    let _ = count(&line);
    assert!(f.faults() > 0);
}

/// Makes the chip raise and withdraw its interrupt once.
fn interrupt(client: &mut Raw) -> Option<u32> {
    let ics = access(0, e1000::ICS, 4, &4u32.to_le_bytes());
    client.ask(WRITE, &ics, &[])?;
    client.ask(READ, &access(0, e1000::ICR, 4, &[]), &[])?;
    client.set_irqs(NONE | UNMASK, INTX, 1, &[])
}

fn connect(f: &Fixture, line: &File) -> Raw {
    let mut client = f.ready();
    client.enable();
    client.set(e1000::IMS, 4);
    assert_eq!(client.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(line)]), Some(0));
    client
}

/// Each watch on an eventfd is served by whoever writes to it. How many are too many is judged in
/// simulated time, where the cost is counted.
#[test]
fn an_interrupt_that_wakes_a_crowd_ends_its_connection_and_is_not_had_again_at_once() {
    let f = Fixture::new();
    let line = eventfd();
    let mut client = connect(&f, &line);
    let crowd = crowd(&line);
    if !is_slow(&EventFd::from(OwnedFd::from(line.try_clone().unwrap()))) {
        return;
    }
    let mut last = Instant::now();
    until("the port has had enough", || {
        let before = Instant::now();
        let ended = interrupt(&mut client) != Some(0);
        last = before;
        ended
    });
    assert!(client.is_closed());
    drop(crowd);
    f.assert_alive();
    assert!(last.elapsed() >= Duration::from_secs(3), "served again at once");
}

/// Nobody but a timer interrupts the port's own thread.
#[test]
fn an_interrupt_that_hangs_its_port_costs_nobody_else() {
    let (f, other) = (Fixture::new(), Fixture::new());
    let line = eventfd();
    let mut client = connect(&f, &line);
    let mut neighbour = other.ready();
    make_blocking(&line);
    let end = AtomicBool::new(false);
    let closed = std::thread::scope(|s| {
        s.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                clear_nonblocking(&line);
            }
        });
        client.sock.set_read_timeout(Some(PATIENCE)).unwrap();
        while interrupt(&mut client) == Some(0) {}
        let closed = client.is_closed();
        end.store(true, Ordering::Relaxed);
        closed
    });
    assert_eq!(neighbour.config16(0), 0x8086);
    let faults = f.faults();
    // If it hangs in there still, `drop` would as well.
    let _ = count(&line);
    assert!(closed && faults > 0);
    f.assert_alive();
}

#[test]
fn a_port_that_hangs_can_be_closed_and_made_again() {
    let mut f = Fixture::new();
    let line = eventfd();
    let mut client = connect(&f, &line);
    make_blocking(&line);
    client.post(e1000::ICS, 4);
    let start = Instant::now();
    f.door.close();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(!f.path().exists());
    f.renew();
    f.assert_alive();
}

/// The pin moves in workers and in the port's thread at once.
#[test]
fn no_interrupt_is_lost_between_masking_and_unmasking() {
    let f = Fixture::new();
    let line = eventfd();
    let mut client = connect(&f, &line);
    for round in 0..3000 {
        client.post(e1000::ICS, 4);
        if round % 2 == 0 {
            assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
        }
        until("an interrupt", || count(&line) > 0);
        client.get(e1000::ICR);
        assert_eq!(client.set_irqs(NONE | UNMASK, INTX, 1, &[]), Some(0));
        let _ = count(&line);
    }
}

/// Each change wakes every worker of the switch.
#[test]
fn a_client_that_talks_all_the_time_does_not_wake_the_workers_for_each_message() {
    let f = Fixture::new();
    let mut client = f.ready();
    let before = f.changes.load(std::sync::atomic::Ordering::SeqCst);
    for i in 0..5000 {
        client.post(e1000::TDLEN, i * 128);
    }
    client.get(e1000::STATUS);
    let woken = f.changes.load(std::sync::atomic::Ordering::SeqCst) - before;
    assert_eq!(woken, 0);
}
