//! The switch alone: frames of 60 bytes between ports in this process. Each frame is really copied,
//! out of a sender's buffer and into a receiver's, both 2 KiB apart as a driver's are.
//!
//! `cargo bench -p vmlan-lab --bench switch`; the same loops run under callgrind by
//! `VMLAN_BREATHS=1000 VMLAN_WORLD=64,100000 valgrind --tool=callgrind BINARY` (2 ports and 2
//! addresses by default; see docs/results.md).
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use criterion::{Criterion, Throughput, criterion_group};
use vmlan_frame::{BATCH, Batch, Counters, Mac, Offload, Offloads, Port, Sink};
use vmlan_ram::{Lines, Slice, SliceMut};
use vmlan_switch::{Entry, Forwarder, Options, PortId, Source, Switch, Table};

const SLOT: usize = 2048;
const FRAME: usize = 60;

/// A port over two rings of buffers in our own memory: one is sent from, again and again, the other
/// is written to.
struct Ring {
    tx: Mutex<(Vec<u8>, usize)>,
    rx: Mutex<(Vec<u8>, usize)>,
    slots: usize,
    next: Lines,
    counters: Counters,
    sent: AtomicU64,
}

impl Ring {
    fn new(slots: usize, frame: impl Fn(usize) -> [u8; FRAME]) -> Arc<Self> {
        let mut tx = vec![0; slots * SLOT];
        for (i, slot) in tx.chunks_mut(SLOT).enumerate() {
            slot[..FRAME].copy_from_slice(&frame(i));
        }
        Arc::new(Self {
            tx: Mutex::new((tx, 0)),
            // Not zeros: the kernel is to have given all pages before the first frame.
            rx: Mutex::new((vec![1; BATCH * SLOT], 0)),
            slots,
            next: Lines::default(),
            counters: Counters::default(),
            sent: AtomicU64::new(0),
        })
    }
}

impl Port for Ring {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut guard = self.tx.lock().unwrap();
        let (memory, next) = &mut *guard;
        let mut batch = Batch::take(spare);
        for i in 0..limit {
            let at = (*next + i) % self.slots * SLOT;
            let _ = batch.add(&[Slice::from_bytes(&memory[at..at + FRAME])], Offload::NONE);
        }
        sink.deliver(&mut batch);
        let n = batch.len();
        batch.give_back(spare);
        *next = (*next + n) % self.slots;
        self.counters.input.count(n, (n * FRAME) as u64);
        n
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let mut guard = self.rx.lock().unwrap();
        let (memory, next) = &mut *guard;
        // As a real port does: ask for the buffers of all frames before the first is copied.
        for k in 0..list.len() {
            let at = (*next + k) % BATCH * SLOT;
            SliceMut::from_bytes(&mut memory[at..at + SLOT]).prefetch();
        }
        let mut bytes = 0;
        for i in list.iter() {
            let Some(frame) = batch.frame(usize::from(*i)) else { continue };
            let at = *next * SLOT;
            *next = (*next + 1) % BATCH;
            bytes += frame.write_to(&mut SliceMut::from_bytes(&mut memory[at..at + SLOT]), 0);
        }
        if self.next.is_wanted() {
            let mut lines = self.next.note();
            for k in 0..list.len() {
                let at = (*next + k) % BATCH * SLOT;
                lines.buffer(&SliceMut::from_bytes(&mut memory[at..at + SLOT]), 0);
            }
        }
        self.counters.output.count(list.len(), bytes as u64);
        self.sent.fetch_add(list.len() as u64, Ordering::Relaxed);
        list.len()
    }
    fn expect(&self) {
        self.next.prefetch();
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
        &self.counters
    }
}

fn mac(n: usize) -> [u8; 6] {
    let b = u32::try_from(n).expect("few").to_be_bytes();
    [2, 0, b[0], b[1], b[2], b[3]]
}

/// The ports of [`world`]. The first `sources` of them send to all the others' addresses in a mixed
/// order.
fn rings(ports: usize, macs: usize, sources: usize) -> Vec<Arc<Ring>> {
    let slots = if macs <= ports { BATCH } else { 16 * BATCH };
    let step = std::sync::atomic::AtomicUsize::new(1);
    let frame = |from| {
        let mut f = [0; FRAME];
        let mut to = step.fetch_add(7919, Ordering::Relaxed) % macs;
        if to % ports == from {
            to = (to + 1) % macs;
        }
        f[..6].copy_from_slice(&mac(to));
        f[6..12].copy_from_slice(&mac(from));
        f
    };
    let slots = |port| if port < sources { slots } else { 1 };
    (0..ports).map(|port| Ring::new(slots(port), |_| frame(port))).collect()
}

/// `ports` ports and `macs` addresses, spread evenly.
fn world(ports: usize, macs: usize, sources: usize) -> (Table, Forwarder, Arc<Ring>) {
    let rings = rings(ports, macs, sources);
    let options = Options { fdb_entries: 4 * macs, fdb_port_cap: u32::MAX, ..Options::default() };
    let switch = Switch::new(options);
    for m in 0..macs {
        let port = PortId::new(m % ports).unwrap();
        switch
            .fdb()
            .add_static(Mac::new(mac(m)), vmlan_switch::policy::Domain::OPEN, port)
            .unwrap();
    }
    let entry = |r: &Arc<Ring>| {
        Some(Entry { name: "b".into(), port: r.clone(), mirror: None, policy: Arc::default() })
    };
    let table = Table::new(rings.iter().map(entry).collect());
    let mut forwarder = Forwarder::new(switch);
    forwarder.grow(&table);
    (table, forwarder, rings[0].clone())
}

/// Delivers what it gets to where it was told beforehand: what a switch would cost that knows all.
struct Told<'r> {
    rings: &'r [Arc<Ring>],
    /// For each batch of the sender's, who gets which frames.
    lists: &'r [Vec<(usize, Vec<u16>)>],
    /// The batch.
    at: usize,
}

impl Sink for Told<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut numbers = [0; BATCH];
        let lists = &self.lists[self.at];
        for (i, (to, list)) in lists.iter().enumerate() {
            if let Some((soon, _)) = lists.get(i + 2) {
                self.rings[*soon].expect();
            }
            let numbers = &mut numbers[..list.len()];
            numbers.copy_from_slice(list);
            self.rings[*to].push(batch, numbers);
        }
    }
    fn skipped(&mut self, _: usize, _: u64) {}
}

/// The same frames, pulled and pushed without a switch.
fn without_switch(rings: &[Arc<Ring>]) -> impl FnMut() + '_ {
    let memory = rings[0].tx.lock().unwrap();
    let to = |slot: &[u8]| {
        let number: [u8; 4] = slot[2..6].try_into().expect("four bytes");
        u32::from_be_bytes(number) as usize % rings.len()
    };
    let lists_of = |batch: &[u8]| {
        let mut lists: Vec<(usize, Vec<u16>)> = Vec::new();
        for (i, slot) in (0..).zip(batch.chunks(SLOT)) {
            match lists.iter_mut().find(|(port, _)| *port == to(slot)) {
                Some((_, list)) => list.push(i),
                None => lists.push((to(slot), vec![i])),
            }
        }
        lists
    };
    let lists: Vec<_> = memory.0.chunks(BATCH * SLOT).map(lists_of).collect();
    drop(memory);
    let (mut spare, mut at) = (Batch::new(), 0);
    move || {
        rings[0].pull(0, &mut spare, BATCH, &mut Told { rings, lists: &lists, at });
        at = (at + 1) % lists.len();
    }
}

fn breaths(c: &mut Criterion) {
    let mut group = c.benchmark_group("switch");
    group.throughput(Throughput::Elements(BATCH as u64));
    let cases = [
        ("2 ports", 2, 2),
        ("2 ports, 100k MACs", 2, 100_000),
        ("64 ports", 64, 64),
        ("64 ports, 100k MACs", 64, 100_000),
        ("1000 ports, 100k MACs", 1000, 100_000),
    ];
    for (name, ports, macs) in cases {
        let (table, mut forwarder, _) = world(ports, macs, 1);
        let source = PortId::new(0).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| forwarder.breath(&table, source, 0, 1));
        });
        let rings = rings(ports, macs, 1);
        let mut breath = without_switch(&rings);
        group.bench_function(format!("{name}, no switch"), |b| b.iter(&mut breath));
    }
    group.finish();
}

/// Several ports that send, one after the other and together.
fn joint_breaths(c: &mut Criterion) {
    let mut group = c.benchmark_group("sources");
    for (ports, count) in [(2, 2), (64, 4), (1000, 4)] {
        group.throughput(Throughput::Elements((count * BATCH) as u64));
        let ids: Vec<_> = (0..count).map(|n| PortId::new(n).unwrap()).collect();
        let (table, mut forwarder, _) = world(ports, 100_000, count);
        group.bench_function(format!("{count} of {ports} ports"), |b| {
            b.iter(|| {
                for id in &ids {
                    forwarder.breath(&table, *id, 0, 1);
                }
            });
        });
        let mut sources: Vec<_> = ids.iter().map(|id| Source::new(*id)).collect();
        group.bench_function(format!("{count} of {ports} ports, joint"), |b| {
            b.iter(|| {
                sources.iter_mut().for_each(|source| source.breath = None);
                forwarder.joint_breath(&table, &mut sources, 1);
                assert!(sources.iter().all(|source| source.breath.is_some()));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, breaths, joint_breaths);

fn main() {
    if let Ok(n) = std::env::var("VMLAN_BREATHS") {
        let world_of = std::env::var("VMLAN_WORLD").ok();
        let numbers = world_of.as_deref().and_then(|w| w.split_once(','));
        let (ports, macs) =
            numbers.map_or((2, 2), |(p, m)| (p.parse().unwrap(), m.parse().unwrap()));
        let (table, mut forwarder, ring) = world(ports, macs, 1);
        for _ in 0..n.parse().unwrap_or(1000) {
            forwarder.breath(&table, PortId::new(0).unwrap(), 0, 1);
        }
        println!("{} frames", ring.counters.snapshot().0.frames);
        return;
    }
    criterion_main_benches();
}

fn criterion_main_benches() {
    benches();
    Criterion::default().configure_from_args().final_summary();
}
