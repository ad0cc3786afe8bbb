//! Joint breaths: what comes of them is what would come of breaths one after the other.

use proptest::prelude::*;

use super::*;
use crate::policy::{Bucket, Limiter, Limits, Rate, Turns};

const PORTS: usize = 8;

/// A frame: from which port, to which; [`PORTS`]: to nobody that is known, above: to all.
type Sent = (usize, usize);

/// What a receiver is like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    /// It gets so many frames a second.
    Limited(u64),
    Uplink,
    BySource,
}

/// All ports, and what they may get.
#[derive(Clone, Debug)]
struct Lan {
    kinds: Vec<Kind>,
    /// How many frames each has room for, at first and more in each round.
    rooms: Vec<(usize, usize)>,
    /// Which of them leave checksums to be finished.
    unfinished: Vec<bool>,
    full_wait: Duration,
}

fn lan() -> impl Strategy<Value = Lan> {
    let kind = prop_oneof![
        4 => Just(Kind::Plain),
        1 => (1u64..5_000).prop_map(Kind::Limited),
        1 => Just(Kind::Uplink),
        1 => Just(Kind::BySource),
    ];
    let room = prop_oneof![2 => Just((1_000_000, 0)), 1 => (0usize..60, 0usize..40)];
    let kinds = prop::collection::vec(kind, PORTS);
    let rooms = prop::collection::vec(room, PORTS);
    let unfinished = prop::collection::vec(prop::bool::weighted(0.1), PORTS);
    (kinds, rooms, unfinished, (0u64..4).prop_map(Duration::from_millis)).prop_map(
        |(kinds, rooms, unfinished, full_wait)| Lan { kinds, rooms, unfinished, full_wait },
    )
}

/// Rounds of frames; a joint breath has room for all that can be there at once.
fn frames() -> impl Strategy<Value = Vec<Vec<Sent>>> {
    let to = || prop_oneof![12 => 0..PORTS, 1 => Just(PORTS), 1 => Just(PORTS + 1)];
    let mixed = |most| prop::collection::vec((0..PORTS, to()), 0..most);
    let to_one = |most| {
        let sources = prop::collection::vec(0..PORTS, 0..most);
        (sources, to()).prop_map(|(from, to)| from.into_iter().map(|from| (from, to)).collect())
    };
    let round = |most| prop_oneof![mixed(most), to_one(most)];
    prop_oneof![prop::collection::vec(round(170), 1..5), round(800).prop_map(|one| vec![one]),]
}

fn station(port: usize) -> Mac {
    mac(u8::try_from(port).unwrap() + 1)
}

fn set_up(lan: &Lan) -> World {
    let mut w = world(PORTS, Options { full_wait: lan.full_wait, ..Options::default() });
    let limiter = |frames| {
        let rate = Rate { per_second: frames, burst: Duration::from_millis(2) };
        let frames = Bucket::new(rate, 0);
        Arc::new(Limiter { frames: Some(frames), ..Limiter::default() })
    };
    let ports = w.ports.iter().zip(&lan.rooms).zip(&lan.unfinished);
    let policies = lan.kinds.iter().zip(ports).map(|(kind, ((port, room), unfinished))| {
        port.room.store(room.0, Ordering::Relaxed);
        port.by_source.store(matches!(kind, Kind::BySource), Ordering::Relaxed);
        if *unfinished {
            let (csum_start, csum_offset) = (34, 6);
            let sum = Offload { needs_csum: true, csum_start, csum_offset, ..Offload::NONE };
            *port.offload.lock().unwrap() = sum;
        }
        let mut policy = Policy::default();
        match kind {
            Kind::Limited(n) => policy.to = Limits { own: Some(limiter(*n)), shared: None },
            Kind::Uplink => policy.uplink = Some(Arc::new(Turns::default())),
            Kind::Plain | Kind::BySource => {}
        }
        policy
    });
    let policies = policies.collect();
    w.set_all(policies);
    // The last but one is not known at first.
    for port in (0..PORTS).filter(|port| *port != PORTS - 2) {
        w.switch.fdb().add_static(station(port), Domain::OPEN, id(port)).unwrap();
    }
    w
}

/// All have a breath.
fn round(w: &mut World, together: bool, now: u64) -> Vec<Breath> {
    if !together {
        return (0..PORTS).map(|port| w.breathe(port, now)).collect();
    }
    let mut sources: Vec<_> = (0..PORTS).map(|port| Source::new(id(port))).collect();
    while let Some(first) = sources.iter().position(|source| source.breath.is_none()) {
        w.forwarder.joint_breath(&w.table, &mut sources[first..], now);
        assert!(sources[first].breath.is_some());
    }
    sources.iter().map(|source| source.breath.unwrap()).collect()
}

type Frames = Vec<Vec<u8>>;

/// What a port has got, what it still has to send, and what was counted.
fn outcome(port: &Fake) -> ([Frames; 2], Vec<(Reason, u64)>) {
    let frames = [&port.rx, &port.tx].map(|frames| frames.lock().unwrap().clone());
    (frames, port.counters.drops().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn together_or_one_by_one_is_all_the_same(lan in lan(), rounds in frames()) {
        let mut worlds = [set_up(&lan), set_up(&lan)];
        let mut number = 0u8;
        for (now, frames) in (1u64..).zip(&rounds) {
            for (from, to) in frames {
                let to = if *to > PORTS { Mac::BROADCAST } else { station(*to) };
                number = number.wrapping_add(1);
                let mut frame = udp(to, station(*from), 60);
                frame[50] = number;
                for w in &worlds {
                    w.ports[*from].tx.lock().unwrap().push(frame.clone());
                }
            }
            let now = now * 1_000_000;
            let [alone, joint] = &mut worlds;
            for (alone, joint) in round(alone, false, now).iter().zip(round(joint, true, now)) {
                // All look again when the first of them has to.
                prop_assert!(joint.held_ns <= alone.held_ns);
                prop_assert_eq!(joint.held_ns.is_some(), alone.held_ns.is_some());
                prop_assert_eq!(*alone, Breath { held_ns: alone.held_ns, ..joint });
            }
            for (one, other) in alone.ports.iter().zip(&joint.ports) {
                prop_assert_eq!(outcome(one), outcome(other));
            }
            for (port, room) in (0..PORTS).zip(&lan.rooms) {
                for w in [&*alone, &*joint] {
                    w.ports[port].room.fetch_add(room.1, Ordering::Relaxed);
                }
            }
        }
        for (kind, port) in lan.kinds.iter().zip(&worlds[1].ports) {
            let pushes = port.pushes.lock().unwrap();
            prop_assert!(pushes.iter().all(|(_, frames)| *frames <= vmlan_frame::BATCH));
            if matches!(kind, Kind::BySource) {
                let got = port.rx.lock().unwrap();
                let sources = pushes.iter().flat_map(|(n, count)| vec![*n; *count]);
                // As long as it took them all.
                let all = pushes.iter().map(|(_, frames)| frames).sum::<usize>() == got.len();
                let right = got.iter().zip(sources).all(|(f, n)| u16::from(f[11]) == n + 1);
                prop_assert!(!all || right);
            }
        }
    }
}

/// Everybody sends `count` frames to each other.
fn send_to_all(w: &mut World, count: usize) {
    for (from, to) in (0..PORTS * PORTS).map(|i| (i % PORTS, i / PORTS)).filter(|(f, t)| f != t) {
        (0..count).for_each(|_| w.send(from, station(to), station(from), 1));
    }
}

fn to_all() -> World {
    let kinds = vec![Kind::Plain; PORTS];
    let (rooms, unfinished) = (vec![(1_000_000, 0); PORTS], vec![false; PORTS]);
    let mut w = set_up(&Lan { kinds, rooms, unfinished, full_wait: Duration::ZERO });
    w.switch.fdb().add_static(station(PORTS - 2), Domain::OPEN, id(PORTS - 2)).unwrap();
    send_to_all(&mut w, 2);
    round(&mut w, false, 1);
    w
}

fn who_joins(w: &mut World) -> Vec<bool> {
    (0..PORTS).map(|port| w.forwarder.joins(&w.table, id(port), 1)).collect()
}

/// How many pushes each receiver has seen since this was asked last.
fn pushes(w: &World) -> Vec<usize> {
    w.ports.iter().map(|port| std::mem::take(&mut *port.pushes.lock().unwrap()).len()).collect()
}

#[test]
fn each_receiver_is_visited_once_for_all_who_leave_it_few_frames() {
    let mut w = to_all();
    assert_eq!(pushes(&w), [PORTS - 1; PORTS]);
    assert_eq!(who_joins(&mut w), [true; PORTS]);
    send_to_all(&mut w, 2);
    round(&mut w, true, 2);
    assert_eq!((pushes(&w), who_joins(&mut w)), (vec![1; PORTS], vec![true; PORTS]));
    // Many frames for each pay for the visit.
    send_to_all(&mut w, 9);
    round(&mut w, false, 3);
    assert_eq!(who_joins(&mut w), [false; PORTS]);
}

#[test]
fn who_has_nothing_or_saves_no_visits_is_alone() {
    let mut w = to_all();
    round(&mut w, true, 2);
    assert_eq!(who_joins(&mut w), [false; PORTS], "nothing came");
    let pairs = |w: &mut World| {
        for port in 0..PORTS {
            w.send(port, station(port ^ 1), station(port), 1);
        }
    };
    pairs(&mut w);
    round(&mut w, false, 3);
    assert_eq!(who_joins(&mut w), [true; PORTS]);
    pairs(&mut w);
    round(&mut w, true, 4);
    let alone = (0..1000).take_while(|_| who_joins(&mut w) == [false; PORTS]).count();
    assert_eq!(alone, 255, "each has a receiver of its own");
}

/// And nobody is alone with it.
#[test]
fn who_has_receivers_of_its_own_parts_from_the_others() {
    let mut w = to_all();
    let company = PORTS - 2;
    for (from, to) in (0..company * company).map(|i| (i % company, i / company)) {
        w.send(from, station(to), station(from), 1);
    }
    w.send(company, station(company + 1), station(company), 1);
    round(&mut w, true, 2);
    // The last one had nothing.
    assert_eq!(who_joins(&mut w), [vec![true; company], vec![false; 2]].concat());
    let joins = (0..256).take_while(|_| !w.forwarder.joins(&w.table, id(company), 2)).count();
    assert_eq!(joins, 254);
}

/// Frames that find no room count as others do, and so do those that are still to be finished.
#[test]
fn who_fills_a_batch_for_one_receiver_is_alone_whatever_becomes_of_it() {
    let mut w = world(PORTS, Options::default());
    w.switch.fdb().add_static(station(1), Domain::OPEN, id(1)).unwrap();
    w.ports[1].room.store(0, Ordering::Relaxed);
    (0..100).for_each(|_| w.send(0, station(1), station(0), 1));
    let breath = w.breathe(0, 1);
    assert!(breath.frames == 0 && breath.held_ns.is_some());
    assert!(!w.forwarder.joins(&w.table, id(0), 1));
    let mut w = to_all();
    assert_eq!(who_joins(&mut w), [true; PORTS]);
    let (csum_start, csum_offset) = (34, 6);
    let sum = Offload { needs_csum: true, csum_start, csum_offset, ..Offload::NONE };
    *w.ports[2].offload.lock().unwrap() = sum;
    w.ports[2].tx.lock().unwrap().push(udp(station(3), station(2), 60));
    let others = (0..PORTS).filter(|port| *port != 2);
    others.for_each(|port| w.send(port, station((port + 1) % 3), station(port), 1));
    round(&mut w, true, 2);
    assert!(!w.forwarder.joins(&w.table, id(2), 2));
}

/// Who must be judged frame by frame, has limits, or is watched, is alone, and so are all while
/// somebody's memory is slow.
#[test]
fn who_must_be_told_apart_is_alone() {
    use crate::policy::{Storm, Vlan};
    let mut w = to_all();
    let bucket = || {
        let rate = Rate { per_second: 9, burst: Duration::from_secs(1) };
        Arc::new(Bucket::new(rate, 0))
    };
    let limiter = Limiter {
        frames: Some(Bucket::new(Rate { per_second: 9, burst: Duration::from_secs(1) }, 0)),
        ..Limiter::default()
    };
    let from = Limits { own: Some(Arc::new(limiter)), shared: None };
    let storm = Storm { broadcast: Some(bucket()), ..Storm::default() };
    let with = |policy| [vec![policy], vec![Policy::default(); PORTS - 1]].concat();
    let only_the_first = [vec![false], vec![true; PORTS - 1]].concat();
    for policy in [
        Policy { from, ..Policy::default() },
        Policy { storm, ..Policy::default() },
        Policy { joined_only: true, ..Policy::default() },
    ] {
        w.set_all(with(policy));
        assert_eq!(who_joins(&mut w), only_the_first);
    }
    for policy in [
        Policy { vlan: Vlan::Access(1), ..Policy::default() },
        Policy { mtu: Some(1500), ..Policy::default() },
        Policy { watch: Some(Arc::default()), monitor: true, ..Policy::default() },
    ] {
        w.set_all(with(policy));
        assert_eq!(who_joins(&mut w), [false; PORTS]);
    }
    w.set_all(vec![Policy::default(); PORTS]);
    assert_eq!(who_joins(&mut w), [true; PORTS]);
    w.switch.stalls.suspect(id(3), 1_000, 1);
    assert_eq!(who_joins(&mut w), [false; PORTS]);
}

/// A source that probably has more for an uplink keeps its place in the queue there, and leaves it
/// by a breath of its own.
#[test]
fn who_waits_at_an_uplink_leaves_it_alone() {
    let mut w = to_all();
    let turns = Arc::new(Turns::default());
    let uplink = Policy { uplink: Some(turns.clone()), ..Policy::default() };
    w.set_all([vec![uplink], vec![Policy::default(); PORTS - 1]].concat());
    let send = |w: &mut World, count| {
        (0..count).for_each(|_| w.send(1, station(0), station(1), 1));
        send_to_all(w, 2);
    };
    send(&mut w, 150);
    round(&mut w, true, 2);
    assert!(turns.is_waiting(id(1)) && !turns.is_waiting(id(2)));
    let mut others = vec![true; PORTS];
    others[1] = false;
    assert_eq!(who_joins(&mut w), others);
    send(&mut w, 0);
    w.breathe(1, 3);
    assert!(!turns.is_waiting(id(1)));
    assert_eq!(who_joins(&mut w), [true; PORTS]);
}
