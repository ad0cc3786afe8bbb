//! A laboratory: a switch and guests as separate processes of this program, and what passes between
//! them. `demo` and `bench` measure in it.
//!
//! "Native" guests are processes that play VMM and driver over the real socket,
//! with memory of their own: the same road a VM's frames take, without a VM.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use vmlan_api::Client;
use vmlan_engine::stats::{PortStats, Stats};
use vmlan_harness::{Launch, Pin};

pub(crate) mod chip;
mod cores;
pub(crate) mod flood;
pub(crate) mod host;
pub(crate) mod pair;
pub(crate) mod span;
pub(crate) mod technique;
mod window;

pub(crate) use chip::Chip;
pub(crate) use cores::Cores;
pub(crate) use flood::{Flood, FloodGuest, Idle};
pub(crate) use span::{Look, Span};
pub(crate) use technique::Technique;
pub(crate) use vmlan_harness::{Machine, Process, Scratch, Stop};
pub(crate) use window::Window;

/// Address of the guest on port `a`.
pub(crate) const MAC_A: &str = "52:54:00:00:00:0a";
/// Of the one on port `b`.
pub(crate) const MAC_B: &str = "52:54:00:00:00:0b";

/// Longest wait for a process to be ready.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How long a process may take to end when asked to.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// How laboratories are set up.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Ends everything.
    pub(crate) stop: Stop,
    pub(crate) cores: Cores,
    /// Time for caches, clocks and the forwarding table to settle.
    pub(crate) warm_up: Duration,
    /// The program whose switch is measured, if it is not this one.
    pub(crate) switch: Option<PathBuf>,
}

/// Enough of it where a measurement takes half a second and more.
pub(crate) const WARM_UP: Duration = Duration::from_millis(400);

/// A port for a guest.
#[derive(Clone, Copy)]
pub(crate) struct Plug<'a> {
    pub(crate) name: &'a str,
    /// How its NIC is driven.
    pub(crate) technique: &'static Technique,
    /// Keys of the guest's address beside the technique's.
    pub(crate) keys: &'a str,
}

/// A running switch with ports for guests.
pub(crate) struct Lab {
    // Dropped in this order: the switch ends before its directory goes.
    switch: Process,
    /// The switch's command line.
    words: Vec<String>,
    dir: Scratch,
    setup: Setup,
    /// Names of ports, and the addresses as guests see them.
    plugs: Vec<(String, String)>,
}

impl Lab {
    /// With the ports `a` and `b`, which use one technique, and `keys` beside the technique's for
    /// the guests.
    pub(crate) fn pair(
        setup: &Setup,
        technique: &'static Technique,
        keys: &str,
    ) -> Result<Self, Failure> {
        let plug = |name| Plug { name, technique, keys };
        Self::start(setup, &[plug("a"), plug("b")], &[])
    }

    /// With these ports for guests, and `more` words on the switch's command line.
    pub(crate) fn start(setup: &Setup, plugs: &[Plug<'_>], more: &[&str]) -> Result<Self, Failure> {
        let dir = Scratch::new()?;
        let port =
            |p: &Plug<'_>| format!("{}={}", p.name, p.technique.at_switch(&text(&dir, p.name)));
        let ports: Vec<String> = plugs.iter().map(port).collect();
        let api = text(&dir, "api");
        let mut words = vec!["switch", "--workers", "1", "--api", &api];
        words.extend(ports.iter().map(String::as_str));
        words.extend(more);
        let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
        let switch = start_switch(&dir, &words, setup)?;
        let seen =
            |p: &Plug<'_>| (p.name.to_owned(), p.technique.at_guest(&text(&dir, p.name), p.keys));
        let plugs = plugs.iter().map(seen).collect();
        let mut lab = Self { switch, words, dir, setup: setup.clone(), plugs };
        let ready = lab.dir.socket("api");
        lab.wait(|_| Ok(ready.exists()), "the switch to be ready")?;
        Ok(lab)
    }

    /// Starts `vmlan WORDS...` as a guest on a port; `-i ADDRESS` follows the first word.
    pub(crate) fn guest(&self, port: &str, words: &[impl AsRef<str>]) -> Result<Process, Failure> {
        let address = self.plugs.iter().find(|(name, _)| name == port);
        let (_, address) = address.ok_or_else(|| Failure::Failed(format!("no port {port}")))?;
        let mut words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        words.splice(1..1, ["-i", address.as_str()]);
        start(&self.dir, port, &words, self.setup.cores.of(Some(port)))
    }

    /// As [`Lab::guest`], and waits until the switch sees it.
    pub(crate) fn ready_guest(
        &mut self,
        port: &str,
        words: &[impl AsRef<str>],
    ) -> Result<Process, Failure> {
        let mut guest = self.guest(port, words)?;
        let up = |p: &PortStats| p.name == port && p.up;
        self.wait(
            |lab| {
                // A short errand may be over already.
                if guest.has_ended() {
                    return Ok(guest.alive().map(|()| true)?);
                }
                Ok(lab.stats().is_ok_and(|ports| ports.iter().any(up)))
            },
            "a guest to connect",
        )?;
        Ok(guest)
    }

    /// A thread that plays these guests, once the switch sees them.
    pub(crate) fn flood(&mut self, guests: &[FloodGuest], idle: Idle) -> Result<Flood, Failure> {
        let with_address = |s| -> Result<_, Failure> { Ok((self.address(s)?.to_owned(), s)) };
        let placed: Vec<_> = guests.iter().map(with_address).collect::<Result<_, _>>()?;
        let flood = Flood::start(&placed, idle, self.setup.cores.of(Some("flood")))?;
        let up = |p: &PortStats| p.up || !guests.iter().any(|s| s.port == p.name);
        let all_up = |lab: &Self| Ok(lab.stats()?.iter().all(up));
        self.wait(all_up, "the guests to connect")?;
        Ok(flood)
    }

    fn address(&self, guest: &FloodGuest) -> Result<&str, Failure> {
        let found = self.plugs.iter().find(|(name, _)| *name == guest.port);
        let none = || Failure::Failed(format!("no port {}", guest.port));
        found.map(|(_, address)| address.as_str()).ok_or_else(none)
    }

    /// `vmlan port set PORT KEY=VALUE...`
    pub(crate) fn set(&self, port: &str, keys: &[(&str, &str)]) -> Result<(), Failure> {
        let keys: BTreeMap<_, _> = keys.iter().copied().collect();
        let path = format!("/v1/ports/{port}");
        let client = Client::new(&self.dir.socket("api"));
        let _: serde_json::Value = client.send(&hyper::Method::PATCH, &path, &keys)?;
        Ok(())
    }

    /// `vmlan port del PORT`
    pub(crate) fn remove(&self, port: &str) -> Result<(), Failure> {
        Ok(Client::new(&self.dir.socket("api")).delete(&format!("/v1/ports/{port}"))?)
    }

    /// `kill -9`, and the same switch again; back when it answers.
    pub(crate) fn kill_and_start_again(&mut self) -> Result<(), Failure> {
        self.switch.kill9_within(PATIENCE)?;
        self.switch = start_switch(&self.dir, &self.words, &self.setup)?;
        self.wait(|lab| Ok(lab.stats().is_ok()), "the new switch to answer")
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        match self.switch.terminate(PATIENCE)? {
            Some(0) => Ok(()),
            code => Err(Failure::Failed(format!("the switch ended with {code:?}"))),
        }
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
        self.setup.stop.sleep(time)?;
        Ok(self.switch.alive()?)
    }
}

fn start_switch(dir: &Scratch, words: &[String], setup: &Setup) -> Result<Process, Failure> {
    let program = setup.switch.clone().map_or_else(this_program, Ok)?;
    launch(dir, "switch", &program, words, setup.cores.of(None))
}

/// Starts this same program as a process of the laboratory.
fn start(dir: &Scratch, name: &str, words: &[&str], pin: Pin) -> Result<Process, Failure> {
    launch(dir, name, &this_program()?, words, pin)
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::Failed(format!("this program cannot be started again: {e}")))
}

fn launch(
    dir: &Scratch,
    name: &str,
    program: &Path,
    words: &[impl AsRef<OsStr>],
    pin: Pin,
) -> Result<Process, Failure> {
    let file = |kind| dir.path().join(format!("{name}.{kind}"));
    let launch = Launch::new(name, program)
        .args(words)
        .env("VMLAN_LOG", Some("warn".as_ref()))
        .env("NOTIFY_SOCKET", None)
        .env("JOURNAL_STREAM", None)
        .output(file("out"))
        .pin(pin)
        .grace(GRACE);
    Ok(launch.spawn(&file("log"))?)
}

fn text(dir: &Scratch, name: &str) -> String {
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
