//! Memory that makes workers sleep.
//!
//! A worker that touches a page of a guest's sleeps in the kernel while a hole is being made there,
//! or while it is read from a disk. Everybody whose worker that is sleeps as well. A share of the
//! worker's time is too much for that: who has twenty ports would have twenty shares. So such sleep
//! is dear. A port whose memory caused more than [`FREE`] of it is passed over for [`PRICE`] times
//! as long: nothing is taken from it, and what is for it is dropped as for a full receiver.
//!
//! To tell sleep in page faults from other sleep, and from time that the host gave to others, takes
//! a system call. So nothing is measured until something took long ([`Stalls::took_long`]). To tell
//! whose memory it was takes a copy: frames of a suspect are copied while only its own memory is
//! touched, and are delivered from there. So nobody pays for the memory of others.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Batch, Verdict};
use vmlan_ram::Slice;

use crate::{MAX_PORTS, PortId};

/// For so many times as long a port is passed over. What all ports together cause is that part of a
/// worker's time.
const PRICE: u64 = 128;
/// What a port may cause without being passed over, in nanoseconds. It comes back with time.
const FREE: u64 = 4_000_000;
/// How long everything is measured after something took long, in nanoseconds.
const WATCHED: u64 = 10_000_000_000;
/// How long a port is suspected after its memory, or that of a port which it shared a breath with,
/// made a worker sleep.
const SUSPECTED: u64 = 60_000_000_000;

/// What a thread has used and done since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Nanoseconds on the clock.
    pub elapsed: u64,
    /// Nanoseconds of a processor.
    pub processor: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Page faults.
    pub faults: u64,
}

impl Usage {
    /// What was used from `self` to `later`.
    fn until(self, later: Self) -> Self {
        Self {
            elapsed: later.elapsed.saturating_sub(self.elapsed),
            processor: later.processor.saturating_sub(self.processor),
            sleeps: later.sleeps.saturating_sub(self.sleeps),
            faults: later.faults.saturating_sub(self.faults),
        }
    }

    fn and(self, more: Self) -> Self {
        Self {
            elapsed: self.elapsed.saturating_add(more.elapsed),
            processor: self.processor.saturating_add(more.processor),
            sleeps: self.sleeps.saturating_add(more.sleeps),
            faults: self.faults.saturating_add(more.faults),
        }
    }

    /// Nanoseconds in which the thread did not run, if it slept and had page faults.
    fn stalled(self) -> u64 {
        let slept = self.sleeps > 0 && self.faults > 0;
        if slept { self.elapsed.saturating_sub(self.processor) } else { 0 }
    }
}

/// What ports have to wait for. Shared by all workers; an update that is lost in a race is made up
/// for by the next one.
#[derive(Debug)]
pub(crate) struct Debts {
    /// When each port's sleep will be paid for.
    paid: Box<[AtomicU64]>,
    /// The latest of them: with none in the future nothing else is looked at.
    latest: AtomicU64,
}

impl Debts {
    pub(crate) fn new() -> Self {
        let paid = (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect();
        Self { paid, latest: AtomicU64::new(0) }
    }

    #[allow(clippy::indexing_slicing)] // a PortId is below MAX_PORTS, the length of `paid`
    fn paid(&self, port: PortId) -> &AtomicU64 {
        &self.paid[port.index()]
    }

    pub(crate) fn reset(&self, port: PortId) {
        self.paid(port).store(0, Ordering::Relaxed);
    }

    /// Nanoseconds for which the port is still passed over.
    #[inline]
    pub(crate) fn left(&self, port: PortId, now: u64) -> Option<u64> {
        let due = now.saturating_add(FREE * PRICE);
        if self.latest.load(Ordering::Relaxed) <= due {
            return None;
        }
        self.paid(port).load(Ordering::Relaxed).checked_sub(due).filter(|left| *left > 0)
    }

    /// The memory of `port` made a worker sleep for `stalled` nanoseconds. Those who have to wait
    /// just now share what one may cause.
    fn charge(&self, port: PortId, stalled: u64, now: u64) {
        let due = now.saturating_add(FREE * PRICE);
        let waits = |paid: &&AtomicU64| paid.load(Ordering::Relaxed) > due;
        let others = self.paid.iter().filter(waits).count() as u64;
        let price = stalled.saturating_mul(PRICE).saturating_mul(others.max(1));
        let paid = self.paid(port);
        let until = paid.load(Ordering::Relaxed).max(now).saturating_add(price);
        paid.store(until, Ordering::Relaxed);
        self.latest.fetch_max(until, Ordering::Relaxed);
    }
}

/// How a worker finds out. Without a way to measure it never does.
#[derive(Default)]
pub(crate) struct Stalls {
    usage: Option<Box<dyn Fn() -> Usage + Send>>,
    /// Until then everything is measured.
    watched: u64,
    /// Until when ports are suspected.
    suspected: Vec<u64>,
    /// Who was handed frames of this breath out of their sender's memory.
    mixed: Vec<PortId>,
    /// What was used in this breath to hand frames to others.
    pushing: Usage,
    copy: Copied,
}

impl Stalls {
    pub(crate) fn measured_by(usage: impl Fn() -> Usage + Send + 'static) -> Self {
        let usage: Box<dyn Fn() -> Usage + Send> = Box::new(usage);
        Self { usage: Some(usage), suspected: vec![0; MAX_PORTS], ..Self::default() }
    }

    /// Something that touches ports' memory took long: from now on it is measured.
    pub(crate) fn took_long(&mut self, now: u64) {
        self.watched = now.saturating_add(WATCHED);
    }

    /// What was used so far, if that is measured.
    #[inline]
    pub(crate) fn usage(&self, now: u64) -> Option<Usage> {
        if now < self.watched { self.usage.as_ref().map(|usage| usage()) } else { None }
    }

    /// True if something is measured at `now`.
    #[inline]
    pub(crate) fn is_watching(&self, now: u64) -> bool {
        now < self.watched && self.usage.is_some()
    }

    fn suspect(&mut self, port: PortId, now: u64) {
        if let Some(until) = self.suspected.get_mut(port.index()) {
            *until = now.saturating_add(SUSPECTED);
        }
    }

    fn is_suspected(&self, port: PortId, now: u64) -> bool {
        self.suspected.get(port.index()).is_some_and(|until| *until > now)
    }

    /// True if frames of `source` for `receivers` are to be copied first. Else it is not known
    /// whose memory it was if this breath stalls.
    pub(crate) fn copies(&mut self, source: PortId, receivers: &[PortId], now: u64) -> bool {
        let copies = [source].iter().chain(receivers).any(|port| self.is_suspected(*port, now));
        if !copies {
            self.mixed.extend(receivers);
        }
        copies
    }

    /// Frames that were copied were handed to `to`, from when `before` was used until now. Says
    /// what is used now.
    pub(crate) fn pushed(&mut self, debts: &Debts, to: PortId, before: Usage, now: u64) -> Usage {
        let Some(after) = self.usage(now) else { return before };
        let used = before.until(after);
        self.pushing = self.pushing.and(used);
        self.touched(debts, to, used, now);
        after
    }

    /// A breath of `source` is over, which began when `before` was used.
    pub(crate) fn breathed(&mut self, debts: &Debts, source: PortId, before: Usage, now: u64) {
        let Some(after) = self.usage(now) else { return };
        let pushing = std::mem::take(&mut self.pushing);
        let mut mixed = std::mem::take(&mut self.mixed);
        if mixed.is_empty() {
            self.touched(debts, source, before.and(pushing).until(after), now);
        } else if before.until(after).stalled() > 0 {
            self.took_long(now);
            mixed.iter().chain([&source]).for_each(|port| self.suspect(*port, now));
        }
        mixed.clear();
        self.mixed = mixed;
    }

    /// As much was `used` for what touched memory of `port` alone.
    fn touched(&mut self, debts: &Debts, port: PortId, used: Usage, now: u64) {
        let stalled = used.stalled();
        if stalled > 0 {
            self.took_long(now);
            self.suspect(port, now);
            debts.charge(port, stalled, now);
        }
    }

    pub(crate) fn take_copy(&mut self) -> Copied {
        std::mem::take(&mut self.copy)
    }

    pub(crate) fn give_back(&mut self, copy: Copied) {
        self.copy = copy;
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
        if spare.has_room(1) {
            spare.clear();
        } else {
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
        for frame in (0..batch.len()).filter_map(|i| batch.frame(i)) {
            let (bytes, behind) = rest.split_at(frame.len.min(rest.len()));
            rest = behind;
            let body = bytes.get(frame.head.len()..).unwrap_or_default();
            let body = (!body.is_empty()).then(|| Slice::from_bytes(body));
            // As many frames as there were, with fewer pieces: there is room.
            let _ = copy.add_parts(frame.head, body, frame.offload);
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
