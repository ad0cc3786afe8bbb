//! Workers beside each other: vhost-user ports of this process, whose guests cost next to nothing,
//! between one worker and two.
//!
//! `cargo bench -p vmlan-lab --bench workers -- [SECONDS [ROUNDS]]`; VMLAN_CASE=WORD: only cases
//! whose names have it; VMLAN_ALONE=1: no joint breaths.
//!
//! The guests' halves of the rings lie in memory ready-made: to send a burst is to store an index,
//! to give buffers back is another store. Whoever pulls or pushes does it, in its own time. So what
//! is measured is ports, switch and workers' loops, and no guest needs a core.
//!
//! Then, with what was measured, what 2, 8, 16 and 64 workers would do: see `model.rs`.
mod model;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vmlan_attach::vhost_user::{Config, VhostUser, VhostUserPort, attach};
use vmlan_frame::{Batch, Counters, JOINT, Mac, Offloads, Port, Sink};
use vmlan_nic::virtio::{Rings, feature};
use vmlan_ram::{Map, Mapping, Region, Window};
use vmlan_switch::policy::Domain;
use vmlan_switch::{Entry, Forwarder, Options, PortId, SOURCES, Source, Switch, Table, Usage};

const SIZE: u16 = 256;
const STRIDE: u64 = 2304;
const HEADER: usize = 12;
const FRAME: usize = 60;
/// Memory of one ring with its buffers.
const RING: u64 = 0x10_0000;
/// Frames that a guest adds to its ring before it is looked at.
const BURST: u16 = 128;

/// The guest's half of a ring, ready-made.
struct Ring {
    avail: Window,
    used: Window,
    rings: Rings,
    /// Two workers may come at once.
    posting: Mutex<()>,
}

impl Ring {
    /// `frame`: what each buffer holds, of a ring that sends.
    fn new(map: &Arc<Map>, at: u64, frame: Option<&dyn Fn(u16) -> [u8; FRAME]>) -> Self {
        let (desc, avail, used, buffers) = (at, at + 0x2000, at + 0x3000, at + 0x8000);
        let rings = Rings { size: SIZE, desc, avail, used, log: None, base: 0 };
        let window = |at, len| map.window(at, len, 2).expect("inside");
        let table = window(desc, 16 * usize::from(SIZE));
        let avail = window(avail, 6 + 2 * usize::from(SIZE));
        for slot in 0..SIZE {
            let addr = buffers + STRIDE * u64::from(slot);
            let (len, flags) = if frame.is_some() { (HEADER + FRAME, 0) } else { (2048, 2u64) };
            table.set_u64(16 * usize::from(slot), addr, Ordering::Relaxed);
            let word = len as u64 | flags << 32;
            table.set_u64(16 * usize::from(slot) + 8, word, Ordering::Relaxed);
            avail.set_u16(4 + 2 * usize::from(slot), slot, Ordering::Relaxed);
            if let Some(frame) = frame {
                let mut buffer = map.slice_mut(addr, HEADER + FRAME).expect("inside");
                buffer.write(HEADER, &frame(slot));
            }
        }
        // No interrupts.
        avail.set_u16(0, 1, Ordering::Relaxed);
        let used = window(used, 6 + 8 * usize::from(SIZE));
        Self { avail, used, rings, posting: Mutex::default() }
    }

    /// Makes `ahead` buffers available beyond those that were used.
    fn post(&self, ahead: u16) {
        let Ok(_posting) = self.posting.try_lock() else { return };
        let used = self.used.u16(2, Ordering::Acquire);
        self.avail.set_u16(2, used.wrapping_add(ahead), Ordering::Release);
    }
}

/// A port with its guest.
struct Fed {
    port: Arc<VhostUserPort>,
    tx: Vec<Ring>,
    rx: Vec<Ring>,
    sends: bool,
    _door: VhostUser,
}

impl Port for Fed {
    fn lanes(&self) -> usize {
        self.port.lanes()
    }
    fn pull(
        &self,
        lane: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        if self.sends {
            self.tx[lane].post(BURST);
        }
        self.port.pull(lane, batch, limit, sink)
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let done = self.port.push(batch, list);
        self.rx.iter().for_each(|ring| ring.post(SIZE));
        done
    }
    fn expect(&self) {
        self.port.expect();
    }
    fn offloads(&self) -> Offloads {
        self.port.offloads()
    }
    fn is_up(&self) -> bool {
        self.port.is_up()
    }
    fn arm(&self, lane: usize) -> bool {
        self.port.arm(lane)
    }
    fn disarm(&self, lane: usize) {
        self.port.disarm(lane);
    }
    fn counters(&self) -> &Counters {
        self.port.counters()
    }
}

fn mac(n: usize) -> [u8; 6] {
    let [.., a, b] = n.to_be_bytes();
    [2, 0, 0, 0, a, b]
}

/// A UDP frame of flow `flow` from one port to another.
fn frame(from: usize, to: usize, flow: u16) -> [u8; FRAME] {
    let mut f = [0; FRAME];
    f[..6].copy_from_slice(&mac(to));
    f[6..12].copy_from_slice(&mac(from));
    f[12..14].copy_from_slice(&[8, 0]);
    f[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    f[34..36].copy_from_slice(&flow.to_be_bytes());
    f[36..38].copy_from_slice(&[0, 9]);
    f[38..40].copy_from_slice(&[0, 26]);
    f
}

/// What is between whom.
struct Case {
    name: &'static str,
    ports: usize,
    queues: u16,
    /// Where the frames of a port's buffers go.
    to: fn(port: usize, slot: u16, ports: usize) -> usize,
    sends: fn(port: usize) -> bool,
    /// A burst leaves few frames for each receiver, so breaths are joint.
    joins: bool,
}

const CASES: [Case; 4] = [
    Case {
        name: "2 ports of 2 queues, both ways",
        ports: 2,
        queues: 2,
        to: |port, _, _| 1 - port,
        sends: |_| true,
        joins: false,
    },
    Case {
        name: "64 ports of 1 queue, each to all",
        ports: 64,
        queues: 1,
        to: |port, slot, ports| (port + 1 + usize::from(slot) % (ports - 1)) % ports,
        sends: |_| true,
        joins: true,
    },
    Case {
        name: "64 ports of 1 queue, each to its neighbour",
        ports: 64,
        queues: 1,
        to: |port, _, _| port ^ 1,
        sends: |_| true,
        joins: false,
    },
    Case {
        name: "2 ports to one of 4 queues",
        ports: 3,
        queues: 4,
        to: |_, _, _| 0,
        sends: |port| port > 0,
        joins: false,
    },
];

/// A VM's memory, and its two rings for each pair of queues, started.
fn plug(case: &Case, number: usize, dir: &std::path::Path) -> Fed {
    let path = dir.join(format!("{number}.sock"));
    let config = Config { path, queues: case.queues, ..Config::default() };
    let door = attach(config, Arc::new(|| ())).expect("port");
    let port = door.vhost_port();
    let file = tempfile::tempfile_in("/dev/shm").expect("file");
    let size = 2 * u64::from(case.queues) * RING;
    file.set_len(size).expect("size");
    let mapping = Arc::new(Mapping::new(std::os::fd::AsFd::as_fd(&file), 0, size).expect("map"));
    let region = Region::new(0, size, 0, 0, mapping).expect("region");
    let map = Arc::new(Map::new(vec![region], None).expect("map"));
    let fill = |slot: u16| frame(number, (case.to)(number, slot, case.ports), slot % 64);
    let at = |n: u16| u64::from(n) * RING;
    let tx: Vec<_> = (0..case.queues).map(|q| Ring::new(&map, at(2 * q), Some(&fill))).collect();
    let rx: Vec<_> = (0..case.queues).map(|q| Ring::new(&map, at(2 * q + 1), None)).collect();
    let mut both = port.both();
    drop(both.set_map(&map));
    both.set_features(feature::VERSION_1 | feature::MRG_RXBUF | feature::IN_ORDER);
    for (pair, (tx, rx)) in (0..).zip(tx.iter().zip(&rx)) {
        rx.post(SIZE);
        let (lane, queue) = both.lane_of(pair);
        lane.tx.net.start(queue, tx.rings).expect("tx");
        lane.rx.net.start(queue, rx.rings).expect("rx");
        lane.tx.net.enable(queue, true).expect("tx");
        lane.rx.net.enable(queue, true).expect("rx");
    }
    drop(both);
    Fed { port, tx, rx, sends: (case.sends)(number), _door: door }
}

/// A joint breath of those who wait; those who had it wait no more.
fn joint(forwarder: &mut Forwarder, table: &Table, waiting: &mut Vec<Source>, now: u64) -> u64 {
    forwarder.joint_breath(table, waiting, now);
    let had: Vec<_> = waiting.iter().map_while(|source| source.breath).collect();
    waiting.drain(..had.len());
    had.iter().map(|breath| breath.frames as u64).sum()
}

fn alone() -> bool {
    std::env::var_os("VMLAN_ALONE").is_some()
}

/// Breaths of a worker's lanes until it is to stop. Returns how many frames these were.
fn work(
    mut forwarder: Forwarder,
    table: &Table,
    own: &[(PortId, usize)],
    stop: &AtomicBool,
) -> u64 {
    let alone = alone();
    let (mut frames, mut now) = (0, 1);
    let mut waiting: Vec<Source> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for (port, lane) in own {
            now += 1000;
            if !alone && forwarder.joins(table, *port, now) {
                waiting.push(Source::new(*port));
            } else {
                frames += forwarder.breath(table, *port, *lane, now).frames as u64;
            }
            while waiting.len() == SOURCES {
                frames += joint(&mut forwarder, table, &mut waiting, now);
            }
        }
        while !waiting.is_empty() {
            frames += joint(&mut forwarder, table, &mut waiting, now);
        }
    }
    frames
}

/// Frames a second that so many workers deliver.
fn rate(case: &Case, workers: usize, time: Duration) -> f64 {
    let dir = tempfile::tempdir().expect("directory");
    let ports: Vec<_> = (0..case.ports).map(|n| Arc::new(plug(case, n, dir.path()))).collect();
    let full_wait = Duration::from_secs(3600);
    let switch = Switch::new(Options { full_wait, ..Options::default() });
    for n in 0..case.ports {
        let port = PortId::new(n).expect("few");
        switch.fdb().add_static(Mac::new(mac(n)), Domain::OPEN, port).expect("room");
    }
    let entry = |port: &Arc<Fed>| {
        let port = Arc::clone(port) as Arc<dyn Port>;
        Some(Entry { name: "b".into(), port, mirror: None, policy: Arc::default() })
    };
    let table = Arc::new(Table::new(ports.iter().map(entry).collect()));
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|s| {
        for worker in 0..workers {
            // As the program's worker, which has a clock.
            let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let mut forwarder =
                Forwarder::new(Arc::clone(&switch)).measured_by(clock, Usage::default);
            forwarder.grow(&table);
            let (table, stop, done) = (Arc::clone(&table), &stop, &done);
            let lanes =
                (0..case.ports).flat_map(|p| (0..usize::from(case.queues)).map(move |l| (p, l)));
            // As the program spreads them.
            let own: Vec<_> = lanes
                .filter(|(p, l)| (p + l) % workers == worker)
                .filter(|(p, _)| (case.sends)(*p))
                .map(|(p, l)| (PortId::new(p).expect("few"), l))
                .collect();
            s.spawn(move || {
                pin(worker);
                done.fetch_add(work(forwarder, &table, &own, stop), Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = start.elapsed().as_secs_f64();
    let lost: u64 = ports.iter().flat_map(|p| p.counters().drops()).map(|(_, n)| n).sum();
    assert_eq!(lost, 0, "{}: frames were dropped", case.name);
    done.into_inner() as f64 / seconds
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let time = numbers.next().map_or(0.3, |n| n.parse().expect("seconds"));
    let time = Duration::from_secs_f64(time);
    let rounds: usize = numbers.next().map_or(7, |n| n.parse().expect("rounds"));
    println!("Mframes/s, medians of {rounds} rounds; the ratio's least, median and most");
    let only = std::env::var("VMLAN_CASE").ok();
    for case in CASES.iter().filter(|case| only.as_ref().is_none_or(|o| case.name.contains(o))) {
        let before = model::line_costs(pin);
        let mut pairs: Vec<_> =
            (0..rounds).map(|_| (rate(case, 1, time), rate(case, 2, time))).collect();
        pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let ratio = |i: usize| pairs[i].1 / pairs[i].0;
        let middle = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<_> = pairs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[rounds / 2] / 1e6
        };
        let one = middle(|p| p.0);
        println!(
            "{:44} one worker {:6.2}, two {:6.2}: {:.2} [{:.2}, {:.2}]",
            case.name,
            one,
            middle(|p| p.1),
            ratio(rounds / 2),
            ratio(0),
            ratio(rounds - 1)
        );
        let after = model::line_costs(pin);
        let line = (f64::midpoint(before.0, after.0), f64::midpoint(before.1, after.1));
        println!("  a line of the other core's: {:.0} ns, of many {:.1} ns", line.0, line.1);
        predict(case, model::Costs { frame: 1e3 / one, line });
    }
}

/// What the model says of two workers, which were measured, and of more.
fn predict(case: &Case, costs: model::Costs) {
    let (to, ports, queues) = (case.to, case.ports, usize::from(case.queues));
    let traffic = model::Traffic {
        ports,
        queues,
        batch: BURST.into(),
        joint: if case.joins && !alone() { JOINT / usize::from(BURST) } else { 1 },
        // Each slot of a ring is a flow, and flows are spread over queues.
        to: Box::new(move |port, n| {
            let slot = u16::try_from(n).expect("a batch");
            (to(port, slot, ports), (n * 7 + port) % queues)
        }),
        sends: case.sends,
    };
    let alone = model::simulate(&traffic, costs, 1).rate;
    for count in [2, 8, 16, 64] {
        let outcome = model::simulate(&traffic, costs, count);
        println!(
            "  model, {count:2} workers: {:5.2} times one; {:.0} % of their time wait for locks, \
             {:.0} % for lines",
            outcome.rate / alone,
            outcome.waits * 100.0,
            outcome.lines * 100.0
        );
    }
}
