//! `vmlan apply` and `vmlan limit`: what ports of a running switch may do.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use super::ApiArgs;
use super::ask::pairs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::{LimitList, NewConfig};
use vmlan_config::address::rule_name;
use vmlan_config::change::say_changes;
use vmlan_config::text::columns;
use vmlan_engine::action::{Applied, LimitInfo};

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only tell what would change
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: LimitCommand,
}

#[derive(Debug, Subcommand)]
enum LimitCommand {
    /// List the limits
    #[command(after_help = "Example:\n  vmlan limit list --json")]
    List,
    /// Make a limit, or change it under the ports that have it
    #[command(
        after_help = "Keys: rate=RATE (bits a second, 64kbit to 400Gbit), frames=N (a second), \
        burst=TIME (of both, 100us to 1s, default 10ms)\n\nExample:\n  vmlan limit set tenant1 rate=1Gbit burst=20ms"
    )]
    Set {
        /// Its name
        name: String,
        /// Keys and values; those that are left out stay as they are, an empty value takes one away
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Take away a limit that no port has
    #[command(after_help = "Example:\n  vmlan limit del tenant1")]
    Del {
        /// Its name
        name: String,
    },
}

/// The switch does the reading: only it can say what differs.
pub(super) fn apply(args: &ApplyArgs) -> Result<(), Failure> {
    let path = args.file.display().to_string();
    let unread = |e| Failure::Failed(format!("{path}: {e}: give a file that can be read"));
    let text = std::fs::read_to_string(&args.file).map_err(unread)?;
    let new = NewConfig { text, path: path.clone(), dry_run: args.dry_run };
    let applied: Applied = args.api.client()?.send(&Method::POST, "/v1/apply", &new)?;
    if args.json { print_json(&applied) } else { print(&said(&applied)) }
}

fn said(applied: &Applied) -> String {
    let would = if applied.dry_run { "would be " } else { "" };
    let is_reopened = |name: &&String| applied.reopened.contains(*name);
    let (reopened, changed): (Vec<_>, Vec<_>) =
        applied.changed.iter().cloned().partition(|name| is_reopened(&name));
    let lines = [
        ("port", "added", &applied.added),
        ("port", "changed", &changed),
        ("port", "closed and opened again", &reopened),
        ("port", "removed", &applied.removed),
        ("limit", "set", &applied.limits_set),
        ("limit", "removed", &applied.limits_removed),
    ];
    let mut text = String::new();
    for (what, done, names) in lines {
        for name in names {
            let changes = applied.changes.get(name).filter(|_| what == "port");
            let changes = changes.map_or_else(String::new, |c| format!(": {}", say_changes(c)));
            text += &format!("{what} {name}  {would}{done}{changes}\n");
        }
    }
    if applied.sflow {
        text += &format!("sflow  {would}changed\n");
    }
    text + &format!("{} ports unchanged\n", applied.unchanged.len())
}

pub(super) fn limit(args: LimitArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    match args.command {
        LimitCommand::List => {
            let list: LimitList = client.get("/v1/limits")?;
            if args.json { print_json(&list) } else { print(&table(&list.limits)) }
        }
        LimitCommand::Set { name, keys } => {
            let path = format!("/v1/limits/{}", rule_name(&name)?);
            let list: LimitList = client.get("/v1/limits")?;
            let mut all = serde_json::Map::new();
            if let Some(old) = list.limits.into_iter().find(|limit| limit.name == name) {
                let old = [("rate", old.rate), ("frames", old.frames), ("burst", Some(old.burst))];
                all.extend(old.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?.into()))));
            }
            all.extend(pairs(&keys)?);
            all.retain(|_, value: &mut Value| value != "");
            let made: LimitInfo = client.send(&Method::PUT, &path, &all)?;
            if args.json { print_json(&made) } else { print(&table(&[made])) }
        }
        LimitCommand::Del { name } => {
            client.delete(&format!("/v1/limits/{}", rule_name(&name)?))?;
            if args.json { print("{}\n") } else { Ok(()) }
        }
    }
}

fn table(limits: &[LimitInfo]) -> String {
    let mut rows = vec![["NAME", "RATE", "FRAMES", "BURST", "PORTS"].map(str::to_owned).to_vec()];
    for limit in limits {
        let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        let (rate, frames) = (or(&limit.rate), or(&limit.frames));
        let ports = limit.ports.join(", ");
        rows.push(vec![limit.name.clone(), rate, frames, limit.burst.clone(), ports]);
    }
    columns(&rows, 5)
}
