//! Memory that makes workers sleep.
//!
//! A worker that touches a page of a guest's sleeps in the kernel while a hole is being made there,
//! or while it is read from a disk. Everybody whose worker that is sleeps as well. A share of the
//! worker's time is too much for that: who has twenty ports would have twenty shares. So such sleep
//! is dear. A port whose memory caused more than [`FREE`] of it is passed over for [`PRICE`] times
//! as long: nothing is taken from it, and what is for it is dropped as for a full receiver.
//!
//! To tell sleep in page faults from time that the host gave to others takes a system call. So it
//! is found out in steps, of which each goes on for [`PRICE`] times as long as what led to it:
//!
//! 1. something took long: each round of a worker is measured. A few are at any time;
//! 2. a round slept in a page fault: each breath is measured;
//! 3. a breath did: its port is a suspect. Frames of a suspect, and frames for one, are copied
//!    while only their sender's memory is touched, and are delivered from there. So each part of a
//!    breath touches one port's memory;
//! 4. a part did: its port pays.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Batch, Verdict};
use vmlan_ram::Slice;

use crate::{MAX_PORTS, PortId};

/// For so many times as long a port is passed over. What all ports together cause is about that
/// part of a worker's time.
const PRICE: u64 = 128;
/// What a port may cause without being passed over, in nanoseconds. It comes back with time.
const FREE: u64 = 4_000_000;
/// How long rounds and breaths are measured at least, in nanoseconds.
const WATCHED: u64 = 10_000_000_000;
/// How long a port is a suspect at least, in nanoseconds.
const SUSPECTED: u64 = 60_000_000_000;
/// One round in so many is measured at any time. The clock's last bits pick it, which no guest
/// knows.
const SAMPLE: u64 = 256;
/// Shorter sleep is not told from what measuring itself takes, in nanoseconds.
const SHORT: u64 = 20_000;

/// What a thread has used and done since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Nanoseconds on the clock.
    pub elapsed: u64,
    /// Nanoseconds of a processor.
    pub processor: u64,
    /// Nanoseconds of waiting for locks of ports.
    pub locks: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Page faults.
    pub faults: u64,
}

impl Usage {
    fn each(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            elapsed: each(self.elapsed, other.elapsed),
            processor: each(self.processor, other.processor),
            locks: each(self.locks, other.locks),
            sleeps: each(self.sleeps, other.sleeps),
            faults: each(self.faults, other.faults),
        }
    }

    /// What was used from `self` to `later`.
    fn until(self, later: Self) -> Self {
        later.each(self, u64::saturating_sub)
    }

    fn and(self, more: Self) -> Self {
        self.each(more, u64::saturating_add)
    }

    /// Nanoseconds of sleep, if there were page faults that may be the reason.
    fn stalled(self) -> u64 {
        if self.sleeps == 0 || self.faults == 0 {
            return 0;
        }
        let awake = self.processor.saturating_add(self.locks);
        let slept = self.elapsed.saturating_sub(awake);
        if slept < SHORT { 0 } else { slept }
    }
}

/// What all workers know. An update that is lost in a race is made up for by the next one.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// When each port's sleep will be paid for.
    paid: Box<[AtomicU64]>,
    /// The latest of them: with none in the future nothing else is looked at.
    latest: AtomicU64,
    /// Until when each port is a suspect.
    suspected: Box<[AtomicU64]>,
    /// Until when rounds are measured.
    rounds: AtomicU64,
    /// Until when breaths are.
    breaths: AtomicU64,
    /// Who paid last, found by which worker, and when that sleep was over.
    last: AtomicU64,
    last_over: AtomicU64,
}

impl Stalls {
    pub(crate) fn new() -> Self {
        let zeros = || (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect();
        Self {
            paid: zeros(),
            latest: AtomicU64::new(0),
            suspected: zeros(),
            rounds: AtomicU64::new(0),
            breaths: AtomicU64::new(0),
            last: AtomicU64::new(0),
            last_over: AtomicU64::new(0),
        }
    }

    #[allow(clippy::indexing_slicing)] // a PortId is below MAX_PORTS, the length of both
    fn of(all: &[AtomicU64], port: PortId) -> &AtomicU64 {
        &all[port.index()]
    }

    pub(crate) fn forget(&self, port: PortId) {
        Self::of(&self.paid, port).store(0, Ordering::Relaxed);
        Self::of(&self.suspected, port).store(0, Ordering::Relaxed);
    }

    /// Nanoseconds for which the port is still passed over.
    #[inline]
    pub(crate) fn left(&self, port: PortId, now: u64) -> Option<u64> {
        let due = now.saturating_add(FREE * PRICE);
        if self.latest.load(Ordering::Relaxed) <= due {
            return None;
        }
        let paid = Self::of(&self.paid, port).load(Ordering::Relaxed);
        paid.checked_sub(due).filter(|left| *left > 0)
    }

    /// Something that touches ports' memory took `ns`.
    pub(crate) fn took_long(&self, ns: u64, now: u64) {
        let watched = ns.saturating_mul(PRICE).max(WATCHED);
        self.rounds.fetch_max(now.saturating_add(watched), Ordering::Relaxed);
    }

    fn slept(&self, ns: u64, now: u64) {
        self.took_long(ns, now);
        let watched = ns.saturating_mul(PRICE).max(WATCHED);
        self.breaths.fetch_max(now.saturating_add(watched), Ordering::Relaxed);
    }

    fn are_later(all: &[AtomicU64], than: u64) -> u64 {
        all.iter().filter(|at| at.load(Ordering::Relaxed) > than).count() as u64
    }

    /// It may have been memory of `port`. Suspects share what one may cause.
    fn suspect(&self, port: PortId, ns: u64, now: u64) {
        self.slept(ns, now);
        let others = Self::are_later(&self.suspected, now).max(1);
        let price = ns.saturating_mul(PRICE).saturating_mul(others).max(SUSPECTED);
        let until = now.saturating_add(price);
        Self::of(&self.suspected, port).fetch_max(until, Ordering::Relaxed);
    }

    fn is_suspect(&self, port: PortId, now: u64) -> bool {
        Self::of(&self.suspected, port).load(Ordering::Relaxed) > now
    }

    /// It was memory of `port`, found by a worker at `now`, and over at `over`.
    ///
    /// A page fault may wait for another one, of a worker that sleeps: that one's port pays, which
    /// is told of first.
    fn charge(&self, (port, worker): (PortId, u64), ns: u64, (now, over): (u64, u64)) {
        self.suspect(port, ns, now);
        let who = worker << 16 | u64::from(port.number());
        let last = self.last.load(Ordering::Relaxed);
        let of_another = last >> 16 != worker && last & 0xffff != who & 0xffff;
        if of_another && self.last_over.load(Ordering::Relaxed) > now {
            return;
        }
        self.last.store(who, Ordering::Relaxed);
        self.last_over.store(over, Ordering::Relaxed);
        let due = now.saturating_add(FREE * PRICE);
        let price = ns.saturating_mul(PRICE);
        let paid = Self::of(&self.paid, port);
        let mut until = paid.load(Ordering::Relaxed).max(now).saturating_add(price);
        // Beyond what is free, those who are passed over share what one may cause.
        let beyond = until.saturating_sub(due).min(price);
        let others = Self::are_later(&self.paid, due).saturating_sub(1);
        until = until.saturating_add(beyond.saturating_mul(others));
        paid.store(until, Ordering::Relaxed);
        self.latest.fetch_max(until, Ordering::Relaxed);
    }
}

/// How a worker finds out. Without a way to measure it never does.
#[derive(Default)]
pub(crate) struct Measuring {
    usage: Option<Box<dyn Fn() -> Usage + Send>>,
    worker: u64,
    /// When this breath began, if it is measured.
    began: Option<Usage>,
    /// Frames of it were handed to others out of their sender's memory.
    mixed: bool,
    /// What was used in it to hand frames to others.
    pushing: Usage,
    copy: Copied,
}

impl Measuring {
    pub(crate) fn by(usage: impl Fn() -> Usage + Send + 'static) -> Self {
        static WORKERS: AtomicU64 = AtomicU64::new(1);
        Self {
            usage: Some(Box::new(usage)),
            worker: WORKERS.fetch_add(1, Ordering::Relaxed),
            ..Self::default()
        }
    }

    fn used(&self) -> Option<Usage> {
        self.usage.as_ref().map(|usage| usage())
    }

    /// A round begins, or something else that touches ports' memory: what was used before it, if
    /// it is measured.
    #[inline]
    pub(crate) fn round(&self, all: &Stalls, now: u64) -> Option<Usage> {
        let watched = now < all.rounds.load(Ordering::Relaxed) || now.is_multiple_of(SAMPLE);
        if watched { self.used() } else { None }
    }

    /// It is over.
    pub(crate) fn round_is_over(&self, all: &Stalls, before: Usage, now: u64) {
        let stalled = self.used().map_or(0, |after| before.until(after).stalled());
        if stalled > 0 {
            all.slept(stalled, now);
        }
    }

    /// A breath begins, or something else that touches memory of one port.
    #[inline]
    pub(crate) fn begin(&mut self, all: &Stalls, now: u64) {
        let measured = now < all.breaths.load(Ordering::Relaxed);
        self.began = if measured { self.used() } else { None };
    }

    /// It is measured.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.began.is_some()
    }

    /// It is over, and was of `port`.
    #[inline]
    pub(crate) fn end(&mut self, all: &Stalls, port: PortId, now: u64) {
        if self.began.is_some() {
            self.end_measured(all, port, now);
        }
    }

    #[cold]
    fn end_measured(&mut self, all: &Stalls, port: PortId, now: u64) {
        let (mixed, pushing) = (std::mem::take(&mut self.mixed), std::mem::take(&mut self.pushing));
        let (Some(began), Some(after)) = (self.began, self.used()) else { return };
        match began.until(after).stalled() {
            0 => {}
            ns if mixed => all.suspect(port, ns, now),
            _ => self.charge(all, port, began.and(pushing).until(after), (after, now)),
        }
        self.began = None;
    }

    /// Charges `port` for what was `used` until `after`, in a breath of `now`.
    fn charge(&self, all: &Stalls, port: PortId, used: Usage, (after, now): (Usage, u64)) {
        let ns = used.stalled();
        if ns > 0 {
            let took = self.began.map_or(0, |began| began.until(after).elapsed);
            all.charge((port, self.worker), ns, (now, now.saturating_add(took)));
        }
    }

    /// Frames of `source` for `receivers` are to be copied first. Else it is not known whose memory
    /// it was if this breath sleeps.
    pub(crate) fn copies<'p>(
        &mut self,
        all: &Stalls,
        source: PortId,
        mut receivers: impl Iterator<Item = &'p PortId>,
        now: u64,
    ) -> Option<Copied> {
        if all.is_suspect(source, now) || receivers.any(|port| all.is_suspect(*port, now)) {
            return Some(std::mem::take(&mut self.copy));
        }
        self.mixed = true;
        None
    }

    pub(crate) fn give_back(&mut self, copy: Copied) {
        self.copy = copy;
    }

    /// Copied frames are handed to others from now on.
    pub(crate) fn push(&self) -> Usage {
        self.used().unwrap_or_default()
    }

    /// That was done for `to`, or for somebody without memory, since `before` was used. Says what
    /// is used now.
    pub(crate) fn pushed(
        &mut self,
        all: &Stalls,
        to: Option<PortId>,
        before: Usage,
        now: u64,
    ) -> Usage {
        let Some(after) = self.used() else { return before };
        let used = before.until(after);
        self.pushing = self.pushing.and(used);
        if let Some(to) = to {
            self.charge(all, to, used, (after, now));
        }
        after
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
