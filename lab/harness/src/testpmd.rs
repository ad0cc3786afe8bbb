//! DPDK's testpmd with two virtio-user ports: a guest's driver written by somebody else, at millions of frames a second.
//!
//! It needs neither root nor hugepages (`--no-huge` keeps its memory in a memfd, which vhost-user can pass on).

use crate::{HarnessError, Process, Result, SETUP, vm::find_tool};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Frames each port puts into circulation; below the rings' 1024, so that none has to wait for room.
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
    /// Frames it sent.
    pub tx: u64,
    /// Receive errors, missed frames and transmit errors together.
    pub errors: u64,
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
    /// [`HarnessError::Missing`] without DPDK, [`HarnessError::Ended`] with its own words.
    pub fn start(dir: &Path, ports: &[Vdev; 2], queues: u16) -> Result<Testpmd> {
        if find_tool("dpdk-testpmd").is_err() {
            return Err(HarnessError::Missing { what: "dpdk-testpmd".into(), fix: SETUP });
        }
        let mut argv = Vec::new();
        // Line by line, for DPDK prints statistics through stdio.
        let eal = "stdbuf -oL dpdk-testpmd --lcores 0@0,1@0 --main-lcore 0 --no-pci --no-huge --no-shconf --no-telemetry -m 256";
        argv.extend(eal.split(' ').map(str::to_owned));
        for (number, port) in ports.iter().enumerate() {
            let options =
                if port.options.is_empty() { String::new() } else { format!(",{}", port.options) };
            argv.push("--vdev".into());
            argv.push(format!(
                "net_virtio_user{number},path={},server={},mac=02:00:00:00:00:0{number},queue_size=1024,queues={queues}{options}",
                port.socket.display(),
                u8::from(port.server),
            ));
        }
        let own = format!(
            "-- -i --nb-cores=1 --forward-mode=io --burst={BURST} --txd=1024 --rxd=1024 --rxq={queues} --txq={queues} \
             --no-lsc-interrupt --total-num-mbufs=16384 --stats-period 0"
        );
        argv.extend(own.split(' ').map(str::to_owned));
        let log = dir.join("testpmd.log");
        let mut testpmd = Testpmd {
            process: Process::start_dialogue("dpdk-testpmd", &log, &argv)?,
            queues: queues.into(),
        };
        testpmd.await_text("Done", "its ports")?;
        for (port, peer) in [(0, 1), (1, 0)] {
            testpmd.process.say(&format!("set eth-peer {port} 02:00:00:00:00:0{peer}"))?;
        }
        Ok(testpmd)
    }

    /// Puts [`BURSTS`] bursts of `length`-byte frames (without FCS) into circulation from each port, shared by its queues: were
    /// it more, one queue might have to take more than its ring holds.
    ///
    /// # Errors
    /// [`HarnessError::Ended`].
    pub fn bounce(&mut self, length: u16) -> Result<()> {
        self.process.say("clear port stats all")?;
        self.process.say(&format!("set txpkts {length}"))?;
        self.process.say(&format!("start tx_first {}", BURSTS / self.queues))
    }

    /// Stops forwarding: what circulates stays in the receive rings.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] or [`HarnessError::Deadline`].
    pub fn stop(&mut self) -> Result<()> {
        let before = self.process.log().len();
        self.process.say("stop")?;
        self.await_after(before, "Waiting for lcores to finish...", "to stop")?;
        self.await_after(before, "\nDone.", "to stop")
    }

    /// The counters of both ports.
    ///
    /// # Errors
    /// [`HarnessError::Ended`] or [`HarnessError::Deadline`].
    pub fn counted(&mut self) -> Result<[Counted; 2]> {
        let before = self.process.log().len();
        self.process.say("show port stats all")?;
        let both = |log: &str| log.matches("Tx-bps").count() >= 2;
        let mut text = String::new();
        let log = self.process.log_path().to_owned();
        self.process.wait("its statistics", Duration::from_secs(10), || {
            text = std::fs::read_to_string(&log).unwrap_or_default().split_off(before);
            both(&text)
        })?;
        let mut parts = text.split("NIC statistics for port").skip(1);
        let mut next = || parse(parts.next().unwrap_or_default());
        Ok([next(), next()])
    }

    fn await_text(&mut self, text: &str, what: &str) -> Result<()> {
        self.await_after(0, text, what)
    }

    fn await_after(&mut self, from: usize, text: &str, what: &str) -> Result<()> {
        let log = self.process.log_path().to_owned();
        let seen = || {
            std::fs::read_to_string(&log)
                .unwrap_or_default()
                .get(from..)
                .is_some_and(|new| new.contains(text))
        };
        self.process.wait(what, Duration::from_secs(30), seen)
    }
}

fn parse(block: &str) -> Counted {
    let field = |name: &str| {
        let after = block.split(name).nth(1).unwrap_or_default().trim_start_matches(':');
        after.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    let errors = field("RX-missed") + field("RX-errors") + field("TX-errors");
    Counted { rx: field("RX-packets"), tx: field("TX-packets"), errors }
}

#[cfg(test)]
mod tests {
    use super::{Counted, parse};

    #[test]
    fn reads_what_testpmd_prints() {
        let block = " 0  ####\n  RX-packets: 18837952   RX-missed: 2          RX-bytes:  1205628928\n  RX-errors: 1\n  \
                     RX-nombuf:  0         \n  TX-packets: 18838528   TX-errors: 4          TX-bytes:  1205665792\n";
        assert_eq!(parse(block), Counted { rx: 18_837_952, tx: 18_838_528, errors: 7 });
    }
}
