//! Addresses of ports: `KIND:PLACE[,KEY=VALUE...]`, and the names ports have.
//!
//! Strict on purpose: an unknown kind or key, a value out of range, a key given twice is an error that
//! names the value and the words that would do. The tables in `keys.rs` are the only place where the
//! words are listed: the parser, the configuration file, `--help` and the error messages all read them.
//!
//! A comma inside PLACE or a value is written twice (`pcap:/tmp/a,,b.pcapng`), as QEMU has it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use vmlan_frame::Mac;

use crate::change::KeyChange;
use crate::hint::hint;

mod amount;
mod keys;
mod list;
mod policy;
mod tables;
mod value;
mod values;
pub use keys::{Key, LIMIT, POLICY, SFLOW};
pub use list::{Bad, IpRange, MacRule, VidList};
pub use policy::{Direction, VlanRule};
pub use tables::{LimitTable, Pair, SflowTable};
pub use value::{Takes, Value, parse_mode};
use values::Values;

/// Longest path of a UNIX socket: `sun_path` (unix(7)) without its final zero.
pub const SOCKET_PATH: usize = 107;

/// Longest name of a network interface: IFNAMSIZ without its final zero.
const INTERFACE_NAME: usize = 15;

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A VM's virtio-net NIC over a vhost-user socket.
    VhostUser,
    /// A VM's emulated NIC over a vfio-user socket.
    VfioUser,
    /// A TAP device of this host.
    Tap,
    /// QEMU's `-netdev stream` framing over a UNIX socket.
    Stream,
    /// A capture file that other ports are mirrored into.
    Pcap,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::VhostUser, Self::VfioUser, Self::Tap, Self::Stream, Self::Pcap];

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost-user",
            Self::VfioUser => "vfio-user",
            Self::Tap => "tap",
            Self::Stream => "stream",
            Self::Pcap => "pcap",
        }
    }

    /// What PLACE is, for messages.
    #[must_use]
    pub const fn place(self) -> &'static str {
        match self {
            Self::VhostUser | Self::VfioUser | Self::Stream => "the path of a UNIX socket",
            Self::Tap => "the name of a network interface (1 to 15 characters)",
            Self::Pcap => "the path of a file",
        }
    }

    fn names() -> [&'static str; 5] {
        Self::ALL.map(Self::name)
    }
}

impl FromStr for Kind {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        let found = Self::ALL.into_iter().find(|k| k.name() == s);
        found.ok_or_else(|| AddressError::Kind { given: s.into(), hint: hint(s, &Self::names()) })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why an address, or a name, is not accepted. Each message names the value and the mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum AddressError {
    #[error("'{0}' has no name: write NAME=KIND:PLACE, e.g. vm1=vhost-user:/run/vm1.sock")]
    NoName(String),
    #[error(
        "'{0}' is no name for a port: 1 to 32 letters, digits, '.', '_', '-', the first a letter or digit"
    )]
    Name(String),
    #[error(
        "'{0}' is no name for a limit or group: 1 to 32 letters, digits, '.', '_', '-', the first a letter or digit, and not all, any or none"
    )]
    RuleName(String),
    #[error("'{0}' is no address: write KIND:PLACE, e.g. vhost-user:/run/vm1.sock")]
    NoKind(String),
    #[error("'{given}' is no kind of port: {hint}")]
    Kind { given: String, hint: String },
    #[error("'{given}' is no place for {kind}: {wanted} is wanted")]
    Place { given: String, kind: Kind, wanted: String },
    #[error("'{given}' is no key of {of}: {hint}")]
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
        "doorbell=mapped does not go with model={0}: its 256 bytes of registers are one page, and a store to those beside the doorbell (interrupt status, commands) must be heard: leave it out, or write model=e1000"
    )]
    NoMapped(String),
    #[error(
        "poll_idle={0} does not go with model={1}: it is for mapped doorbells, and its 256 bytes of registers are one page, which must be heard: leave it out, or write model=e1000"
    )]
    NotPolled(String, String),
    #[error(
        "csb=on does not go with plus=off: a plain RTL8139 has no descriptor rings whose indexes could be shared: leave one out"
    )]
    CsbPlain,
    #[error(
        "csb=on does not go with doorbell=mapped: a kick must be heard, and a store to a mapped register rings nobody: leave one out"
    )]
    CsbMapped,
}

impl AddressError {
    /// The key that is wrong, if it is one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key { given: key, .. } | Self::Twice(key) => Some(key),
            Self::NoValue { key, .. }
            | Self::Value { key, .. }
            | Self::Double { key, .. }
            | Self::Alone { key, .. } => Some(key),
            Self::Contradiction(_, said) => said.split('=').next(),
            Self::CsbMapped | Self::CsbPlain => Some("csb"),
            Self::NoMapped(_) => Some("doorbell"),
            Self::NotPolled(..) => Some("poll_idle"),
            _ => None,
        }
    }
}

/// Where frames enter and leave: a kind of port, its place, and values for its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    kind: Kind,
    place: String,
    values: Values,
}

impl Address {
    /// A port of `kind` at `place`, all keys at their defaults.
    ///
    /// # Errors
    /// [`AddressError::Place`] if `place` is none for this kind.
    pub fn new(kind: Kind, place: &str) -> Result<Self, AddressError> {
        let fail =
            |wanted: &str| AddressError::Place { given: place.into(), kind, wanted: wanted.into() };
        if place.is_empty() || place.contains('\0') {
            return Err(fail(kind.place()));
        }
        match kind {
            Kind::VhostUser | Kind::VfioUser | Kind::Stream if place.len() > SOCKET_PATH => {
                return Err(fail("a shorter path (at most 107 bytes)"));
            }
            Kind::Tap if !is_interface_name(place) => return Err(fail(kind.place())),
            _ => {}
        }
        Ok(Self { kind, place: place.into(), values: Values::default() })
    }

    /// Sets `key`, checked. A key that was set already is an error.
    ///
    /// # Errors
    /// An [`AddressError`] that names the key, the value and what would do.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), AddressError> {
        self.values.set(self.kind.name(), self.kind.all_keys(), name, value)
    }

    /// As [`Address::set`], but a value that is there is replaced, and an empty one takes the key away.
    ///
    /// # Errors
    /// As [`Address::set`].
    pub fn replace(&mut self, name: &str, value: &str) -> Result<(), AddressError> {
        self.values.replace(self.kind.name(), self.kind.all_keys(), name, value)
    }

    /// The address in `text`, to which further keys may be added before it is [`Address::checked`].
    ///
    /// # Errors
    /// As [`Address::new`] and [`Address::set`].
    pub fn unchecked(text: &str) -> Result<Self, AddressError> {
        let no_kind = || AddressError::NoKind(text.into());
        let (kind, rest) = text.split_once(':').ok_or_else(no_kind)?;
        let parts = split(rest);
        let (place, keys) = parts.split_first().ok_or_else(no_kind)?;
        let mut address = Self::new(kind.parse()?, place)?;
        for part in keys {
            match part.split_once('=') {
                Some((name, value)) => address.set(name, Some(value))?,
                None => address.set(part, None)?,
            }
        }
        Ok(address)
    }

    /// The address, if its keys go together.
    ///
    /// # Errors
    /// [`AddressError::NoMapped`], [`AddressError::NotPolled`], [`AddressError::CsbMapped`], [`AddressError::CsbPlain`],
    /// [`AddressError::Contradiction`], [`AddressError::Alone`].
    pub fn checked(self) -> Result<Self, AddressError> {
        let model = self.word("model").unwrap_or("e1000");
        if let (Some(plus), true) = (self.value("plus"), model != "rtl8139") {
            let (given, wanted) = (format!("plus={plus}"), "model=rtl8139");
            return Err(AddressError::Alone { key: "plus", given, wanted });
        }
        if self.word("doorbell") == Some("mapped") && model != "e1000" {
            return Err(AddressError::NoMapped(model.to_owned()));
        }
        if let (Some(time), true) = (self.value("poll_idle"), model != "e1000") {
            return Err(AddressError::NotPolled(time.to_string(), model.to_owned()));
        }
        if self.is_off("plus") && self.is_on("csb") {
            return Err(AddressError::CsbPlain);
        }
        if self.word("doorbell") == Some("mapped") && self.is_on("csb") {
            return Err(AddressError::CsbMapped);
        }
        self.values.check_together()?;
        Ok(self)
    }

    /// The same at another place.
    ///
    /// # Errors
    /// As [`Address::new`].
    pub fn at(&self, place: &str) -> Result<Self, AddressError> {
        Ok(Self { values: self.values.clone(), ..Self::new(self.kind, place)? })
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The value of an on/off key; off if not given.
    #[must_use]
    pub fn is_on(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(Value::OnOff(true)))
    }

    /// True if an on/off key is given as off.
    #[must_use]
    pub fn is_off(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(Value::OnOff(false)))
    }

    /// The value of a key that takes a number (also `mode`).
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u32> {
        match self.values.get(key)? {
            Value::Number(n) | Value::Mode(n) => Some(*n),
            _ => None,
        }
    }

    /// As [`Address::number`], for keys whose range fits 16 bits.
    #[must_use]
    pub fn short(&self, key: &str) -> Option<u16> {
        self.number(key).and_then(|n| n.try_into().ok())
    }

    /// The value of a key that takes a MAC address.
    #[must_use]
    pub fn mac(&self) -> Option<Mac> {
        match self.values.get("mac")? {
            Value::Mac(mac) => Some(*mac),
            _ => None,
        }
    }

    /// The value of a key that takes text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            Value::Text(text) => Some(text),
            Value::Name(name) => name.as_ref().map(PortName::as_str),
            _ => None,
        }
    }

    /// The value of a key that takes one of a few words.
    #[must_use]
    pub fn word(&self, key: &str) -> Option<&'static str> {
        match self.values.get(key)? {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The value of a key that takes a time.
    #[must_use]
    pub fn time(&self, key: &str) -> Option<Duration> {
        match self.values.get(key)? {
            Value::Time(time) => Some(*time),
            _ => None,
        }
    }

    /// The ports a capture file is told to watch; `None`: all.
    #[must_use]
    pub fn ports(&self) -> Option<&[PortName]> {
        match self.values.get("ports")? {
            Value::Names(ports) => Some(ports),
            _ => None,
        }
    }

    /// The keys whose values differ from those of `other`, which has the same kind and place; `None`: it has not.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Option<Vec<&'static str>> {
        let same = self.kind == other.kind && self.place == other.place;
        same.then(|| self.values.differences(&other.values))
    }

    /// What changes from `old` to this: key, value before, value now.
    #[must_use]
    pub fn changes(&self, old: &Self) -> Vec<KeyChange> {
        let change = |key: &str, old, new| KeyChange { key: key.to_owned(), old, new };
        let of = |address: &Self, key| address.value(key).map(Value::to_string);
        let whereabouts =
            [("kind", old.kind.name(), self.kind.name()), ("place", &*old.place, &*self.place)];
        let moved = whereabouts.into_iter().filter(|(_, old, new)| old != new);
        let moved = moved.map(|(key, old, new)| change(key, Some(old.into()), Some(new.into())));
        let keys = self.values.differences(&old.values).into_iter();
        moved.chain(keys.map(|key| change(key, of(old, key), of(self, key)))).collect()
    }

    /// True if `other` says the same of what the port may do.
    #[must_use]
    pub fn same_policy(&self, other: &Self) -> bool {
        let policy =
            |a: &Self| POLICY.iter().all(|k| a.values.get(k.name) == other.values.get(k.name));
        self.kind == other.kind && policy(self)
    }

    /// True if `other` can become this without being closed.
    #[must_use]
    pub fn differs_only_live(&self, other: &Self) -> bool {
        let keys = self.differences(other);
        keys.is_some_and(|keys| keys.iter().all(|key| self.kind.is_live(key)))
    }
}

fn is_interface_name(name: &str) -> bool {
    // net/core/dev.c, dev_valid_name(): no '/', no ':', no white space, not "." or "..". '%' would make
    // the kernel choose a number.
    let bad =
        |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || !c.is_ascii_graphic();
    name.len() <= INTERFACE_NAME && name != "." && name != ".." && !name.contains(bad)
}

/// Splits at single commas; a double comma is a comma of the text.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        Self::unchecked(s)?.checked()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.place.replace(',', ",,"))?;
        for (name, value) in self.values.iter() {
            match value {
                Value::OnOff(true) => write!(f, ",{name}")?,
                _ => write!(f, ",{name}={}", value.to_string().replace(',', ",,"))?,
            }
        }
        Ok(())
    }
}

/// The name of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName(String);

impl PortName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PortName {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let starts = s.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts && s.len() <= 32 && s.chars().all(good) {
            Ok(Self(s.into()))
        } else {
            Err(AddressError::Name(s.into()))
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a limit or a group.
///
/// # Errors
/// [`AddressError::RuleName`]
pub fn rule_name(text: &str) -> Result<PortName, AddressError> {
    list::name(text).ok_or_else(|| AddressError::RuleName(text.into()))
}

/// `NAME=ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAddress {
    /// The port's name.
    pub name: PortName,
    /// Where it is.
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
