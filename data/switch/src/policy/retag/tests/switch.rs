//! Whole switches with ports made of vectors: who gets what, and in which form.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Mac, Port, Sink, Verdict};

use super::*;
use crate::policy::Policy;
use crate::{Entry, Forwarder, Options, PortId, Switch, Table};

/// A port that sends what was queued and keeps what it gets, up to `room` frames.
struct End {
    tx: Mutex<Vec<(Vec<u8>, Offload)>>,
    rx: Mutex<Vec<(Vec<u8>, Offload)>>,
    room: AtomicUsize,
    takes: Offloads,
    counters: Counters,
}

impl Port for End {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut tx = self.tx.lock().unwrap();
        let mut batch = Batch::take(spare);
        for (bytes, offload) in tx.iter().take(limit) {
            add(&mut batch, bytes, 200, *offload);
        }
        sink.deliver(&mut batch);
        let verdicts: Vec<_> = (0..batch.len()).map(|i| batch.verdict(i)).collect();
        batch.give_back(spare);
        let mut v = verdicts.iter();
        tx.retain(|_| matches!(v.next(), Some(Verdict::Held) | None));
        verdicts.iter().filter(|v| **v == Verdict::Done).count()
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let n = list.len().min(self.room.load(Ordering::Relaxed));
        self.room.fetch_sub(n, Ordering::Relaxed);
        for i in &list[..n] {
            let view = batch.frame(usize::from(*i)).unwrap();
            assert!(self.takes.covers(view.offload.needs()));
            let mut bytes = vec![0; view.len];
            view.copy_to(&mut bytes);
            self.rx.lock().unwrap().push((bytes, view.offload));
        }
        n
    }
    fn offloads(&self) -> Offloads {
        self.takes
    }
    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
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

struct Lan {
    switch: Arc<Switch>,
    ends: Vec<Arc<End>>,
    table: Table,
    forwarder: Forwarder,
}

/// A switch with such ports; those in `finished` take no offloads.
fn lan(vlans: &[Vlan], finished: &[usize]) -> Lan {
    let end = |i| {
        let takes = if finished.contains(&i) { Offloads::NONE } else { Offloads::ALL };
        Arc::new(End {
            tx: Mutex::default(),
            rx: Mutex::default(),
            room: AtomicUsize::new(usize::MAX),
            takes,
            counters: Counters::default(),
        })
    };
    let ends: Vec<_> = (0..vlans.len()).map(end).collect();
    let switch = Switch::new(Options::default());
    let forwarder = Forwarder::new(switch.clone());
    let mut lan = Lan { switch, ends, table: Table::default(), forwarder };
    lan.set(vlans);
    lan
}

impl Lan {
    fn set(&mut self, vlans: &[Vlan]) {
        let entry = |(end, vlan): (&Arc<End>, &Vlan)| {
            let policy = Arc::new(Policy { vlan: vlan.clone(), ..Policy::default() });
            let (name, port) = ("p".into(), end.clone());
            Some(Entry { name, port, mirror: None, policy })
        };
        self.table = Table::new(self.ends.iter().zip(vlans).map(entry).collect());
        self.forwarder.grow(&self.table);
    }
    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        self.send_all(from, vec![(bytes, Offload::NONE)], 0);
    }
    fn send_all(&mut self, from: usize, frames: Vec<(Vec<u8>, Offload)>, now: u64) {
        self.ends[from].tx.lock().unwrap().extend(frames);
        self.forwarder.breath(&self.table, PortId::new(from).unwrap(), 0, now);
    }
    /// What has arrived since: port, tags, payload.
    fn got(&self) -> Vec<(usize, Vec<Tag>, u8)> {
        let take = |(i, end): (usize, &Arc<End>)| {
            let rx = std::mem::take(&mut *end.rx.lock().unwrap());
            rx.into_iter().map(move |(f, _)| {
                let tags = read(&f).0;
                let payload = f[14 + 4 * tags.len()];
                (i, tags, payload)
            })
        };
        self.ends.iter().enumerate().flat_map(take).collect()
    }
    fn refused(&self, port: usize) -> u64 {
        self.ends[port].counters.input.dropped(Reason::Vlan)
    }
}

fn mac(n: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, n])
}

/// From `src` to `dst` (0: to all), with these tags of the kind 8100h, and one byte that tells it
/// from others.
fn frame_of(dst: u8, src: u8, vids: &[u16], payload: u8) -> Vec<u8> {
    let to = if dst == 0 { Mac::BROADCAST } else { mac(dst) };
    let mut f = [to.octets(), mac(src).octets()].concat();
    for vid in vids {
        f.extend([0x81, 0]);
        f.extend(vid.to_be_bytes());
    }
    f.extend([0x12, 0x34, payload]);
    f.resize(80, 0);
    f
}

fn tag(vid: u16) -> Vec<Tag> {
    vec![(0x8100, vid, 0)]
}

/// Ports 0 and 1 in VLAN 10, 2 in 20, 3 a trunk of both, 4 a trunk of 10 with native 20, 5 open.
fn office() -> Lan {
    let trunk = |vids: &[u16], native| Vlan::Trunk { tagged: VidSet::new(vids.to_vec()), native };
    let (ten, twenty) = (Vlan::Access(10), Vlan::Access(20));
    let trunks = [trunk(&[10, 20], None), trunk(&[10], Some(20))];
    let [a, b] = trunks;
    lan(&[ten.clone(), ten, twenty, a, b, Vlan::Open], &[])
}

#[test]
fn floods_stay_in_their_domain_and_wear_its_tag() {
    let mut lan = office();
    lan.send(0, frame_of(0, 1, &[], 1));
    assert_eq!(lan.got(), [(1, vec![], 1), (3, tag(10), 1), (4, tag(10), 1)]);
    lan.send(2, frame_of(9, 2, &[], 2));
    assert_eq!(lan.got(), [(3, tag(20), 2), (4, vec![], 2)]);
    lan.send(3, frame_of(0, 3, &[20], 3));
    assert_eq!(lan.got(), [(2, vec![], 3), (4, vec![], 3)]);
    lan.send(4, frame_of(0, 4, &[], 4));
    assert_eq!(lan.got(), [(2, vec![], 4), (3, tag(20), 4)]);
    lan.send(4, frame_of(0, 4, &[10], 5));
    assert_eq!(lan.got(), [(0, vec![], 5), (1, vec![], 5), (3, tag(10), 5)]);
    lan.send(5, frame_of(0, 5, &[10], 6));
    assert_eq!(lan.got(), [], "the only open port");
}

#[test]
fn tags_that_are_not_the_ports_are_refused() {
    let mut lan = office();
    for (port, vids) in [
        (0, &[10][..]),
        (0, &[0, 20]),
        (3, &[]),
        (3, &[0]),
        (3, &[30]),
        (3, &[10, 20]),
        (4, &[20]),
        (4, &[10, 10]),
        (4, &[4095]),
    ] {
        let before = lan.refused(port);
        lan.send(port, frame_of(0, 9, vids, 1));
        assert_eq!((lan.got(), lan.refused(port) - before), (vec![], 1), "{port} {vids:?}");
    }
    assert_eq!(lan.switch.fdb().list(), [], "and nothing is learned from them");
}

#[test]
fn an_address_may_live_in_two_vlans() {
    let mut lan = office();
    lan.send(0, frame_of(0, 7, &[], 1));
    lan.send(2, frame_of(0, 7, &[], 2));
    lan.got();
    lan.send(1, frame_of(7, 1, &[], 3));
    assert_eq!(lan.got(), [(0, vec![], 3)]);
    // Frames of one source and destination, in one batch, in two domains.
    let both = [10, 20, 10].map(|vid| (frame_of(7, 3, &[vid], vid as u8), Offload::NONE));
    lan.send_all(3, both.to_vec(), 0);
    assert_eq!(lan.got(), [(0, vec![], 10), (0, vec![], 10), (2, vec![], 20)]);
    lan.send(4, frame_of(7, 4, &[], 6));
    assert_eq!(lan.got(), [(2, vec![], 6)]);
}

/// What was learned before the settings changed leads nowhere.
#[test]
fn a_port_that_left_a_vlan_gets_nothing_more_of_it() {
    let (ten, twenty) = (Vlan::Access(10), Vlan::Access(20));
    let mut lan = lan(&[ten.clone(), ten.clone(), twenty.clone()], &[]);
    lan.send(1, frame_of(0, 2, &[], 1));
    lan.got();
    lan.set(&[ten, twenty.clone(), twenty]);
    lan.send(0, frame_of(2, 1, &[], 2));
    assert_eq!(lan.got(), []);
    lan.send(2, frame_of(2, 3, &[], 3));
    assert_eq!(lan.got(), [(1, vec![], 3)]);
}

/// Two switches, a wire of service VLANs between them, and a customer on both who has VLANs of his
/// own.
#[test]
fn a_customers_vlans_cross_the_provider_unseen() {
    let ends = [Vlan::Qinq(100), Vlan::Qinq(200), Vlan::QinqTrunk(VidSet::new([100, 200]))];
    let (mut here, mut there) = (lan(&ends, &[]), lan(&ends, &[]));
    for vids in [&[][..], &[10], &[10, 20], &[0], &[4095]] {
        here.send(0, frame_of(0, 1, vids, 1));
        let wire = std::mem::take(&mut *here.ends[2].rx.lock().unwrap());
        assert_eq!((wire.len(), read(&wire[0].0).0[0]), (1, (0x88a8, 100, 0)));
        there.send_all(2, wire, 0);
        let arrived = std::mem::take(&mut *there.ends[0].rx.lock().unwrap());
        assert_eq!(arrived, [(frame_of(0, 1, vids, 1), Offload::NONE)], "not a bit is lost");
        assert_eq!((here.got(), there.got()), (vec![], vec![]));
    }
    here.send(2, frame_of(0, 1, &[100], 1));
    assert_eq!((here.got(), here.refused(2)), (vec![], 1), "not the provider's kind of tag");
}

/// What waits for room keeps its place, and gets its tag when it goes.
#[test]
fn held_frames_come_in_order_with_their_tags() {
    let mut lan = office();
    lan.send(3, frame_of(0, 3, &[10], 0));
    lan.got();
    let frames = |p: std::ops::RangeInclusive<u8>| -> Vec<_> {
        p.map(|p| (frame_of(3, 1, &[], p), Offload::NONE)).collect()
    };
    lan.ends[3].room.store(2, Ordering::Relaxed);
    lan.send_all(0, frames(1..=5), 1_000);
    assert_eq!(lan.got(), [(3, tag(10), 1), (3, tag(10), 2)]);
    lan.ends[3].room.store(9, Ordering::Relaxed);
    lan.send_all(0, frames(6..=6), 2_000);
    assert_eq!(lan.got(), [3, 4, 5, 6].map(|p| (3, tag(10), p)));
    assert_eq!(lan.ends[3].counters.drops().count(), 0);
}

/// Large segments change their tag on the way to a receiver that takes them whole, and to one that
/// does not.
#[test]
fn segments_change_tags_whoever_cuts_them() {
    for (from, tags, to, after) in ways() {
        for gso in [true, false] {
            let name = format!("{from} to {to}, {tags:x?}, gso {gso}");
            let mut lan = lan(&[from.clone(), to.clone(), to.clone()], &[2]);
            let (mut sent, offload) = tcp(&tags, true, 900, gso);
            sent[..6].copy_from_slice(&[0xff; 6]);
            lan.send_all(0, vec![(sent, offload)], 0);
            let received = |i: usize| lan.ends[i].rx.lock().unwrap().clone();
            let (whole, cut) = (received(1), received(2));
            // With three tags even the first gets it cut.
            let done_before = after.len() > 2;
            assert_eq!(whole.len(), if gso && done_before { 9 } else { 1 }, "{name}");
            assert_eq!(cut.len(), if gso { 9 } else { 1 }, "{name}");
            let finished: Vec<_> = whole.iter().flat_map(|(f, o)| finish(f, *o)).collect();
            assert_eq!(finished, cut.iter().map(|f| f.0.clone()).collect::<Vec<_>>(), "{name}");
            for (f, offload) in &cut {
                assert_eq!(f[12..12 + 4 * after.len()], after.concat(), "{name}");
                assert!(!offload.needs_csum && sum_is_right(f, after.len(), true), "{name}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A broadcast reaches every port that carries its domain, once, and no other.
    #[test]
    fn a_broadcast_reaches_its_domain(
        vlans in prop::collection::vec(vlan(), 2..8),
        frames in prop::collection::vec((0usize..8, frame()), 1..30),
    ) {
        let mut lan = lan(&vlans, &[]);
        for (from, mut bytes) in frames {
            let from = from % vlans.len();
            bytes[..6].copy_from_slice(&[0xff; 6]);
            let domain = vlans[from].enter(&bytes);
            lan.send(from, bytes);
            for (i, end) in lan.ends.iter().enumerate() {
                let rx = std::mem::take(&mut *end.rx.lock().unwrap());
                let wanted = i != from && domain.is_ok_and(|d| vlans[i].carries(d));
                prop_assert_eq!(rx.len(), usize::from(wanted), "{} to {}", &vlans[from], &vlans[i]);
                prop_assert!(rx.iter().all(|(f, _)| vlans[i].enter(f) == domain));
            }
        }
    }
}
