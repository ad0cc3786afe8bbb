//! The switch with ports made of vectors: who gets what.
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vmlan_frame::{
    Batch, Counters, FrameView, Mac, Mirror, Offload, Offloads, Port, Reason, Sink, Verdict,
};
use vmlan_ram::Slice;

use super::*;
use crate::policy::{Domain, Policy, Vlan};

mod departures;
mod explain;
mod finished;
mod given_up;
mod joint;
mod multicast;
mod stalls;
mod teams;
mod watch;

/// A port that sends what was queued and keeps what it is given, up to `room` frames.
struct Fake {
    tx: Mutex<Vec<Vec<u8>>>,
    rx: Mutex<Vec<Vec<u8>>>,
    room: AtomicUsize,
    /// Bytes of the longest frame that it has room for.
    longest: AtomicUsize,
    up: AtomicBool,
    /// How often somebody asked whether it is up.
    looks: AtomicUsize,
    /// How often it was told to expect frames, and how often of these before the last push.
    expected: [AtomicUsize; 2],
    /// Whose frames it gets decides which lane it gets them by.
    by_source: AtomicBool,
    /// Whose frames it was handed together, and how many.
    pushes: Mutex<Vec<(u16, usize)>>,
    /// What is still to be done to the frames it sends.
    offload: Mutex<Offload>,
    counters: Counters,
}

impl Port for Fake {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut tx = self.tx.lock().unwrap();
        let mut verdicts = Vec::new();
        {
            let mut batch = Batch::take(spare);
            let offload = *self.offload.lock().unwrap();
            for f in tx.iter().take(limit) {
                batch.add(&[Slice::from_bytes(f)], offload).unwrap();
            }
            sink.deliver(&mut batch);
            (0..batch.len()).for_each(|i| verdicts.push(batch.verdict(i)));
            batch.give_back(spare);
        }
        let mut v = verdicts.iter();
        tx.retain(|_| matches!(v.next(), Some(Verdict::Held) | None));
        verdicts.iter().filter(|v| **v == Verdict::Done).count()
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        if !self.is_up() {
            self.counters.output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        self.pushes.lock().unwrap().push((batch.source(), list.len()));
        let [times, before_push] = &self.expected;
        before_push.store(times.load(Ordering::Relaxed), Ordering::Relaxed);
        let longest = self.longest.load(Ordering::Relaxed);
        let fits = |i: &&u16| batch.frame_len(usize::from(**i)) <= longest;
        let n = list.iter().take_while(fits).count().min(self.room.load(Ordering::Relaxed));
        self.room.fetch_sub(n, Ordering::Relaxed);
        for i in &list[..n] {
            let f = batch.frame(usize::from(*i)).unwrap();
            let mut bytes = vec![0; f.len];
            f.copy_to(&mut bytes);
            self.rx.lock().unwrap().push(bytes);
        }
        n
    }
    fn expect(&self) {
        self.expected[0].fetch_add(1, Ordering::Relaxed);
    }
    fn steers_by_source(&self) -> bool {
        self.by_source.load(Ordering::Relaxed)
    }
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }
    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }
    fn is_up(&self) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.up.load(Ordering::Relaxed)
    }
    fn arm(&self, _: usize) -> bool {
        false
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

struct World {
    switch: Arc<Switch>,
    ports: Vec<Arc<Fake>>,
    table: Table,
    forwarder: Forwarder,
}

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn mac(n: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, n])
}

fn world(n: usize, options: Options) -> World {
    let fake = |_| {
        Arc::new(Fake {
            tx: Mutex::default(),
            rx: Mutex::default(),
            room: AtomicUsize::new(usize::MAX),
            longest: AtomicUsize::new(usize::MAX),
            up: AtomicBool::new(true),
            looks: AtomicUsize::new(0),
            expected: Default::default(),
            by_source: AtomicBool::new(false),
            pushes: Mutex::default(),
            offload: Mutex::default(),
            counters: Counters::default(),
        })
    };
    let ports: Vec<_> = (0..n).map(fake).collect();
    let entry = |p: &Arc<Fake>| {
        Some(Entry { name: "p".into(), port: p.clone(), mirror: None, policy: Arc::default() })
    };
    let table = Table::new(ports.iter().map(entry).collect());
    let switch = Switch::new(options);
    let mut forwarder = Forwarder::new(switch.clone());
    forwarder.grow(&table);
    World { switch, ports, table, forwarder }
}

impl World {
    fn send(&mut self, from: usize, dst: Mac, src: Mac, tag: u8) {
        let mut f = vec![0; 60];
        f[..6].copy_from_slice(&dst.octets());
        f[6..12].copy_from_slice(&src.octets());
        f[20] = tag;
        self.ports[from].tx.lock().unwrap().push(f);
    }
    fn set_all(&mut self, policies: Vec<Policy>) {
        let entries = self.ports.iter().zip(policies).enumerate().map(|(i, (p, policy))| {
            let name = format!("vm{i}").into();
            Some(Entry { name, port: p.clone(), mirror: None, policy: Arc::new(policy) })
        });
        self.table = Table::new(entries.collect());
    }
    fn breathe(&mut self, from: usize, now: u64) -> Breath {
        self.forwarder.breath(&self.table, id(from), 0, now)
    }
    fn tags(&self, port: usize) -> Vec<u8> {
        self.ports[port].rx.lock().unwrap().drain(..).map(|f| f[20]).collect()
    }
    fn dropped(&self, port: usize, reason: Reason) -> u64 {
        let c = &self.ports[port].counters;
        c.input.dropped(reason) + c.output.dropped(reason)
    }
}

#[test]
fn unknown_addresses_flood_and_known_ones_do_not() {
    let mut w = world(3, Options::default());
    w.send(0, mac(2), mac(1), 1);
    w.breathe(0, 0);
    assert_eq!((w.tags(0), w.tags(1), w.tags(2)), (vec![], vec![1], vec![1]));
    w.send(1, mac(1), mac(2), 2);
    w.breathe(1, 0);
    assert_eq!((w.tags(0), w.tags(1), w.tags(2)), (vec![2], vec![], vec![]));
    w.send(0, Mac::BROADCAST, mac(1), 3);
    w.send(0, mac(2), mac(1), 4);
    w.breathe(0, 0);
    assert_eq!((w.tags(1), w.tags(2)), (vec![3, 4], vec![3]), "order is kept");
}

/// A receiver is told before its turn, while others are served: all but the first two of a breath.
#[test]
fn receivers_are_told_to_expect_frames() {
    let mut w = world(6, Options::default());
    let told = |w: &World| -> Vec<_> {
        let of = |p: &Arc<Fake>| p.expected.each_ref().map(|n| n.swap(0, Ordering::Relaxed));
        w.ports.iter().map(of).collect()
    };
    w.send(0, mac(9), mac(1), 1);
    w.breathe(0, 1);
    assert_eq!(told(&w), [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [1, 1]], "flooded");
    for port in 1..6 {
        w.send(port, mac(1), mac(1 + u8::try_from(port).unwrap()), 2);
        w.breathe(port, 2);
    }
    assert_eq!(told(&w), [[0, 0]; 6], "one receiver each");
    for to in [5, 2, 4, 3] {
        w.send(0, mac(1 + to), mac(1), 3);
    }
    w.breathe(0, 3);
    assert_eq!(told(&w), [[0, 0], [0, 0], [0, 0], [1, 1], [1, 1], [0, 0]], "in the order of turns");
}

#[test]
fn bad_sources_and_hairpins_are_dropped_with_a_reason() {
    let mut w = world(2, Options::default());
    w.send(0, mac(9), Mac::BROADCAST, 1);
    w.send(0, mac(9), Mac::default(), 2);
    w.send(0, mac(1), mac(1), 3);
    assert_eq!(w.breathe(0, 0).frames, 3);
    assert_eq!(w.tags(1), []);
    assert_eq!(w.dropped(0, Reason::BadSource), 2);
    assert_eq!(w.dropped(0, Reason::SamePort), 1);
}

#[test]
fn a_zero_destination_is_unknown_not_port_zero() {
    let mut w = world(3, Options::default());
    w.send(1, Mac::default(), mac(1), 1);
    w.breathe(1, 0);
    assert_eq!((w.tags(0), w.tags(2)), (vec![1], vec![1]));
}

#[test]
fn a_full_receiver_is_waited_for_and_then_given_up() {
    let mut w = world(3, Options::default());
    w.send(1, mac(9), mac(2), 0);
    w.breathe(1, 1);
    let _ = (w.tags(0), w.tags(2));
    w.ports[1].room.store(1, Ordering::Relaxed);
    (1..=3).for_each(|t| w.send(0, mac(2), mac(1), t));
    w.send(0, Mac::BROADCAST, mac(1), 4);
    let b = w.breathe(0, 1_000);
    assert!(b.held_ns.is_some_and(|n| n <= 10_000_000));
    assert_eq!((w.tags(1), w.tags(2)), (vec![1], vec![4]), "floods do not wait");
    assert_eq!(w.breathe(0, 2_000).frames, 0);
    let mut blocked = Vec::new();
    w.forwarder.take_blocked(&mut blocked);
    assert_eq!(blocked, [id(1)]);
    assert_eq!(w.breathe(0, 20_000_000).frames, 2, "the bound is 10 ms");
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 3);
    w.send(0, mac(2), mac(1), 5);
    assert_eq!(w.breathe(0, 21_000_000).frames, 1, "and is not waited for again");
    w.ports[1].room.store(1, Ordering::Relaxed);
    w.send(0, mac(2), mac(1), 6);
    w.send(0, mac(2), mac(1), 7);
    assert_eq!(w.breathe(0, 22_000_000).frames, 1);
    assert_eq!(w.tags(1), [6], "until it has taken something");
    w.ports[1].room.store(9, Ordering::Relaxed);
    w.breathe(0, 22_000_001);
    assert_eq!(w.tags(1), [7], "what was held arrives");
}

#[test]
fn nobody_up_is_a_reason_too() {
    let mut w = world(2, Options::default());
    w.ports[1].up.store(false, Ordering::Relaxed);
    w.send(0, Mac::BROADCAST, mac(1), 1);
    w.breathe(0, 0);
    assert_eq!(w.dropped(0, Reason::NoReceiver), 1);
}

#[test]
fn static_entries_do_not_move_or_age_and_bind_their_address() {
    let mut w = world(3, Options::default());
    w.switch.fdb().add_static(mac(7), Domain::OPEN, id(2)).unwrap();
    w.send(0, mac(8), mac(7), 1);
    w.breathe(0, 0);
    assert_eq!(w.dropped(0, Reason::NotAllowed), 1);
    (0..100).for_each(|_| _ = w.switch.fdb().tick());
    assert_eq!(w.switch.fdb().lookup(mac(7), Domain::OPEN), Some(id(2)));
    assert!(w.switch.fdb().add_static(Mac::BROADCAST, Domain::OPEN, id(0)).is_err());
    assert!(
        w.switch.fdb().remove(mac(7), Domain::OPEN) && !w.switch.fdb().remove(mac(7), Domain::OPEN)
    );
}

#[test]
fn unknown_and_reserved_addresses_are_dropped_where_the_policy_says_so() {
    let mut w = world(3, Options::default());
    let lldp = Mac::new([1, 0x80, 0xc2, 0, 0, 0xe]);
    let beyond = Mac::new([1, 0x80, 0xc2, 0, 0, 0x10]);
    w.set_all(vec![
        Policy { drops_unknown: true, ..Policy::default() },
        Policy { passes_reserved: true, ..Policy::default() },
        Policy { vlan: Vlan::Access(5), ..Policy::default() },
    ]);
    w.send(0, mac(9), mac(1), 1);
    w.send(0, Mac::BROADCAST, mac(1), 2);
    w.send(0, lldp, mac(1), 3);
    w.send(0, beyond, mac(1), 4);
    w.breathe(0, 0);
    assert_eq!(w.tags(1), [2, 4], "known to be for all");
    assert_eq!((w.dropped(0, Reason::Unknown), w.dropped(0, Reason::Reserved)), (1, 1));
    w.send(1, lldp, mac(9), 5);
    w.send(1, mac(8), mac(9), 6);
    w.breathe(1, 0);
    assert_eq!(w.tags(0), [5, 6], "another port's policy");
    w.send(0, mac(9), mac(1), 7);
    w.breathe(0, 0);
    assert_eq!(w.tags(1), [7], "now it is known");
    w.switch.fdb().add_static(mac(7), Domain::OPEN, id(2)).unwrap();
    w.send(0, mac(7), mac(1), 8);
    w.breathe(0, 0);
    assert_eq!(w.dropped(0, Reason::Unknown), 2, "it is not where it was pinned");
}

/// UDP over IPv4 of `len` bytes, all headers included.
fn udp(dst: Mac, src: Mac, len: u16) -> Vec<u8> {
    let mut f = [&dst.octets()[..], &src.octets(), &[8, 0, 0x45, 0]].concat();
    f.extend((len - 14).to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2]);
    f.extend((len - 34).to_be_bytes());
    f.resize(len.into(), 0);
    f
}

#[test]
fn packets_too_long_for_a_link_are_dropped_and_their_sender_is_told() {
    let mut w = world(3, Options::default());
    let narrow = Policy { mtu: Some(1400), ..Policy::default() };
    w.set_all(vec![Policy::default(), narrow, Policy::default()]);
    w.send(1, Mac::BROADCAST, mac(2), 0);
    w.breathe(1, 0);
    (0..3).for_each(|i| w.ports[i].rx.lock().unwrap().clear());
    let send = |w: &mut World, dst, len, now| {
        w.ports[0].tx.lock().unwrap().push(udp(dst, mac(1), len));
        w.breathe(0, now);
        [0, 1, 2].map(|i| std::mem::take(&mut *w.ports[i].rx.lock().unwrap()).len())
    };
    assert_eq!(send(&mut w, mac(2), 1414, 1), [0, 1, 0], "as long as the link carries");
    assert_eq!(send(&mut w, mac(2), 1415, 1), [1, 0, 0]);
    assert_eq!(w.dropped(1, Reason::TooLong), 1);
    assert_eq!(send(&mut w, mac(2), 1415, 9_000_000), [0, 0, 0], "told a hundred times a second");
    assert_eq!(send(&mut w, mac(2), 1415, 10_000_001), [1, 0, 0]);
    assert_eq!(send(&mut w, Mac::BROADCAST, 1500, 1 << 40), [0, 0, 1], "others get it");
    assert_eq!(w.dropped(1, Reason::TooLong), 4);
    assert_eq!(send(&mut w, mac(9), 1500, 2 << 40), [0, 0, 1], "it may be behind another link");
    w.ports[1].up.store(false, Ordering::Relaxed);
    assert_eq!(send(&mut w, mac(2), 1500, 2 << 40), [0, 0, 0]);
    assert_eq!(w.dropped(1, Reason::LinkDown), 1, "who is down says nothing of lengths");
}

#[test]
fn segments_count_and_not_the_packet_that_is_cut() {
    let mut frame = udp(mac(2), mac(1), 9000);
    frame[23] = 6;
    frame[46] = 0x50;
    let exceeds = |gso_size: u16, mtu| {
        let offload = Offload {
            needs_csum: true,
            gso: vmlan_frame::Gso::Tcp4,
            gso_size,
            hdr_len: 54,
            csum_start: 34,
            csum_offset: 16,
            ..Offload::NONE
        };
        let mut batch = Batch::new();
        batch.add(&[Slice::from_bytes(&frame)], offload).unwrap();
        crate::forward::too_long::exceeds(mtu, &batch, 0)
    };
    assert!(!exceeds(1360, 1400) && exceeds(1361, 1400) && !exceeds(1460, 1500));
}

#[test]
fn the_switch_sends_a_frame_of_its_own() {
    let mut w = world(2, Options::default());
    let frame = vmlan_frame::headers::announcement(mac(1), None);
    assert!(w.forwarder.send(&w.table, id(1), &frame, 0));
    assert_eq!(*w.ports[1].rx.lock().unwrap(), [frame.to_vec()]);
    w.ports[1].room.store(0, Ordering::Relaxed);
    assert!(
        !w.forwarder.send(&w.table, id(1), &frame, 0)
            && !w.forwarder.send(&w.table, id(5), &frame, 0)
    );
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 1);
    w.send(0, Mac::BROADCAST, mac(2), 7);
    w.ports[1].room.store(9, Ordering::Relaxed);
    w.breathe(0, 0);
    assert_eq!(w.ports[1].rx.lock().unwrap()[1][20], 7, "and goes on as before");
}

/// Interface, outgoing, tag, dropped.
type Note = (u32, bool, u8, Option<Reason>);

#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

impl Mirror for Notes {
    fn capture(&self, i: u32, out: bool, frame: &FrameView<'_, '_>, dropped: Option<Reason>) {
        self.0.lock().unwrap().push((i, out, frame.head[20], dropped));
    }
}

#[test]
fn a_watcher_sees_each_frame_once() {
    let mut w = world(4, Options::default());
    let (one, other) = (Arc::new(Notes::default()), Arc::new(Notes::default()));
    let watch = |i: usize| -> Option<(Arc<dyn Mirror>, u32)> {
        match i {
            0 => Some((one.clone(), 10)),
            1 => Some((one.clone(), 11)),
            2 => Some((other.clone(), 12)),
            _ => None,
        }
    };
    let ports = w.ports.iter().enumerate();
    let entry = |(i, p): (usize, &Arc<Fake>)| {
        Some(Entry { name: "p".into(), port: p.clone(), mirror: watch(i), policy: Arc::default() })
    };
    w.table = Table::new(ports.map(entry).collect());
    w.send(0, Mac::BROADCAST, mac(1), 1);
    w.send(0, mac(1), mac(1), 2);
    w.breathe(0, 0);
    w.send(3, mac(1), mac(4), 3);
    w.breathe(3, 0);
    let same = Some(Reason::SamePort);
    let seen = [(10, false, 1, None), (10, false, 2, same), (10, true, 3, None)];
    assert_eq!(*one.0.lock().unwrap(), seen);
    assert_eq!(*other.0.lock().unwrap(), [(12, true, 1, None)]);
}
