//! `vmlan bench NAME`: figures, as a table beside the paper's numbers, as JSON, and as a picture.
//!
//! A bench is a row of [`BENCHES`]: it names its cells, [`Run::rounds`] measures each in every
//! round, forwards and backwards in turn, so that a drift of the machine favours nobody, and it
//! makes a [`Report`] of them. Ratios are taken within a round and a class ([`crate::alike`]). Each
//! bench has a budget of time: what is not measured by then is named, and left out.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::failure::Failure;
use crate::native::{Cores, Machine, Setup, Stop, Technique, WARM_UP, chip, technique};
use crate::output::print;
use vmlan_config::human_text::folded;

mod attacks;
pub mod compare;
mod fairness;
mod guests;
mod kvm_analysis;
pub(crate) mod ladder;
mod latency;
mod linux_guest;
pub mod linux_tcp_window;
mod livelock;
mod paper;
mod part;
mod peers;
mod plot;
mod ratios;
mod raw;
mod report;
mod results;
mod rounds;
mod slides;
mod sockets;

use report::{Circumstances, Report};
use rounds::{Pairing, Run, Samples};

/// Before each cell of a short run.
const SHORT_WARM_UP: Duration = Duration::from_millis(150);

/// A benchmark.
struct Bench {
    name: &'static str,
    /// For the list in the help.
    about: &'static str,
    /// Unless asked otherwise.
    usual: Length,
    /// Of a short run.
    short: Length,
    run: fn(&mut Run<'_>) -> Result<Report, Failure>,
}

/// How long a run is.
#[derive(Clone, Copy)]
struct Length {
    /// Of each measurement.
    seconds: f64,
    rounds: u16,
    /// Seconds for all of it.
    budget: u16,
}

const fn length(seconds: f64, rounds: u16, budget: u16) -> Length {
    Length { seconds, rounds, budget }
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "ladder",
        about: "an e1000 with one factor more in each row, from waited writes to the shared block",
        usual: length(0.3, 11, 600),
        short: length(0.25, 11, 140),
        run: ladder::run,
    },
    Bench {
        name: "paper",
        about: "the paper's figures 4 and 5: UDP, TCP and requests of sockets in guests, to the \
            host and to a guest",
        usual: length(0.4, 7, 2400),
        short: length(0.2, 7, 430),
        run: paper::run,
    },
    Bench {
        name: "raw",
        about: "frames straight from the driver, guest to guest, 60 to 1514 bytes, each technique",
        usual: length(0.3, 5, 600),
        short: length(0.25, 7, 120),
        run: raw::run,
    },
    Bench {
        name: "latency",
        about: "round trips guest to guest, 1,000 a second and back to back, each technique",
        usual: length(0.6, 7, 600),
        short: length(0.3, 7, 100),
        run: latency::run,
    },
    Bench {
        name: "slides",
        about: "the slides' tables: datagrams of 20 B to 64 KB, transmitted and received",
        usual: length(0.5, 5, 600),
        short: length(0.25, 7, 180),
        run: slides::run,
    },
    Bench {
        name: "livelock",
        about: "the paper's figure 3: what an application receives under far more load than it can \
            take",
        usual: length(0.3, 5, 600),
        short: length(0.25, 5, 190),
        run: livelock::run,
    },
    Bench {
        name: "fairness",
        about: "the fairness paper's figures 6 to 10; shares, limits, a flooded neighbour, an \
            uplink",
        usual: length(0.5, 5, 900),
        short: length(0.2, 5, 260),
        run: fairness::run,
    },
    Bench {
        name: "kvm-analysis",
        about: "the KVM analysis' figures 5 to 11 with four NICs and virtio-net: register accesses \
            for a frame, TCP by window, frames/s",
        usual: length(0.3, 5, 900),
        short: length(0.2, 5, 340),
        run: kvm_analysis::run,
    },
    Bench {
        name: "guests",
        about: "the paper's figures 4, 5, 9, 10 and 11 and the slides' tables with Linux guests' \
            own sockets: stock e1000, our module, virtio-net, QEMU's own NICs (KVM or TCG)",
        usual: length(1.0, 5, 14_400),
        short: length(0.5, 5, 2400),
        run: guests::run,
    },
    Bench {
        name: "peers",
        about: "the same frames through vmlan, OVS-DPDK and others, with DPDK's testpmd as the \
            guest (root; scripts/setup.sh peers)",
        usual: length(0.5, 21, 600),
        short: length(0.3, 11, 220),
        run: peers::run,
    },
    Bench {
        name: "attacks",
        about: "hostile VMs beside two neighbours: what those keep, and how long the operator \
            waits; as root with another user's attackers",
        usual: length(0.5, 5, 900),
        short: length(0.2, 5, 540),
        run: attacks::run,
    },
];

/// Arguments of `vmlan bench`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_name = "NAME",
          value_parser = PossibleValuesParser::new(BENCHES.iter().map(|b| b.name)))]
    name: String,
    /// Write all figures of all rounds to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw them into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Put the tables into this Markdown file, between `<!-- vmlan bench NAME -->` and `<!-- end
    /// -->` (at its end without those)
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Put the ratios into this JSON file, beside those of other benches: `make bench-compare`
    #[arg(long, value_name = "FILE")]
    ratios: Option<PathBuf>,
    /// Seconds of each measurement [default: see NAME below]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Rounds; each measures everything, every other one in reverse order [default: see NAME below]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Seconds for all of it: what is not measured by then is left out [default: see NAME below]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    budget: Option<u16>,
    /// Only these techniques; kvm-analysis: only these NICs and ways; guests: only these rows;
    /// peers: only these switches
    #[arg(long, value_name = "TECHNIQUE", value_delimiter = ',')]
    only: Vec<String>,
    /// Bytes of the frames (raw, kvm-analysis, peers) or of their payload (slides)
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<u32>,
    /// Only these parts of fairness: queues, shares, limits, neighbour, uplink; or of kvm-analysis:
    /// accesses, windows, chips; or only these attacks
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    part: Vec<String>,
    /// A short run: fewer cells, each shorter, no fewer rounds than make a median
    #[arg(long)]
    short: bool,
    /// Do not look how near the cores are: faster, and no ratio is printed
    #[arg(long)]
    unpaired: bool,
    /// attacks: the program whose switch is attacked, for a comparison [default: this one]
    #[arg(long, value_name = "FILE")]
    switch: Option<PathBuf>,
    /// For attacks itself: a process of attackers
    #[arg(long, hide = true)]
    crew: Option<String>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|s| (0.1..=600.0).contains(s));
    found.ok_or_else(|| "use 0.1 to 600 seconds".into())
}

fn help() -> String {
    let mut text = String::from("NAME:\n");
    for bench in BENCHES {
        let words =
            |l: Length| format!("{} s, {} rounds, {} s in all", l.seconds, l.rounds, l.budget);
        let usual = format!("({}; --short: {})", words(bench.usual), words(bench.short));
        text +=
            &format!("  {:12} {}\n", bench.name, folded(&format!("{} {usual}", bench.about), 15));
    }
    text += "\nTechniques:\n";
    for t in technique::ALL {
        text += &format!("  {:12} {}\n", t.name, folded(t.note, 15));
    }
    text += "\nNICs of kvm-analysis:\n";
    for chip in chip::ALL {
        text += &format!("  {:12} {}\n", chip.name, folded(chip.note, 15));
    }
    text += "\nAttacks:\n";
    for (name, about) in attacks::list() {
        text += &format!("  {name:18} {}\n", folded(about, 21));
    }
    text += "\nExamples:\n  vmlan bench raw --svg raw.svg\n  vmlan bench raw --sizes 60 --only \
        plain,csb --rounds 5 --json raw.json\n  vmlan bench attacks --part \
        silent-file,reconnecting\n";
    text
}

impl BenchArgs {
    /// Those of `usual` that were asked for.
    fn techniques(&self, usual: &[&str]) -> Result<Vec<&'static Technique>, Failure> {
        if self.only.is_empty() { technique::named(usual) } else { technique::named(&self.only) }
    }

    /// What a run of this length goes through.
    fn axis<'a, T>(&self, all: &'a [T], short: &'a [T]) -> &'a [T] {
        if self.short { short } else { all }
    }

    /// `usual`, or what was asked for instead, checked.
    fn sizes(&self, usual: &[u32], least: u32, most: u32) -> Result<Vec<u32>, Failure> {
        if let Some(odd) = self.sizes.iter().find(|n| !(least..=most).contains(n)) {
            return Err(Failure::Usage(format!("--sizes {odd}: use {least} to {most} bytes")));
        }
        Ok(if self.sizes.is_empty() { usual } else { &self.sizes }.to_vec())
    }

    /// Is everything that was asked for about this bench?
    fn fits(&self, bench: &Bench) -> Result<(), Failure> {
        if !self.sizes.is_empty()
            && !["raw", "slides", "kvm-analysis", "peers"].contains(&bench.name)
        {
            let name = bench.name;
            let why = format!(
                "--sizes: {name} has sizes of its own: use it with raw, slides, kvm-analysis, peers"
            );
            return Err(Failure::Usage(why));
        }
        if !self.part.is_empty() && !["fairness", "kvm-analysis", "attacks"].contains(&bench.name) {
            return Err(Failure::Usage(format!("--part: {} is in one piece", bench.name)));
        }
        if self.switch.is_some() && bench.name != "attacks" {
            return Err(Failure::Usage(format!("--switch: {} measures this program", bench.name)));
        }
        Ok(())
    }
}

/// Runs one.
///
/// # Errors
/// If it was asked wrongly, on Ctrl-C, if a file cannot be written, or (after the report) if
/// something could not be measured.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let Some(bench) = BENCHES.iter().find(|b| b.name == args.name) else {
        return Err(Failure::Usage(format!("'{}' is not the name of a bench", args.name)));
    };
    if let Some(orders) = &args.crew {
        return attacks::run_crew(orders);
    }
    measure(args, bench)
}

fn measure(args: &BenchArgs, bench: &Bench) -> Result<(), Failure> {
    args.fits(bench)?;
    let began = Instant::now();
    let usual = if args.short { bench.short } else { bench.usual };
    let (seconds, rounds) =
        (args.seconds.unwrap_or(usual.seconds), args.rounds.unwrap_or(usual.rounds));
    let budget = args.budget.unwrap_or(usual.budget);
    let warm_up = if args.short { SHORT_WARM_UP } else { WARM_UP };
    let mut run = Run {
        args,
        // The two cores whose distance is read.
        setup: Setup {
            stop: Stop::on_signals()?,
            cores: Cores::compared(),
            warm_up,
            switch: args.switch.clone(),
        },
        time: Duration::from_secs_f64(seconds),
        rounds,
        ends: began + Duration::from_secs(budget.into()),
        pairing: if args.unpaired { Pairing::Off } else { Pairing::Cores },
        guests: "native guests".into(),
        failures: Vec::new(),
    };
    // One that cannot begin has nothing to write: what stands in the files is better.
    let report = (bench.run)(&mut run)?;
    let about = Circumstances {
        bench: bench.name,
        guests: run.guests.clone(),
        machine: Machine::read(crate::COMMIT),
        cores: run.setup.cores,
        seconds,
        rounds,
        took: began.elapsed(),
        budget,
        missing: run.failures.clone(),
    };
    deliver(args, &report, &about)?;
    run.verdict()
}

fn deliver(args: &BenchArgs, report: &Report, about: &Circumstances) -> Result<(), Failure> {
    print(&report.text(about))?;
    if let Some(path) = &args.results {
        let picture = args.svg.as_deref().map(|svg| results::link(path, svg));
        let section = report.markdown(about, picture.as_deref());
        results::put(path, about, &section, report.long_tables(about).as_deref())?;
    }
    if let Some(path) = &args.ratios {
        ratios::put(path, about, &report.ratios)?;
    }
    if let Some(path) = &args.json {
        write(path, &report.json(about)?)?;
    }
    if let Some(path) = &args.svg {
        let picture = report.figure.svg(&format!("{}; {}", about.machine, about.guests));
        write(path, &picture.map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))?)?;
    }
    Ok(())
}

/// Writes a whole file, and the directory it is in if there is none.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let made = std::fs::create_dir_all(directory(path));
    made.and_then(|()| std::fs::write(path, text)).map_err(|e| unwritable(path, &e))
}

fn unwritable(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {e}: name a file that can be written", path.display()))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the text of a file that several benches write to from its old text, which is `None` where
/// there is no file. One bench at a time: the directory is locked. Whoever reads meanwhile, or
/// after a crash, finds the old file or the new one whole.
fn change(
    path: &Path,
    make: impl FnOnce(Option<&str>) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let unwritable = |e| unwritable(path, &e);
    std::fs::create_dir_all(directory(path)).map_err(unwritable)?;
    // A link stays one.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let lock = std::fs::File::open(directory(path)).map_err(unwritable)?;
    lock.lock().map_err(unwritable)?;
    let old = match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(unwritable(e)),
    };
    let text = make(old.as_deref())?;
    let beside = path.with_added_extension("new");
    std::fs::write(&beside, text).map_err(unwritable)?;
    if let Ok(about) = std::fs::metadata(path) {
        // Root may measure in somebody else's directory. An owner who cannot be kept is no matter.
        let _ = std::os::unix::fs::chown(&beside, Some(about.uid()), Some(about.gid()));
        std::fs::set_permissions(&beside, about.permissions()).map_err(unwritable)?;
    }
    std::fs::rename(&beside, path).map_err(unwritable)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn one_round_in_another_class_takes_no_median_away() {
        // Those whose tables have a ratio for each cell.
        for bench in BENCHES.iter().filter(|b| ["ladder", "paper", "latency"].contains(&b.name)) {
            for length in [bench.usual, bench.short] {
                assert!(usize::from(length.rounds) > crate::alike::ENOUGH, "{}", bench.name);
            }
        }
    }

    #[test]
    fn a_bench_that_cannot_begin_leaves_the_files_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let [results, ratios] = ["results.md", "results.json"].map(|name| dir.path().join(name));
        let section = "<!-- vmlan bench peers -->\nmeasured by root\n<!-- end -->\n";
        for (path, text) in [(&results, section), (&ratios, "[]\n")] {
            std::fs::write(path, text).unwrap();
        }
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let words = ["bench", "peers", "--results", results.to_str().unwrap(), "--ratios"];
        let given = command.get_matches_from(words.iter().copied().chain(ratios.to_str()));
        let args = BenchArgs::from_arg_matches(&given).unwrap();
        let peers = BENCHES.iter().find(|bench| bench.name == "peers").unwrap();
        let no_root = |_: &mut Run<'_>| Err(Failure::Failed("root missing".into()));
        let failed = measure(&args, &Bench { run: no_root, ..*peers });
        assert_eq!(failed, Err(Failure::Failed("root missing".into())));
        assert_eq!(std::fs::read_to_string(&results).unwrap(), section);
        assert_eq!(std::fs::read_to_string(&ratios).unwrap(), "[]\n");
    }

    #[test]
    fn a_file_of_several_benches_is_changed_by_one_at_a_time_and_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docs/results.md");
        let is_locked = || {
            let other = std::fs::File::open(directory(&path)).unwrap();
            matches!(other.try_lock(), Err(std::fs::TryLockError::WouldBlock))
        };
        let put = |text: &str, expected: Option<&str>| {
            change(&path, |old| {
                assert_eq!(old, expected);
                assert!(is_locked());
                Ok(text.to_owned())
            })
        };
        put("one", None).unwrap();
        let mut reader = std::fs::File::open(&path).unwrap();
        put("two", Some("one")).unwrap();
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "one", "it was written over");
        let failed = Failure::Failed("no".into());
        assert_eq!(change(&path, |_| Err(failed.clone())), Err(failed));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert!(!is_locked());
        assert_eq!(std::fs::read_dir(directory(&path)).unwrap().count(), 1, "nothing is left");
    }
}
