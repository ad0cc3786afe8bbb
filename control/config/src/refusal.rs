//! Why something that was asked for is not done.

use std::fmt;

use crate::address::PortName;

/// Why an action was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What sort of refusal.
    pub cause: Cause,
    /// One line that names the port and the value, and says what to do.
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
