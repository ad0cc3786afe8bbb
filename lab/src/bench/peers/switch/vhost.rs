//! DPDK's vhost library alone: testpmd in io mode between two `net_vhost` ports.

use vmlan_harness::{Result, Stop, usage::CpuTime};

use super::super::SWITCH_CORE;
use super::super::testpmd::Testpmd;
use super::{Bench, Charged, Rig, Switch};

struct Vhost(Testpmd);

/// testpmd on both sides of the sockets; the vhost side listens.
pub fn rig(bench: &Bench<'_>, frame_bytes: u32) -> Result<Rig> {
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
    fn alive(&mut self) -> Result<()> {
        self.0.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Ok(Charged { own: CpuTime::of(self.0.pid())?.total().as_secs_f64(), in_guest: 0.0 })
    }

    fn delivered(&mut self, stop: &Stop) -> Result<u64> {
        Ok(self.0.stats(stop)?.iter().map(|port| port.tx).sum())
    }
}
