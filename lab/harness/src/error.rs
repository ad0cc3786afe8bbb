//! What can go wrong in the harness itself, as apart from a failed check.

use std::error::Error as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fmt, io};

/// A harness call's result.
pub type Result<T> = std::result::Result<T, HarnessError>;

/// Why the harness could not do what a test or a bench asked for.
#[derive(thiserror::Error)]
pub enum HarnessError {
    /// SIGINT, SIGTERM or SIGHUP.
    #[error("interrupted; everything started has been ended")]
    Interrupted,
    /// A tool, file or right the machine does not have, and what to do about it.
    #[error("{what}: {fix}")]
    Missing {
        /// What was looked for.
        what: String,
        /// The command or change that provides it.
        fix: String,
    },
    /// A deadline passed.
    #[error("{what}: nothing within {seconds} s; last output: {heard}")]
    Deadline {
        /// What was awaited.
        what: String,
        /// How long, in seconds.
        seconds: u64,
        /// The end of the log that could tell why.
        heard: String,
    },
    /// A process ended that should have gone on.
    #[error("{what} ended ({status}); last output: {heard}")]
    Ended {
        /// The process.
        what: String,
        /// Its exit status.
        status: String,
        /// The end of its log.
        heard: String,
    },
    /// A command ran and failed.
    #[error("{what} failed: {heard}")]
    Failed {
        /// The command.
        what: String,
        /// What it printed.
        heard: String,
    },
    /// The guest's agent, the API or a tool said something that is not its protocol.
    #[error("{what} gave an unexpected answer: {heard}")]
    Garbled {
        /// Who answered.
        what: String,
        /// What came.
        heard: String,
    },
    /// What was measured cannot be believed.
    #[error("{0}")]
    NoFigure(String),
    /// A file or socket of the harness.
    #[error("{}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The operating system refused.
    #[error("cannot {what}")]
    Io {
        /// The action refused, with its object.
        what: String,
        /// The reason given.
        #[source]
        source: io::Error,
    },
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
    #[must_use]
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
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}

/// What to do about every missing tool that Debian packages.
pub const SETUP: &str = "run: scripts/setup.sh test";
