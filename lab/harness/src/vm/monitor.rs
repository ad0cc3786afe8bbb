//! QEMU's monitor: QMP, a JSON object a line.

use crate::{HarnessError, Process, Result};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// Longest wait for a QEMU that is there, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// A line to a running QEMU.
pub(super) struct Monitor {
    name: String,
    line: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the `socket` that `qemu` listens on.
    pub(super) fn connect(name: &str, qemu: &mut Process, socket: &Path) -> Result<Self> {
        let mut stream = Err(std::io::ErrorKind::NotFound.into());
        qemu.wait("its monitor", PATIENCE, || {
            stream = UnixStream::connect(socket);
            stream.is_ok()
        })?;
        let stream = stream.map_err(HarnessError::file(socket))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(HarnessError::file(socket))?;
        let mut monitor = Self { name: format!("QEMU of {name}"), line: BufReader::new(stream) };
        // Its greeting.
        monitor.next()?;
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Gives a command and returns what it answers. Events are passed over.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] with QEMU's words if it refuses.
    pub(super) fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let ask = json!({ "execute": command, "arguments": arguments });
        let sent = self.line.get_mut().write_all(format!("{ask}\n").as_bytes());
        sent.map_err(HarnessError::file(&self.name))?;
        loop {
            let mut heard = self.next()?;
            if let Some(answer) = heard.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = heard.get("error") {
                let what = format!("{}: {command}", self.name);
                return Err(HarnessError::Failed { what, heard: error.to_string() });
            }
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut heard = String::new();
        self.line.read_line(&mut heard).map_err(HarnessError::file(&self.name))?;
        serde_json::from_str(&heard)
            .map_err(|_| HarnessError::Garbled { what: self.name.clone(), heard })
    }
}
