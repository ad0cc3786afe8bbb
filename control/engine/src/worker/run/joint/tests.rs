//! Joint breaths of a worker, at a time that is told.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Batch, Counters, Mac, Offload, Offloads, Port, Sink};
use vmlan_ram::Slice;
use vmlan_switch::policy::Domain;
use vmlan_switch::{Options, Switch};

use super::super::super::Shared;
use super::super::super::Workers;
use super::super::super::mailbox::{Assignment, Mailbox};
use super::*;

const PORTS: usize = 10;
/// What a frame of these ports takes to be delivered, in nanoseconds.
const PUSH: u64 = 20;

/// A port that always has frames for all the others, each of which takes some time.
struct Costly {
    shared: Arc<Shared>,
    frames: Vec<[u8; 60]>,
    /// How long a frame takes.
    takes: AtomicU64,
    sends: AtomicBool,
    /// Of how many ports frames are lent, and of how many they were at most.
    lent: Arc<[AtomicUsize; 2]>,
    sent: AtomicU64,
    number: usize,
    /// The order in which ports were pulled from.
    order: Arc<Mutex<Vec<usize>>>,
    /// How long it takes to be handed a frame of port 4, and what that was altogether.
    slow_for: AtomicU64,
    slowed: AtomicU64,
    counters: Counters,
}

impl Costly {
    fn pass(&self, ns: u64) {
        self.shared.told.as_ref().unwrap().fetch_add(ns, Ordering::Relaxed);
    }
}

impl Port for Costly {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        if !self.sends.load(Ordering::Relaxed) {
            return 0;
        }
        self.order.lock().unwrap().push(self.number);
        let [lent, most] = &*self.lent;
        most.fetch_max(lent.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut batch = Batch::take(spare);
        for frame in self.frames.iter().take(limit) {
            batch.add(&[Slice::from_bytes(frame)], Offload::NONE).unwrap();
            self.pass(self.takes.load(Ordering::Relaxed));
        }
        sink.deliver(&mut batch);
        let frames = batch.len();
        batch.give_back(spare);
        lent.fetch_sub(1, Ordering::Relaxed);
        self.sent.fetch_add(frames as u64, Ordering::Relaxed);
        frames
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        self.pass(PUSH * list.len() as u64);
        let of = |i: &&u16| batch.macs(usize::from(**i)).1 == mac(4);
        let slow = self.slow_for.load(Ordering::Relaxed) * list.iter().filter(of).count() as u64;
        self.slowed.fetch_add(slow, Ordering::Relaxed);
        self.pass(slow);
        list.len()
    }
    fn offloads(&self) -> Offloads {
        Offloads::NONE
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

struct World {
    w: Workers,
    run: Run,
    ports: Vec<Arc<Costly>>,
}

fn mac(port: usize) -> Mac {
    Mac::new([2, 0, 0, 0, 0, u8::try_from(port).unwrap()])
}

/// Ports that each have seven or eight frames for each other one, which take so long. Only port 4
/// has some for port 9.
fn world(takes: [u64; PORTS]) -> World {
    world_with(takes, None)
}

/// As [`world`]; `one` has frames for a single other port.
fn world_with(takes: [u64; PORTS], one: Option<usize>) -> World {
    let switch = Switch::new(Options::default());
    let w = Workers::played(switch.clone()).unwrap();
    let lent = Arc::<[AtomicUsize; 2]>::default();
    let order = Arc::<Mutex<Vec<usize>>>::default();
    let frame = |from: usize, to: usize| {
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&mac(to).octets());
        frame[6..12].copy_from_slice(&mac(from).octets());
        frame
    };
    let port = |(from, takes): (usize, u64)| {
        let last = if one == Some(from) { 1 } else { PORTS };
        let others = (0..last).cycle().filter(move |to| *to != from && (*to < 9 || from == 4));
        Arc::new(Costly {
            shared: w.shared.clone(),
            frames: others.take(63).map(|to| frame(from, to)).collect(),
            takes: takes.into(),
            sends: true.into(),
            lent: lent.clone(),
            sent: AtomicU64::new(0),
            number: from,
            order: order.clone(),
            slow_for: AtomicU64::new(0),
            slowed: AtomicU64::new(0),
            counters: Counters::default(),
        })
    };
    let ports: Vec<_> = takes.into_iter().enumerate().map(port).collect();
    let own: Vec<_> = ports.iter().map(|p| (w.add("p", p.clone()).unwrap(), vec![0])).collect();
    for (port, (id, _)) in own.iter().enumerate() {
        switch.fdb().add_static(mac(port), Domain::OPEN, *id).unwrap();
    }
    let slot = Mailbox::new(0).unwrap();
    let mut run = Run::new(w.shared.clone(), slot.clone(), Run::epoll(&slot).unwrap());
    slot.assign(Assignment { table: Arc::new(w.table()), own, generation: 1 });
    run.read_mail();
    World { w, run, ports }
}

impl World {
    /// Rounds that begin one nanosecond after the last was over, so that some are measured.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.ports[0].pass(1);
            let frames = self.run.round(self.w.now());
            assert!(frames > 0);
        }
    }

    /// Of how many ports frames were lent at once, at most, since this was asked last.
    fn most(&self) -> usize {
        self.ports[0].lent[1].swap(0, Ordering::Relaxed)
    }

    fn sent(&self) -> Vec<u64> {
        self.ports.iter().map(|port| port.sent.load(Ordering::Relaxed)).collect()
    }
}

#[test]
fn ports_with_few_frames_for_each_have_their_breath_together() {
    let mut world = world([100; PORTS]);
    world.rounds(1);
    assert_eq!(world.most(), 1, "nothing is known of them");
    world.rounds(20);
    assert_eq!(world.most(), PORTS);
    assert_eq!(world.sent(), [21 * 63; PORTS], "none is left out");
    // Those who stop are noticed, and come back.
    world.ports[3].sends.store(false, Ordering::Relaxed);
    world.rounds(20);
    assert_eq!(world.most(), PORTS - 1);
    world.ports[3].sends.store(true, Ordering::Relaxed);
    world.rounds(20);
    assert_eq!((world.most(), world.sent()[3]), (PORTS, 41 * 63));
}

/// Each pays for what its own frames take, to the nanosecond.
#[test]
fn whose_frames_are_dear_pays_for_them_in_company() {
    let mut takes = [100; PORTS];
    takes[4] = 2_000;
    let mut world = world(takes);
    let begun = world.w.now();
    world.rounds(20_000);
    assert_eq!(world.most(), PORTS);
    let sent = world.sent();
    for (port, takes) in takes.iter().enumerate() {
        let cost = sent[port] * (takes + PUSH);
        let paid = world.ports[port].counters.work_ns();
        assert!(paid.abs_diff(cost) < cost / 1000, "port {port}: {paid} of {cost}");
    }
    let paid: u64 = world.ports.iter().map(|port| port.counters.work_ns()).sum();
    let all = world.w.now() - begun;
    assert!(all - paid <= 20_000 + all / 1000, "{paid} of {all}");
    // So it has as much time as the others, and they have as many frames.
    let time = |port: usize| sent[port] * (takes[port] + PUSH);
    assert!(time(4).abs_diff(time(0)) < time(0) / 5, "{sent:?}");
    let [least, most] = [sent.iter().skip(5).min().unwrap(), sent.iter().skip(5).max().unwrap()];
    assert!(most - least <= most / 50, "{sent:?}");
}

/// Nor can one be cheap when it is alone and dear in company, or have an accomplice who is slow to
/// take its frames.
#[test]
fn who_is_dear_in_company_only_pays_for_it() {
    let mut world = world([100; PORTS]);
    let before = world.sent();
    let mut cost = 0;
    for round in 0..2_000 {
        let takes = if round % 5 == 0 { 20_000 } else { 10 };
        world.ports[4].takes.store(takes, Ordering::Relaxed);
        world.ports[9].slow_for.store(if round % 3 == 0 { 5_000 } else { 0 }, Ordering::Relaxed);
        let sent = world.sent()[4];
        world.rounds(1);
        cost += (world.sent()[4] - sent) * takes;
    }
    let sent = world.sent();
    let pushed = (sent[4] - before[4]) * PUSH + world.ports[9].slowed.load(Ordering::Relaxed);
    let paid = world.ports[4].counters.work_ns();
    let share = paid as f64 / (cost + pushed) as f64;
    assert!((0.99..1.01).contains(&share), "{paid} of {cost} and {pushed}");
    let paid = world.ports[0].counters.work_ns();
    let share = paid as f64 / (sent[0] * (100 + PUSH)) as f64;
    assert!((0.99..1.01).contains(&share), "{share}");
    assert!(sent[0] > 5 * sent[4], "{sent:?}");
}

/// Who comes first finds most room at a receiver: each is first in its turn, and before each other
/// one as often as after it.
#[test]
fn nobody_is_always_before_another_one() {
    let mut world = world([100; PORTS]);
    world.rounds(1);
    let order = |world: &World| std::mem::take(&mut *world.ports[0].order.lock().unwrap());
    order(&world);
    let mut firsts = [0; PORTS];
    let mut before = [[0i32; PORTS]; PORTS];
    for _ in 0..4 * PORTS {
        world.rounds(1);
        let all = order(&world);
        assert_eq!(all.len(), PORTS);
        firsts[all[0]] += 1;
        for (i, one) in all.iter().enumerate() {
            all[i + 1..].iter().for_each(|other| before[*one][*other] += 1);
        }
    }
    assert_eq!(firsts, [4; PORTS]);
    for (one, other) in (0..PORTS * PORTS).map(|n| (n / PORTS, n % PORTS)) {
        let more = before[one][other] - before[other][one];
        assert!(more.abs() <= 4, "{one} is before {other} {more} times more");
    }
}

/// Nor are those who are always alone before those who are not.
#[test]
fn who_is_alone_is_not_always_first() {
    let mut world = world_with([100; PORTS], Some(5));
    world.rounds(1);
    let order = |world: &World| std::mem::take(&mut *world.ports[0].order.lock().unwrap());
    order(&world);
    let (mut before, mut joint) = (0, 0);
    for _ in 0..4 * PORTS {
        world.most();
        world.rounds(1);
        let at = order(&world).iter().position(|port| *port == 5).unwrap();
        before += PORTS - 1 - at;
        joint += usize::from(world.most() == PORTS - 1);
    }
    assert!(joint > 3 * PORTS, "port 5 is alone, the others are not: {joint}");
    let all = 4 * PORTS * (PORTS - 1);
    assert!((all * 4 / 10..all * 6 / 10).contains(&before), "{before} of {all}");
}

/// A visit is shared by bytes. Where it is dear for another reason its senders are told apart, and
/// breaths are joint all the same.
#[test]
fn who_makes_visits_dear_for_others_pays_for_it() {
    let mut world = world([100; PORTS]);
    world.rounds(21);
    let before: Vec<_> = world.ports.iter().map(|port| port.counters.work_ns()).collect();
    let (sent, begun) = (world.sent(), world.w.now());
    world.ports[3].slow_for.store(100_000, Ordering::Relaxed);
    world.rounds(2_000);
    assert_eq!(world.most(), PORTS);
    let paid = |port: usize| world.ports[port].counters.work_ns() - before[port];
    let slowed = world.ports[3].slowed.load(Ordering::Relaxed);
    // One dear visit in 128 times as long is shared.
    let took = world.w.now() - begun;
    assert!(paid(4) + took / 100 > slowed, "{} of {slowed} in {took}", paid(4));
    let cost = (world.sent()[0] - sent[0]) * (100 + PUSH);
    let more = paid(0) as f64 / cost as f64;
    assert!((0.99..1.02).contains(&more), "{more}");
}
