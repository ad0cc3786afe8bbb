//! The command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::exit::Failure;
use crate::output::with_api;
use crate::{load, pktgen, stack, systemd, top};
use vmlan_api::Client;
use vmlan_config::address::AddressError;
use vmlan_config::api_path::default_path;

mod apply;
mod events;
mod explain;
mod fdb;
mod forward;
mod gateway;
mod host_link;
mod lease;
mod limit;
mod port;
mod run;
mod sflow;
mod shell;
mod stats;
mod stop;
mod switch;
mod upgrade;
mod vm_args;
mod web;

/// The last lines of `vmlan --help`.
const START_HERE: &str = if cfg!(feature = "lab") {
    "Start here:\n  vmlan demo\n  vmlan run -- qemu-system-x86_64 -m 2G disk.qcow2\n  \
     vmlan switch vm1=vhost-user:/tmp/vm1.sock vm2=vhost-user:/tmp/vm2.sock\n  \
     vmlan vm-args vm1\n\nExit codes: 0 done, 1 failed, 2 wrong usage."
} else {
    "Start here:\n  vmlan run -- qemu-system-x86_64 -m 2G disk.qcow2\n  \
     vmlan switch vm1=vhost-user:/tmp/vm1.sock vm2=vhost-user:/tmp/vm2.sock\n  \
     vmlan vm-args vm1\n\nExit codes: 0 done, 1 failed, 2 wrong usage."
};

/// A LAN for virtual machines.
#[derive(Debug, Parser)]
#[command(name = "vmlan", version, disable_help_subcommand = true, after_help = START_HERE)]
struct Cli {
    /// The API's socket of the running switch, for the commands that talk to one
    #[arg(long, value_name = "PATH")]
    api: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what the switch can do on this machine: a switch, two guests, and what passes between
    /// them
    #[cfg(feature = "lab")]
    Demo(vmlan_lab::demo::DemoArgs),
    /// Measure: the paper's tables rebuilt, frames straight from the driver, latency, livelock
    #[cfg(feature = "lab")]
    Bench(vmlan_lab::bench::BenchArgs),
    /// Measure what leaving the guest costs on this host, and say which technique it gains most
    /// from
    #[cfg(feature = "lab")]
    Probe(vmlan_lab::probe::ProbeArgs),
    /// Run a switch
    #[command(after_help = switch::switch_help())]
    Switch(switch::SwitchArgs),
    /// List, add, remove or change ports of a running switch
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan port add vm3=vhost-user:/tmp/vm3.sock,queues=2\n  vmlan \
            port list"
    )]
    Port(port::PortArgs),
    /// List, pin or forget MAC addresses of a running switch
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan fdb add 52:54:00:12:34:56 vm1\n  vmlan fdb list"
    )]
    Fdb(fdb::FdbArgs),
    /// Make a running switch what a configuration file says, by difference
    ///
    /// Ports that are the same are not touched. Ports that are not in the file are removed, also
    /// those that were added by the command line or by `vmlan port add`; so are limits. A file with
    /// any error changes nothing, and so does one that asks for something that cannot be had. Keys
    /// of [switch] must be those that it runs with: they want a restart.
    #[command(after_help = "Example:\n  vmlan apply /etc/vmlan.toml --dry-run\n  vmlan apply \
            /etc/vmlan.toml")]
    Apply(apply::ApplyArgs),
    /// List, create, change or remove limits that ports of a running switch share
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan limit set tenant1 rate=1Gbit frames=100k\n  vmlan port set \
            vm1 from_limit=tenant1"
    )]
    Limit(limit::LimitArgs),
    /// List, keep or forget the addresses that a gateway (a port `nat:`) gives
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan lease list\n  vmlan lease set vm1 10.77.0.20"
    )]
    Lease(lease::LeaseArgs),
    /// List, add or remove ports of this host that lead to VMs, by a gateway (a port `nat:`)
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan forward add 2222:vm1:22\n  vmlan forward list"
    )]
    Forward(forward::ForwardArgs),
    /// Export samples of a running switch's frames, and its counters, to an sFlow collector
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  vmlan sflow set collector=127.0.0.1:6343 sampling=1000\n  vmlan \
            sflow show"
    )]
    Sflow(sflow::SflowArgs),
    /// Show the counters of a running switch
    #[command(
        after_help = "Example:\n  vmlan stats --watch\n  vmlan stats --json | jq '.ports[].drops'"
    )]
    Stats(stats::StatsArgs),
    /// End a running switch, and wait until it has ended
    ///
    /// VMs are left to the next switch as they are if it was started with --hold-for.
    #[command(after_help = "Example:\n  vmlan stop\n  vmlan stop --for-good")]
    Stop(stop::StopArgs),
    /// Put another release in the place of a running switch that was started with --hold-for
    ///
    /// It is started as the running one was, and checks its configuration beside it. Whatever is
    /// wrong then leaves the running one as it is. No driver in a VM notices more than a pause.
    #[command(after_help = "Example:\n  vmlan upgrade\n  vmlan upgrade --binary ./vmlan-new")]
    Upgrade(upgrade::UpgradeArgs),
    /// Tell what happens in a running switch, as it happens
    ///
    /// Ports that come, go, come up and go down; addresses that are learned and moved; limits hit,
    /// frames dropped, faults. Looked at ten times a second; drops are told once a second.
    #[command(after_help = "Example:\n  vmlan events\n  vmlan events --json | jq -r .event")]
    Events(events::EventsArgs),
    /// Show what passes through a running switch, as it passes
    ///
    /// Ports sorted by rate, their drops, the workers' time they take, and their past; with Enter
    /// all there is to know of one. `?` lists the keys.
    #[command(after_help = "Example:\n  vmlan top\n  vmlan top --sort drops --interval 0.5")]
    Top(top::TopArgs),
    /// Serve a page about a running switch: topology, rates, drops, exits and interrupts
    #[command(after_help = web::EXAMPLE)]
    Web(web::WebArgs),
    /// Say what would become of a frame, and why, without sending it
    #[command(after_help = concat!(
        "Example:\n  vmlan explain --port vm1 --src 52:54:00:00:00:01 --dst ff:ff:ff:ff:ff:ff \
            --arp --ip-src 10.0.0.1 --ip-dst 10.0.0.2\n",
        "  vmlan explain --port vm1 \
            ffffffffffff525400000001080600010800060400015254000000010a0000010000000000000a000002"
    ))]
    Explain(Box<explain::ExplainArgs>),
    /// Print the exact options to give the VMM for a port
    #[command(after_help = concat!(
        "Example:\n  vmlan vm-args vm1\n  qemu-system-x86_64 -accel kvm $(vmlan vm-args vm1) \
            disk.img\n",
        "  vmlan vm-args vm1=vhost-user:/tmp/vm1.sock --vmm libvirt     (no switch needed)"
    ))]
    VmArgs(vm_args::VmArgsArgs),
    /// Join the LANs of several hosts: print, apply or remove what an uplink needs for it
    ///
    /// A VXLAN of the kernel's, a bridge and a TAP device for a port `tap:`. A few hosts know each
    /// other by a list; many by BGP (EVPN), which FRR speaks: its configuration is printed, too.
    #[command(after_help = host_link::EXAMPLE)]
    HostLink(Box<host_link::HostLinkArgs>),
    /// Run a VM with a NIC on the LAN, and start a switch with a way out if none runs
    ///
    /// Adds a port to the running switch and becomes the VMM, with the options that the port needs:
    /// the terminal, signals and the exit code are the VMM's. When the VMM ends, the port is
    /// removed. A switch that was started so ends with the last of its VMs.
    #[command(after_help = run::EXAMPLE)]
    Run(Box<run::RunArgs>),
    /// Send, receive, or measure round trips, as a guest on a port
    PktGen(Box<pktgen::PktGenArgs>),
    /// Give a LAN addresses, names and a way out, as a guest on a port; a `nat:` port starts one
    #[command(after_help = gateway::EXAMPLE)]
    Gateway(gateway::GatewayArgs),
    /// UDP and TCP sockets as a guest on a port: streams, request-response, livelock
    Stack(stack::StackArgs),
    /// The workloads of `stack` on the kernel's sockets, in a guest or on the host
    Load(load::LoadArgs),
    /// Write the manual's pages, for packages
    #[command(hide = true, after_help = "Example:\n  vmlan man /usr/local/share/man/man1")]
    Man(shell::ManArgs),
}

/// Where the running switch is.
#[derive(Debug, Args)]
pub(crate) struct ApiArgs {
    /// The API's socket [default: /run/vmlan/api.sock for root, else $XDG_RUNTIME_DIR/vmlan.sock]
    #[arg(long, value_name = "PATH", global = true)]
    api: Option<PathBuf>,
}

impl Command {
    /// Where a command's own `--api` stands; `None`: it talks to no switch.
    fn api(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Self::Switch(args) => Some(&mut args.api),
            Self::Port(args) => Some(&mut args.api.api),
            Self::Fdb(args) => Some(&mut args.api.api),
            Self::Apply(args) => Some(&mut args.api.api),
            Self::Limit(args) => Some(&mut args.api.api),
            Self::Lease(args) => Some(&mut args.api.api),
            Self::Forward(args) => Some(&mut args.api.api),
            Self::Sflow(args) => Some(&mut args.api.api),
            Self::Stats(args) => Some(&mut args.api.api),
            Self::Stop(args) => Some(&mut args.api.api),
            Self::Upgrade(args) => Some(&mut args.api.api),
            Self::Events(args) => Some(&mut args.api.api),
            Self::Top(args) => Some(&mut args.api.api),
            Self::Web(args) => Some(&mut args.api.api),
            Self::Explain(args) => Some(&mut args.api.api),
            Self::VmArgs(args) => Some(&mut args.api.api),
            Self::Run(args) => Some(&mut args.api.api),
            Self::HostLink(args) => Some(&mut args.api.api),
            Self::PktGen(_) | Self::Stack(_) | Self::Load(_) | Self::Gateway(_) | Self::Man(_) => {
                None
            }
            #[cfg(feature = "lab")]
            Self::Demo(_) | Self::Bench(_) | Self::Probe(_) => None,
        }
    }

    fn run(self) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "lab")]
            Self::Demo(args) => Ok(vmlan_lab::demo::run(&args)?),
            #[cfg(feature = "lab")]
            Self::Bench(args) => Ok(vmlan_lab::bench::run(&args)?),
            #[cfg(feature = "lab")]
            Self::Probe(args) => Ok(vmlan_lab::probe::run(&args)?),
            Self::Switch(args) => switch::run(args),
            Self::Port(args) => port::run(args),
            Self::Fdb(args) => fdb::run(args),
            Self::Apply(args) => apply::run(&args),
            Self::Limit(args) => limit::run(args),
            Self::Lease(args) => lease::run(args),
            Self::Forward(args) => forward::run(args),
            Self::Sflow(args) => sflow::run(args),
            Self::Stats(args) => stats::run(&args),
            Self::Stop(args) => stop::run(&args),
            Self::Upgrade(args) => upgrade::run(&args),
            Self::Events(args) => events::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Web(args) => web::run(&args),
            Self::Explain(args) => explain::run(&args),
            Self::VmArgs(args) => vm_args::run(&args),
            Self::Run(args) => run::run(&args),
            Self::HostLink(args) => host_link::run(&args),
            Self::PktGen(args) => pktgen::run(&args),
            Self::Gateway(args) => gateway::run(args),
            Self::Stack(args) => stack::run(&args),
            Self::Load(args) => load::run(&args),
            Self::Man(args) => shell::manual(&args),
        }
    }
}

impl ApiArgs {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(&self.path()?))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        Ok(match &self.api {
            Some(path) => path.clone(),
            None => default_path()?,
        })
    }
}

/// The text of a configuration file.
fn read_config(path: &Path) -> Result<String, Failure> {
    let unread = |e| format!("{}: {e}: give a file that can be read", path.display());
    std::fs::read_to_string(path).map_err(|e| Failure::Failed(unread(e)))
}

/// Names the port whose address is wrong, if it has a name.
fn named_failure(text: &str, error: &AddressError) -> Failure {
    match text.split_once('=') {
        Some((name, _)) if !name.contains(':') => Failure::Usage(format!("port {name}: {error}")),
        _ => Failure::Usage(error.to_string()),
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    shell::complete();
    let Cli { api, mut command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            systemd::failed_start(e.use_stderr() && systemd::has_kept());
            return wrong_usage(&e);
        }
    };
    let api = match command.api() {
        // `vmlan port list --api PATH` goes before `vmlan --api PATH port list`.
        Some(own) => {
            *own = own.take().or(api);
            own.clone()
        }
        None if api.is_some() => {
            eprintln!("vmlan: --api: this command talks to no switch: leave it out");
            return ExitCode::from(2);
        }
        None => None,
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", with_api(&format!("vmlan: {failure}"), api.as_deref()));
            failure.code()
        }
    }
}

/// Help goes to standard output as it is; a mistake is one line.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    let help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if help {
        // Nothing to do if nobody reads it.
        let _ = error.print();
        return ExitCode::from(u8::from(error.use_stderr()) * 2);
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let said: Vec<_> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = said.join(" ");
    eprintln!("vmlan: {} (see --help)", said.strip_prefix("error: ").unwrap_or(&said));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_explains_itself_with_an_example() {
        let mut cli = Cli::command();
        cli.build();
        let mut commands: Vec<_> = cli.get_subcommands().cloned().collect();
        while let Some(mut command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let help = command.render_long_help().to_string();
            assert!(help.contains("xample"), "{}: {help}", command.get_name());
            assert!(help.contains("vmlan "), "{}: {help}", command.get_name());
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
