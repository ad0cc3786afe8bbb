//! Addresses of ports: `KIND:PLACE[,KEY=VALUE...]`, and the names ports have.
//!
//! Strict on purpose: an unknown kind or key, a value out of range, a key given twice is an error
//! that names the value and the words that would do. The tables in `keys.rs` are the only place
//! where the words are listed: the parser, the configuration file, `--help` and the error messages
//! all read them.
//!
//! A comma inside PLACE or a value is written twice (`pcap:/tmp/a,,b.pcapng`), as QEMU has it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::address_change::KeyChange;

mod amount;
mod draft;
mod error;
mod keys;
mod kind;
mod list;
mod name;
mod policy;
mod spec;
mod tables;
mod value;
mod values;
pub use draft::Draft;
pub use error::AddressError;
pub use keys::{Key, LIMIT, POLICY, SFLOW};
pub use kind::Kind;
pub use list::{IpRange, IpRule, MacRule, ValueError, VidList};
pub use name::{PortName, rule_name};
pub use policy::{Direction, PortLimit, PortPolicy, VlanRule, WatchRule, WatchedPorts};
pub use spec::{Doorbell, Model, Nat, Packet, Pcap, Spec, Stream, Tap, VfioUser, VhostUser, Xdp};
pub use tables::{LimitTable, Pair, SflowTable};
pub use value::{Takes, Value, parse_mode};

/// Longest path of a UNIX socket: `sun_path` (unix(7)) without its final zero.
pub const SOCKET_PATH: usize = 107;

/// Where frames enter and leave: a kind of port, its place, and what its keys say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// What was written, for messages and comparisons.
    draft: Draft,
    spec: Spec,
    policy: PortPolicy,
}

impl Address {
    /// Its kind.
    pub const fn kind(&self) -> Kind {
        self.draft.kind
    }

    /// Its place.
    pub fn place(&self) -> &str {
        &self.draft.place
    }

    /// What no two ports may have: a place of a sort. What two kinds did with one interface of the
    /// host would be done twice.
    pub fn site(&self) -> (&'static str, &str) {
        let kind = self.kind();
        (if kind.is_interface() { "interface" } else { kind.name() }, self.place())
    }

    /// The socket or capture file that the port makes, if it makes one.
    pub fn makes(&self) -> Option<&Path> {
        let makes = match &self.spec {
            Spec::VhostUser(VhostUser { connect, .. }) | Spec::Stream(Stream { connect, .. }) => {
                !connect
            }
            Spec::VfioUser(_) | Spec::Pcap(_) => true,
            Spec::Tap(_) | Spec::Packet(_) | Spec::Xdp(_) | Spec::Nat(_) => false,
        };
        makes.then(|| Path::new(self.place()))
    }

    /// The address that a gateway keeps for the port.
    #[must_use]
    pub fn reserved(&self) -> Option<std::net::Ipv4Addr> {
        match self.value("ip") {
            Some(Value::Ip(std::net::IpAddr::V4(ip))) => Some(*ip),
            _ => None,
        }
    }

    /// What the port is.
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What the port may do.
    pub const fn policy(&self) -> &PortPolicy {
        &self.policy
    }

    /// The same, to be changed and checked again.
    pub fn draft(&self) -> Draft {
        self.draft.clone()
    }

    /// The same at another place.
    pub fn at(&self, place: &str) -> Result<Self, AddressError> {
        let draft = Draft { values: self.draft.values.clone(), ..Draft::new(self.kind(), place)? };
        Ok(Self { draft, ..self.clone() })
    }

    /// The value of a key as it was given, for messages; `None`: it was not given.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.draft.values.get(key)
    }

    /// The keys whose values differ from those of `other`, which has the same kind and place;
    /// `None` if it does not have the key.
    pub fn differences(&self, other: &Self) -> Option<Vec<&'static str>> {
        let same = self.kind() == other.kind() && self.place() == other.place();
        same.then(|| self.draft.values.differences(&other.draft.values))
    }

    /// What changes from `old` to this: key, value before, value now.
    pub fn changes(&self, old: &Self) -> Vec<KeyChange> {
        let change = |key: &str, old, new| KeyChange { key: key.to_owned(), old, new };
        let of = |address: &Self, key| address.value(key).map(Value::to_string);
        let whereabouts =
            [("kind", old.kind().name(), self.kind().name()), ("place", old.place(), self.place())];
        let moved = whereabouts.into_iter().filter(|(_, old, new)| old != new);
        let moved = moved.map(|(key, old, new)| change(key, Some(old.into()), Some(new.into())));
        let keys = self.draft.values.differences(&old.draft.values).into_iter();
        moved.chain(keys.map(|key| change(key, of(old, key), of(self, key)))).collect()
    }

    /// True if `other` can become this without being closed.
    pub fn differs_only_live(&self, other: &Self) -> bool {
        let keys = self.differences(other);
        keys.is_some_and(|keys| keys.iter().all(|key| self.kind().is_live(key)))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        Draft::parse(s)?.check()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.draft.fmt(f)
    }
}

/// `NAME=ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NamedAddress {
    pub name: PortName,
    pub address: Address,
}

impl FromStr for NamedAddress {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        let (name, address) = s.split_once('=').ok_or_else(|| AddressError::NoName(s.into()))?;
        if name.contains(':') {
            return Err(AddressError::NoName(s.into()));
        }
        Ok(Self { name: name.parse()?, address: address.parse()? })
    }
}

#[cfg(test)]
mod tests;
