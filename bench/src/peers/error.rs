//! What can go wrong, and the one line that says so.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

/// Why a run or a cell ended without figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ctrl-C, SIGTERM or SIGHUP.
    #[error("interrupted; everything started has been ended")]
    Interrupted,
    /// Something the run needs is not there; `mend` is what the user does about it.
    #[error("{what}: {mend}")]
    Missing {
        /// What is not there.
        what: String,
        /// The command or option that mends it.
        mend: String,
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
    /// A switch or guest did not do what a measurement needs.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// A [`Error::Missing`] from its two halves.
    pub fn missing(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), mend: mend.into() }
    }

    /// For `map_err`: names the action that an [`io::Error`] belongs to.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// The message and its causes in one line.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Writing to a String cannot fail.
            let _ = write!(line, ": {error}");
            cause = error.source();
        }
        line
    }

    /// 130 after Ctrl-C as shells expect, otherwise 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}
