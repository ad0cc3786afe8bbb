//! Ports whose memory makes the worker sleep.

use std::ops::Range;

use super::*;

const MS: u64 = 1_000_000;

/// What the worker's thread has used, and whose memory makes it sleep.
#[derive(Default)]
struct Machine {
    usage: Mutex<Usage>,
    /// Addresses that are slow.
    slow: Mutex<Vec<Range<usize>>>,
    /// How long a touch of them takes.
    takes: AtomicUsize,
}

impl Machine {
    fn touch(&self, bytes: Slice<'_>) {
        let (at, len) = bytes.as_raw();
        let (start, end) = (at.addr(), at.addr() + len);
        if self.slow.lock().unwrap().iter().any(|slow| slow.start < end && start < slow.end) {
            let mut used = self.usage.lock().unwrap();
            used.elapsed += self.takes.load(Ordering::Relaxed) as u64;
            (used.sleeps, used.faults) = (used.sleeps + 1, used.faults + 1);
        }
    }
}

/// A VM that sends a frame to another one in each breath, out of its memory. Its receive buffers
/// are there as well.
struct Vm {
    machine: Arc<Machine>,
    memory: Vec<u8>,
    sends: AtomicBool,
    got: AtomicUsize,
    counters: Counters,
}

impl Port for Vm {
    fn pull(&self, _: usize, spare: &mut Batch<'static>, _: usize, sink: &mut dyn Sink) -> usize {
        if !self.sends.load(Ordering::Relaxed) {
            return 0;
        }
        // For its ring; what copies the frame out of there cannot be seen here.
        self.machine.touch(Slice::from_bytes(&self.memory));
        let mut batch = Batch::take(spare);
        batch.add(&[Slice::from_bytes(&self.memory)], Offload::NONE).unwrap();
        sink.deliver(&mut batch);
        batch.give_back(spare);
        1
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        for i in list.iter() {
            let frame = batch.frame(usize::from(*i)).unwrap();
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            assert_eq!(bytes[12..], [7; 288]);
            frame.body.iter().for_each(|piece| self.machine.touch(*piece));
            self.machine.touch(Slice::from_bytes(&self.memory));
        }
        self.got.fetch_add(list.len(), Ordering::Relaxed);
        list.len()
    }
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        self.machine.touch(Slice::from_bytes(&self.memory));
        false
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

struct Lan {
    machine: Arc<Machine>,
    vms: Vec<Arc<Vm>>,
    table: Table,
    forwarder: Forwarder,
    now: u64,
}

/// VMs of which each sends to the next one.
fn lan(n: u8, watched: bool) -> Lan {
    let machine = Arc::new(Machine::default());
    let vm = |i| {
        let (to, from) = (mac((i + 1) % n).octets(), mac(i).octets());
        Arc::new(Vm {
            machine: machine.clone(),
            memory: [&to[..], &from, &[7; 288]].concat(),
            sends: AtomicBool::new(true),
            got: AtomicUsize::new(0),
            counters: Counters::default(),
        })
    };
    let vms: Vec<_> = (0..n).map(vm).collect();
    let entry = |vm: &Arc<Vm>| {
        Some(Entry { name: "vm".into(), port: vm.clone(), mirror: None, policy: Arc::default() })
    };
    let table = Table::new(vms.iter().map(entry).collect());
    let used = machine.clone();
    let mut forwarder = Forwarder::new(Switch::new(Options::default()))
        .measured_by(move || *used.usage.lock().unwrap());
    forwarder.grow(&table);
    let mut lan = Lan { machine, vms, table, forwarder, now: MS };
    // All are known, and nothing floods.
    lan.round();
    lan.round();
    lan.take();
    if watched {
        lan.forwarder.took_long(lan.now);
    }
    lan
}

impl Lan {
    /// A breath of each, as a worker does them; says how long all took together.
    fn round(&mut self) -> u64 {
        let before = self.now;
        for i in 0..self.vms.len() {
            let used = || self.machine.usage.lock().unwrap().elapsed;
            let begun = used();
            self.forwarder.breath(&self.table, id(i), 0, self.now);
            let took = used() - begun;
            self.now += took;
            if took >= MS {
                self.forwarder.took_long(self.now);
            }
        }
        self.now += 100_000;
        self.now - before
    }
    /// Rounds for so long; says how much of it the worker slept, in percent.
    fn run(&mut self, ns: u64) -> u64 {
        let (end, mut slept) = (self.now + ns, 0);
        while self.now < end {
            slept += self.round() - 100_000;
        }
        slept * 100 / ns
    }
    fn slow(&self, vms: &[Arc<Vm>], takes: u64) {
        let memory = |vm: &Arc<Vm>| {
            let range = vm.memory.as_ptr_range();
            range.start.addr()..range.end.addr()
        };
        *self.machine.slow.lock().unwrap() = vms.iter().map(memory).collect();
        self.machine.takes.store(usize::try_from(takes).unwrap(), Ordering::Relaxed);
    }
    fn take(&self) -> Vec<usize> {
        self.vms.iter().map(|vm| vm.got.swap(0, Ordering::Relaxed)).collect()
    }
}

/// The one who makes holes sends, receives, or does both; the others' frames get through, and it is
/// they who have the worker's time.
#[test]
fn memory_that_makes_a_worker_sleep_is_passed_over() {
    for (sends, receives) in [(true, false), (false, true), (true, true)] {
        let mut lan = lan(4, false);
        lan.slow(&lan.vms[2..3], 15 * MS);
        lan.vms[2].sends.store(sends, Ordering::Relaxed);
        lan.vms[1].sends.store(receives, Ordering::Relaxed);
        let at_first = lan.run(1_000 * MS);
        let slept = lan.run(20_000 * MS);
        assert!(at_first <= 8 && slept <= 1, "{sends} {receives}: {at_first} %, then {slept} %");
        let got = lan.take();
        assert!(got[0] > 150_000, "{got:?}");
        assert_eq!(got[1], got[0], "nobody else is passed over");
        assert!(got[2] < 10_000 && got[3] < 10_000, "{got:?}");
    }
}

/// All of them together cause no more than one may.
#[test]
fn many_slow_memories_cost_no_more_than_one() {
    let mut lan = lan(24, false);
    lan.slow(&lan.vms[4..], 15 * MS);
    lan.run(5_000 * MS);
    assert!(lan.run(60_000 * MS) <= 1);
}

/// A page that is read from a disk now and then is waited for.
#[test]
fn who_is_slow_now_and_then_is_waited_for() {
    let mut lan = lan(2, true);
    for _ in 0..100 {
        lan.slow(&lan.vms[..1], MS);
        lan.round();
        lan.slow(&[], 0);
        lan.run(1_000 * MS);
    }
    let rounds = lan.take();
    assert!(
        rounds[0] == rounds[1] && lan.vms[0].counters.output.dropped(Reason::ReceiverFull) == 0
    );
}

/// Time that the host gave to others, and locks that were waited for, are nobody's memory.
#[test]
fn who_is_not_slow_by_its_memory_is_not_passed_over() {
    for (sleeps, faults) in [(0, 1), (1, 0)] {
        let mut lan = lan(2, true);
        for _ in 0..1_000 {
            let machine = lan.machine.clone();
            lan.forwarder.touched(id(0), lan.forwarder.touches(lan.now), lan.now);
            let begun = lan.forwarder.touches(lan.now);
            {
                let mut used = machine.usage.lock().unwrap();
                used.elapsed += 15 * MS;
                (used.sleeps, used.faults) = (used.sleeps + sleeps, used.faults + faults);
            }
            lan.forwarder.touched(id(0), begun, lan.now);
            lan.round();
        }
        assert_eq!(lan.take(), [1_000, 1_000]);
    }
}
