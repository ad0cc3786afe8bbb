//! `vmlan demo`: a switch and two native guests as separate processes; the same frames over a NIC
//! driven in each way, one factor a step: the short form of `vmlan bench ladder`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::alike::Class;
use crate::bench::ladder::TRUNK;
use crate::failure::Failure;
use crate::hosts;
use crate::native::pair::{Measured, Task};
use crate::native::{Cores, Lab, Machine, Setup, Stop, Technique, WARM_UP, progress, technique};
use crate::output::print;
use crate::probe::cores::line_ns;
use vmlan_config::human_text::{columns, count, si};

/// Arguments of `vmlan demo`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  vmlan demo --seconds 5 --json demo.json")]
pub struct DemoArgs {
    /// Seconds each row is measured
    #[arg(long, value_name = "N", default_value_t = 1)]
    seconds: u16,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show two hosts instead, which find each other by BGP (evpn, with FRR) or by a list (static);
    /// auto: by BGP if FRR is here
    #[arg(long, value_name = "FABRIC", value_parser = ["auto", "static", "evpn"])]
    hosts: Option<String>,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Figures {
    commit: &'static str,
    machine: Machine,
    guest: &'static str,
    cores: String,
    rows: Vec<Row>,
}

/// One measurement. CPU is in cores: 1.0 is one core, busy all the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    name: String,
    technique: &'static str,
    guest: &'static str,
    frame_bytes: u32,
    frames_per_s: f64,
    gbit_per_s: f64,
    cpu_switch: f64,
    cpu_guests: f64,
    accesses_per_kframe: f64,
    doorbells_per_kframe: f64,
    interrupts_per_kframe: f64,
    mean_batch: f64,
    drops: u64,
    seconds: f64,
    /// How near the two cores were, if that was the same before and after.
    class: Option<Class>,
    /// The row that this one adds one thing to, and the ratio to it if both were measured in one
    /// class.
    adds_to: Option<&'static str>,
    times: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<RoundTrip>,
}

/// Microseconds from one guest to the other and back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct RoundTrip {
    p50: f64,
    p99: f64,
}

/// What a row does.
#[derive(Clone, Copy)]
struct Plan {
    technique: &'static str,
    /// Instead of the technique's, in the table.
    name: Option<&'static str>,
    bytes: u32,
    ping: bool,
}

/// The ladder's trunk, three branches, and what else is worth seeing.
const PLANS: [Plan; 13] = [
    Plan::story(TRUNK[0]),
    Plan::story(TRUNK[1]),
    Plan::story(TRUNK[2]),
    Plan::story(TRUNK[3]),
    Plan::story(TRUNK[4]),
    Plan::story(TRUNK[5]),
    Plan::story(TRUNK[6]),
    Plan::story(TRUNK[7]),
    Plan::story("mapped"),
    Plan::story("moderated"),
    Plan::story("combined"),
    Plan { name: Some("virtio, 1514 B"), bytes: 1514, ..Plan::story("virtio") },
    Plan { name: Some("virtio, 60 B there and back"), ping: true, ..Plan::story("virtio") },
];

/// First over second, with what the second stands for.
const TOTALS: [(&str, &str, &str); 2] = [
    ("csb", "posted", "the slowest that today's QEMU shows"),
    ("csb", "plain", "the paper's setting: every write waited for"),
];

impl Plan {
    const fn story(technique: &'static str) -> Self {
        Self { technique, name: None, bytes: 60, ping: false }
    }

    fn name(&self) -> &'static str {
        self.name.unwrap_or(self.technique)
    }
}

/// Runs the demo.
///
/// # Errors
/// If a process cannot be started, or no frame passes.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    if let Some(fabric) = &args.hosts {
        return hosts::run(fabric, args.json.as_deref());
    }
    if args.seconds == 0 {
        return Err(Failure::Usage("--seconds 0 measures nothing: give 1 or more".into()));
    }
    let time = Duration::from_secs(args.seconds.into());
    let (stop, cores) = (Stop::on_signals()?, Cores::compared());
    let setup = Setup { stop, cores, warm_up: WARM_UP, switch: None };
    let machine = Machine::read(crate::COMMIT);
    print(&format!(
        "Three processes: a switch, and two native guests that drive a NIC over vfio-user (e1000) \
            or vhost-user (virtio).\n\
         60-byte frames from one to the other unless the row says otherwise; a register access is \
         a trip to the switch's \
         process and back.\n{machine}; {}; guests with nothing to do sleep at once\n\n",
        Cores::compared()
    ))?;
    let (mut rows, mut failed) = (Vec::new(), None);
    for plan in PLANS {
        let row = measure(&setup, plan, time);
        progress("");
        // Ctrl-C ends the guests as well; that they say so is expected.
        setup.stop.check()?;
        match row {
            Ok(row) => rows.push(row),
            // The other rows are worth seeing all the same.
            Err(e) => failed = failed.or(Some(Failure::Failed(format!("{}: {e}", plan.name())))),
        }
    }
    compare(&mut rows);
    print(&(table(&rows) + &totals(&rows) + &bars(&rows) + &words() + &attach()))?;
    if let Some(path) = &args.json {
        write(path, machine, rows)?;
    }
    failed.map_or(Ok(()), Err)
}

fn measure(setup: &Setup, plan: Plan, time: Duration) -> Result<Row, Failure> {
    let name = plan.name();
    let before = line_ns();
    progress(&format!("{name}: starting the guests"));
    let mut lab = Lab::pair(setup, technique::one(plan.technique)?, "")?;
    let task = Task { bytes: plan.bytes, ping: plan.ping, sender: &[] };
    let seen = lab.pkt_gen(task, time, &mut |rate, left| {
        progress(&format!("{name}: {} frames/s, {:.0} s to go", si(rate), left.as_secs_f64()));
    })?;
    drop(lab);
    let classes = [before, line_ns()].map(|ns| ns.ok().map(Class::of));
    let class = classes[0].filter(|class| classes[1] == Some(*class));
    Ok(Row::new(plan, &seen, class))
}

impl Row {
    fn is_of_the_ladder(&self) -> bool {
        self.name == self.technique
    }

    fn new(plan: Plan, seen: &Measured, class: Option<Class>) -> Self {
        let window = &seen.window;
        Self {
            name: plan.name().into(),
            technique: plan.technique,
            guest: "native",
            frame_bytes: plan.bytes,
            frames_per_s: window.frames_per_s,
            gbit_per_s: window.gbit_per_s,
            cpu_switch: window.cpu_switch,
            cpu_guests: window.cpu_of_guests(),
            accesses_per_kframe: window.accesses_per_kframe,
            doorbells_per_kframe: window.doorbells_per_kframe,
            interrupts_per_kframe: window.interrupts_per_kframe,
            mean_batch: window.mean_batch,
            drops: window.drops,
            seconds: window.seconds,
            class,
            adds_to: technique::one(plan.technique)
                .ok()
                .and_then(|t| t.from)
                .filter(|_| plan.name.is_none()),
            times: None,
            round_trip_us: seen.said.first().filter(|_| plan.ping).and_then(round_trip),
        }
    }
}

/// From the summary that `pkt-gen -f ping --json` prints.
fn round_trip(summary: &serde_json::Value) -> Option<RoundTrip> {
    let us = |field| Some(summary.get("latency")?.get(field)?.as_f64()? / 1000.0);
    Some(RoundTrip { p50: us("p50_ns")?, p99: us("p99_ns")? })
}

/// Each with the row it adds one thing to.
fn compare(rows: &mut [Row]) {
    for n in 0..rows.len() {
        rows[n].times = rows[n].adds_to.and_then(|from| ratio(rows, &rows[n].name, from));
    }
}

/// Of two rows of the ladder that were measured in one class.
fn ratio(rows: &[Row], name: &str, base: &str) -> Option<f64> {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let (one, base) = (find(name)?, find(base)?);
    (one.class? == base.class?).then(|| one.frames_per_s / base.frames_per_s)
}

/// The ends of the ladder.
fn totals(rows: &[Row]) -> String {
    let mut text = String::new();
    for (name, base, what) in TOTALS {
        let times = ratio(rows, name, base)
            .map_or_else(|| "not compared: the cores moved".into(), |t| format!("{t:.1} times"));
        let _ = writeln!(text, "{name} over {base} ({what}): {times}");
    }
    text + "One look at each; medians of many, with their spread: vmlan bench ladder\n"
}

fn write(path: &Path, machine: Machine, rows: Vec<Row>) -> Result<(), Failure> {
    let figures = Figures {
        commit: crate::COMMIT,
        machine,
        guest: "native",
        cores: Cores::compared().to_string(),
        rows,
    };
    let text =
        serde_json::to_string_pretty(&figures).map_err(|e| Failure::Failed(e.to_string()))?;
    crate::bench::write(path, &(text + "\n"))
}

fn table(rows: &[Row]) -> String {
    let heads = [
        "NIC",
        "frames/s",
        "adds to",
        "times that",
        "cores",
        "accesses/k",
        "interrupts/k",
        "Gbit/s",
        "CPU switch",
        "CPU guests",
        "batch",
        "drops",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|r| {
        vec![
            r.name.clone(),
            si(r.frames_per_s),
            r.adds_to.unwrap_or("-").into(),
            r.times.map_or_else(|| "-".into(), |t| format!("{t:.2}")),
            r.class.map_or("unlike", Class::name).into(),
            format!("{:.1}", r.accesses_per_kframe),
            format!("{:.1}", r.interrupts_per_kframe),
            format!("{:.2}", r.gbit_per_s),
            format!("{:.0} %", r.cpu_switch * 100.0),
            format!("{:.0} %", r.cpu_guests * 100.0),
            format!("{:.1}", r.mean_batch),
            count(r.drops),
        ]
    }));
    let mut text = columns(&lines, 1);
    text += "\naccesses/k, interrupts/k: register accesses (virtio: doorbells) and interrupts for \
        each 1,000 frames, both guests. CPU: 100 % is one core. cores: how near the two are (cache \
        line: 20 ns, 60 ns, more); rows in different classes are not compared.\n";
    for (row, trip) in rows.iter().filter_map(|r| Some((r, r.round_trip_us?))) {
        let _ = writeln!(
            text,
            "{}: a round trip takes {:.1} us (median), {:.1} us (99th percentile).",
            row.name, trip.p50, trip.p99
        );
    }
    text
}

/// Bars for the rows of the story.
fn bars(rows: &[Row]) -> String {
    const WIDTH: f64 = 48.0;
    let story = || rows.iter().filter(|r| r.is_of_the_ladder());
    let most = story().map(|r| r.frames_per_s).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = String::from("\n");
    for r in story() {
        // Between 0 and WIDTH by construction.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let cells = (r.frames_per_s / most * WIDTH).round().max(1.0) as usize;
        let (bar, rate) = ("█".repeat(cells), si(r.frames_per_s));
        let _ = writeln!(text, "{:>10} {bar} {rate} frames/s", r.name);
    }
    text.push('\n');
    text
}

/// What the techniques are.
fn words() -> String {
    let told = |t: &&Technique| PLANS.iter().any(|plan| plan.technique == t.name);
    let mut text = String::new();
    for t in technique::ALL.iter().filter(told) {
        let _ = writeln!(text, "{:>10}: {}", t.name, t.words());
    }
    text.push('\n');
    text
}

fn attach() -> String {
    "Attach real VMs, without root:\n  \
     vmlan switch vm1=vhost-user:/tmp/vm1.sock vm2=vhost-user:/tmp/vm2.sock &\n  \
     vmlan vm-args vm1                                   (the options to give QEMU)\n  \
     qemu-system-x86_64 -accel kvm $(vmlan vm-args vm1) vm1.img\n  \
     vmlan stats --watch\n\
     Cloud Hypervisor and libvirt: vmlan vm-args vm1 --vmm cloud-hypervisor, --vmm libvirt\n"
        .to_owned()
}

#[cfg(test)]
mod tests;
