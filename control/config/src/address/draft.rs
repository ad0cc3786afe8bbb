//! An address that is still being built: its keys are checked one by one, but not yet together.

use std::fmt;

use super::values::Values;
use super::{Address, AddressError, Kind, PortPolicy, SOCKET_PATH, Spec, Value};
use crate::gateway::Network;

/// Longest name of a network interface: IFNAMSIZ without its final zero.
const INTERFACE_NAME: usize = 15;

/// A kind, a place, and values for its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub(super) kind: Kind,
    pub(super) place: String,
    pub(super) values: Values,
}

impl Draft {
    /// A port of `kind` at `place`, all keys at their defaults.
    ///
    /// # Errors
    /// [`AddressError::Place`] if `place` is not valid for this kind.
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
            Kind::Nat if place.parse::<Network>().is_err() => return Err(fail(kind.place())),
            _ if kind.is_interface() && !is_interface_name(place) => {
                return Err(fail(kind.place()));
            }
            _ => {}
        }
        Ok(Self { kind, place: place.into(), values: Values::default() })
    }

    /// The address in `text`.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let no_kind = || AddressError::NoKind(text.into());
        let (kind, rest) = text.split_once(':').ok_or_else(no_kind)?;
        let parts = split(rest);
        let (place, keys) = parts.split_first().ok_or_else(no_kind)?;
        let mut draft = Self::new(kind.parse()?, place)?;
        for part in keys {
            match part.split_once('=') {
                Some((name, value)) => draft.set(name, Some(value))?,
                None => draft.set(part, None)?,
            }
        }
        Ok(draft)
    }

    /// Its kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Sets `key`, checked; `None`: the key stands alone. A key that was set already is an error.
    ///
    /// # Errors
    /// An [`AddressError`] that names the key, the value and what would do.
    pub fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), AddressError> {
        self.values.set(self.kind.name(), self.kind.all_keys(), key, value)
    }

    /// As [`Draft::set`], but a value that is there is replaced, and an empty one takes the key
    /// away.
    pub fn replace(&mut self, key: &str, value: &str) -> Result<(), AddressError> {
        self.values.replace(self.kind.name(), self.kind.all_keys(), key, value)
    }

    /// Removes a key; its value, if it was given.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.values.take(key)
    }

    /// The address, if its keys go together.
    ///
    /// # Errors
    /// [`AddressError::NoMapped`], [`AddressError::NotPolled`], [`AddressError::CsbMapped`],
    /// [`AddressError::CsbPlain`], [`AddressError::NoCsb`], [`AddressError::Contradiction`],
    /// [`AddressError::Alone`].
    pub fn check(self) -> Result<Address, AddressError> {
        let spec = Spec::new(self.kind, &self.values)?;
        self.values.check_together()?;
        let policy = PortPolicy::new(&self.values);
        Ok(Address { draft: self, spec, policy })
    }
}

impl fmt::Display for Draft {
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

fn is_interface_name(name: &str) -> bool {
    // net/core/dev.c, dev_valid_name(): no '/', no ':', no white space, not "." or "..". '%' would
    // make the kernel choose a number.
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
