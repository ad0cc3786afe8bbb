//! The switches, and the pairing of each with its guest.

mod bridge;
mod ovs;
mod vde;
mod vhost;
mod vmlan;

use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlan_harness::usage::run_time;
use vmlan_harness::{HarnessError, Launch, NetNs, Pin, Result, Scratch, Stop, find_program};

use super::Peer;
use super::guest::{Guest, MAC};
use super::testpmd::{Setup, Testpmd};
use crate::probe::limit::Ring;

/// How long they may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// CPU time of a switch so far, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Charged {
    /// Of processes and kernel threads that are not the guest's.
    pub(super) own: f64,
    /// The part of the guest's own CPU time in which it did the switch's work.
    pub(super) in_guest: f64,
}

impl Charged {
    /// All threads of a process, to the nanosecond.
    fn of(pid: u32) -> Result<Self> {
        let gone = || HarnessError::NoFigure("the switch is gone".into());
        let own = run_time(pid).ok_or_else(gone)?.as_secs_f64();
        Ok(Self { own, in_guest: 0.0 })
    }
}

/// A switch while it is measured.
pub(super) trait Switch {
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

    /// Uses no CPU from now on, if it would. Nobody sends.
    ///
    /// # Errors
    /// When the switch has ended or does not answer.
    fn pause(&mut self, _: &Stop) -> Result<()> {
        Ok(())
    }

    /// # Errors
    /// When the switch has ended or does not answer.
    fn resume(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A switch and the guest plugged into it. The guest is dropped first, as a VM is shut down before
/// its network.
pub(super) struct Rig {
    /// On the first core.
    pub(super) guest: Box<dyn Guest>,
    /// On the last one.
    pub(super) switch: Box<dyn Switch>,
}

impl Rig {
    /// Leaves both cores to others.
    pub(super) fn pause(&mut self, stop: &Stop) -> Result<()> {
        self.guest.pause(stop)?;
        self.switch.pause(stop)
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        self.switch.resume()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // It is ended by a signal that it must be awake for; if not, by one that it need not be.
        let _ = self.switch.resume();
    }
}

/// What every rig is made from.
pub(super) struct Place<'a> {
    /// Where logs and sockets go.
    pub(super) scratch: &'a Scratch,
    /// Raised by Ctrl-C.
    pub(super) stop: &'a Stop,
    /// Of the guest, and of the switch.
    pub(super) cores: [usize; 2],
}

impl Place<'_> {
    /// Starts `peer` and its guest.
    ///
    /// # Errors
    /// When either does not come up.
    pub(super) fn rig(&self, peer: Peer) -> Result<Rig> {
        match peer {
            Peer::NewOvs => ovs::rig(self, ovs::Build::unpacked(), Ring::Split),
            Peer::Ovs => ovs::rig(self, ovs::Build::installed(), Ring::Split),
            Peer::PackedOvs => ovs::rig(self, ovs::Build::unpacked(), Ring::Packed),
            Peer::Vmlan => vmlan::rig(self, false, Ring::Split),
            Peer::Policies => vmlan::rig(self, true, Ring::Split),
            Peer::Packed => vmlan::rig(self, false, Ring::Packed),
            Peer::Vhost => vhost::rig(self),
            Peer::Bridge => bridge::rig(self),
            Peer::Vde => vde::rig(self),
        }
    }

    /// The guest's.
    fn here(&self) -> Pin {
        Pin::Core(self.cores[0])
    }

    /// The switch's.
    fn there(&self) -> Pin {
        Pin::Core(self.cores[1])
    }

    /// testpmd with two virtio-user ports on the sockets `vu0` and `vu1` in `dir`; `listen` where
    /// the switch connects.
    fn virtio_guest(&self, dir: &Path, listen: bool, ring: Ring) -> Result<Testpmd> {
        let (server, packed) = (u8::from(listen), u8::from(ring == Ring::Packed));
        let vdevs = [0, 1].map(|i| {
            let path = dir.join(format!("vu{i}"));
            let path = path.display();
            let mac = MAC[i];
            format!(
                "net_virtio_user{i},path={path},server={server},mac={mac},queue_size=1024,\
                 packed_vq={packed}"
            )
        });
        let mut guest = self.testpmd("guest", self.cores[0], None, vdevs)?;
        guest.ready(self.stop)?;
        Ok(guest)
    }

    fn testpmd(
        &self,
        name: &str,
        core: usize,
        netns: Option<&NetNs>,
        vdevs: [String; 2],
    ) -> Result<Testpmd> {
        Testpmd::spawn(&Setup { name, core, netns, vdevs }, self.scratch)
    }
}

/// How switches and guests are started: on their core, inside a namespace if one is given, in a
/// group of their own, so that Ctrl-C ends them in order.
pub(super) fn launch(name: &str, program: &Path, pin: Pin, netns: Option<&NetNs>) -> Launch {
    let launch = Launch::new(name, program).dies_with_us();
    let launch = launch.wrapped(netns.map(|netns| netns.enter(&[])).unwrap_or_default());
    launch.line_buffered().pin(pin).own_group().with_input().grace(GRACE)
}

/// Looks for everything `peer` needs before anything is started.
///
/// # Errors
/// [`HarnessError::Missing`] for the first thing that is not there.
pub(super) fn check(peer: Peer) -> Result<()> {
    for program in ["setpriv", "stdbuf"] {
        tool(program)?;
    }
    let all = |programs: &[&str]| programs.iter().try_for_each(|program| tool(program).map(|_| ()));
    match peer {
        Peer::NewOvs | Peer::PackedOvs => {
            all(&["dpdk-testpmd"]).and_then(|()| ovs::Build::unpacked().check())
        }
        Peer::Ovs => all(&["dpdk-testpmd"]).and_then(|()| ovs::Build::installed().check()),
        Peer::Vmlan | Peer::Policies | Peer::Packed | Peer::Vhost => all(&["dpdk-testpmd"]),
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
pub(super) fn tool(program: &str) -> Result<PathBuf> {
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

/// Of each Open vSwitch among the peers.
pub(super) fn ovs_versions(peers: &[Peer]) -> Vec<(String, Option<String>)> {
    let one = |peer: &Peer| match peer {
        Peer::NewOvs => Some(("ovs-dpdk-13".to_owned(), ovs::Build::unpacked().version().ok())),
        Peer::Ovs => Some(("ovs-dpdk".to_owned(), ovs::Build::installed().version().ok())),
        _ => None,
    };
    peers.iter().filter_map(one).collect()
}
