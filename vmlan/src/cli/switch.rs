//! `vmlan switch`: its arguments and its help.

use std::path::PathBuf;

use clap::Args;

use super::{named_failure, read_config};
use crate::exit::Failure;
use crate::output::print;
use crate::{serve, systemd};
use vmlan_config::address::{Key, Kind, LIMIT, NamedAddress, POLICY, SFLOW};
use vmlan_config::cpu_list::CpuList;
use vmlan_config::file::{self, Config, OnOff, SwitchTable};
use vmlan_config::human_text::folded;
use vmlan_config::settings::{Settings, Supervision};

#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    /// Configuration file (TOML, the same words)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The API's socket [default: /run/vmlan/api.sock for root, else $XDG_RUNTIME_DIR/vmlan.sock]
    #[arg(long, value_name = "PATH")]
    pub(super) api: Option<PathBuf>,
    /// Permission bits of the API's socket [default: 0600]
    #[arg(long, value_name = "MODE")]
    api_mode: Option<String>,
    /// Threads that move frames [default: 1]
    #[arg(long, value_name = "N")]
    workers: Option<u16>,
    /// CPUs for them, one for each worker, like 2,4-7: they run nowhere else [default: wherever the
    /// kernel has them run]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Microseconds a worker looks for frames before it sleeps [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    spin: Option<u32>,
    /// Seconds a learned MAC address is remembered [default: 300]
    #[arg(long, value_name = "SECONDS")]
    ageing: Option<u32>,
    /// Most microseconds a sender waits for a full receiver before the frame is dropped: each frame
    /// the receiver takes earns 20 of them [default: 10000]
    #[arg(long, value_name = "MICROSECONDS")]
    full_wait: Option<u32>,
    /// Slots of the forwarding table [default: 131072]
    #[arg(long, value_name = "N")]
    fdb_entries: Option<u32>,
    /// Hold the connections of VMs for so long if this process dies; the next switch with the same
    /// API goes on with them [default: vfio-user's are lost, vhost-user's made anew]
    #[arg(long, value_name = "SECONDS")]
    hold_for: Option<u32>,
    /// Start the switch anew whenever it dies, by a process that does nothing else. With
    /// --hold-for no VM loses its emulated NIC then
    #[arg(long, conflicts_with = "while_held")]
    supervise: bool,
    /// Give up all rights that are not needed (docs/security.md) [default: on]
    #[arg(long, value_name = "on|off")]
    sandbox: Option<OnOff>,
    /// With the sandbox: lets ports that are added later make sockets and capture files in DIR and
    /// below. Without it they may in the temporary directory, $XDG_RUNTIME_DIR, /run/vmlan, and
    /// beside the sockets that the switch is started with
    #[arg(long, value_name = "DIR")]
    allow_dir: Vec<PathBuf>,
    /// Only say whether the configuration file and the other words are right: nothing is opened,
    /// and a switch that runs is not asked
    #[arg(long)]
    check: bool,
    /// Standard input is the first client of the API, and the switch ends when nobody holds a port
    #[arg(long, hide = true)]
    while_held: bool,
    /// Standard input is `vmlan upgrade`, which says when to begin
    #[arg(long, hide = true, conflicts_with = "while_held")]
    successor: bool,
    /// Standard input is the process that starts it anew
    #[arg(long, hide = true, conflicts_with = "successor")]
    supervised: bool,
    /// Ports: names and addresses
    #[arg(value_name = "NAME=ADDRESS")]
    ports: Vec<String>,
}

/// Runs a switch, unless it is only to be said whether that could be.
pub(super) fn run(args: SwitchArgs) -> Result<(), Failure> {
    let check = args.check;
    // What the service manager says is taken out of the environment.
    let kept = systemd::has_kept();
    let settings = args.settings();
    if check {
        return settings.and_then(|_| print("ok\n"));
    }
    let done = settings.and_then(serve::run);
    done.inspect_err(|_| systemd::failed_start(kept))
}

impl SwitchArgs {
    fn settings(self) -> Result<Settings, Failure> {
        let config = match &self.config {
            Some(path) => Config::parse(&read_config(path)?, path)?,
            None => Config::default(),
        };
        let mut ports = Vec::new();
        for text in &self.ports {
            let named: NamedAddress = text.parse().map_err(|e| named_failure(text, &e))?;
            ports.push(named);
        }
        let table = SwitchTable {
            workers: self.workers,
            cpus: self.cpus,
            api: self.api,
            api_mode: self.api_mode,
            spin: self.spin,
            ageing: self.ageing,
            full_wait: self.full_wait,
            fdb_entries: self.fdb_entries,
            hold_for: self.hold_for,
            sandbox: self.sandbox,
            allow_dir: self.allow_dir,
        };
        let mut settings = Settings::new(config, table, ports)?;
        settings.running.config = self.config.and_then(|path| path.canonicalize().ok());
        settings.running.while_held = self.while_held;
        settings.running.successor = self.successor;
        settings.running.supervision = match (self.supervised, self.supervise) {
            (true, _) => Supervision::Supervised,
            (false, true) => Supervision::Supervisor,
            (false, false) => Supervision::None,
        };
        Ok(settings)
    }
}

pub(super) fn switch_help() -> String {
    let mut text = "Example:\n  vmlan switch vm1=vhost-user:/tmp/vm1.sock host=tap:vmlan0\n  \
        vmlan switch --supervise --hold-for 60 vm1=vfio-user:/tmp/vm1.sock\n  \
        vmlan switch --cpus 2,3 vm1=vhost-user:/tmp/vm1.sock,queues=2\n\n\
        ADDRESS is KIND:PLACE[,KEY=VALUE...]; a comma inside is written twice. KIND, PLACE and \
        keys:\n"
        .to_owned();
    for kind in Kind::ALL {
        text += &format!("  {kind}: {}\n", kind.place());
        for key in kind.keys() {
            text += &format!("      {:12} {}\n", key.name, folded(key.help, 19));
        }
    }
    text += "  All kinds but pcap, changed without closing the port (`vmlan port set`):\n";
    for key in POLICY {
        text += &format!("      {:16} {}\n", key.name, folded(key.help, 23));
    }
    text += "\nA file for --config has the same words (numbers bare, text in quotes):\n";
    for line in file::EXAMPLE.lines() {
        text += &format!("  {line}\n");
    }
    let words = |keys: &[Key]| keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
    text += &format!(
        "Tables there are: [switch], [port.NAME], [limit.NAME] ({}),\n  [group.NAME] (empty), \
            [sflow] ({})\n",
        words(LIMIT),
        words(SFLOW)
    );
    text
}
