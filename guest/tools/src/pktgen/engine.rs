//! The loop: move frames; when there are none, poll a little, then sleep on the interrupt.

mod fill;
mod functions;
mod outcome;
mod ping;
mod replay;
mod run;
mod share;
mod threads;

use std::time::{Duration, Instant};

use self::outcome::Counts;
use self::ping::Pings;
use self::replay::Replay;
use self::share::Share;
use super::PktGenError;
use super::frame;
use super::options::{Function, Options};
use super::rate_limit::RateLimiter;
use super::report::{Interval, Report};
use vmlan_driver::nic::{Nic, NicError, Registers};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::virtio::VirtioError;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_transport::numbers::nanos;

pub use self::run::run;

/// Longest sleep, so that the stop flag is looked at.
const NAP: Duration = Duration::from_millis(100);
/// How long the last frames may take to leave the transmit rings.
const DRAIN: Duration = Duration::from_secs(1);
/// A sleep usually lasts at most this much longer than asked. A ping polls the clock for that time,
/// or it would be late.
const OVERSLEPT: Duration = Duration::from_micros(100);

/// What the engine keeps for each queue pair.
struct Lane<B> {
    batch: B,
    /// Its number among all lanes of the run.
    queue: u8,
    /// Sums of the prefilled frames, by slot: whole bodies, or without the headers where those
    /// change with each frame.
    bodies: Vec<u64>,
    /// Sizes of the prefilled frames, by slot; empty when all are the same.
    sizes: Vec<u32>,
    /// Next number to send.
    number: u64,
}

struct Engine<'a, N: Nic> {
    options: &'a Options,
    report: &'a mut dyn FnMut(Report),
    nic: N,
    share: Share,
    lanes: Vec<Lane<N::Batch>>,
    /// All frames in the slots are alike in size and sent as they are: nothing is touched but
    /// descriptors.
    plain: bool,
    /// Each frame gets a number and a sum when it is sent.
    numbers: bool,
    /// Each frame gets its addresses then.
    varies: bool,
    replay: Option<Replay>,
    pings: Pings,
    pace: RateLimiter,
    counts: Counts,
    first_ns: Option<u64>,
    last_ns: u64,
    /// When the run was over, but for pings under way.
    ended_ns: u64,
    idle_since: Option<u64>,
    next_report: u64,
    reported: (u64, Counts, QueueStats),
    min_space: Option<u16>,
    scratch: Box<[u8]>,
    /// Register accesses before the first frame.
    before: Option<Registers>,
}

impl<'a, N: Nic> Engine<'a, N> {
    fn new(
        options: &'a Options,
        nic: N,
        share: Share,
        report: &'a mut dyn FnMut(Report),
    ) -> Result<Self, PktGenError> {
        let lanes = nic.lanes();
        fill::check_room(options, &nic)?;
        let slots: u64 = (0..lanes).map(|n| u64::from(nic.slots(n))).sum();
        let varies = options.sends() && options.replay.is_none() && options.varies(slots);
        let numbers = options.sequence || options.function == Function::Ping;
        let now = nanos(share.clock.elapsed());
        let lane = |n| Lane {
            batch: nic.batch(n),
            // There are MAX_PAIRS lanes at most.
            queue: (share.first + n).to_le_bytes()[0],
            bodies: Vec::new(),
            sizes: Vec::new(),
            number: 0,
        };
        Ok(Self {
            lanes: (0..lanes).map(lane).collect(),
            before: nic.registers(),
            numbers,
            plain: !varies && !numbers && options.least_size.is_none(),
            varies,
            replay: options.replay.clone().map(|capture| Replay::new(capture, options)),
            pings: Pings::new(options.rate, now),
            pace: RateLimiter::new(options.rate, options.burst),
            nic,
            counts: Counts::default(),
            first_ns: None,
            last_ns: 0,
            ended_ns: 0,
            idle_since: None,
            next_report: nanos(options.report_every),
            reported: Default::default(),
            min_space: None,
            scratch: vec![0; 1 << 17].into(),
            share,
            options,
            report,
        })
    }

    fn now(&self) -> u64 {
        nanos(self.share.clock.elapsed())
    }

    fn announce(&mut self) {
        if !self.options.announce || !self.share.is_first() {
            return;
        }
        let frame = frame::announcement(self.options.src_mac);
        self.nic.reap(0);
        let Some(slot) = self.nic.next(0) else { return };
        // A slot that holds a prefilled frame gets it back: the announcement goes out before any of
        // those.
        self.nic.write(0, slot, 0, &frame);
        self.nic.offload_checksum(0, slot, false);
        self.nic.send(0, slot, 60);
        self.nic.flush(0);
        self.refill(slot);
    }

    /// Waits until the announcement has left `slot`, then builds the slot's own frame again.
    fn refill(&mut self, slot: u16) {
        if self.options.sends() && self.replay.is_none() {
            self.drain();
            self.fill(0, slot);
        }
    }

    fn main(&mut self) -> Result<(), PktGenError> {
        loop {
            let now = self.now();
            if self.is_over(now) {
                return self.last_answers(now);
            }
            self.tick(now);
            let moved = match self.options.function {
                Function::Tx if self.replay.is_some() => self.replay_pass(now),
                Function::Tx => self.tx_pass(now),
                Function::Rx => self.rx_pass(),
                Function::Ping => self.ping_pass(now),
                Function::Pong => self.pong_pass(),
            };
            if moved > 0 {
                self.first_ns.get_or_insert(now);
                self.last_ns = now;
                self.share.moved(now);
                self.idle_since = None;
            } else {
                self.idle(now)?;
            }
        }
    }

    fn is_over(&self, now: u64) -> bool {
        let counted = self.options.count > 0 && self.share.all_moved(self.counts.frames);
        let late = self.options.seconds.is_some_and(|time| now >= nanos(time));
        let silent = self.options.idle_exit.is_some_and(|time| {
            let silence = self.share.silence(now, self.first_ns, self.last_ns);
            silence.is_some_and(|silence| silence >= nanos(time))
        });
        counted && self.pings.none_under_way()
            || late
            || silent
            || self.options.stopped()
            || self.share.aborted()
    }

    /// How long until it may send again; None when it does not wait for a time.
    fn pause(&self, now: u64) -> Option<Duration> {
        let pause = match (&self.replay, self.options.function) {
            (Some(replay), _) if self.options.recorded_timing => replay.until(now),
            (_, Function::Ping) => self.pings.until(now)?,
            (_, Function::Tx) => self.pace.until(now),
            _ => Duration::ZERO,
        };
        (pause > Duration::ZERO).then_some(pause)
    }

    /// Nothing moved: poll for [`Options::spin`], then sleep.
    fn idle(&mut self, now: u64) -> Result<(), PktGenError> {
        let since = *self.idle_since.get_or_insert(now);
        let pause = self.pause(now);
        let exact = self.options.function == Function::Ping && self.options.spin > Duration::ZERO;
        let early = if exact { self.options.spin.max(OVERSLEPT) } else { self.options.spin };
        let soon = pause.is_some_and(|pause| pause < early);
        let waits = pause.is_none() || !self.pings.none_under_way();
        if soon || waits && now - since < nanos(self.options.spin) {
            // A sender that waits for slots must not pull the used index's cache line from the
            // device all the time.
            let pauses = if self.options.function == Function::Tx { 16 } else { 1 };
            (0..pauses).for_each(|_| std::hint::spin_loop());
            return Ok(());
        }
        let left = |end: u64| Duration::from_nanos(end.saturating_sub(now));
        let mut nap = NAP.min(left(self.next_report));
        if let Some(time) = self.options.seconds {
            nap = nap.min(left(nanos(time)));
        }
        if let Some(pause) = pause {
            nap = nap.min(if exact { pause.saturating_sub(OVERSLEPT) } else { pause });
        }
        let interest = self.interest(pause.is_some());
        if self.nic.wait(interest, nap)? == Wake::Disconnected {
            self.reconnect()?;
        }
        Ok(())
    }

    fn interest(&self, paused: bool) -> Interest {
        // With no slot to answer in, waiting for more frames would find the old ones for ever.
        let mut full = (0..self.lanes.len()).map(|lane| self.nic.free_slots(lane) == 0);
        match self.options.function {
            Function::Tx => Interest { rx: true, tx: !paused },
            Function::Pong if full.any(|full| full) => Interest { rx: false, tx: true },
            _ => Interest { rx: true, tx: false },
        }
    }

    fn reconnect(&mut self) -> Result<(), PktGenError> {
        (self.report)(Report::Disconnected);
        let gone = Instant::now();
        loop {
            match self.nic.reconnect(NAP) {
                Ok(()) => break,
                Err(error @ NicError::Virtio(VirtioError::FeaturesLost { .. })) => {
                    return Err(error.into());
                }
                Err(error) if gone.elapsed() >= self.options.patience => return Err(error.into()),
                Err(_) if self.is_over(self.now()) => return Ok(()),
                Err(_) => {}
            }
        }
        (self.report)(Report::Reconnected(gone.elapsed()));
        // Frames under way keep their slots, so an announcement is sent only where no prefilled
        // slot is needed for it.
        if !self.options.sends() {
            self.announce();
        }
        Ok(())
    }

    fn tick(&mut self, now: u64) {
        if now < self.next_report {
            return;
        }
        let (then, old, queues) = std::mem::take(&mut self.reported);
        let totals = self.nic.stats();
        (self.report)(Report::Interval(Interval {
            frames: self.counts.frames - old.frames,
            bytes: self.counts.bytes - old.bytes,
            micros: (now - then) / 1000,
            batches: self.counts.batches - old.batches,
            min_space: std::mem::take(&mut self.min_space).unwrap_or(0),
            doorbells: totals.doorbells - queues.doorbells,
            interrupts: totals.interrupts - queues.interrupts,
            round_trip_ns: self.pings.take_interval(),
        }));
        self.reported = (now, self.counts, totals);
        self.next_report = now + nanos(self.options.report_every).max(1);
    }

    /// Lets the last frames leave, for a second at most.
    fn drain(&mut self) {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            let mut under_way = 0;
            for lane in 0..self.lanes.len() {
                self.nic.reap(lane);
                under_way += u32::from(self.nic.under_way(lane));
            }
            if under_way == 0 || !self.nic.is_connected() {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
