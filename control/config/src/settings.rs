//! What a switch is started with: the configuration file, overridden and added to by the command
//! line.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::address::{NamedAddress, PortName, SflowTable, parse_mode};
use crate::api_path::{NoApiPath, default_path};
use crate::cpu_list::CpuList;
use crate::file::{Config, OnOff, Range, SwitchTable};

mod changes;
mod conflict;
mod reserved;
#[cfg(test)]
mod tests;
pub use changes::{Changes, Pin};
pub use conflict::{Conflict, Limits, World};
pub use reserved::Networks;

/// Why a switch cannot be started with what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Nobody said where the API's socket is to be, and there is no usual place for it.
    #[error(transparent)]
    NoApiPath(#[from] NoApiPath),
    /// A value is out of range, or contradicts another. The text names the place, the value and
    /// what to do.
    #[error("{0}")]
    Value(String),
}

/// What cannot be changed while a switch runs.
#[derive(Clone, Debug)]
pub struct Running {
    /// Threads that move frames.
    pub workers: usize,
    /// The CPUs that they run on, one on each; none: wherever the kernel has them run.
    pub cpus: CpuList,
    /// How long a worker looks for frames before it sleeps.
    pub spin: Duration,
    /// Path of the API's socket.
    pub api: PathBuf,
    /// Path of the configuration file, without links.
    pub config: Option<PathBuf>,
    /// Permission bits of that socket.
    pub api_mode: u32,
    /// Of the switch itself: ageing, table size, waiting for full receivers.
    pub options: vmlan_switch::Options,
    /// Whether rights are given up that are not needed.
    pub sandbox: OnOff,
    /// Directories in which sockets and capture files may be made later.
    pub allow_dir: Vec<PathBuf>,
    /// How long VMs' connections outlive the switch; `None`: not at all.
    pub hold_for: Option<Duration>,
    /// Standard input is its first client, and it ends when nobody holds a port any more.
    pub while_held: bool,
    /// Standard input is `vmlan upgrade`, which says when to begin.
    pub successor: bool,
    /// Who starts it again.
    pub supervision: Supervision,
}

/// Who starts a switch again that has died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supervision {
    /// Nobody that it knows of.
    #[default]
    None,
    /// This process, which is none itself.
    Supervisor,
    /// The parent of this process, at standard input.
    Supervised,
}

/// What a switch is started with.
#[derive(Debug)]
pub struct Settings {
    /// What cannot be changed later.
    pub running: Running,
    /// Ports, limits, groups and sampling.
    pub plan: Plan,
}

impl Settings {
    /// `table` holds what the command line says and goes before what `config` says.
    pub fn new(
        mut config: Config,
        table: SwitchTable,
        ports: Vec<NamedAddress>,
    ) -> Result<Self, SettingsError> {
        let file = config.switch.clone();
        let api = match table.api.or(file.api) {
            Some(path) => path,
            None => default_path()?,
        };
        let mode = table.api_mode.or(file.api_mode).unwrap_or_else(|| "0600".into());
        let wrong_mode =
            || SettingsError::Value(format!("api-mode={mode}: write an octal mode like 0660"));
        let api_mode = parse_mode(&mode).ok_or_else(wrong_mode)?;
        let check = |range: Range, n| range.check(n).map_err(SettingsError::Value);
        let cpus = table.cpus.or(file.cpus).unwrap_or_default();
        let workers = table.workers.or(file.workers).map(u32::from);
        let workers =
            check(Range::WORKERS, workers.unwrap_or_else(|| one_on_each(&cpus)))? as usize;
        let count = cpus.numbers().len();
        if count > 0 && count != workers {
            return Err(SettingsError::Value(format!(
                "workers={workers}, cpus={cpus}: each worker runs on a CPU of its own: leave \
                    `workers` out, or name {workers}"
            )));
        }
        let spin = check(Range::SPIN, table.spin.or(file.spin).unwrap_or(20))?;
        let ageing = check(Range::AGEING, table.ageing.or(file.ageing).unwrap_or(300))?;
        let mut options = vmlan_switch::Options {
            ageing: Duration::from_secs(ageing.into()),
            ..Default::default()
        };
        if let Some(wait) = table.full_wait.or(file.full_wait) {
            options.full_wait = Duration::from_micros(check(Range::FULL_WAIT, wait)?.into());
        }
        if let Some(n) = table.fdb_entries.or(file.fdb_entries) {
            options.fdb_entries = check(Range::FDB_ENTRIES, n)? as usize;
        }
        let plan = Plan::new(&mut config, ports);
        let order = |p: &&NamedAddress| config.line_of_port(&p.name);
        plan.check(order).map_err(|wrong| SettingsError::Value(wrong.placed(&config)))?;
        let spin = Duration::from_micros(spin.into());
        let sandbox = table.sandbox.or(file.sandbox).unwrap_or(OnOff::On);
        let allow_dir = file.allow_dir.into_iter().chain(table.allow_dir).collect();
        let hold_for = table.hold_for.or(file.hold_for);
        let hold_for = hold_for.map(|n| check(Range::HOLD_FOR, n)).transpose()?;
        let running = Running {
            workers,
            cpus,
            spin,
            api,
            config: None,
            api_mode,
            options,
            sandbox,
            allow_dir,
            hold_for: hold_for.map(|n| Duration::from_secs(n.into())),
            while_held: false,
            successor: false,
            supervision: Supervision::None,
        };
        Ok(Self { running, plan })
    }
}

impl Running {
    /// What the configuration file says of the switch must be what runs: none of it can be changed
    /// while frames move.
    pub fn differs(&self, config: &Config) -> Option<String> {
        let file = &config.switch;
        let text = |n: u128| n.to_string();
        let micros = |d: Duration| text(d.as_micros());
        let given = [
            ("workers", file.workers.map(u128::from), text(self.workers as u128)),
            ("spin", file.spin.map(u128::from), micros(self.spin)),
            ("ageing", file.ageing.map(u128::from), text(self.options.ageing.as_secs().into())),
            ("full-wait", file.full_wait.map(u128::from), micros(self.options.full_wait)),
            (
                "fdb-entries",
                file.fdb_entries.map(u128::from),
                text(self.options.fdb_entries as u128),
            ),
            (
                "hold-for",
                file.hold_for.map(u128::from),
                self.hold_for.map_or_else(String::new, |d| text(d.as_secs().into())),
            ),
        ];
        let numbers = given.map(|(key, n, runs)| (key, n.map(text), runs));
        let api = file.api.as_ref().map(|path| path.display().to_string());
        let mode = file.api_mode.as_deref().map(|m| parse_mode(m).map_or_else(|| m.into(), octal));
        let texts = [
            ("api", api, self.api.display().to_string()),
            ("api-mode", mode, octal(self.api_mode)),
            ("sandbox", file.sandbox.map(|s| s.name().into()), self.sandbox.name().into()),
            ("cpus", file.cpus.as_ref().map(CpuList::to_string), self.cpus.to_string()),
            ("allow-dir", self.not_allowed(&file.allow_dir), list(&self.allow_dir)),
        ];
        let mut all = numbers.into_iter().chain(texts);
        let (key, wanted, runs) = all.find_map(|(key, wanted, runs)| {
            Some((key, wanted.filter(|wanted| *wanted != runs)?, runs))
        })?;
        let quote = if matches!(key, "api" | "api-mode" | "sandbox" | "cpus") { "'" } else { "" };
        let (with, write) = match runs.as_str() {
            "" => ("without".to_owned(), "leave it out".to_owned()),
            runs => (format!("with {runs}"), format!("write {key} = {quote}{runs}{quote}")),
        };
        Some(format!(
            "{}: [switch] {key}={wanted}: the switch runs {with}, and a change needs a restart: \
                {write}, or restart the switch",
            config.place_in_switch(key)
        ))
    }
}

impl Running {
    /// `dirs`, unless all of them were allowed when the switch was started.
    fn not_allowed(&self, dirs: &[PathBuf]) -> Option<String> {
        dirs.iter().any(|dir| !self.allow_dir.contains(dir)).then(|| list(dirs))
    }
}

/// As many workers as there are CPUs for them; one wherever it may run.
fn one_on_each(cpus: &CpuList) -> u32 {
    u32::try_from(cpus.numbers().len()).unwrap_or(u32::MAX).max(1)
}

/// As a configuration file has them.
fn list(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|dir| format!("'{}'", dir.display())).collect();
    format!("[{}]", dirs.join(", "))
}

fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

/// The ports that a switch is to have, and what they may do.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Ports, in the order in which they are opened.
    pub ports: Vec<NamedAddress>,
    /// Limits that ports share.
    pub limits: Limits,
    /// Groups that exist without a member.
    pub groups: BTreeSet<PortName>,
    /// Export of samples; `None`: no export.
    pub sflow: Option<SflowTable>,
}

impl Plan {
    /// What `config` says, taken out of it, and `more`.
    pub fn new(config: &mut Config, more: Vec<NamedAddress>) -> Self {
        Self {
            ports: std::mem::take(&mut config.ports).into_iter().chain(more).collect(),
            limits: std::mem::take(&mut config.limits),
            groups: std::mem::take(&mut config.groups),
            sflow: config.sflow.take(),
        }
    }

    /// Checks all that can be known before anything is opened.
    ///
    /// Of two ports with one place the one that comes later by `order` is to blame.
    pub fn check<K: Ord>(&self, order: impl FnMut(&&NamedAddress) -> K) -> Result<(), Conflict> {
        let mut ports: Vec<_> = self.ports.iter().collect();
        ports.sort_by_key(order);
        let ports = ports.into_iter().map(|port| (&port.name, &port.address));
        conflict::check_all(ports, &self.limits, &self.groups, false)
    }

    /// Checks it as a running switch is checked: what has gone since that something refers to may
    /// come again.
    pub fn check_running(&self) -> Result<(), Conflict> {
        let ports = self.ports.iter().map(|port| (&port.name, &port.address));
        conflict::check_all(ports, &self.limits, &self.groups, true)
    }
}
