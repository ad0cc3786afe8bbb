//! Priority of everything that takes part, above or below what else runs on the machine.

use std::fs;

use rustix::process::setpriority_process;
use vmlan_harness::{HarnessError, Result};

/// Where autogroups are on, the scheduler weighs sessions first (sched(7)) and a process's own nice
/// value counts only among its session. Absent otherwise.
const AUTOGROUP: &str = "/proc/self/autogroup";

/// Puts the session's nice value back when dropped; our own ends with us.
#[derive(Debug)]
pub struct Priority {
    session_before: Option<i32>,
}

impl Priority {
    /// Gives us, and all that is started from here on, the nice value `nice`; 0 changes nothing.
    ///
    /// # Errors
    /// [`HarnessError::Io`] when the kernel refuses.
    pub fn set(nice: i32) -> Result<Self> {
        if nice == 0 {
            return Ok(Self { session_before: None });
        }
        setpriority_process(None, nice).map_err(|error| {
            HarnessError::io(format!("set the priority to {nice}"))(error.into())
        })?;
        let session_before = fs::read_to_string(AUTOGROUP).ok().and_then(|text| parse(&text));
        let guard = Self { session_before };
        session_before.map_or(Ok(()), |_| write(nice))?;
        Ok(guard)
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.session_before.map(write) {
            eprintln!("peers: {}", error.chain());
        }
    }
}

fn write(nice: i32) -> Result<()> {
    fs::write(AUTOGROUP, nice.to_string())
        .map_err(HarnessError::io(format!("write {nice} to {AUTOGROUP}")))
}

fn parse(text: &str) -> Option<i32> {
    text.trim().rsplit_once("nice ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_s_nice_value_is_understood() {
        assert_eq!(parse("/autogroup-6 nice -5\n"), Some(-5));
        assert_eq!(parse("\n"), None);
    }
}
