//! What can go wrong in the harness itself, as apart from a failed check.

use std::error::Error as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fmt, io};

/// A harness call's result.
pub type Result<T> = std::result::Result<T, HarnessError>;

/// Why the harness could not do what a test or a bench asked for.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum HarnessError {
    /// SIGINT, SIGTERM or SIGHUP.
    #[error("interrupted; everything started has been ended")]
    Interrupted,
    #[error("{what}: {fix}")]
    Missing { what: String, fix: String },
    #[error("{what}: nothing within {seconds} s; last output: {heard}")]
    Deadline { what: String, seconds: u64, heard: String },
    #[error("{what} ended ({status}); last output: {heard}")]
    Ended { what: String, status: String, heard: String },
    #[error("{what} failed: {heard}")]
    Failed { what: String, heard: String },
    #[error("{what} gave an unexpected answer: {heard}")]
    Garbled { what: String, heard: String },
    /// What was measured cannot be believed.
    #[error("{0}")]
    NoFigure(String),
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
}

/// A test that returns an error is reported by `Debug`; people read that, so it is the message and
/// its causes.
impl fmt::Debug for HarnessError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.chain())
    }
}

impl HarnessError {
    /// A [`HarnessError::Missing`] from its two halves.
    pub fn missing(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), fix: fix.into() }
    }

    /// For `map_err`: the file that an [`io::Error`] is about.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// For `map_err`: the action that an [`io::Error`] belongs to.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The message and its causes in one line.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            line = format!("{line}: {error}");
            cause = error.source();
        }
        line
    }

    /// 130 after a signal, as shells expect, otherwise 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}

/// What to do about every missing tool that Debian packages.
pub const SETUP: &str = "run: scripts/setup.sh test";
