//! What a run is asked to do.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::report::Schedule;
use crate::workload::{Task, TaskError, Workload};
use vmlan_transport::Address;
use vmlan_transport::Mac;

/// Bytes that a TCP connection may have under way: what Linux allows a sender by default is more,
/// and what a guest's ring holds is less.
const WINDOW: u32 = 256 << 10;

/// Options of a run; every field but the first three has a default, see [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The NIC.
    pub address: Address,
    /// What to do on it.
    pub task: Task,
    /// Our address, and how many of its bits are the network.
    pub ip: (Ipv4Addr, u8),
    /// The way out of the network.
    pub gateway: Option<Ipv4Addr>,
    /// Our MAC address; without it the NIC's own, or one made from `ip`.
    pub mac: Option<Mac>,
    /// Bytes of an IP packet, at most.
    pub mtu: u16,
    /// 1: the driver's receive work and the application take turns on one thread. 2: each has its
    /// own.
    pub threads: u8,
    /// Who runs first on one thread, of a sink for datagrams; without, an interrupted driver of a
    /// [`Workload::LivelockSink`] comes before the application, and every other one takes turns.
    pub schedule: Option<Schedule>,
    /// Most datagrams that wait for the application.
    pub socket_queue: u16,
    /// Most frames that a driver which polls takes before it is the application's turn.
    pub budget: u16,
    /// How long to poll before sleeping on the interrupt.
    pub spin: Duration,
}

/// Options that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OptionsError {
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("a network of {0} bits: write the address like 10.0.0.1/24")]
    Prefix(u8),
    #[error("{0} is not an address of a host: use one like 10.0.0.1")]
    NotAHost(Ipv4Addr),
    #[error("{0} is not in our network: add --gateway IP, or make the network larger in --ip")]
    FarAway(Ipv4Addr),
    #[error("an MTU of {0} bytes: use 576 to 9000")]
    Mtu(u16),
    #[error("{0} threads: use 1 (driver and application share it) or 2")]
    Threads(u8),
    #[error("a schedule of one thread, on 2 threads: use --threads 1, or leave the schedule out")]
    Schedule,
}

impl Options {
    /// The defaults: usual sizes and ports, no limits, one thread, 256 datagrams of socket queue,
    /// 20 us of polling, one report a second.
    pub fn new(address: Address, workload: Workload, ip: (Ipv4Addr, u8)) -> Self {
        Self {
            address,
            task: Task::new(workload),
            ip,
            gateway: None,
            mac: None,
            mtu: 1500,
            threads: 1,
            schedule: None,
            socket_queue: 256,
            budget: 64,
            spin: Duration::from_micros(20),
        }
    }

    /// Checks the ranges.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.task.check()?;
        let (ip, bits) = self.ip;
        if !(1..=30).contains(&bits) {
            return Err(OptionsError::Prefix(bits));
        }
        let to = self.task.to.map(|to| *to.ip());
        let hosts = [Some(ip), to, self.gateway];
        if let Some(ip) = hosts.into_iter().flatten().find(|ip| !is_host(*ip)) {
            return Err(OptionsError::NotAHost(ip));
        }
        let mask = u32::MAX << (32 - u32::from(bits));
        let is_near = |to: &Ipv4Addr| (to.to_bits() ^ ip.to_bits()) & mask == 0;
        let to = to.filter(|to| self.task.workload.calls() && !is_near(to));
        if let (Some(to), None) = (to, self.gateway) {
            return Err(OptionsError::FarAway(to));
        }
        if !(576..=9000).contains(&self.mtu) {
            return Err(OptionsError::Mtu(self.mtu));
        }
        if !(1..=2).contains(&self.threads) {
            return Err(OptionsError::Threads(self.threads));
        }
        if self.threads == 2 && self.schedule.is_some_and(|s| s != Schedule::Parallel) {
            return Err(OptionsError::Schedule);
        }
        let zeros = [(self.socket_queue == 0, "a socket queue"), (self.budget == 0, "a budget")];
        let zero = zeros.iter().find(|zero| zero.0);
        zero.map_or(Ok(()), |zero| Err(TaskError::Zero(zero.1).into()))
    }

    /// Bytes of a TCP connection's buffer: no more are ever under way.
    pub(super) fn window(&self) -> usize {
        if self.task.window == 0 { WINDOW as usize } else { self.task.window as usize }
    }
}

fn is_host(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast() && !ip.is_loopback()
}
