//! Names of ports, limits and groups.

use std::fmt;
use std::str::FromStr;

use super::{AddressError, list};

/// The name of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName(String);

impl PortName {
    /// As text.
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
