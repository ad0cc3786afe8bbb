//! The whole run: check, set up, measure every cell, report.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use vmlan_harness::{HarnessError, Result, Scratch, Stop};

use super::hugepages::Hugepages;
use super::machine::Machine;
use super::measure::{Figures, measure};
use super::priority::Priority;
use super::report::{self, Cell, Report};
use super::switch::{Bench, check};
use super::{Args, Peer, SWITCH_CORE};

/// Two DPDK processes of 512 MiB each, and what they grow by.
const HUGEPAGES_MIB: u64 = 2048;

/// How a run without an error ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every cell has figures.
    Measured,
    /// Some cells have none; the table says which and why.
    SomeFailed,
}

/// Does what the command line asks.
///
/// # Errors
/// When something that the run needs is missing, or on Ctrl-C.
pub fn run(args: &Args) -> Result<Outcome> {
    let stop = Stop::on_signals()?;
    let (peers, skipped) = check_all(args)?;
    let machine = Machine::read(args);
    let _priority = Priority::set(args.nice)?;
    let scratch = Scratch::new()?;
    let _hugepages = Hugepages::reserve(HUGEPAGES_MIB)?;
    let bench = Bench { args, scratch: &scratch, stop: &stop };
    let cells = measure_all(&bench, &peers)?;
    let failed = cells.iter().any(|cell| cell.figures.is_err());
    let report = Report { args, machine, cells, skipped };
    print!("{}", report::table(&report));
    write(args.json.as_deref(), || report::json(&report))?;
    write(args.svg.as_deref(), || report::svg(&report))?;
    Ok(if failed { Outcome::SomeFailed } else { Outcome::Measured })
}

/// Writes what a run was asked to leave behind, if it was.
///
/// # Errors
/// [`HarnessError::Io`].
pub fn write(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, text()).map_err(HarnessError::io(format!("write {}", path.display())))
}

type Skipped = Vec<(Peer, String)>;

/// The peers to measure, and those left out with the reason.
fn check_all(args: &Args) -> Result<(Vec<Peer>, Skipped)> {
    if !rustix::process::geteuid().is_root() {
        let fix = "run it with sudo (hugepages and network namespaces need root)";
        return Err(HarnessError::missing("not root", fix));
    }
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= SWITCH_CORE) {
        let fix = "run it on a machine with two cores or more";
        return Err(HarnessError::missing("one core is too few", fix));
    }
    let (mut peers, mut skipped) = (Vec::new(), Vec::new());
    for peer in Peer::ALL.into_iter().filter(|peer| args.only.contains(peer)) {
        match check(peer, args) {
            Ok(()) => peers.push(peer),
            Err(error) if peer.optional() => skipped.push((peer, error.chain())),
            Err(error) => return Err(error),
        }
    }
    Ok((peers, skipped))
}

fn measure_all(bench: &Bench<'_>, peers: &[Peer]) -> Result<Vec<Cell>> {
    let args = bench.args;
    let mut cells = Vec::new();
    let total = args.rounds as usize * args.sizes.len() * peers.len();
    for round in 1..=args.rounds {
        // Forwards and backwards in turn, so that a drift of the machine favours nobody.
        let mut order = peers.to_vec();
        if round % 2 == 0 {
            order.reverse();
        }
        for &bytes in &args.sizes {
            for &peer in &order {
                let place =
                    format!("[{}/{total}] round {round}, {peer}, {bytes} B", cells.len() + 1);
                cells.push(one(bench, peer, round, bytes, &place)?);
            }
        }
    }
    Ok(cells)
}

fn one(bench: &Bench<'_>, peer: Peer, round: u32, bytes: u32, at: &str) -> Result<Cell> {
    progress(at, "...", false);
    let result = bench
        .rig(peer, bytes)
        .and_then(|mut rig| measure(&mut rig, bench.stop, bench.args.seconds, bytes));
    let figures = match result {
        Err(HarnessError::Interrupted) => return Err(HarnessError::Interrupted),
        Err(error) => {
            bench.scratch.keep();
            Err(format!("failed: {}; logs in {}", error.chain(), bench.scratch.path().display()))
        }
        Ok(figures) => Ok(figures),
    };
    progress(at, &figures.as_ref().map_or_else(Clone::clone, summary), true);
    Ok(Cell { peer, round, bytes, figures })
}

fn summary(figures: &Figures) -> String {
    let millions = figures.frames_per_s / 1e6;
    let per_cpu = figures.frames_per_cpu_s / 1e6;
    format!("{millions:.2} Mframes/s, {per_cpu:.2} Mframes per CPU second")
}

/// On a terminal the line is written over by its own end; in a log only the end is written.
fn progress(place: &str, text: &str, end: bool) {
    let mut err = io::stderr().lock();
    // A run goes on although its progress cannot be written.
    let _ = match (err.is_terminal(), end) {
        (true, false) => write!(err, "{place} {text}"),
        (true, true) => writeln!(err, "\r\x1b[K{place}: {text}"),
        (false, true) => writeln!(err, "{place}: {text}"),
        (false, false) => Ok(()),
    };
}
