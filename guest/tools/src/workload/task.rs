//! What a run is asked to do.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Port of the request-response servers, UDP and TCP.
pub const ECHO_PORT: u16 = 7007;
/// Port of the sinks, UDP and TCP.
pub const SINK_PORT: u16 = 7009;
const MAX_DATAGRAM: u32 = 65_507; // Longest payload of a UDP datagram.
const MAX_WRITE: u32 = 1 << 20; // Longest write to a TCP socket.
/// The most that can be asked for; a sink has a buffer of this size for each connection.
const MAX_WINDOW: u32 = 16 << 20;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Send datagrams as fast as they go, or at a rate.
    UdpStream,
    /// Receive datagrams.
    UdpSink,
    /// Write to a TCP connection.
    TcpStream,
    /// Read all TCP connections to a port.
    TcpSink,
    /// Send a request over UDP, wait for the answer, and so on.
    UdpRr,
    /// Requests and responses over one TCP connection.
    TcpRr,
    /// Serve all of the above at once.
    Responder,
    /// Receive datagrams as a guest whose driver and application compete for its processors.
    LivelockSink,
}

impl Workload {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 8] = [
        ("udp-stream", Self::UdpStream),
        ("udp-sink", Self::UdpSink),
        ("tcp-stream", Self::TcpStream),
        ("tcp-sink", Self::TcpSink),
        ("udp-rr", Self::UdpRr),
        ("tcp-rr", Self::TcpRr),
        ("responder", Self::Responder),
        ("livelock-sink", Self::LivelockSink),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, workload)| *workload == self).map_or("", |(name, _)| name)
    }

    /// Does it start the conversation, and so need [`Task::to`]?
    pub fn calls(self) -> bool {
        matches!(self, Self::UdpStream | Self::TcpStream | Self::UdpRr | Self::TcpRr)
    }

    /// The port of the server's side.
    pub fn port(self) -> u16 {
        if matches!(self, Self::UdpRr | Self::TcpRr) { ECHO_PORT } else { SINK_PORT }
    }

    /// Bytes of a message when nothing is said: what the paper's figures 4 and 5 have.
    fn size(self) -> u32 {
        match self {
            Self::TcpStream => 1460,
            Self::UdpRr | Self::TcpRr => 1,
            _ => 8,
        }
    }

    fn most(self) -> u32 {
        match self {
            Self::TcpStream => MAX_WRITE,
            // Requests and answers are handled by the stack, which does not fragment.
            Self::UdpRr | Self::TcpRr => 1400,
            _ => MAX_DATAGRAM,
        }
    }
}

impl FromStr for Workload {
    type Err = TaskError;

    fn from_str(name: &str) -> Result<Self, TaskError> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, workload)| *workload).ok_or_else(|| TaskError::Workload(name.into()))
    }
}

/// A workload and its bounds; every field but the first has a default, see [`Task::new`].
#[derive(Clone, Debug)]
pub struct Task {
    /// What to do.
    pub workload: Workload,
    /// Whom to talk to; with port 0 the workload's usual one.
    pub to: Option<SocketAddrV4>,
    /// The port that is served; 0: the workload's usual one.
    pub port: u16,
    /// Bytes of a datagram's payload, of a write, or of a request; 0: 8, 1460 or 1, as the workload
    /// has it.
    pub size: u32,
    /// Bytes of a TCP stream's send buffer and of a TCP sink's receive buffers. 0: what is usual.
    pub window: u32,
    /// Messages to send or receive; 0: no limit.
    pub count: u64,
    /// How long to run.
    pub seconds: Option<Duration>,
    /// Not measured: so long from the first message on. Less than `seconds`.
    pub warmup: Duration,
    /// Datagrams or requests a second; 0: no limit.
    pub rate: u64,
    /// Datagrams handed over at once, as by an application that sends several with one call.
    pub burst: u32,
    /// What the application does with a datagram (sinks), in nanoseconds.
    pub app_ns: u64,
    /// TCP sinks: compare every byte with what `tcp-stream` sends.
    pub verify: bool,
    /// Time between two [`super::Interval`]s.
    pub report_every: Duration,
    /// Stop when nothing came for so long, once something has come.
    pub idle_exit: Option<Duration>,
    /// How long to wait for the peer, and for whatever leads to it.
    pub patience: Duration,
    /// Set it to end the run early; looked at about every 100 ms at the least.
    pub stop: Option<Arc<AtomicBool>>,
}

/// A task that cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TaskError {
    #[error(
        "'{0}' is not a workload: use udp-stream, udp-sink, tcp-stream, tcp-sink, udp-rr, tcp-rr, \
         responder or livelock-sink"
    )]
    Workload(String),
    #[error("{0} needs the address of its peer: add --to IP")]
    NoPeer(&'static str),
    #[error("{name} cannot have messages of {size} bytes: use 1 to {most}")]
    Size { name: &'static str, size: u32, most: u32 },
    #[error("a TCP window of {0} bytes: use 1024 to {max}", max = MAX_WINDOW)]
    Window(u32),
    #[error(
        "nothing is measured: a warm-up of {warmup:?} in a run of {run:?}: use a longer run (-T)"
    )]
    Warmup { warmup: Duration, run: Duration },
    #[error("{0} of 0 moves nothing: use 1 or more")]
    Zero(&'static str),
}

impl Task {
    /// The defaults: usual sizes and ports, no limits, one report a second.
    pub fn new(workload: Workload) -> Self {
        Self {
            workload,
            to: None,
            port: 0,
            size: 0,
            window: 0,
            count: 0,
            seconds: None,
            warmup: Duration::ZERO,
            rate: 0,
            burst: 1,
            app_ns: 0,
            verify: false,
            report_every: Duration::from_secs(1),
            idle_exit: None,
            patience: Duration::from_secs(10),
            stop: None,
        }
    }

    /// Checks the ranges.
    pub fn check(&self) -> Result<(), TaskError> {
        let (name, size, most) = (self.workload.name(), self.size(), self.workload.most());
        if self.workload.calls() && self.to.is_none() {
            return Err(TaskError::NoPeer(name));
        }
        if !(1..=most).contains(&size) {
            return Err(TaskError::Size { name, size, most });
        }
        if self.window != 0 && !(1024..=MAX_WINDOW).contains(&self.window) {
            return Err(TaskError::Window(self.window));
        }
        if let Some(run) = self.seconds.filter(|run| !self.warmup.is_zero() && self.warmup >= *run)
        {
            return Err(TaskError::Warmup { warmup: self.warmup, run });
        }
        if self.burst == 0 { Err(TaskError::Zero("a burst")) } else { Ok(()) }
    }

    /// Bytes of a message.
    pub fn size(&self) -> u32 {
        if self.size == 0 { self.workload.size() } else { self.size }
    }

    /// The peer, with its port.
    pub(crate) fn peer(&self) -> SocketAddrV4 {
        let to = self.to.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let port = if to.port() == 0 { self.workload.port() } else { to.port() };
        SocketAddrV4::new(*to.ip(), port)
    }

    /// The port of a server, or what is usual for it.
    pub(crate) fn served(&self, usual: u16) -> u16 {
        if self.port == 0 || self.workload == Workload::Responder { usual } else { self.port }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}
