//! What can go wrong in the harness itself, as apart from a failed check.

use std::{error::Error, fmt, io, path::PathBuf};

/// A harness call's result.
pub type Result<T> = std::result::Result<T, HarnessError>;

/// Why the harness could not do what a test asked for.
#[derive(thiserror::Error)]
pub enum HarnessError {
    /// A tool, file or right the machine does not have, and what to do about it.
    #[error("{what} is missing; {fix}")]
    Missing {
        /// What was looked for.
        what: String,
        /// The command or change that provides it.
        fix: &'static str,
    },
    /// A deadline passed; the text names what was awaited and the last words heard.
    #[error("{what}: nothing within {seconds} s; last words: {heard}")]
    Deadline {
        /// What was awaited.
        what: String,
        /// How long, in seconds.
        seconds: u64,
        /// The end of the log that could tell why.
        heard: String,
    },
    /// A process ended that should have gone on.
    #[error("{what} ended ({status}); last words: {heard}")]
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
    /// The guest's agent or the API said something that is not its protocol.
    #[error("{what} answered out of turn: {heard}")]
    Garbled {
        /// Who answered.
        what: String,
        /// What came.
        heard: String,
    },
    /// A file or socket of the harness.
    #[error("{}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A test that returns a fault is reported by `Debug`; people read that, so it is the message and its causes.
impl fmt::Debug for HarnessError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(out, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl HarnessError {
    /// Wraps an [`io::Error`] with the file it is about; for `map_err`.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HarnessError {
        let path = path.into();
        move |source| HarnessError::File { path, source }
    }
}

/// The fix for every tool that Debian packages.
pub const SETUP: &str = "run: scripts/setup.sh test";
