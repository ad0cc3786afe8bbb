//! Instructions of the fairness paper's figure 10: receivers that are flooded at the rate of a link
//! of 1 Gbit/s each, with and without a limit of 24,000 frames/s. Time is simulated and everything
//! runs in one thread, so callgrind counts the same number each time: `scripts/instructions.sh`.
//!
//! `flooded virtio|e1000 BYTES QUEUES none|24k` moves 100 ms of frames. Collected are the calls of
//! `measured_breath` (switch and NICs, sending guests' included) and of `measured_access` (what the
//! chip does at a register access of the receiving guest, one for each 100 us, plus one of ICR).

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vmlan_frame::{Batch, Counters, Mac, Offloads, Port, Sink};
use vmlan_nic::chip::{Config, Host, Nic as _, PciFunction as _, Space};
use vmlan_nic::e1000::E1000;
use vmlan_nic::virtio::{Budget, Features, NetRx, NetTx, Rings, feature};
use vmlan_ram::{Map, Mapping, Region, Window};
use vmlan_switch::policy::{Bucket, Domain, Limiter, Limits, Policy, Rate};
use vmlan_switch::{Breath, Entry, Forwarder, Options, PortId, Switch, Table};

const SIZE: u16 = 256;
const STRIDE: u64 = 2304;
/// Guests have their turn, and workers theirs, so often.
const STEP_NS: u64 = 100_000;
const STEPS: u64 = 1000;
/// The first ones fill caches and buckets, and are not counted.
const WARM: u64 = 200;
const LINK: u64 = 1_000_000_000;
/// FCS, preamble and gap.
const AROUND: u64 = 24;
const LIMIT: u64 = 24_000;
/// Registers of the receive side.
const RDT: u64 = 0x2818;
const ICR: u64 = 0xc0;

fn memory(size: u64) -> Arc<Map> {
    let file = tempfile::tempfile_in("/dev/shm").expect("file");
    file.set_len(size).expect("size");
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, size).expect("map"));
    let region = Region::new(0, size, 0, 0, mapping).expect("region");
    Arc::new(Map::new(vec![region], None).expect("map"))
}

/// A guest's half of a virtqueue, with a buffer for each descriptor.
struct Ring {
    map: Arc<Map>,
    desc: Window,
    avail: Window,
    used: Window,
    posted: u16,
    seen: u16,
}

impl Ring {
    fn new() -> (Self, Rings) {
        let map = memory(0x20_0000);
        let rings = Rings { size: SIZE, desc: 0, avail: 0x2000, used: 0x3000, log: None, base: 0 };
        let window = |at, len| map.window(at, len, 4).expect("inside");
        let n = usize::from(SIZE);
        let (desc, avail, used) =
            (window(0, 16 * n), window(0x2000, 8 + 2 * n), window(0x3000, 8 + 8 * n));
        (Self { map, desc, avail, used, posted: 0, seen: 0 }, rings)
    }

    /// Posts `n` buffers of `len` bytes; with a frame, to send it.
    fn post(&mut self, n: u16, len: usize, frame: Option<&[u8]>) {
        for _ in 0..n {
            let slot = self.posted & (SIZE - 1);
            let addr = 0x1_0000 + STRIDE * u64::from(slot);
            if let Some(frame) = frame {
                self.map.slice_mut(addr, len).expect("inside").write(0, frame);
            }
            let flags = if frame.is_none() { 2 << 32 } else { 0 };
            self.desc.set_u64(16 * usize::from(slot), addr, Relaxed);
            self.desc.set_u64(16 * usize::from(slot) + 8, len as u64 | flags, Relaxed);
            self.avail.set_u16(4 + 2 * usize::from(slot), slot, Relaxed);
            self.posted = self.posted.wrapping_add(1);
        }
        self.avail.set_u16(2, self.posted, Release);
    }

    fn done(&mut self) -> u16 {
        let used = self.used.u16(2, Acquire);
        let n = used.wrapping_sub(self.seen);
        self.seen = used;
        n
    }
}

/// A port that only sends, or only receives.
struct Plug {
    side: Side,
    counters: Counters,
}

enum Side {
    Tx(Mutex<NetTx>),
    Rx(Mutex<NetRx>),
    Chip(Box<E1000>),
}

impl Plug {
    fn new(side: Side) -> Arc<Self> {
        Arc::new(Self { side, counters: Counters::default() })
    }
}

impl Port for Plug {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        match &self.side {
            Side::Tx(tx) => tx.lock().unwrap().pull(batch, limit, sink, &self.counters),
            _ => 0,
        }
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        match &self.side {
            Side::Rx(rx) => {
                rx.lock().unwrap().push(batch, list, &self.counters, &mut Budget::default())
            }
            Side::Chip(chip) => chip.push(batch, list),
            Side::Tx(_) => 0,
        }
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
        match &self.side {
            Side::Chip(chip) => chip.counters(),
            _ => &self.counters,
        }
    }
}

fn bits() -> Features {
    Features(feature::VERSION_1 | feature::MRG_RXBUF | feature::IN_ORDER)
}

/// A guest that floods, and its port.
struct Source {
    ring: Ring,
    port: Arc<Plug>,
    frame: Vec<u8>,
    /// Frames that were due.
    due: u64,
    free: u16,
}

impl Source {
    fn new(mac: Mac, to: Mac, bytes: usize) -> Self {
        let (ring, rings) = Ring::new();
        let mut tx = NetTx::new();
        tx.set_map(ring.map.clone());
        tx.set_features(bits());
        tx.start(0, rings).expect("tx");
        tx.enable(0, true).expect("tx");
        let mut frame = vec![0; 12 + bytes];
        frame[12..18].copy_from_slice(&to.octets());
        frame[18..24].copy_from_slice(&mac.octets());
        Self { ring, port: Plug::new(Side::Tx(Mutex::new(tx))), frame, due: 0, free: SIZE }
    }

    fn turn(&mut self, now: u64, bytes: usize) {
        self.free += self.ring.done();
        let due = now * (LINK / (8 * (bytes as u64 + AROUND))) / 1_000_000_000;
        // A link does not wait: what finds no room is lost.
        let n = u16::try_from(due - self.due).unwrap_or(SIZE).min(self.free);
        self.due = due;
        self.free -= n;
        self.ring.post(n, self.frame.len(), Some(&self.frame));
    }
}

/// A guest that takes what comes.
enum Receiver {
    Virtio(Ring),
    Chip { desc: Window, next: u32, port: Arc<Plug> },
}

impl Receiver {
    fn virtio() -> (Self, Arc<Plug>) {
        let (mut ring, rings) = Ring::new();
        let mut rx = NetRx::new();
        rx.set_map(ring.map.clone());
        rx.set_features(bits());
        rx.start(0, rings).expect("rx");
        rx.enable(0, true).expect("rx");
        ring.post(SIZE, 2048, None);
        (Self::Virtio(ring), Plug::new(Side::Rx(Mutex::new(rx))))
    }

    fn chip(mac: Mac) -> (Self, Arc<Plug>) {
        let (map, pages) = (memory(0x20_0000), memory(E1000::PAGES as u64));
        let config = Config { mac, irq_rate_max: 0, csb: false };
        let chip =
            E1000::new(config, pages.window(0, E1000::PAGES, 4).expect("pages"), Arc::new(Quiet));
        drop(chip.set_map(map.clone()));
        chip.write(Space::Config, 4, &[7, 0]);
        chip.set_link(true);
        let set = |at: u64, value: u32| chip.write(Space::Bar(0), at, &value.to_le_bytes());
        set(0, 1 << 6);
        let len = u32::from(SIZE) * 16;
        for (at, value) in
            [(0x2800, 0), (0x2808, len), (0x2810, 0), (RDT, 0), (0x100, 0x8002), (0xd0, 0x9d)]
        {
            set(at, value);
        }
        let desc = map.window(0, 16 * usize::from(SIZE), 4).expect("inside");
        for slot in 0..SIZE {
            let addr = 0x1_0000 + STRIDE * u64::from(slot);
            desc.set_u64(16 * usize::from(slot), addr, Relaxed);
        }
        set(RDT, u32::from(SIZE) - 1);
        let port = Plug::new(Side::Chip(Box::new(chip)));
        (Self::Chip { desc, next: 0, port: port.clone() }, port)
    }

    fn turn(&mut self, access: Access) {
        match self {
            Self::Virtio(ring) => {
                let n = ring.done();
                ring.post(n, 2048, None);
            }
            Self::Chip { desc, next, port } => {
                let begin = *next;
                while desc.u64(16 * *next as usize + 8, Acquire) >> 32 & 1 != 0 {
                    desc.set_u64(16 * *next as usize + 8, 0, Relaxed);
                    *next = (*next + 1) % u32::from(SIZE);
                }
                if let (true, Side::Chip(chip)) = (begin != *next, &port.side) {
                    let last = (*next + u32::from(SIZE) - 1) % u32::from(SIZE);
                    access(chip, last);
                }
            }
        }
    }
}

struct Quiet;

impl Host for Quiet {
    fn now(&self) -> u64 {
        0
    }
    fn set_timer(&self, _: u64) {}
    fn raise(&self) {}
    fn doorbell(&self) {}
}

type Breathe = fn(&mut Forwarder, &Table, PortId, u64) -> Breath;
type Access = fn(&E1000, u32);

#[inline(never)]
fn measured_breath(forwarder: &mut Forwarder, table: &Table, port: PortId, now: u64) -> Breath {
    breath(forwarder, table, port, now)
}

fn breath(forwarder: &mut Forwarder, table: &Table, port: PortId, now: u64) -> Breath {
    forwarder.breath(table, port, 0, now)
}

#[inline(never)]
fn measured_access(chip: &E1000, tail: u32) {
    handle(chip, tail);
}

/// As a driver's interrupt handler: the cause is read, buffers are given back.
fn handle(chip: &E1000, tail: u32) {
    chip.read(Space::Bar(0), ICR, &mut [0; 4]);
    chip.write(Space::Bar(0), RDT, &tail.to_le_bytes());
}

fn mac(n: usize) -> Mac {
    Mac::new([2, 0, 0, 0, 0, u8::try_from(n).expect("few")])
}

fn policy(is_limited: bool) -> Arc<Policy> {
    let rate = Rate { per_second: LIMIT, burst: Duration::from_millis(5) };
    let frames = Some(Bucket::new(rate, 0));
    let limiter = Limiter { bits: None, frames, counters: Arc::default(), turns: None };
    let own = is_limited.then(|| Arc::new(limiter));
    Arc::new(Policy { to: Limits { own, shared: None }, ..Policy::default() })
}

fn main() {
    let args: Vec<String> = std::env::args().filter(|arg| arg != "--bench").collect();
    let [_, nic, bytes, queues, limit] = &args[..] else {
        eprintln!("flooded virtio|e1000 BYTES QUEUES none|24k");
        return;
    };
    let (bytes, queues): (usize, usize) =
        (bytes.parse().expect("BYTES"), queues.parse().expect("QUEUES"));
    let mut sources: Vec<_> =
        (0..queues).map(|n| Source::new(mac(n), mac(queues + n), bytes)).collect();
    let receiver =
        |n| if nic == "e1000" { Receiver::chip(mac(queues + n)) } else { Receiver::virtio() };
    let (mut receivers, plugs): (Vec<_>, Vec<_>) = (0..queues).map(receiver).unzip();
    let ports = sources.iter().map(|s| s.port.clone()).chain(plugs.iter().cloned());
    let entry = |(n, port): (usize, Arc<Plug>)| {
        let policy = policy(limit == "24k" && n >= queues);
        Some(Entry { name: "p".into(), port, mirror: None, policy })
    };
    let table = Table::new(ports.enumerate().map(entry).collect());
    let switch = Switch::new(Options::default());
    for n in 0..2 * queues {
        let port = PortId::new(n).expect("few");
        switch.fdb().add_static(mac(n), Domain::OPEN, port).expect("room");
    }
    let mut forwarder = Forwarder::new(switch);
    forwarder.grow(&table);
    let count = || {
        let offered: u64 = sources_of(&table, queues).map(|c| c.input.frames.get()).sum();
        (offered, plugs.iter().map(|p| p.counters().output.frames.get()).sum::<u64>())
    };
    let mut step = |n: u64, breathe: Breathe, access: Access| {
        sources.iter_mut().for_each(|s| s.turn(n * STEP_NS, bytes));
        for at in 0..queues {
            let port = PortId::new(at).expect("few");
            while breathe(&mut forwarder, &table, port, n * STEP_NS).frames > 0 {}
        }
        receivers.iter_mut().for_each(|r| r.turn(access));
    };
    (1..=WARM).for_each(|n| step(n, breath, handle));
    let before = count();
    (WARM + 1..=WARM + STEPS).for_each(|n| step(n, measured_breath, measured_access));
    let after = count();
    println!("offered {} delivered {}", after.0 - before.0, after.1 - before.1);
}

fn sources_of(table: &Table, queues: usize) -> impl Iterator<Item = &Counters> {
    (0..queues).filter_map(|n| Some(table.get(PortId::new(n)?)?.port.counters()))
}
