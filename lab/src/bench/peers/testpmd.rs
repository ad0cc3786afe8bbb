//! DPDK testpmd, driven through its console.

use std::time::{Duration, Instant};

use vmlan_harness::{
    NetNs, Pin, Process, Result, Scratch, Stop, testpmd::Counted, testpmd::counters,
};

use super::guest::{Guest, GuestCounters, MAC};
use super::switch;

const PROMPT: &str = "testpmd> ";
const START: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(5);

/// How to start it.
#[derive(Debug)]
pub struct Setup<'a> {
    /// Name in logs and messages.
    pub name: &'a str,
    /// The core both of its threads run on.
    pub core: usize,
    /// Network namespace for the TAP devices of `net_tap`.
    pub netns: Option<&'a NetNs>,
    /// The two ports, as `--vdev` takes them.
    pub vdevs: [String; 2],
    /// Length of the frames it makes, in bytes without FCS.
    pub frame_bytes: u32,
    /// Frames from port 0 to port 1 only.
    pub one_way: bool,
}

/// A running testpmd.
#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    running: bool,
}

impl Testpmd {
    /// Starts it; [`Testpmd::ready`] tells when its ports are there.
    ///
    /// # Errors
    /// [`HarnessError::Missing`] or [`HarnessError::Io`] when it cannot start.
    pub fn spawn(setup: &Setup<'_>, scratch: &Scratch) -> Result<Self> {
        let program = switch::tool("dpdk-testpmd")?;
        let [first, second] = &setup.vdevs;
        let lcores = format!("0@{0},1@{0}", setup.core);
        let prefix = format!("{}-{}", setup.name, std::process::id());
        let process = switch::launch(setup.name, &program, Pin::Core(setup.core), setup.netns)
            .args(["--lcores", &lcores, "--main-lcore", "0", "--no-pci", "--in-memory"])
            .args(["-m", "512", "--single-file-segments", "--file-prefix", &prefix])
            .args(["--vdev", first, "--vdev", second, "--", "-i", "--nb-cores=1"])
            .args(["--forward-mode=io", "--burst=64", "--txd=1024", "--rxd=1024"])
            .args(["--no-lsc-interrupt", "--stats-period", "0"])
            .spawn(&scratch.log(setup.name))?;
        let mut testpmd = Self { process, running: false };
        testpmd.process.say(&format!("set txpkts {}", setup.frame_bytes))?;
        testpmd.process.say(&format!("set eth-peer 0 {}", MAC[1]))?;
        // Left alone, port 1 addresses itself, and a switch drops that.
        let peer = if setup.one_way { MAC[1] } else { MAC[0] };
        testpmd.process.say(&format!("set eth-peer 1 {peer}"))?;
        Ok(testpmd)
    }

    /// Waits for the prompt, which it gives when both ports are up.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] when it gives up or takes too long.
    pub fn ready(&mut self, stop: &Stop) -> Result<()> {
        let prompt = |text: &str| text.contains(PROMPT);
        self.process.expect(stop, "prompt", START, prompt).map(|_| ())
    }

    /// Forwards between its ports without making frames of its own.
    ///
    /// # Errors
    /// [`HarnessError::Io`] when it has ended.
    pub fn forward(&mut self) -> Result<()> {
        self.running = true;
        self.process.say("start")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// [`HarnessError::Failed`] with the exit status.
    pub fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }

    /// Asks for the counters of both ports.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn stats(&mut self, stop: &Stop) -> Result<[Counted; 2]> {
        counters(&mut self.process, stop)
    }
}

impl Guest for Testpmd {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn start(&mut self, stop: &Stop) -> Result<()> {
        if self.running {
            self.process.say("stop")?;
        }
        self.process.say("start tx_first 8")?;
        self.running = true;
        let started = |text: &str| text.contains("TX RS bit threshold");
        self.process.expect(stop, "start", ANSWER, started).map(|_| ())
    }

    fn seen(&mut self, stop: &Stop) -> Result<GuestCounters> {
        let ports = self.stats(stop)?;
        let sum = |field: fn(&Counted) -> u64| ports.iter().map(field).sum::<u64>();
        Ok(GuestCounters {
            at: Instant::now(),
            rx_frames: sum(|port| port.rx),
            rx_bytes: sum(|port| port.rx_bytes),
            tx_frames: sum(|port| port.tx),
            rx_pps: sum(|port| port.rx_per_s) as f64,
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
