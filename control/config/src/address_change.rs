//! What changes in an address.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A key of a port that changes; `kind` and `place` count as keys here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange {
    /// The key.
    pub key: String,
    /// Its value before; `null`: it was not given.
    pub old: Option<String>,
    /// Its value after; `null`: it is not given any more.
    pub new: Option<String>,
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
        write!(f, "{} {} -> {}", self.key, or(&self.old), or(&self.new))
    }
}

/// `KEY OLD -> NEW, ...`
pub fn say_changes(changes: &[KeyChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
