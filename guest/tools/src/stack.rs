//! UDP and TCP sockets with no kernel in the way, on any [`Nic`](vmlan_driver::nic::Nic), and the
//! workloads that netperf's users know: streams, sinks, request-response; and a sink that shows
//! receive livelock.
//!
//! ```no_run
//! use std::net::{Ipv4Addr, SocketAddrV4};
//! use vmlan_tools::stack::{self, Options, Workload};
//! let address = "vfio-user:/run/vm1.sock".parse().unwrap();
//! let mut options = Options::new(address, Workload::TcpStream, (Ipv4Addr::new(10, 0, 0, 1), 24));
//! options.task.to = Some(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 0));
//! options.task.seconds = Some(std::time::Duration::from_secs(5));
//! let summary = stack::run(&options, &mut |report| eprintln!("{report}")).unwrap();
//! println!("{:.0} Mbit/s", summary.totals.mbit_per_s);
//! ```
//!
//! ```text
//!   application      udp-stream ...      tcp-rr ...      udp-sink, livelock-sink ...
//!                        |                   |                  ^
//!   sockets              |                smoltcp               | socket queue, bounded
//!                  header built before       |  ^ backlog       |
//!   driver           Driver::send            v  |        Driver::receive
//!                        +------ lock -------+--+---------------+
//!   device                            Device
//! ```
//! TCP, ARP and request-response go through smoltcp. Datagrams of streams and sinks go past it: the
//! addresses are those that smoltcp resolved, the header is built once, and a datagram costs a copy
//! and a checksum, as in a kernel. With one thread the driver's receive work and the application
//! take turns; with two, receive work has its own, and the lock stands between them.
//!
//! Panic contract: nothing that arrives makes this panic.

mod driver;
mod engine;
mod frame;
mod inbox;
mod options;
mod receive_thread;
mod report;
mod smoltcp_device;
mod smoltcp_host;
#[cfg(test)]
pub(crate) mod tests;
mod work;

use std::net::SocketAddrV4;

pub use crate::workload::{ECHO_PORT, SINK_PORT, Task, TaskError, Workload};
pub use engine::run;
pub use options::{Options, OptionsError};
pub use report::{Interval, Report, Schedule, Summary};

pub use crate::pktgen::Latency;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StackError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("the NIC failed")]
    Device(#[from] vmlan_driver::nic::NicError),
    #[error(
        "the NIC takes frames of {room} bytes, and an MTU of {mtu} needs {}: use a smaller --mtu",
        .mtu + 14
    )]
    Room { room: usize, mtu: u16 },
    #[error(
        "a datagram takes {frames} frames, and the NIC has {slots} slots: use a smaller -l, or a \
         larger size= in the address"
    )]
    Slots { slots: u16, frames: usize },
    #[error(
        "no answer from {0}: is a server there (`vmlan stack -f responder`), and in the same LAN?"
    )]
    NoAnswer(SocketAddrV4),
    #[error("{0} closed the connection: is a server there (`vmlan stack -f responder`)?")]
    Closed(SocketAddrV4),
}
