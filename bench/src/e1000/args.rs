//! The command line.

use std::path::PathBuf;

use clap::Parser;

const EXAMPLES: &str = "\
Examples:
  make bench-e1000
  e1000 --rounds 5 --seconds 5 --sizes 60 --json e1000.json --svg e1000.svg
  e1000 --only plain-waited,mapped";

/// e1000 guest to e1000 guest through `vmlan switch`: plain, moderated, mapped. Native guests: each register access is a real trip to
/// the switch's process.
#[derive(Debug, Clone, Parser)]
#[command(name = "e1000", version, after_help = EXAMPLES)]
pub struct Args {
    /// Rounds; each measures every way at every size, every other one in reverse order.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of the steady window, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Frame sizes in bytes, without the checksum (FCS).
    #[arg(long, value_delimiter = ',', default_values_t = [60, 1514],
          value_parser = clap::value_parser!(u32).range(60..=1514))]
    pub sizes: Vec<u32>,
    /// Measure only these ways.
    #[arg(long, value_delimiter = ',', value_name = "WAY,...")]
    pub only: Vec<String>,
    /// The vmlan program [default: `vmlan` beside this program].
    #[arg(long, value_name = "PATH")]
    pub vmlan: Option<PathBuf>,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw frames per second of every way.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
