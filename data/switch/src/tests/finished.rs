//! Frames that are finished in software, for receivers that are full.

use super::*;
use crate::policy::VidSet;

/// Keeps the port that each frame is from, as long as the frame's lane has room.
struct Lanes {
    rooms: [AtomicUsize; 2],
    /// Whether a lane gets a buffer whenever somebody has asked for its room.
    refills: AtomicBool,
    got: Mutex<Vec<u8>>,
    counters: Counters,
}

impl Port for Lanes {
    fn lanes(&self) -> usize {
        2
    }
    fn pull(&self, _: usize, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
        0
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let (mut dealt, mut rest) = (Vec::new(), Vec::new());
        for i in list.iter() {
            let room = &self.rooms[self.lane_for(batch, usize::from(*i))];
            if room.load(Ordering::Relaxed) == 0 {
                rest.push(*i);
                continue;
            }
            room.fetch_sub(1, Ordering::Relaxed);
            self.got.lock().unwrap().push(batch.head(usize::from(*i))[35]);
            dealt.push(*i);
        }
        list.copy_from_slice(&[&dealt[..], &rest].concat());
        dealt.len()
    }
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }
    fn lane_for(&self, batch: &Batch<'_>, i: usize) -> usize {
        usize::from(batch.head(i)[35] % 2)
    }
    fn room_in(&self, lane: usize, _: usize) -> usize {
        let more = usize::from(self.refills.load(Ordering::Relaxed));
        self.rooms[lane].fetch_add(more, Ordering::Relaxed)
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

/// Port 0 sends frames whose checksums are to be filled in, `tagged` or not; port 1 takes neither.
fn with_lanes(rooms: [usize; 2], tagged: bool, options: Options) -> (World, Arc<Lanes>) {
    let mut w = world(2, options);
    let (rooms, got) = (rooms.map(AtomicUsize::new), Mutex::default());
    let lanes =
        Arc::new(Lanes { rooms, refills: false.into(), got, counters: Counters::default() });
    let entry = |port: Arc<dyn Port>, vlan| {
        let policy = Arc::new(Policy { vlan, ..Policy::default() });
        Some(Entry { name: "p".into(), port, mirror: None, policy })
    };
    let trunk = Vlan::Trunk { tagged: VidSet::new([5]), native: None };
    let (from, to, domain) = match tagged {
        true => (trunk, Vlan::Access(5), Domain::customer(5)),
        false => (Vlan::Open, Vlan::Open, Domain::OPEN),
    };
    w.table = Table::new(vec![entry(w.ports[0].clone(), from), entry(lanes.clone(), to)]);
    w.forwarder.grow(&w.table);
    w.switch.fdb().add_static(mac(2), domain, id(1)).unwrap();
    let csum_start = if tagged { 38 } else { 34 };
    let sum = Offload { needs_csum: true, csum_start, csum_offset: 6, ..Offload::NONE };
    *w.ports[0].offload.lock().unwrap() = sum;
    (w, lanes)
}

impl World {
    /// Port 0 sends a frame from each of these ports, of which the odd ones go to lane 1.
    fn send_from(&self, ports: &[u8], tagged: bool) {
        for port in ports {
            let mut frame = udp(mac(2), mac(1), 60);
            frame[35] = *port;
            if tagged {
                frame.splice(12..12, [0x81, 0, 0, 5]);
            }
            self.ports[0].tx.lock().unwrap().push(frame);
        }
    }
}

/// A full lane beside one that has room holds back what is for it, in order, and loses nothing.
#[test]
fn a_full_lane_is_waited_for() {
    for tagged in [false, true] {
        let (mut w, lanes) = with_lanes([0, 9], tagged, Options::default());
        let got = || std::mem::take(&mut *lanes.got.lock().unwrap());
        w.send_from(&[1, 3, 0, 5], tagged);
        assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 1_000).frames, 3);
        assert_eq!(got(), [1, 3, 5], "one lane does not wait for another");
        lanes.rooms[0].store(2, Ordering::Relaxed);
        w.send_from(&[2, 4, 7, 6], tagged);
        assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 2_000).frames, 3);
        assert_eq!(got(), [0, 2, 7], "what is added counts for each lane by itself");
        lanes.rooms[0].store(9, Ordering::Relaxed);
        assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 3_000).frames, 2);
        assert_eq!((got(), lanes.counters.drops().next()), (vec![4, 6], None));
    }
}

/// A guest that leaves one of its lanes full, and can be waited for no longer, loses what is for
/// that lane only.
#[test]
fn a_full_lane_costs_the_others_no_frames() {
    for tagged in [false, true] {
        let options = Options { full_wait: Duration::ZERO, ..Options::default() };
        let (mut w, lanes) = with_lanes([1, 9], tagged, options);
        w.send_from(&[2, 4, 1, 6, 3, 5], tagged);
        assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 1_000).frames, 6);
        assert_eq!(*lanes.got.lock().unwrap(), [2, 1, 3, 5]);
        assert_eq!(lanes.counters.output.dropped(Reason::ReceiverFull), 2);
    }
}

/// Once a lane had no room it gets nothing more of that batch, though buffers come meanwhile: no
/// frame overtakes another of its flow.
#[test]
fn nothing_overtakes_within_a_lane() {
    let (mut w, lanes) = with_lanes([0, 9], false, Options::default());
    lanes.refills.store(true, Ordering::Relaxed);
    w.send_from(&[2, 1, 4], false);
    assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 1_000).frames, 1);
    assert_eq!(*lanes.got.lock().unwrap(), [1]);
}

impl World {
    /// A packet that is to be cut into ten segments, as port 0 sends from now on.
    fn packet(&self) -> Vec<u8> {
        *self.ports[0].offload.lock().unwrap() = Offload {
            needs_csum: true,
            gso: vmlan_frame::Gso::Tcp4,
            gso_size: 1400,
            hdr_len: 54,
            csum_start: 34,
            csum_offset: 16,
            ..Offload::NONE
        };
        let mut packet = udp(mac(2), mac(1), 54 + 10 * 1400);
        packet[23] = 6;
        packet[46] = 0x50;
        packet
    }
}

/// A receiver that never posts as many buffers as a packet has segments gets those that fit, once
/// it can be waited for no longer. It has paid for what it took.
#[test]
fn who_has_too_few_buffers_for_a_packet_gets_its_beginning() {
    let mut w = world(2, Options::default());
    w.switch.fdb().add_static(mac(2), Domain::OPEN, id(1)).unwrap();
    let packet = w.packet();
    let mut now = 1_000;
    let mut take = |w: &mut World, wait: u64| {
        w.ports[1].room.store(8, Ordering::Relaxed);
        w.ports[0].tx.lock().unwrap().push(packet.clone());
        let breath = w.breathe(0, now);
        assert_eq!((breath.frames, breath.held_ns), (0, Some(wait)), "it may have room yet");
        assert_eq!(w.breathe(0, now + wait - 1).frames, 0);
        now += wait;
        assert_eq!(w.breathe(0, now).frames, 1);
        w.ports[1].rx.lock().unwrap().drain(..).count()
    };
    assert_eq!(take(&mut w, 10_000_000), 8);
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 2);
    assert_eq!(take(&mut w, 8 * 20_000), 8);
    assert_eq!(take(&mut w, 8 * 20_000), 8);
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 6);
    w.ports[1].room.store(10, Ordering::Relaxed);
    w.ports[0].tx.lock().unwrap().push(packet);
    assert_eq!(w.breathe(0, now).frames, 1);
    assert_eq!(w.ports[1].rx.lock().unwrap().len(), 10);
}

/// What a full monitor loses is not charged to the receiver of the next frames: that one is waited
/// for as long as it has paid for.
#[test]
fn what_a_monitor_loses_is_not_charged_to_others() {
    let mut w = world(3, Options::default());
    let watch = Some(Arc::new(Watch { ports: PortSet::ALL, domain: None }));
    let monitor = Policy { monitor: true, watch, ..Policy::default() };
    w.set_all(vec![Policy::default(), Policy::default(), monitor]);
    w.switch.fdb().add_static(mac(2), Domain::OPEN, id(1)).unwrap();
    let packet = w.packet();
    let mut now = 1_000;
    for wait in [10_000_000, 8 * 20_000, 8 * 20_000] {
        w.ports[1].room.store(8, Ordering::Relaxed);
        w.ports[2].room.store(1, Ordering::Relaxed);
        w.ports[0].tx.lock().unwrap().push(packet.clone());
        assert_eq!(w.breathe(0, now).held_ns, Some(wait));
        now += wait;
        assert_eq!(w.breathe(0, now).frames, 1);
    }
    assert_eq!(w.dropped(1, Reason::ReceiverFull), 3 * 2);
    assert_eq!(w.dropped(2, Reason::ReceiverFull), 3 * 9);
}
