//! DPDK's testpmd with two virtio-user ports: a guest's driver written by somebody else, at
//! millions of frames a second.
//!
//! It needs neither root nor hugepages (`--no-huge` keeps its memory in a memfd, which vhost-user
//! can pass on).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Process, Result, Stop, find_program};

/// Longest wait for it to start or stop.
const START: Duration = Duration::from_secs(120);
/// Longest wait for counters.
const ANSWER: Duration = Duration::from_secs(60);

/// Frames each port puts into circulation; below the rings' 1024, so that none has to wait for
/// room.
pub const BURSTS: u64 = 8;

/// testpmd's burst.
pub const BURST: u64 = 64;

/// One virtio-user port.
#[derive(Debug, Clone)]
pub struct Vdev {
    /// The vhost-user socket.
    pub socket: PathBuf,
    /// testpmd listens and the switch connects.
    pub server: bool,
    /// Further options of the virtio-user driver, such as `mrg_rxbuf=0,in_order=0`.
    pub options: &'static str,
}

/// What testpmd counted on one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames it received.
    pub rx: u64,
    /// Bytes in them, without FCS.
    pub rx_bytes: u64,
    /// Frames it sent.
    pub tx: u64,
    /// Receive errors, missed frames and transmit errors together.
    pub errors: u64,
    /// Frames received for each second since the counters were last asked for, by its own clock.
    pub rx_per_s: u64,
}

/// A running testpmd that sends what arrives on one port out of the other, unchanged.
pub struct Testpmd {
    process: Process,
    queues: u64,
}

impl Testpmd {
    /// Starts it and waits for its prompt; `queues` receive and transmit queues on each port.
    ///
    /// # Errors
    /// As [`find_program`] without DPDK, and as [`Process::expect`].
    pub fn start(dir: &Path, ports: &[Vdev; 2], queues: u16) -> Result<Testpmd> {
        find_program("dpdk-testpmd")?;
        let mut argv = Vec::new();
        // Line by line, for DPDK prints statistics through stdio.
        let eal = "stdbuf -oL dpdk-testpmd --lcores 0@0,1@0 --main-lcore 0 --no-pci --no-huge \
            --no-shconf --no-telemetry -m 256";
        argv.extend(eal.split(' ').map(str::to_owned));
        for (number, port) in ports.iter().enumerate() {
            let options =
                if port.options.is_empty() { String::new() } else { format!(",{}", port.options) };
            argv.push("--vdev".into());
            argv.push(format!(
                "net_virtio_user{number},path={},server={},mac=02:00:00:00:00:0{number},\
                 queue_size=1024,queues={queues}{options}",
                port.socket.display(),
                u8::from(port.server),
            ));
        }
        let own = format!(
            "-- -i --nb-cores=1 --forward-mode=io --burst={BURST} --txd=1024 --rxd=1024 \
             --rxq={queues} --txq={queues} --no-lsc-interrupt --total-num-mbufs=16384"
        );
        argv.extend(own.split(' ').map(str::to_owned));
        let log = dir.join("testpmd.log");
        let process = Process::start_dialogue("dpdk-testpmd", &log, &argv)?;
        let mut testpmd = Testpmd { process, queues: queues.into() };
        testpmd.heard("its ports", |text| text.contains("Done"))?;
        for (port, peer) in [(0, 1), (1, 0)] {
            testpmd.process.say(&format!("set eth-peer {port} 02:00:00:00:00:0{peer}"))?;
        }
        Ok(testpmd)
    }

    /// Puts [`BURSTS`] bursts of `length`-byte frames (without FCS) into circulation from each
    /// port, shared by its queues: were it more, one queue might have to take more than its ring
    /// holds.
    pub fn bounce(&mut self, length: u16) -> Result<()> {
        self.process.say("clear port stats all")?;
        self.process.say(&format!("set txpkts {length}"))?;
        self.process.say(&format!("start tx_first {}", BURSTS / self.queues))
    }

    /// Stops forwarding: what circulates stays in the receive rings.
    pub fn stop(&mut self) -> Result<()> {
        // What it printed so far is not its answer.
        self.heard("nothing", |_| true)?;
        self.process.say("stop")?;
        self.heard("to stop", |text| {
            text.contains("Waiting for lcores to finish...") && text.contains("\nDone.")
        })
    }

    /// The counters of both ports.
    pub fn counted(&mut self) -> Result<[Counted; 2]> {
        counters(&mut self.process, &Stop::default())
    }

    fn heard(&mut self, what: &str, done: impl Fn(&str) -> bool) -> Result<()> {
        self.process.expect(&Stop::default(), what, START, done).map(drop)
    }
}

/// Asks a testpmd at its console for the counters of both its ports.
pub fn counters(process: &mut Process, stop: &Stop) -> Result<[Counted; 2]> {
    process.say("show port stats all")?;
    let complete = |text: &str| parse(text).is_some();
    let text = process.expect(stop, "its counters", ANSWER, complete)?;
    Ok(parse(&text).unwrap_or_default())
}

/// Both ports' counters, the last that were shown; `None` while the text is not complete.
fn parse(text: &str) -> Option<[Counted; 2]> {
    let mut blocks = text.rsplit("NIC statistics for port").map(|block| {
        block.contains("Tx-bps:").then_some(())?;
        Some(Counted {
            rx: number(block, "RX-packets:")?,
            rx_bytes: number(block, "RX-bytes:")?,
            tx: number(block, "TX-packets:")?,
            errors: number(block, "RX-missed:")?
                + number(block, "RX-errors:")?
                + number(block, "TX-errors:")?,
            rx_per_s: number(block, "Rx-pps:")?,
        })
    });
    let (second, first) = (blocks.next()??, blocks.next()??);
    Some([first, second])
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
  RX-packets: 10491904   RX-missed: 2          RX-bytes:  629514240
  RX-errors: 1
  RX-nombuf:  0
  TX-packets: 10492192   TX-errors: 4          TX-bytes:  629531520

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
    fn counters_are_understood() {
        let [first, second] = parse(TEXT).unwrap();
        let (rx, tx) = (10_491_904, 10_492_192);
        let expected = Counted { rx, rx_bytes: 629_514_240, tx, errors: 7, rx_per_s: 5_306_733 };
        assert_eq!(first, expected);
        assert_eq!(second, Counted { rx: 2, rx_bytes: 120, tx: 4, errors: 0, rx_per_s: 3 });
    }

    #[test]
    fn half_an_answer_is_none() {
        let cut = TEXT.rfind("Tx-bps").unwrap();
        assert_eq!(parse(&TEXT[..cut]), None);
        assert_eq!(parse("testpmd> "), None);
    }
}
