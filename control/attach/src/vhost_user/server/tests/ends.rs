//! How a connection ends, as its front end and the workers see it.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// One with one queue pair started.
fn started() -> World {
    let mut world = World::new(false);
    for (n, said) in Guest::new().script(false).into_iter().take(20).enumerate() {
        say(&world, said, n);
    }
    world.serve();
    world.replies();
    assert_eq!(world.server.port.kicks().len(), 2);
    world
}

/// A front end that reads the end of its connection may free its memory, or look what was used.
#[test]
fn the_queues_stop_before_the_front_end_hears_of_the_end() {
    let mut world = started();
    let port = Arc::clone(&world.server.port);
    let (server, front) = (&mut world.server, &mut world.front);
    let mut said = || front.read(&mut [0]).map_err(|e| e.kind());
    // A worker is at work.
    let at_work = port.both();
    std::thread::scope(|s| {
        let end = s.spawn(|| server.hang_up());
        while port.kicks().len() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(said(), Err(ErrorKind::WouldBlock));
        drop(at_work);
        end.join().unwrap();
        assert_eq!(said(), Ok(0));
    });
}

/// A front end that connects again all the time, or breaks its queues, wakes all workers as rarely
/// as one that talks.
#[test]
fn workers_hear_of_an_end_and_of_a_fault_after_a_pause() {
    let mut world = started();
    let told = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&told);
    world.server.changed = Arc::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
    let told = || told.load(Ordering::Relaxed);
    let now = Instant::now();
    world.server.notified = now + Duration::from_secs(3600);
    // A worker has woken the port's thread, as for a fault.
    world.turn();
    world.server.hang_up();
    world.turn();
    assert_eq!((told(), world.server.notify_later), (0, true));
    world.server.notified = now;
    while told() == 0 {
        world.turn();
    }
}
