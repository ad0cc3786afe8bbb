//! Something on the LAN that has an address and runs shell commands: a guest, or a namespace of the
//! host.

use crate::{HarnessError, Result};
use std::time::Duration;

/// What a command printed (both outputs) and its exit code.
#[derive(Debug, Clone)]
pub struct Said {
    /// Exit code; 128 + signal if it was killed.
    pub code: i32,
    /// Both outputs, in the order they were written.
    pub text: String,
}

/// A place to run commands, with an IPv4 address on the LAN under test.
pub trait LanHost {
    /// A name for messages.
    fn name(&self) -> &str;

    /// Its IPv4 address on the LAN (all hosts share a /24).
    fn ip(&self) -> &str;

    /// Runs a shell command line to its end.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] if it takes longer than `within`; not for an exit code other than
    /// 0.
    fn run(&mut self, command: &str, within: Duration) -> Result<Said>;

    /// A directory of its own for files.
    fn files(&self) -> &str;

    /// Starts a command that goes on until the host is dropped.
    ///
    /// # Errors
    /// As [`LanHost::run`]; a command that ends or fails later is not noticed here.
    fn background(&mut self, command: &str) -> Result<()>;

    /// Runs a command that has to succeed within a minute, of which most need a moment: the machine
    /// may be busy.
    ///
    /// # Errors
    /// As [`LanHost::run`], and [`HarnessError::Failed`] for an exit code other than 0.
    fn sh(&mut self, command: &str) -> Result<String> {
        let said = self.run(command, Duration::from_secs(240))?;
        if said.code == 0 {
            return Ok(said.text);
        }
        let what = format!("{}: `{command}` (exit code {})", self.name(), said.code);
        Err(HarnessError::Failed { what, heard: said.text })
    }
}
