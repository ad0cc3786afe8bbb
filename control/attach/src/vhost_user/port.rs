//! The port: two locked sides for each lane, and the few flags that workers read without a lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use vmlan_frame::headers::announcement;
use vmlan_frame::{
    Batch, Counters, Doorbell, Mac, NicCounters, Offload, Offloads, Port, Reason, Sink,
    lock_unless, place_of,
};
use vmlan_nic::virtio::{Budget, Features, NetRx, NetTx, feature};
use vmlan_ram::{Map, Slice};

use super::kick::Kicks;
use super::lanes::{Lane, Receivers, Steered};
use super::sides::{PortFault, Side, lock};
use crate::interrupt_cost::InterruptCost;
use crate::irq_limit::IrqLimit;
use crate::waker::Waker;

/// RARP announcements that may wait; a front end that sends more is repeating itself.
const MAX_RARP: usize = 16;

/// Frames of a push whose like is worth being prepared: a longer one overlaps its own misses.
const SHORT_PUSH: usize = 8;

/// Both sides of a lane, locked.
#[allow(missing_docs, reason = "the names say it")]
pub struct LockedLane<'p> {
    pub tx: MutexGuard<'p, Side<NetTx>>,
    pub rx: MutexGuard<'p, Side<NetRx>>,
}

/// Both sides of all lanes, locked: no frame of this port is lent or being written while this
/// lives.
pub struct BothSides<'p> {
    lanes: Vec<LockedLane<'p>>,
    port: &'p VhostUserPort,
    /// Until the locks are free.
    _wanted: Wanted<'p>,
}

/// Somebody wants both locks, or has them.
struct Wanted<'p>(&'p AtomicU32);

impl<'p> Wanted<'p> {
    fn new(count: &'p AtomicU32) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<'p> BothSides<'p> {
    /// The first fault of any side. Its queue is numbered among all of the port's.
    pub fn fault(&self) -> Option<PortFault> {
        let found = |(n, lane): (u16, &LockedLane<'_>)| {
            let fault = lane.tx.fault().or_else(|| lane.rx.fault())?;
            Some(fault.of_lane(n, self.port.pairs))
        };
        (0..).zip(&self.lanes).find_map(found)
    }

    /// The lane of a pair of queues, and the pair's number in it.
    #[allow(clippy::indexing_slicing)] // there are as many lanes as pairs
    pub fn lane_of(&mut self, pair: u16) -> (&mut LockedLane<'p>, u16) {
        (&mut self.lanes[self.port.lane_of(pair)], pair / self.port.pairs)
    }

    /// The memory map, which all sides have.
    pub fn map(&self) -> Arc<Map> {
        self.lanes.first().map(|lane| Arc::clone(&lane.rx.map)).unwrap_or_default()
    }

    /// Gives all sides `map`, and returns the map before, which nobody else has any more. Drop it
    /// without the locks: unmapping takes 20 ms for each GiB in use, and every worker with a frame
    /// for this port would wait.
    #[must_use]
    pub fn set_map(&mut self, map: &Arc<Map>) -> Arc<Map> {
        let mut before = Arc::default();
        for LockedLane { tx, rx } in &mut self.lanes {
            tx.net.set_map(Arc::clone(map));
            rx.net.set_map(Arc::clone(map));
            tx.map = Arc::clone(map);
            before = std::mem::replace(&mut rx.map, Arc::clone(map));
        }
        before
    }

    pub fn set_features(&mut self, features: u64) {
        let features = Features(features);
        for LockedLane { tx, rx } in &mut self.lanes {
            tx.net.set_features(features);
            rx.net.set_features(features);
        }
        self.port.offloads.store(features.receives().bits(), Ordering::Relaxed);
    }

    /// Whether packed virtqueues were negotiated.
    pub fn is_packed(&self) -> bool {
        self.lanes.iter().any(|lane| lane.tx.net.features().has(feature::RING_PACKED))
    }

    /// Forgets everything that the front end set up.
    pub fn reset(&mut self) {
        for LockedLane { tx, rx } in &mut self.lanes {
            tx.net.reset();
            rx.net.reset();
            (tx.map, rx.map) = Default::default();
            tx.calls.clear();
            rx.calls.clear();
        }
        lock(&self.port.rarp).clear();
        self.port.has_rarp.store(false, Ordering::Relaxed);
        self.port.offloads.store(0, Ordering::Relaxed);
    }
}

impl Drop for BothSides<'_> {
    fn drop(&mut self) {
        let fault = self.fault();
        self.port.quarantined.store(fault.is_some(), Ordering::Relaxed);
        let ready = self.lanes.iter().map(|lane| lane.rx.net.is_ready());
        let up = fault.is_none() & self.port.receivers.set(ready);
        self.port.up.store(up, Ordering::Release);
        self.port.touched.store(true, Ordering::Release);
    }
}

/// A VM's NIC, as the switch sees it.
pub struct VhostUserPort {
    /// Pairs of queues that are offered, at least one. A front end may use more (see
    /// `Session::new`), which share lanes then.
    pairs: u16,
    /// One for each pair.
    lanes: Box<[Lane]>,
    /// The lanes that frames can be delivered to.
    receivers: Receivers,
    /// The lane that a push by several begins with.
    first: AtomicUsize,
    /// Each port's frames go to one lane, rather than each flow's.
    by_source: AtomicBool,
    /// Control threads that want all locks. While there are some, workers pass the port by.
    wanted: AtomicU32,
    /// All locks were held since workers were last told to look.
    touched: AtomicBool,
    up: AtomicBool,
    connected: AtomicBool,
    /// No more frames are taken from the guest.
    paused: AtomicBool,
    /// Started transmit rings are all disabled: what they send is thrown away ("Ring states").
    discard: AtomicBool,
    quarantined: AtomicBool,
    offloads: AtomicU8,
    kicks: Kicks,
    rarp: Mutex<VecDeque<Mac>>,
    has_rarp: AtomicBool,
    counters: Counters,
    cost: Arc<InterruptCost>,
    limit: Arc<IrqLimit>,
    waker: Arc<Waker>,
}

impl VhostUserPort {
    /// A port of so many pairs of queues, with nobody connected. `waker` is told when a worker
    /// finds a fault.
    pub fn new(waker: Arc<Waker>, pairs: u16) -> std::io::Result<Self> {
        let pairs = pairs.max(1);
        let lanes = usize::from(pairs);
        Ok(Self {
            pairs,
            lanes: (0..lanes).map(Lane::new).collect(),
            receivers: Receivers::new(lanes),
            first: AtomicUsize::new(0),
            by_source: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            touched: AtomicBool::new(false),
            up: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            discard: AtomicBool::new(false),
            quarantined: AtomicBool::new(false),
            offloads: AtomicU8::new(0),
            kicks: Kicks::new(lanes)?,
            rarp: Mutex::default(),
            has_rarp: AtomicBool::new(false),
            counters: Counters::with_lanes(lanes),
            cost: Arc::default(),
            limit: Arc::new(IrqLimit::new()?),
            waker,
        })
    }

    /// Locks both sides of all lanes, transmit first. What workers see (up, quarantined) follows
    /// when the guard is dropped.
    pub fn both(&self) -> BothSides<'_> {
        let wanted = Wanted::new(&self.wanted);
        let tx: Vec<_> = self.lanes.iter().map(|lane| lock(&lane.tx)).collect();
        let rx = self.lanes.iter().map(|lane| lock(&lane.rx));
        let lanes = tx.into_iter().zip(rx).map(|(tx, rx)| LockedLane { tx, rx }).collect();
        BothSides { lanes, port: self, _wanted: wanted }
    }

    /// From now on frames of one port of the switch go to one lane: what floods a guest fills one
    /// of its rings, and the guest can tell its senders apart. Ports whose numbers differ by a
    /// multiple of the number of lanes share one.
    pub fn steer_by_source(&self) {
        self.by_source.store(true, Ordering::Relaxed);
    }

    /// The lane that a pair of queues belongs to.
    pub fn lane_of(&self, pair: u16) -> usize {
        usize::from(pair % self.pairs)
    }

    /// The receive side of a lane for a worker; `None` while the port's own thread has it. That one
    /// may have the lowest weight and be kept from running for long: who has a frame for this port
    /// is not to wait for it. (If somebody has the lock and nobody wants all, it is another
    /// worker.)
    fn receive_side<'p>(&self, lane: &'p Lane) -> Option<MutexGuard<'p, Side<NetRx>>> {
        lock_unless(&lane.rx, || self.is_being_changed())
    }

    /// The lane, of so many that are ready, by which frame `i` is delivered.
    #[inline]
    fn receiver(&self, batch: &Batch<'_>, i: usize, ready: usize) -> usize {
        let steered = ready > 1 && !self.by_source.load(Ordering::Relaxed);
        let source = || usize::from(batch.source()) % ready.max(1);
        self.receivers.of(if steered { place_of(batch.flow(i), ready) } else { source() })
    }

    /// Delivers frames by a lane whose receive side is locked. Returns how many entries of `list`,
    /// from the first on, were dealt with.
    fn push_to(
        &self,
        side: &mut Side<NetRx>,
        budget: &mut Budget,
        batch: &Batch<'_>,
        list: &[u16],
    ) -> usize {
        if !self.up.load(Ordering::Acquire) {
            self.counters.output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        let done = side.net.push(batch, list, &self.counters, budget);
        if side.fault().is_some() {
            self.quarantine();
        }
        done
    }

    /// Delivers frames by several lanes, each frame by the one of its flow. Lanes that another
    /// worker has just now come last. All share one budget; where it ends the next push goes on, so
    /// that buffers which cost much in one lane do not keep the others waiting for ever.
    fn push_steered(&self, batch: &Batch<'_>, list: &mut [u16], ready: usize) -> usize {
        let mut steered = Steered::new(list, |i| self.receiver(batch, i, ready));
        let (wanted, mut busy) = (steered.lanes(), 0u64);
        let first = self.first.load(Ordering::Relaxed);
        let lanes = |set: u64| {
            let all = self.lanes.iter().enumerate();
            let turned = all.clone().skip(first).chain(all.take(first));
            turned.filter(move |(n, _)| set >> n & 1 == 1)
        };
        let mut budget = Budget::default();
        let mut push = |n, side: &mut Side<NetRx>| {
            let before = budget.is_spent();
            steered.push(n, |part| self.push_to(side, &mut budget, batch, part));
            if budget.is_spent() && !before {
                self.first.store((n + 1) % self.lanes.len(), Ordering::Relaxed);
            }
        };
        for (n, lane) in lanes(wanted) {
            match lane.rx.try_lock() {
                Ok(mut side) => push(n, &mut side),
                Err(_) => busy |= 1 << n,
            }
        }
        for (n, lane) in lanes(busy) {
            if let Some(mut side) = self.receive_side(lane) {
                push(n, &mut side);
            }
        }
        steered.order(list)
    }

    /// True if something may have changed, since this was last asked, that workers have to look at.
    #[must_use]
    pub fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::AcqRel)
    }

    /// Notes whether a front end is connected.
    pub fn set_connected(&self, on: bool) {
        self.connected.store(on, Ordering::Release);
    }

    /// Takes no more frames from the guest. Those under way are delivered.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Release);
    }

    /// What its interrupts have cost, of all front ends.
    pub fn cost(&self) -> &Arc<InterruptCost> {
        &self.cost
    }

    /// The limit of its interrupts.
    pub fn limit(&self) -> &Arc<IrqLimit> {
        &self.limit
    }

    /// For the port's own thread: counts doorbells if somebody asked for it. True if that was all
    /// that it was woken for, as long as `stands` is whether the port stands still.
    pub fn counts_only(&self, stands: bool) -> bool {
        let counted = self.kicks.count_if_asked(&self.counters);
        counted && self.quarantined.load(Ordering::Acquire) == stands
    }

    /// The doorbells.
    pub fn kicks(&self) -> &Kicks {
        &self.kicks
    }

    /// Throws away what the guest sends, or stops doing so.
    pub fn set_discard(&self, on: bool) {
        self.discard.store(on, Ordering::Relaxed);
    }

    /// Announces `mac` with the next pull (SEND_RARP).
    pub fn announce(&self, mac: Mac) {
        let mut queue = lock(&self.rarp);
        if queue.len() < MAX_RARP && !queue.contains(&mac) {
            queue.push_back(mac);
        }
        self.has_rarp.store(true, Ordering::Release);
        // Workers may all sleep, and a guest that has just come may be silent.
        self.touched.store(true, Ordering::Release);
    }

    /// Stops the port after a worker found a fault; the attach thread does the rest.
    #[cold]
    fn quarantine(&self) {
        if !self.quarantined.swap(true, Ordering::AcqRel) {
            self.up.store(false, Ordering::Release);
            self.waker.wake();
        }
    }

    /// Lends the announcements that wait.
    #[cold]
    fn lend_rarp(&self, spare: &mut Batch<'static>, sink: &mut dyn Sink) -> usize {
        let frames: Vec<_> =
            lock(&self.rarp).drain(..).map(|mac| announcement(mac, None)).collect();
        self.has_rarp.store(false, Ordering::Release);
        let mut batch = Batch::take(spare);
        for frame in &frames {
            let _ = batch.add(&[Slice::from_bytes(frame)], Offload::NONE);
        }
        self.counters.input.count(batch.len(), frames.iter().map(|f| f.len() as u64).sum());
        let done = batch.len();
        sink.deliver(&mut batch);
        batch.give_back(spare);
        done
    }
}

/// Throws away what a disabled virtqueue sends.
struct Discard<'c>(&'c Counters);

impl Sink for Discard<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.0.input.drop(Reason::LinkDown, batch.len() as u64);
    }
}

impl Port for VhostUserPort {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn pull(
        &self,
        lane: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let stands =
            self.quarantined.load(Ordering::Relaxed) || self.paused.load(Ordering::Acquire);
        if stands || self.is_being_changed() {
            return 0;
        }
        let mut side = match self.lanes.get(lane).map(|lane| lane.tx.try_lock()) {
            Some(Ok(side)) => side,
            Some(Err(TryLockError::Poisoned(e))) => e.into_inner(),
            Some(Err(TryLockError::WouldBlock)) | None => return 0,
        };
        let mut done = 0;
        if lane == 0 && self.has_rarp.load(Ordering::Relaxed) {
            done += self.lend_rarp(batch, sink);
        }
        if self.discard.load(Ordering::Relaxed) {
            done += side.net.pull(batch, limit, &mut Discard(&self.counters), &self.counters);
        } else {
            done += side.net.pull(batch, limit, sink, &self.counters);
        }
        if side.fault().is_some() {
            self.quarantine();
        }
        done
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let ready = self.receivers.ready();
        if ready > 1 && !self.by_source.load(Ordering::Relaxed) {
            return self.push_steered(batch, list, ready);
        }
        let Some(lane) = self.lanes.get(self.receiver(batch, 0, ready)) else { return 0 };
        let side = self.receive_side(lane);
        side.map_or(0, |mut side| {
            let dealt = self.push_to(&mut side, &mut Budget::default(), batch, list);
            if list.len() <= SHORT_PUSH && lane.next.is_wanted() {
                side.net.note_next(&lane.next, list.len());
            }
            dealt
        })
    }

    /// Of several lanes it is not known which one frames will go by.
    fn expect(&self) {
        if self.receivers.ready() == 1
            && let Some(lane) = self.lanes.get(self.receivers.of(0))
        {
            lane.next.prefetch();
        }
    }

    fn offloads(&self) -> Offloads {
        Offloads::from_bits(self.offloads.load(Ordering::Relaxed))
    }

    /// Of the lane that has least: it is not known by which one frames go.
    fn room(&self) -> usize {
        let lanes = (0..self.receivers.ready()).map(|place| self.receivers.of(place));
        lanes.map(|lane| self.room_in(lane, 1)).min().unwrap_or(0)
    }

    fn steers_by_source(&self) -> bool {
        self.by_source.load(Ordering::Relaxed)
    }

    fn lane_for(&self, batch: &Batch<'_>, i: usize) -> usize {
        self.receiver(batch, i, self.receivers.ready())
    }

    fn room_in(&self, lane: usize, wanted: usize) -> usize {
        if !self.is_up() {
            // A push counts what is lost so.
            return usize::MAX;
        }
        let side = self.lanes.get(lane).and_then(|lane| self.receive_side(lane));
        side.map_or(0, |mut side| side.net.room(wanted))
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    fn arm(&self, lane: usize) -> bool {
        if self.is_being_changed() {
            return true;
        }
        if self.quarantined.load(Ordering::Relaxed) {
            return false;
        }
        if lane == 0 && self.has_rarp.load(Ordering::Acquire) {
            return true;
        }
        // Somebody else has the lock, and may have pulled before the latest frame came: look again.
        let lane = self.lanes.get(lane);
        lane.is_some_and(|lane| lane.tx.try_lock().map_or(true, |mut side| side.net.arm()))
    }

    fn is_being_changed(&self) -> bool {
        self.wanted.load(Ordering::Acquire) > 0
    }

    fn disarm(&self, lane: usize) {
        if let Some(Ok(mut side)) = self.lanes.get(lane).map(|lane| lane.tx.try_lock()) {
            side.net.disarm();
        }
    }

    fn want_room(&self) -> bool {
        if !self.is_up() {
            return true;
        }
        // Room in another lane than the one that had too little does not count.
        let mut starved = false;
        for lane in &self.lanes {
            // Being changed: look again.
            let Some(mut side) = self.receive_side(lane) else { return true };
            starved |= side.net.is_starved();
        }
        let (mut asked, mut room) = (false, false);
        for lane in &self.lanes {
            let Some(mut side) = self.receive_side(lane) else { return true };
            if !starved || side.net.is_starved() {
                (asked, room) = (true, side.net.want_room() | room);
            }
        }
        // What was starved has been pushed to meanwhile.
        room || !asked
    }

    fn doorbells(&self, lane: usize) -> Vec<Doorbell> {
        self.kicks.bell(lane).into_iter().collect()
    }

    fn count_doorbells(&self) {
        self.kicks.ask_for_count(|| self.waker.wake());
    }

    /// Counters of a NIC whose interrupts are or were limited; `None` for others.
    fn device(&self) -> Option<NicCounters> {
        let (held, late) = self.limit.counts();
        let delivered =
            self.counters.output.notifications.get() + self.counters.tx_interrupts.get();
        let raised = (delivered + held).saturating_sub(late);
        (self.limit.is_on() || held > 0).then(|| NicCounters {
            raised,
            held,
            delivered,
            ..NicCounters::default()
        })
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nor for one that came while it waited for another worker: a mutex would hand the lock to
    /// either.
    #[test]
    fn a_worker_that_waits_gives_up_for_the_ports_own_thread() {
        static WAITS: AtomicU32 = AtomicU32::new(0);
        let port = VhostUserPort::new(Arc::new(Waker::new().unwrap()), 1).unwrap();
        let wait_until = |done: &dyn Fn() -> bool| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !done() && std::time::Instant::now() < end {
                std::thread::yield_now();
            }
            done()
        };
        std::thread::scope(|s| {
            // The first worker is in the midst of a push.
            let pushes = lock(&port.lanes[0].rx);
            let second = s.spawn(|| {
                // It asks for the time as it begins to wait, and once more at the end.
                let begins = || WAITS.fetch_add(1, Ordering::SeqCst).into();
                vmlan_frame::measure_lock_waits(begins, |_| std::thread::yield_now());
                port.push(&Batch::new(), &mut [0])
            });
            let waits = wait_until(&|| WAITS.load(Ordering::SeqCst) > 0);
            let own = s.spawn(|| drop(port.both()));
            let gave_up = waits && wait_until(&|| second.is_finished());
            drop(pushes);
            assert!(waits && gave_up, "it waits for whoever has the lock next");
            assert_eq!(second.join().unwrap(), 0, "no room: the frame stays with its sender");
            own.join().unwrap();
        });
    }
}
