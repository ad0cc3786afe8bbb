//! Policies as a worker meets them: ports that flood, a clock that stands in for time.

mod limits;
mod shares;
mod turns;

use std::sync::Mutex;

use vmlan_frame::{Batch, Counters, Mac, Offload, Offloads, Port, Sink, Verdict};
use vmlan_ram::Slice;

use super::*;
use crate::{Breath, Entry, Forwarder, Options, Switch, Table};

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// Where a frame has its number.
const NUMBER: std::ops::Range<usize> = 20..28;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

fn mac(i: usize) -> Mac {
    Mac::new([2, 0, 0, 0, 0, u8::try_from(i).unwrap()])
}

fn rate(per_second: u64) -> Rate {
    Rate { per_second, burst: std::time::Duration::from_millis(5) }
}

/// What a port sends: numbered frames of one length to one address, as many as there are by now.
struct Sending {
    frames: Vec<Vec<u8>>,
    next: u64,
    /// How many it has made so far.
    made: u64,
    /// Bytes of a frame that each pull reads and drops.
    skips: u64,
    /// Bytes so dropped.
    skipped: u64,
}

/// What it has received.
#[derive(Clone, Debug, Default)]
struct Received {
    frames: u64,
    bits: u64,
    /// Frames of each port, by the last octet of its address, and the next number expected of it.
    of: Vec<(u64, u64)>,
    /// Numbers left out.
    missing: u64,
    /// Frames there is room for.
    room: u64,
}

struct Flood {
    sending: Mutex<Sending>,
    received: Mutex<Received>,
    counters: Counters,
}

impl Flood {
    fn new(own: usize, to: usize, len: usize) -> Arc<Self> {
        let mut frame = vec![0; len];
        frame[..6].copy_from_slice(&mac(to).octets());
        frame[6..12].copy_from_slice(&mac(own).octets());
        let sending = Sending { frames: vec![frame; 256], next: 0, made: 0, skips: 0, skipped: 0 };
        let received = Received { of: vec![(0, 0); 256], room: u64::MAX, ..Received::default() };
        Arc::new(Self {
            sending: sending.into(),
            received: received.into(),
            counters: Counters::default(),
        })
    }
    fn make(&self, frames: u64) {
        self.sending.lock().unwrap().made += frames;
    }
    fn received(&self) -> Received {
        self.received.lock().unwrap().clone()
    }
    fn sent(&self) -> u64 {
        self.sending.lock().unwrap().next
    }
}

impl Port for Flood {
    fn pull(
        &self,
        _: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let mut sending = self.sending.lock().unwrap();
        let sending = &mut *sending;
        if sending.skips > 0 {
            sending.skipped += sending.skips;
            sink.skipped(1, sending.skips);
            return 1;
        }
        let there = usize::try_from(sending.made - sending.next).unwrap().min(limit).min(256);
        for (frame, number) in sending.frames.iter_mut().take(there).zip(sending.next..) {
            frame[NUMBER].copy_from_slice(&number.to_le_bytes());
        }
        let mut batch = Batch::take(spare);
        for frame in sending.frames.iter().take(there) {
            batch.add(&[Slice::from_bytes(frame)], Offload::NONE).unwrap();
        }
        sink.deliver(&mut batch);
        // Those that are held come first next time; none is held with one that is done behind it,
        // as all have one receiver.
        let done = (0..there).take_while(|i| batch.verdict(*i) == Verdict::Done).count();
        assert!((done..there).all(|i| batch.verdict(i) == Verdict::Held));
        batch.give_back(spare);
        sending.next += done as u64;
        done
    }
    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let mut received = self.received.lock().unwrap();
        let n = list.len().min(usize::try_from(received.room).unwrap());
        for i in list.iter().take(n).map(|i| usize::from(*i)) {
            let head = batch.head(i);
            let number = u64::from_le_bytes(head[NUMBER].try_into().unwrap());
            let source = usize::from(head[11]);
            let next = &mut received.of[source].1;
            let missing = number - *next;
            *next = number + 1;
            received.of[source].0 += 1;
            received.missing += missing;
            received.frames += 1;
            received.bits += batch.frame_len(i) as u64 * 8;
        }
        if received.room != u64::MAX {
            received.room -= n as u64;
        }
        n
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

/// A worker with its ports, and its clock.
struct World {
    ports: Vec<Arc<Flood>>,
    policies: Vec<Policy>,
    table: Table,
    forwarder: Forwarder,
    now: u64,
}

impl World {
    fn new(ports: Vec<Arc<Flood>>, policies: Vec<Policy>) -> Self {
        let switch = Switch::new(Options::default());
        for i in 0..ports.len() {
            switch.fdb().add_static(mac(i), Domain::OPEN, id(i)).unwrap();
        }
        let forwarder = Forwarder::new(switch);
        let mut world = Self { ports, policies, table: Table::default(), forwarder, now: 0 };
        world.enforce();
        world
    }

    /// Policies come into force as they do in a running switch: with a new table.
    fn enforce(&mut self) {
        let entry = |(port, policy): (&Arc<Flood>, &Policy)| {
            Some(Entry {
                name: "p".into(),
                port: port.clone(),
                mirror: None,
                policy: Arc::new(policy.clone()),
            })
        };
        self.table = Table::new(self.ports.iter().zip(&self.policies).map(entry).collect());
        self.forwarder.grow(&self.table);
    }

    fn breathe(&mut self, port: usize) -> Breath {
        self.forwarder.breath(&self.table, id(port), 0, self.now)
    }
}
