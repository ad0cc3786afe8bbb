//! `vmlan top`: one screen of what passes, as it passes.

mod detail;
mod feed;
mod history;
mod list;
mod screen;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::feed::Feed;
use self::history::Order;
use self::screen::Screen;
use crate::cli::ApiArgs;
use crate::exit::Failure;
use vmlan_engine::stats::Stats;

/// How long the program may take to see a key or a reading.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `vmlan top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// Time between two readings
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// What ports are sorted by
    #[arg(long, value_enum, default_value_t = Order::Rate)]
    sort: Order,
    /// Without colours, as with the environment variable NO_COLOR
    #[arg(long)]
    no_color: bool,
}

/// The shortest and the longest time between two readings.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let fits = parsed.filter(|interval| (INTERVALS.0..=INTERVALS.1).contains(interval));
    fits.ok_or_else(|| "give a number of seconds from 0.1 to 60".into())
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        let what = "standard output is not a terminal: use `vmlan stats --watch`";
        return Err(Failure::Usage(what.into()));
    }
    let client = args.api.client()?;
    // Where no switch answers this says so as all commands do.
    client.get::<Stats>("/v1/stats")?;
    let failed = |e: std::io::Error| Failure::Failed(format!("the terminal: {e}"));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(failed)?;
    }
    let colour = !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let feed = Feed::start(client, args.interval);
    let mut screen = Screen::new(args.sort, args.interval, colour);
    let terminal = ratatui::try_init().map_err(failed)?;
    let done = watch(terminal, &mut screen, &feed, &ended);
    ratatui::restore();
    done.map_err(failed)
}

/// Shows readings and obeys keys until somebody ends it. Owns the terminal: its cursor comes back
/// before anything else does.
fn watch(
    mut terminal: DefaultTerminal,
    screen: &mut Screen,
    feed: &Feed,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        while let Some(news) = feed.next() {
            screen.take(news);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        if !event::poll(LOOK)? {
            continue;
        }
        if let event::Event::Key(key) = event::read()? {
            if screen.press(key) {
                break;
            }
            feed.set(screen.interval(), screen.shown());
        }
        changed = true;
    }
    Ok(())
}
