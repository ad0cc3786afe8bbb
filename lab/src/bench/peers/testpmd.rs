//! DPDK testpmd, driven through its console.

use std::time::{Duration, Instant};

use vmlan_harness::{
    NetNs, Pin, Process, Result, Scratch, Stop, testpmd::Counted, testpmd::counters,
};

use super::guest::{Guest, GuestCounters, MAC};
use super::switch;

const PROMPT: &str = "testpmd> ";
/// A switch that looks for it once a second may take some.
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(5);

/// How to start it.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    /// Name in logs and messages.
    pub(super) name: &'a str,
    /// The core both of its threads run on.
    pub(super) core: usize,
    /// Network namespace for the TAP devices of `net_tap`.
    pub(super) netns: Option<&'a NetNs>,
    /// The two ports, as `--vdev` takes them.
    pub(super) vdevs: [String; 2],
}

/// A running testpmd.
#[derive(Debug)]
pub(super) struct Testpmd {
    process: Process,
    running: bool,
}

impl Testpmd {
    /// Starts it; [`Testpmd::ready`] tells when its ports are there.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] or [`HarnessError::Io`] when it cannot start.
    pub(super) fn spawn(setup: &Setup<'_>, scratch: &Scratch) -> Result<Self> {
        let program = switch::tool("dpdk-testpmd")?;
        let [first, second] = &setup.vdevs;
        let lcores = format!("0@{0},1@{0}", setup.core);
        let prefix = format!("{}-{}", setup.name, std::process::id());
        let process = switch::launch(setup.name, &program, Pin::Core(setup.core), setup.netns)
            .args(["--lcores", &lcores, "--main-lcore", "0", "--no-pci", "--in-memory"])
            .args(["-m", "128", "--single-file-segments", "--file-prefix", &prefix])
            .args(["--vdev", first, "--vdev", second, "--", "-i", "--nb-cores=1"])
            .args(["--forward-mode=io", "--burst=64", "--txd=1024", "--rxd=1024"])
            .args(["--no-lsc-interrupt", "--total-num-mbufs=32768"])
            .spawn(&scratch.log(setup.name))?;
        let mut testpmd = Self { process, running: false };
        testpmd.process.say(&format!("set eth-peer 0 {}", MAC[1]))?;
        testpmd.process.say(&format!("set eth-peer 1 {}", MAC[0]))?;
        Ok(testpmd)
    }

    /// Waits for the prompt, which it gives when both ports are up.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] when it gives up or takes too long.
    pub(super) fn ready(&mut self, stop: &Stop) -> Result<()> {
        let prompt = |text: &str| text.contains(PROMPT);
        self.process.expect(stop, "prompt", START, prompt).map(|_| ())
    }

    /// Forwards between its ports without making frames of its own.
    ///
    /// # Errors
    /// [`HarnessError::Io`] when it has ended.
    pub(super) fn forward(&mut self) -> Result<()> {
        self.running = true;
        self.process.say("start")
    }

    /// Forwards no more; its core is idle then.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn halt(&mut self, stop: &Stop) -> Result<()> {
        if !std::mem::take(&mut self.running) {
            return Ok(());
        }
        self.process.say("stop")?;
        self.process.expect(stop, "end of forwarding", ANSWER, |text| text.contains("Done."))?;
        Ok(())
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] with the exit status.
    pub(super) fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }

    /// Asks for the counters of both ports.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn stats(&mut self, stop: &Stop) -> Result<[Counted; 2]> {
        counters(&mut self.process, stop)
    }
}

impl Guest for Testpmd {
    fn start(&mut self, stop: &Stop, bytes: u32) -> Result<()> {
        self.halt(stop)?;
        self.process.say(&format!("set txpkts {bytes}"))?;
        // What lies in its rings of an earlier time is thrown away first.
        self.process.say("start tx_first 8")?;
        self.running = true;
        let started = |text: &str| text.contains("TX RS bit threshold");
        self.process.expect(stop, "start", ANSWER, started).map(|_| ())
    }

    fn pause(&mut self, stop: &Stop) -> Result<()> {
        self.halt(stop)
    }

    fn seen(&mut self, stop: &Stop) -> Result<GuestCounters> {
        let asked = Instant::now();
        let ports = self.stats(stop)?;
        let sum = |field: fn(&Counted) -> u64| ports.iter().map(field).sum::<u64>();
        Ok(GuestCounters {
            at: asked + asked.elapsed() / 2,
            rx_frames: sum(|port| port.rx),
            rx_bytes: sum(|port| port.rx_bytes),
            tx_frames: sum(|port| port.tx),
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Told to quit it detaches its ports in order; otherwise `Process` ends it.
        let said = self.process.say("stop").and_then(|()| self.process.say("quit"));
        if said.is_ok() {
            self.process.ended_within(Duration::from_secs(2));
        }
    }
}
