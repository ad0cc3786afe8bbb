//! `vmlan sflow`: samples of a running switch's frames for a collector.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value};

use super::ApiArgs;
use super::port::pairs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_config::human_text::columns;
use vmlan_engine::info::SflowInfo;

const PATH: &str = "/v1/sflow";

/// Arguments of `vmlan sflow`.
#[derive(Debug, Args)]
pub(super) struct SflowArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: SflowCommand,
}

#[derive(Debug, Subcommand)]
enum SflowCommand {
    /// Show what is exported, and how much of it arrived
    #[command(after_help = "Example:\n  vmlan sflow show --json")]
    Show,
    /// Export samples and counters, or change how
    #[command(
        after_help = "Keys: collector=IP:PORT, sampling=N (one frame of N), polling=SECONDS (of \
            counters; 0: none), \
        agent=IP, header=BYTES\n\nExample:\n  vmlan sflow set collector=127.0.0.1:6343 \
        sampling=1000 polling=20"
    )]
    Set {
        /// Keys and values; those that are left out stay as they are
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Export nothing
    #[command(after_help = "Example:\n  vmlan sflow off")]
    Off,
}

pub(super) fn run(args: SflowArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let info: SflowInfo = match args.command {
        SflowCommand::Show => client.get(PATH)?,
        SflowCommand::Set { keys } => {
            let new = pairs(&keys)?;
            let mut all = running(&client.get(PATH)?);
            all.extend(new);
            // An empty value removes a key.
            all.retain(|_, value| value != "");
            client.send(&Method::PUT, PATH, &all)?
        }
        SflowCommand::Off => {
            client.delete(PATH)?;
            client.get(PATH)?
        }
    };
    if args.json { print_json(&info) } else { print(&table(&info)) }
}

/// The keys as they are.
fn running(info: &SflowInfo) -> Map<String, Value> {
    let number = |n: Option<u32>| n.map(Value::from);
    let text = |t: &Option<String>| t.as_deref().map(Value::from);
    let all = [
        ("collector", text(&info.collector)),
        ("sampling", number(info.sampling)),
        ("polling", number(info.polling)),
        ("agent", text(&info.agent)),
        ("header", number(info.header)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn table(info: &SflowInfo) -> String {
    let Some(collector) = &info.collector else { return format!("sflow is {}\n", info.state) };
    let number = |n: Option<u32>| n.map_or_else(String::new, |n| n.to_string());
    let head =
        ["COLLECTOR", "SAMPLING", "POLLING", "SAMPLES", "LOST", "DATAGRAMS", "FAILED", "STATE"];
    let row = [
        collector.clone(),
        number(info.sampling),
        number(info.polling),
        info.samples.to_string(),
        info.lost.to_string(),
        info.datagrams.to_string(),
        info.failed.to_string(),
        info.state.clone(),
    ];
    columns(&[head.map(str::to_owned).to_vec(), row.to_vec()], 1)
}
