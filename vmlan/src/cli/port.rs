//! `vmlan port`: the ports of a running switch.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use hyper::Method;
use serde_json::{Map, Value};

use super::shell::port_names;
use super::{ApiArgs, named_failure};
use crate::exit::Failure;
use crate::output::{print, print_json};
use vmlan_api::{NewPort, PortList};
use vmlan_config::address::{Draft, NamedAddress, PortName};
use vmlan_config::human_text::folded;
use vmlan_engine::info::PortInfo;

#[derive(Debug, Args)]
pub(super) struct PortArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: PortCommand,
}

#[derive(Debug, Subcommand)]
enum PortCommand {
    /// List the ports
    #[command(after_help = "Example:\n  vmlan port list --json")]
    List,
    /// Add a port
    #[command(after_help = "Example:\n  vmlan port add vm3=vhost-user:/tmp/vm3.sock,queues=2")]
    Add {
        /// Its name and address
        #[arg(value_name = "NAME=ADDRESS")]
        port: String,
    },
    /// Remove a port
    #[command(visible_alias = "remove", after_help = "Example:\n  vmlan port del vm3")]
    Del {
        /// Its name
        #[arg(add = ArgValueCompleter::new(port_names))]
        name: String,
    },
    /// Change keys of a port's address, or remove them (`KEY=`)
    ///
    /// At once: what the port may do (see `vmlan switch --help`), `mode`, `ip`, `irq_rate_max`,
    /// `link`; `mac` of vhost-user and stream; `mtu` of tap, packet, xdp and stream; all of nat but
    /// `ipv6`, `mtu` and `mac`. For other keys the port is closed and opened again, and a VM on a
    /// vfio-user port must be started again.
    #[command(
        after_help = "Example:\n  vmlan port set vm3 macs=first to_rate=100Mbit\n  vmlan port set \
            vm3 to_rate=\n  vmlan port set vm2 link=down"
    )]
    Set {
        /// Its name
        #[arg(add = ArgValueCompleter::new(port_names))]
        name: String,
        /// Keys and values
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
}

pub(super) fn run(args: PortArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    match args.command {
        PortCommand::List => {
            let list: PortList = client.get("/v1/ports")?;
            if args.json { print_json(&list) } else { print(&ports_table(&list.ports)) }
        }
        PortCommand::Add { port } => {
            // Parsed here too: a mistake is found even when no switch runs.
            let named: NamedAddress = port.parse().map_err(|e| named_failure(&port, &e))?;
            let new = NewPort {
                name: named.name.to_string(),
                address: absolute(&named).to_string(),
                hold: false,
            };
            let made: PortInfo = client.send(&Method::POST, "/v1/ports", &new)?;
            show(args.json, &made)
        }
        PortCommand::Del { name } => {
            let name = port_name(&name)?;
            client.delete(&format!("/v1/ports/{name}"))?;
            if args.json { print("{}\n") } else { Ok(()) }
        }
        PortCommand::Set { name, keys } => {
            let name = port_name(&name)?;
            let path = format!("/v1/ports/{name}");
            let changed: PortInfo = client.send(&Method::PATCH, &path, &pairs(&keys)?)?;
            show(args.json, &changed)
        }
    }
}

/// A relative path starts in the user's directory, not in the switch's.
fn absolute(named: &NamedAddress) -> vmlan_config::address::Address {
    let address = named.address.clone();
    if address.kind().is_interface() {
        return address;
    }
    let place = std::path::absolute(address.place())
        .ok()
        .and_then(|p| p.into_os_string().into_string().ok());
    place.and_then(|p| address.at(&p).ok()).unwrap_or(address)
}

pub(super) fn pairs(keys: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut map = Map::new();
    for text in keys {
        let wrong = |why| Failure::Usage(format!("'{text}' {why}"));
        let (key, value) =
            text.split_once('=').ok_or_else(|| wrong("has no value: write KEY=VALUE"))?;
        if map.insert(key.to_owned(), value.into()).is_some() {
            return Err(wrong("gives a key twice: leave one out"));
        }
    }
    Ok(map)
}

pub(super) fn port_name(text: &str) -> Result<PortName, Failure> {
    Ok(text.parse()?)
}

fn show(json: bool, port: &PortInfo) -> Result<(), Failure> {
    if json { print_json(port) } else { print(&ports_table(std::slice::from_ref(port))) }
}

/// Longest line of `port list`, as long as no word of it is longer.
const WIDTH: usize = 100;
/// Longest address that decides how wide the column of addresses is.
const ADDRESS: usize = 60;

/// One line for each port, and below it what does not fit there.
fn ports_table(ports: &[PortInfo]) -> String {
    let addresses: Vec<_> = ports.iter().map(|p| without_policy(&p.address)).collect();
    let longest = |all: &mut dyn Iterator<Item = usize>| all.max().unwrap_or(0);
    let name_width = longest(&mut ports.iter().map(|p| p.name.len())).max("NAME".len());
    let short = addresses.iter().map(|(address, _)| address.len()).filter(|n| *n <= ADDRESS);
    let address_width = longest(&mut short.into_iter()).max("ADDRESS".len());
    let line = |name: &str, link: &str, address: &str, rest: &str| {
        let text = format!("{name:name_width$}  {link:4}  {address:address_width$}  {rest}");
        text.trim_end().to_owned()
    };
    let mut text = line("NAME", "LINK", "ADDRESS", "STATE") + "\n";
    let margin = name_width + 2;
    for (p, (address, policy)) in ports.iter().zip(&addresses) {
        let link = if p.up { "up" } else { "down" };
        let (state, details) = state_and_details(p);
        let all = [&*state, &*details].into_iter().filter(|s| !s.is_empty());
        let all = all.collect::<Vec<_>>().join(", ");
        // The most that fits stands beside the address.
        let fits = |rest: &&&str| line(&p.name, link, address, rest).chars().count() <= WIDTH;
        let beside = [&*all, &*state].iter().find(fits).copied().unwrap_or_default();
        let below = all.strip_prefix(beside).unwrap_or_default().trim_start_matches(", ");
        text += &(line(&p.name, link, address, beside) + "\n");
        for more in [below, policy].into_iter().filter(|more| !more.is_empty()) {
            text += &format!("{:margin$}{}\n", "", folded(more, margin));
        }
    }
    text
}

/// What a port's state is, and what else its kind has to say.
fn state_and_details(port: &PortInfo) -> (String, String) {
    // The kind and the place are in the address already; how the control socket talks, and bits in
    // hex, are for programs: see --json.
    let known = |k: &str| {
        matches!(k, "kind" | "path" | "interface" | "protocol-features" | "state")
            || k.ends_with("-hex")
    };
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let details = port.details.iter().filter(|(k, _)| !known(k)).map(|(k, v)| match k.as_str() {
        // An emulated NIC's cable: LINK says whether a guest is at its end.
        "link" => format!("cable {}", text(v)),
        _ => format!("{k} {}", text(v)),
    });
    let state = port.details.get("state").map(text).unwrap_or_default();
    (state, details.collect::<Vec<_>>().join(", "))
}

/// An address, and what it says of what its port may do: that has a line of its own, as it may be
/// long.
fn without_policy(text: &str) -> (String, String) {
    let Ok(mut draft) = Draft::parse(text) else { return (text.to_owned(), String::new()) };
    let mut policy = Vec::new();
    for key in draft.kind().policy_keys() {
        if let Some(value) = draft.take(key.name) {
            policy.push(format!("{}={value}", key.name));
        }
    }
    (draft.to_string(), policy.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_may_do_stands_on_lines_of_its_own() {
        let port = |name: &str, address: &str| PortInfo {
            name: name.into(),
            address: address.into(),
            details: Map::from_iter([("state".to_owned(), "listening".into())]),
            ..PortInfo::default()
        };
        let long = "vhost-user:/tmp/1,queues=2,macs=first,ips=10.0.0.1+10.0.0.2,\
         vlan=10,broadcast_frames=100,from_rate=10Mbit,to_rate=1Gbit,weight=3";
        let text = ports_table(&[port("vm1", long), port("vm2", "tap:t1"), port("vm3", "odd")]);
        let want = "NAME  LINK  ADDRESS                     STATE\n\
                    vm1   down  vhost-user:/tmp/1,queues=2  listening\n      \
                    macs=first ips=10.0.0.1+10.0.0.2 vlan=10 broadcast_frames=100\n      \
                    from_rate=10Mbit to_rate=1Gbit weight=3\n\
                    vm2   down  tap:t1                      listening\n\
                    vm3   down  odd                         listening\n";
        assert_eq!(text, want, "{text}");
    }

    #[test]
    fn no_line_is_longer_than_100_columns() {
        let details = [
            ("state", "connected"),
            ("model", "e1000"),
            ("mac", "52:54:00:00:00:01"),
            ("doorbell", "mapped, looked at every 250us"),
            ("link", "up"),
            ("interrupts", "INTx"),
            ("memory", "1024 MiB in 2 regions"),
        ];
        let port = |name: &str, address: String| PortInfo {
            name: name.into(),
            address,
            up: true,
            details: details.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect(),
            ..PortInfo::default()
        };
        let deep = format!("vfio-user:/{}", "d".repeat(70));
        let text = ports_table(&[port("vm1", "vfio-user:/tmp/1".into()), port("vm2", deep)]);
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        let want = "NAME  LINK  ADDRESS           STATE\n\
                    vm1   up    vfio-user:/tmp/1  connected\n      \
                    doorbell mapped, looked at every 250us, interrupts INTx, cable up, mac\n";
        assert!(text.starts_with(want), "{text}");
    }
}
