use clap::Parser as _;

use super::*;

fn figures(frames_per_cpu_s: f64) -> Figures {
    Figures {
        frames_per_s: frames_per_cpu_s / 2.0,
        rx_pps_median: frames_per_cpu_s / 2.0,
        switch_frames_per_s: frames_per_cpu_s / 2.0,
        gbit_per_s: 1.0,
        cpu_switch: 0.5,
        cpu_guest: 1.0,
        cpu_others: 0.0,
        frames_per_cpu_s,
        lost: 0.0,
    }
}

fn cell(peer: Peer, round: u32, frames: f64) -> Cell {
    Cell { peer, round, bytes: 60, figures: Ok(figures(frames)) }
}

fn failed(peer: Peer, round: u32) -> Cell {
    let why = "failed: no frame came back of 512 sent; logs in /tmp/x".to_owned();
    Cell { peer, round, bytes: 60, figures: Err(why) }
}

fn args() -> Args {
    Args::parse_from(["peers", "--sizes", "60"])
}

fn report(args: &Args, cells: Vec<Cell>) -> Report<'_> {
    let machine = Machine {
        host: vmlan_harness::Machine {
            cpu: "A < B & C".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            commit: "abc".to_owned(),
        },
        versions: vec!["DPDK testpmd 22.11".to_owned()],
    };
    Report { args, machine, cells, skipped: vec![(Peer::Vde, "vde_switch is missing".to_owned())] }
}

#[test]
fn ratios_compare_within_a_round() {
    use Peer::{OvsDpdk, Vmlan};
    let args = args();
    let cells = vec![
        cell(OvsDpdk, 1, 10e6),
        cell(Vmlan, 1, 20e6),
        cell(OvsDpdk, 2, 5e6),
        cell(Vmlan, 2, 15e6),
        cell(Vmlan, 3, 90e6),
    ];
    let ratios = report(&args, cells).ratios();
    let rounds =
        [(1, 2.0), (2, 3.0)].map(|(round, ratio)| RoundRatio { round, ratio, noisy: false });
    let rounds = rounds.to_vec();
    assert_eq!(ratios, vec![Ratio { bytes: 60, rounds, median: 2.5 }]);
}

#[test]
fn a_failed_row_gives_its_reason_and_no_figure() {
    let args = args();
    let report = report(&args, vec![failed(Peer::OvsDpdk, 1), cell(Peer::Vmlan, 1, 8e6)]);
    let text = table(&report);
    let row =
        text.lines().find(|line| line.starts_with("ovs-dpdk") && line.contains("60")).unwrap();
    assert!(row.ends_with("failed: no frame came back of 512 sent; logs in /tmp/x"), "{row}");
    assert!(report.ratios().is_empty());
    let json: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
    assert!(json["rows"][0]["frames_per_s"].is_null());
    assert_eq!(json["rows"][1]["frames_per_cpu_s"], 8e6);
    assert!(svg(&report).contains("no figure"));
}

#[test]
fn a_row_that_failed_once_says_so_beside_its_figure() {
    let args = args();
    let text = table(&report(&args, vec![failed(Peer::Vmlan, 1), cell(Peer::Vmlan, 2, 8e6)]));
    assert!(text.contains("8.000"), "{text}");
    assert!(text.contains("(1 of 3 rounds failed: no frame"), "{text}");
}

#[test]
fn a_peer_left_out_is_explained() {
    let args = args();
    let text = table(&report(&args, Vec::new()));
    assert!(text.contains("not driven: vde_switch is missing"), "{text}");
}

#[test]
fn goals_are_judged_by_the_median() {
    use Peer::{OvsDpdk, Vmlan};
    let args = args();
    let judged = |vmlan: f64| {
        let cells = vec![cell(OvsDpdk, 1, 1e6), cell(Vmlan, 1, vmlan)];
        table(&report(&args, cells))
    };
    assert!(judged(2e6).contains("(goal 2: met)"));
    assert!(judged(1.9e6).contains("(goal 2: missed)"));
}

#[test]
fn policies_are_compared_with_none_in_frames() {
    use Peer::{Policies, Vmlan};
    let args = args();
    let cells = vec![cell(Vmlan, 1, 10e6), cell(Policies, 1, 9e6), cell(Policies, 2, 1e6)];
    let report = report(&args, cells);
    assert_eq!(report.policies()[0].rounds.len(), 1);
    assert!(table(&report).contains("60 B  0.90  median 0.90  (goal 0.85: met)"));
    let json: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
    assert_eq!(json["policies"][0]["median"], 0.9);
}

#[test]
fn a_noisy_round_is_marked() {
    let args = args();
    let mut noisy = cell(Peer::OvsDpdk, 1, 1e6);
    noisy.figures.as_mut().unwrap().cpu_others = 0.7;
    let text = table(&report(&args, vec![noisy, cell(Peer::Vmlan, 1, 3e6)]));
    assert!(text.contains("3.00*  median 3.00"), "{text}");
    assert!(text.contains("* noisy"), "{text}");
}

#[test]
fn names_from_outside_are_escaped_in_the_drawing() {
    let args = args();
    assert!(svg(&report(&args, Vec::new())).contains("A &lt; B &amp; C"));
}
