//! The API: HTTP/JSON over a UNIX socket. `openapi.json` beside this code describes it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `socket` | the socket file: who may replace it, its permissions, its removal |
//! | `routes` | methods and paths |
//! | `limits` | shared limits, whole configurations |
//! | `server` | the API thread: parses, asks the control thread, answers |
//! | `body` | bodies of answers, also of those that last as long as a port |
//! | `events` | what happens, as server-sent events |
//! | `client` | the other end, for `vmlan port`, `fdb`, `stats` and `vm-args` |
//! | `web` | a page for browsers, by a process of its own that is a client, too |
//!
//! Anybody who may open the socket may do everything the API can. Its permissions are the only
//! access control; they default to the owner alone. Requests are still bounded in size, number and
//! time: a stuck client must not keep others out.

mod body;
pub mod client;
mod events;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod handlers;
mod limits;
pub mod prometheus;
mod routes;
mod server;
mod socket;
#[cfg(test)]
mod tests;
pub mod web;

pub use client::Client;
pub use server::Server;
pub use socket::{Claim, SocketError};

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use vmlan_engine::info::{FdbLine, ForwardInfo, LeaseInfo, LimitInfo, PortInfo};

/// The OpenAPI description of this API.
pub const OPENAPI: &str = include_str!("openapi.json");

/// `GET /v1/ports`
#[derive(Debug, Serialize, Deserialize)]
pub struct PortList {
    /// In the order they were added.
    pub ports: Vec<PortInfo>,
}

/// `GET /v1/fdb`
#[derive(Debug, Serialize, Deserialize)]
pub struct FdbList {
    /// Sorted by address.
    pub entries: Vec<FdbLine>,
}

/// `GET /v1/leases`
#[derive(Debug, Serialize, Deserialize)]
pub struct LeaseList {
    /// By network and address.
    pub leases: Vec<LeaseInfo>,
}

/// `GET /v1/forwards`
#[derive(Debug, Serialize, Deserialize)]
pub struct ForwardList {
    /// By network, in order.
    pub forwards: Vec<ForwardInfo>,
}

/// `GET /v1/limits`
#[derive(Debug, Serialize, Deserialize)]
pub struct LimitList {
    /// Sorted by name.
    pub limits: Vec<LimitInfo>,
}

/// `POST /v1/apply`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewConfig {
    /// The whole configuration file.
    pub text: String,
    /// What messages call it.
    pub path: String,
    /// Where it is, without links: if the switch was started with that, what it says is what the
    /// next switch has by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Only say what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Only if this is the generation of the configuration that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// `POST /v1/ports`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPort {
    /// Its name.
    pub name: String,
    /// `KIND:PLACE[,KEY=VALUE...]`
    pub address: String,
    /// The port is closed when this connection ends. The answer goes on until then.
    #[serde(default)]
    pub hold: bool,
}

/// `POST /v1/fdb`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewMac {
    /// A unicast address.
    pub mac: String,
    /// The port it lives behind.
    pub port: String,
    /// The VLAN in which it does; need not be named if the port has one.
    #[serde(default)]
    pub vlan: Option<u16>,
}

/// `POST /v1/explain`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhatIf {
    /// The port that would send it.
    pub port: String,
    /// The frame, in hex.
    pub frame: String,
}

/// `POST /v1/stop`
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HowToStop {
    /// What is held for the next switch is let go.
    #[serde(default)]
    pub for_good: bool,
}

/// Every answer but a success.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One line that names the port and the value, and says what to do.
    pub error: String,
}
