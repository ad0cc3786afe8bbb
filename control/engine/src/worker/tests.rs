//! Workers with ports made of a vector and an eventfd.
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use vmlan_frame::{Batch, Counters, Doorbell, Offload, Offloads, Sink, Verdict};
use vmlan_ram::Slice;
use vmlan_switch::Options;

use super::*;

mod lanes;
mod policy;

struct Fake {
    tx: Mutex<Vec<Vec<u8>>>,
    rx: AtomicUsize,
    room: AtomicUsize,
    armed: AtomicBool,
    held: AtomicUsize,
    arms: AtomicUsize,
    /// How often it was asked for room.
    asked: AtomicUsize,
    /// Somebody else has it; whoever arms it waits for that.
    busy: AtomicBool,
    /// Its own thread has its locks.
    changing: AtomicBool,
    poll: Option<Duration>,
    /// Its guest says nothing of buffers that it gives back.
    silent: bool,
    /// Its guest waits for the answer to each doorbell.
    dear: bool,
    /// What it sends it sends again and again.
    endless: AtomicBool,
    /// Its guest sends a frame when it is next armed, and has read before that no doorbell is
    /// wanted.
    sends_late: AtomicBool,
    /// Whoever arms it waits until nobody holds this.
    gate: Mutex<()>,
    bell: Arc<OwnedFd>,
    counters: Counters,
}

impl Fake {
    fn new() -> Arc<Self> {
        Self::with(None, false, false)
    }
    fn polled(poll: Option<Duration>) -> Arc<Self> {
        Self::with(poll, true, false)
    }
    fn with(poll: Option<Duration>, silent: bool, dear: bool) -> Arc<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Self {
            tx: Mutex::default(),
            rx: AtomicUsize::new(0),
            room: AtomicUsize::new(usize::MAX),
            armed: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            arms: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            poll,
            silent,
            dear,
            endless: AtomicBool::new(false),
            sends_late: AtomicBool::new(false),
            gate: Mutex::default(),
            bell: Arc::new(bell),
            counters: Counters::default(),
        })
    }
    /// As a guest does: publish, then ring if the other side wishes.
    fn send(&self, n: usize, src: u8) {
        let mut frame = vec![0xff; 60];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, src]);
        lock(&self.tx).extend((0..n).map(|_| frame.clone()));
        if self.armed.load(Ordering::SeqCst) {
            self.ring();
        }
    }
    fn ring(&self) {
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Port for Fake {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut tx = lock(&self.tx);
        if tx.is_empty() || self.busy.load(Ordering::SeqCst) || self.is_being_changed() {
            return 0;
        }
        let mut batch = Batch::take(spare);
        for f in tx.iter().take(limit) {
            batch.add(&[Slice::from_bytes(f)], Offload::NONE).unwrap();
        }
        sink.deliver(&mut batch);
        let done: Vec<_> = (0..batch.len()).map(|i| batch.verdict(i) == Verdict::Done).collect();
        batch.give_back(spare);
        if self.endless.load(Ordering::SeqCst) {
            return done.len();
        }
        let mut it = done.iter();
        tx.retain(|_| !it.next().copied().unwrap_or(false));
        self.held.store(done.iter().filter(|d| !**d).count(), Ordering::SeqCst);
        let finished = done.iter().filter(|d| **d).count();
        self.counters.input.frames.add_shared(finished as u64);
        finished
    }
    fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
        if self.is_being_changed() {
            return 0;
        }
        let n = list.len().min(self.room.load(Ordering::SeqCst));
        self.room.fetch_sub(n, Ordering::SeqCst);
        self.rx.fetch_add(n, Ordering::SeqCst);
        n
    }
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        self.busy.store(false, Ordering::SeqCst);
        if self.sends_late.swap(false, Ordering::SeqCst) {
            lock(&self.tx).push(to_b());
        }
        self.armed.store(true, Ordering::SeqCst);
        self.arms.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.gate));
        // Held frames do not count.
        self.is_being_changed() || lock(&self.tx).len() > self.held.load(Ordering::SeqCst)
    }
    fn is_being_changed(&self) -> bool {
        self.changing.load(Ordering::SeqCst)
    }
    fn disarm(&self, _: usize) {
        self.armed.store(false, Ordering::SeqCst);
    }
    fn want_room(&self) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.is_being_changed() || self.room.load(Ordering::SeqCst) > 0
    }
    fn doorbells(&self, _: usize) -> Vec<Doorbell> {
        vec![self.bell.clone()]
    }
    fn poll_interval(&self) -> Option<Duration> {
        self.poll
    }
    fn posts_silently(&self) -> bool {
        self.silent
    }
    fn rings_dearly(&self) -> bool {
        self.dear
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn workers(n: usize, full_wait: Duration) -> Workers {
    let switch = Switch::new(Options { full_wait, ..Options::default() });
    Workers::start(n, Duration::from_micros(20), switch).unwrap()
}

#[test]
fn no_wake_up_is_lost_over_many_sleeps() {
    sleep_often(Fake::new(), Fake::new());
}

/// The look after arming: nobody rings for what came just before it.
#[test]
fn what_arming_finds_is_not_slept_over() {
    for dear in [false, true] {
        let w = workers(1, Duration::from_millis(10));
        let (a, b) = (Fake::with(None, false, dear), Fake::new());
        introduce(&w, &a, &b);
        for n in 1..=20 {
            until("asleep", || a.armed.load(Ordering::SeqCst));
            a.sends_late.store(true, Ordering::SeqCst);
            b.ring();
            until("delivery", || b.rx.load(Ordering::SeqCst) == n);
        }
    }
}

#[test]
fn no_wake_up_is_lost_over_many_naps() {
    sleep_often(Fake::with(None, false, true), Fake::new());
}

fn sleep_often(a: Arc<Fake>, b: Arc<Fake>) {
    let w = workers(2, Duration::from_millis(10));
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    for round in 1..=300 {
        a.send(3, 1);
        b.send(1, 2);
        until("delivery", || {
            b.rx.load(Ordering::SeqCst) == 3 * round && a.rx.load(Ordering::SeqCst) == round
        });
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    until("armed", || a.armed.load(Ordering::SeqCst) && b.armed.load(Ordering::SeqCst));
}

/// Both are ports, and the switch knows where [`to_b`] goes.
fn introduce(w: &Workers, a: &Arc<Fake>, b: &Arc<Fake>) {
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    b.send(1, 2);
    until("learned", || a.rx.load(Ordering::SeqCst) == 1);
}

#[test]
fn frames_held_for_a_full_receiver_go_on_when_it_rings() {
    let w = workers(2, Duration::from_secs(3600));
    let (a, b) = (Fake::new(), Fake::new());
    introduce(&w, &a, &b);
    b.room.store(0, Ordering::SeqCst);
    lock(&a.tx).extend([to_b(), to_b(), to_b()]);
    a.ring();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!((lock(&a.tx).len(), b.rx.load(Ordering::SeqCst)), (3, 0), "held");
    b.room.store(100, Ordering::SeqCst);
    b.ring();
    until("the held frames arrive", || b.rx.load(Ordering::SeqCst) == 3);
    assert_eq!(lock(&a.tx).len(), 0);
}

#[test]
fn held_frames_are_not_forgotten_while_somebody_else_has_their_port() {
    let w = workers(1, Duration::from_secs(3600));
    let (a, b) = (Fake::new(), Fake::new());
    introduce(&w, &a, &b);
    b.room.store(0, Ordering::SeqCst);
    lock(&a.tx).extend([to_b(), to_b(), to_b()]);
    a.ring();
    until("room is asked for", || b.asked.load(Ordering::SeqCst) > 0);
    for _ in 0..10 {
        let pulse = || w.shared.slots[0].pulse.load(Ordering::SeqCst);
        until("asleep", || pulse() % 2 == 1);
        let before = b.asked.load(Ordering::SeqCst);
        a.busy.store(true, Ordering::SeqCst);
        a.ring();
        until("room is asked for again", || b.asked.load(Ordering::SeqCst) > before);
    }
    assert!(!a.busy.load(Ordering::SeqCst));
    b.room.store(100, Ordering::SeqCst);
    b.ring();
    until("the held frames arrive", || b.rx.load(Ordering::SeqCst) == 3);
}

#[test]
fn a_removed_port_is_used_by_nobody() {
    let w = workers(2, Duration::from_millis(10));
    let (a, b) = (Fake::new(), Fake::new());
    let ia = w.add("a", a.clone()).unwrap();
    let ib = w.add("b", b.clone()).unwrap();
    assert_ne!(ia, ib);
    w.remove(ib);
    assert_eq!(Arc::strong_count(&b), 1);
    a.send(1, 1);
    a.ring();
    until("dropped", || a.counters.input.dropped(vmlan_frame::Reason::NoReceiver) == 1);
    assert_eq!(w.add("c", b.clone()).unwrap(), ib, "numbers are used again");
    w.stop();
}

#[test]
fn an_idle_worker_sleeps() {
    let w = workers(1, Duration::from_micros(20));
    let ports: Vec<_> = (0..20).map(|_| Fake::new()).collect();
    ports.iter().for_each(|p| _ = w.add("p", p.clone()).unwrap());
    until("all armed", || ports.iter().all(|p| p.armed.load(Ordering::SeqCst)));
    let pulse = || w.shared.slots[0].pulse.load(Ordering::SeqCst);
    until("asleep", || pulse() % 2 == 1);
    // What the last change rang may come late.
    until("no loop is run", || {
        let before = pulse();
        std::thread::sleep(Duration::from_millis(200));
        pulse() == before
    });
}

/// Its own thread may be kept from running for as long as others have work, and nobody rings when
/// it is done.
#[test]
fn a_port_that_is_being_changed_keeps_no_worker_awake() {
    let w = workers(1, Duration::from_secs(3600));
    let (a, b) = (Fake::new(), Fake::new());
    introduce(&w, &a, &b);
    // There seem to be frames of the first, then room at the second.
    for (port, round) in [(&a, 1), (&b, 2)] {
        port.changing.store(true, Ordering::SeqCst);
        lock(&a.tx).push(to_b());
        a.ring();
        std::thread::sleep(Duration::from_millis(20));
        let pulse = || w.shared.slots[0].pulse.load(Ordering::SeqCst);
        let (begin, before) = (Instant::now(), pulse());
        std::thread::sleep(Duration::from_millis(200));
        until("it looks now and then", || pulse() - before >= 4);
        let rounds = (pulse() - before) / 2;
        let most = 2 + u64::try_from(begin.elapsed().as_millis()).unwrap();
        assert!(rounds <= most, "{rounds} rounds, {most} at most");
        port.changing.store(false, Ordering::SeqCst);
        until("found", || b.rx.load(Ordering::SeqCst) == round);
    }
}

/// Beyond a number it is only looked at now and then, and its frames are found all the same.
#[test]
fn a_port_that_rings_for_nothing_is_not_listened_to() {
    let w = workers(1, Duration::from_millis(10));
    let (a, b) = (Fake::new(), Fake::new());
    introduce(&w, &a, &b);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                a.ring();
            }
        });
        let (begin, before) = (Instant::now(), a.arms.load(Ordering::SeqCst));
        for round in 1..=200 {
            std::thread::sleep(Duration::from_millis(2));
            lock(&a.tx).push(to_b());
            until("found", || b.rx.load(Ordering::SeqCst) == round);
        }
        let looks = a.arms.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::Relaxed);
        // One each millisecond, five for each frame, 128 at once and 250 a second.
        let most = 1200 + 2 * usize::try_from(begin.elapsed().as_millis()).unwrap();
        assert!(looks <= most, "{looks} looks, {most} at most");
    });
    // Whether or not it is listened to again by then.
    lock(&a.tx).push(to_b());
    a.ring();
    until("found", || b.rx.load(Ordering::SeqCst) == 201);
}

/// A frame from 02:..:01 to 02:..:02.
fn to_b() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame
}

#[test]
fn frames_that_come_without_a_doorbell_are_found_within_the_interval() {
    let w = workers(1, Duration::from_millis(10));
    let (a, b) = (Fake::polled(Some(Duration::from_millis(5))), Fake::new());
    w.add("a", a.clone()).unwrap();
    w.add("b", b.clone()).unwrap();
    for round in 1..=20 {
        until("asleep", || w.shared.slots[0].pulse.load(Ordering::SeqCst) % 2 == 1);
        lock(&a.tx).push(to_b());
        until("found", || b.rx.load(Ordering::SeqCst) == round);
    }
}

#[test]
fn a_hundred_polled_ports_cost_one_wake_up_in_an_interval() {
    let w = workers(1, Duration::from_micros(20));
    let quiet = Fake::new();
    w.add("q", quiet.clone()).unwrap();
    let mapped: Vec<_> = (0..100).map(|_| Fake::polled(Some(Duration::from_millis(10)))).collect();
    mapped.iter().for_each(|p| _ = w.add("p", p.clone()).unwrap());
    until("asleep", || w.shared.slots[0].pulse.load(Ordering::SeqCst) % 2 == 1);
    std::thread::sleep(Duration::from_millis(50));
    let looks = |p: &Fake| p.arms.load(Ordering::SeqCst);
    let (pulse, rings) = (w.shared.slots[0].pulse.load(Ordering::SeqCst), looks(&quiet));
    let start = Instant::now();
    let before: Vec<_> = mapped.iter().map(|p| looks(p)).collect();
    std::thread::sleep(Duration::from_millis(300));
    let after: Vec<_> = mapped.iter().map(|p| looks(p)).collect();
    let most = usize::try_from(start.elapsed().as_millis() / 10).unwrap() + 1;
    for (after, before) in after.into_iter().zip(before) {
        let n = after - before;
        assert!((1..=most).contains(&n), "{n} looks, {most} at most");
    }
    assert_eq!(looks(&quiet), rings, "a port that rings is left alone");
    assert_eq!(w.shared.slots[0].pulse.load(Ordering::SeqCst), pulse, "no round was run");
}

#[test]
fn looks_are_frequent_after_traffic_and_rare_in_silence() {
    let (id, port) = (PortId::new(0).unwrap(), Fake::polled(Some(Duration::from_millis(1))));
    let mut poll = mapped_doorbells::MappedPorts::default();
    assert_eq!(poll.timeout(), None, "without such ports a worker sleeps for ever");
    let arm = |poll: &mut mapped_doorbells::MappedPorts| {
        poll.begin();
        poll.add(id, &*port);
        poll.add(id, &*Fake::new());
        poll.end();
        assert_eq!(poll.ports().len(), 1);
    };
    let pauses = |poll: &mut mapped_doorbells::MappedPorts| -> Vec<_> {
        (0..7).map(|_| (poll.timeout().unwrap().as_micros(), poll.missed()).0).collect()
    };
    let rising = [50, 100, 200, 400, 800, 1000, 1000];
    for direction in [&port.counters.input, &port.counters.output] {
        direction.count(1, 60);
        arm(&mut poll);
        assert_eq!(pauses(&mut poll), rising);
        arm(&mut poll);
        assert_eq!(pauses(&mut poll), [1000; 7], "woken for something else: silent as before");
    }
    poll.begin();
    poll.end();
    assert_eq!(poll.timeout(), None, "unmapped again");
}

#[test]
fn room_that_comes_without_a_doorbell_is_found_within_the_interval() {
    room_is_found(Fake::polled(Some(Duration::from_millis(5))));
}

/// As the buffers of a Realtek chip, whose other doorbells ring.
#[test]
fn room_that_nobody_tells_of_is_found_all_the_same() {
    room_is_found(Fake::with(None, true, false));
}

fn room_is_found(b: Arc<Fake>) {
    // The receiver belongs to the other worker, and nobody rings for it.
    let w = workers(2, Duration::from_secs(3600));
    let a = Fake::new();
    introduce(&w, &a, &b);
    b.room.store(0, Ordering::SeqCst);
    lock(&a.tx).extend([to_b(), to_b()]);
    a.ring();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!((lock(&a.tx).len(), b.rx.load(Ordering::SeqCst)), (2, 0), "held");
    b.room.store(100, Ordering::SeqCst);
    until("the held frames arrive", || b.rx.load(Ordering::SeqCst) == 2);
}

/// The receiver's worker is awake all the time, and hears the ring for the other.
#[test]
fn room_at_a_busy_workers_port_is_told_to_those_who_sleep() {
    let w = workers(2, Duration::from_secs(3600));
    let (a, b, idle, busy) = (Fake::new(), Fake::new(), Fake::new(), Fake::new());
    for (name, port) in [("a", &a), ("b", &b), ("idle", &idle), ("busy", &busy)] {
        w.add(name, port.clone()).unwrap();
    }
    b.send(1, 2);
    until("learned", || a.rx.load(Ordering::SeqCst) == 1);
    b.room.store(0, Ordering::SeqCst);
    // To itself, which goes nowhere.
    let mut frame = to_b();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 3]);
    busy.endless.store(true, Ordering::SeqCst);
    lock(&busy.tx).push(frame);
    busy.ring();
    for round in 1..=10 {
        let asked = b.asked.load(Ordering::SeqCst);
        lock(&a.tx).extend([to_b(), to_b()]);
        a.ring();
        until("room is asked for", || b.asked.load(Ordering::SeqCst) > asked);
        until("asleep", || w.shared.slots[0].pulse.load(Ordering::SeqCst) % 2 == 1);
        b.room.store(2, Ordering::SeqCst);
        b.ring();
        until("the held frames arrive", || b.rx.load(Ordering::SeqCst) == 2 * round);
    }
}

#[test]
fn spinning_stops_when_it_does_not_pay() {
    let mut idle = idle::Idle::new(Duration::from_micros(20));
    assert!(idle.keep_spinning(0), "optimistic at first");
    let mut now = 0;
    for _ in 0..20 {
        now += 100_000;
        idle.busy(now);
        let _ = idle.keep_spinning(now);
    }
    assert!(!idle.keep_spinning(now + 1));
    for _ in 0..20 {
        now += 5_000;
        idle.busy(now);
        let _ = idle.keep_spinning(now);
    }
    assert!(idle.keep_spinning(now + 1));
}

/// A switch without a worker is none: it ends, and whoever has started it sees that.
#[test]
fn a_worker_that_panics_ends_the_process() {
    use std::os::unix::process::ExitStatusExt as _;
    const CHILD: &str = "VMLAN_TEST_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let (w, a) = (workers(1, Duration::ZERO), Fake::new());
        w.add("a", a.clone()).unwrap();
        // No frame at all: pulling it panics.
        lock(&a.tx).push(Vec::new());
        until("its end", || {
            a.ring();
            false
        });
    }
    let name = "worker::tests::a_worker_that_panics_ends_the_process";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child.args([name, "--exact"]).env(CHILD, "1").output().unwrap();
    assert_eq!(out.status.signal(), Some(6), "{out:?}");
}

/// Ports whose links flap all the time: together they wake a worker as often as one may.
#[test]
fn many_ports_that_change_wake_the_workers_as_rarely_as_one() {
    let w = workers(1, Duration::from_millis(10));
    // Nobody else reads it.
    let wakes = || {
        let mut count = [0; 8];
        rustix::io::read(w.shared.slots[0].alarm(), &mut count).map_or([0; 8], |_| count)
    };
    wakes();
    let start = Instant::now();
    std::thread::scope(|s| {
        for changed in std::iter::repeat_with(|| w.changed()).take(8) {
            s.spawn(move || (0..20).for_each(|_| changed()));
        }
    });
    let (count, most) = (u64::from_ne_bytes(wakes()), start.elapsed().as_millis() + 1);
    assert!((20..=most).contains(&count.into()), "{count} of 160 in {most} ms");
}
