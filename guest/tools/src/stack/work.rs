//! The applications.

mod rr;
mod serve;
mod sink;
mod stream;

use std::time::Duration;

use super::StackError;
use super::options::Options;
use super::report::Schedule;
use super::smoltcp_host::Host;
use crate::pktgen::Latency;
use crate::workload::{SINK_PORT, Tally, Workload};
use vmlan_driver::nic::Nic;

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
    let port = options.task.served(SINK_PORT);
    match options.task.workload {
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
