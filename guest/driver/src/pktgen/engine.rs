//! The loop: move frames; when there are none, poll a little, then sleep on the interrupt.

mod functions;

use std::time::{Duration, Instant};

use super::Error;
use super::frame;
use super::histogram::Histogram;
use super::options::{Function, Options};
use super::pace::Pace;
use super::report::{Interval, Report, Summary};
use crate::device::{self, Device, Registers, ratio};
use crate::net::QueueStats;
use crate::nic::{self, Interest, Wake};
use crate::sys;

/// Longest sleep, so that the stop flag is looked at.
const NAP: Duration = Duration::from_millis(100);
/// How long the last frames may take to leave the transmit rings.
const DRAIN: Duration = Duration::from_secs(1);

/// Counters of the run beside those of the queues.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    batches: u64,
    other: u64,
    lost: u64,
    out_of_order: u64,
    corrupt: u64,
}

/// What the engine keeps for each queue pair.
struct Lane<B> {
    batch: B,
    /// Sums of the prefilled frames, by slot.
    bodies: Vec<u64>,
    /// Next number to send.
    number: u64,
}

struct Engine<'a, N: Device> {
    options: &'a Options,
    report: &'a mut dyn FnMut(Report),
    nic: N,
    lanes: Vec<Lane<N::Batch>>,
    pace: Pace,
    clock: Instant,
    counts: Counts,
    first_ns: Option<u64>,
    last_ns: u64,
    idle_since: Option<u64>,
    next_report: u64,
    reported: (u64, Counts, QueueStats),
    min_space: Option<u16>,
    /// The next number expected from each queue of the sender.
    expected: Box<[u64; 256]>,
    scratch: Box<[u8]>,
    waiting: Option<(u64, u64)>,
    histogram: Histogram,
    /// Register accesses before the first frame.
    before: Option<Registers>,
}

/// Runs one function to its end: the count, the time, silence, or the stop flag. Blocks; all news go through `report`.
///
/// # Errors
/// See [`Error`]: wrong options, no back end within [`Options::patience`], or one that refuses.
pub fn run(options: &Options, report: &mut dyn FnMut(Report)) -> Result<Summary, Error> {
    options.check()?;
    let run = Run { options, cpu: sys::process_cpu(), report };
    let largest = options.sends().then_some(options.size as usize);
    device::open(&options.address, largest, options.patience, run)?
}

/// A run that waits for its device.
struct Run<'a> {
    options: &'a Options,
    cpu: Duration,
    report: &'a mut dyn FnMut(Report),
}

impl device::Visitor for Run<'_> {
    type Output = Result<Summary, Error>;

    fn visit<D: Device>(self, mut nic: D) -> Self::Output {
        let mut options = self.options.clone();
        let chosen = (options.src_mac != Options::default_mac()).then_some(options.src_mac);
        options.src_mac = nic.settle_mac(chosen).unwrap_or(options.src_mac);
        let mut engine = Engine::new(&options, nic, self.report);
        engine.prefill();
        engine.announce();
        let main = engine.main();
        engine.drain();
        main?;
        Ok(engine.summary(self.cpu))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a, N: Device> Engine<'a, N> {
    fn new(options: &'a Options, nic: N, report: &'a mut dyn FnMut(Report)) -> Self {
        report(Report::Connected(nic.connected()));
        let lane = |n| Lane { batch: nic.batch(n), bodies: Vec::new(), number: 0 };
        Self {
            lanes: (0..nic.lanes()).map(lane).collect(),
            before: nic.registers(),
            nic,
            pace: Pace::new(options.rate, options.burst),
            clock: Instant::now(),
            counts: Counts::default(),
            first_ns: None,
            last_ns: 0,
            idle_since: None,
            next_report: nanos(options.report_every),
            reported: Default::default(),
            min_space: None,
            expected: Box::new([0; 256]),
            scratch: vec![0; 1 << 17].into(),
            waiting: None,
            histogram: Histogram::new(),
            options,
            report,
        }
    }

    fn now(&self) -> u64 {
        nanos(self.clock.elapsed())
    }

    /// Builds every slot's frame once; afterwards sending touches descriptors only.
    fn prefill(&mut self) {
        if !self.options.sends() {
            return;
        }
        let mut n = 0;
        for lane in 0..self.lanes.len() {
            for slot in 0..self.nic.slots(lane) {
                let sum = self.fill(lane, slot, n);
                self.lanes[lane].bodies.push(sum);
                n += 1;
            }
        }
    }

    /// Puts the `n`th frame into a slot; its sum.
    fn fill(&mut self, lane: usize, slot: u16, n: u32) -> u64 {
        let offload = self.options.offload_checksum && self.nic.can_checksum();
        let frame = frame::build(self.options, n, offload);
        self.nic.write(lane, slot, 0, &frame);
        if offload {
            self.nic.offload_checksum(lane, slot, true);
        }
        frame::body_sum(&frame)
    }

    fn announce(&mut self) {
        if !self.options.announce {
            return;
        }
        let frame = frame::announcement(self.options.src_mac);
        self.nic.reap(0);
        let Some(slot) = self.nic.next(0) else { return };
        // A slot that holds a prefilled frame gets it back: the announcement goes out before any of those.
        self.nic.write(0, slot, 0, &frame);
        self.nic.offload_checksum(0, slot, false);
        self.nic.send(0, slot, 60);
        self.nic.flush(0);
        self.refill(slot);
    }

    /// Waits until the announcement has left `slot`, then builds the slot's own frame again.
    fn refill(&mut self, slot: u16) {
        if self.options.sends() {
            self.drain();
            self.fill(0, slot, slot.into());
        }
    }

    fn main(&mut self) -> Result<(), Error> {
        loop {
            let now = self.now();
            if self.is_over(now) {
                return Ok(());
            }
            self.tick(now);
            let moved = match self.options.function {
                Function::Tx => self.tx_pass(now),
                Function::Rx => self.rx_pass(),
                Function::Ping => self.ping_pass(now),
                Function::Pong => self.pong_pass(),
            };
            if moved > 0 {
                self.first_ns.get_or_insert(now);
                self.last_ns = now;
                self.idle_since = None;
            } else {
                self.idle(now)?;
            }
        }
    }

    fn is_over(&self, now: u64) -> bool {
        let counted = self.options.count > 0 && self.counts.frames >= self.options.count;
        let late = self.options.seconds.is_some_and(|time| now >= nanos(time));
        let silent = self.options.idle_exit.is_some_and(|time| {
            self.first_ns.is_some() && now.saturating_sub(self.last_ns) >= nanos(time)
        });
        counted && self.waiting.is_none() || late || silent || self.options.stopped()
    }

    /// Nothing moved: poll for [`Options::spin`], then sleep.
    fn idle(&mut self, now: u64) -> Result<(), Error> {
        let since = *self.idle_since.get_or_insert(now);
        let pause = self.pace.until(now);
        let paused = self.options.sends() && self.waiting.is_none() && pause > Duration::ZERO;
        if !paused && now - since < nanos(self.options.spin) || paused && pause < self.options.spin
        {
            // A sender that waits for slots must not pull the used index's cache line from the device all the time.
            let pauses = if self.options.function == Function::Tx { 16 } else { 1 };
            (0..pauses).for_each(|_| std::hint::spin_loop());
            return Ok(());
        }
        let left = |end: u64| Duration::from_nanos(end.saturating_sub(now));
        let mut nap = NAP.min(left(self.next_report));
        if let Some(time) = self.options.seconds {
            nap = nap.min(left(nanos(time)));
        }
        if paused {
            nap = nap.min(pause);
        }
        let interest = self.interest(paused);
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

    fn reconnect(&mut self) -> Result<(), Error> {
        (self.report)(Report::Disconnected);
        let gone = Instant::now();
        loop {
            match self.nic.reconnect(NAP) {
                Ok(()) => break,
                Err(error @ device::Error::Virtio(nic::Error::FeaturesLost { .. })) => {
                    return Err(error.into());
                }
                Err(error) if gone.elapsed() >= self.options.patience => return Err(error.into()),
                Err(_) if self.is_over(self.now()) => return Ok(()),
                Err(_) => {}
            }
        }
        (self.report)(Report::Reconnected(gone.elapsed()));
        // Frames under way keep their slots, so an announcement is sent only where no prefilled slot is needed for it.
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

    fn summary(&self, cpu: Duration) -> Summary {
        let totals = self.nic.stats();
        let counts = self.counts;
        // For what is sent the time runs until the last slot came back; for what is received, until the last frame.
        let end = if self.options.sends() { self.now() } else { self.last_ns };
        let micros = end.saturating_sub(self.first_ns.unwrap_or(end)) / 1000;
        let seconds = ratio(micros, 1_000_000);
        let per_second = |count| if seconds > 0.0 { ratio(count, 1) / seconds } else { 0.0 };
        Summary {
            function: self.options.function,
            frame_bytes: self.options.size,
            frames: counts.frames,
            bytes: counts.bytes,
            seconds,
            frames_per_s: per_second(counts.frames),
            gbit_per_s: per_second(counts.bytes) * 8e-9,
            cpu_seconds: sys::process_cpu().saturating_sub(cpu).as_secs_f64(),
            doorbells: totals.doorbells,
            interrupts: totals.interrupts,
            mean_batch: ratio(counts.frames, counts.batches),
            full: totals.full,
            other_frames: counts.other,
            malformed: totals.malformed,
            lost: counts.lost,
            out_of_order: counts.out_of_order,
            corrupt: counts.corrupt,
            reconnects: self.nic.reconnects(),
            rings_sound: self.nic.is_sound(),
            registers: self.nic.registers().map(|registers| {
                let before = self.before.clone().unwrap_or_default();
                registers.since(&before, counts.frames, totals.interrupts)
            }),
            latency: self.histogram.latency(),
        }
    }
}
