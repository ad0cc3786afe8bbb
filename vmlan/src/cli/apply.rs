//! `vmlan apply`: a running switch is made what a configuration file says.

use std::path::PathBuf;

use clap::Args;
use hyper::Method;

use super::{ApiArgs, read_config};
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::NewConfig;
use vmlan_config::address_change::say_changes;
use vmlan_engine::info::Applied;

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
    /// Only if this is the generation of the configuration that runs: nobody has changed it since
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The switch reads the file: only it can say what differs.
pub(super) fn run(args: &ApplyArgs) -> Result<(), Failure> {
    let path = args.file.display().to_string();
    let (text, generation) = (read_config(&args.file)?, args.generation);
    let file = args.file.canonicalize().ok();
    let new = NewConfig { text, path, file, dry_run: args.dry_run, generation };
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
    let (same, generation) = (applied.unchanged.len(), applied.generation);
    text + &format!("{same} ports unchanged; generation {generation}\n")
}
