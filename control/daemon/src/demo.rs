//! `vmlan demo`: a switch and two native guests as separate processes, and what passes between them.
//!
//! "Native" guests (DESIGN section 9) are processes that play VMM and driver over the real socket, with
//! memory of their own: the same road a VM's frames take, without a VM.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::cli::print;
use crate::exit::Failure;
use crate::stats::{columns, count, si};

mod lab;
mod measure;
use lab::Lab;

/// Arguments of `vmlan demo`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  vmlan demo --seconds 5 --json demo.json")]
pub(crate) struct DemoArgs {
    /// Seconds each row is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    seconds: u16,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Figures {
    commit: &'static str,
    rows: Vec<Row>,
}

/// One measurement. CPU is in cores: 1.0 is one core, busy all the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    name: String,
    guest: &'static str,
    frame_bytes: u32,
    frames_per_s: f64,
    gbit_per_s: f64,
    cpu_switch: f64,
    cpu_guests: f64,
    doorbells_per_kframe: f64,
    interrupts_per_kframe: f64,
    mean_batch: f64,
    drops: u64,
    seconds: f64,
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
    name: &'static str,
    bytes: u32,
    ping: bool,
}

const PLANS: [Plan; 3] = [
    Plan { name: "60 B, one way", bytes: 60, ping: false },
    Plan { name: "1514 B, one way", bytes: 1514, ping: false },
    Plan { name: "60 B, ping and pong", bytes: 60, ping: true },
];

/// Runs the demo.
///
/// # Errors
/// If a process cannot be started, or no frame passes.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    if args.seconds == 0 {
        return Err(Failure::Usage("--seconds 0 measures nothing: give 1 or more".into()));
    }
    let time = Duration::from_secs(args.seconds.into());
    print("Three processes: a switch, and two guests that drive virtio-net over vhost-user.\n\n")?;
    let mut lab = Lab::start()?;
    let mut rows = Vec::new();
    for plan in PLANS {
        rows.push(measure::row(&mut lab, plan, time)?);
    }
    drop(lab);
    print(&(table(&rows) + &bars(&rows) + &attach()))?;
    match &args.json {
        Some(path) => write(path, rows),
        None => Ok(()),
    }
}

fn write(path: &PathBuf, rows: Vec<Row>) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| {
        Failure::Failed(format!("{}: {e}: name a file that can be written", path.display()))
    };
    let text = serde_json::to_string_pretty(&Figures { commit: crate::COMMIT, rows })
        .map_err(|e| fail(&e))?;
    std::fs::write(path, text + "\n").map_err(|e| fail(&e))
}

fn table(rows: &[Row]) -> String {
    let heads = [
        "FRAMES",
        "frames/s",
        "Gbit/s",
        "CPU switch",
        "CPU guests",
        "doorbells/k",
        "interrupts/k",
        "batch",
        "drops",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|r| {
        vec![
            r.name.clone(),
            si(r.frames_per_s),
            format!("{:.2}", r.gbit_per_s),
            format!("{:.0} %", r.cpu_switch * 100.0),
            format!("{:.0} %", r.cpu_guests * 100.0),
            format!("{:.2}", r.doorbells_per_kframe),
            format!("{:.2}", r.interrupts_per_kframe),
            format!("{:.1}", r.mean_batch),
            count(r.drops),
        ]
    }));
    let mut text = columns(&lines, 1);
    text += "\nCPU: 100 % is one core. doorbells/k, interrupts/k: for each 1,000 frames, both guests.\n";
    for (row, trip) in rows.iter().filter_map(|r| Some((r, r.round_trip_us?))) {
        let _ = writeln!(
            text,
            "{}: a round trip takes {:.1} us (median), {:.1} us (99th percentile).",
            row.name, trip.p50, trip.p99
        );
    }
    text
}

/// Bars for the rows that measure throughput.
fn bars(rows: &[Row]) -> String {
    const WIDTH: f64 = 48.0;
    let one_way = || rows.iter().filter(|r| r.round_trip_us.is_none());
    let mut text = String::from("\n");
    let mut plot = |unit: &str, value: fn(&Row) -> f64| {
        let most = one_way().map(value).fold(f64::MIN_POSITIVE, f64::max);
        for r in one_way() {
            // Between 0 and WIDTH by construction.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let cells = (value(r) / most * WIDTH).round().max(1.0) as usize;
            let _ = writeln!(text, "{:>16} {} {} {unit}", r.name, "█".repeat(cells), si(value(r)));
        }
        text.push('\n');
    };
    plot("frames/s", |r| r.frames_per_s);
    plot("bit/s", |r| r.gbit_per_s * 1e9);
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

/// A line that is written over again and again; nothing if nobody looks.
fn progress(text: &str) {
    use std::io::IsTerminal as _;
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        // Only decoration: it may fail.
        let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            name: "60 B, one way".into(),
            guest: "native",
            frame_bytes: 60,
            frames_per_s: 2e6,
            gbit_per_s: 0.96,
            cpu_switch: 0.5,
            cpu_guests: 1.0,
            doorbells_per_kframe: 1.5,
            interrupts_per_kframe: 0.5,
            mean_batch: 100.0,
            drops: 0,
            seconds: 1.0,
            round_trip_us: None,
        }
    }

    #[test]
    fn the_figures_have_the_fields_of_the_contract() {
        let figures = Figures { commit: crate::COMMIT, rows: vec![row()] };
        let json = serde_json::to_value(figures).unwrap();
        assert!(!json["commit"].as_str().unwrap().is_empty());
        for field in [
            "name",
            "guest",
            "frame_bytes",
            "frames_per_s",
            "gbit_per_s",
            "cpu_switch",
            "cpu_guests",
            "doorbells_per_kframe",
            "interrupts_per_kframe",
            "mean_batch",
            "drops",
        ] {
            assert!(!json["rows"][0][field].is_null(), "{field}");
        }
    }

    #[test]
    fn people_get_a_table_and_bars() {
        let mut slow = row();
        slow.name = "1514 B, one way".into();
        slow.frames_per_s = 1e6;
        let text = table(&[row(), slow.clone()]) + &bars(&[row(), slow]);
        assert!(text.contains("2.00 M") && text.contains("50 %"), "{text}");
        assert!(
            text.contains(&"█".repeat(48)) && text.contains(&format!(" {} ", "█".repeat(24))),
            "{text}"
        );
    }
}
