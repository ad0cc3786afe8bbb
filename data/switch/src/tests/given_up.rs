//! A receiver that takes frames of some does not hold others' for ever.

use super::*;
use crate::Source;

/// Nanoseconds between looks.
const STEP: u64 = 10_000;
const FULL_WAIT: u64 = 10_000_000;

/// Port 0 suffers, 1 picks what it takes, 2 is its accomplice, whose frames pay for all waiting, 3
/// is honest.
fn picky() -> World {
    let mut w = world(4, Options::default());
    (0..4).for_each(|port| w.switch.fdb().add_static(at(port), Domain::OPEN, id(port)).unwrap());
    w.ports[1].longest.store(60, Ordering::Relaxed);
    // Only who left few frames for each receiver joins others.
    w.breathe(0, 1);
    w
}

fn at(port: usize) -> Mac {
    mac(u8::try_from(port).unwrap() + 1)
}

impl World {
    /// A large frame from port 0 to port 1, and a small one to port 3.
    fn ask(&mut self) {
        self.send(0, at(1), at(0), 1);
        self.ports[0].tx.lock().unwrap().last_mut().unwrap().resize(1514, 0);
        self.send(0, at(3), at(0), 2);
    }

    /// How long port 0 holds something, from `now` on.
    fn held(&mut self, now: u64, breathe: impl Fn(&mut World, u64)) -> u64 {
        for step in 1..100_000 {
            (0..4).for_each(|tag| self.send(2, at(1), at(2), tag));
            breathe(self, now + step * STEP);
            assert_eq!(self.tags(1), [0, 1, 2, 3], "the accomplice is served");
            if self.ports[0].tx.lock().unwrap().is_empty() {
                return step * STEP;
            }
        }
        panic!("held for ever");
    }
}

fn apart(w: &mut World, now: u64) {
    w.breathe(2, now);
    w.breathe(0, now);
}

fn together(w: &mut World, now: u64) {
    let mut sources = [2, 0].map(|port| Source::new(id(port)));
    w.forwarder.joint_breath(&w.table, &mut sources, now);
}

/// Each once alone, so that what one kind of breath begins the other goes on with.
fn in_turn(w: &mut World, now: u64) {
    if (now / STEP).is_multiple_of(2) { apart(w, now) } else { together(w, now) }
}

#[test]
fn who_takes_from_some_does_not_hold_others_for_ever() {
    for breathe in [apart, together, in_turn] {
        let mut w = picky();
        w.ask();
        let held = w.held(FULL_WAIT, breathe);
        assert_eq!((w.tags(3), w.dropped(1, Reason::ReceiverFull)), (vec![2], 1));
        assert!((4 * FULL_WAIT..5 * FULL_WAIT).contains(&held), "for {held} ns");
        // For a while it does not wait, but what finds room is taken; others are waited for.
        w.ask();
        assert_eq!(w.held(6 * FULL_WAIT, breathe), STEP);
        w.ports[3].room.store(0, Ordering::Relaxed);
        w.send(0, at(3), at(0), 3);
        breathe(&mut w, 7 * FULL_WAIT);
        assert_eq!(w.ports[0].tx.lock().unwrap().len(), 1, "held for another one");
        w.ports[3].room.store(99, Ordering::Relaxed);
        w.ports[1].longest.store(2000, Ordering::Relaxed);
        w.ask();
        breathe(&mut w, 7 * FULL_WAIT + STEP);
        assert_eq!((w.tags(1), w.tags(3)), (vec![1], vec![2, 3, 2]));
        // Then it is forgotten.
        w.ports[1].longest.store(60, Ordering::Relaxed);
        w.ask();
        assert!(w.held(257 * FULL_WAIT, breathe) >= 4 * FULL_WAIT);
    }
}

/// A slow receiver that 64 share: each has to wait until all others had a burst.
#[test]
fn many_who_share_a_slow_receiver_lose_nothing() {
    let mut w = world(65, Options::default());
    (0..65).for_each(|port| w.switch.fdb().add_static(at(port), Domain::OPEN, id(port)).unwrap());
    w.ports[64].room.store(0, Ordering::Relaxed);
    for round in 0..130 {
        w.ports[64].room.store(16, Ordering::Relaxed);
        for port in 0..64 {
            let from = (port + round) % 64;
            while w.ports[from].tx.lock().unwrap().len() < 32 {
                w.send(from, at(64), at(from), 0);
            }
            w.breathe(from, FULL_WAIT + round as u64 * 320_000 + port as u64);
        }
        assert_eq!(w.tags(64).len(), 16);
    }
    assert_eq!(w.dropped(64, Reason::ReceiverFull), 0);
}

/// Who had the number of a port before is not its concern.
#[test]
fn a_new_port_has_given_nobody_up() {
    let mut w = picky();
    w.ask();
    w.held(FULL_WAIT, apart);
    for gone in [0, 1] {
        w.switch.waits.give_up(id(1), id(0), 6 * FULL_WAIT);
        let may = |w: &World| w.switch.waits.may(id(1), Some(id(0)), 6 * FULL_WAIT);
        assert!(!may(&w));
        w.switch.waits.reset(id(gone));
        assert!(may(&w));
    }
}

/// One frame now and then does not buy all the time until the next one.
#[test]
fn who_takes_one_frame_now_and_then_does_not_hold_its_sender_for_ever() {
    for breathe in [apart, together, in_turn] {
        let mut w = picky();
        (0..300).for_each(|_| w.ask());
        let now_and_then = |w: &mut World, now: u64| {
            if now % 39_000_000 < STEP {
                let [longest, room] = [2000, 1];
                w.ports[1].longest.store(longest, Ordering::Relaxed);
                w.ports[1].room.store(room, Ordering::Relaxed);
                w.breathe(0, now);
                assert_eq!(w.tags(1), [1]);
                w.ports[1].longest.store(60, Ordering::Relaxed);
                w.ports[1].room.store(usize::MAX, Ordering::Relaxed);
            }
            breathe(w, now);
        };
        let held = w.held(FULL_WAIT, now_and_then);
        assert!((4 * FULL_WAIT..5 * FULL_WAIT).contains(&held), "for {held} ns");
    }
}

struct Numbered<'s> {
    ring: usize,
    sink: &'s mut dyn Sink,
}

impl Sink for Numbered<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        batch.set_ring(self.ring);
        self.sink.deliver(batch);
    }
}

/// A port with two rings in a lane, each of which lends a batch of its own.
struct TwoRings {
    rings: [Arc<Fake>; 2],
    turn: AtomicUsize,
}

impl Port for TwoRings {
    fn pull(
        &self,
        lane: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % 2;
        let pull =
            |ring: usize| self.rings[ring].pull(lane, spare, limit, &mut Numbered { ring, sink });
        [first, 1 - first].into_iter().map(pull).sum()
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        self.rings[0].push(batch, list)
    }
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        false
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        self.rings[0].counters()
    }
}

/// Ports 0 and 1 are rings of one, and 2 and 3 receive.
fn rings() -> World {
    let mut w = world(4, Options::default());
    (0..4).for_each(|port| w.switch.fdb().add_static(at(port), Domain::OPEN, id(port)).unwrap());
    let both = TwoRings { rings: [0, 1].map(|ring| w.ports[ring].clone()), turn: 0.into() };
    let ports: [Arc<dyn Port>; 4] =
        [Arc::new(both), w.ports[1].clone(), w.ports[2].clone(), w.ports[3].clone()];
    let entry = |port| Some(Entry { name: "p".into(), port, mirror: None, policy: Arc::default() });
    w.table = Table::new(ports.into_iter().map(entry).collect());
    w.forwarder.grow(&w.table);
    w
}

/// The head of one ring is not that of another one.
#[test]
fn who_serves_both_rings_of_a_lane_is_not_given_up() {
    let mut w = rings();
    for look in 1..2_000 {
        for ring in [0, 1] {
            while w.ports[ring].tx.lock().unwrap().len() < 64 {
                w.send(ring, at(2), at(0), 0);
            }
        }
        // 50,000 frames/s.
        w.ports[2].room.store(8, Ordering::Relaxed);
        w.breathe(0, look * 160_000);
        assert_eq!(w.tags(2).len(), 8);
    }
    assert_eq!(w.dropped(2, Reason::ReceiverFull), 0);
}

/// Nor do heads that get on hide one that does not.
#[test]
fn each_ring_of_a_lane_gives_up_for_itself() {
    let mut w = rings();
    w.ports[3].longest.store(0, Ordering::Relaxed);
    for look in 1..600 {
        for ring in [0, 1] {
            while w.ports[ring].tx.lock().unwrap().len() < 64 {
                w.send(ring, at(2), at(0), 0);
            }
        }
        if look == 10 {
            w.send(1, at(3), at(0), 1);
            w.ports[1].tx.lock().unwrap().rotate_right(1);
        }
        w.ports[2].room.store(8, Ordering::Relaxed);
        w.switch.waits.took(id(3), || 10_000, look * 160_000);
        w.breathe(0, look * 160_000);
        if w.dropped(3, Reason::ReceiverFull) > 0 {
            assert!((4 * FULL_WAIT..5 * FULL_WAIT).contains(&(look * 160_000)));
            break;
        }
    }
    assert_eq!([2, 3].map(|port| w.dropped(port, Reason::ReceiverFull)), [0, 1]);
}

/// Who shares a receiver by joint breaths gets its part as well.
#[test]
fn who_is_served_in_company_does_not_give_up() {
    let mut w = picky();
    w.ports[1].longest.store(usize::MAX, Ordering::Relaxed);
    for look in 1..2_000 {
        for from in [0, 2] {
            while w.ports[from].tx.lock().unwrap().len() < 64 {
                w.send(from, at(1), at(from), 0);
            }
        }
        w.ports[1].room.store(8, Ordering::Relaxed);
        let mut sources = [0, 2].map(|port| Source::new(id(port)));
        sources.rotate_left(look % 2);
        w.forwarder.joint_breath(&w.table, &mut sources, look as u64 * 160_000);
        assert_eq!(w.tags(1).len(), 8);
    }
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 0);
}

/// What passes while nobody looks at a source is not the receiver's doing: it has no tokens, or was
/// passed over. A look counts for no more than one wait.
#[test]
fn who_is_not_looked_at_does_not_wait() {
    let mut w = picky();
    w.ask();
    for look in 0..6 {
        w.switch.waits.took(id(1), || 10_000, look * 500_000_000);
        w.breathe(0, 1 + look * 500_000_000);
        let held = w.ports[0].tx.lock().unwrap().len();
        assert_eq!(held, usize::from(look < 5), "look {look}");
    }
}

/// Short waits do not add up, nor does what lies between them.
#[test]
fn who_is_served_soon_each_time_does_not_give_up() {
    for empty_look in [true, false] {
        let mut w = picky();
        for round in 1..300 {
            let now = round * 10_000_000;
            w.switch.waits.took(id(1), || 10_000, now);
            w.send(0, at(1), at(0), 1);
            w.ports[1].room.store(0, Ordering::Relaxed);
            w.breathe(0, now);
            assert_eq!(w.ports[0].tx.lock().unwrap().len(), 1, "held");
            w.ports[1].room.store(1, Ordering::Relaxed);
            w.breathe(0, now + 50_000);
            assert_eq!(w.tags(1), [1]);
            if empty_look {
                w.breathe(0, now + 60_000);
            }
        }
    }
}

/// What one ring of a lane gets is no comfort for another one, whose frames are stuck.
#[test]
fn a_ring_that_is_served_does_not_pay_for_the_other_one() {
    let mut w = rings();
    w.ports[2].longest.store(60, Ordering::Relaxed);
    for look in 1..600 {
        let now = look * 160_000;
        w.switch.waits.took(id(2), || 10_000, now);
        if look == 1 {
            w.send(0, at(2), at(0), 1);
            w.ports[0].tx.lock().unwrap()[0].resize(1514, 0);
        }
        (0..2).for_each(|_| w.send(1, at(2), at(0), 2));
        w.breathe(0, now);
        if w.ports[0].tx.lock().unwrap().is_empty() {
            assert!((4 * FULL_WAIT..5 * FULL_WAIT).contains(&now), "after {now}");
            return;
        }
    }
    panic!("held for ever");
}

/// Several may not take turns to hold a sender up, either.
#[test]
fn each_of_several_is_given_up() {
    let mut w = world(4, Options::default());
    (0..4).for_each(|port| w.switch.fdb().add_static(at(port), Domain::OPEN, id(port)).unwrap());
    let step = 1_000_000;
    let mut dropped = 0;
    for look in 0..600u64 {
        // Each has room for one frame each 105 ms, and 35 ms after the one before it.
        let free = |port: u64| (look + 35 * port).is_multiple_of(105);
        for port in 1..4u64 {
            let room = usize::from(free(port));
            w.ports[usize::try_from(port).unwrap()].room.store(room, Ordering::Relaxed);
            w.switch.waits.took(id(usize::try_from(port).unwrap()), || 10_000, look * step);
        }
        let next = w.ports[0].tx.lock().unwrap().len();
        (next..3).for_each(|_| {
            let to = usize::try_from(1 + look / 35 % 3).unwrap();
            w.send(0, at(to), at(0), 1);
        });
        w.breathe(0, (look + 1) * step);
        dropped = (1..4).map(|port| w.dropped(port, Reason::ReceiverFull)).sum();
    }
    assert!(dropped > 100, "{dropped}");
}
