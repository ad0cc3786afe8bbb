//! The KVM analysis (Ozaki and Nakao, 2007) with Linux guests and the kernel's own drivers: TCP
//! bandwidth against the window, by iperf3 `-w` between guest and host, and register accesses for a
//! frame. Native guests show the same in `vmlan bench kvm-analysis`. And TCP with segmentation by
//! the NIC and without.

mod accesses;
mod bandwidth;
mod segmentation;
mod table;

use std::path::{Path, PathBuf};

use clap::Parser;
use serde::Serialize;
use vmlan_harness::{HarnessError, Image};

use crate::bench::linux_guest::{From, Lab, Model};
pub use accesses::Accesses;
pub use bandwidth::Point;
pub use segmentation::Bulk;

const MODELS: [Model; 6] = [
    Model { name: "QEMU rtl8139 on TAP", file: "qemu", from: From::Qemu("rtl8139") },
    Model { name: "rtl8139", file: "rtl8139", from: From::Ours("model=rtl8139,plus=off") },
    Model { name: "rtl8139-c+", file: "rtl8139-c+", from: From::Ours("model=rtl8139") },
    Model { name: "r8169", file: "r8169", from: From::Ours("model=r8169") },
    Model { name: "e1000", file: "e1000", from: From::Ours("model=e1000") },
    Model { name: "virtio-net", file: "virtio-net", from: From::Virtio },
];

const EXAMPLES: &str = "\
NICs: qemu (its own rtl8139, on the TAP itself), rtl8139 (driver 8139too), rtl8139-c+ (8139cp), \
r8169, e1000, virtio-net

Examples:
  sudo make bench-kvm
  VMLAN_BIN=target/release/vmlan kvm-tcp-window --only rtl8139,virtio-net --windows 8,64 --json \
  kvm.json";

/// A Linux guest (TCG) on each NIC: TCP by window and with TSO, and register accesses for a frame.
///
/// Needs what `scripts/setup.sh test` sets up: a guest kernel, a QEMU with vfio-user.
#[derive(Debug, Clone, Parser)]
#[command(name = "kvm-tcp-window", version, after_help = EXAMPLES)]
pub struct Args {
    /// Only these NICs.
    #[arg(long, value_name = "NIC", value_delimiter = ',', value_parser = MODELS.map(|m| m.file))]
    pub only: Vec<String>,
    /// TCP windows (iperf3 -w), in KiB.
    #[arg(long, value_name = "KIB", value_delimiter = ',',
          default_values_t = [4, 8, 16, 32, 64, 128],
          value_parser = clap::value_parser!(u32).range(2..=192))]
    pub windows: Vec<u32>,
    /// Pairs of TCP with the NIC cutting segments (TSO) and with the kernel doing it; 0: none.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub tso_pairs: u32,
    /// Rounds; each boots a guest for every NIC.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub rounds: u32,
    /// Length of each measurement, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One NIC in one round.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The NIC.
    pub nic: &'static str,
    /// From 1.
    pub round: u32,
    /// TCP by window.
    pub windows: Vec<Point>,
    /// TCP with TSO and without; none where the driver has none.
    pub bulk: Vec<Bulk>,
    /// Register accesses; none where the switch does not see them.
    pub accesses: Vec<Accesses>,
}

/// Boots, measures, prints.
///
/// # Errors
/// What is missing, or what the guest did not do.
pub fn run(args: &Args) -> Result<(), HarnessError> {
    let dir =
        tempfile::tempdir().map_err(|source| HarnessError::File { path: "/tmp".into(), source })?;
    let image = Image::build(dir.path())?;
    let is_wanted =
        |m: &&Model| args.only.is_empty() || args.only.iter().any(|name| name == m.file);
    let models: Vec<_> = MODELS.iter().filter(is_wanted).collect();
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        let mut order = models.clone();
        if round % 2 == 0 {
            order.reverse();
        }
        for model in order {
            let place = dir.path().join(format!("{}{round}", model.file));
            std::fs::create_dir(&place)
                .map_err(|source| HarnessError::File { path: place.clone(), source })?;
            rows.push(measure(args, &image, &place, (*model, round))?);
        }
    }
    print!("{}", table::table(&args.windows, &rows));
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::json!({ "guest": "TCG", "rows": rows });
    std::fs::write(path, format!("{text:#}\n"))
        .map_err(|source| HarnessError::File { path: path.clone(), source })
}

fn measure(
    args: &Args,
    image: &Image,
    place: &Path,
    (model, round): (Model, u32),
) -> Result<Row, HarnessError> {
    let mut lab = Lab::start(image, place, model)?;
    let accesses = accesses::all(&mut lab, args.seconds)?;
    let windows = bandwidth::all(&mut lab, &args.windows, args.seconds)?;
    let bulk = segmentation::all(&mut lab, args.tso_pairs, args.seconds)?;
    let row = Row { nic: model.name, round, windows, bulk, accesses };
    eprintln!("{}", table::brief(&row));
    Ok(row)
}
