//! DPDK's vhost library alone: testpmd in io mode between two `net_vhost` ports.

use vmlan_harness::{Result, Stop};

use super::super::testpmd::Testpmd;
use super::{Charged, Place, Rig, Switch};
use crate::probe::limit::Ring;

struct Vhost(Testpmd);

/// testpmd on both sides of the sockets; the vhost side listens.
pub(super) fn rig(place: &Place<'_>) -> Result<Rig> {
    let dir = place.scratch.fresh("vhost")?;
    let vdevs =
        [0, 1].map(|i| format!("net_vhost{i},iface={}", dir.join(format!("vu{i}")).display()));
    let mut switch = place.testpmd("vhost", place.cores[1], None, vdevs)?;
    switch.ready(place.stop)?;
    let guest = place.virtio_guest(&dir, false, Ring::Split)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(Vhost(switch)) })
}

impl Switch for Vhost {
    fn alive(&mut self) -> Result<()> {
        self.0.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Charged::of(self.0.pid())
    }

    fn delivered(&mut self, stop: &Stop) -> Result<u64> {
        Ok(self.0.stats(stop)?.iter().map(|port| port.tx).sum())
    }

    fn pause(&mut self, stop: &Stop) -> Result<()> {
        self.0.halt(stop)
    }

    fn resume(&mut self) -> Result<()> {
        self.0.forward()
    }
}
