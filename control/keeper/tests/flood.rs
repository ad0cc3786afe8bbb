//! A peer that sends descriptors without end.

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{connected, memfd, try_send};
use rustix::net::SendFlags;
use vmlan_harness::Family;
use vmlan_harness::usage::run_time;

/// Its keeper has a hundredth of a core for that, and 20 ms at once.
#[test]
fn a_flood_of_descriptors_has_little_of_a_core() {
    let (_dir, _keeper, kept, peer) = connected();
    let keeper = Family::of(std::process::id()).unwrap().named("keeper")[0];
    peer.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    // Few under way: all processes of a user share their limit, and other tests run.
    rustix::net::sockopt::set_socket_send_buffer_size(&peer, 1).unwrap();
    let (over, file) = (AtomicBool::new(false), memfd());
    let (used, took, served) = std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = try_send(&peer, b"x", &[file.as_fd(); 16], SendFlags::DONTWAIT);
            }
        });
        let (begin, before) = (Instant::now(), run_time(keeper).unwrap());
        let mut served = 0;
        let is_over = |served: u32| match begin.elapsed().as_secs() {
            4..60 => served > 10,
            seconds => seconds >= 60,
        };
        while !is_over(served) {
            let mut fds = Vec::new();
            served += u32::from(kept.take(&mut [0; 1], &mut fds).is_ok());
        }
        over.store(true, Ordering::Relaxed);
        (run_time(keeper).unwrap() - before, begin.elapsed(), served)
    });
    println!("{served} messages in {took:?}, for {used:?} of the keeper's CPU time");
    assert!(served > 10, "it is served");
    // Far more than that: `budget.rs` has the figures in simulated time. No sleep is longer than
    // 200 ms, so on a CPU on which a request takes long each of so many requests has its time.
    let sleeps = u32::try_from(took.as_millis() / 200).unwrap();
    let limit = Duration::from_millis(150) + took / 13 + used / served * sleeps;
    assert!(used < limit, "{used:?} in {took:?}");
}
