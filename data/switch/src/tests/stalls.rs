//! Ports whose memory makes the worker sleep.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::*;

const MS: u64 = 1_000_000;

/// What time it is, what the worker's thread has done, and whose memory makes it sleep.
#[derive(Default)]
struct Machine {
    clock: AtomicU64,
    usage: Mutex<Usage>,
    /// Addresses that are slow, and how long a touch of them takes.
    slow: Mutex<Vec<(Range<usize>, u64)>>,
    /// How long pushes take that are not slow.
    pushing: AtomicU64,
    /// Where frames are sent from.
    sent: Mutex<Vec<Range<usize>>>,
    /// How often the worker asked what it has used.
    asked: AtomicUsize,
}

impl Machine {
    fn touch(&self, bytes: Slice<'_>) {
        let (at, len) = bytes.as_raw();
        let (start, end) = (at.addr(), at.addr() + len);
        let slow = self.slow.lock().unwrap();
        if let Some((_, took)) = slow.iter().find(|(at, _)| at.start < end && start < at.end) {
            self.add(*took, Usage { sleeps: 1, faults: 1, ..Usage::default() });
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn add(&self, took: u64, more: Usage) {
        self.clock.fetch_add(took, Ordering::Relaxed);
        let mut used = self.usage.lock().unwrap();
        used.locks += more.locks;
        used.delay += more.delay;
        (used.sleeps, used.faults) = (used.sleeps + more.sleeps, used.faults + more.faults);
    }
}

/// A VM that sends a packet of 300 bytes in each breath.
struct Vm {
    machine: Arc<Machine>,
    sent: Vec<u8>,
    buffers: Vec<u8>,
    sends: AtomicBool,
    /// A packet of another queue comes before it in the same breath.
    twice: AtomicBool,
    /// It is an uplink.
    uplink: AtomicBool,
    got: AtomicUsize,
    /// Some of them from copies.
    copied: AtomicUsize,
    /// Packets of the switch's own.
    told: AtomicUsize,
    counters: Counters,
}

impl Vm {
    fn deliver(&self, spare: &mut Batch<'static>, sink: &mut dyn Sink) {
        let mut batch = Batch::take(spare);
        batch.add(&[Slice::from_bytes(&self.sent)], Offload::NONE).unwrap();
        sink.deliver(&mut batch);
        batch.give_back(spare);
    }
}

impl Port for Vm {
    fn pull(&self, _: usize, spare: &mut Batch<'static>, _: usize, sink: &mut dyn Sink) -> usize {
        if !self.sends.load(Ordering::Relaxed) {
            return 0;
        }
        if self.twice.load(Ordering::Relaxed) {
            self.deliver(spare, sink);
        }
        // For its ring; what copies the frame out of there cannot be seen here.
        self.machine.touch(Slice::from_bytes(&self.sent));
        self.deliver(spare, sink);
        1
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        self.machine.add(self.machine.pushing.load(Ordering::Relaxed), Usage::default());
        for i in list.iter() {
            let frame = batch.frame(usize::from(*i)).unwrap();
            frame.body.iter().for_each(|piece| self.machine.touch(*piece));
            self.machine.touch(Slice::from_bytes(&self.buffers));
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            if frame.len == 300 {
                assert_eq!(bytes[34..], [7; 266]);
                self.got.fetch_add(1, Ordering::Relaxed);
                let at = frame.body[0].as_raw().0.addr();
                let direct =
                    self.machine.sent.lock().unwrap().iter().any(|sent| sent.contains(&at));
                self.copied.fetch_add(usize::from(!direct), Ordering::Relaxed);
            } else {
                self.told.fetch_add(1, Ordering::Relaxed);
            }
        }
        list.len()
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
    fn is_guest(&self) -> bool {
        !self.uplink.load(Ordering::Relaxed)
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn range(memory: &[u8]) -> Range<usize> {
    let range = memory.as_ptr_range();
    range.start.addr()..range.end.addr()
}

struct Lan {
    machine: Arc<Machine>,
    vms: Vec<Arc<Vm>>,
    table: Table,
    forwarder: Forwarder,
}

/// VMs of which each sends to the next one; with some policies.
fn lan_with(n: u8, policy: impl Fn(u8) -> Policy) -> Lan {
    let machine = Arc::new(Machine::default());
    let vm = |i| {
        let (to, from) = (mac((i + 1) % n).octets(), mac(i).octets());
        let ip = [8, 0, 0x45, 0, 1, 30, 0, 0, 0x40, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        Arc::new(Vm {
            machine: machine.clone(),
            sent: [&to[..], &from, &ip, &[7; 266]].concat(),
            buffers: vec![0; 64],
            sends: AtomicBool::new(true),
            twice: AtomicBool::new(false),
            uplink: AtomicBool::new(false),
            got: AtomicUsize::new(0),
            copied: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
            counters: Counters::default(),
        })
    };
    let vms: Vec<_> = (0..n).map(vm).collect();
    *machine.sent.lock().unwrap() = vms.iter().map(|vm| range(&vm.sent)).collect();
    let entry = |(i, vm): (u8, &Arc<Vm>)| {
        let policy = Arc::new(policy(i));
        Some(Entry { name: "vm".into(), port: vm.clone(), mirror: None, policy })
    };
    let table = Table::new((0..).zip(&vms).map(entry).collect());
    let (clock, used) = (machine.clone(), machine.clone());
    let usage = move || {
        used.asked.fetch_add(1, Ordering::Relaxed);
        *used.usage.lock().unwrap()
    };
    let mut forwarder =
        Forwarder::new(Switch::new(Options::default())).measured_by(move || clock.now(), usage);
    machine.clock.store(MS, Ordering::Relaxed);
    forwarder.grow(&table);
    let mut lan = Lan { machine, vms, table, forwarder };
    // All are known, and nothing floods.
    lan.round();
    lan.round();
    lan.take();
    lan
}

fn lan(n: u8) -> Lan {
    lan_with(n, |_| Policy::default())
}

impl Lan {
    fn now(&self) -> u64 {
        self.machine.now()
    }
    /// A breath of each, as a worker does them; says how long all took together.
    fn round(&mut self) -> u64 {
        let before = self.now();
        let begun = self.forwarder.begin_round(before);
        for i in 0..self.vms.len() {
            let began = self.now();
            self.forwarder.breath(&self.table, id(i), 0, began);
            let took = self.now() - began;
            if took >= MS {
                self.forwarder.took_long(Some(id(i)), took, began);
            }
        }
        self.forwarder.end_round(begun);
        self.machine.add(100_000, Usage::default());
        self.now() - before
    }
    /// Rounds for so long; says how much of it the worker slept, in percent.
    fn run(&mut self, ns: u64) -> u64 {
        let (end, mut slept) = (self.now() + ns, 0);
        while self.now() < end {
            slept += self.round() - 100_000;
        }
        slept * 100 / ns
    }
    /// Makes rings and frames of some slow, or their buffers.
    fn slow(&self, sent: &[usize], buffers: &[usize], takes: u64) {
        let sent = sent.iter().map(|vm| range(&self.vms[*vm].sent));
        let buffers = buffers.iter().map(|vm| range(&self.vms[*vm].buffers));
        let all = sent.chain(buffers).map(|range| (range, takes));
        *self.machine.slow.lock().unwrap() = all.collect();
    }
    fn take(&self) -> Vec<usize> {
        self.vms.iter().map(|vm| vm.got.swap(0, Ordering::Relaxed)).collect()
    }
}

/// The one who makes holes sends, receives, or does both; the others' frames get through, and it is
/// they who have the worker's time. Be the holes large or small.
#[test]
fn memory_that_makes_a_worker_sleep_is_passed_over() {
    for takes in [15 * MS, MS / 2] {
        for (sent, buffers) in [(&[2][..], &[][..]), (&[], &[2]), (&[2], &[2])] {
            let mut lan = lan(4);
            lan.slow(sent, buffers, takes);
            let at_first = lan.run(1_000 * MS);
            let slept = lan.run(40_000 * MS);
            assert!(at_first <= 25 && slept <= 1, "{sent:?}: {at_first} %, then {slept} %");
            let got = lan.take();
            assert!(got[0] > 350_000, "{got:?}");
            assert_eq!(got[1], got[0], "nobody else is passed over");
            assert!(got[2] < 10_000 && got[3] < 10_000, "{got:?}");
        }
    }
}

/// All of them together cause no more than one may.
#[test]
fn many_slow_memories_cost_no_more_than_one() {
    let mut lan = lan(24);
    let slow: Vec<_> = (4..24).collect();
    lan.slow(&slow, &slow, 15 * MS);
    let at_first = lan.run(10_000 * MS);
    lan.run(10_000 * MS);
    let slept = lan.run(60_000 * MS);
    assert!(at_first <= 35 && slept <= 2, "{at_first} %, then {slept} %");
}

/// A page that is read from a disk now and then is waited for, whatever others do.
#[test]
fn who_is_slow_now_and_then_is_waited_for() {
    for others in [vec![], (2..12).collect()] {
        let mut lan = lan(12);
        lan.slow(&others, &[], 15 * MS);
        lan.run(5_000 * MS);
        lan.take();
        let mut rounds = 0;
        for _ in 0..50 {
            lan.slow(&[&others[..], &[0]].concat(), &[], MS);
            lan.round();
            lan.slow(&others, &[], 15 * MS);
            rounds += 1 + (0..10_000).map(|_| lan.round()).count();
        }
        assert_eq!(lan.take()[1], rounds, "beside {others:?}");
    }
}

/// Time that the host gave to others, and locks that were waited for, are nobody's memory; not even
/// beside page faults that took no time.
#[test]
fn who_is_not_slow_by_its_memory_is_not_passed_over() {
    let took = 15 * MS;
    let cases = [(0, 1, 0, 0), (1, 0, 0, 0), (1, 1, took, 0), (1, 1, 0, took - 10_000)];
    for (sleeps, faults, locks, delay) in cases {
        let mut lan = lan(2);
        for _ in 0..1_000 {
            lan.forwarder.took_long(Some(id(0)), took, lan.now());
            lan.forwarder.took_long(None, took, lan.now());
            let begun = lan.forwarder.begin_round(lan.now());
            let used = Usage { delay, locks, sleeps, faults };
            let touched = (id(0), &*lan.vms[0] as &dyn Port);
            lan.forwarder.touches(touched, lan.now(), |_| lan.machine.add(took, used));
            lan.forwarder.end_round(begun);
            lan.round();
        }
        assert_eq!(lan.take(), [1_000, 1_000]);
    }
}

/// On a busy host nearly all breaths are long for that alone: what it costs to tell is a look at
/// each of them.
#[test]
fn who_is_taken_from_the_processor_is_not_measured() {
    let mut lan = lan(2);
    let asked = |lan: &Lan| lan.machine.asked.swap(0, Ordering::Relaxed);
    asked(&lan);
    // It wakes up, and is preempted at once.
    let round = |lan: &mut Lan, sleeps, faults| {
        lan.forwarder.awake(lan.now());
        lan.machine.add(MS + 1, Usage { delay: MS, sleeps, faults, ..Usage::default() });
        lan.forwarder.took_long(Some(id(0)), MS, lan.now());
        lan.round();
    };
    (0..1_000).for_each(|n| round(&mut lan, 0, n % 2));
    (0..1_000).for_each(|n| round(&mut lan, 1, n % 2));
    let rounds = asked(&lan);
    // Its preemption, its sleep most of the time, and one round in 256.
    assert!((2_000..4_100).contains(&rounds), "{rounds}");
    // A suspect is, for as long as that was worth.
    lan.machine.add(MS, Usage { sleeps: 1, faults: 1, ..Usage::default() });
    lan.forwarder.took_long(Some(id(0)), MS, lan.now());
    (0..1_300).for_each(|_| assert_eq!(lan.round(), 100_000));
    assert!(asked(&lan) > 3_000);
    (0..1_000).for_each(|_| assert_eq!(lan.round(), 100_000));
    assert!(asked(&lan) < 10);
}

/// Copies are dear: only suspects' frames are copied, whatever alarm there is.
#[test]
fn frames_of_those_who_are_not_slow_are_not_copied() {
    let mut lan = lan(6);
    lan.slow(&[3], &[], 15 * MS);
    lan.run(40_000 * MS);
    let got = lan.take();
    let copied = |vm: usize| lan.vms[vm].copied.load(Ordering::Relaxed);
    assert!(copied(4) > 10, "{} are from a suspect", copied(4));
    for vm in [1, 2, 5, 0] {
        assert!(got[vm] > 350_000 && copied(vm) < 50, "{vm}: {} of {got:?}", copied(vm));
    }
}

/// A receiver pays for its own time, however long its own work takes.
#[test]
fn who_gets_frames_does_not_pay_for_their_sender() {
    let mut lan = lan(4);
    lan.machine.pushing.store(30_000, Ordering::Relaxed);
    lan.slow(&[2], &[], 15 * MS);
    lan.run(2_000 * MS);
    lan.take();
    lan.run(20_000 * MS);
    let got = lan.take();
    // Nobody else is passed over: nothing of the third, nor for it, passes.
    assert!(got[0] > 80_000 && got[0] == got[1] && got[2] < 200 && got[3] < 200, "{got:?}");
}

/// One that is slow by little, and pays, does not hide one that is slow by much: not by being its
/// receiver, nor by having something from another queue before.
#[test]
fn who_sends_to_a_slow_receiver_pays_for_its_own_memory() {
    for twice in [false, true] {
        let mut lan = lan(4);
        lan.vms[2].twice.store(twice, Ordering::Relaxed);
        lan.slow(&[], &[3], 15 * MS);
        lan.run(5_000 * MS);
        lan.slow(&[2], &[], 15 * MS);
        let buffers = range(&lan.vms[3].buffers);
        lan.machine.slow.lock().unwrap().push((buffers, 25_000));
        lan.run(2_000 * MS);
        lan.take();
        let slept = lan.run(20_000 * MS);
        let got = lan.take();
        assert!(slept <= 1 && got[3] < 200 && got[0] > 100_000, "{twice}: {slept} %, {got:?}");
    }
}

/// So does one that gets them from an uplink, which has no memory of a guest's.
#[test]
fn who_downloads_into_slow_memory_is_passed_over() {
    let mut lan = lan(3);
    lan.vms[0].uplink.store(true, Ordering::Relaxed);
    lan.vms[1].sends.store(false, Ordering::Relaxed);
    lan.slow(&[], &[1], 15 * MS);
    lan.run(2_000 * MS);
    lan.take();
    let slept = lan.run(20_000 * MS);
    let got = lan.take();
    assert!(slept <= 1 && got[1] < 200, "{slept} %, {got:?}");
    assert!(got[0] > 190_000, "what another one sends to the uplink: {got:?}");
}

/// Sleep and waiting between the parts that are measured are nobody's.
#[test]
fn who_comes_after_somebody_elses_sleep_does_not_pay_for_it() {
    let mut lan = lan(4);
    lan.machine.pushing.store(30_000, Ordering::Relaxed);
    lan.slow(&[2], &[], 15 * MS);
    for n in 0..100_000 {
        let delay = if n % 2 == 0 { MS } else { 0 };
        lan.machine.add(MS, Usage { delay, sleeps: 1, faults: 1, locks: 0 });
        lan.round();
    }
    let got = lan.take();
    assert_eq!([got[0], got[1]], [100_000; 2]);
    assert!(got[2] < 1_500 && got[3] < 1_500, "{got:?}");
}

/// A sender is told of a narrow link by a packet in its own buffers: they are not the link's.
#[test]
fn who_is_told_of_an_mtu_pays_for_its_own_buffers() {
    let narrow = |i| Policy { mtu: (i == 2).then_some(200), ..Policy::default() };
    let mut lan = lan_with(3, narrow);
    lan.vms[0].sends.store(false, Ordering::Relaxed);
    lan.slow(&[], &[1], 15 * MS);
    lan.run(1_000 * MS);
    lan.take();
    assert!(lan.run(10_000 * MS) <= 1);
    assert!(lan.take()[0] > 90_000, "what the narrow one sends");
    let told = lan.vms[1].told.load(Ordering::Relaxed);
    assert!((5..50).contains(&told), "{told}");
}

/// Who watches others pays for its own memory, and they do not.
#[test]
fn a_monitor_with_slow_memory_is_passed_over() {
    let monitor = |i| {
        let watch = Watch { ports: PortSet::new((0..3).map(id)), domain: None };
        Policy { monitor: i == 3, watch: (i == 3).then(|| watch.into()), ..Policy::default() }
    };
    let mut lan = lan_with(4, monitor);
    lan.vms[3].sends.store(false, Ordering::Relaxed);
    lan.slow(&[], &[3], 15 * MS);
    lan.run(1_000 * MS);
    lan.take();
    assert!(lan.run(10_000 * MS) <= 1);
    let got = lan.take();
    assert!(got.iter().take(3).all(|n| *n > 90_000) && got[3] < 1_000, "{got:?}");
}
