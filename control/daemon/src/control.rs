//! What the API can ask of the control thread: a closed enum, sent over a channel.
//!
//! The API thread only parses. Everything that opens, closes or changes something happens on the control
//! thread, one action after the other, so that no two requests can meet half-way.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use vmlan_frame::Mac;

use crate::address::{NamedAddress, PortName};
use crate::stats::Stats;

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
    AddPort(NamedAddress, Reply<PortInfo>),
    /// Takes a port away.
    RemovePort(PortName, Reply<()>),
    /// Changes keys of a port's address.
    SetPort(PortName, Vec<(String, String)>, Reply<PortInfo>),
    /// Lists the forwarding table.
    ListFdb(Reply<Vec<FdbLine>>),
    /// Pins an address to a port.
    AddMac(Mac, PortName, Reply<FdbLine>),
    /// Forgets an address.
    RemoveMac(Mac, Reply<()>),
    /// Reads all counters.
    Stats(Reply<Stats>),
    /// A port connected or lost its peer: ageing may have to start.
    PortChanged,
    /// Ends the switch.
    Stop,
}

/// A port, as the API describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its address, with all keys that were given.
    pub address: String,
    /// Connected, and its driver is ready.
    pub up: bool,
    /// What its kind has to say: state, features, queues.
    pub details: serde_json::Map<String, serde_json::Value>,
}

/// A line of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbLine {
    /// The address.
    pub mac: String,
    /// The port it lives behind.
    pub port: String,
    /// Pinned: neither ages nor moves.
    pub r#static: bool,
    /// Seconds since it was last seen, to about a thirtieth of the ageing time; `null` if pinned.
    pub age: Option<u64>,
}

/// Why an action was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What sort of refusal.
    pub cause: Cause,
    /// One line that names the port, the value and the mend.
    pub message: String,
}

/// Sorts of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request makes no sense.
    Invalid,
    /// What it names is not there.
    NotFound,
    /// What it would make is there already.
    Exists,
    /// It was tried and failed.
    Failed,
}

impl Refusal {
    /// With this cause and message.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    /// No port of that name.
    #[must_use]
    pub fn no_port(name: &PortName) -> Self {
        Self::new(Cause::NotFound, format!("port {name}: there is none: see `vmlan port list`"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
