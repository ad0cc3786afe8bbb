//! Workers: the threads that run breaths, and sleep when there is nothing to do.
//!
//! ```text
//!        ┌──────────── frames ────────────┐
//!        ▼                                │
//!   breath over own ports ── nothing ──► spin ── nothing ──► arm all ── look again ──► epoll
//!        ▲                                                      │ frames                 │
//!        └──────────── disarm ◄─────────────────────────────────┴──── doorbell, command ─┘
//! ```
//!
//! A worker owns lanes of ports: only it pulls from them (any worker pushes to any port). The lanes
//! of one port go to as many workers as there are, from the port's owner on. A port leaves a worker
//! that is short of time for one that is not. What a worker owns and the table of all ports reach
//! it as one [`Assignment`], taken between breaths. Spinning is only done while it pays: after
//! sleeps that ended within the spin time.
//!
//! A lane that changes hands keeps the order of its flows: frames are delivered while the lane is
//! locked, and those that wait for a receiver wait in the lane.
//!
//! No lock of this file is taken while frames move; the only one a worker takes is that of its
//! inbox, when a flag says there is something in it.

mod breath_times;
mod idle;
mod idle_rings;
mod mailbox;
mod mapped_doorbells;
mod naps;
mod own;
mod placement;
mod run;
mod signal;
mod tellings;
#[cfg(test)]
mod tests;
mod watchdog;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlan_frame::{Mirror, Port};
use vmlan_switch::policy::{Policy, Turns};
use vmlan_switch::{Entry, MAX_PORTS, PortId, Switch, Table};

use mailbox::{Assignment, Mailbox};
use run::{Run, keep_to};
use tellings::Tellings;
use watchdog::Watchdog;

/// The switch has as many ports as it can have.
#[derive(Debug, thiserror::Error)]
#[error("the switch has {MAX_PORTS} ports already")]
pub struct Full;

/// What all workers know of each other.
struct Shared {
    switch: Arc<Switch>,
    slots: Vec<Arc<Mailbox>>,
    spin: Duration,
    watchdog: Watchdog,
    tellings: Tellings,
    /// When time began for all of them.
    start: Instant,
    /// The time, if it is told by [`Workers::pass`].
    #[cfg(any(test, feature = "fuzz"))]
    told: Option<std::sync::atomic::AtomicU64>,
}

/// Ports and who owns them. Changed under one lock, published as assignments.
#[derive(Default)]
struct Plan {
    entries: Vec<Option<Entry>>,
    owners: Vec<Option<usize>>,
    generation: u64,
    /// When loads were looked at, and what had been spent on each port's lanes.
    looked: u64,
    spent: Vec<Vec<u64>>,
    /// Until when each port stays where it is.
    rests: Vec<u64>,
}

/// How often loads are looked at while there is any: how long they are measured.
const LOOK: Duration = Duration::from_secs(1);
/// How long a port that was moved stays, in nanoseconds.
const REST: u64 = 60_000_000_000;

/// Ends the process if its thread panics. Whoever publishes something waits for all workers: one
/// that has gone would keep them for ever, and whoever starts a switch again would see no end.
struct Fatal;

impl Drop for Fatal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!("a worker has failed: the switch ends");
            std::process::abort();
        }
    }
}

/// The worker threads of a switch.
pub struct Workers {
    shared: Arc<Shared>,
    plan: Mutex<Plan>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts `n` workers (at least one) that spin for `spin` before they sleep.
    ///
    /// # Errors
    /// Those of creating eventfds, epoll instances and threads.
    pub fn start(n: usize, spin: Duration, switch: Arc<Switch>) -> io::Result<Self> {
        Self::start_on(n, &[], spin, switch)
    }

    /// As [`Workers::start`], each on its CPU; those without one run anywhere.
    ///
    /// # Errors
    /// As [`Workers::start`].
    pub fn start_on(
        n: usize,
        cpus: &[usize],
        spin: Duration,
        switch: Arc<Switch>,
    ) -> io::Result<Self> {
        let slots = (0..n.max(1)).map(Mailbox::new).collect::<io::Result<Vec<_>>>()?;
        let watchdog = Watchdog::new()?;
        let shared = Shared {
            switch,
            slots,
            spin,
            watchdog,
            tellings: Tellings::default(),
            start: Instant::now(),
            #[cfg(any(test, feature = "fuzz"))]
            told: None,
        };
        let shared = Arc::new(shared);
        let workers = Self { shared, plan: Mutex::default(), threads: Mutex::default() };
        let mut threads = Vec::new();
        for slot in &workers.shared.slots {
            let cpu = cpus.get(slot.index()).copied();
            let epoll = Run::epoll(slot)?;
            let (shared, slot) = (workers.shared.clone(), slot.clone());
            let name = format!("worker{}", slot.index());
            let run = move || {
                let _fatal = Fatal;
                if let Some(cpu) = cpu {
                    keep_to(cpu);
                }
                // Who writes to a page first decides on which NUMA node it lies, so batches are
                // made where they are used.
                Run::new(shared, slot, epoll).run();
            };
            threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        threads.push(watchdog::start(workers.shared.clone())?);
        *lock(&workers.threads) = threads;
        Ok(workers)
    }

    /// None at all: whoever has the table plays them, and tells the time.
    ///
    /// # Errors
    /// That of the watchdog, which stays asleep.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn played(switch: Arc<Switch>) -> io::Result<Self> {
        let (slots, spin, told) = (Vec::new(), Duration::ZERO, Some(0.into()));
        let (watchdog, start) = (Watchdog::new()?, Instant::now());
        let tellings = Tellings::default();
        let shared = Arc::new(Shared { switch, slots, spin, watchdog, tellings, start, told });
        Ok(Self { shared, plan: Mutex::default(), threads: Mutex::default() })
    }

    /// Lets `ns` nanoseconds pass, where the time is told.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn pass(&self, ns: u64) {
        if let Some(told) = &self.shared.told {
            told.fetch_add(ns, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Adds a port without a policy; its owner is the worker with the fewest.
    pub fn add(&self, name: &str, port: Arc<dyn Port>) -> Result<PortId, Full> {
        let id = self.reserve(name, port)?;
        self.set_policies([(id, Arc::default())]);
        Ok(id)
    }

    /// Adds a port that takes part from its [`Workers::set_policies`] on: not for a moment without
    /// its policy, even if the table is published before.
    pub fn reserve(&self, name: &str, port: Arc<dyn Port>) -> Result<PortId, Full> {
        let mut plan = lock(&self.plan);
        let index = plan.entries.iter().position(Option::is_none).unwrap_or(plan.entries.len());
        let id = PortId::new(index).ok_or(Full)?;
        if index == plan.entries.len() {
            plan.entries.push(None);
            plan.owners.push(None);
        }
        let silent = Arc::new(Policy { monitor: true, ..Policy::default() });
        plan.entries[index] = Some(Entry { name: name.into(), port, mirror: None, policy: silent });
        Ok(id)
    }

    /// Removes a port. When this returns no worker uses it any more, nothing is remembered of it
    /// and no other port waits for its turn.
    pub fn remove(&self, id: PortId) {
        let mut plan = lock(&self.plan);
        if let Some(entry) = plan.entries.get_mut(id.index()) {
            let policy = entry.take().map(|entry| entry.policy);
            self.publish(&mut plan);
            self.shared.switch.forget(id);
            let limit = policy.as_deref().and_then(turns);
            let uplinks = plan.entries.iter().flatten().filter_map(|e| e.policy.uplink.as_ref());
            limit.into_iter().chain(uplinks).for_each(|turns| turns.leave(id));
        }
    }

    /// Puts policies into force. When this returns no worker uses the old ones any more, and a port
    /// that no longer has a shared limit is not waited for there.
    pub fn set_policies(&self, policies: impl IntoIterator<Item = (PortId, Arc<Policy>)>) {
        let mut plan = lock(&self.plan);
        let mut left = Vec::new();
        for (id, policy) in policies {
            if let Some(Some(entry)) = plan.entries.get_mut(id.index()) {
                let old = std::mem::replace(&mut entry.policy, policy);
                let stays = |old: &&Arc<Turns>| {
                    turns(&entry.policy).is_some_and(|new| Arc::ptr_eq(old, new))
                };
                left.extend(turns(&old).filter(|old| !stays(old)).map(|old| (id, old.clone())));
            }
        }
        self.publish(&mut plan);
        // Not before: a worker would have it wait again.
        left.iter().for_each(|(id, turns)| turns.leave(*id));
    }

    /// The ports as the workers have them.
    pub fn table(&self) -> Table {
        Table::new(lock(&self.plan).entries.clone())
    }

    /// Has a frame of the switch's own sent to a port, in the form that this takes, by the worker
    /// that has the port. If it finds no room it is dropped and counted.
    pub fn send(&self, to: PortId, frame: Vec<u8>) {
        let owner = lock(&self.plan).owners.get(to.index()).copied().flatten();
        if let Some(slot) = owner.and_then(|owner| self.shared.slots.get(owner)) {
            slot.send(to, frame);
        }
    }

    /// The workers' clock: nanoseconds since they were started.
    pub fn now(&self) -> u64 {
        run::clock(&self.shared)
    }

    /// Shows `mirror` the frames of the given ports, under the given interface numbers.
    pub fn set_mirror(&self, mirror: &Arc<dyn Mirror>, ports: &[(PortId, u32)]) {
        let mut plan = lock(&self.plan);
        for (id, interface) in ports {
            if let Some(Some(entry)) = plan.entries.get_mut(id.index()) {
                entry.mirror = Some((mirror.clone(), *interface));
            }
        }
        self.publish(&mut plan);
    }

    /// Takes `mirror` away from all ports. When this returns no worker shows it anything any more.
    pub fn clear_mirror(&self, mirror: &Arc<dyn Mirror>) {
        let mut plan = lock(&self.plan);
        for entry in plan.entries.iter_mut().flatten() {
            entry.mirror.take_if(|(m, _)| Arc::ptr_eq(m, mirror));
        }
        self.publish(&mut plan);
    }

    /// Has a worker that is short of time give a port to one that is not, if that helps. Says when
    /// to look again: not while nothing is done, or where there is one worker.
    pub fn balance(&self) -> Option<Duration> {
        self.balance_at(self.now())
    }

    fn balance_at(&self, now: u64) -> Option<Duration> {
        let workers = self.shared.slots.len();
        if workers < 2 {
            return None;
        }
        let mut plan = lock(&self.plan);
        let period = now.saturating_sub(plan.looked);
        let left = LOOK.saturating_sub(Duration::from_nanos(period));
        if !left.is_zero() {
            return Some(left);
        }
        let loads = plan.loads(now);
        if let Some((port, owner)) = placement::relieve(&loads, workers) {
            if let Some(Some(entry)) = plan.entries.get(port) {
                log::info!("port {}: moves to worker {owner}, which has more time", entry.name);
            }
            plan.owners[port] = Some(owner);
            plan.rests[port] = now.saturating_add(REST);
            self.publish(&mut plan);
            // Its next worker may have armed it and gone to sleep before the one it was taken from
            // woke up, and so disarmed it.
            self.shared.slots.iter().for_each(|slot| slot.wake());
        }
        let any = loads.iter().flat_map(|load| &load.lanes).any(|lane| *lane > 0.0);
        any.then_some(LOOK)
    }

    /// To be called by a port after its doorbells or its being up changed: workers look again. It
    /// returns when they have been told, a millisecond later if others have had them told just now.
    pub fn changed(&self) -> Arc<dyn Fn() + Send + Sync> {
        let shared = self.shared.clone();
        Arc::new(move || {
            // Also where the workers' time is told: who waits here really does.
            let now = || run::nanoseconds(shared.start.elapsed());
            let tell = || shared.slots.iter().for_each(|s| s.refresh());
            shared.tellings.ask(now, std::thread::sleep, tell);
        })
    }

    /// Stops all workers and waits for them. Frames in flight stay in their rings.
    pub fn stop(&self) {
        self.shared.slots.iter().for_each(|s| s.stop());
        self.shared.watchdog.stop();
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                log::error!("a worker panicked: this is a bug, please report it");
            }
        }
    }

    /// Gives every worker its ports and the new table, and waits until all have taken them: from
    /// then on nobody uses the old one.
    fn publish(&self, plan: &mut Plan) {
        plan.generation += 1;
        let used: Vec<bool> = plan.entries.iter().map(Option::is_some).collect();
        placement::place(&mut plan.owners, &used, self.shared.slots.len());
        let table = Arc::new(Table::new(plan.entries.clone()));
        for slot in &self.shared.slots {
            let lanes = |id: &PortId| {
                let owner = plan.owners.get(id.index()).copied().flatten()?;
                let all = 0..table.get(*id)?.port.lanes();
                let of = |lane: &usize| (owner + lane) % self.shared.slots.len() == slot.index();
                let lanes: Vec<_> = all.filter(of).collect();
                (!lanes.is_empty()).then_some((*id, lanes))
            };
            let own = table.members().iter().filter_map(lanes).collect();
            slot.assign(Assignment { table: table.clone(), own, generation: plan.generation });
        }
        drop(table);
        for slot in &self.shared.slots {
            slot.wait_for(plan.generation);
        }
    }
}

impl Plan {
    /// What was spent on each port since it was last asked for, as parts of that time.
    fn loads(&mut self, now: u64) -> Vec<placement::Load> {
        let count = self.entries.len();
        self.spent.resize(count, Vec::new());
        self.rests.resize(count, 0);
        // A float holds any number of nanoseconds well enough.
        let period = now.saturating_sub(self.looked).max(1) as f64;
        self.looked = now;
        let mut loads = Vec::with_capacity(count);
        for (index, entry) in self.entries.iter().enumerate() {
            let (Some(entry), Some(owner)) = (entry, self.owners[index]) else {
                self.spent[index].clear();
                self.rests[index] = 0;
                loads.push(placement::Load::default());
                continue;
            };
            let counters = entry.port.counters();
            let all: Vec<_> = (0..entry.port.lanes()).map(|l| counters.work_ns_of(l)).collect();
            // A port that is new has no past.
            let before = self.spent[index].iter().copied().chain(std::iter::repeat(u64::MAX));
            let lanes = all.iter().zip(before);
            let lanes = lanes.map(|(now, then)| now.saturating_sub(then) as f64 / period).collect();
            self.spent[index] = all;
            let (weight, rests) = (f64::from(entry.policy.weight.max(1)), self.rests[index] > now);
            loads.push(placement::Load { owner, weight, rests, lanes });
        }
        loads
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whose turn it is at the limit that a port with this policy shares, if it shares one.
fn turns(policy: &Policy) -> Option<&Arc<Turns>> {
    policy.from.shared.as_ref()?.turns.as_ref()
}

/// A panicked holder leaves nothing half done that matters here.
fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
