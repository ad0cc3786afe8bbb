//! The whole run: measure every cell, report.

use super::super::peers::machine::Machine;
use super::super::peers::run::write;
use super::super::peers::switch::vmlan_program;
use super::super::peers::{Error, scratch::Scratch, stop::Stop};
use super::Args;
use super::native::{Figures, Lab, measure};
use super::report::{self, Cell, Report};
use super::way::{Way, chosen};

/// Does what the command line asks; false if a cell has no figures.
///
/// # Errors
/// When something that the run needs is missing, or on Ctrl-C.
pub fn run(args: &Args) -> Result<bool, Error> {
    let stop = Stop::on_signals().map_err(Error::io("catch signals"))?;
    let ways = chosen(&args.only)?;
    let program = vmlan_program(args.vmlan.as_deref())?;
    let scratch = Scratch::new()?;
    let lab = Lab { program: &program, scratch: &scratch, stop: &stop, seconds: args.seconds };
    let mut cells = Vec::new();
    let total = args.rounds as usize * args.sizes.len() * ways.len();
    for round in 1..=args.rounds {
        let mut order = ways.clone();
        if round % 2 == 0 {
            order.reverse();
        }
        for &bytes in &args.sizes {
            for &way in &order {
                let cell = one(&lab, way, round, bytes)?;
                eprintln!(
                    "[{}/{total}] round {round}, {}, {bytes} B: {}",
                    cells.len() + 1,
                    way.name,
                    cell.figures.as_ref().map_or_else(Clone::clone, summary)
                );
                cells.push(cell);
            }
        }
    }
    let report = Report { args, machine: Machine::plain(), ways, cells };
    print!("{}", report::table(&report));
    write(args.json.as_deref(), || report::json(&report))?;
    write(args.svg.as_deref(), || report::svg(&report))?;
    Ok(report.cells.iter().all(|cell| cell.figures.is_ok()))
}

fn one(lab: &Lab<'_>, way: Way, round: u32, bytes: u32) -> Result<Cell, Error> {
    let figures = match measure(lab, way, bytes) {
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => {
            lab.scratch.keep();
            Err(format!("failed: {}; logs in {}", error.chain(), lab.scratch.path().display()))
        }
        Ok(figures) => Ok(figures),
    };
    Ok(Cell { way, round, bytes, figures })
}

fn summary(f: &Figures) -> String {
    format!(
        "{:.3} Mframes/s, {:.2} Gbit/s, {:.0} accesses and {:.1} interrupts per 1,000 frames",
        f.frames_per_s / 1e6,
        f.gbit_per_s,
        f.accesses_per_k,
        f.interrupts_per_k
    )
}
