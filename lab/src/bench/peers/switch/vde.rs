//! `vde_switch`, with a loop of our own as the guest: no DPDK driver speaks its protocol.

use std::time::Duration;

use vmlan_harness::{HarnessError, Process, Result, Stop};

use super::super::vde_loop::VdeLoop;
use super::{Charged, Place, Rig, Switch, launch, tool};

const LIMIT: Duration = Duration::from_secs(5);

struct Vde(Process);

/// vde_switch and [`VdeLoop`].
pub(super) fn rig(place: &Place<'_>) -> Result<Rig> {
    let dir = place.scratch.fresh("vde")?;
    let sockets = dir.join("switch");
    let mut process = launch("vde_switch", &tool("vde_switch")?, place.there(), None)
        .args(["-s".as_ref(), sockets.as_os_str()])
        .spawn(&place.scratch.log("vde_switch"))?;
    let control = sockets.join("ctl");
    place.stop.wait_for("socket of vde_switch", LIMIT, || {
        process.alive()?;
        Ok(control.exists().then_some(()))
    })?;
    let guest = VdeLoop::connect(&control, &dir, place.cores[0])?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(Vde(process)) })
}

impl Switch for Vde {
    fn alive(&mut self) -> Result<()> {
        self.0.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Charged::of(self.0.pid())
    }

    fn delivered(&mut self, stop: &Stop) -> Result<u64> {
        self.0.say("port/allprint")?;
        let answered = |text: &str| text.contains("1000 Success");
        let text = self.0.expect(stop, "port list", LIMIT, answered)?;
        delivered(&text).ok_or_else(|| HarnessError::NoFigure("vde_switch counts no frames".into()))
    }
}

// OUT is towards the guest: `OUT: pkts     109576          bytes              6574560`.
fn delivered(text: &str) -> Option<u64> {
    let mut ports =
        text.lines().filter_map(|line| line.trim().strip_prefix("OUT: pkts")).peekable();
    ports.peek()?;
    ports.map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_up() {
        let text = "Port 0001 untagged_vlan=0000 ACTIVE\n IN:  pkts     109539          bytes  \
            6572340\n OUT: pkts         40          bytes              2400\n OUT: pkts  2  bytes \
            120\n";
        assert_eq!(delivered(text), Some(42));
        assert_eq!(delivered("1000 Success"), None);
    }
}
