//! One cell with native guests: a switch, a sender and a receiver, each a process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::peers::Error;
use super::super::peers::proc::Cpu;
use super::super::peers::process::{Launch, Process};
use super::super::peers::scratch::Scratch;
use super::super::peers::stop::Stop;
use super::stats::{Totals, read};
use super::way::Way;

const START: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);

/// The receiver's address; the sender learns nothing, it is told.
const RECEIVER: &str = "52:54:00:00:00:0b";
const SENDER: &str = "52:54:00:00:00:0a";

/// What one cell has shown. Rates are for each second of the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Frames delivered to the receiver.
    pub frames_per_s: f64,
    /// Frame bytes without FCS, preamble and gap.
    pub gbit_per_s: f64,
    /// Register accesses that were messages, both guests together, for each 1,000 frames delivered.
    pub accesses_per_k: f64,
    /// Interrupts delivered to both guests, for each 1,000 frames delivered.
    pub interrupts_per_k: f64,
    /// Interrupts that moderation held back, likewise.
    pub held_per_k: f64,
    /// CPU seconds per second of the switch, all its threads.
    pub cpu_switch: f64,
    /// Of the sender.
    pub cpu_sender: f64,
    /// Of the receiver.
    pub cpu_receiver: f64,
    /// Share of the frames sent that were not delivered.
    pub lost: f64,
}

/// Where the parts come from.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// The vmlan program.
    pub program: &'a Path,
    /// For sockets and logs.
    pub scratch: &'a Scratch,
    /// Ctrl-C.
    pub stop: &'a Stop,
    /// Length of the window.
    pub seconds: u32,
}

struct Rig {
    switch: Process,
    sender: Process,
    receiver: Process,
    api: PathBuf,
}

impl Rig {
    fn start(lab: &Lab<'_>, way: Way, bytes: u32) -> Result<Self, Error> {
        let dir = lab.scratch.fresh(way.name)?;
        let (a, b, api) = (dir.join("a"), dir.join("b"), dir.join("api"));
        let port =
            |name, path: &Path| format!("{name}={}:{}{}", way.kind, path.display(), way.switch);
        let mut switch = Launch::new("switch", lab.program, None, None)
            .args(["switch", "--workers", "1", "--api"])
            .args([&api])
            .args([port("a", &a), port("b", &b)])
            .spawn(lab.scratch)?;
        lab.stop.wait_for("sockets of the switch", START, || {
            switch.alive()?;
            Ok([&a, &b, &api].iter().all(|path| path.exists()).then_some(()))
        })?;
        let guest = |name: &str, path: &Path| {
            let address = format!("{}:{}{}", way.kind, path.display(), way.guest);
            Launch::new(name, lab.program, None, None).args(["pkt-gen", "-i", &address])
        };
        let receiver =
            guest("receiver", &b).args(["-f", "rx", "-s", RECEIVER]).spawn(lab.scratch)?;
        // The receiver announces itself; a sender that is faster would have its first frames flooded.
        lab.stop.sleep(WARM_UP / 4)?;
        let size = bytes.to_string();
        let sender = guest("sender", &a)
            .args(["-f", "tx", "-s", SENDER, "-d", RECEIVER, "-l", &size])
            .spawn(lab.scratch)?;
        Ok(Self { switch, sender, receiver, api })
    }

    fn alive(&mut self) -> Result<(), Error> {
        self.switch.alive()?;
        self.sender.alive()?;
        self.receiver.alive()
    }

    fn look(&self, lab: &Lab<'_>) -> Result<Look, Error> {
        let totals = read(lab.program, &self.api)?;
        let at = Instant::now();
        let cpu = |process: &Process| Ok::<f64, Error>(Cpu::of(process.pid())?.total());
        Ok(Look { at, totals, cpu: [cpu(&self.switch)?, cpu(&self.sender)?, cpu(&self.receiver)?] })
    }
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    totals: Totals,
    cpu: [f64; 3],
}

/// Starts all three, waits until frames flow, and measures.
///
/// # Errors
/// When a part does not start, or no frame arrives.
pub fn measure(lab: &Lab<'_>, way: Way, bytes: u32) -> Result<Figures, Error> {
    let mut rig = Rig::start(lab, way, bytes)?;
    lab.stop.wait_for("frames at the receiver", START, || {
        rig.alive()?;
        Ok((read(lab.program, &rig.api)?.delivered > 1000).then_some(()))
    })?;
    lab.stop.sleep(WARM_UP)?;
    let first = rig.look(lab)?;
    lab.stop.sleep(Duration::from_secs(lab.seconds.into()))?;
    rig.alive()?;
    let last = rig.look(lab)?;
    figures(&first, &last, bytes)
}

fn figures(a: &Look, b: &Look, bytes: u32) -> Result<Figures, Error> {
    let t = b.totals.since(&a.totals);
    if t.delivered == 0 {
        return Err(Error::Failed("no frame arrived within the window".into()));
    }
    let seconds = (b.at - a.at).as_secs_f64();
    let frames = t.delivered as f64;
    let per_k = |n: u64| 1000.0 * n as f64 / frames;
    let cpu = |i: usize| (b.cpu[i] - a.cpu[i]) / seconds;
    Ok(Figures {
        frames_per_s: frames / seconds,
        gbit_per_s: frames * f64::from(bytes) * 8.0 / 1e9 / seconds,
        accesses_per_k: per_k(t.accesses),
        interrupts_per_k: per_k(t.interrupts),
        held_per_k: per_k(t.held),
        cpu_switch: cpu(0),
        cpu_sender: cpu(1),
        cpu_receiver: cpu(2),
        lost: (1.0 - frames / t.sent.max(1) as f64).max(0.0),
    })
}
