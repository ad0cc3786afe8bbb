//! Memory that makes workers sleep.
//!
//! A worker that touches a page of a guest's sleeps in the kernel while a hole is being made there,
//! or while it is read from a disk. Everybody whose worker that is sleeps as well. A share of the
//! worker's time is too much for that: who has twenty ports would have twenty shares. So such sleep
//! is dear. A port whose memory caused more than [`FREE`] of it is passed over for [`PRICE`] times
//! as long: nothing is taken from it, and what is for it is dropped as for a full receiver.
//!
//! To tell sleep in page faults from time that the host gave to others takes a system call. It is
//! made when something took long. If the worker has slept over page faults, the port is a *suspect*
//! for [`PRICE`] times as long, and the *alarm* is on: for as long, breaths of all ports are timed
//! more closely. A suspect is measured: its frames, and frames for one, are copied while only their
//! sender's memory is touched, and are delivered from there. So each part of a breath touches one
//! port's memory, and its sleep is charged to that port. What is too short to be noticed is found
//! by measuring a round of a worker now and then.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Batch, Verdict};
use vmlan_ram::Slice;

use crate::{MAX_PORTS, PortId};

/// For so many times as long a port is passed over. What it causes is about that part of a worker's
/// time.
pub(crate) const PRICE: u64 = 128;
/// What a port may cause without being passed over, in nanoseconds. It comes back with time. On a
/// busy machine an honest guest's first page faults sleep, too, for a lock of the whole process or
/// for memory, some milliseconds at a time.
const FREE: u64 = 100_000_000;
/// The part of it that a port may cause at least, while others cause some as well: they share it.
const LEAST: u64 = FREE / 10;
/// So many others at most make it longer.
const MOST: u64 = 64;
/// One round in so many is measured at any time. The clock's last bits pick it, which no guest
/// knows.
const SAMPLE: u64 = 256;
/// Less is not looked at, in nanoseconds: a thread that sleeps takes longer to be woken.
const SHORT: u64 = 20_000;

/// What a thread has done since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Nanoseconds of waiting for a processor.
    pub delay: u64,
    /// Nanoseconds of waiting for locks of ports.
    pub locks: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Page faults.
    pub faults: u64,
}

impl Usage {
    /// It slept from then to `later`, and there were page faults.
    fn may_have_stalled(self, later: Self) -> bool {
        later.sleeps > self.sleeps && later.faults > self.faults
    }

    /// Nanoseconds of other waiting from then to `later`.
    fn waited(self, later: Self) -> u64 {
        let sum = |usage: Self| usage.delay.saturating_add(usage.locks);
        sum(later).saturating_sub(sum(self))
    }
}

/// What all workers know. An update that is lost in a race is made up for by the next one.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// When each port's sleep will be paid for.
    paid: Box<[AtomicU64]>,
    /// Until when each port is passed over.
    passed: Box<[AtomicU64]>,
    /// The latest of them: with none in the future nothing else is looked at.
    latest: AtomicU64,
    /// Until when each port is a suspect.
    suspected: Box<[AtomicU64]>,
    /// Until when the alarm is on, as while there are suspects.
    alarmed: AtomicU64,
    /// Until when rounds are measured.
    rounds: AtomicU64,
    /// Who slept last in whose memory, and from when to when.
    last: AtomicU64,
    last_began: AtomicU64,
    last_over: AtomicU64,
}

impl Stalls {
    pub(crate) fn new() -> Self {
        let zeros = || (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect();
        Self {
            paid: zeros(),
            passed: zeros(),
            latest: AtomicU64::new(0),
            suspected: zeros(),
            alarmed: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            last: AtomicU64::new(0),
            last_began: AtomicU64::new(0),
            last_over: AtomicU64::new(0),
        }
    }

    #[allow(clippy::indexing_slicing)] // a PortId is below MAX_PORTS, the length of both
    fn of(all: &[AtomicU64], port: PortId) -> &AtomicU64 {
        &all[port.index()]
    }

    pub(crate) fn forget(&self, port: PortId) {
        Self::of(&self.paid, port).store(0, Ordering::Relaxed);
        Self::of(&self.passed, port).store(0, Ordering::Relaxed);
        Self::of(&self.suspected, port).store(0, Ordering::Relaxed);
    }

    /// Nanoseconds for which the port is still passed over.
    #[inline]
    pub(crate) fn left(&self, port: PortId, now: u64) -> Option<u64> {
        if self.latest.load(Ordering::Relaxed) <= now {
            return None;
        }
        let until = Self::of(&self.passed, port).load(Ordering::Relaxed);
        until.checked_sub(now).filter(|left| *left > 0)
    }

    /// Something that touches memory of several ports took `ns`.
    pub(crate) fn took_long(&self, ns: u64, now: u64) {
        let until = now.saturating_add(ns.saturating_mul(PRICE));
        self.rounds.fetch_max(until, Ordering::Relaxed);
    }

    /// Memory was slow for `ns`.
    fn alarm(&self, ns: u64, now: u64) {
        let until = now.saturating_add(ns.saturating_mul(PRICE));
        self.alarmed.fetch_max(until, Ordering::Relaxed);
    }

    fn are_later(all: &[AtomicU64], than: u64) -> u64 {
        all.iter().filter(|at| at.load(Ordering::Relaxed) > than).count() as u64
    }

    /// A breath of `port` took `ns`: it may have been its memory, or that of who got its frames.
    /// Suspects share what one may cause.
    pub(crate) fn suspect(&self, port: PortId, ns: u64, now: u64) {
        let others = Self::are_later(&self.suspected, now).clamp(1, MOST);
        let price = ns.saturating_mul(PRICE).saturating_mul(others);
        let until = now.saturating_add(price);
        Self::of(&self.suspected, port).fetch_max(until, Ordering::Relaxed);
        self.alarmed.fetch_max(until, Ordering::Relaxed);
    }

    /// The alarm is on: there may be suspects.
    #[inline]
    pub(crate) fn are_some(&self, now: u64) -> bool {
        self.alarmed.load(Ordering::Relaxed) > now
    }

    fn is_suspect(&self, port: PortId, now: u64) -> bool {
        Self::of(&self.suspected, port).load(Ordering::Relaxed) > now
    }

    /// It was memory of `port`, in which `worker` slept for `ns` between `began` and `over`.
    ///
    /// A page fault may wait for another one, of a worker that sleeps: what both slept at the same
    /// time is paid for once.
    fn charge(&self, (port, worker): (PortId, u64), ns: u64, (began, over): (u64, u64)) {
        let who = worker << 16 | u64::from(port.number());
        let last = self.last.swap(who, Ordering::Relaxed);
        let last_began = self.last_began.swap(began, Ordering::Relaxed);
        let last_over = self.last_over.swap(over, Ordering::Relaxed);
        let of_another = last >> 16 != worker && last & 0xffff != who & 0xffff;
        let both = last_over.min(over).saturating_sub(last_began.max(began));
        let ns = if of_another { ns.saturating_sub(both) } else { ns };
        let price = ns.saturating_mul(PRICE);
        let paid = Self::of(&self.paid, port);
        let before = paid.load(Ordering::Relaxed);
        // Those who are passed over cause nothing.
        let passed = Self::are_later(&self.passed, over);
        let in_debt = Self::are_later(&self.paid, over) + u64::from(before <= over);
        let free = (FREE / in_debt.saturating_sub(passed).max(1)).max(LEAST);
        let due = over.saturating_add(free * PRICE);
        let mut until = before.max(over).saturating_add(price);
        // Beyond what is free, those who are passed over again and again share what one may cause.
        let again = before > over.saturating_sub(price);
        let beyond = until.saturating_sub(due).min(price);
        let others = Self::are_later(&self.paid, due).saturating_sub(1).min(MOST);
        if again {
            until = until.saturating_add(beyond.saturating_mul(others));
        }
        paid.store(until, Ordering::Relaxed);
        if let Some(left) = until.checked_sub(due) {
            let passed = over.saturating_add(left);
            Self::of(&self.passed, port).fetch_max(passed, Ordering::Relaxed);
            self.latest.fetch_max(passed, Ordering::Relaxed);
        }
        // When it is back it is measured at once.
        let suspect = until.saturating_add(price);
        Self::of(&self.suspected, port).fetch_max(suspect, Ordering::Relaxed);
        self.alarmed.fetch_max(suspect, Ordering::Relaxed);
    }
}

/// How a worker finds out. Without a way to measure it never does.
#[derive(Default)]
pub(crate) struct Measuring {
    by: Option<By>,
    worker: u64,
    /// What was used when the worker's last sleep of its own was over, or later; if known.
    awake: Option<Usage>,
    /// Until when that is looked at.
    watches: u64,
    /// This breath is of a suspect.
    suspect: bool,
    /// The part of this breath that is being measured.
    part: Option<Part>,
    /// When this breath, which is not measured, began, if it is timed.
    began: Option<u64>,
    copy: Copied,
}

/// The clock that `now` is of, and what the thread has used.
struct By {
    clock: Box<dyn Fn() -> u64 + Send>,
    usage: Box<dyn Fn() -> Usage + Send>,
}

/// When something began that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    at: u64,
    used: Usage,
}

impl Part {
    /// Nanoseconds until `over` for which the thread slept, but for other waiting, if there were
    /// page faults that may be the reason.
    fn stalled(self, over: Self) -> u64 {
        let ns = over.at.saturating_sub(self.at).saturating_sub(self.used.waited(over.used));
        if !self.used.may_have_stalled(over.used) || ns < SHORT { 0 } else { ns }
    }
}

impl Measuring {
    pub(crate) fn by(
        clock: impl Fn() -> u64 + Send + 'static,
        usage: impl Fn() -> Usage + Send + 'static,
    ) -> Self {
        static WORKERS: AtomicU64 = AtomicU64::new(1);
        Self {
            by: Some(By { clock: Box::new(clock), usage: Box::new(usage) }),
            worker: WORKERS.fetch_add(1, Ordering::Relaxed),
            ..Self::default()
        }
    }

    pub(crate) fn clock(&self) -> Option<u64> {
        self.by.as_ref().map(|by| (by.clock)())
    }

    /// Something that is measured begins.
    fn part(&mut self) -> Option<Part> {
        let part = self.by.as_ref().map(|by| Part { at: (by.clock)(), used: (by.usage)() });
        self.awake = part.map(|part| part.used);
        part
    }

    /// The worker has slept of its own accord.
    #[inline]
    pub(crate) fn awake(&mut self, all: &Stalls, now: u64) {
        let watches = now < self.watches || all.are_some(now);
        self.awake = if watches { self.by.as_ref().map(|by| (by.usage)()) } else { None };
    }

    /// Something took `ns` until now. True if it may have been memory, for the most part, and not
    /// that others had the processor: the thread has slept since it was [`awake`](Self::awake), or
    /// since this was asked last. Not known the first time in so long; then it is from now on.
    #[cold]
    pub(crate) fn may_be_memory(&mut self, ns: u64, now: u64) -> bool {
        let Some(by) = &self.by else { return false };
        let used = (by.usage)();
        let before = self.awake.replace(used);
        let slept = before
            .is_some_and(|before| before.may_have_stalled(used) && before.waited(used) <= ns / 2);
        if slept || before.is_none() {
            self.watches = self.watches.max(now.saturating_add(ns.saturating_mul(PRICE)));
        }
        slept
    }

    /// A round begins, or something else that touches ports' memory, if it is measured.
    #[inline]
    pub(crate) fn round(&mut self, all: &Stalls, now: u64) -> Option<Part> {
        let measured = now < all.rounds.load(Ordering::Relaxed) || now.is_multiple_of(SAMPLE);
        if measured { self.part() } else { None }
    }

    /// It is over.
    pub(crate) fn round_is_over(&mut self, all: &Stalls, began: Part) {
        let Some(over) = self.part() else { return };
        let stalled = began.stalled(over);
        if stalled > 0 {
            all.took_long(stalled, over.at);
            all.alarm(stalled, over.at);
        }
    }

    /// A breath of a port begins, or something else that touches its memory.
    #[inline]
    pub(crate) fn begin(&mut self, all: &Stalls, port: PortId, now: u64) {
        (self.suspect, self.part, self.began) = (false, None, None);
        if all.are_some(now) {
            self.suspect = all.is_suspect(port, now);
            match self.suspect {
                true => self.part = self.part(),
                false => self.began = self.clock(),
            }
        }
    }

    /// It is over. `guest`: the port's memory is one's.
    #[inline]
    pub(crate) fn end(&mut self, all: &Stalls, port: PortId, guest: bool) {
        if let Some(at) = self.part.map(|part| part.at).or(self.began) {
            let took = self.clock().map_or(0, |now| now.saturating_sub(at));
            if took >= SHORT {
                self.settle(all, port, guest);
            }
            (self.part, self.began) = (None, None);
        }
    }

    /// What was done so far is the port's: of a suspect it touched no other memory. Any other may
    /// have touched its receivers', so it only becomes a suspect.
    #[cold]
    fn settle(&mut self, all: &Stalls, port: PortId, guest: bool) {
        if self.part.is_some() {
            self.part_is_over(all, guest.then_some(port));
        } else if let Some((began, now)) = self.began.take().zip(self.clock()) {
            let took = now.saturating_sub(began);
            if took >= SHORT && self.may_be_memory(took, now) {
                all.suspect(port, took, now);
            }
        }
    }

    /// A part is over that touched the memory of `guest`, or none, and the next one begins.
    fn part_is_over(&mut self, all: &Stalls, guest: Option<PortId>) {
        let before = self.part;
        self.part = self.part();
        let Some((before, over)) = before.zip(self.part) else { return };
        let stalled = before.stalled(over);
        if let Some(port) = guest.filter(|_| stalled > 0) {
            all.charge((port, self.worker), stalled, (before.at, over.at));
        }
    }

    /// Where to copy this breath's frames for `receivers`, if it or one of them is a suspect.
    pub(crate) fn copies<'p>(
        &mut self,
        all: &Stalls,
        mut receivers: impl Iterator<Item = &'p PortId>,
        now: u64,
    ) -> Option<Copied> {
        self.by.as_ref()?;
        let copies = self.suspect || receivers.any(|port| all.is_suspect(*port, now));
        copies.then(|| std::mem::take(&mut self.copy))
    }

    /// Frames of `port` were copied, and are handed to others from now on.
    pub(crate) fn push(&mut self, all: &Stalls, port: PortId, guest: bool) {
        self.settle(all, port, guest);
        if self.part.is_none() {
            self.part = self.part();
        }
    }

    /// That was done for `to`, or for somebody without memory.
    pub(crate) fn pushed(&mut self, all: &Stalls, to: Option<PortId>) {
        self.part_is_over(all, to);
    }

    /// All have them.
    pub(crate) fn give_back(&mut self, copy: Copied) {
        self.copy = copy;
        // What is left is the sender's, and more of its frames may come.
        if !self.suspect {
            self.began = self.part.take().map(|part| part.at);
        }
    }
}

/// Frames in memory of our own. Allocated when the first are copied.
#[derive(Default)]
pub(crate) struct Copied {
    batch: Batch<'static>,
    bytes: Vec<u8>,
}

impl Copied {
    /// Runs `deliver` on a copy of `batch`, and notes there what became of the frames.
    pub(crate) fn deliver(&mut self, batch: &mut Batch<'_>, deliver: impl FnOnce(&mut Batch<'_>)) {
        let Self { batch: spare, bytes } = self;
        if !spare.has_room(1) {
            *spare = Batch::new();
        }
        spare.set_source(batch.source());
        bytes.resize(usize::try_from(batch.bytes()).unwrap_or(0), 0);
        let mut end = 0;
        for frame in (0..batch.len()).filter_map(|i| batch.frame(i)) {
            end += frame.copy_to(bytes.get_mut(end..end + frame.len).unwrap_or_default());
        }
        let mut copy = Batch::take(spare);
        let mut rest = bytes.as_slice();
        for i in 0..batch.len() {
            let Some(frame) = batch.frame(i) else { continue };
            let (bytes, behind) = rest.split_at(frame.len.min(rest.len()));
            rest = behind;
            let body = bytes.get(frame.head.len()..).unwrap_or_default();
            let body = (!body.is_empty()).then(|| Slice::from_bytes(body));
            // As many frames as there were, with fewer pieces: there is room.
            let _ = copy.add_parts(frame.head, body, frame.offload);
            if batch.verdict(i) == Verdict::Held {
                copy.hold(i);
            }
            if let Some(reason) = batch.dropped(i) {
                copy.set_dropped(i, reason);
            }
        }
        deliver(&mut copy);
        for i in 0..batch.len() {
            if copy.verdict(i) == Verdict::Held {
                batch.hold(i);
            }
            if let Some(reason) = copy.dropped(i) {
                batch.set_dropped(i, reason);
            }
        }
        copy.give_back(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn id(n: usize) -> PortId {
        PortId::new(n).unwrap()
    }

    /// `ns` of sleep in memory of a port, from `began` on.
    fn sleep(all: &Stalls, port: usize, worker: u64, ns: u64, began: u64) {
        all.charge((id(port), worker), ns, (began, began + ns));
    }

    #[test]
    fn a_fault_that_waits_for_another_workers_pays_for_its_own_time_only() {
        let all = Stalls::new();
        let over = 2_000 * MS;
        // A short one does not pay for a long one.
        sleep(&all, 1, 1, MS, over - 2 * MS);
        sleep(&all, 2, 2, 300 * MS, over - 300 * MS);
        assert_eq!(all.left(id(1), over), None);
        assert_eq!(all.left(id(2), over), Some((299 - FREE / MS / 2) * PRICE * MS));
        // One that slept while another did has caused nothing.
        sleep(&all, 3, 1, 290 * MS, over - 291 * MS);
        assert_eq!(all.left(id(3), over), None);
        // It is not another one, or there is no other worker.
        for (port, worker) in [(4, 1), (5, 1), (5, 2)] {
            sleep(&all, port, worker, 290 * MS, over - 290 * MS);
            assert!(all.left(id(port), over).is_some());
        }
    }

    #[test]
    fn the_alarm_is_on_for_as_long_as_it_was_worth_and_while_there_are_suspects() {
        let all = Stalls::new();
        all.alarm(25_000, MS);
        assert!(all.are_some(MS + 25_000 * PRICE - 1) && !all.are_some(MS + 25_000 * PRICE));
        assert!(!all.is_suspect(id(2), MS));
        all.suspect(id(3), MS, MS);
        assert!(all.is_suspect(id(3), MS + PRICE * MS - 1) && all.are_some(MS + PRICE * MS - 1));
        assert!(!all.are_some(MS + PRICE * MS));
    }

    #[test]
    fn who_is_slow_for_the_first_time_pays_for_itself_alone() {
        let (all, now) = (Stalls::new(), 1_000_000 * MS);
        for round in 0..2 {
            (10..30).for_each(|port| sleep(&all, port, 1, 150 * MS, now + round * MS));
        }
        sleep(&all, 1, 1, 150 * MS, now);
        // The others are passed over, and cause nothing.
        assert_eq!(all.left(id(1), now + 150 * MS), Some((150 - FREE / MS) * PRICE * MS));
        assert!(all.left(id(29), now + 150 * MS) > Some(20 * 150 * PRICE * MS));
    }
}
