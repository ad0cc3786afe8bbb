//! What the API can ask of the control thread: a closed enum, sent over a channel.
//!
//! The API thread only parses. Everything that opens, closes or changes something happens on the
//! control thread, one action after the other, so that no two requests can meet half-way.

use tokio::sync::oneshot;
use vmlan_frame::Mac;

use crate::explain::Explained;
use crate::info::{Applied, FdbLine, LimitInfo, PortInfo, SflowInfo};
use crate::stats::Stats;
use vmlan_config::address::{LimitTable, NamedAddress, PortName, SflowTable};
use vmlan_config::file::Config;
use vmlan_config::refusal::Refusal;

/// Where the answer goes. If nobody waits for it any more it is dropped.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// What can be asked of the control thread.
#[derive(Debug)]
pub enum Action {
    /// Lists the ports.
    ListPorts(Reply<Vec<PortInfo>>),
    /// Describes one port.
    GetPort(PortName, Reply<PortInfo>),
    /// Adds a port.
    AddPort(Box<NamedAddress>, Reply<PortInfo>),
    /// Removes a port.
    RemovePort(PortName, Reply<()>),
    /// Changes keys of a port's address.
    SetPort(PortName, Vec<(String, String)>, Reply<PortInfo>),
    /// Lists the forwarding table.
    ListFdb(Reply<Vec<FdbLine>>),
    /// Pins an address to a port.
    AddMac(Mac, PortName, Option<u16>, Reply<FdbLine>),
    /// Forgets an address.
    RemoveMac(Mac, Option<u16>, Reply<()>),
    /// Lists the limits that ports share.
    ListLimits(Reply<Vec<LimitInfo>>),
    /// Describes one of them.
    GetLimit(PortName, Reply<LimitInfo>),
    /// Makes one, or changes it.
    SetLimit(PortName, LimitTable, Reply<LimitInfo>),
    /// Removes one.
    RemoveLimit(PortName, Reply<()>),
    /// Makes the switch what a configuration file says; if true, only says what that would change.
    Apply(Box<Config>, bool, Reply<Applied>),
    /// Describes the export of samples.
    GetSflow(Reply<SflowInfo>),
    /// Exports samples like this, or not at all.
    SetSflow(Option<SflowTable>, Reply<SflowInfo>),
    /// Reads all counters.
    Stats(Reply<Stats>),
    /// Says what would become of a frame from a port.
    Explain(PortName, Vec<u8>, Reply<Explained>),
    /// A port connected or lost its peer: ageing may have to start.
    PortChanged,
    /// Ends the switch.
    Stop,
}
