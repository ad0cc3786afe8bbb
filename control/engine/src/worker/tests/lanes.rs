//! A port of several lanes.

use std::collections::BTreeMap;
use std::thread::ThreadId;

use vmlan_switch::Forwarder;
use vmlan_switch::policy::Domain;

use super::*;

const LANES: usize = 5;

/// What one lane has, and by whom it was pulled from.
#[derive(Default)]
struct Lane {
    waits: usize,
    armed: bool,
    pulled_by: BTreeMap<usize, Vec<ThreadId>>,
}

/// A port whose lanes have frames to a port of its own.
struct Laned {
    lanes: Mutex<Vec<Lane>>,
    /// The first lane always has more.
    endless: AtomicBool,
    bells: Vec<Arc<OwnedFd>>,
    counters: Counters,
}

impl Laned {
    fn new() -> Arc<Self> {
        let bell = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        Arc::new(Self {
            lanes: Mutex::new((0..LANES).map(|_| Lane::default()).collect()),
            endless: AtomicBool::new(false),
            bells: (0..LANES).map(|_| bell()).collect(),
            counters: Counters::with_lanes(LANES),
        })
    }

    fn send(&self, lane: usize, frames: usize) {
        let mut lanes = lock(&self.lanes);
        lanes[lane].waits += frames;
        if lanes[lane].armed {
            rustix::io::write(&self.bells[lane], &1u64.to_ne_bytes()).unwrap();
        }
    }
}

impl Port for Laned {
    fn lanes(&self) -> usize {
        LANES
    }
    fn pull(
        &self,
        lane: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let n = {
            let mut lanes = lock(&self.lanes);
            let endless = lane == 0 && self.endless.load(Ordering::SeqCst);
            let waits = std::mem::take(&mut lanes[lane].waits);
            let n = if endless { limit } else { waits.min(limit) };
            if n > 0 && !endless {
                let me = std::thread::current().id();
                lanes[lane].pulled_by.entry(n).or_default().push(me);
            }
            n
        };
        let frame = to_b();
        let mut batch = Batch::take(spare);
        for _ in 0..n {
            batch.add(&[Slice::from_bytes(&frame)], Offload::NONE).unwrap();
        }
        if n > 0 {
            sink.deliver(&mut batch);
        }
        batch.give_back(spare);
        self.counters.count_input(lane, n, (n * frame.len()) as u64);
        n
    }
    fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
        list.len()
    }
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, lane: usize) -> bool {
        let mut lanes = lock(&self.lanes);
        lanes[lane].armed = true;
        lanes[lane].waits > 0
    }
    fn disarm(&self, lane: usize) {
        lock(&self.lanes)[lane].armed = false;
    }
    fn doorbells(&self, lane: usize) -> Vec<Doorbell> {
        vec![self.bells[lane].clone()]
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Each lane is one worker's, all workers have some, each is woken by the bells of its own, and
/// what they count comes together.
#[test]
fn lanes_are_spread_over_workers() {
    let w = workers(2, Duration::from_millis(10));
    let (a, b) = (Laned::new(), Fake::new());
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    b.send(1, 2);
    let counted = || a.counters.snapshot().0;
    let mut sent = 0;
    for round in 0..100 {
        until("asleep", || lock(&a.lanes).iter().all(|lane| lane.armed));
        let lane = round % LANES;
        a.send(lane, 1 + lane);
        sent += 1 + lane as u64;
        until("taken", || counted().frames == sent);
    }
    assert_eq!((counted().batches, counted().bytes), (100, 60 * sent));
    let lanes = lock(&a.lanes);
    let workers: Vec<_> = lanes.iter().map(|lane| lane.pulled_by.values().flatten()).collect();
    let workers: Vec<Vec<_>> = workers.into_iter().map(Iterator::collect).collect();
    assert!(workers.iter().all(|by| by.iter().all(|w| *w == by[0])), "one worker for each");
    let first: Vec<_> = workers.iter().map(|by| by[0]).collect();
    assert!(first.iter().skip(2).zip(&first).all(|(a, b)| a == b), "every other one");
    assert_ne!(first[0], first[1]);
}

/// The lanes of a port are looked at in turn: one that always has frames does not hide the others.
#[test]
fn an_endless_lane_does_not_hide_the_others() {
    let w = workers(1, Duration::from_millis(10));
    let (a, b) = (Laned::new(), Fake::new());
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    a.endless.store(true, Ordering::SeqCst);
    a.send(0, 1);
    for lane in 1..LANES {
        a.send(lane, 3);
        until("taken", || lock(&a.lanes)[lane].waits == 0);
    }
}

const SECOND: u64 = 1_000_000_000;

/// Two workers, of which the one that has the first and the last port has more to do.
fn crowded() -> (Workers, Arc<Laned>, Arc<Fake>, Arc<Laned>) {
    let w = workers(2, Duration::from_millis(10));
    let (a, b, c) = (Laned::new(), Fake::new(), Laned::new());
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    w.add("c", c.clone()).unwrap();
    (w, a, b, c)
}

/// A worker has two ports that leave it no time, another has none that wants any: one of the two
/// moves, each of its lanes to another worker, and its frames are still taken. Time is told.
#[test]
fn a_port_moves_to_the_worker_that_has_time() {
    let (w, a, _b, c) = crowded();
    let who = |port: &Laned, n: usize| {
        until("asleep", || lock(&port.lanes).iter().all(|lane| lane.armed));
        let taken = || port.counters.snapshot().0.frames;
        let before = taken();
        (0..LANES).for_each(|lane| port.send(lane, n));
        until("taken", || taken() == before + (LANES * n) as u64);
        let lanes = lock(&port.lanes);
        lanes.iter().map(|lane| lane.pulled_by[&n][0]).collect::<Vec<_>>()
    };
    let before = (who(&a, 1), who(&c, 1));
    assert_eq!(before.0, before.1, "both begin at one worker");
    let owners = || lock(&w.plan).owners.clone();
    let old = owners();
    assert_eq!(w.balance_at(10 * SECOND), None, "what came before the first look");
    assert_eq!(owners(), old);
    assert_eq!(w.balance_at(10 * SECOND + SECOND / 4), Some(LOOK * 3 / 4), "it is too soon");
    for port in [&a, &c] {
        port.counters.worked(0, SECOND / 2);
    }
    assert_eq!(w.balance_at(11 * SECOND), Some(LOOK));
    let new = owners();
    assert_eq!(new.iter().zip(&old).filter(|(a, b)| a != b).count(), 1);
    assert_ne!(new[0], new[2], "one each");
    let after = (who(&a, 2), who(&c, 2));
    let moved = |before: &[ThreadId], after: &[ThreadId]| {
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    };
    assert_eq!(moved(&before.0, &after.0) + moved(&before.1, &after.1), LANES);
    // What the test's own frames took is too little to count.
    assert_eq!(w.balance_at(12 * SECOND), Some(LOOK));
    assert_eq!(w.balance_at(13 * SECOND), None, "nothing is done");
    assert_eq!(owners(), new);
}

/// The worker that a port is taken from goes on with it until it looks for mail: it takes its
/// wishes for doorbells back when the next one sleeps already.
#[test]
fn a_port_that_has_moved_is_heard() {
    let (w, a, b, c) = crowded();
    assert_eq!(w.balance_at(10 * SECOND), None, "what came before the first look");
    let plan = lock(&w.plan);
    let (old, next) = (plan.owners[1].unwrap(), plan.generation + 1);
    drop(plan);
    [&a, &c].iter().for_each(|port| port.counters.worked(0, SECOND / 2));
    until("asleep", || b.armed.load(Ordering::SeqCst));
    let gate = lock(&b.gate);
    let arms = b.arms.load(Ordering::SeqCst);
    b.ring();
    until("between arming and sleeping", || b.arms.load(Ordering::SeqCst) > arms);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(w.balance_at(11 * SECOND), Some(LOOK)));
        let slot = &w.shared.slots[1 - old];
        let asleep = || slot.pulse.load(Ordering::SeqCst) % 2 == 1;
        until("the other's sleep", || slot.taken() == next && asleep());
        drop(gate);
    });
    for port in [&a, &c] {
        until("asleep", || lock(&port.lanes).iter().all(|lane| lane.armed));
    }
}

/// 20 lanes that always have frames: how many in one look, and how long they are.
struct Endless {
    frames: usize,
    bytes: usize,
    pulls: Mutex<Vec<usize>>,
    /// It takes no frames.
    full: bool,
    counters: Counters,
}

impl Endless {
    fn new(frames: usize, bytes: usize, full: bool) -> Arc<Self> {
        let (pulls, counters) = (Mutex::default(), Counters::with_lanes(20));
        Arc::new(Self { frames, bytes, pulls, full, counters })
    }
}

impl Port for Endless {
    fn lanes(&self) -> usize {
        20
    }
    fn pull(
        &self,
        lane: usize,
        spare: &mut Batch<'static>,
        _: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        lock(&self.pulls).push(lane);
        let mut frame = vec![0; self.bytes];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1]);
        let mut batch = Batch::take(spare);
        for _ in 0..self.frames {
            batch.add(&[Slice::from_bytes(&frame)], Offload::NONE).unwrap();
        }
        sink.deliver(&mut batch);
        let done = if batch.any_held() { 0 } else { self.frames };
        batch.give_back(spare);
        done
    }
    fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
        if self.full { 0 } else { list.len() }
    }
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        true
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Turns of one that sends to another, who may be full, and the lanes that were pulled from.
fn turns(frames: usize, bytes: usize, full: bool) -> (Vec<usize>, Vec<usize>) {
    let (from, to) = (Endless::new(frames, bytes, false), Endless::new(0, 60, full));
    let w = Workers::played(Switch::new(Options::default())).unwrap();
    let [from_id, to_id] = [&from, &to].map(|port| w.add("a", port.clone()).unwrap());
    let address = vmlan_frame::Mac::new([2, 0, 0, 0, 0, 9]);
    w.shared.switch.fdb().add_static(address, Domain::OPEN, to_id).unwrap();
    let table = w.table();
    let mut forwarder = Forwarder::new(w.shared.switch.clone());
    forwarder.grow(&table);
    let mut own = own::Own::new(from_id, (0..20).collect());
    let passed = (1..=20).map(|turn| own.breath(&mut forwarder, &table, turn).frames);
    (passed.collect(), std::mem::take(&mut *lock(&from.pulls)))
}

/// Whoever has many lanes has no longer turns for it: by frames, by bytes, by lanes that have few.
/// All lanes have theirs.
#[test]
fn more_lanes_do_not_make_a_turn_longer() {
    for (frames, bytes, lanes) in [(128, 60, 2), (5, 65_000, 2), (1, 60, 8)] {
        let (passed, pulls) = turns(frames, bytes, false);
        assert_eq!(passed, [frames * lanes; 20]);
        let in_turn = (0..20 * lanes).map(|n| n % 20).collect::<Vec<_>>();
        assert_eq!(pulls, in_turn);
    }
}

/// Where all wait none is overlooked, and each is the first in turn, who finds most room.
#[test]
fn lanes_that_wait_take_turns_at_being_first() {
    for bytes in [60, 65_000] {
        let (passed, pulls) = turns(9, bytes, true);
        assert_eq!(passed, [0; 20]);
        let first = pulls.chunks(20).map(|turn| turn[0]).collect::<Vec<_>>();
        assert_eq!(first, (0..20).collect::<Vec<_>>());
    }
}
