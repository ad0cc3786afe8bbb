//! The port: two locked sides, and the few flags that workers read without a lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use vmlan_frame::headers::announcement;
use vmlan_frame::{
    Batch, Counters, Doorbell, Mac, NicCounters, Offload, Offloads, Port, Reason, Sink,
};
use vmlan_nic::virtio::{Features, NetRx, NetTx, feature};
use vmlan_ram::{Map, Slice};

use super::kick::Kicks;
use super::sides::{PortFault, Side, lock};
use crate::interrupt_cost::InterruptCost;
use crate::irq_limit::IrqLimit;
use crate::waker::Waker;

/// RARP announcements that may wait; a front end that sends more is repeating itself.
const MAX_RARP: usize = 16;

/// Both sides, locked: no frame of this port is lent or being written while this lives.
#[allow(missing_docs, reason = "the names say it")]
pub struct BothSides<'p> {
    pub tx: MutexGuard<'p, Side<NetTx>>,
    pub rx: MutexGuard<'p, Side<NetRx>>,
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

impl BothSides<'_> {
    /// The first fault of either side.
    pub fn fault(&self) -> Option<PortFault> {
        self.tx.fault().or_else(|| self.rx.fault())
    }

    /// Gives both sides `map`, and returns the map before, which nobody else has any more. Drop it
    /// without the locks: unmapping takes 20 ms for each GiB in use, and every worker with a frame
    /// for this port would wait.
    #[must_use]
    pub fn set_map(&mut self, map: &Arc<Map>) -> Arc<Map> {
        self.tx.net.set_map(Arc::clone(map));
        self.rx.net.set_map(Arc::clone(map));
        self.tx.map = Arc::clone(map);
        std::mem::replace(&mut self.rx.map, Arc::clone(map))
    }

    pub fn set_features(&mut self, features: u64) {
        let features = Features(features);
        self.tx.net.set_features(features);
        self.rx.net.set_features(features);
        self.port.offloads.store(features.receives().bits(), Ordering::Relaxed);
    }

    /// Whether packed virtqueues were negotiated.
    pub fn is_packed(&self) -> bool {
        self.tx.net.features().has(feature::RING_PACKED)
    }

    /// Forgets everything that the front end set up.
    pub fn reset(&mut self) {
        self.tx.net.reset();
        self.rx.net.reset();
        self.tx.map = Arc::default();
        self.rx.map = Arc::default();
        self.tx.calls.clear();
        self.rx.calls.clear();
        lock(&self.port.rarp).clear();
        self.port.has_rarp.store(false, Ordering::Relaxed);
        self.port.offloads.store(0, Ordering::Relaxed);
    }
}

impl Drop for BothSides<'_> {
    fn drop(&mut self) {
        let fault = self.fault();
        self.port.quarantined.store(fault.is_some(), Ordering::Relaxed);
        let up = fault.is_none() && self.rx.net.is_ready();
        self.port.up.store(up, Ordering::Release);
        self.port.touched.store(true, Ordering::Release);
    }
}

/// A VM's NIC, as the switch sees it.
pub struct VhostUserPort {
    tx: Mutex<Side<NetTx>>,
    rx: Mutex<Side<NetRx>>,
    /// Control threads that want both locks. While there are some, workers pass the port by.
    wanted: AtomicU32,
    /// Both locks were held since workers were last told to look.
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
    /// A port with nobody connected. `waker` is told when a worker finds a fault.
    pub fn new(waker: Arc<Waker>) -> std::io::Result<Self> {
        Ok(Self {
            tx: Mutex::default(),
            rx: Mutex::default(),
            wanted: AtomicU32::new(0),
            touched: AtomicBool::new(false),
            up: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            discard: AtomicBool::new(false),
            quarantined: AtomicBool::new(false),
            offloads: AtomicU8::new(0),
            kicks: Kicks::new()?,
            rarp: Mutex::default(),
            has_rarp: AtomicBool::new(false),
            counters: Counters::default(),
            cost: Arc::default(),
            limit: Arc::new(IrqLimit::new()?),
            waker,
        })
    }

    /// Locks both sides, transmit first. What workers see (up, quarantined) follows when the guard
    /// is dropped.
    pub fn both(&self) -> BothSides<'_> {
        let wanted = Wanted::new(&self.wanted);
        let tx = lock(&self.tx);
        let rx = lock(&self.rx);
        BothSides { tx, rx, port: self, _wanted: wanted }
    }

    /// The receive side for a worker; `None` while the port's own thread has it. That one may have
    /// the lowest weight and be kept from running for long: who has a frame for this port is not to
    /// wait for it. (If somebody has the lock and nobody wants both, it is another worker.)
    fn receive_side(&self) -> Option<MutexGuard<'_, Side<NetRx>>> {
        match self.rx.try_lock() {
            Ok(side) => Some(side),
            Err(TryLockError::Poisoned(side)) => Some(side.into_inner()),
            Err(TryLockError::WouldBlock) if self.wanted.load(Ordering::Acquire) > 0 => None,
            Err(TryLockError::WouldBlock) => Some(lock(&self.rx)),
        }
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
    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        let stands =
            self.quarantined.load(Ordering::Relaxed) || self.paused.load(Ordering::Acquire);
        if stands || self.wanted.load(Ordering::Acquire) > 0 {
            return 0;
        }
        let mut side = match self.tx.try_lock() {
            Ok(side) => side,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let mut done = 0;
        if self.has_rarp.load(Ordering::Relaxed) {
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

    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        let Some(mut side) = self.receive_side() else { return 0 };
        if !self.up.load(Ordering::Acquire) {
            self.counters.output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        let done = side.net.push(batch, list, &self.counters);
        if side.fault().is_some() {
            self.quarantine();
        }
        done
    }

    fn offloads(&self) -> Offloads {
        Offloads::from_bits(self.offloads.load(Ordering::Relaxed))
    }

    fn room(&self) -> usize {
        self.receive_side().map_or(0, |mut side| side.net.room())
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    fn arm(&self) -> bool {
        if self.wanted.load(Ordering::Acquire) > 0 {
            return true;
        }
        if self.quarantined.load(Ordering::Relaxed) {
            return false;
        }
        if self.has_rarp.load(Ordering::Acquire) {
            return true;
        }
        // Somebody else has the lock, and may have pulled before the latest frame came: look again.
        self.tx.try_lock().map_or(true, |mut side| side.net.arm())
    }

    fn disarm(&self) {
        if let Ok(mut side) = self.tx.try_lock() {
            side.net.disarm();
        }
    }

    fn want_room(&self) -> bool {
        if !self.is_up() {
            return true;
        }
        // Being changed: look again.
        self.receive_side().is_none_or(|mut side| side.net.want_room())
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        vec![self.kicks.bell()]
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

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
