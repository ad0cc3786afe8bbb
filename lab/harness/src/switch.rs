//! The `vmlan switch` process under test.

use crate::{
    HarnessError, NetNs, Process, Result, ServiceManager, output_of, usage, vmlan_program,
};
use serde_json::Value;
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// A running switch; killed when dropped. Its sockets and log lie in the test's directory.
pub struct Switch {
    argv: Vec<String>,
    log: PathBuf,
    api: PathBuf,
    manager: Option<Arc<ServiceManager>>,
    process: Process,
}

fn begin(manager: Option<&ServiceManager>, log: &Path, argv: &[String]) -> Result<Process> {
    const NAME: &str = "vmlan switch";
    match manager {
        Some(manager) => manager.start(NAME, log, argv),
        None => Process::start(NAME, log, argv),
    }
}

impl Switch {
    /// Starts `vmlan switch` with `ports` (`NAME=ADDRESS`), inside `netns` if one is given (TAP
    /// devices are made there), and waits until its API answers.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] with the switch's own words.
    pub fn start(dir: &Path, netns: Option<&NetNs>, ports: &[String]) -> Result<Switch> {
        Self::start_by(dir, netns, ports, None)
    }

    /// The same as a service of `manager`.
    ///
    /// # Errors
    /// As [`Switch::start`].
    pub fn start_service(
        dir: &Path,
        manager: &Arc<ServiceManager>,
        ports: &[String],
    ) -> Result<Switch> {
        Self::start_by(dir, None, ports, Some(Arc::clone(manager)))
    }

    fn start_by(
        dir: &Path,
        netns: Option<&NetNs>,
        ports: &[String],
        manager: Option<Arc<ServiceManager>>,
    ) -> Result<Switch> {
        let api = dir.join("api.sock");
        let binary = vmlan_program().to_string_lossy();
        let api_text = api.to_string_lossy();
        let mut argv = vec![&*binary, "switch", "--api", &api_text];
        argv.extend(ports.iter().map(String::as_str));
        let argv = match netns {
            Some(netns) => netns.enter(&argv),
            None => argv.into_iter().map(str::to_owned).collect(),
        };
        let log = dir.join("switch.log");
        let process = begin(manager.as_deref(), &log, &argv)?;
        let mut switch = Switch { argv, log, api, manager, process };
        switch.answering()?;
        Ok(switch)
    }

    /// SIGKILL: no clean-up, sockets left behind.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again as it was started, after [`Switch::kill9`]. Does not wait for anything.
    pub fn restart(&mut self) -> Result<()> {
        self.process = begin(self.manager.as_deref(), &self.log, &self.argv)?;
        Ok(())
    }

    /// Waits until the API takes a connection.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] or [`HarnessError::Deadline`].
    pub fn answering(&mut self) -> Result<()> {
        let api = self.api.clone();
        self.process.wait("its API", Duration::from_secs(60), || UnixStream::connect(&api).is_ok())
    }

    /// Asks for a clean shutdown and returns the exit code.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] after 60 s.
    pub fn terminate(&mut self) -> Result<Option<i32>> {
        self.process.terminate(Duration::from_secs(60))
    }

    /// Fails with its last words if the switch has died.
    pub fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }

    /// The socket of its API.
    pub fn api_path(&self) -> &Path {
        &self.api
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The descriptors it has open.
    pub fn descriptors(&self) -> usize {
        usage::descriptors(self.pid())
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Runs another `vmlan` command against its API and returns what it prints.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] if the command exits other than 0.
    pub fn ask(&self, command: &[&str]) -> Result<String> {
        let api = self.api.to_string_lossy();
        let words: Vec<&str> = command.iter().copied().chain(["--api", &*api]).collect();
        output_of(&vmlan_program().to_string_lossy(), &words)
    }

    /// `vmlan stats --json`, in the shape that its schema gives.
    ///
    /// # Errors
    /// As [`Switch::ask`]; [`HarnessError::Garbled`] if it is not JSON.
    pub fn stats(&self) -> Result<Value> {
        let text = self.ask(&["stats", "--json"])?;
        serde_json::from_str(&text)
            .map_err(|_| HarnessError::Garbled { what: "vmlan stats --json".into(), heard: text })
    }

    /// The counters of one port.
    ///
    /// # Errors
    /// As [`Switch::stats`]; [`HarnessError::Garbled`] if the port is not listed.
    pub fn port(&self, name: &str) -> Result<Value> {
        let stats = self.stats()?;
        let ports = stats["ports"].as_array().into_iter().flatten();
        let found = ports.into_iter().find(|port| port["name"] == name).cloned();
        found.ok_or_else(|| HarnessError::Garbled {
            what: format!("stats of port {name}"),
            heard: stats.to_string(),
        })
    }
}

/// A test that fails shows what the switch had to say.
impl Drop for Switch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the switch's log:\n{}", self.log());
        }
    }
}
