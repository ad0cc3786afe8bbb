//! `vmlan events`: what happens in a running switch, as it happens.

use clap::Args;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::print;
use vmlan_engine::events::Event;

/// Arguments of `vmlan events`.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON, an event in each line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EventsArgs) -> Result<(), Failure> {
    let mut done = Ok(());
    args.api.client()?.events(|event| {
        let line = if args.json { event.to_owned() } else { said(event) };
        done = print(&format!("{line}\n"));
        done.is_ok()
    })?;
    done
}

/// `port-up vm1`, `address-moved vm2 52:54:00:00:00:01 from=vm1`.
fn said(json: &str) -> String {
    let Ok(event) = serde_json::from_str::<Event>(json) else { return json.to_owned() };
    let Event { event, port, limit, mac, from, reason, count, generation, vlan, qinq, .. } = event;
    let text = |key: &str, value: Option<String>| value.map(|value| format!("{key}={value}"));
    let words = [
        Some(event),
        port,
        limit,
        mac,
        text("vlan", vlan.map(|vid| vid.to_string())),
        text("qinq", qinq.map(|vid| vid.to_string())),
        text("from", from),
        reason,
        text("count", count.map(|n| n.to_string())),
        text("generation", generation.map(|n| n.to_string())),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
