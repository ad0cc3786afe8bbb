//! Frames that are finished in software, for receivers that are full.

use super::*;

/// Keeps the port that each frame is from, as long as the frame's lane has room.
struct Lanes {
    rooms: [AtomicUsize; 2],
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
        self.rooms[lane].load(Ordering::Relaxed)
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

/// A full lane beside one that has room holds its senders back, and loses nothing.
#[test]
fn a_full_lane_is_waited_for() {
    let mut w = world(2, Options::default());
    let (rooms, got) = ([0, 9].map(AtomicUsize::new), Mutex::default());
    let lanes = Arc::new(Lanes { rooms, got, counters: Counters::default() });
    let entry = |port: Arc<dyn Port>| {
        Some(Entry { name: "p".into(), port, mirror: None, policy: Arc::default() })
    };
    w.table = Table::new(vec![entry(w.ports[0].clone()), entry(lanes.clone())]);
    w.forwarder.grow(&w.table);
    w.switch.fdb().add_static(mac(2), Domain::OPEN, id(1)).unwrap();
    let sum = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    *w.ports[0].offload.lock().unwrap() = sum;
    let send = |from: &[u8]| {
        for port in from {
            let mut frame = udp(mac(2), mac(1), 60);
            frame[35] = *port;
            w.ports[0].tx.lock().unwrap().push(frame);
        }
    };
    let got = || std::mem::take(&mut *lanes.got.lock().unwrap());
    send(&[1, 3, 0, 5]);
    assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 1_000).frames, 2);
    assert_eq!(got(), [1, 3]);
    lanes.rooms[0].store(2, Ordering::Relaxed);
    send(&[2, 4, 7]);
    assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 2_000).frames, 3);
    assert_eq!(got(), [0, 5, 2], "what is added counts for each lane by itself");
    lanes.rooms[0].store(9, Ordering::Relaxed);
    assert_eq!(w.forwarder.breath(&w.table, id(0), 0, 3_000).frames, 2);
    assert_eq!((got(), lanes.counters.drops().next()), (vec![4, 7], None));
}

/// A receiver that never posts as many buffers as a packet has segments gets those that fit, once
/// it can be waited for no longer. It has paid for what it took.
#[test]
fn who_has_too_few_buffers_for_a_packet_gets_its_beginning() {
    let mut w = world(2, Options::default());
    w.switch.fdb().add_static(mac(2), Domain::OPEN, id(1)).unwrap();
    *w.ports[0].offload.lock().unwrap() = Offload {
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
