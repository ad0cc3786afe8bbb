//! `vmlan lease`: addresses that gateways give.

use std::net::{IpAddr, Ipv4Addr};

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hyper::Method;
use serde_json::json;
use vmlan_frame::Mac;

use super::ApiArgs;
use super::shell::port_names;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::LeaseList;
use vmlan_config::address::PortName;
use vmlan_config::human_text::columns;
use vmlan_engine::info::{LeaseInfo, PortInfo};

#[derive(Debug, Args)]
pub(super) struct LeaseArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
enum LeaseCommand {
    /// List who has which address
    #[command(after_help = "Example:\n  vmlan lease list --json")]
    List,
    /// Keep an address for a port: the same as its key ip
    #[command(after_help = "The guest gets it when it asks next: at the latest after half of its \
        lease.\n\nExample:\n  vmlan lease set vm1 10.77.0.20")]
    Set {
        /// The port
        #[arg(add = ArgValueCompleter::new(port_names))]
        port: PortName,
        /// The address
        ip: Ipv4Addr,
    },
    /// Forget the leases of an address, a NIC or a port, and the address that is kept for a port
    #[command(visible_alias = "del", after_help = "Example:\n  vmlan lease remove vm1")]
    Remove {
        /// An IP address, a MAC address or the name of a port
        #[arg(value_name = "IP|MAC|PORT", add = ArgValueCompleter::new(port_names))]
        of: String,
    },
}

pub(super) fn run(args: LeaseArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let set = |port: &str, ip: &str| -> Result<PortInfo, Failure> {
        let path = format!("/v1/ports/{port}");
        Ok(client.send(&Method::PATCH, &path, &json!({ "ip": ip }))?)
    };
    match args.command {
        LeaseCommand::List => {
            let list: LeaseList = client.get("/v1/leases")?;
            if args.json { print_json(&list) } else { print(&table(&list.leases)) }
        }
        LeaseCommand::Set { port, ip } => {
            let port = set(port.as_str(), &ip.to_string())?;
            if args.json { print_json(&port) } else { Ok(()) }
        }
        LeaseCommand::Remove { of } => {
            if !may_have_lease(&of) {
                let text = format!("'{of}': give an IP address, a MAC address or a port");
                return Err(Failure::Usage(text));
            }
            let kept = client.get::<PortInfo>(&format!("/v1/ports/{of}"));
            let kept = kept.is_ok_and(|port| port.address.contains(",ip="));
            if kept {
                set(&of, "")?;
            }
            let forgotten = client.delete(&format!("/v1/leases/{of}"));
            // A port whose address was kept need not have had a lease.
            forgotten.or_else(|e| if kept { Ok(()) } else { Err(e) })?;
            if args.json { print("{}\n") } else { Ok(()) }
        }
    }
}

/// False: it names nothing that has leases, and may be no part of a URI.
fn may_have_lease(of: &str) -> bool {
    of.parse::<IpAddr>().is_ok() || of.parse::<Mac>().is_ok() || of.parse::<PortName>().is_ok()
}

fn table(leases: &[LeaseInfo]) -> String {
    let head = ["ADDRESS", "PORT", "NIC", "HOSTNAME", "ENDS IN", "NET"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for lease in leases {
        let hostname = lease.hostname.clone().unwrap_or_else(|| "-".into());
        let ends = format!("{}s", lease.seconds);
        let (ip, port, mac) = (lease.ip.clone(), lease.port.clone(), lease.mac.clone());
        rows.push(vec![ip, port, mac, hostname, ends, lease.net.clone()]);
    }
    columns(&rows, 6)
}
