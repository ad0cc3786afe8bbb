//! A guest that is flooded, with a limit to its interrupts, in simulated time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::super::NetRx;
use super::guest::*;
use crate::Interrupt;
use crate::notify::moderate::{Clock, Moderator};

#[derive(Default)]
struct FakeTime {
    now: AtomicU64,
    timer: Mutex<Option<u64>>,
}

impl Clock for &FakeTime {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
    fn set_timer(&self, at: u64) {
        *self.timer.lock().unwrap() = Some(at);
    }
}

/// A port with one ring: what its guest was interrupted for, and when.
#[derive(Default)]
struct Port {
    moderator: Moderator,
    time: FakeTime,
    told: Mutex<Vec<u64>>,
}

impl Port {
    fn tell(&self) {
        self.told.lock().unwrap().push(self.time.now.load(Ordering::Relaxed));
    }

    fn pass(&self, ns: u64) {
        let now = self.time.now.fetch_add(ns, Ordering::Relaxed) + ns;
        let fires = self.time.timer.lock().unwrap().take_if(|at| *at <= now).is_some();
        if fires && self.moderator.due(&&self.time).contains(0) {
            self.tell();
        }
    }

    fn told(&self) -> usize {
        self.told.lock().unwrap().len()
    }
}

impl Interrupt for Port {
    fn raise(&self) -> bool {
        let now = self.moderator.admits(0, &&self.time);
        if now {
            self.tell();
        }
        now
    }
}

/// The guest sleeps until it is interrupted, takes what there is, gives the buffers back and sleeps
/// again.
fn flood(features: u64, rate: u32) -> (Arc<Port>, u64, u64) {
    let mut b = Bench::<NetRx>::new(256, V1 | features);
    let port = Arc::new(Port::default());
    b.net.set_interrupt(0, Some(port.clone())).unwrap();
    port.moderator.set_rate(rate, &&port.time);
    for i in 0..256 {
        b.guest.offer(i, 1526);
    }
    let (mut pushed, mut taken, mut heard) = (0, 0, 0);
    // A frame each 20 us, for two seconds.
    for _ in 0..100_000u32 {
        pushed += b.push(&[&frame(1, 60)]) as u64;
        port.pass(20_000);
        if port.told() > heard {
            heard = port.told();
            for (head, _) in b.guest.used() {
                taken += 1;
                b.guest.post(u16::try_from(head).unwrap());
            }
            b.guest.set_used_event(b.guest.used_idx());
        }
    }
    // Silence: what is held back comes.
    port.pass(1_000_000_000);
    if port.told() > heard {
        taken += b.guest.used().len() as u64;
    }
    let counted = b.counters.output.notifications.get();
    assert!(counted <= port.told() as u64, "those told at once");
    (port, pushed, taken)
}

#[test]
fn a_flood_interrupts_no_more_often_than_allowed_and_nothing_is_left_behind() {
    for features in [0, EVENT] {
        let (free, pushed, taken) = flood(features, 0);
        assert_eq!((pushed, taken), (100_000, 100_000));
        assert_eq!(free.told(), 100_000, "each frame finds the guest asleep");
        let (port, pushed, taken) = flood(features, 1000);
        assert_eq!((pushed, taken), (100_000, 100_000), "features {features:#x}");
        let told = port.told.lock().unwrap();
        assert!((1995..=2001).contains(&told.len()), "{} in two seconds", told.len());
        assert!(told.windows(2).all(|pair| pair[1] - pair[0] >= 1_000_000));
    }
}

/// The ring is small: the guest, which is told late, is out of buffers meanwhile, and goes on from
/// there.
#[test]
fn a_guest_that_is_told_late_gets_all_that_its_ring_held() {
    let (port, pushed, taken) = flood(EVENT, 100);
    assert_eq!(pushed, taken);
    assert!((50_000..60_000).contains(&pushed), "{pushed}");
    assert!((199..=201).contains(&port.told()), "{}", port.told());
}
