//! The loop: the driver's turn, the stack's, the application's; when nothing moves, poll a little,
//! then sleep.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::driver::{Counted, Driver};
use super::options::Options;
use super::receive_thread::{self, ReceiveThread};
use super::report::{Interval, Report, Schedule, Summary};
use super::smoltcp_host::Host;
use super::work::{self, Step, Work};
use super::{SINK_PORT, StackError};
use crate::workload::{self, Tally, Totals, Workload};
use vmlan_driver::nic::{self, Nic, NicError, Registers};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::virtio::VirtioError;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_transport::Address;
use vmlan_transport::Mac;
use vmlan_transport::numbers::nanos;
use vmlan_transport::sys;
use vmlan_transport::{Interrupts, Reception};

/// Longest sleep, so that the stop flag is looked at.
pub(super) const NAP: Duration = Duration::from_millis(100);
const DRAIN: Duration = Duration::from_secs(1); // How long the last words may take.

/// Runs one workload to its end: the count, the time, silence, or the stop flag. Blocks; all
/// reports go through `report`.
///
/// # Errors
/// See [`StackError`]: wrong options, no switch or no peer within [`Options::patience`], or one
/// that refuses.
pub fn run(options: &Options, report: &mut dyn FnMut(Report)) -> Result<Summary, StackError> {
    options.check()?;
    let run = Run { options, cpu: sys::process_cpu(), report };
    let largest = usize::from(options.mtu) + super::frame::ETHERNET;
    nic::open(&options.address, Some(largest), options.task.patience, run)?
}

/// Does the device interrupt the application for received frames, whatever it is doing? With CSB
/// and virtio it does so only for a driver that sleeps.
fn interrupts(place: &Address) -> bool {
    let driver = match place {
        Address::VhostUser(_) => return false,
        Address::VfioUser(address) => &address.driver,
        Address::Pci(address) => &address.driver,
    };
    driver.interrupts == Interrupts::Always && driver.receive == Reception::Interrupt && !driver.csb
}

/// A run that waits for its device.
struct Run<'a> {
    options: &'a Options,
    cpu: Duration,
    report: &'a mut dyn FnMut(Report),
}

impl nic::Visitor for Run<'_> {
    type Output = Result<Summary, StackError>;

    fn visit<N: Nic>(self, device: N) -> Self::Output {
        run_on(device, self.options, self.cpu, self.report)
    }
}

/// An address that two hosts of a LAN do not share.
fn mac_of(options: &Options) -> Mac {
    let [a, b, c, d] = options.ip.0.octets();
    Mac([2, 0x76, a, b, c, d])
}

/// Runs one workload on a NIC that is there already.
pub(super) fn run_on<N: Nic>(
    mut device: N,
    options: &Options,
    cpu: Duration,
    report: &mut dyn FnMut(Report),
) -> Result<Summary, StackError> {
    let connected = device.connected();
    // An e1000 has an address of its own; else it is up to us.
    let mac = device.settle_mac(options.mac).unwrap_or_else(|| mac_of(options));
    let (room, mtu) = (device.room(0), options.mtu);
    if room < usize::from(mtu) + super::frame::ETHERNET {
        return Err(StackError::Room { room, mtu });
    }
    report(Report::Connected(connected, mac, options.ip.0));
    let before = device.registers();
    let port = match options.task.workload {
        Workload::UdpSink | Workload::LivelockSink | Workload::Responder => {
            Some(options.task.served(SINK_PORT))
        }
        _ => None,
    };
    let addresses = (mac, options.ip.0);
    let sleeper = (options.threads == 2).then(receive_thread::sleeper).transpose()?;
    let lengths = (options.socket_queue, mtu);
    let driver = Driver::new(device, addresses, port, lengths, sleeper);
    std::thread::scope(|scope| {
        let spawn = |sleeper| ReceiveThread::spawn(scope, &driver, sleeper, options);
        let second = driver.second.as_ref().map(spawn);
        let mut engine = Engine::new(options, &driver, second, mac, report);
        let main = engine.main();
        engine.finish();
        drop(engine.second.take());
        main?;
        Ok(engine.summary(cpu, before.as_ref()))
    })
}

struct Engine<'a, 'd, 's, N: Nic> {
    options: &'a Options,
    report: &'a mut dyn FnMut(Report),
    driver: &'d Driver<N>,
    second: Option<ReceiveThread<'s, 'd, N>>,
    host: Host<'d, N>,
    work: Box<dyn Work<N>>,
    tally: Tally,
    schedule: Schedule,
    idle_since: Option<u64>,
    /// Datagrams that had arrived at the last look.
    arrived: u64,
    next_report: u64,
    reported: (u64, Tally, Counted, QueueStats),
    /// Counters at the end of the warm-up.
    base: (Counted, QueueStats),
}

impl<'a, 'd, 's, N: Nic> Engine<'a, 'd, 's, N> {
    fn new(
        options: &'a Options,
        driver: &'d Driver<N>,
        second: Option<ReceiveThread<'s, 'd, N>>,
        mac: Mac,
        report: &'a mut dyn FnMut(Report),
    ) -> Self {
        let mut host = Host::new(driver, options, mac);
        let schedule = if second.is_some() {
            Schedule::Parallel
        } else if let Some(schedule) = options.schedule {
            schedule
        } else if options.task.workload == Workload::LivelockSink && interrupts(&options.address) {
            Schedule::InterruptsFirst
        } else {
            Schedule::InTurns
        };
        let work = work::new(options, &mut host, schedule);
        let tally = Tally::new(&options.task);
        Self {
            reported: (0, tally.clone(), Counted::default(), QueueStats::default()),
            base: Default::default(),
            next_report: nanos(options.task.report_every),
            idle_since: None,
            arrived: 0,
            options,
            report,
            driver,
            second,
            host,
            work,
            tally,
            schedule,
        }
    }

    fn main(&mut self) -> Result<(), StackError> {
        loop {
            let now = self.host.now();
            if self.is_over(now) {
                return self.found();
            }
            self.measure(now)?;
            let taken = self.drive()?;
            let seen = self.host.ingress();
            let step = self.work.pass(&mut self.host, &mut self.tally, now)?;
            let said = self.host.egress();
            if taken + seen > 0 || said || step == Step::Moved {
                self.idle_since = None;
            } else {
                self.idle(now, step)?;
            }
        }
    }

    /// The time is up before [`Options::patience`]: was there a peer at all?
    fn found(&self) -> Result<(), StackError> {
        let alone = self.options.task.workload.calls() && !self.tally.has_begun();
        if alone && !self.options.task.stopped() {
            return Err(StackError::NoAnswer(self.options.task.peer()));
        }
        Ok(())
    }

    /// The driver's turn, if it has no thread of its own. A driver that is interrupted comes before
    /// the application for as long as frames come: that is the livelock.
    fn drive(&mut self) -> Result<usize, StackError> {
        if self.second.is_some() {
            return Ok(0);
        }
        let budget = usize::from(self.options.budget);
        let mut total = self.driver.receive(budget);
        let mut last = total;
        while self.schedule == Schedule::InterruptsFirst && last > 0 {
            let now = self.host.now();
            if self.is_over(now) {
                break;
            }
            self.measure(now)?;
            last = self.driver.receive(budget);
            total += last;
        }
        Ok(total)
    }

    fn is_over(&self, now: u64) -> bool {
        let late = self.options.task.seconds.is_some_and(|time| now >= nanos(time));
        let silent =
            self.options.task.idle_exit.is_some_and(|time| self.tally.silent(now, nanos(time)));
        self.tally.is_complete() || late || silent || self.options.task.stopped()
    }

    /// Reports, and notes when the measured stretch begins and ends: what arrives counts though the
    /// application may never see it.
    fn measure(&mut self, now: u64) -> Result<(), StackError> {
        let arrived = self.driver.counters.arrived.load(Relaxed);
        if arrived != self.arrived {
            self.arrived = arrived;
            self.tally.start(now);
        }
        if self.tally.warm(now) {
            self.work.warm();
            self.base = (self.driver.counters.now(), self.driver.nic().device.stats());
        }
        self.tick(now)
    }

    /// Nothing moved: poll for [`Options::spin`], then sleep.
    fn idle(&mut self, now: u64, step: Step) -> Result<(), StackError> {
        let since = *self.idle_since.get_or_insert(now);
        let pause = self.work.pause(now);
        let spin = self.options.spin;
        let soon = pause.is_some_and(|pause| pause < spin);
        if soon || pause.is_none() && now - since < nanos(spin) {
            std::hint::spin_loop();
            return Ok(());
        }
        let left = |end: u64| Duration::from_nanos(end.saturating_sub(now));
        let mut nap = NAP.min(left(self.next_report));
        if let Some(time) = self.options.task.seconds {
            nap = nap.min(left(nanos(time)));
        }
        for time in [pause, self.host.quiet()].into_iter().flatten() {
            nap = nap.min(time);
        }
        if nap.is_zero() {
            return Ok(());
        }
        let blocked = step == Step::Blocked;
        if let Some(second) = &self.second {
            second.sleep(blocked, nap);
            return Ok(());
        }
        let wake = self.driver.nic().device.wait(Interest { rx: true, tx: blocked }, nap)?;
        if wake == Wake::Disconnected { self.reconnect() } else { Ok(()) }
    }

    fn reconnect(&mut self) -> Result<(), StackError> {
        (self.report)(Report::Disconnected);
        let time = reconnect(self.driver, self.options)?;
        if let Some(time) = time {
            (self.report)(Report::Reconnected(time));
        }
        Ok(())
    }

    fn tick(&mut self, now: u64) -> Result<(), StackError> {
        if now < self.next_report {
            return Ok(());
        }
        if let Some(second) = &self.second {
            second.reports(self.report)?;
        }
        let (then, old, counted, queues) = &self.reported;
        let (total, stats) = (self.driver.counters.now(), self.driver.nic().device.stats());
        (self.report)(Report::Interval(Interval {
            work: workload::Interval::between(old, &self.tally, now - then),
            frames_sent: total.sent - counted.sent,
            frames_received: total.received - counted.received,
            arrived: total.arrived - counted.arrived,
            dropped: total.dropped - counted.dropped,
            doorbells: stats.doorbells - queues.doorbells,
            interrupts: stats.interrupts - queues.interrupts,
        }));
        self.reported = (now, self.tally.clone(), total, stats);
        self.next_report = now + nanos(self.options.task.report_every).max(1);
        Ok(())
    }

    /// Lets the sockets close and the last frames leave, for a second at most.
    fn finish(&mut self) {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            if self.second.is_none() {
                self.driver.receive(self.options.budget.into());
            }
            self.host.ingress();
            let closed = self.work.close(&mut self.host);
            self.host.egress();
            let device = &mut self.driver.nic().device;
            device.reap(0);
            if closed && device.under_way(0) == 0 || !device.is_connected() {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn summary(&self, cpu: Duration, before: Option<&Registers>) -> Summary {
        let device = &self.driver.nic().device;
        let (queues, counted) = (device.stats(), self.driver.counters.now());
        let base = if self.tally.is_measured() { &self.base } else { &(counted, queues) };
        let times = (self.host.now(), cpu);
        let totals = Totals::new(&self.options.task, &self.tally, self.work.latency(), times);
        let received = counted.received - base.0.received;
        let sent = counted.sent - base.0.sent;
        let arrived = counted.arrived - base.0.arrived;
        Summary {
            threads: self.options.threads,
            schedule: self.schedule,
            frames_sent: sent,
            frames_received: received,
            arrived,
            arrived_per_s: totals.rate(arrived),
            dropped: counted.dropped - base.0.dropped,
            doorbells: queues.doorbells - base.1.doorbells,
            interrupts: queues.interrupts - base.1.interrupts,
            reconnects: device.reconnects(),
            rings_sound: device.is_sound(),
            registers: device.registers().map(|registers| {
                let before = before.cloned().unwrap_or_default();
                registers.since(&before, counted.sent + counted.received, queues.interrupts)
            }),
            totals,
        }
    }
}

/// Goes on with another switch; how long that took, or nothing if the run ended before.
pub(super) fn reconnect<N: Nic>(
    driver: &Driver<N>,
    options: &Options,
) -> Result<Option<Duration>, StackError> {
    let gone = Instant::now();
    loop {
        let result = driver.nic().device.reconnect(NAP);
        match result {
            Ok(()) => return Ok(Some(gone.elapsed())),
            Err(error @ NicError::Virtio(VirtioError::FeaturesLost { .. })) => {
                return Err(error.into());
            }
            Err(error) if gone.elapsed() >= options.task.patience => return Err(error.into()),
            Err(_) if options.task.stopped() => return Ok(None),
            Err(_) => {}
        }
    }
}
