//! How a command ends: exit code and one line.

use std::fmt;
use std::process::ExitCode;

use vmlan_api::SocketError;
use vmlan_api::client::ClientError;
use vmlan_config::address::AddressError;
use vmlan_config::api_path::NoApiPath;
use vmlan_config::file::ConfigError;
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_config::settings::SettingsError;
use vmlan_config::vm_args::VmArgsError;

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

impl From<AddressError> for Failure {
    fn from(e: AddressError) -> Self {
        Self::Usage(e.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self::Usage(e.to_string())
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
        match e.is_usage() {
            true => Self::Usage(e.to_string()),
            false => Self::Failed(e.to_string()),
        }
    }
}

impl From<NoApiPath> for Failure {
    fn from(e: NoApiPath) -> Self {
        Self::Failed(e.to_string())
    }
}

impl From<SettingsError> for Failure {
    fn from(e: SettingsError) -> Self {
        match e {
            SettingsError::NoApiPath(e) => e.into(),
            SettingsError::Value(text) => Self::Usage(text),
        }
    }
}

#[cfg(feature = "lab")]
impl From<vmlan_lab::Failure> for Failure {
    fn from(e: vmlan_lab::Failure) -> Self {
        match e {
            vmlan_lab::Failure::Usage(text) => Self::Usage(text),
            vmlan_lab::Failure::Failed(text) => Self::Failed(text),
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
