//! One guest, several switches: the same frames bounced through vmlan and through its peers.
//!
//! Each switch is started once, on the last core, with its guest on the first one. Between its
//! cells the guest is told to pause, and a switch that polls is stopped by a signal, so that
//! nobody disturbs the next cell, nor the readings of how near the two cores are. Everything
//! started or changed is owned by a value whose `Drop` undoes it.

mod guest;
mod hugepages;
mod measure;
mod report;
mod switch;
mod testpmd;
mod vde_loop;

use std::collections::BTreeMap;

use vmlan_harness::{HarnessError, Scratch};

use super::Run;
use super::raw;
use super::report::Report;
use crate::failure::Failure;
use crate::probe::cores::Cores;
use crate::probe::limit::{self, Guest, Ring};
use hugepages::{Hugepages, node};
use measure::{Figures, measure};
use switch::{Place, Rig, check};

/// A switch to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    /// Open vSwitch with DPDK, one polling thread, as Debian 13 has it.
    NewOvs,
    /// The same as this machine's Debian has it.
    Ovs,
    /// The switch of this project.
    Vmlan,
    /// The same with policies on its ports.
    Policies,
    /// `NewOvs`, its guest with packed virtqueues.
    PackedOvs,
    /// `Vmlan`, its guest with packed virtqueues.
    Packed,
    /// DPDK's vhost alone: testpmd in io mode, no look-up; what the copying costs.
    Vhost,
    /// The Linux bridge between two TAP devices.
    Bridge,
    /// `vde_switch`, driven through its own socket.
    Vde,
}

impl Peer {
    /// In the order of the table.
    const ALL: [Self; 9] = [
        Self::NewOvs,
        Self::Ovs,
        Self::Vmlan,
        Self::Policies,
        Self::PackedOvs,
        Self::Packed,
        Self::Vhost,
        Self::Bridge,
        Self::Vde,
    ];

    /// In options, tables and files.
    fn name(self) -> &'static str {
        match self {
            Self::NewOvs => "ovs-dpdk-13",
            Self::Ovs => "ovs-dpdk",
            Self::Vmlan => "vmlan",
            Self::Policies => "policies",
            Self::PackedOvs => "ovs-packed",
            Self::Packed => "packed",
            Self::Vhost => "vhost",
            Self::Bridge => "bridge",
            Self::Vde => "vde",
        }
    }

    /// What it is, who the guest is, and what the CPU time counts.
    fn note(self) -> &'static str {
        match self {
            Self::NewOvs => {
                "Debian 13's Open vSwitch and DPDK, unpacked by scripts/setup.sh peers; otherwise \
                    as ovs-dpdk"
            }
            Self::Ovs => "one PMD thread, NORMAL action; CPU: ovs-vswitchd, all threads",
            Self::Vmlan => "one worker; CPU: the vmlan process, all threads",
            Self::Policies => {
                "vmlan with macs, ips, an access VLAN, limits of bits and frames both ways (far \
                    above the rate)"
            }
            Self::PackedOvs => "as ovs-dpdk-13, with packed virtqueues (packed_vq=1)",
            Self::Packed => "as vmlan, with packed virtqueues (packed_vq=1)",
            Self::Vhost => "testpmd io between two net_vhost ports, no look-up; CPU: that process",
            Self::Bridge => {
                "testpmd net_tap; the kernel bridges in the writer's system call, so CPU is all \
                    system time of the guest (its read and write calls included) and of \
                    ksoftirqd, in steps of a clock tick: an upper bound"
            }
            Self::Vde => "a loop of this program on vde's datagram sockets; CPU: vde_switch",
        }
    }

    /// The virtqueues of its guest, if that is testpmd.
    fn ring(self) -> Option<Ring> {
        match self {
            Self::NewOvs | Self::Ovs | Self::Vmlan | Self::Policies | Self::Vhost => {
                Some(Ring::Split)
            }
            Self::PackedOvs | Self::Packed => Some(Ring::Packed),
            Self::Bridge | Self::Vde => None,
        }
    }

    /// Of hugepages, in MiB, near the first core and near the last: 160 for a testpmd, and Open
    /// vSwitch's pool, which is beside the guest.
    fn hugepages(self) -> [u64; 2] {
        match self {
            Self::NewOvs | Self::Ovs | Self::PackedOvs => [832 + 160, 0],
            Self::Vhost => [160, 160],
            Self::Vmlan | Self::Policies | Self::Packed | Self::Bridge => [160, 0],
            Self::Vde => [0, 0],
        }
    }
}

const SIZES: [u32; 3] = [60, 256, 1514];
const SHORT_SIZES: [u32; 2] = [60, 1514];

struct Case {
    peer: Peer,
    bytes: u32,
}

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let sizes = run.args.sizes(run.args.axis(&SIZES, &SHORT_SIZES), 60, 1514)?;
    let wanted = wanted(&run.args.only)?;
    let Cores { here, there: Some(there) } = Cores::find() else {
        return Err(missing("two cores", "run it on a machine that has them"));
    };
    if !rustix::process::geteuid().is_root() {
        return Err(missing("root", "run it with sudo: it uses hugepages and network namespaces"));
    }
    let mut peers = Vec::new();
    for peer in wanted {
        match check(peer) {
            Ok(()) => peers.push(peer),
            Err(error) => run.failures.push(format!("{}: {}", peer.name(), error.chain())),
        }
    }
    if peers.is_empty() {
        return Err(Failure::Failed(run.failures.join("; ")));
    }
    let (stop, cores) = (run.setup.stop.clone(), [here, there].map(usize::from));
    let _hugepages = Hugepages::reserve(&on_nodes(&peers, cores.map(node)))?;
    let scratch = Scratch::new()?;
    let mut rigs = Rigs { place: Place { scratch: &scratch, stop: &stop, cores }, all: [].into() };
    let cases: Vec<_> = sizes
        .iter()
        .flat_map(|&bytes| peers.iter().map(move |&peer| Case { peer, bytes }))
        .collect();
    let samples = run.rounds(
        &cases,
        |w| format!("{}, {} B", w.peer.name(), w.bytes),
        |_, figures: &Figures| figures.words(),
        |cell| rigs.measure(cell.what, cell.time),
    )?;
    report::report(&peers, &sizes, &cases.iter().zip(samples).collect::<Vec<_>>())
}

/// MiB of hugepages of all of them; `nodes` are those of the two cores.
fn on_nodes(peers: &[Peer], nodes: [usize; 2]) -> BTreeMap<usize, u64> {
    let mut all = BTreeMap::new();
    for (node, mib) in peers.iter().flat_map(|peer| nodes.into_iter().zip(peer.hugepages())) {
        *all.entry(node).or_default() += mib;
    }
    all
}

fn missing(what: &str, fix: &str) -> Failure {
    Failure::Failed(format!("{what} missing: {fix}"))
}

/// All peers, or those that were asked for.
fn wanted(names: &[String]) -> Result<Vec<Peer>, Failure> {
    if let Some(odd) = names.iter().find(|name| !Peer::ALL.iter().any(|p| p.name() == **name)) {
        let all = Peer::ALL.map(Peer::name).join(", ");
        return Err(Failure::Usage(format!("'{odd}' is not a peer: there are {all}")));
    }
    let is = |peer: &Peer| names.is_empty() || names.iter().any(|name| name == peer.name());
    Ok(Peer::ALL.into_iter().filter(is).collect())
}

/// What has been started.
struct Rigs<'a> {
    place: Place<'a>,
    /// Why one is not there is kept: it is not tried again.
    all: BTreeMap<Peer, Result<Rig, String>>,
}

impl Rigs<'_> {
    fn measure(&mut self, what: &Case, time: std::time::Duration) -> Result<Figures, Failure> {
        let stop = self.place.stop.clone();
        let rig = self.all.entry(what.peer).or_insert_with(|| {
            self.place.rig(what.peer).map_err(|error| logged(&self.place, &error))
        });
        let rig = rig.as_mut().map_err(|why| Failure::Failed(why.clone()))?;
        let found = rig.resume().and_then(|()| measure(rig, &stop, time, what.bytes));
        let paused = rig.pause(&stop);
        let found = found.and_then(|figures| paused.map(|()| figures));
        // Nobody uses the cores now.
        let limit = (what.peer.ring().filter(|_| raw::has_limit(what.bytes)))
            .map(|ring| limit::frames_per_s(ring, Guest::Testpmd).ok());
        let found = found.map(|figures| Figures { limit_frames_per_s: limit.flatten(), ..figures });
        found.map_err(|error| {
            // The next cell starts it anew.
            self.all.remove(&what.peer);
            stop.check()
                .map_or_else(Failure::from, |()| Failure::Failed(logged(&self.place, &error)))
        })
    }
}

/// Where to read more.
fn logged(place: &Place<'_>, error: &HarnessError) -> String {
    place.scratch.keep();
    format!("{}; logs in {}", error.chain(), place.scratch.path().display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hugepages_of_all_are_those_of_the_page_about_it() {
        let all = on_nodes(&Peer::ALL, [0, 0])[&0];
        assert_eq!(on_nodes(&Peer::ALL, [1, 0]), [(0, 160), (1, all - 160)].into());
        let page = include_str!("../../../../docs/bench-peers.md");
        assert!(all == 3936 && page.contains("3,936 MiB"), "{all} MiB");
    }

    #[test]
    fn peers_are_asked_for_by_name() {
        let names = |asked: &[&str]| {
            let asked: Vec<_> = asked.iter().map(|&name| name.to_owned()).collect();
            wanted(&asked).map(|peers| peers.iter().map(|p| p.name()).collect::<Vec<_>>())
        };
        assert_eq!(names(&["vmlan", "ovs-dpdk"]).unwrap(), ["ovs-dpdk", "vmlan"]);
        assert_eq!(names(&[]).unwrap().len(), Peer::ALL.len());
        let Err(Failure::Usage(text)) = names(&["vpp"]) else { panic!("vpp is a peer") };
        assert!(text.contains("vpp") && text.contains("ovs-dpdk-13"), "{text}");
    }
}
