//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  sudo make bench-peers
  peers --rounds 5 --seconds 10 --json peers.json --svg peers.svg
  peers --only ovs-dpdk,vmlan --sizes 60 --vmlan target/release/vmlan";

/// vmlan beside OVS-DPDK and others: DPDK testpmd on core 0 bounces frames between two ports of a
/// switch on core 1.
///
/// Needs root (hugepages, network namespaces) and two cores; restores what it changes.
#[derive(Debug, Clone, Parser)]
#[command(name = "peers", version, after_help = EXAMPLES)]
pub struct Args {
    /// Rounds; each measures every peer at every size, every other one in reverse order.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of the steady window, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub seconds: u32,
    /// Frame sizes in bytes, without the checksum (FCS).
    #[arg(long, value_delimiter = ',', default_values_t = [60, 256, 1514],
          value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub sizes: Vec<u32>,
    /// Measure only these.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "PEER,...",
          default_values_t = Peer::ALL)]
    pub only: Vec<Peer>,
    /// The vmlan program [default: `vmlan` beside this program].
    #[arg(long, value_name = "PATH")]
    pub vmlan: Option<PathBuf>,
    /// Further options for `vmlan switch`, for example `--vmlan-arg=--spin=0`.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub vmlan_arg: Vec<String>,
    /// Frames in one direction only (port 0 to port 1), instead of both at once.
    #[arg(long)]
    pub one_way: bool,
    /// Priority of switch and guest alike; -20 keeps others' work away on a machine that is shared.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub nice: i32,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw frames per CPU second of every peer.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// A switch to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// Open vSwitch with DPDK: one polling thread.
    OvsDpdk,
    /// The switch of this project.
    Vmlan,
    /// The same with policies on its ports.
    Policies,
    /// DPDK's vhost alone: testpmd in io mode, no look-up; what the copying costs.
    Vhost,
    /// The Linux bridge between two TAP devices.
    Bridge,
    /// `vde_switch`, driven through its own socket.
    Vde,
}

impl Peer {
    /// In the order of the table.
    pub const ALL: [Self; 6] =
        [Self::OvsDpdk, Self::Vmlan, Self::Policies, Self::Vhost, Self::Bridge, Self::Vde];

    /// The name in options, tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::OvsDpdk => "ovs-dpdk",
            Self::Vmlan => "vmlan",
            Self::Policies => "policies",
            Self::Vhost => "vhost",
            Self::Bridge => "bridge",
            Self::Vde => "vde",
        }
    }

    /// Whether a run may go on without this peer, with a row that says why.
    pub fn optional(self) -> bool {
        matches!(self, Self::Bridge | Self::Vde)
    }

    /// Who the guest is, and what the CPU time counts: shown below the table.
    pub fn note(self) -> &'static str {
        match self {
            Self::OvsDpdk => "one PMD thread, NORMAL action; CPU: ovs-vswitchd, all threads",
            Self::Vmlan => "one worker; CPU: the vmlan process, all threads",
            Self::Policies => {
                "vmlan with macs, ips, an access VLAN, limits of bits and frames both ways (far \
                    above the rate)"
            }
            Self::Vhost => "testpmd io between two net_vhost ports, no look-up; CPU: that process",
            Self::Bridge => {
                "testpmd net_tap; the kernel bridges in the writer's system call, so CPU is all \
                 system time of the guest (its read and write calls included) and of ksoftirqd"
            }
            Self::Vde => "a loop of this program on vde's datagram sockets; CPU: vde_switch",
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
