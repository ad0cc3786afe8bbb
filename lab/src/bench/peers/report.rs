//! The tables of a run.

use serde_json::json;

use super::super::Samples;
use super::super::plot::{Figure, Panel, X};
use super::super::raw::LIMIT;
use super::super::report::{Report, Table, cells, goal_rows, number};
use super::measure::Figures;
use super::switch::ovs_versions;
use super::{Case, Peer};
use crate::alike::{self, Class, Spread, Spreads};
use crate::failure::Failure;
use vmlan_config::human_text::to_f64;

/// For frames with policies over those without, at any size.
const POLICIES: f64 = 0.85;

const NOTE: &str = "DPDK's testpmd plays two VMs: it has two virtio-user ports on the first core \
    and sends every frame that it receives on one of them out of the other; the switch runs on the \
    last core. Every bounce is one delivery, and both directions are counted. Switches are started \
    once and pause between their cells. What is compared is frames per CPU second of the switch, \
    so that one which shares its core is not blamed for the time that it did not get. The rows \
    with another guest (bridge, vde) are there for their order of magnitude. More: \
    [bench-peers.md](bench-peers.md).";

type Results<'a> = [(&'a Case, Samples<Figures>)];

/// Goals for vmlan over OVS-DPDK, frames per CPU second; never below 1 at other sizes.
fn goal(bytes: u32, class: Class) -> Option<f64> {
    Some(match (bytes, class) {
        (60, Class::Far) => 1.5,
        (60, _) => 2.5,
        (1514, _) => 2.0,
        _ => 1.0,
    })
}

pub(super) fn report(peers: &[Peer], sizes: &[u32], all: &Results<'_>) -> Result<Report, Failure> {
    let keys = |w: &Case| json!({ "peer": w.peer.name(), "bytes": w.bytes });
    let mut notes = vec![NOTE.to_owned(), alike::NOTE.to_owned(), LIMIT.to_owned()];
    notes.extend(versions(peers).map(|version| format!("- {version}")));
    notes.extend(peers.iter().map(|peer| format!("- {}: {}", peer.name(), peer.note())));
    Ok(Report {
        title: "Beside OVS-DPDK and others".into(),
        notes,
        tables: vec![goals(peers, sizes, all), rows(all)],
        figure: figure(peers, sizes, all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: ratios(peers, sizes, all).into_iter().map(|(what, _, r, _)| (what, r)).collect(),
    })
}

/// Of everybody that is not this program or the kernel.
fn versions(peers: &[Peer]) -> impl Iterator<Item = String> {
    let ask = |program: &str, args: &[&str]| vmlan_harness::output_of(program, args).ok();
    let dpdk = ask("dpkg-query", &["-W", "-f", "${Version}", "dpdk-dev"]);
    let vde = ask("dpkg-query", &["-W", "-f", "${Version}", "vde2"]);
    let mut all = vec![("testpmd, as every guest".to_owned(), dpdk)];
    all.extend(ovs_versions(peers));
    all.extend(peers.contains(&Peer::Vde).then(|| ("vde2".to_owned(), vde)));
    all.into_iter().map(|(name, found)| {
        format!("{name}: version {}", found.unwrap_or_else(|| "unknown".into()))
    })
}

fn find<'a>(all: &'a Results<'_>, peer: Peer, bytes: u32) -> Option<&'a Samples<Figures>> {
    let is = |w: &Case| w.peer == peer && w.bytes == bytes;
    all.iter().find(|(w, _)| is(w)).map(|(_, samples)| samples)
}

type Goal = fn(u32, Class) -> Option<f64>;
type Value = fn(&Figures) -> f64;

/// vmlan over each Open vSwitch, policies over none, and packed rings over split ones, which have
/// no goal: with bytes and goal.
fn ratios(peers: &[Peer], sizes: &[u32], all: &Results<'_>) -> Vec<(String, u32, Spreads, Goal)> {
    let open = [Peer::NewOvs, Peer::Ovs].into_iter().filter(|base| peers.contains(base));
    let mut pairs: Vec<(Peer, Peer, Value, Goal)> = Vec::new();
    let same = open.map(|base| (Peer::Vmlan, base)).chain([(Peer::Packed, Peer::PackedOvs)]);
    pairs.extend(same.map(|(peer, base)| (peer, base, per_cpu as Value, goal as Goal)));
    let rings = [(Peer::Packed, Peer::Vmlan), (Peer::PackedOvs, Peer::NewOvs)];
    pairs.extend(rings.map(|(peer, base)| (peer, base, per_cpu as Value, (|_, _| None) as Goal)));
    pairs.push((Peer::Policies, Peer::Vmlan, |f| f.frames_per_s, |_, _| Some(POLICIES)));
    let mut found = Vec::new();
    for (peer, base, of, goal) in pairs {
        for &bytes in sizes {
            let both = find(all, peer, bytes).zip(find(all, base, bytes));
            let Some((one, base_samples)) = both else { continue };
            let what = format!("{} / {}, {bytes} B", peer.name(), base.name());
            found.push((what, bytes, one.ratios(base_samples, of), goal));
        }
    }
    found
}

fn per_cpu(figures: &Figures) -> f64 {
    figures.frames_per_cpu_s
}

fn goals(peers: &[Peer], sizes: &[u32], all: &Results<'_>) -> Table {
    let mut table = Table::new(
        "vmlan over the others and packed over split rings, frames per CPU second; policies over \
            none, frames",
        &["bytes, class", "ratio", "pairs", "goal"],
    );
    for (what, bytes, ratios, goal) in ratios(peers, sizes, all) {
        table.rows.extend(goal_rows(&ratios, &what, |class| goal(bytes, class)));
    }
    table
}

/// A row for each switch, size and class that was met.
fn rows(all: &Results<'_>) -> Table {
    let heads = [
        "switch",
        "bytes",
        "class",
        "cells",
        "Mframes/s",
        "Gbit/s",
        "CPU of the switch",
        "Mframes per CPU second",
        "of the limit",
        "lost, most",
        "others' CPU",
        "stolen",
    ];
    let mut table = Table::new("Each switch", &heads);
    for (what, samples) in all {
        for class in Class::ALL {
            let of = |value: fn(&Figures) -> f64| samples.within(class, value);
            let Some(rate) = of(|f| f.frames_per_s / 1e6) else { continue };
            let words = |spread: Option<Spread>| spread.map_or_else(|| "-".into(), |s| s.words());
            let middle = |spread: Option<Spread>| number(spread.map(|s| s.ranks[2]));
            let about = || samples.1.iter().flatten().filter(|about| about.class == class);
            let most = |value: f64, other: f64| value.max(other);
            let others = about().map(|a| a.cpu_others).fold(0.0, most);
            let stolen = about().map(|a| a.cpu_stolen).fold(0.0, most);
            let lost = of(|f| f.lost * 100.0).map_or(0.0, |s| s.ranks[4]);
            table.rows.push(vec![
                what.peer.name().into(),
                what.bytes.to_string(),
                class.name().into(),
                rate.pairs.to_string(),
                rate.words(),
                middle(of(|f| f.gbit_per_s)),
                middle(of(|f| f.cpu_switch)),
                words(of(|f| f.frames_per_cpu_s / 1e6)),
                words(of(Figures::of_limit)),
                format!("{lost:.2} %"),
                format!("{others:.2}"),
                format!("{stolen:.2}"),
            ]);
        }
    }
    table
}

fn figure(peers: &[Peer], sizes: &[u32], all: &Results<'_>) -> Figure {
    let panel = |&bytes: &u32| {
        let series = |class: Class| {
            let point = |(n, &peer): (usize, &Peer)| {
                let found = find(all, peer, bytes)?.within(class, |f| f.frames_per_cpu_s)?;
                Some((to_f64(n as u64), found.ranks[2]))
            };
            (class.name().to_owned(), peers.iter().enumerate().filter_map(point).collect())
        };
        let series = Class::ALL.map(series).into_iter();
        Panel {
            title: format!("{bytes} bytes"),
            x: X::Groups(peers.iter().map(|peer| peer.name().to_owned()).collect()),
            y: "frames per CPU second".into(),
            log: false,
            series: series.filter(|(_, points): &(_, Vec<_>)| !points.is_empty()).collect(),
        }
    };
    Figure {
        title: "vmlan bench peers: the same frames through several switches".into(),
        columns: 1,
        panels: sizes.iter().map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(frames_per_cpu_s: f64) -> Figures {
        Figures {
            frames_per_s: frames_per_cpu_s / 2.0,
            switch_frames_per_s: frames_per_cpu_s / 2.0,
            gbit_per_s: 1.0,
            cpu_switch: 0.5,
            frames_per_cpu_s,
            lost: 0.001,
            limit_frames_per_s: Some(1e7),
        }
    }

    #[test]
    fn ratios_are_of_pairs_in_one_class_and_goals_are_its_own() {
        let peers = [Peer::Ovs, Peer::Vmlan, Peer::Policies];
        let cases: Vec<_> = peers.map(|peer| Case { peer, bytes: 60 }).into();
        let rounds = [1.0, 2.0, 4.0, 3.0, 2.0, 1.0];
        let all: Vec<_> = cases
            .iter()
            .zip([1e6, 1.9e6, 1.71e6])
            .map(|(w, rate)| (w, Samples::near(rounds.map(|r| Some(figures(r * rate))).into())))
            .collect();
        let mut far = all.clone();
        for (_, samples) in &mut far {
            for about in samples.1.iter_mut().flatten() {
                about.class = Class::Far;
            }
        }
        let row = |all: &Results<'_>, n: usize| goals(&peers, &[60], all).rows[n].join(" | ");
        assert_eq!(
            row(&all, 0),
            "vmlan / ovs-dpdk, 60 B, near | 1.90 [1.90, 1.90] | 6 | 2.5: missed"
        );
        assert_eq!(
            row(&all, 2),
            "vmlan / ovs-dpdk, 60 B, far | not met on this machine | 0 | 1.5: -"
        );
        assert_eq!(row(&far, 2), "vmlan / ovs-dpdk, 60 B, far | 1.90 [1.90, 1.90] | 6 | 1.5: met");
        assert_eq!(
            row(&all, 3),
            "policies / vmlan, 60 B, near | 0.90 [0.90, 0.90] | 6 | 0.85: met"
        );
        // One of a pair elsewhere.
        far[1] = all[1].clone();
        assert_eq!(
            row(&far, 0),
            "vmlan / ovs-dpdk, 60 B, near | not met on this machine | 0 | 2.5: -"
        );
        let each = rows(&all);
        assert_eq!(each.rows[0][..5].join(" "), "ovs-dpdk 60 near 6 1.00 [0.62, 1.38]");
        assert_eq!(
            (each.heads[8].as_str(), each.rows[0][8].as_str()),
            ("of the limit", "0.20 [0.12, 0.28]")
        );
        let large = Class::ALL.map(|class| goal(1514, class));
        assert_eq!((large, goal(256, Class::Near)), ([Some(2.0); 3], Some(1.0)));
        assert!(figure(&peers, &[60], &all).svg("").unwrap().contains("policies"));
    }
}
