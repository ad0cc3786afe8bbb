//! A guest that moves from one QEMU to another while it runs.

use crate::{Boot, Guest, HarnessError, Image, Process, Result};
use serde_json::{Value, json};
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use super::guest::{Begun, place};
use super::monitor::Monitor;

/// Longest wait for a migration, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// After this a guest may stand still for as long as it takes: on a machine so busy that memory
/// goes slower than the guest changes it, a migration would never end.
const BUSY: Duration = Duration::from_secs(60);

/// What a migration may end as.
const ENDS: [&str; 3] = ["completed", "cancelled", "failed"];

/// A QEMU that waits for a guest. Dropping it kills it.
pub struct Destination {
    qemu: Process,
    serial: PathBuf,
    line: UnixStream,
    monitor: Monitor,
    socket: PathBuf,
}

impl Destination {
    /// Starts it, with its files in `dir`, and waits until it listens. `boot` is to be as the
    /// guest's own, but for the sockets of its NIC.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn start(image: &Image, dir: &Path, boot: Boot) -> Result<Self> {
        let (name, socket) = (boot.name.clone(), place(dir, &boot.name, "incoming"));
        let _ = std::fs::remove_file(&socket);
        let mut begun = Begun::start(image, dir, boot.moves().incoming())?;
        let line = begun.line(Instant::now() + PATIENCE)?;
        let monitor = Monitor::connect(&name, &mut begun.qemu, &place(dir, &name, "qmp"))?;
        begun.qemu.wait("its socket", PATIENCE, || socket.exists())?;
        Ok(Self { qemu: begun.qemu, serial: begun.serial, line, monitor, socket })
    }

    /// SIGKILL, as from an out-of-memory killer.
    pub fn kill9(&mut self) {
        self.qemu.kill9();
    }
}

impl Guest {
    /// Gives its QEMU's monitor a command (QMP), and returns the answer.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] with QEMU's words; also if it was not booted with [`Boot::moves`].
    pub fn monitor(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let what = || format!("guest {}: {command}", self.name);
        let none = || HarnessError::Failed { what: what(), heard: "it has no monitor".into() };
        self.monitor.as_mut().ok_or_else(none)?.ask(command, arguments)
    }

    /// Begins to move to `to`. Memory goes at most at `bandwidth` bytes a second.
    ///
    /// # Errors
    /// As [`Guest::monitor`].
    pub fn migrate(&mut self, to: &Destination, bandwidth: u64) -> Result<()> {
        self.monitor("migrate-set-parameters", &json!({ "max-bandwidth": bandwidth }))?;
        let uri = format!("unix:{}", to.socket.display());
        self.monitor("migrate", &json!({ "uri": uri })).map(drop)
    }

    /// Waits until QEMU says `status` of the migration, and returns all it says.
    ///
    /// # Errors
    /// [`HarnessError::Garbled`] if it ends as something else; [`HarnessError::Deadline`].
    pub fn migration(&mut self, status: &str) -> Result<Value> {
        let begin = Instant::now();
        let mut busy = false;
        loop {
            let said = self.monitor("query-migrate", &json!({}))?;
            let is = said["status"].as_str().unwrap_or_default();
            if is == status {
                return Ok(said);
            }
            let what = format!("guest {}: a migration that is to be {status}", self.name);
            let heard = said.to_string();
            if ENDS.contains(&is) {
                return Err(HarnessError::Garbled { what, heard });
            }
            if begin.elapsed() > PATIENCE {
                return Err(HarnessError::Deadline { what, seconds: PATIENCE.as_secs(), heard });
            }
            if begin.elapsed() > BUSY && !std::mem::replace(&mut busy, true) {
                self.monitor("migrate-set-parameters", &json!({ "downtime-limit": 60_000 }))?;
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// It has moved to `to`, and is spoken to there. The QEMU that it left is killed.
    ///
    /// # Errors
    /// [`HarnessError::File`] if the agent's line cannot be used.
    pub fn arrive(&mut self, to: Destination) -> Result<()> {
        self.listen(to.line)?;
        self.monitor = Some(to.monitor);
        self.serial = to.serial;
        self.qemu = to.qemu;
        Ok(())
    }
}
