//! `vmlan host-link`: what joins an uplink to those of other hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use clap::Args;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::print;
use vmlan_config::gateway::Prefix;
use vmlan_config::host_link::{Evpn, HostLink, Step};

mod follow;

pub(super) const EXAMPLE: &str = "Examples:\n  \
    vmlan host-link lan0 --vni 100 --local 192.0.2.1 --peer 192.0.2.2,192.0.2.3\n  \
    sudo vmlan host-link lan0 --vni 100 --local 192.0.2.1 --peer 192.0.2.2 --apply\n  \
    vmlan host-link lan0 --vni 100 --local 192.0.2.1 --peer 192.0.2.9 --evpn --frr\n\n\
    Then `vmlan port add lan=tap:lan0`. docs/hosts.md: 2, 20 and 2,000 hosts.";

/// Arguments of `vmlan host-link`.
#[derive(Debug, Args)]
pub(super) struct HostLinkArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// The TAP device of the uplink, made if it is not there
    uplink: String,
    /// The LAN's number between hosts (VXLAN's VNI), the same on all
    #[arg(long, value_name = "N")]
    vni: u32,
    /// This host's address
    #[arg(long, value_name = "IP")]
    local: IpAddr,
    /// The other hosts' addresses; with --evpn those of route reflectors, or of all others
    #[arg(long = "peer", value_name = "IP", value_delimiter = ',')]
    peers: Vec<IpAddr>,
    /// Find hosts and guests by BGP, which FRR speaks, instead of a list of hosts
    #[arg(long)]
    evpn: bool,
    /// The autonomous system of all hosts
    #[arg(long, value_name = "N", default_value_t = 65_000, requires = "evpn")]
    asn: u32,
    /// This host's name in BGP [default: --local]
    #[arg(long, value_name = "IPV4", requires = "evpn")]
    router_id: Option<Ipv4Addr>,
    /// This host is a route reflector for hosts with addresses of this prefix
    #[arg(long, value_name = "PREFIX", requires = "evpn")]
    reflector: Option<Prefix>,
    /// Bytes of the longest packet between hosts
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    underlay_mtu: u16,
    /// Who may open the TAP device without privileges [default: who calls, also by sudo]
    #[arg(long)]
    user: Option<String>,
    /// Queues of the TAP device
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,
    /// Run the lines that are printed otherwise, as root. If one fails, the others are undone
    #[arg(long, group = "what")]
    apply: bool,
    /// Undo them, whatever is left of them. The TAP device stays
    #[arg(long, group = "what")]
    remove: bool,
    /// Print FRR's configuration alone
    #[arg(long, group = "what", requires = "evpn")]
    frr: bool,
    /// Go on telling the kernel which addresses the switch's guests have, as root: then BGP tells
    /// other hosts, which answer ARP by themselves
    #[arg(long, group = "what", requires = "evpn")]
    follow: bool,
}

pub(super) fn run(args: &HostLinkArgs) -> Result<(), Failure> {
    let link = link(args)?;
    if args.apply {
        apply(&link.steps())
    } else if args.remove {
        remove(&link)
    } else if args.follow {
        follow::run(&link, &args.api)
    } else if args.frr {
        print(&link.frr().unwrap_or_default())
    } else {
        print(&text(&link))
    }
}

fn link(args: &HostLinkArgs) -> Result<HostLink, Failure> {
    let router_id = match args.local {
        IpAddr::V4(local) => Some(args.router_id.unwrap_or(local)),
        IpAddr::V6(_) => args.router_id,
    };
    let evpn = match (args.evpn, router_id) {
        (false, _) => None,
        (true, Some(router_id)) => Some(Evpn { asn: args.asn, router_id, clients: args.reflector }),
        (true, None) => {
            let text = "--router-id: give one, written as an IPv4 address, no two hosts the same";
            return Err(Failure::Usage(text.into()));
        }
    };
    if args.asn == 0 {
        return Err(Failure::Usage("--asn 0: give one like 65000".into()));
    }
    let called = |name| std::env::var(name).ok().filter(|user| !user.is_empty() && user != "root");
    let link = HostLink {
        uplink: args.uplink.clone(),
        user: args.user.clone().or_else(|| called("SUDO_USER")).or_else(|| called("USER")),
        queues: args.queues,
        vni: args.vni,
        local: args.local,
        peers: args.peers.clone(),
        underlay: args.underlay_mtu,
        evpn,
    };
    link.check().map_err(Failure::Usage)?;
    Ok(link)
}

/// All of it, to read and to copy.
fn text(link: &HostLink) -> String {
    let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect();
    let steps: String = lines(link.steps().into_iter().map(|step| step.line).collect());
    let undo: String = lines(link.undo().iter().map(|line| format!("#   {line}")).collect());
    let mut text = format!(
        "# As root. --apply runs these lines. Guests' packets may have {} bytes.\n{steps}\
         # --remove undoes them:\n{undo}",
        link.mtu()
    );
    if let Some(frr) = link.frr() {
        text += "# FRR: /etc/frr/frr.conf, with bgpd=yes in /etc/frr/daemons. --frr prints it \
                 alone.\n";
        text.extend(frr.lines().map(|line| format!("#   {line}\n")));
    }
    text
}

/// Runs the lines; all or nothing.
fn apply(steps: &[Step]) -> Result<(), Failure> {
    for (done, step) in steps.iter().enumerate() {
        print(&format!("{}\n", step.line))?;
        let Err(why) = shell(&step.line) else { continue };
        for undo in steps[..done].iter().rev().filter_map(|step| step.undo.as_ref()) {
            print(&format!("{undo}\n"))?;
            // The first failure is the one to tell.
            let _ = shell(undo);
        }
        return Err(Failure::Failed(format!("{}: {why}", step.line)));
    }
    Ok(())
}

fn remove(link: &HostLink) -> Result<(), Failure> {
    let mut failed = Ok(());
    for line in link.undo() {
        print(&format!("{line}\n"))?;
        if let Err(why) = shell(&line) {
            failed = failed.and(Err(Failure::Failed(format!("{line}: {why}"))));
        }
    }
    failed
}

/// Runs one line; what it said, also if it failed.
fn shell(line: &str) -> Result<String, String> {
    let out = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("sh: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(match said.as_str() {
        said if said.contains("Operation not permitted") => format!("{said}: run it as root"),
        said if said.contains("File exists") => {
            format!("{said}: take away what is there (--remove), or choose another --vni")
        }
        "" => format!("it failed ({})", out.status),
        said => said.to_owned(),
    })
}
