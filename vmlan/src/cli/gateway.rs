//! `vmlan gateway`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use clap::Args;
use vmlan_config::address::PortName;
use vmlan_config::gateway::{Dns, Forward, HostPorts, Ipv6, Network, Prefix, Setup};
use vmlan_frame::error_chain;
use vmlan_gateway::process::{serve, serve_alone};

use crate::exit::Failure;

pub(super) const EXAMPLE: &str = "Example:\n  vmlan switch vm1=vhost-user:/tmp/vm1.sock \
    gw=vhost-user:/tmp/gw.sock &\n  vmlan gateway vhost-user:/tmp/gw.sock 10.77.0.0/24 --forward \
    2222:10.77.0.100:22";

/// Arguments of `vmlan gateway`.
#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    /// The port to plug into: vhost-user:PATH
    #[arg(required_unless_present = "line")]
    port: Option<String>,
    /// The LAN's addresses
    #[arg(default_value = "10.77.0.0/24")]
    network: Network,
    /// IPv6: on, off, or a prefix of 64 bits
    #[arg(long, default_value_t)]
    ipv6: Ipv6,
    /// What names end in
    #[arg(long, default_value = "lan")]
    domain: String,
    /// Bytes of the longest packet
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// Whom names outside are asked of; may be given several times [default: the host's servers]
    #[arg(long, value_name = "ADDRESS")]
    dns: Vec<IpAddr>,
    /// A port of this host that leads to a guest: [tcp:|udp:][ADDRESS:]PORT:GUEST:PORT
    #[arg(long, value_name = "FORWARD")]
    forward: Vec<Forward>,
    /// Ports of the host's loopback that guests reach at the gateway's address, like tcp:5432, or
    /// all
    #[arg(long, value_name = "PORTS", default_value = "")]
    host: HostPorts,
    /// Where guests may not go
    #[arg(long, value_name = "PREFIX")]
    block: Vec<Prefix>,
    /// Where guests may go though it is closed by default, like 169.254.0.0/16
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<Prefix>,
    /// Standard input is the line to a switch, which says all this
    #[arg(long, hide = true)]
    line: bool,
}

/// Serves until the switch hangs up.
pub(super) fn run(args: GatewayArgs) -> Result<(), Failure> {
    let failed =
        |e: &dyn std::error::Error| Failure::Failed(format!("gateway: {}", error_chain(e)));
    if args.line {
        let line = std::io::stdin().as_fd().try_clone_to_owned();
        let line = line.map_err(|e| Failure::Failed(format!("no line to a switch: {e}")))?;
        // It was started by its file's name in /proc, which `ps` would show.
        let _ = rustix::thread::set_name(c"vmlan-gateway");
        return serve(line, seal).map_err(|e| failed(&e));
    }
    let setup = setup(args)?;
    println!(
        "network {}  gateway {}  pool {} to {}",
        setup.network,
        setup.network.gateway(),
        setup.network.pool().0,
        setup.network.pool().1
    );
    serve_alone(setup, seal).map_err(|e| failed(&e))
}

fn setup(args: GatewayArgs) -> Result<Setup, Failure> {
    let port = args.port.unwrap_or_default();
    let Some(socket) = port.strip_prefix("vhost-user:") else {
        let text = format!("'{port}': a gateway plugs into a port of the switch: vhost-user:PATH");
        return Err(Failure::Usage(text));
    };
    let servers = match args.dns.as_slice() {
        [] => vmlan_engine::resolvers::read(),
        given => given.iter().map(|ip| SocketAddr::new(*ip, 53)).collect(),
    };
    let name: PortName = "gateway".parse().map_err(|_| Failure::Failed("no name".to_owned()))?;
    Ok(Setup {
        socket: socket.to_owned(),
        network: args.network,
        network6: args.ipv6.network(&name),
        mtu: args.mtu,
        domain: args.domain.to_ascii_lowercase(),
        dns: Dns::Ask(servers),
        host: args.host,
        block: args.block,
        allow: Some(args.allow),
        forwards: args.forward,
        ..Setup::default()
    })
}

/// Gives up what a gateway does not need once it serves.
fn seal() {
    for what in vmlan_sandbox::confine_gateway() {
        eprintln!("gateway: its sandbox does without {what}");
    }
}
