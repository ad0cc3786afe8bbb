//! A laboratory: a switch and guests as separate processes of this program, and what passes between them. `demo` and `bench`
//! measure in it.
//!
//! "Native" guests (DESIGN section 9) are processes that play VMM and driver over the real socket, with memory of their own: the
//! same road a VM's frames take, without a VM.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::api::Client;
use crate::exit::Failure;
use crate::stats::{PortStats, Stats};

mod machine;
pub(crate) mod pair;
mod pin;
mod process;
pub(crate) mod technique;
mod window;

pub(crate) use machine::Machine;
pub(crate) use pin::{FREE, PINNED, Pin};
use process::Directory;
pub(crate) use process::Process;
pub(crate) use technique::Technique;
pub(crate) use window::{Reading, Window};

/// Address of the guest on port `a`.
pub(crate) const MAC_A: &str = "52:54:00:00:00:0a";
/// Of the one on port `b`.
pub(crate) const MAC_B: &str = "52:54:00:00:00:0b";

/// Longest wait for a process to be ready.
const PATIENCE: Duration = Duration::from_secs(15);

/// Set by Ctrl-C and SIGTERM.
#[derive(Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches the signals.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())
                .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
        }
        Ok(Self(flag))
    }

    /// An error if the user has had enough.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Failure::Failed("interrupted".into())),
            false => Ok(()),
        }
    }
}

/// How laboratories are set up.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Ends everything.
    pub(crate) stop: Stop,
    /// Switch on one core, guests on another.
    pub(crate) pinned: bool,
}

/// A running switch with the ports `a` and `b`, on which guests use one technique.
pub(crate) struct Lab {
    // Dropped in this order: the switch ends before its directory goes.
    switch: Process,
    dir: Directory,
    setup: Setup,
    technique: &'static Technique,
    /// Further keys of the guests' addresses.
    keys: String,
}

impl Lab {
    /// With the ports `a` and `b`, and `keys` beside the technique's for the guests.
    pub(crate) fn pair(
        setup: &Setup,
        technique: &'static Technique,
        keys: &str,
    ) -> Result<Self, Failure> {
        let mut lab = Self::start(setup, technique, &["a", "b"], &[])?;
        lab.keys = keys.into();
        Ok(lab)
    }

    /// With ports of these names for guests, and `more` words on the switch's command line.
    pub(crate) fn start(
        setup: &Setup,
        technique: &'static Technique,
        guests: &[&str],
        more: &[&str],
    ) -> Result<Self, Failure> {
        let dir = Directory::new()?;
        let port = |name: &&str| format!("{name}={}", technique.at_switch(&text(&dir, name)));
        let ports: Vec<String> = guests.iter().map(port).collect();
        let api = text(&dir, "api");
        let mut words = vec!["switch", "--workers", "1", "--api", &api];
        words.extend(ports.iter().map(String::as_str));
        words.extend(more);
        let pin = if setup.pinned { Pin::Last } else { Pin::Free };
        let switch = Process::start(&dir, "switch", &words, pin)?;
        let mut lab = Self { switch, dir, setup: setup.clone(), technique, keys: String::new() };
        let ready = lab.dir.socket("api");
        lab.wait(|_| Ok(ready.exists()), "the switch to be ready")?;
        Ok(lab)
    }

    /// Starts `vmlan WORDS...` as a guest on a port; `-i ADDRESS` follows the first word.
    pub(crate) fn guest(&self, port: &str, words: &[&str]) -> Result<Process, Failure> {
        let address = self.technique.at_guest(&text(&self.dir, port), &self.keys);
        let (command, rest) = words.split_first().unwrap_or((&"pkt-gen", &[]));
        let words = [&[*command, "-i", &address], rest].concat();
        let pin = if self.setup.pinned { Pin::First } else { Pin::Free };
        Process::start(&self.dir, port, &words, pin)
    }

    /// As [`Lab::guest`], and waits until the switch sees it.
    pub(crate) fn ready_guest(&mut self, port: &str, words: &[&str]) -> Result<Process, Failure> {
        let mut guest = self.guest(port, words)?;
        let up = |p: &PortStats| p.name == port && p.up;
        self.wait(
            |lab| {
                // A short errand may be over already.
                if guest.is_over() {
                    return guest.alive().map(|()| true);
                }
                Ok(lab.stats().is_ok_and(|ports| ports.iter().any(up)))
            },
            "a guest to connect",
        )?;
        Ok(guest)
    }

    /// Counters of all ports.
    pub(crate) fn stats(&self) -> Result<Vec<PortStats>, Failure> {
        let stats: Stats = Client::new(&self.dir.socket("api")).get("/v1/stats")?;
        Ok(stats.ports)
    }

    pub(crate) fn switch(&self) -> u32 {
        self.switch.pid()
    }

    /// Waits until `ready`, as long as everybody lives.
    pub(crate) fn wait(
        &mut self,
        mut ready: impl FnMut(&Self) -> Result<bool, Failure>,
        what: &str,
    ) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while !ready(self)? {
            self.pause(Duration::from_millis(10))?;
            if Instant::now() > end {
                return Err(Failure::Failed(format!("waited {} s for {what}", PATIENCE.as_secs())));
            }
        }
        Ok(())
    }

    /// Lets time pass; an error if the switch died or the user has had enough.
    pub(crate) fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        sleep(time);
        self.setup.stop.check()?;
        self.switch.alive()
    }

    /// Lets `time` pass as long as everybody lives; now and then `news` gets the frames delivered a second and the time left.
    pub(crate) fn watch(
        &mut self,
        time: Duration,
        guests: &mut [&mut Process],
        news: &mut dyn FnMut(f64, Duration),
    ) -> Result<(), Failure> {
        const STEP: Duration = Duration::from_millis(250);
        let end = Instant::now() + time;
        let delivered = |lab: &Self| -> Result<u64, Failure> {
            Ok(lab.stats()?.iter().map(|p| p.out.frames).sum())
        };
        let (mut frames, mut asked) = (delivered(self)?, Instant::now());
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            self.pause(left.min(STEP))?;
            guests.iter_mut().try_for_each(|guest| guest.alive())?;
            let now = delivered(self)?;
            let seconds = asked.elapsed().as_secs_f64().max(1e-6);
            news(crate::stats::to_f64(now.saturating_sub(frames)) / seconds, left);
            (frames, asked) = (now, Instant::now());
        }
        Ok(())
    }
}

fn text(dir: &Directory, name: &str) -> String {
    Path::display(&dir.socket(name)).to_string()
}

/// A line on standard error that is written over again and again; nothing if nobody looks.
pub(crate) fn progress(text: &str) {
    use std::io::{IsTerminal as _, Write as _};
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        // Only decoration: it may fail.
        let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
    }
}
