//! How a command ends: exit code and one line.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::address::AddressError;
use crate::api::SocketError;
use crate::api::client::ClientError;
use crate::config::ConfigError;
use crate::control::{Cause, Refusal};
use crate::vm_args::VmArgsError;

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was asked wrongly: exit code 2.
    Usage(String),
    /// It was tried and failed: exit code 1.
    Failed(String),
}

impl Failure {
    /// For the shell.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Failed(text)) = self;
        // Paths and foreign messages may hold line breaks; a failure is one line.
        f.write_str(&text.replace(['\n', '\r'], " "))
    }
}

/// An error with its causes, in one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        // Transparent errors repeat their source.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text
}

impl From<AddressError> for Failure {
    fn from(e: AddressError) -> Self {
        Self::Usage(e.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        match e {
            ConfigError::Read { .. } => Self::Failed(e.to_string()),
            _ => Self::Usage(e.to_string()),
        }
    }
}

impl From<SocketError> for Failure {
    fn from(e: SocketError) -> Self {
        match e {
            SocketError::TooLong(_) => Self::Usage(e.to_string()),
            _ => Self::Failed(e.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        match &e {
            ClientError::Refused { status, .. } if status.as_u16() == 400 => {
                Self::Usage(e.to_string())
            }
            _ => Self::Failed(e.to_string()),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(r: Refusal) -> Self {
        match r.cause {
            Cause::Invalid | Cause::Exists => Self::Usage(r.message),
            Cause::NotFound | Cause::Failed => Self::Failed(r.message),
        }
    }
}

impl From<VmArgsError> for Failure {
    fn from(e: VmArgsError) -> Self {
        Self::Usage(e.to_string())
    }
}
