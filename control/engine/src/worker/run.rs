//! A worker's loop.

mod joint;
mod round;
#[cfg(test)]
mod tests;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity};
use vmlan_frame::{BATCH, Port};
use vmlan_switch::policy::Shares;
use vmlan_switch::{Forwarder, PortId, Table};

use super::Shared;
use super::breath_times::{self, BreathTimes};
use super::idle::Idle;
use super::idle_rings::{self, Traffic};
use super::mailbox::{Assignment, Mailbox};
use super::mapped_doorbells::{self, MappedPorts};
use super::own::Own;
use super::signal;
use joint::Waiting;

/// The event data of the worker's own alarm; ports use their numbers.
const ALARM: u64 = u64::MAX;

/// How long a worker asks to run at a time, in nanoseconds: the least that Linux gives. Most
/// breaths are shorter, and on a busy machine who has just been woken waits for less time.
const SLICE: u64 = 100_000;

/// How much later than asked a timer may end a worker's sleep, in nanoseconds. The kernel's own 50
/// us are as long as the shortest sleep of a worker with mapped doorbells.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1_000);

/// How often a busy worker listens to doorbells for those who sleep, in nanoseconds: as often as a
/// sleeper looks for buffers that were posted without a doorbell.
const LISTEN: u64 = 50_000;

/// Nanoseconds of the clock that all workers, and all limits, go by.
pub(super) fn clock(shared: &Shared) -> u64 {
    #[cfg(any(test, feature = "fuzz"))]
    if let Some(told) = &shared.told {
        return told.load(Ordering::Relaxed);
    }
    nanoseconds(shared.start.elapsed())
}

/// Saturates after 584 years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// From now on the calling thread runs on one CPU.
pub(super) fn keep_to(cpu: usize) {
    let mut set = CpuSet::new();
    // A number that the set has no room for leaves it empty, which the kernel refuses.
    (cpu < CpuSet::MAX_CPU).then(|| set.set(cpu));
    if let Err(e) = sched_setaffinity(None, &set) {
        log::warn!("a worker cannot keep to CPU {cpu}: {e}");
    }
}

fn earlier(a: Option<u64>, b: u64) -> Option<u64> {
    Some(a.map_or(b, |a| a.min(b)))
}

fn traffic(port: &dyn Port) -> Traffic {
    let (from, to) = port.counters().snapshot();
    Traffic { from: from.frames, to: to.frames }
}

/// Frames in a breath that show that its port has more: it is waited for in the sharing of time.
const MANY: usize = BATCH / 8;

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// A port rang.
    Rang,
    /// Time is up.
    Late,
    /// The alarm, a signal, or the kernel will not wait.
    Called,
}

pub(super) struct Run {
    shared: Arc<Shared>,
    slot: Arc<Mailbox>,
    epoll: OwnedFd,
    table: Arc<Table>,
    own: Vec<Own>,
    /// In which order they have their turns in the next round.
    order: usize,
    /// In this round those have their breaths first who have them together.
    joint_first: bool,
    /// Those who have theirs later, alone.
    later: Vec<usize>,
    waiting: Waiting,
    forwarder: Forwarder,
    idle: Idle,
    blocked: Vec<PortId>,
    /// What was found was not to be had, for a port is being changed: no frames, or no room.
    being_changed: bool,
    /// The shortest time that held frames may still wait.
    held_ns: Option<u64>,
    /// When, at the earliest, something may pass that waits for tokens or for its turn.
    due: Option<u64>,
    /// Some of the own ports have rung since rings were last counted.
    rang: bool,
    shares: Shares,
    times: BreathTimes,
    poll: MappedPorts,
    /// When the first of the own ports that nap is to be looked at.
    nap: Option<u64>,
    /// When a busy worker listens to doorbells next.
    listens: u64,
}

impl Run {
    /// What a worker waits by: it fails before there is a thread.
    pub(super) fn epoll(slot: &Mailbox) -> io::Result<OwnedFd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, slot.alarm(), epoll::EventData::new_u64(ALARM), edge)?;
        Ok(epoll)
    }

    pub(super) fn new(shared: Arc<Shared>, slot: Arc<Mailbox>, epoll: OwnedFd) -> Self {
        let told = shared.clone();
        Self {
            forwarder: Forwarder::new(shared.switch.clone())
                .measured_by(move || clock(&told), signal::usage),
            idle: Idle::new(shared.spin),
            shared,
            slot,
            epoll,
            table: Arc::default(),
            own: Vec::new(),
            order: 0,
            joint_first: false,
            later: Vec::with_capacity(vmlan_switch::MAX_PORTS),
            waiting: Waiting::new(),
            blocked: Vec::with_capacity(vmlan_switch::MAX_PORTS),
            being_changed: false,
            held_ns: None,
            due: None,
            rang: false,
            shares: Shares::default(),
            times: BreathTimes::default(),
            poll: MappedPorts::default(),
            nap: None,
            listens: 0,
        }
    }

    pub(super) fn run(mut self) {
        signal::begin_usage();
        // Where it is refused, others run for longer before a worker that was woken.
        let _ = signal::set_slice(SLICE);
        vmlan_sandbox::enter(vmlan_sandbox::Thread::Worker);
        self.slot.thread.store(signal::this_thread(), Ordering::SeqCst);
        // Where it cannot be set, sleeps last a little longer.
        let _ = rustix::thread::set_current_timer_slack(TIMER_SLACK);
        let mut events = Vec::with_capacity(64);
        while !self.slot.is_stopping() {
            if self.slot.has_mail() {
                self.read_mail();
            }
            let now = clock(&self.shared);
            let frames = self.round(now);
            self.count_idle_rings(now);
            if frames > 0 {
                self.idle.busy(now);
                self.listen_for_others(&mut events, now);
            } else if self.idle.keep_spinning(now) {
                std::thread::yield_now();
            } else {
                self.sleep(&mut events);
            }
            let pulse = self.slot.pulse.load(Ordering::Relaxed);
            self.slot.pulse.store(pulse.wrapping_add(2), Ordering::Relaxed);
        }
        self.unwatch_all();
        self.slot.took(u64::MAX);
    }

    /// Those that have rung were looked at.
    fn count_idle_rings(&mut self, now: u64) {
        if !std::mem::take(&mut self.rang) {
            return;
        }
        let behind = self.far_behind(now);
        for own in &mut self.own {
            if std::mem::take(&mut own.rang)
                && let Some(entry) = self.table.get(own.id)
            {
                own.idle_rings.rang(traffic(&*entry.port), behind, now);
            }
        }
    }

    /// How many of the own ports have rung for nothing too often.
    fn far_behind(&self, now: u64) -> u64 {
        self.own.iter().filter(|own| own.idle_rings.is_far_behind(now)).count() as u64
    }

    /// Stops listening to ports that ring for nothing, and listens again to those that have
    /// stopped. True if some are not listened to.
    fn mute(&mut self) -> bool {
        let now = clock(&self.shared);
        let behind = self.far_behind(now);
        let mut any = false;
        for own in &mut self.own {
            if own.idle_rings.owes(now)
                && let Some(entry) = self.table.get(own.id)
            {
                own.idle_rings.pay(traffic(&*entry.port), behind, now);
            }
            let changes = own.idle_rings.changes(now);
            any |= own.idle_rings.is_muted();
            if changes {
                let flags = own.flags();
                for fd in &own.watched {
                    let _ = epoll::modify(&self.epoll, fd.as_fd(), own.data(), flags);
                }
            }
        }
        any
    }

    /// Arms every doorbell, looks once more, sleeps; then disarms.
    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        self.ask_for_room();
        let muted = self.mute();
        self.being_changed = false;
        // Arming waits until no other thread uses the port, or says that there is something to do.
        if self.timed(|run, now| run.arm(now) || run.passed_by() || run.room_came(now))
            || self.slot.mail_waits()
        {
            self.disarm();
            return;
        }
        self.slot.pulse.fetch_or(1, Ordering::SeqCst);
        let woken = self.wait_for_work(events, muted);
        self.slot.pulse.fetch_and(!1, Ordering::SeqCst);
        self.shared.watchdog.awake();
        self.disarm();
        if woken == Woken::Rang || muted {
            self.wake_those_who_want_room();
        }
    }

    /// Sleeps until there may be something to do. Ports that ring are left armed while those that
    /// do not are looked at, all of them at each look: the price of a mapped doorbell is one short
    /// wake-up in an interval.
    fn wait_for_work(&mut self, events: &mut Vec<epoll::Event>, muted: bool) -> Woken {
        let looks = muted || self.being_changed;
        let look = looks.then_some(idle_rings::POLL);
        let room = self.held_ns.and_then(|ns| self.room_poll(Duration::from_nanos(ns)));
        loop {
            let left = |due: u64| Duration::from_nanos(due.saturating_sub(clock(&self.shared)));
            let due = self.due.map(left);
            let nap = self.nap.map(left);
            let others = due.into_iter().chain(self.poll.timeout()).chain(nap).chain(look);
            let timeout = room.into_iter().chain(others).min();
            let woken = self.wait(events, timeout);
            self.forwarder.awake(clock(&self.shared));
            let waits = self.held_ns.is_some() || due.is_some() || looks;
            if woken != Woken::Late || waits || nap.is_some() || self.arm_polled() {
                return woken;
            }
            self.poll.missed();
        }
    }

    /// How long the worker may sleep with held frames: `most`, or less if a receiver posts buffers
    /// without a doorbell. Their sender is held up meanwhile.
    fn room_poll(&self, most: Duration) -> Option<Duration> {
        let ports = self.blocked.iter().filter_map(|id| self.table.get(*id));
        let silent = ports.filter(|e| e.port.posts_silently());
        let often = silent.map(|e| {
            e.port
                .poll_interval()
                .map_or(mapped_doorbells::FIRST, |i| i.min(mapped_doorbells::FIRST))
        });
        often.chain([most]).min()
    }

    /// True if some port has frames already, to be had. All are armed in any case, but for those
    /// that nap.
    fn arm(&mut self, now: u64) -> bool {
        self.poll.begin();
        self.nap = None;
        let mut any = false;
        for own in self.own.iter_mut().filter(|o| o.paused_until <= now) {
            let Some(entry) = self.table.get(own.id) else { continue };
            if let Some(until) = own.naps.next(&*entry.port, now) {
                self.nap = earlier(self.nap, until);
            } else if own.arm(&*entry.port, &mut self.forwarder, now) {
                match entry.port.is_being_changed() {
                    true => self.being_changed = true,
                    false => any = true,
                }
            }
            self.poll.add(own.id, &*entry.port);
        }
        self.poll.end();
        any
    }

    /// Runs `touch`, which touches memory of all ports beside their breaths.
    fn timed<T>(&mut self, touch: impl FnOnce(&mut Self, u64) -> T) -> T {
        let now = clock(&self.shared);
        let unseen = self.times.unseen(now);
        self.took(unseen, now);
        let begun = self.forwarder.begin_round(now);
        let done = touch(self, now);
        self.forwarder.end_round(begun);
        let over = clock(&self.shared);
        self.took(over.saturating_sub(now), over);
        done
    }

    /// Something that touches memory of all ports took `ns` until now.
    fn took(&mut self, ns: u64, now: u64) {
        if ns >= breath_times::usual(self.own.len()) {
            self.forwarder.took_long(None, ns, now);
        }
    }

    /// True if held frames were passed by. They are looked for once more, or nobody would ask for
    /// room for them.
    fn passed_by(&mut self) -> bool {
        self.own.iter_mut().fold(false, |any, own| std::mem::take(&mut own.passed_by) | any)
    }

    /// As [`Run::arm`], for those ports that must be looked at.
    fn arm_polled(&mut self) -> bool {
        self.timed(|run, now| {
            let polled = run.own.iter().filter(|own| run.poll.ports().contains(&own.id));
            let polled = polled.filter_map(|own| Some((own, run.table.get(own.id)?)));
            let forwarder = &mut run.forwarder;
            polled.fold(false, |any, (own, entry)| own.arm(&*entry.port, forwarder, now) | any)
        })
    }

    /// The worker is awake, again or still: takes all wishes back, but for those of ports that it
    /// does not look at.
    fn disarm(&mut self) {
        self.slot.wants_room.store(false, Ordering::Relaxed);
        self.timed(|run, now| {
            for own in run.own.iter().filter(|own| own.paused_until <= now) {
                let Some(entry) = run.table.get(own.id) else { continue };
                own.disarm(&*entry.port, &mut run.forwarder, now);
            }
        });
    }

    fn ask_for_room(&mut self) {
        self.blocked.clear();
        self.forwarder.take_blocked(&mut self.blocked);
        if self.held_ns.is_some() {
            self.slot.wants_room.store(true, Ordering::SeqCst);
        }
    }

    fn room_came(&mut self, now: u64) -> bool {
        let mut any = false;
        let blocked = self.blocked.iter().filter(|_| self.held_ns.is_some());
        for id in blocked {
            let Some(entry) = self.table.get(*id) else { continue };
            match self.forwarder.touches((*id, &*entry.port), now, |port| port.want_room()) {
                false => {}
                true if entry.port.is_being_changed() => self.being_changed = true,
                true => any = true,
            }
        }
        any
    }

    /// Sleeps until something rings.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) -> Woken {
        events.clear();
        let timeout = timeout.and_then(|t| rustix::event::Timespec::try_from(t).ok());
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(0) => return Woken::Late,
            Ok(_) => {}
            Err(_) => return Woken::Called,
        }
        let mut woken = Woken::Called;
        for event in events.iter() {
            let index =
                usize::try_from(event.data.u64()).ok().filter(|_| event.data.u64() != ALARM);
            let id = index.and_then(PortId::new);
            let entry = id.and_then(|id| self.table.get(id));
            if let Some(entry) = entry {
                entry.port.rang();
                woken = Woken::Rang;
                let own = self.own.iter_mut().find(|own| Some(own.id) == id);
                own.into_iter().for_each(|own| own.rang = true);
                self.rang = true;
            }
        }
        woken
    }

    /// A busy worker needs no doorbells, but others may sleep until one of ours rings.
    fn listen_for_others(&mut self, events: &mut Vec<epoll::Event>, now: u64) {
        if now < self.listens {
            return;
        }
        self.listens = now.saturating_add(LISTEN);
        let any = self.who_want_room().next().is_some();
        if any && self.wait(events, Some(Duration::ZERO)) == Woken::Rang {
            self.wake_those_who_want_room();
        }
    }

    /// The doorbell may have been for receive buffers that another worker's frames wait for.
    fn wake_those_who_want_room(&self) {
        self.who_want_room().for_each(Mailbox::wake);
    }

    fn who_want_room(&self) -> impl Iterator<Item = &Mailbox> {
        let others = self.shared.slots.iter().filter(|s| s.index() != self.slot.index());
        others.filter(|s| s.wants_room.load(Ordering::SeqCst)).map(|s| &**s)
    }

    fn read_mail(&mut self) {
        if let Some(new) = self.slot.take() {
            self.change_ports(new);
        }
        for (to, frame) in self.slot.take_errands() {
            self.forwarder.send(&self.table, to, &frame, clock(&self.shared));
        }
        let mut all = std::mem::take(&mut self.own);
        all.iter_mut().for_each(|own| self.watch(own));
        self.own = all;
    }

    /// Takes the new table. Ports that are in the old one too stay watched: policies change often,
    /// ports do not.
    fn change_ports(&mut self, new: Assignment) {
        let mut old = std::mem::take(&mut self.own);
        for (id, lanes) in new.own {
            let port = |table: &Table| table.get(id).map(|e| Arc::as_ptr(&e.port).cast::<()>());
            let same = port(&self.table) == port(&new.table);
            let kept = old.iter().position(|o| o.id == id && o.lanes == lanes).filter(|_| same);
            let own = kept.map_or_else(|| Own::new(id, lanes), |i| old.swap_remove(i));
            self.own.push(Own { paused_until: 0, ..own });
        }
        old.iter_mut().for_each(|own| self.unwatch(own));
        self.table = new.table;
        self.forwarder.grow(&self.table);
        self.slot.took(new.generation);
    }

    /// Watches the doorbells that the port has now.
    fn watch(&self, own: &mut Own) {
        let Some(entry) = self.table.get(own.id) else { return };
        let version = entry.port.doorbells_version();
        if own.version == Some(version) {
            return;
        }
        self.unwatch(own);
        own.version = Some(version);
        for fd in own.lanes.iter().flat_map(|lane| entry.port.doorbells(*lane)) {
            match epoll::add(&self.epoll, fd.as_fd(), own.data(), own.flags()) {
                Ok(()) => own.watched.push(fd),
                Err(e) => log::warn!("port {}: a doorbell cannot be watched: {e}", entry.name),
            }
        }
    }

    fn unwatch(&self, own: &mut Own) {
        for fd in own.watched.drain(..) {
            let _ = epoll::delete(&self.epoll, fd.as_fd());
        }
    }

    fn unwatch_all(&mut self) {
        let mut all = std::mem::take(&mut self.own);
        all.iter_mut().for_each(|own| self.unwatch(own));
    }
}
