//! One worker's breath: pull from a port, look up, push to the others.
//!
//! Two passes over a batch. The first looks only at headers: it learns the source, finds the destination, and
//! appends the frame's number to that destination's list. The second walks the destinations that
//! got any: one lock, one reservation, the copies, one publish, one interrupt decision for each. So the
//! forwarding table is in the cache during the first pass, and each receiver's ring during its turn of the second.

use std::ops::Range;
use std::sync::Arc;

use vmlan_frame::{BATCH, Batch, Mac, Offloads, Reason, Sink, Verdict};

use crate::fdb::Learned;
use crate::finish::Finished;
use crate::{MAX_PORTS, PortId, Switch, Table};

/// What a breath did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breath {
    /// Frames the port is finished with.
    pub frames: usize,
    /// Frames wait for a full receiver: look again within this many nanoseconds.
    pub held_ns: Option<u64>,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    To(PortId),
    Flood,
    Drop(Reason),
}

/// A worker's part of the switch: its storage and its breath.
pub struct Forwarder {
    switch: Arc<Switch>,
    batch: Batch<'static>,
    state: State,
}

/// What a breath needs besides the batch. Sized once; nothing here grows while frames move.
struct State {
    /// Numbers of the frames for each port.
    lists: Vec<Vec<u16>>,
    /// Ports whose list is not empty.
    touched: Vec<PortId>,
    ways: Vec<Way>,
    /// Hashes of the destinations, from when their sets were prefetched.
    hashes: Vec<u64>,
    finished: Finished,
    /// Full receivers that somebody waits for: ask them for a doorbell before sleeping.
    blocked: Vec<PortId>,
}

impl Forwarder {
    /// A forwarder for `switch`; all its storage is allocated here and by [`Forwarder::grow`].
    #[must_use]
    pub fn new(switch: Arc<Switch>) -> Self {
        let state = State {
            lists: Vec::new(),
            touched: Vec::with_capacity(MAX_PORTS),
            ways: Vec::with_capacity(BATCH),
            hashes: Vec::with_capacity(BATCH),
            finished: Finished::new(),
            blocked: Vec::with_capacity(MAX_PORTS),
        };
        Self { switch, batch: Batch::new(), state }
    }

    /// Makes room for the ports of a new table. Call when the table was replaced, not per frame.
    pub fn grow(&mut self, table: &Table) {
        let most = table.members().iter().map(|p| p.index() + 1).max().unwrap_or(0);
        while self.state.lists.len() < most {
            self.state.lists.push(Vec::with_capacity(BATCH));
        }
    }

    /// Pulls up to a batch from `source` and delivers it. `now` is in nanoseconds of any monotone clock.
    pub fn breath(&mut self, table: &Table, source: PortId, now: u64) -> Breath {
        let Some(entry) = table.get(source) else { return Breath::default() };
        let mut pass = Pass {
            switch: &self.switch,
            state: &mut self.state,
            table,
            source,
            now,
            held_ns: None,
        };
        let frames = entry.port.pull(&mut self.batch, BATCH, &mut pass);
        Breath { frames, held_ns: pass.held_ns }
    }

    /// The full receivers that frames have been held for since the last call.
    pub fn take_blocked(&mut self, out: &mut Vec<PortId>) {
        out.append(&mut self.state.blocked);
    }
}

/// One batch on its way.
struct Pass<'a> {
    switch: &'a Switch,
    state: &'a mut State,
    table: &'a Table,
    source: PortId,
    now: u64,
    held_ns: Option<u64>,
}

impl Sink for Pass<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.classify(batch);
        let touched = std::mem::take(&mut self.state.touched);
        for to in &touched {
            self.push(batch, *to);
        }
        self.state.touched = touched;
        self.state.touched.clear();
        if self.table.mirrored() {
            self.mirror(batch);
        }
    }
}

impl Pass<'_> {
    /// First pass: headers only. Frames of one stream follow each other: one look-up serves the run.
    fn classify(&mut self, batch: &mut Batch<'_>) {
        self.prefetch(batch);
        self.state.ways.clear();
        let (mut last_src, mut source_ok) = (Mac::default(), Err(Reason::BadSource));
        let mut i = 0;
        while i < batch.len() {
            let run = batch.run(i).max(1);
            let (dst, src) = batch.macs(i);
            if src != last_src {
                (last_src, source_ok) = (src, self.check_source(src));
            }
            let way = source_ok.map_or_else(Way::Drop, |()| self.find_way(dst, i));
            self.state.ways.extend(std::iter::repeat_n(way, run));
            self.append(batch, i..i + run, way);
            i += run;
        }
    }

    /// Asks for the sets of all destinations at once, so that the cache misses overlap; not worth it if
    /// the batch looks like one stream. Hashes are kept for the look-ups.
    fn prefetch(&mut self, batch: &Batch<'_>) {
        let fdb = &self.switch.fdb;
        self.state.hashes.clear();
        let n = batch.len();
        let first = batch.macs(0);
        if first == batch.macs(n / 2) && first == batch.macs(n.saturating_sub(1)) {
            return;
        }
        let mut last_src = Mac::default();
        for i in 0..n {
            let (dst, src) = batch.macs(i);
            let hash = fdb.hash(dst);
            fdb.prefetch(hash);
            self.state.hashes.push(hash);
            if src != last_src {
                fdb.prefetch(fdb.hash(src));
                last_src = src;
            }
        }
    }

    fn check_source(&self, src: Mac) -> Result<(), Reason> {
        if src.is_group() || src == Mac::default() {
            return Err(Reason::BadSource);
        }
        match self.switch.fdb.learn(src, self.source) {
            Learned::Pass => Ok(()),
            Learned::Refused => Err(Reason::NotAllowed),
        }
    }

    fn find_way(&self, dst: Mac, i: usize) -> Way {
        if dst.is_group() {
            return Way::Flood;
        }
        let fdb = &self.switch.fdb;
        let hash = self.state.hashes.get(i).copied().unwrap_or_else(|| fdb.hash(dst));
        match fdb.lookup_hashed(dst, hash) {
            Some(port) if port == self.source => Way::Drop(Reason::SamePort),
            Some(port) if self.table.get(port).is_some() => Way::To(port),
            _ => Way::Flood,
        }
    }

    #[inline]
    fn append(&mut self, batch: &mut Batch<'_>, run: Range<usize>, way: Way) {
        match way {
            Way::To(port) => self.append_to(port, run),
            Way::Flood => self.flood(batch, run),
            Way::Drop(reason) => self.drop_at_source(batch, run, reason),
        }
    }

    #[inline]
    fn append_to(&mut self, port: PortId, run: Range<usize>) {
        let Some(list) = self.state.lists.get_mut(port.index()) else { return };
        if list.is_empty() {
            self.state.touched.push(port);
        }
        // A batch has at most BATCH frames: their numbers fit.
        let number = |i| u16::try_from(i).unwrap_or(u16::MAX);
        list.extend(number(run.start)..number(run.end));
    }

    fn flood(&mut self, batch: &mut Batch<'_>, run: Range<usize>) {
        let mut copies = 0;
        for port in self.table.members() {
            let up = |p| self.table.get(p).is_some_and(|e| e.port.is_up());
            if *port != self.source && up(*port) {
                self.append_to(*port, run.clone());
                copies += 1;
            }
        }
        if copies == 0 {
            self.drop_at_source(batch, run, Reason::NoReceiver);
        }
    }

    fn drop_at_source(&self, batch: &mut Batch<'_>, run: Range<usize>, reason: Reason) {
        if let Some(entry) = self.table.get(self.source) {
            entry.port.counters().input.drop(reason, run.len() as u64);
        }
        run.for_each(|i| batch.set_dropped(i, reason));
    }

    /// Second pass, one destination: everything on its list.
    fn push(&mut self, batch: &mut Batch<'_>, to: PortId) {
        let Some(list) = self.state.lists.get_mut(to.index()) else { return };
        let mut list = std::mem::take(list);
        let pushed = self.push_list(batch, to, &list);
        if pushed > 0 {
            self.switch.waits.took(to, pushed, self.now);
        }
        if let Some(rest) = list.get(pushed..).filter(|r| !r.is_empty()) {
            self.full(batch, to, rest);
        }
        list.clear();
        if let Some(place) = self.state.lists.get_mut(to.index()) {
            *place = list;
        }
    }

    fn push_list(&mut self, batch: &Batch<'_>, to: PortId, list: &[u16]) -> usize {
        let Some(entry) = self.table.get(to) else { return list.len() };
        let takes = entry.port.offloads();
        if batch.needs() == Offloads::NONE || takes.covers(batch.needs()) {
            return entry.port.push(batch, list);
        }
        self.state.finished.push(batch, list, &*entry.port, takes)
    }

    /// `rest` found no room at `to`: held while the receiver may be waited for, else dropped. Floods
    /// never wait, or one full port would stop everybody's broadcasts.
    fn full(&mut self, batch: &mut Batch<'_>, to: PortId, rest: &[u16]) {
        let left = self.switch.waits.full(to, self.now);
        let (mut dropped, mut held) = (0, false);
        for i in rest.iter().map(|i| usize::from(*i)) {
            if left.is_some() && self.state.ways.get(i) == Some(&Way::To(to)) {
                batch.hold(i);
                held = true;
            } else {
                batch.set_dropped(i, Reason::ReceiverFull);
                dropped += 1;
            }
        }
        if let Some(entry) = self.table.get(to).filter(|_| dropped > 0) {
            entry.port.counters().output.drop(Reason::ReceiverFull, dropped);
        }
        if held {
            self.held_ns = Some(left.unwrap_or(0).min(self.held_ns.unwrap_or(u64::MAX)));
            if !self.state.blocked.contains(&to) {
                self.state.blocked.push(to);
            }
        }
    }

    /// Shows the batch to whoever watches its source or its destinations. Held frames are shown when
    /// they are finished with, and who watches both ends is shown a frame where it came in only: a
    /// capture in which every frame is there twice looks like a network full of retransmissions.
    fn mirror(&self, batch: &Batch<'_>) {
        let watcher = |port: PortId| self.table.get(port).and_then(|e| e.mirror.as_ref());
        let source = watcher(self.source);
        for i in (0..batch.len()).filter(|i| batch.verdict(*i) != Verdict::Held) {
            let Some(frame) = batch.frame(i) else { continue };
            let dropped = batch.dropped(i);
            if let Some((mirror, interface)) = source {
                mirror.capture(*interface, false, &frame, dropped);
            }
            let delivered = |port: PortId| {
                let Some((mirror, interface)) = watcher(port) else { return };
                if source.is_none_or(|(m, _)| !Arc::ptr_eq(m, mirror)) {
                    mirror.capture(*interface, true, &frame, None);
                }
            };
            match self.state.ways.get(i) {
                Some(Way::To(port)) if dropped.is_none() => delivered(*port),
                Some(Way::Flood) => {
                    let others = self.table.members().iter().filter(|p| **p != self.source);
                    others.for_each(|p| delivered(*p));
                }
                _ => {}
            }
        }
    }
}
