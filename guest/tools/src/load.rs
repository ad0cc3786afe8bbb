//! The workloads of [`crate::stack`] on the kernel's sockets: what an ordinary program of a guest
//! or of the host gets from its NIC.
//!
//! ```no_run
//! use std::net::{Ipv4Addr, SocketAddrV4};
//! use vmlan_tools::load::{self, Options};
//! use vmlan_tools::workload::{Task, Workload};
//! let mut task = Task::new(Workload::TcpStream);
//! task.to = Some(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 0));
//! task.seconds = Some(std::time::Duration::from_secs(5));
//! let options = Options { task, segment: false };
//! let totals = load::run(&options, &mut |report| eprintln!("{report}")).unwrap();
//! println!("{:.0} Mbit/s", totals.mbit_per_s);
//! ```
//!
//! One thread. Clients block in the kernel, as netperf does; servers sleep in poll(2). Who receives
//! counts: what a sender says of a stream is what it handed to the kernel.

mod client;
mod rr;
mod server;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use crate::pktgen::Latency;
use crate::workload::{Interval, Tally, Task, TaskError, Totals, Workload};
use vmlan_transport::numbers::{limit64, nanos};
use vmlan_transport::sys;

/// Longest sleep, so that the stop flag is looked at.
const NAP: Duration = Duration::from_millis(100);
/// Most datagrams that the kernel cuts from one send (UDP_MAX_SEGMENTS of kernels before 6.9), and
/// most bytes of them all.
const MOST_SEGMENTS: (u32, u32) = (64, 65_507);

/// What to do, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workload and its bounds. A burst of datagrams is one `sendmmsg`.
    pub task: Task,
    /// A burst of datagrams is one `send`, which the kernel or the NIC cuts (UDP GSO).
    pub segment: bool,
}

/// A report of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// The sockets are there: of a server, whoever asks it from now on is heard.
    Ready(Workload),
    /// A second (or what [`Task::report_every`] says) is over.
    Interval(Interval),
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(workload) => write!(out, "{}: ready", workload.name()),
            Self::Interval(interval) => interval.fmt(out),
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LoadError {
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(
        "livelock-sink needs a driver that the run itself schedules: use `vmlan stack`, or \
         udp-sink with --app-ns"
    )]
    Livelock,
    #[error("--gso cuts bursts of a udp-stream: use it with -f udp-stream and -b")]
    NoBurst,
    #[error(
        "--gso with {burst} datagrams of {size} bytes: use at most 64 datagrams and 65507 bytes"
    )]
    Segments { burst: u32, size: u32 },
    #[error("cannot {what}")]
    Socket { what: &'static str, source: io::Error },
    #[error("no answer from {0}: is a server there (`vmlan load -f responder`)?")]
    NoAnswer(SocketAddrV4),
    #[error("{0} closed the connection: is a server there (`vmlan load -f responder`)?")]
    Closed(SocketAddrV4),
}

impl LoadError {
    fn socket(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Socket { what, source }
    }
}

impl Options {
    /// Checks the ranges.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), LoadError> {
        self.task.check()?;
        let (burst, size) = (self.task.burst, self.task.size());
        if self.task.workload == Workload::LivelockSink {
            return Err(LoadError::Livelock);
        }
        if !self.segment {
            return Ok(());
        }
        if self.task.workload != Workload::UdpStream || burst < 2 {
            return Err(LoadError::NoBurst);
        }
        if burst > MOST_SEGMENTS.0 || u64::from(burst) * u64::from(size) > MOST_SEGMENTS.1.into() {
            return Err(LoadError::Segments { burst, size });
        }
        Ok(())
    }
}

/// A run under way, as its workload sees it.
struct Run<'a> {
    task: &'a Task,
    tally: Tally,
    start: Instant,
    /// How long to sleep at most.
    nap: Duration,
}

impl Run<'_> {
    /// Nanoseconds since the run began.
    fn now(&self) -> u64 {
        limit64(self.start.elapsed().as_nanos())
    }

    /// May the peer still be on its way?
    fn is_patient(&self, now: u64) -> bool {
        now < nanos(self.task.patience)
    }

    fn is_over(&self, now: u64) -> bool {
        let late = self.task.seconds.is_some_and(|time| now >= nanos(time));
        let silent = self.task.idle_exit.is_some_and(|time| self.tally.silent(now, nanos(time)));
        self.tally.is_complete() || late || silent || self.task.stopped()
    }
}

/// A workload.
trait Work {
    /// Does what can be done, or waits for [`Run::nap`] at most.
    fn pass(&mut self, run: &mut Run<'_>) -> Result<(), LoadError>;

    /// What was measured so far does not count.
    fn warm(&mut self) {}

    /// Round trips, where there are any.
    fn latency(&self) -> Option<Latency> {
        None
    }

    /// The run is over: closes connections, for a second at most.
    fn close(&mut self) {}
}

fn begin(options: &Options) -> Result<Box<dyn Work>, LoadError> {
    let task = &options.task;
    Ok(match task.workload {
        Workload::UdpStream => Box::new(client::UdpStream::new(options)?),
        Workload::TcpStream => Box::new(client::TcpStream::new(task)),
        Workload::UdpRr => Box::new(rr::UdpRr::new(task)?),
        Workload::TcpRr => Box::new(rr::TcpRr::new(task)),
        Workload::LivelockSink => return Err(LoadError::Livelock),
        Workload::UdpSink | Workload::TcpSink | Workload::Responder => {
            Box::new(server::Server::new(task)?)
        }
    })
}

/// Runs one workload to its end: the count, the time, silence, or the stop flag. Blocks.
///
/// # Errors
/// See [`LoadError`]: wrong options, no peer within [`Task::patience`], or no socket.
pub fn run(options: &Options, report: &mut dyn FnMut(Report)) -> Result<Totals, LoadError> {
    options.check()?;
    let (task, cpu) = (&options.task, sys::process_cpu());
    let mut work = begin(options)?;
    report(Report::Ready(task.workload));
    let mut run = Run { task, tally: Tally::new(task), start: Instant::now(), nap: NAP };
    let every = nanos(task.report_every).max(1);
    let (mut reported, mut next) = ((0, run.tally.clone()), every);
    loop {
        let now = run.now();
        if run.is_over(now) {
            break;
        }
        if run.tally.warm(now) {
            work.warm();
        }
        if now >= next {
            let interval = Interval::between(&reported.1, &run.tally, now - reported.0);
            report(Report::Interval(interval));
            (reported, next) = ((now, run.tally.clone()), now + every);
        }
        let ends = task.seconds.map_or(u64::MAX, nanos).min(next);
        run.nap = NAP.min(Duration::from_nanos(ends - now.min(ends)));
        work.pass(&mut run)?;
    }
    let now = run.now();
    work.close();
    if task.workload.calls() && !run.tally.has_begun() && !task.stopped() {
        return Err(LoadError::NoAnswer(task.peer()));
    }
    Ok(Totals::new(task, &run.tally, work.latency(), (now, cpu)))
}
