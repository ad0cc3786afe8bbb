//! Why an address, or a part of one, is refused.

use super::Kind;

/// Why an address, or a name, is not accepted. Each message names the value and says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AddressError {
    #[error("'{0}' has no name: write NAME=KIND:PLACE, e.g. vm1=vhost-user:/run/vm1.sock")]
    NoName(String),
    #[error(
        "'{0}' is not a valid name for a port: 1 to 32 letters, digits, '.', '_', '-', the first a \
            letter or digit"
    )]
    Name(String),
    #[error(
        "'{0}' is not a valid name for a limit or group: 1 to 32 letters, digits, '.', '_', '-', \
            the first a letter or digit, and not all, any or none"
    )]
    RuleName(String),
    #[error("'{0}' is not a valid address: write KIND:PLACE, e.g. vhost-user:/run/vm1.sock")]
    NoKind(String),
    #[error("'{given}' is not a kind of port: {hint}")]
    Kind { given: String, hint: String },
    #[error("'{given}' is not a valid place for {kind}: {wanted} is wanted")]
    Place { given: String, kind: Kind, wanted: String },
    #[error("'{given}' is not a key of {of}: {hint}")]
    Key { given: String, of: &'static str, hint: String },
    #[error("key '{0}' is given twice: leave one out")]
    Twice(String),
    #[error("{key} has no value: write {key}=VALUE, {wanted}")]
    NoValue { key: &'static str, wanted: String },
    #[error("{key}={given}: {wanted} is wanted")]
    Value { key: &'static str, given: String, wanted: String },
    #[error("{key}={given}: {what} is given twice: leave one out")]
    Double { key: &'static str, given: String, what: String },
    #[error("{0} does not go with {1}: leave one out")]
    Contradiction(String, String),
    #[error("{given} wants {wanted} beside it: add it, or leave {key} out")]
    Alone { key: &'static str, given: String, wanted: &'static str },
    #[error("a limit wants rate=RATE, frames=N, or both: add one")]
    EmptyLimit,
    #[error("[sflow] wants collector = \"IP:PORT\": add it")]
    NoCollector,
    #[error(
        "doorbell=mapped does not go with model={0}: the switch must be told of stores to its {1}, \
            which are in one page with its doorbells: leave it out, or write model=e1000"
    )]
    NoMapped(&'static str, &'static str),
    #[error(
        "poll_idle={0} does not go with model={1}: it is for mapped doorbells, which this NIC \
            cannot have: leave it out, or write model=e1000"
    )]
    NotPolled(String, &'static str),
    #[error(
        "csb=on does not go with plus=off: a plain RTL8139 has no descriptor rings whose indexes \
            could be shared: leave one out"
    )]
    CsbPlain,
    #[error("csb=on does not go with model={0}, {1}: leave one out")]
    NoCsb(&'static str, &'static str),
    #[error(
        "csb=on does not go with doorbell=mapped: the switch must be told of a kick, and a store \
            to a mapped register tells it nothing: leave one out"
    )]
    CsbMapped,
}

impl AddressError {
    /// The key that is wrong, if it is one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key { given: key, .. } | Self::Twice(key) => Some(key),
            Self::NoValue { key, .. }
            | Self::Value { key, .. }
            | Self::Double { key, .. }
            | Self::Alone { key, .. } => Some(key),
            Self::Contradiction(_, said) => said.split('=').next(),
            Self::CsbMapped | Self::CsbPlain | Self::NoCsb(..) => Some("csb"),
            Self::NoMapped(..) => Some("doorbell"),
            Self::NotPolled(..) => Some("poll_idle"),
            _ => None,
        }
    }
}
