//! `vmlan stats`: counters once, or every second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;

use super::ApiArgs;
use crate::exit::Failure;
use crate::output::{print, print_json};
use crate::tables::{rates, table};
use vmlan_engine::stats::Stats;

/// Arguments of `vmlan stats`.
#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    /// Show rates, every second, until interrupted
    #[arg(long)]
    watch: bool,
    /// Print JSON (with --watch: one line every second)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StatsArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let mut before: Stats = client.get("/v1/stats")?;
    let mut read_at = Instant::now();
    if args.json {
        print_json(&before)?;
    } else if !args.watch {
        return print(&table(&before, width()));
    }
    if !args.watch {
        return Ok(());
    }
    // Home, and clear to the end: the table stays in place.
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    loop {
        std::thread::sleep(Duration::from_secs(1).saturating_sub(read_at.elapsed()));
        let now = Instant::now();
        let after: Stats = client.get("/v1/stats")?;
        if args.json {
            print_json(&after)?;
        } else {
            print(&format!("{clear}{}\n", rates(&before, &after, now - read_at, width())))?;
        }
        (before, read_at) = (after, now);
    }
}

/// Columns of the terminal; any number, where the output goes elsewhere.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| size.ws_col.into()).filter(|columns| *columns > 0).unwrap_or(usize::MAX)
}
