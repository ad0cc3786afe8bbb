//! DPDK's vhost library alone: testpmd in io mode between two `net_vhost` ports.

use super::super::proc::Cpu;
use super::super::stop::Stop;
use super::super::testpmd::Testpmd;
use super::super::{Error, SWITCH_CORE};
use super::{Bench, Charged, Rig, Switch};

struct Vhost(Testpmd);

/// testpmd on both sides of the sockets; the vhost side listens.
pub fn rig(bench: &Bench<'_>, frame_bytes: u32) -> Result<Rig, Error> {
    let dir = bench.scratch.fresh("vhost")?;
    let vdevs =
        [0, 1].map(|i| format!("net_vhost{i},iface={}", dir.join(format!("vu{i}")).display()));
    let mut switch = bench.testpmd("vhost", SWITCH_CORE, None, vdevs, frame_bytes)?;
    switch.ready(bench.stop)?;
    switch.forward()?;
    let guest = bench.virtio_guest(&dir, false, frame_bytes)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(Vhost(switch)) })
}

impl Switch for Vhost {
    fn alive(&mut self) -> Result<(), Error> {
        self.0.alive()
    }

    fn cpu(&self) -> Result<Charged, Error> {
        Ok(Charged { own: Cpu::of(self.0.pid())?.total(), in_guest: 0.0 })
    }

    fn delivered(&mut self, stop: &Stop) -> Result<u64, Error> {
        Ok(self.0.stats(stop)?.iter().map(|port| port.tx_packets).sum())
    }
}
