//! `vmlan fdb`: the forwarding table of a running switch.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hyper::Method;
use vmlan_frame::Mac;

use super::ApiArgs;
use super::port::port_name;
use super::shell::port_names;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::{FdbList, NewMac};
use vmlan_config::human_text::columns;
use vmlan_engine::info::FdbLine;

#[derive(Debug, Args)]
pub(super) struct FdbArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: FdbCommand,
}

#[derive(Debug, Subcommand)]
enum FdbCommand {
    /// List the addresses
    #[command(after_help = "Example:\n  vmlan fdb list --json")]
    List,
    /// Pin an address to a port: it does not age or move, and no other port may send from it
    #[command(after_help = "Example:\n  vmlan fdb add 52:54:00:12:34:56 vm1\n  vmlan fdb add \
            52:54:00:12:34:56 uplink --vlan 10")]
    Add {
        /// The address
        mac: String,
        /// The port it lives behind
        #[arg(add = ArgValueCompleter::new(port_names))]
        port: String,
        /// In this one of the port's VLANs (or service VLANs), if it has several
        #[arg(long, value_name = "VID")]
        vlan: Option<u16>,
    },
    /// Forget an address
    #[command(visible_alias = "remove", after_help = "Example:\n  vmlan fdb del 52:54:00:12:34:56")]
    Del {
        /// The address
        mac: String,
        /// In this VLAN (or service VLAN) only
        #[arg(long, value_name = "VID")]
        vlan: Option<u16>,
    },
}

pub(super) fn run(args: FdbArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    match args.command {
        FdbCommand::List => {
            let list: FdbList = client.get("/v1/fdb")?;
            if args.json { print_json(&list) } else { print(&fdb_table(&list.entries)) }
        }
        FdbCommand::Add { mac, port, vlan } => {
            let (mac, port) = (parse_mac(&mac)?, port_name(&port)?);
            let new = NewMac { mac: mac.to_string(), port: port.to_string(), vlan };
            let made: FdbLine = client.send(&Method::POST, "/v1/fdb", &new)?;
            if args.json { print_json(&made) } else { print(&fdb_table(&[made])) }
        }
        FdbCommand::Del { mac, vlan } => {
            let query = vlan.map(|v| format!("?vlan={v}")).unwrap_or_default();
            client.delete(&format!("/v1/fdb/{}{query}", parse_mac(&mac)?))?;
            if args.json { print("{}\n") } else { Ok(()) }
        }
    }
}

fn parse_mac(text: &str) -> Result<Mac, Failure> {
    text.parse().map_err(|e: vmlan_frame::ParseMacError| Failure::Usage(e.to_string()))
}

fn fdb_table(entries: &[FdbLine]) -> String {
    let mut rows = vec![["MAC", "VLAN", "PORT", "AGE"].map(str::to_owned).to_vec()];
    for e in entries {
        let age = e.age.map_or_else(|| "pinned".to_owned(), |s| format!("{s} s"));
        let vlan = e.vlan.map(|v| v.to_string()).or(e.qinq.map(|v| format!("qinq {v}")));
        let vlan = vlan.unwrap_or_else(|| "-".into());
        rows.push(vec![e.mac.clone(), vlan, e.port.clone(), age]);
    }
    columns(&rows, 4)
}
