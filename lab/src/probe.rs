//! `vmlan probe`: what leaving the guest costs on this host, and which technique it therefore gains
//! most from.
//!
//! ```text
//!  kvm        a guest of one page, in a child process: exits to kernel and user space, interrupts
//!  vfio-user  registers of our e1000 over the real socket and in a shared page; frames to a worker
//!  wake       eventfds, on one core and between two
//!  line       a cache line between two cores
//!  limit      the cache lines of a frame, between two cores, and nothing else
//!  copy       64 to 65,536 bytes, hot and cold
//!      └────► figures ────► advice: the sum for each technique, and a paragraph
//! ```

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::bench::write;
use crate::failure::Failure;
use crate::native::{Machine, Stop, progress};
use crate::output::{print, print_json};

mod advice;
pub(crate) mod copy;
pub(crate) mod cores;
mod figure;
mod kvm;
pub(crate) mod limit;
mod registers;
mod report;
mod worker;

use advice::{Advice, Costs};
use cores::Cores;
use figure::Found;
use kvm::State;
use report::Report;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Exits of a guest and interrupts into it, where /dev/kvm opens
    Kvm,
    /// Registers of an e1000 over vfio-user, as messages and in a shared page
    VfioUser,
    /// Eventfds, between two cores and on one
    Wake,
    /// Cache lines, between two cores
    Line,
    /// The cache lines of a frame and nothing else, between two cores: what no switch does better
    Limit,
    /// Copies of 64 to 65,536 bytes, hot and cold
    Copy,
}

/// Does a processor stand behind /dev/kvm? And why not, or how it is known.
pub(crate) fn kvm_is_hardware() -> (bool, String) {
    let (state, _) = kvm::all("/dev/kvm", 0.05);
    (state.counts(), state.sentence)
}

/// Arguments of `vmlan probe`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  vmlan probe\n  vmlan probe --only kvm,copy --seconds 1 --json | jq \
        '.figures[] | {what, median_ns}'"
)]
pub struct ProbeArgs {
    /// Measure this only; the closing paragraph wants vfio-user, wake and copy
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Seconds for each figure
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the figures into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// KVM's device
    #[arg(long, value_name = "PATH", default_value = "/dev/kvm",
          value_parser = NonEmptyStringValueParser::new())]
    kvm: String,
    /// Be the process that has the guest
    #[arg(long, hide = true)]
    kvm_guest: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|s| (0.001..=60.0).contains(s));
    found.ok_or_else(|| "use 0.001 to 60 seconds".into())
}

/// Measures and tells.
///
/// # Errors
/// If nothing could be measured, what was cannot be written, or on Ctrl-C.
pub fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let time = Duration::from_secs_f64(args.seconds);
    if args.kvm_guest {
        return kvm::guest(&args.kvm, time);
    }
    let report = measure(args, time, &Stop::on_signals()?)?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    if let Some(path) = &args.svg {
        write(path, &report.svg())?;
    }
    match report.figures.is_empty() {
        true => Err(Failure::Failed("nothing could be measured".into())),
        false => Ok(()),
    }
}

fn measure(args: &ProbeArgs, time: Duration, stop: &Stop) -> Result<Report, Failure> {
    let cores = Cores::find();
    let (mut kvm, mut found) = (State::default(), Found::default());
    let wanted = |part: &Part| args.only.is_empty() || args.only.contains(part);
    for part in Part::value_variants().iter().filter(|part| wanted(part)) {
        progress(&format!("{part:?}..."));
        found.append(match part {
            Part::Kvm => {
                let (state, figures) = kvm::all(&args.kvm, args.seconds);
                kvm = state;
                figures
            }
            Part::VfioUser => registers::all(cores, time),
            Part::Wake => cores::wake(cores, time),
            Part::Line => cores::line(cores, time),
            Part::Limit => limit::all(cores, time),
            Part::Copy => copy::all(cores, time),
        });
        stop.check()?;
    }
    progress("");
    let advice = Costs::of(&found, &kvm).map(Advice::of);
    Ok(Report::new(Machine::read(crate::COMMIT), cores, args.seconds, kvm, found, advice))
}
