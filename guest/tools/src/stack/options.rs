//! What a run is asked to do.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::report::Schedule;
use vmlan_transport::Address;
use vmlan_transport::Mac;

/// Port of the request-response servers, UDP and TCP.
pub const ECHO_PORT: u16 = 7007;
/// Port of the sinks, UDP and TCP.
pub const SINK_PORT: u16 = 7009;
const MAX_DATAGRAM: u32 = 65_507; // Longest payload of a UDP datagram.
const MAX_WRITE: u32 = 1 << 20; // Longest write to a TCP socket.
/// Bytes that a TCP connection may have under way: what Linux allows a sender by default is more,
/// and what a guest's ring holds is less.
const WINDOW: u32 = 256 << 10;
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

    /// Does it start the conversation, and so need [`Options::to`]?
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
    type Err = OptionsError;

    fn from_str(name: &str) -> Result<Self, OptionsError> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, workload)| *workload).ok_or_else(|| OptionsError::Workload(name.into()))
    }
}

/// Options of a run; every field but the first three has a default, see [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The NIC.
    pub address: Address,
    /// What to do.
    pub workload: Workload,
    /// Our address, and how many of its bits are the network.
    pub ip: (Ipv4Addr, u8),
    /// Whom to talk to; with port 0 the workload's usual one.
    pub to: Option<SocketAddrV4>,
    /// The port that is served; 0: the workload's usual one.
    pub port: u16,
    /// The way out of the network.
    pub gateway: Option<Ipv4Addr>,
    /// Our MAC address; without it the NIC's own, or one made from `ip`.
    pub mac: Option<Mac>,
    /// Bytes of an IP packet, at most.
    pub mtu: u16,
    /// Bytes of a datagram's payload, of a write, or of a request; 0: 8, 1460 or 1, as the workload
    /// has it.
    pub size: u32,
    /// Bytes of a TCP stream's send buffer and of a TCP sink's receive buffers: no more are ever
    /// under way. 0: 256 KiB.
    pub window: u32,
    /// Messages to send or receive; 0: no limit.
    pub count: u64,
    /// How long to run.
    pub seconds: Option<Duration>,
    /// Not measured: so long from the first message on.
    pub warmup: Duration,
    /// Datagrams or requests a second; 0: no limit.
    pub rate: u64,
    /// Datagrams given to the driver with one flush, as an application does that sends several with
    /// one call.
    pub burst: u32,
    /// 1: the driver's receive work and the application take turns on one thread. 2: each has its
    /// own.
    pub threads: u8,
    /// Who runs first on one thread, of a sink for datagrams; without, an interrupted driver of a
    /// [`Workload::LivelockSink`] comes before the application, and every other one takes turns.
    pub schedule: Option<Schedule>,
    /// What the application does with a datagram (sinks), in nanoseconds.
    pub app_ns: u64,
    /// Most datagrams that wait for the application.
    pub socket_queue: u16,
    /// Most frames that a driver which polls takes before it is the application's turn.
    pub budget: u16,
    /// TCP sinks: compare every byte with what `tcp-stream` sends.
    pub verify: bool,
    /// How long to poll before sleeping on the interrupt.
    pub spin: Duration,
    /// Time between two [`super::Report::Interval`]s.
    pub report_every: Duration,
    /// Stop when nothing came for so long, once something has come.
    pub idle_exit: Option<Duration>,
    /// How long to wait for the switch and for the peer.
    pub patience: Duration,
    /// Set it to end the run early; looked at about every 100 ms at the least.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Options that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OptionsError {
    #[error(
        "'{0}' is not a workload: use udp-stream, udp-sink, tcp-stream, tcp-sink, udp-rr, tcp-rr, \
         responder or livelock-sink"
    )]
    Workload(String),
    #[error("{0} needs the address of its peer: add --to IP")]
    NoPeer(&'static str),
    #[error("a network of {0} bits: write the address like 10.0.0.1/24")]
    Prefix(u8),
    #[error("{0} is not an address of a host: use one like 10.0.0.1")]
    NotAHost(Ipv4Addr),
    #[error("{0} is not in our network: add --gateway IP, or make the network larger in --ip")]
    FarAway(Ipv4Addr),
    #[error("{name} cannot have messages of {size} bytes: use 1 to {most}")]
    Size { name: &'static str, size: u32, most: u32 },
    #[error("an MTU of {0} bytes: use 576 to 9000")]
    Mtu(u16),
    #[error("a TCP window of {0} bytes: use 1024 to {max}", max = MAX_WINDOW)]
    Window(u32),
    #[error("{0} threads: use 1 (driver and application share it) or 2")]
    Threads(u8),
    #[error("a schedule of one thread, on 2 threads: use --threads 1, or leave the schedule out")]
    Schedule,
    #[error("{0} of 0 moves nothing: use 1 or more")]
    Zero(&'static str),
}

impl Options {
    /// The defaults: usual sizes and ports, no limits, one thread, 256 datagrams of socket queue,
    /// 20 us of polling, one report a second.
    pub fn new(address: Address, workload: Workload, ip: (Ipv4Addr, u8)) -> Self {
        Self {
            address,
            workload,
            ip,
            to: None,
            port: 0,
            gateway: None,
            mac: None,
            mtu: 1500,
            size: 0,
            window: 0,
            count: 0,
            seconds: None,
            warmup: Duration::ZERO,
            rate: 0,
            burst: 1,
            threads: 1,
            schedule: None,
            app_ns: 0,
            socket_queue: 256,
            budget: 64,
            verify: false,
            spin: Duration::from_micros(20),
            report_every: Duration::from_secs(1),
            idle_exit: None,
            patience: Duration::from_secs(10),
            stop: None,
        }
    }

    /// Checks the ranges.
    pub fn check(&self) -> Result<(), OptionsError> {
        let (name, size, most) = (self.workload.name(), self.size(), self.workload.most());
        let (ip, bits) = self.ip;
        if !(1..=30).contains(&bits) {
            return Err(OptionsError::Prefix(bits));
        }
        let hosts = [Some(ip), self.to.map(|to| *to.ip()), self.gateway];
        if let Some(ip) = hosts.into_iter().flatten().find(|ip| !is_host(*ip)) {
            return Err(OptionsError::NotAHost(ip));
        }
        self.check_peer(name)?;
        if !(1..=most).contains(&size) {
            return Err(OptionsError::Size { name, size, most });
        }
        if !(576..=9000).contains(&self.mtu) {
            return Err(OptionsError::Mtu(self.mtu));
        }
        if self.window != 0 && !(1024..=MAX_WINDOW).contains(&self.window) {
            return Err(OptionsError::Window(self.window));
        }
        if !(1..=2).contains(&self.threads) {
            return Err(OptionsError::Threads(self.threads));
        }
        if self.threads == 2 && self.schedule.is_some_and(|s| s != Schedule::Parallel) {
            return Err(OptionsError::Schedule);
        }
        let zeros = [
            (self.burst == 0, "a burst"),
            (self.socket_queue == 0, "a socket queue"),
            (self.budget == 0, "a budget"),
        ];
        zeros.iter().find(|zero| zero.0).map_or(Ok(()), |zero| Err(OptionsError::Zero(zero.1)))
    }

    fn check_peer(&self, name: &'static str) -> Result<(), OptionsError> {
        if !self.workload.calls() {
            return Ok(());
        }
        let to = *self.to.ok_or(OptionsError::NoPeer(name))?.ip();
        let mask = u32::MAX << (32 - u32::from(self.ip.1));
        let near = (to.to_bits() ^ self.ip.0.to_bits()) & mask == 0;
        if near || self.gateway.is_some() { Ok(()) } else { Err(OptionsError::FarAway(to)) }
    }

    /// Bytes of a message.
    pub fn size(&self) -> u32 {
        if self.size == 0 { self.workload.size() } else { self.size }
    }

    /// Bytes of a TCP connection's buffer.
    pub(super) fn window(&self) -> usize {
        if self.window == 0 { WINDOW as usize } else { self.window as usize }
    }

    /// The peer, with its port.
    pub(super) fn peer(&self) -> SocketAddrV4 {
        let to = self.to.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let port = if to.port() == 0 { self.workload.port() } else { to.port() };
        SocketAddrV4::new(*to.ip(), port)
    }

    /// The port of a server, or what is usual for it.
    pub(super) fn served(&self, usual: u16) -> u16 {
        if self.port == 0 || self.workload == Workload::Responder { usual } else { self.port }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

fn is_host(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast() && !ip.is_loopback()
}
