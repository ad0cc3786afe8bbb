//! `vmlan forward`: ports of this host that lead to VMs.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::json;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::{Client, ForwardList, PortList};
use vmlan_config::address::{Address, Kind, Spec};
use vmlan_config::gateway::Forward;
use vmlan_config::human_text::columns;
use vmlan_engine::info::{ForwardInfo, PortInfo};

#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// The gateway's port, if there are several
    #[arg(long, global = true, value_name = "PORT")]
    net: Option<String>,
    #[command(subcommand)]
    command: ForwardCommand,
}

#[derive(Debug, Subcommand)]
enum ForwardCommand {
    /// List the forwards and how they stand
    #[command(after_help = "Example:\n  vmlan forward list --json")]
    List,
    /// Have a port of this host lead to a VM: the same as the key forward of the gateway's port
    #[command(
        after_help = "ADDRESS is 127.0.0.1 unless it is said; VM is a port of the switch or \
        an address.\n\nExample:\n  vmlan forward add 2222:vm1:22\n  vmlan forward add \
        udp:0.0.0.0:5353:vm1:53"
    )]
    Add {
        /// [tcp:|udp:][ADDRESS:]PORT:VM:PORT
        forward: Forward,
    },
    /// Close a port of this host again
    #[command(visible_alias = "del", after_help = "Example:\n  vmlan forward remove 2222:vm1:22")]
    Remove {
        /// [tcp:|udp:][ADDRESS:]PORT:VM:PORT
        forward: Forward,
    },
}

pub(super) fn run(args: ForwardArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let net = args.net.as_deref();
    match args.command {
        ForwardCommand::List => {
            let mut list: ForwardList = client.get("/v1/forwards")?;
            if net.is_some() {
                let (port, _) = gateway(&client, net)?;
                list.forwards.retain(|forward| forward.net == port);
            }
            if args.json { print_json(&list) } else { print(&table(&list.forwards)) }
        }
        ForwardCommand::Add { forward } => {
            let (port, mut list) = gateway(&client, net)?;
            if !list.contains(&forward) {
                list.push(forward);
            }
            set(&client, &port, &list, args.json)
        }
        ForwardCommand::Remove { forward } => {
            let (port, mut list) = gateway(&client, net)?;
            if !list.contains(&forward) {
                let text = format!("forward {forward}: there is none: see `vmlan forward list`");
                return Err(Failure::Failed(text));
            }
            list.retain(|other| *other != forward);
            set(&client, &port, &list, args.json)
        }
    }
}

/// The gateway's port, and its forwards.
fn gateway(client: &Client, net: Option<&str>) -> Result<(String, Vec<Forward>), Failure> {
    let list: PortList = client.get("/v1/ports")?;
    let all: Vec<_> = list.ports.iter().filter(|port| port.kind == Kind::Nat.name()).collect();
    let names = || all.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    let port = match (net, all.as_slice()) {
        (_, []) => {
            let text = "no gateway: add one with `vmlan port add net=nat:10.77.0.0/24`";
            return Err(Failure::Failed(text.to_owned()));
        }
        (None, [port]) => port,
        (None, _) => {
            return Err(Failure::Usage(format!("say by --net which gateway: {}", names())));
        }
        (Some(net), all) => all.iter().find(|port| port.name == net).ok_or_else(|| {
            let has = names();
            Failure::Usage(format!("--net {net}: no such nat: port (the switch has {has})"))
        })?,
    };
    let address: Address = port.address.parse()?;
    let Spec::Nat(nat) = address.spec() else { return Ok((port.name.clone(), Vec::new())) };
    Ok((port.name.clone(), nat.forwards.clone()))
}

fn set(client: &Client, port: &str, list: &[Forward], as_json: bool) -> Result<(), Failure> {
    let texts: Vec<_> = list.iter().map(Forward::to_string).collect();
    let body = json!({ "forward": texts.join("+") });
    let port: PortInfo = client.send(&Method::PATCH, &format!("/v1/ports/{port}"), &body)?;
    if as_json { print_json(&port) } else { Ok(()) }
}

fn table(forwards: &[ForwardInfo]) -> String {
    let mut rows = vec![["FORWARD", "STATE", "NET"].map(str::to_owned).to_vec()];
    for forward in forwards {
        rows.push(vec![forward.forward.clone(), forward.state.clone(), forward.net.clone()]);
    }
    columns(&rows, 3)
}
