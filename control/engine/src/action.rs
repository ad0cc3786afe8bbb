//! What the API can ask of the control thread: a closed enum, sent over a channel.
//!
//! The API thread only parses. Everything that opens, closes or changes something happens on the
//! control thread, one action after the other, so that no two requests can meet half-way.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use vmlan_frame::Mac;

use crate::events::{Event, Listener};
use crate::explain::Explained;
use crate::info::{
    Applied, FdbLine, ForwardInfo, Generation, LeaseInfo, LimitInfo, PortInfo, ProcessInfo,
    SflowInfo,
};
use crate::stats::Stats;
use vmlan_config::address::{LimitTable, NamedAddress, PortName, SflowTable};
use vmlan_config::file::Config;
use vmlan_config::refusal::Refusal;

/// Where the answer goes. If nobody waits for it any more it is dropped.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// Holds a port: it is closed once the other end of this is gone, which hears of the port's end.
pub type Holder = Arc<oneshot::Sender<Infallible>>;

/// What can be asked of the control thread.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Action {
    ListPorts(Reply<Vec<PortInfo>>),
    GetPort(PortName, Reply<PortInfo>),
    AddPort(Box<NamedAddress>, Option<Holder>, Reply<PortInfo>),
    RemovePort(PortName, Reply<()>),
    /// Changes keys of a port's address.
    SetPort(PortName, Vec<(String, String)>, Reply<PortInfo>),
    ListFdb(Reply<Vec<FdbLine>>),
    /// Pins an address to a port.
    AddMac(Mac, PortName, Option<u16>, Reply<FdbLine>),
    RemoveMac(Mac, Option<u16>, Reply<()>),
    ListLimits(Reply<Vec<LimitInfo>>),
    GetLimit(PortName, Reply<LimitInfo>),
    SetLimit(PortName, LimitTable, Reply<LimitInfo>),
    RemoveLimit(PortName, Reply<()>),
    /// Makes the switch what a configuration file says; if true, only says what that would change.
    /// With a number, only if that is the configuration's generation. The file is at this place.
    Apply(Box<Config>, Option<PathBuf>, bool, Option<u64>, Reply<Applied>),
    GetGeneration(Reply<Generation>),
    /// Tells what happens from now on.
    Listen(Reply<(Listener, Event)>),
    GetSflow(Reply<SflowInfo>),
    /// Exports samples like this, or not at all.
    SetSflow(Option<SflowTable>, Reply<SflowInfo>),
    /// Lists the addresses that gateways have given.
    ListLeases(Reply<Vec<LeaseInfo>>),
    /// Forgets the leases of an address, a NIC or a port.
    RemoveLease(String, Reply<()>),
    /// Lists the ports of the host that lead to VMs.
    ListForwards(Reply<Vec<ForwardInfo>>),
    Stats(Reply<Stats>),
    /// Says what would become of a frame from a port.
    Explain(PortName, Vec<u8>, Reply<Explained>),
    /// Who held a port may be gone.
    HolderGone,
    /// A port connected or lost its peer: ageing may have to start.
    PortChanged,
    /// What the switch is as a process.
    GetProcess(Reply<ProcessInfo>),
    /// Ends, and says what ends. What is held for the next switch is left to it, unless it is to be
    /// for good.
    End(bool, Reply<ProcessInfo>),
    Stop,
    /// Ends as well, and leaves to the next switch what is held for it.
    HandOver,
}
