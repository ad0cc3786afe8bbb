//! The loop: move frames; when there are none, poll a little, then sleep on the interrupt.

mod functions;

use std::time::{Duration, Instant};

use super::Error;
use super::frame;
use super::histogram::Histogram;
use super::options::{Function, Options};
use super::pace::Pace;
use super::report::{Interval, Report, Summary, ratio};
use crate::address::feature;
use crate::net::{HDR_F_NEEDS_CSUM, NetHeader, QueueStats, RxBatch};
use crate::nic::{self, Interest, VirtioNet, Wake};
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
struct Lane {
    batch: RxBatch,
    /// Sums of the prefilled frames, by slot.
    bodies: Vec<u64>,
    /// Next number to send.
    number: u64,
}

struct Engine<'a> {
    options: &'a Options,
    report: &'a mut dyn FnMut(Report),
    nic: VirtioNet,
    lanes: Vec<Lane>,
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
}

/// Runs one function to its end: the count, the time, silence, or the stop flag. Blocks; all news go through `report`.
///
/// # Errors
/// See [`Error`]: wrong options, no back end within [`Options::patience`], or one that refuses.
pub fn run(options: &Options, report: &mut dyn FnMut(Report)) -> Result<Summary, Error> {
    options.check()?;
    let cpu = sys::process_cpu();
    let mut address = options.address.clone();
    if options.sends() {
        address.buffer = address.buffer.max(options.size as usize + NetHeader::LEN);
    }
    let nic = VirtioNet::connect(&address, options.patience)?;
    let mut engine = Engine::new(options, nic, report);
    engine.prefill();
    engine.announce();
    let main = engine.main();
    engine.drain();
    main?;
    Ok(engine.summary(cpu))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> Engine<'a> {
    fn new(options: &'a Options, nic: VirtioNet, report: &'a mut dyn FnMut(Report)) -> Self {
        let queues = u16::try_from(nic.pairs.len()).unwrap_or(u16::MAX);
        report(Report::Connected { features: nic.features(), queues });
        let lane =
            |pair: &nic::Pair| Lane { batch: pair.rx.batch(), bodies: Vec::new(), number: 0 };
        Self {
            lanes: nic.pairs.iter().map(lane).collect(),
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
        let offload = self.options.offload_checksum && self.nic.has(feature::CSUM);
        let mut n = 0;
        for (pair, lane) in self.nic.pairs.iter_mut().zip(&mut self.lanes) {
            for slot in 0..pair.tx.slots() {
                let frame = frame::build(self.options, n, offload);
                pair.tx.write(slot, 0, &frame);
                lane.bodies.push(frame::body_sum(&frame));
                if offload {
                    pair.tx.write_header(slot, checksum_header());
                }
                n += 1;
            }
        }
    }

    fn announce(&mut self) {
        if !self.options.announce {
            return;
        }
        let frame = frame::announcement(self.options.src_mac);
        let Some(pair) = self.nic.pairs.first_mut() else { return };
        pair.tx.reap();
        let Some(slot) = pair.tx.next() else { return };
        // A slot that holds a prefilled frame gets it back: the announcement goes out before any of those.
        pair.tx.write(slot, 0, &frame);
        pair.tx.write_header(slot, NetHeader::default());
        pair.tx.send(slot, 60);
        pair.tx.flush();
        self.refill(slot);
    }

    /// Waits until the announcement has left `slot`, then builds the slot's own frame again.
    fn refill(&mut self, slot: u16) {
        if !self.options.sends() {
            return;
        }
        self.drain();
        let offload = self.options.offload_checksum && self.nic.has(feature::CSUM);
        let frame = frame::build(self.options, slot.into(), offload);
        if let Some(pair) = self.nic.pairs.first_mut() {
            pair.tx.write(slot, 0, &frame);
            if offload {
                pair.tx.write_header(slot, checksum_header());
            }
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
        let full = |pair: &nic::Pair| pair.tx.free_slots() == 0;
        match self.options.function {
            Function::Tx => Interest { rx: true, tx: !paused },
            Function::Pong if self.nic.pairs.iter().any(full) => Interest { rx: false, tx: true },
            _ => Interest { rx: true, tx: false },
        }
    }

    fn reconnect(&mut self) -> Result<(), Error> {
        (self.report)(Report::Disconnected);
        let gone = Instant::now();
        loop {
            match self.nic.reconnect(NAP) {
                Ok(()) => break,
                Err(error @ nic::Error::FeaturesLost { .. }) => return Err(error.into()),
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

    /// All queues of both directions together.
    fn totals(&self) -> QueueStats {
        let mut sum = QueueStats::default();
        for stats in self.nic.pairs.iter().flat_map(|pair| [pair.tx.stats(), pair.rx.stats()]) {
            sum.doorbells += stats.doorbells;
            sum.interrupts += stats.interrupts;
            sum.full += stats.full;
            sum.malformed += stats.malformed;
        }
        sum
    }

    fn tick(&mut self, now: u64) {
        if now < self.next_report {
            return;
        }
        let (then, old, queues) = std::mem::take(&mut self.reported);
        let totals = self.totals();
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
            for pair in &mut self.nic.pairs {
                pair.tx.reap();
                under_way += u32::from(pair.tx.outstanding());
            }
            if under_way == 0 || !self.nic.is_connected() {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn summary(&self, cpu: Duration) -> Summary {
        let totals = self.totals();
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
            rings_sound: self.nic.audit().iter().all(crate::ring::Audit::is_sound),
            latency: self.histogram.latency(),
        }
    }
}

/// "Complete the UDP checksum": from byte 34 on, at byte 40.
fn checksum_header() -> NetHeader {
    NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..NetHeader::default() }
}
