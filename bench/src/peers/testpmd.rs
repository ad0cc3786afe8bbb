//! DPDK testpmd, driven through its console.

use std::path::Path;
use std::time::{Duration, Instant};

use super::guest::{Guest, MAC, Seen};
use super::process::{Launch, Process};
use super::scratch::Scratch;
use super::stop::Stop;
use super::{Error, switch};

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
    pub netns: Option<&'a Path>,
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
    /// [`Error::Missing`] or [`Error::Io`] when it cannot start.
    pub fn spawn(setup: &Setup<'_>, scratch: &Scratch) -> Result<Self, Error> {
        let program = switch::tool("dpdk-testpmd")?;
        let [first, second] = &setup.vdevs;
        let lcores = format!("0@{0},1@{0}", setup.core);
        let prefix = format!("{}-{}", setup.name, std::process::id());
        let process = Launch::new(setup.name, &program, Some(setup.core), setup.netns)
            .args(["--lcores", &lcores, "--main-lcore", "0", "--no-pci", "--in-memory"])
            .args(["-m", "512", "--single-file-segments", "--file-prefix", &prefix])
            .args(["--vdev", first, "--vdev", second, "--", "-i", "--nb-cores=1"])
            .args(["--forward-mode=io", "--burst=64", "--txd=1024", "--rxd=1024"])
            .args(["--no-lsc-interrupt", "--stats-period", "0"])
            .spawn(scratch)?;
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
    /// [`Error::Failed`] when it gives up or takes too long.
    pub fn ready(&mut self, stop: &Stop) -> Result<(), Error> {
        let prompt = |text: &str| text.contains(PROMPT);
        self.process.expect(stop, "prompt", START, prompt).map(|_| ())
    }

    /// Forwards between its ports without making frames of its own.
    ///
    /// # Errors
    /// [`Error::Io`] when it has ended.
    pub fn forward(&mut self) -> Result<(), Error> {
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
    /// [`Error::Failed`] with the exit status.
    pub fn alive(&mut self) -> Result<(), Error> {
        self.process.alive()
    }

    /// Asks for the counters of both ports.
    ///
    /// # Errors
    /// [`Error::Failed`] when it does not answer.
    pub fn stats(&mut self, stop: &Stop) -> Result<[PortStats; 2], Error> {
        self.process.say("show port stats all")?;
        let complete = |text: &str| parse(text).is_some();
        let text = self.process.expect(stop, "port statistics", ANSWER, complete)?;
        parse(&text).ok_or_else(|| Error::Failed("testpmd's statistics make no sense".into()))
    }
}

impl Guest for Testpmd {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn start(&mut self, stop: &Stop) -> Result<(), Error> {
        if self.running {
            self.process.say("stop")?;
        }
        self.process.say("start tx_first 8")?;
        self.running = true;
        let started = |text: &str| text.contains("TX RS bit threshold");
        self.process.expect(stop, "start", ANSWER, started).map(|_| ())
    }

    fn seen(&mut self, stop: &Stop) -> Result<Seen, Error> {
        let ports = self.stats(stop)?;
        let sum = |field: fn(&PortStats) -> u64| ports.iter().map(field).sum::<u64>();
        Ok(Seen {
            at: Instant::now(),
            rx_frames: sum(|port| port.rx_packets),
            rx_bytes: sum(|port| port.rx_bytes),
            tx_frames: sum(|port| port.tx_packets),
            rx_pps: sum(|port| port.rx_pps) as f64,
        })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Told to quit it detaches its ports in order; `Process` ends it if it does not.
        let said = self.process.say("stop").and_then(|()| self.process.say("quit"));
        if said.is_ok() {
            self.process.ended_within(Duration::from_secs(2));
        }
    }
}

/// Counters of one port from `show port stats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received, without FCS.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Frames received for each second since the last `show`.
    pub rx_pps: u64,
}

/// Both ports' counters, or `None` while the text is not complete.
fn parse(text: &str) -> Option<[PortStats; 2]> {
    let mut ports = text.split("NIC statistics for port").skip(1).map(|block| {
        block.contains("Tx-pps:").then_some(())?;
        Some(PortStats {
            rx_packets: number(block, "RX-packets:")?,
            rx_bytes: number(block, "RX-bytes:")?,
            tx_packets: number(block, "TX-packets:")?,
            rx_pps: number(block, "Rx-pps:")?,
        })
    });
    Some([ports.next()??, ports.next()??])
}

fn number(block: &str, name: &str) -> Option<u64> {
    block.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
testpmd> show port stats all

  ######################## NIC statistics for port 0  ########################
  RX-packets: 10491904   RX-missed: 0          RX-bytes:  629514240
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 10492192   TX-errors: 0          TX-bytes:  629531520

  Throughput (since last show)
  Rx-pps:      5306733          Rx-bps:   2547231896
  Tx-pps:      5306740          Tx-bps:   2547231896
  ############################################################################

  ######################## NIC statistics for port 1  ########################
  RX-packets: 2          RX-missed: 0          RX-bytes:  120
  RX-errors: 0
  RX-nombuf:  0         
  TX-packets: 4          TX-errors: 0          TX-bytes:  240

  Throughput (since last show)
  Rx-pps:            3          Rx-bps:            0
  Tx-pps:            0          Tx-bps:            0
";

    #[test]
    fn statistics_are_understood() {
        let [first, second] = parse(TEXT).unwrap();
        assert_eq!(first.rx_packets, 10_491_904);
        assert_eq!(first.rx_bytes, 629_514_240);
        assert_eq!(first.tx_packets, 10_492_192);
        assert_eq!(first.rx_pps, 5_306_733);
        let expected = PortStats { rx_packets: 2, rx_bytes: 120, tx_packets: 4, rx_pps: 3 };
        assert_eq!(second, expected);
    }

    #[test]
    fn half_an_answer_is_no_answer() {
        let cut = TEXT.rfind("Tx-pps").unwrap();
        assert_eq!(parse(&TEXT[..cut]), None);
    }
}
