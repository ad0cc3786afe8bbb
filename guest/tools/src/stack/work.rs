//! The applications.

mod rr;
mod serve;
mod sink;
mod stream;

use std::time::Duration;

use super::StackError;
use super::options::{Options, SINK_PORT, Workload};
use super::report::Schedule;
use super::smoltcp_host::Host;
use crate::pktgen::Latency;
use vmlan_driver::nic::Nic;
use vmlan_transport::numbers::{limit32, nanos};

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something went on.
    Moved,
    /// There is nothing to do until something comes, or the time of [`Work::pause`] is over.
    Idle,
    /// There are no slots to send from.
    Blocked,
}

impl Step {
    fn moved(any: bool) -> Self {
        if any { Self::Moved } else { Self::Idle }
    }
}

/// What came of a pass.
pub(super) type Passed = Result<Step, StackError>;

/// An application.
pub(super) trait Work<N: Nic> {
    /// Does what can be done at `now`, in nanoseconds, without waiting.
    fn pass(&mut self, host: &mut Host<'_, N>, tally: &mut Tally, now: u64) -> Passed;

    /// How long until it has something to do by itself.
    fn pause(&self, _now: u64) -> Option<Duration> {
        None
    }

    /// What was measured so far does not count.
    fn warm(&mut self) {}

    /// Round trips, where there are any.
    fn latency(&self) -> Option<Latency> {
        None
    }

    /// The run is over: closes connections; is everything closed?
    fn close(&mut self, _host: &mut Host<'_, N>) -> bool {
        true
    }
}

/// Makes the application of `options`.
pub(super) fn new<N: Nic>(
    options: &Options,
    host: &mut Host<'_, N>,
    schedule: Schedule,
) -> Box<dyn Work<N>> {
    let port = options.served(SINK_PORT);
    match options.workload {
        Workload::UdpStream => Box::new(stream::UdpStream::new(options, host)),
        Workload::TcpStream => Box::new(stream::TcpStream::new(options, host)),
        Workload::UdpSink | Workload::LivelockSink => {
            Box::new(sink::UdpSink::new(options, schedule))
        }
        Workload::TcpSink => Box::new(sink::TcpSink::new(options, host, port)),
        Workload::UdpRr => Box::new(rr::Rr::new(options, rr::Udp::new(options, host))),
        Workload::TcpRr => Box::new(rr::Rr::new(options, rr::Tcp::new(options, host))),
        Workload::Responder => Box::new(serve::Responder::new(options, host, schedule)),
    }
}

/// What the application counts.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) out_of_order: u64,
    pub(super) corrupt: u64,
    pub(super) connections: u64,
    count: u64,
    warmup: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Messages, bytes and time at the end of the warm-up.
    warm: Option<(u64, u64, u64)>,
    sends: bool,
}

impl Tally {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            messages: 0,
            bytes: 0,
            lost: 0,
            out_of_order: 0,
            corrupt: 0,
            connections: 0,
            count: options.count,
            warmup: nanos(options.warmup),
            first_ns: None,
            last_ns: 0,
            warm: None,
            sends: options.workload.calls(),
        }
    }

    /// So many messages with so many bytes of payload went on at `now`.
    #[inline]
    pub(super) fn add(&mut self, now: u64, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
        self.start(now);
    }

    /// The measured stretch begins at `now`, unless it did.
    pub(super) fn start(&mut self, now: u64) {
        self.first_ns.get_or_insert(now);
        self.last_ns = now;
    }

    /// Messages still to go, as far as one pass is concerned.
    pub(super) fn left(&self) -> u32 {
        let left = self.count.saturating_sub(self.messages);
        if self.count == 0 { u32::MAX } else { limit32(left) }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Has something gone or come?
    pub(super) fn has_begun(&self) -> bool {
        self.first_ns.is_some()
    }

    /// Has something come, but nothing for so long?
    pub(super) fn silent(&self, now: u64, nanos: u64) -> bool {
        self.first_ns.is_some() && now.saturating_sub(self.last_ns) >= nanos
    }

    /// Is this the moment when the warm-up ends?
    pub(super) fn warm(&mut self, now: u64) -> bool {
        let over = self.warm.is_none()
            && self.warmup > 0
            && self.first_ns.is_some_and(|first| now >= first + self.warmup);
        if over {
            self.warm = Some((self.messages, self.bytes, now));
        }
        over
    }

    /// Messages and bytes that are not measured.
    pub(super) fn base(&self) -> (u64, u64) {
        self.warm.map_or((0, 0), |(messages, bytes, _)| (messages, bytes))
    }

    /// How long the measured stretch lasted: a sender's ends now, a receiver's with its last
    /// message.
    pub(super) fn nanos(&self, now: u64) -> u64 {
        let end = if self.sends { now } else { self.last_ns };
        let start = self.warm.map(|(_, _, at)| at).or(self.first_ns);
        start.map_or(0, |start| end.saturating_sub(start))
    }
}
