//! Monitor ports and samplers: who is shown what, and that nobody else notices.
use vmlan_frame::{Fate, Sample, Sampler, Sampling};

use super::*;
use crate::policy::{Bucket, Limiter, Limits, Policy, Rate, Reach, Storm, VidSet, Vlan};

/// Ports 0, 1, 2 and the monitor 3, which watches as told. All addresses are known: mac(n + 1)
/// lives behind port n.
fn watching(watch: Watch) -> World {
    let mut w = world(4, Options::default());
    w.watch(watch, Policy::default());
    (0..3).for_each(|p| w.send(p, Mac::BROADCAST, mac(u8::try_from(p).unwrap() + 1), 0));
    (0..3).for_each(|p| _ = w.breathe(p, 0));
    (0..4).for_each(|p| _ = w.tags(p));
    w
}

fn ports(ports: &[usize]) -> Watch {
    Watch { ports: PortSet::new(ports.iter().map(|p| id(*p))), domain: None }
}

fn all() -> Watch {
    Watch { ports: PortSet::ALL, domain: None }
}

impl World {
    fn watch(&mut self, watch: Watch, policy: Policy) {
        self.set(3, Policy { monitor: true, watch: Some(Arc::new(watch)), ..policy });
    }

    fn set(&mut self, port: usize, policy: Policy) {
        let get = |i| self.table.get(id(i)).cloned();
        let mut entries: Vec<_> = (0..self.ports.len()).map(get).collect();
        entries[port].as_mut().unwrap().policy = Arc::new(policy);
        self.table = Table::new(entries);
    }
}

#[test]
fn a_monitor_sees_what_comes_from_a_port_and_goes_to_it_once() {
    let mut w = watching(ports(&[0]));
    w.send(0, mac(2), mac(1), 1);
    w.breathe(0, 0);
    w.send(1, mac(1), mac(2), 2);
    w.send(1, mac(3), mac(2), 3);
    w.send(1, Mac::BROADCAST, mac(2), 4);
    w.breathe(1, 0);
    assert_eq!(w.tags(3), [1, 2, 4], "not what passes between others");
    assert_eq!((w.tags(0), w.tags(1), w.tags(2)), (vec![2, 4], vec![1], vec![3, 4]));
}

#[test]
fn a_monitor_of_all_sees_each_frame_once() {
    let mut w = watching(all());
    w.send(0, mac(2), mac(1), 1);
    w.send(0, Mac::BROADCAST, mac(1), 2);
    w.send(0, mac(9), mac(1), 3);
    w.breathe(0, 0);
    assert_eq!(w.tags(3), [1, 2, 3]);
    assert_eq!(w.tags(1), [1, 2, 3]);
    assert_eq!(w.dropped(0, Reason::NoReceiver), 0);
}

#[test]
fn a_monitor_takes_no_part() {
    let mut w = watching(ports(&[]));
    w.send(3, Mac::BROADCAST, mac(8), 1);
    w.send(3, mac(1), mac(8), 2);
    assert_eq!(w.breathe(3, 0).frames, 2);
    assert_eq!((w.tags(0), w.tags(1), w.tags(2)), (vec![], vec![], vec![]));
    assert_eq!(w.dropped(3, Reason::Isolated), 2);
    assert_eq!(w.switch.fdb().lookup(mac(8), Domain::OPEN), None, "it is not learned");
    // What was learned before it became a monitor.
    w.switch.fdb().learn(mac(7), Domain::OPEN, id(3));
    w.send(0, mac(7), mac(1), 3);
    w.breathe(0, 0);
    assert_eq!((w.tags(1), w.tags(2), w.tags(3)), (vec![3], vec![3], vec![]));
}

#[test]
fn refused_frames_are_not_shown() {
    let mut w = watching(all());
    let none = Some(Arc::new(Bucket::new(Rate { per_second: 1, burst: Duration::ZERO }, 0)));
    none.as_ref().unwrap().spend(1000);
    let storm = Storm { multicast: none, ..Storm::default() };
    w.set(0, Policy { storm, ..Policy::default() });
    w.send(0, mac(1), mac(1), 1);
    w.send(0, mac(2), Mac::BROADCAST, 2);
    w.send(0, Mac::new([1, 0, 0, 0, 0, 1]), mac(1), 3);
    w.breathe(0, 0);
    assert_eq!(w.tags(3), []);
    let groups = Some(crate::policy::Groups(0));
    w.set(0, Policy { reach: Reach { groups, ..Reach::default() }, ..Policy::default() });
    w.send(0, mac(2), mac(1), 4);
    w.send(0, Mac::BROADCAST, mac(1), 5);
    w.breathe(0, 0);
    assert_eq!((w.tags(3), w.dropped(0, Reason::Isolated)), (vec![], 2));
}

#[test]
fn a_port_alone_with_its_monitor_is_watched() {
    let mut w = watching(all());
    (1..3).for_each(|p| w.ports[p].up.store(false, Ordering::Relaxed));
    w.send(0, Mac::BROADCAST, mac(1), 1);
    w.breathe(0, 0);
    assert_eq!((w.tags(3), w.dropped(0, Reason::NoReceiver)), (vec![1], 1));
}

#[test]
fn a_full_monitor_holds_nobody_up() {
    let mut w = watching(all());
    w.ports[3].room.store(1, Ordering::Relaxed);
    (1..=3).for_each(|t| w.send(0, mac(2), mac(1), t));
    let b = w.breathe(0, 0);
    assert_eq!((b.frames, b.held_ns, w.tags(1)), (3, None, vec![1, 2, 3]));
    assert_eq!((w.tags(3), w.dropped(3, Reason::ReceiverFull)), (vec![1], 2));
    w.ports[3].up.store(false, Ordering::Relaxed);
    w.send(0, mac(2), mac(1), 4);
    w.breathe(0, 0);
    assert_eq!(w.dropped(3, Reason::ReceiverFull), 2, "a monitor that is down misses nothing");
}

#[test]
fn what_is_held_is_shown_when_it_is_delivered() {
    let mut w = watching(all());
    w.ports[1].room.store(1, Ordering::Relaxed);
    (1..=3).for_each(|t| w.send(0, mac(2), mac(1), t));
    assert!(w.breathe(0, 1000).held_ns.is_some());
    assert_eq!(w.tags(3), [1]);
    w.ports[1].room.store(9, Ordering::Relaxed);
    w.breathe(0, 2000);
    assert_eq!((w.tags(3), w.tags(1)), (vec![2, 3], vec![1, 2, 3]));
}

#[test]
fn a_flood_is_shown_though_one_receiver_was_full() {
    let mut w = watching(ports(&[0]));
    w.ports[1].room.store(0, Ordering::Relaxed);
    w.send(0, Mac::BROADCAST, mac(1), 1);
    w.send(0, mac(2), mac(1), 2);
    w.breathe(0, 0);
    w.breathe(0, 1_000_000_000);
    assert_eq!(w.tags(2), [1]);
    assert_eq!(w.tags(3), [1], "and what was for the full one alone is not");
}

#[test]
fn limits_of_the_monitor_bind_its_copies_only() {
    let mut w = watching(all());
    let rate = Rate { per_second: 1000, burst: Duration::from_millis(3) };
    let limiter = Limiter { frames: Some(Bucket::new(rate, 0)), ..Limiter::default() };
    let own = Some(Arc::new(limiter));
    let to = Limits { own: own.clone(), ..Limits::default() };
    w.watch(all(), Policy { to, ..Policy::default() });
    (1..=20).for_each(|t| w.send(0, mac(2), mac(1), t));
    w.breathe(0, 10_000_000);
    let seen = w.tags(3).len();
    assert_eq!(w.tags(1).len(), 20);
    assert!((3..=4).contains(&seen), "{seen} of a burst of 3");
    assert_eq!(w.dropped(3, Reason::OverLimit), 20 - seen as u64);
}

/// Port 0 lends one frame with its checksum to be filled in; the monitor takes none such.
#[test]
fn a_monitor_gets_finished_frames() {
    let mut w = watching(ports(&[0]));
    let mut f = vec![0; 14 + 20 + 8 + 5];
    f[..6].copy_from_slice(&mac(2).octets());
    f[6..12].copy_from_slice(&mac(1).octets());
    f[12] = 8;
    f[14..24].copy_from_slice(&[0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17]);
    f[34..42].copy_from_slice(&[0, 1, 0, 2, 0, 13, 0x12, 0x34]);
    let offload =
        Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::default() };
    *w.ports[0].offload.lock().unwrap() = offload;
    w.ports[0].tx.lock().unwrap().push(f.clone());
    w.breathe(0, 0);
    let seen = w.ports[3].rx.lock().unwrap().pop().unwrap();
    assert_eq!(seen.len(), f.len());
    assert_ne!(seen[40..42], [0x12, 0x34], "the checksum is filled in");
}

/// Ports 0 and 2 are untagged in VLANs 10 and 20, port 1 has both, tagged.
#[test]
fn a_vlan_is_watched_in_the_form_in_which_its_frames_came() {
    let mut w = watching(Watch { domain: Some(Domain::customer(10)), ..ports(&[]) });
    let vlan = |w: &mut World, port, vlan| w.set(port, Policy { vlan, ..Policy::default() });
    vlan(&mut w, 0, Vlan::Access(10));
    vlan(&mut w, 1, Vlan::Trunk { tagged: VidSet::new([10, 20]), native: None });
    vlan(&mut w, 2, Vlan::Access(20));
    let samples = Arc::new(Samples::default());
    w.send(0, Mac::BROADCAST, mac(1), 1);
    w.breathe(0, 0);
    w.send(2, Mac::BROADCAST, mac(3), 2);
    w.breathe(2, 0);
    for (vid, tag) in [(10, 3), (20, 4)] {
        w.send(1, Mac::BROADCAST, mac(2), tag);
        let mut sent = w.ports[1].tx.lock().unwrap();
        let f = sent.last_mut().unwrap();
        f.splice(12..12, [0x81, 0, 0, vid]);
        f[20] = tag;
    }
    w.breathe(1, 0);
    let seen = std::mem::take(&mut *w.ports[3].rx.lock().unwrap());
    let tags: Vec<_> = seen.iter().map(|f| (f[20], f.len(), f[12])).collect();
    assert_eq!(tags, [(1, 60, 0), (3, 64, 0x81)]);
    // Who watches the untagged port is shown what came to it as it was on the trunk.
    w.watch(ports(&[0]), Policy::default());
    w.set(
        1,
        Policy {
            sampling: Some(Arc::new(Sampling::new(1, 1, samples.clone()))),
            ..w.table.get(id(1)).unwrap().policy.as_ref().clone()
        },
    );
    w.send(1, Mac::BROADCAST, mac(2), 5);
    w.ports[1].tx.lock().unwrap()[0].splice(12..12, [0x81, 0, 0, 10]);
    w.send(1, Mac::BROADCAST, mac(2), 6);
    w.ports[1].tx.lock().unwrap()[1].splice(12..12, [0x81, 0, 0, 20]);
    w.breathe(1, 0);
    let seen = std::mem::take(&mut *w.ports[3].rx.lock().unwrap());
    assert_eq!(seen.iter().map(|f| (f[24], f.len())).collect::<Vec<_>>(), [(5, 64)]);
    assert_eq!(*samples.1.lock().unwrap(), [10, 20]);
}

#[derive(Default)]
struct Samples(Mutex<Vec<(u64, u8, usize, Fate)>>, Mutex<Vec<u16>>);

impl Sampler for Samples {
    fn sample(&self, s: &Sample<'_>) {
        self.0.lock().unwrap().push((s.number, s.head[20], s.len, s.fate));
        self.1.lock().unwrap().push(s.vid);
    }
}

#[test]
fn samples_tell_what_became_of_a_frame() {
    let mut w = world(3, Options::default());
    let samples = Arc::new(Samples::default());
    let sampling = Arc::new(Sampling::new(1, 1, samples.clone()));
    w.set(0, Policy { sampling: Some(sampling), ..Policy::default() });
    w.send(1, Mac::BROADCAST, mac(2), 0);
    w.breathe(1, 0);
    w.ports[1].room.store(1, Ordering::Relaxed);
    w.send(0, mac(2), mac(1), 1);
    w.send(0, mac(2), mac(1), 2);
    w.send(0, Mac::BROADCAST, mac(1), 3);
    w.send(0, mac(1), mac(1), 4);
    w.breathe(0, 1);
    let same = Fate::Dropped(Reason::SamePort);
    let seen = |samples: &Samples| std::mem::take(&mut *samples.0.lock().unwrap());
    let first = [(1, 1, 60, Fate::Port(1)), (2, 3, 60, Fate::Many), (3, 4, 60, same)];
    assert_eq!(seen(&samples), first, "not what is held");
    w.breathe(0, 1_000_000_000);
    assert_eq!(seen(&samples), [(4, 2, 60, Fate::Dropped(Reason::ReceiverFull))]);
}

/// How often ports are looked at when port 0 of 40 sends a query: the first `joined` of the others
/// get only what they joined, the last `captured` are captured.
fn looks_at_query(joined: usize, captured: usize) -> usize {
    let mut w = world(40, Options::default());
    let notes = Arc::new(Notes::default());
    let entries = w.ports.iter().enumerate().map(|(i, port)| {
        let mirror = (i + captured >= 40).then(|| (notes.clone() as Arc<dyn Mirror>, 0));
        let policy = Policy { joined_only: (1..=joined).contains(&i), ..Policy::default() };
        Some(Entry { name: "p".into(), port: port.clone(), mirror, policy: Arc::new(policy) })
    });
    w.table = Table::new(entries.collect());
    w.forwarder.grow(&w.table);
    w.ports[0].tx.lock().unwrap().push(super::multicast::QUERY.to_vec());
    w.breathe(0, 1);
    assert_eq!(notes.0.lock().unwrap().len(), captured);
    w.ports.iter().map(|p| p.looks.load(Ordering::Relaxed)).sum()
}

/// What a guest's query costs grows with the ports, not with their square, and only those ports
/// are asked that are captured.
#[test]
fn a_query_is_heard_once_however_many_are_captured() {
    // Each of 39 is looked at to give it the query, and when it takes it.
    assert_eq!(looks_at_query(1, 0), 39 * 2 + 1, "who gets all need not be asked");
    assert_eq!(looks_at_query(39, 0), 39 * 2 + 39);
    assert_eq!(looks_at_query(39, 1), 39 * 2 + 39 + 1);
    assert_eq!(looks_at_query(39, 39), 39 * 2 + 39 + 39);
}
