//! The switches, and the pairing of each with its guest.

mod bridge;
mod ovs;
mod vde;
mod vhost;
mod vmlan;

use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlan_harness::{HarnessError, Launch, NetNs, Pin, Result, Scratch, Stop, find_program};

use super::guest::{Guest, MAC};
use super::testpmd::{Setup, Testpmd};
use super::{Args, GUEST_CORE, Peer};

pub use ovs::version as ovs_version;
pub use vmlan::program as vmlan_program;

/// How long they may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// CPU time of a switch so far, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Charged {
    /// Of processes and kernel threads that are not the guest's.
    pub own: f64,
    /// The part of the guest's own CPU time in which it did the switch's work.
    pub in_guest: f64,
}

/// A switch while it is measured.
pub trait Switch {
    /// # Errors
    /// When the switch has ended.
    fn alive(&mut self) -> Result<()>;

    /// # Errors
    /// When the switch has ended.
    fn cpu(&self) -> Result<Charged>;

    /// Frames it has delivered so far by its own counters.
    ///
    /// # Errors
    /// When it does not answer.
    fn delivered(&mut self, stop: &Stop) -> Result<u64>;
}

/// A switch and the guest plugged into it. The guest is dropped first, as a VM is shut down before
/// its network.
pub struct Rig {
    /// Core 0.
    pub guest: Box<dyn Guest>,
    /// Core 1.
    pub switch: Box<dyn Switch>,
}

/// What every rig is made from.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The command line.
    pub args: &'a Args,
    /// Where logs and sockets go.
    pub scratch: &'a Scratch,
    /// Raised by Ctrl-C.
    pub stop: &'a Stop,
}

impl Bench<'_> {
    /// Starts `peer` and its guest.
    ///
    /// # Errors
    /// When either does not come up.
    pub fn rig(&self, peer: Peer, frame_bytes: u32) -> Result<Rig> {
        match peer {
            Peer::OvsDpdk => ovs::rig(self, frame_bytes),
            Peer::Vmlan => vmlan::rig(self, frame_bytes, false),
            Peer::Policies => vmlan::rig(self, frame_bytes, true),
            Peer::Vhost => vhost::rig(self, frame_bytes),
            Peer::Bridge => bridge::rig(self, frame_bytes),
            Peer::Vde => vde::rig(self, frame_bytes),
        }
    }

    /// testpmd with two virtio-user ports on the sockets `vu0` and `vu1` in `dir`; `listen` where
    /// the switch connects.
    fn virtio_guest(&self, dir: &Path, listen: bool, bytes: u32) -> Result<Testpmd> {
        let server = u8::from(listen);
        let vdevs = [0, 1].map(|i| {
            let path = dir.join(format!("vu{i}"));
            let path = path.display();
            let mac = MAC[i];
            format!("net_virtio_user{i},path={path},server={server},mac={mac},queue_size=1024")
        });
        let mut guest = self.testpmd("guest", GUEST_CORE, None, vdevs, bytes)?;
        guest.ready(self.stop)?;
        Ok(guest)
    }

    fn testpmd(
        &self,
        name: &str,
        core: usize,
        netns: Option<&NetNs>,
        vdevs: [String; 2],
        frame_bytes: u32,
    ) -> Result<Testpmd> {
        let one_way = self.args.one_way;
        let setup = Setup { name, core, netns, vdevs, frame_bytes, one_way };
        Testpmd::spawn(&setup, self.scratch)
    }
}

/// How switches and guests are started: on their core, inside a namespace if one is given, in a
/// group of their own, so that Ctrl-C ends them in order.
pub fn launch(name: &str, program: &Path, pin: Pin, netns: Option<&NetNs>) -> Launch {
    let launch = Launch::new(name, program).dies_with_us();
    let launch = launch.wrapped(netns.map(|netns| netns.enter(&[])).unwrap_or_default());
    launch.line_buffered().pin(pin).own_group().with_input().grace(GRACE)
}

/// Looks for everything `peer` needs before anything is started.
///
/// # Errors
/// [`HarnessError::Missing`] for the first thing that is not there.
pub fn check(peer: Peer, args: &Args) -> Result<()> {
    for program in ["setpriv", "stdbuf"] {
        tool(program)?;
    }
    let all = |programs: &[&str]| programs.iter().try_for_each(|program| tool(program).map(|_| ()));
    match peer {
        Peer::OvsDpdk => {
            all(&["dpdk-testpmd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-appctl"])?;
            ovs::program().map(|_| ())
        }
        Peer::Vmlan | Peer::Policies => {
            all(&["dpdk-testpmd"])?;
            vmlan::program(args.vmlan.as_deref()).map(|_| ())
        }
        Peer::Vhost => all(&["dpdk-testpmd"]),
        Peer::Bridge => {
            all(&["dpdk-testpmd", "ip", "nsenter"])?;
            bridge::check()
        }
        Peer::Vde => all(&["vde_switch"]),
    }
}

/// The path of `program`, or the Debian package that has it.
///
/// # Errors
/// [`HarnessError::Missing`].
pub fn tool(program: &str) -> Result<PathBuf> {
    let package = match program {
        "dpdk-testpmd" => "dpdk-dev",
        "ovsdb-server" | "ovsdb-tool" | "ovs-vsctl" | "ovs-appctl" => "openvswitch-switch-dpdk",
        "vde_switch" => "vde2",
        "ip" => "iproute2",
        "stdbuf" => "coreutils",
        _ => "util-linux",
    };
    find_program(program).map_err(|_| {
        let fix = format!("apt-get install -y {package}");
        HarnessError::missing(format!("{program} is not installed"), fix)
    })
}
