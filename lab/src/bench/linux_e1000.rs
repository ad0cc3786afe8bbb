//! A Linux guest in QEMU (TCG) with the kernel's own e1000 driver: kernel pktgen and iperf3 towards
//! a TAP of the host, with QEMU's model of the NIC and with ours.

mod table;
mod work;

use std::path::PathBuf;

use clap::Parser;
use vmlan_harness::{HarnessError, Image};

use super::linux_guest::{From, Lab, Model};
pub use work::Figures;

const EXAMPLES: &str = "\
Examples:
  sudo make bench-e1000
  VMLAN_BIN=target/release/vmlan e1000-guest --rounds 3 --json guest.json";

/// The same Linux guest (TCG) on QEMU's e1000 and on ours: trapped, moderated, mapped.
///
/// Needs what `scripts/setup.sh test` sets up: a guest kernel, a QEMU with vfio-user.
#[derive(Debug, Clone, Parser)]
#[command(name = "e1000-guest", version, after_help = EXAMPLES)]
pub struct Args {
    /// Rounds; each boots a guest for every model.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub rounds: u32,
    /// Length of each window, in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// In the order of the table.
const MODELS: [Model; 4] = [
    Model { name: "QEMU e1000 on TAP", file: "qemu", from: From::Qemu("e1000") },
    Model { name: "vmlan, trapped", file: "trapped", from: From::Ours("model=e1000") },
    Model {
        name: "vmlan, irq_rate_max=8000",
        file: "moderated",
        from: From::Ours("model=e1000,irq_rate_max=8000"),
    },
    Model {
        name: "vmlan, mapped",
        file: "mapped",
        from: From::Ours("model=e1000,doorbell=mapped"),
    },
];

/// One model in one round.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    /// Whose model, and how it rings.
    pub model: &'static str,
    /// From 1.
    pub round: u32,
    /// By load.
    pub loads: Vec<Figures>,
}

/// Boots, measures, prints.
///
/// # Errors
/// What is missing, or what the guest did not do.
pub fn run(args: &Args) -> Result<(), HarnessError> {
    let dir =
        tempfile::tempdir().map_err(|source| HarnessError::File { path: "/tmp".into(), source })?;
    let image = Image::build(dir.path())?;
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        let mut order = MODELS.to_vec();
        if round % 2 == 0 {
            order.reverse();
        }
        for model in order {
            let place = dir.path().join(format!("{}{round}", model.file));
            std::fs::create_dir(&place)
                .map_err(|source| HarnessError::File { path: place.clone(), source })?;
            let mut lab = Lab::start(&image, &place, model)?;
            let loads = work::all(&mut lab, args.seconds)?;
            for load in &loads {
                eprintln!("round {round}, {}: {}", model.name, table::line(load));
            }
            rows.push(Row { model: model.name, round, loads });
        }
    }
    print!("{}", table::table(&rows));
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::json!({ "guest": "TCG", "rows": rows });
    std::fs::write(path, format!("{text:#}\n"))
        .map_err(|source| HarnessError::File { path: path.clone(), source })
}
