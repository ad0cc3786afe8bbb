//! Why a measurement was not made.

use vmlan_api::client::ClientError;
use vmlan_harness::HarnessError;

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was asked wrongly.
    #[error("{}", one_line(.0))]
    Usage(String),
    /// It was tried and failed.
    #[error("{}", one_line(.0))]
    Failed(String),
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        match e.is_usage() {
            true => Self::Usage(e.to_string()),
            false => Self::Failed(e.to_string()),
        }
    }
}

impl From<HarnessError> for Failure {
    fn from(e: HarnessError) -> Self {
        match e {
            HarnessError::Interrupted => Self::Failed("interrupted".into()),
            other => Self::Failed(other.chain()),
        }
    }
}

/// Paths and foreign messages may hold line breaks; a failure is one line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
