//! The gateway's process: one thread that sleeps until a frame, a socket, the switch or a timer has
//! something for it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smoltcp::time::Instant;
use vmlan_config::gateway::{FromGateway, LANES, Lease, Setup, ToGateway};
use vmlan_driver::virtio::VirtioError;

use crate::gateway::Gateway;
use crate::line::Line;
use crate::link::{Link, VirtioLink};

/// How long the port may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Numbers in epoll: the switch's line, and what the NIC is watched by.
const LINE: u64 = 1;
const NIC: u64 = 2;
/// Shortest time between two reports of counters, in milliseconds.
const REPORT: i64 = 500;
/// Events taken at once.
const EVENTS: usize = 128;
/// Free slots below which no frames are taken: each may want an answer.
const ROOM: usize = 80;

/// Why a gateway ends.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The port.
    #[error("cannot use the port")]
    Port(#[from] VirtioError),
    /// The switch has hung up, or ended.
    #[error("the switch has hung up")]
    HungUp,
    /// The system refused something.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> GatewayError {
    move |source| GatewayError::System { what, source: source.into() }
}

/// Serves as the switch at the far end of `line` says, until it hangs up. `seal` is called when
/// everything is open that is opened by name.
///
/// # Errors
/// [`GatewayError`].
pub fn serve(line: OwnedFd, seal: impl FnOnce()) -> Result<(), GatewayError> {
    let mut line = Line::new(line);
    let mut leases = Vec::new();
    let setup = loop {
        match line.receive(true).map_err(system("hear from the switch"))? {
            Some(ToGateway::Setup(setup)) => break setup,
            Some(ToGateway::Leases(some)) => leases.extend(some),
            Some(ToGateway::Forget(ip)) => leases.retain(|lease| lease.ip != ip),
            Some(ToGateway::Whose { .. }) => {}
            None => return Err(GatewayError::HungUp),
        }
    };
    run(*setup, leases, Some(line), seal)
}

/// Serves on a port by itself: each NIC counts as a port of its own.
///
/// # Errors
/// [`GatewayError`].
pub fn serve_alone(setup: Setup, seal: impl FnOnce()) -> Result<(), GatewayError> {
    run(setup, Vec::new(), None, seal)
}

/// Time since the process began to serve, and what day it was then.
struct Clock(std::time::Instant);

impl Clock {
    fn now(&self) -> Instant {
        Instant::from_micros(i64::try_from(self.0.elapsed().as_micros()).unwrap_or(i64::MAX))
    }
}

struct Process {
    gateway: Gateway,
    link: VirtioLink,
    line: Option<Line>,
    nic: OwnedFd,
    clock: Clock,
    reported: Instant,
    report_due: bool,
}

fn run(
    mut setup: Setup,
    leases: Vec<Lease>,
    line: Option<Line>,
    seal: impl FnOnce(),
) -> Result<(), GatewayError> {
    let descriptors = raise_descriptors();
    let link = VirtioLink::connect(Path::new(&setup.socket), PATIENCE)?;
    if setup.now == 0 {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        setup.now = since.map_or(0, |since| since.as_secs());
    }
    let clock = Clock(std::time::Instant::now());
    let mut gateway = Gateway::new(setup, line.is_none(), descriptors, clock.now())
        .map_err(system("watch descriptors"))?;
    gateway.restore(leases);
    let nic = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("watch the NIC"))?;
    let reported = Instant::ZERO;
    let mut process = Process { gateway, link, line, nic, clock, reported, report_due: false };
    process.watch().map_err(system("watch descriptors"))?;
    seal();
    process.gateway.announce(&mut process.link);
    process.link.flush();
    process.tell(&FromGateway::Ready)?;
    loop {
        process.turn()?;
    }
}

/// As many descriptors as this process may have.
fn raise_descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    (if raised { maximum } else { current }).unwrap_or(u64::MAX)
}

impl Process {
    /// Puts the line and the NIC's descriptors behind the epoll that all flows are behind.
    fn watch(&mut self) -> Result<(), Errno> {
        for (n, fd) in self.link.watched().iter().enumerate() {
            let number = epoll::EventData::new_u64(u64::try_from(n).map_err(|_| Errno::INVAL)?);
            epoll::add(&self.nic, fd, number, epoll::EventFlags::IN)?;
        }
        let all = self.gateway.nat().epoll();
        epoll::add(all, &self.nic, epoll::EventData::new_u64(NIC), epoll::EventFlags::IN)?;
        if let Some(line) = &self.line {
            let flags = epoll::EventFlags::IN;
            epoll::add(all, line.fd(), epoll::EventData::new_u64(LINE), flags)?;
        }
        Ok(())
    }

    fn tell(&self, news: &FromGateway) -> Result<(), GatewayError> {
        match &self.line {
            Some(line) => line.send(news).map_err(|_| GatewayError::HungUp),
            None => Ok(()),
        }
    }

    /// Does what there is to do, then sleeps until there is more.
    fn turn(&mut self) -> Result<(), GatewayError> {
        let now = self.clock.now();
        let mut busy = false;
        if self.link.room() >= ROOM {
            let gateway = &mut self.gateway;
            busy = self.link.receive(|link, frame, arrived| {
                gateway.frame(frame, arrived, link, now);
            }) > 0;
        }
        self.gateway.run(&mut self.link, now);
        self.link.flush();
        for news in self.gateway.news() {
            self.tell(&news)?;
        }
        self.report(now)?;
        self.sleep(busy)
    }

    /// Tells the counters, but not all the time.
    fn report(&mut self, now: Instant) -> Result<(), GatewayError> {
        let waited = (now - self.reported).total_millis();
        let early = self.reported != Instant::ZERO && waited < REPORT.unsigned_abs();
        if self.line.is_none() || early {
            return Ok(());
        }
        if let Some(counters) = self.gateway.counters() {
            self.tell(&FromGateway::Counters(counters))?;
            self.reported = now;
            // What comes soon after is told when this time is over.
            self.report_due = true;
        } else {
            self.report_due = false;
        }
        Ok(())
    }

    fn sleep(&mut self, busy: bool) -> Result<(), GatewayError> {
        let full = self.link.room() < ROOM;
        let idle = !busy && (full || !self.gateway.is_busy());
        let armed = idle && self.link.arm(full);
        let timeout = if armed { self.timeout() } else { Some(Duration::ZERO) };
        let wait = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut events = Vec::with_capacity(EVENTS);
        let all = self.gateway.nat().epoll();
        let got = epoll::wait(all, rustix::buffer::spare_capacity(&mut events), wait.as_ref());
        match got {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(system("wait")(e)),
        }
        let mut bits = 0;
        for event in &events {
            let epoll::Event { data, flags } = *event;
            match data.u64() {
                NIC => bits = self.nic_events()?,
                LINE => self.hear()?,
                number if number >= crate::nat::FORWARDS => self.gateway.forwards().event(number),
                number => self.gateway.nat().event(number, flags),
            }
        }
        if idle {
            self.link.disarm(bits);
        }
        Ok(())
    }

    /// Until when nothing but events can matter.
    fn timeout(&self) -> Option<Duration> {
        let report = self
            .report_due
            .then(|| self.reported + smoltcp::time::Duration::from_millis(REPORT.unsigned_abs()));
        let due = self.gateway.due().into_iter().chain(report).min()?;
        let wait = if due > self.clock.now() {
            due - self.clock.now()
        } else {
            smoltcp::time::Duration::ZERO
        };
        // A timer that is due in less than a microsecond is due.
        Some(Duration::from_micros(wait.total_micros() + 1))
    }

    /// Which of the NIC's descriptors can be read.
    fn nic_events(&mut self) -> Result<u64, GatewayError> {
        let mut events = Vec::with_capacity(2 * usize::from(LANES) + 1);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.nic, room, Some(&none)).map_err(system("look at the NIC"))?;
        let numbers = events.iter().map(|event| {
            let epoll::Event { data, .. } = *event;
            data.u64()
        });
        let bits = numbers.fold(0, |bits, n| {
            bits | 1u64.checked_shl(u32::try_from(n).unwrap_or(63)).unwrap_or(0)
        });
        // The switch never speaks first on its socket: it has hung up.
        if bits & 1 != 0 && !self.link.is_connected() {
            Err(GatewayError::HungUp)
        } else {
            Ok(bits)
        }
    }

    fn hear(&mut self) -> Result<(), GatewayError> {
        let now = self.clock.now();
        loop {
            let Some(line) = &mut self.line else { return Ok(()) };
            match line.receive(false).map_err(|_| GatewayError::HungUp)? {
                None => return Ok(()),
                Some(ToGateway::Setup(setup)) => self.gateway.follow(*setup, now),
                Some(ToGateway::Leases(leases)) => self.gateway.restore(leases),
                Some(ToGateway::Forget(ip)) => self.gateway.forget(ip),
                Some(ToGateway::Whose { mac, port }) => {
                    self.gateway.answer(&mac, port.as_deref(), &mut self.link, now);
                }
            }
        }
    }
}
