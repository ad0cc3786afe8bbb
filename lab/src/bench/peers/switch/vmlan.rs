//! The switch of this project: one worker, pinned to the switch's core.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlan_api::Client;
use vmlan_engine::stats::Stats;
use vmlan_harness::{HarnessError, Process, Result, Stop};

use super::super::guest::MAC;
use super::{Charged, Place, Rig, Switch, launch};
use crate::probe::limit::Ring;

const START: Duration = Duration::from_secs(10);

struct Vmlan {
    process: Process,
    api: PathBuf,
}

/// Every check that a port can have and that these frames pass: testpmd sends from 198.18.0.1 on
/// both ports.
fn policies(mac: &str) -> String {
    format!(
        ",macs={mac},ips=198.18.0.1,vlan=10,from_rate=400Gbit,to_rate=400Gbit,\
         from_frames=1G,to_frames=1G"
    )
}

/// vmlan with two vhost-user ports, with policies or without; it listens, the guest connects.
pub(super) fn rig(place: &Place<'_>, policed: bool, ring: Ring) -> Result<Rig> {
    let dir = place.scratch.fresh("vmlan")?;
    let keys = MAC.map(|mac| if policed { policies(mac) } else { String::new() });
    let switch = Vmlan::start(place, &dir, &keys)?;
    let guest = place.virtio_guest(&dir, false, ring)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

impl Vmlan {
    fn start(place: &Place<'_>, dir: &Path, keys: &[String; 2]) -> Result<Self> {
        let program =
            std::env::current_exe().map_err(HarnessError::io("find out which program this is"))?;
        let sockets = [dir.join("vu0"), dir.join("vu1")];
        let api = dir.join("api");
        let ports = ["a", "b"].iter().zip(&sockets).zip(keys);
        let ports = ports.map(|((name, path), keys)| {
            let path = path.display();
            format!("{name}=vhost-user:{path}{keys}")
        });
        let process = launch("vmlan", &program, place.there(), None)
            .args(["switch", "--workers", "1", "--api", &api.to_string_lossy()])
            .args(ports)
            .spawn(&place.scratch.log("vmlan"))?;
        let mut vmlan = Self { process, api };
        place.stop.wait_for("sockets of vmlan", START, || {
            vmlan.process.alive()?;
            Ok((vmlan.api.exists() && sockets.iter().all(|path| path.exists())).then_some(()))
        })?;
        Ok(vmlan)
    }
}

impl Switch for Vmlan {
    fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Charged::of(self.process.pid())
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64> {
        let stats: Stats = Client::new(&self.api)
            .get("/v1/stats")
            .map_err(|e| HarnessError::NoFigure(format!("the switch's statistics: {e}")))?;
        Ok(stats.ports.iter().map(|port| port.out.frames).sum())
    }
}
