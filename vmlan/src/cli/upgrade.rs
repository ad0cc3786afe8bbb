//! `vmlan upgrade`: another release takes the place of a running switch.
//!
//! The next switch is started beside the running one and checks all that it can. Only then is that
//! one told to end, and what is held of its VMs is the next one's. If that one does not come up,
//! the old program does again.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT};

use super::ApiArgs;
use super::stop::{Life, stop};
use crate::exit::Failure;
use crate::output::{print, print_json};
use crate::successor::{Intent, Successor, canonical};
use crate::switch_log::SwitchLog;
use vmlan_api::client::ClientError;
use vmlan_api::{Client, PortList};
use vmlan_engine::info::ProcessInfo;

/// Arguments of `vmlan upgrade`.
#[derive(Debug, Args)]
pub(super) struct UpgradeArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The program that is to run [default: this one]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let old: ProcessInfo = client.get("/v1/process")?;
    check_old(&old)?;
    check_user(&client, &old)?;
    let own = std::env::current_exe()
        .map_err(|e| Failure::Failed(format!("cannot find this program: {e}")))?;
    let program = match &args.binary {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        None => own.clone(),
    };
    let life = Life::of(&client, &old)?;
    let before = OldProgram::of(&old, &life, own);
    let log = args.api.path()?.with_extension("log");
    let log = SwitchLog::open(&log)
        .map_err(|e| Failure::Failed(format!("{}: cannot open the log: {e}", log.display())))?;
    let mut next = Successor::start(&program, &old, &log)?;
    let intent = next.intent();
    let checked = match &intent {
        Some(intent) => {
            let lost = lost(&client, intent)?;
            check_next(intent, &args.api.path()?, &lost)
        }
        None => Err(format!("it does not start: {}", log.last_words())),
    };
    if let Err(why) = checked {
        next.end();
        let program = program.display();
        let text = format!("{program}: {why}; the running switch was not touched");
        return Err(Failure::Failed(text));
    }
    let since = Instant::now();
    if let Err(failure) = end_old(&client, &old, &life) {
        next.end();
        return Err(failure);
    }
    if next.begin().is_err() || !next.serves() {
        next.end();
        return Err(before.restore(&client, &old, &program, &log));
    }
    let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    let pid = serving(&client, &next);
    let version = intent.map(|intent| intent.version).unwrap_or_default();
    if args.json {
        return print_json(&json!({
            "from": { "pid": old.pid, "version": old.version },
            "to": { "pid": pid, "version": version },
            "milliseconds": milliseconds,
            "log": log.path,
        }));
    }
    print(&format!(
        "upgraded: vmlan {version} (process {pid}) serves in place of {} (process {}), after \
         {milliseconds} ms; its log is {}\n",
        old.version,
        old.pid,
        log.path.display()
    ))
}

/// Has the running switch end, and waits for that. From here on whoever ended this program would
/// leave nobody to serve.
fn end_old(client: &Client, old: &ProcessInfo, life: &Life) -> Result<(), Failure> {
    for signal in [SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
    }
    if let Err(refused @ ClientError::Refused { .. }) = stop(client, false) {
        return Err(refused.into());
    }
    // It ends, even if its answer was lost, and must have a successor then. Nobody may be there to
    // read this.
    while life.end(old).is_err() {
        let pid = old.pid;
        let text = format!("process {pid} is still ending: `kill -9 {pid}` leaves its VMs, too");
        let _ = writeln!(std::io::stderr(), "vmlan: {text}");
    }
    Ok(())
}

/// Whether the running switch can be replaced so that its VMs do not notice.
fn check_old(old: &ProcessInfo) -> Result<(), Failure> {
    let why = if old.service {
        "it is a service: replace its program and restart the service (docs/operations.md, Restart)"
    } else if old.while_held {
        "it was started by `vmlan run`, and ends with its VMs"
    } else if old.hold_for.is_none() {
        "it runs without --hold-for, and its VMs' emulated NICs would be lost: start one with it \
         when they are shut down"
    } else if old.arguments.iter().any(|word| word.contains(char::REPLACEMENT_CHARACTER)) {
        "its arguments are not UTF-8: stop it with `vmlan stop`, and start the next by hand"
    } else {
        return Ok(());
    };
    Err(Failure::Failed(format!("the switch (process {}) was not touched: {why}", old.pid)))
}

/// Whether the next switch, which runs as whoever asks, would be of the same user. Otherwise it
/// would not get what is held, nor would the old program again.
fn check_user(client: &Client, old: &ProcessInfo) -> Result<(), Failure> {
    let peer = rustix::net::sockopt::socket_peercred(&client.connect()?);
    let user =
        peer.map_err(|e| Failure::Failed(format!("cannot tell whose switch it is: {e}")))?.uid;
    if user == rustix::process::geteuid() {
        return Ok(());
    }
    let (pid, user) = (old.pid, user.as_raw());
    Err(Failure::Failed(format!(
        "the switch (process {pid}) was not touched: it runs as user {user}: run this as that user \
         (sudo -u '#{user}' vmlan upgrade ...)"
    )))
}

/// Names of ports that run now and that `next` is not going to have.
fn lost(client: &Client, next: &Intent) -> Result<Vec<String>, Failure> {
    let now: ProcessInfo = client.get("/v1/process")?;
    if let (Some(fleeting), true) = (now.fleeting, next.keeps_changes) {
        return Ok(fleeting);
    }
    let ports: PortList = client.get("/v1/ports")?;
    let names = ports.ports.into_iter().map(|port| port.name);
    Ok(names.filter(|name| !next.ports.contains(name)).collect())
}

/// Whether the next switch goes on with what is there: it is at `api`, and no port is `lost`.
fn check_next(next: &Intent, api: &Path, lost: &[String]) -> Result<(), String> {
    if next.api != canonical(api) {
        return Err(format!("its API would be at {}", next.api.display()));
    }
    if !next.holds {
        return Err("it would run without hold-for: its configuration file has changed".into());
    }
    if lost.is_empty() {
        return Ok(());
    }
    let lost = lost.join(", ");
    Err(format!(
        "it would be without these ports: {lost}: shut down their VMs, if they belong to `vmlan \
         run`; else write them into the configuration file"
    ))
}

/// The process that serves now: `next`, or one that it supervises.
fn serving(client: &Client, next: &Successor) -> u32 {
    client.get("/v1/process").map_or_else(|_| next.pid(), |now: ProcessInfo| now.pid)
}

/// The program that the running switch is, to go back to.
struct OldProgram {
    /// Open, for it may have been replaced where it was.
    file: Option<File>,
    /// This one, where that one must not be looked at.
    own: PathBuf,
}

impl OldProgram {
    fn of(old: &ProcessInfo, life: &Life, own: PathBuf) -> Self {
        let seen = matches!(life, Life::Process(_));
        let file = seen.then(|| File::open(format!("/proc/{}/exe", old.pid)).ok()).flatten();
        Self { file, own }
    }

    /// Starts it again in place of `failed`.
    fn restore(
        &self,
        client: &Client,
        old: &ProcessInfo,
        failed: &Path,
        log: &SwitchLog,
    ) -> Failure {
        let why = log.last_words();
        let open = self.file.as_ref().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
        let program = open.map_or_else(|| self.own.clone(), PathBuf::from);
        let begun = Successor::start(&program, old, log).ok().and_then(|mut again| {
            let serves = again.intent().is_some() && again.begin().is_ok() && again.serves();
            serves.then(|| serving(client, &again))
        });
        let failed = failed.display();
        Failure::Failed(match begun {
            Some(pid) => format!(
                "{failed}: it does not start: {why}; the old program serves again (process {pid})"
            ),
            None => format!(
                "{failed}: it does not start: {why}; nor does the old program again: VMs' NICs \
                 are held for {} s: start a switch with the same --api",
                old.hold_for.unwrap_or_default()
            ),
        })
    }
}
