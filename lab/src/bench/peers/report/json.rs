//! The JSON file: rows in the words of `vmlan demo --json`, then every round.

use serde_json::{Value, json as value};

use super::super::Peer;
use super::{Cell, Ratio, Report};

/// All figures of a run.
pub fn json(report: &Report<'_>) -> String {
    let args = report.args;
    let rows = args.sizes.iter().flat_map(|&bytes| {
        let peers = Peer::ALL.into_iter().filter(|peer| args.only.contains(peer));
        peers.map(move |peer| row(report, peer, bytes))
    });
    let policies = report.policies();
    let all = value!({
        "commit": report.machine.host.commit,
        "machine": report.machine,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "one_way": args.one_way,
        "nice": args.nice,
        "rows": rows.collect::<Vec<_>>(),
        "ratios": report.ratios().iter().map(|r| ratio(r, "vmlan_to_ovs_dpdk")).collect::<Vec<_>>(),
        "policies": policies.iter().map(|r| ratio(r, "policies_to_vmlan")).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

fn row(report: &Report<'_>, peer: Peer, bytes: u32) -> Value {
    let skipped = report.skipped.iter().find(|(skipped, _)| *skipped == peer);
    value!({
        "name": peer.name(),
        "guest": guest(peer),
        "frame_bytes": bytes,
        "frames_per_s": report.median(peer, bytes, |f| f.frames_per_s),
        "gbit_per_s": report.median(peer, bytes, |f| f.gbit_per_s),
        "cpu_switch": report.median(peer, bytes, |f| f.cpu_switch),
        "cpu_guests": report.median(peer, bytes, |f| f.cpu_guest),
        "frames_per_cpu_s": report.median(peer, bytes, |f| f.frames_per_cpu_s),
        "note": peer.note(),
        "not_driven": skipped.map(|(_, why)| why),
        "rounds": report.row(peer, bytes).map(round).collect::<Vec<_>>(),
    })
}

fn guest(peer: Peer) -> &'static str {
    match peer {
        Peer::OvsDpdk | Peer::Vmlan | Peer::Policies | Peer::Vhost => "native (DPDK virtio-user)",
        Peer::Bridge => "native (DPDK net_tap)",
        Peer::Vde => "native (loop on datagram sockets)",
    }
}

fn round(cell: &Cell) -> Value {
    match &cell.figures {
        Ok(figures) => value!({ "round": cell.round, "figures": figures }),
        Err(why) => value!({ "round": cell.round, "failed": why }),
    }
}

fn ratio(ratio: &Ratio, what: &str) -> Value {
    let rounds: Vec<_> = ratio.rounds.iter().map(|round| round.ratio).collect();
    let noisy = ratio.rounds.iter().any(|round| round.noisy);
    value!({ "frame_bytes": ratio.bytes, what: rounds, "median": ratio.median, "noisy": noisy })
}
