//! A peer that asks for more than a well-behaved one ever does waits, and nobody else does.

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;

/// 4,096 messages are served at once, and 10,000 in each second after that.
#[test]
fn a_flood_of_messages_waits() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let begin = Instant::now();
    // SET_OWNER, which is not answered.
    let many = message(3, 1, &[]).repeat(20);
    for _ in 0..300 {
        raw.bytes(&many, &[]).unwrap();
    }
    assert!(raw.get(1, &[]).is_some(), "it is served, in the end");
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(190), "6,001 messages in {took:?}");
}

/// 512 descriptors are taken at once, and 500 in each second after that.
#[test]
fn a_flood_of_descriptors_waits() {
    let f = Fixture::new();
    let mut raw = f.ready();
    let file = memfd(4096);
    let begin = Instant::now();
    for _ in 0..40 {
        // SET_OWNER, which has none.
        assert_eq!(raw.ask(3, &[], &[file.as_raw_fd(); 16]), Some(1));
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(220), "640 descriptors in {took:?}");
}

/// While it waits, the port does what its owner says.
#[test]
fn a_flood_of_messages_does_not_keep_the_owner_out() {
    let mut f = Fixture::new();
    let raw = f.ready();
    let many = message(3, 1, &[]).repeat(20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) && raw.bytes(&many, &[]).is_ok() {
                std::hint::spin_loop();
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        f.door.close();
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!f.path().exists(), "the thread was left behind");
}

/// 16 connections that move no frame are accepted at once, and 5 in each second after that. A new
/// one is no new start for messages either.
#[test]
fn connections_that_come_and_go_wait() {
    let f = Fixture::new();
    let begin = Instant::now();
    for _ in 0..20 {
        // Answered, or turned away because the one before has not gone yet: it was accepted.
        let _ = f.connect().get(1, &[]);
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(600), "20 connections in {took:?}");
    f.assert_alive();
}
