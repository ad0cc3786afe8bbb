//! `vmlan limit`: limits that ports of a running switch share.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use super::ApiArgs;
use super::port::pairs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::LimitList;
use vmlan_config::address::rule_name;
use vmlan_config::human_text::columns;
use vmlan_engine::info::LimitInfo;

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
    /// Create a limit, or change it under the ports that use it
    #[command(
        after_help = "Keys: rate=RATE (bits a second, 64kbit to 400Gbit), frames=N (a second), \
        burst=TIME (of both, 100us to 1s, default 10ms)\n\nExample:\n  vmlan limit set tenant1 \
        rate=1Gbit burst=20ms"
    )]
    Set {
        /// Its name
        name: String,
        /// Keys and values; those that are left out stay as they are, an empty value removes one
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Remove a limit that no port uses
    #[command(visible_alias = "remove", after_help = "Example:\n  vmlan limit del tenant1")]
    Del {
        /// Its name
        name: String,
    },
}

pub(super) fn run(args: LimitArgs) -> Result<(), Failure> {
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
