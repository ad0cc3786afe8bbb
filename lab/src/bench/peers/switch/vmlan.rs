//! The switch of this project: one worker, pinned to the switch's core.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use vmlan_harness::{HarnessError, Pin, Process, Result, Stop, output_of, usage::CpuTime};

use super::super::SWITCH_CORE;
use super::super::guest::MAC;
use super::{Bench, Charged, Rig, Switch, launch};

const START: Duration = Duration::from_secs(10);

struct Vmlan {
    process: Process,
    program: String,
    api: String,
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
pub fn rig(bench: &Bench<'_>, frame_bytes: u32, policed: bool) -> Result<Rig> {
    let dir = bench.scratch.fresh("vmlan")?;
    let keys = MAC.map(|mac| if policed { policies(mac) } else { String::new() });
    let switch = Vmlan::start(bench, &dir, &keys)?;
    let guest = bench.virtio_guest(&dir, false, frame_bytes)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

/// The program named on the command line, or the one beside this program.
///
/// # Errors
/// [`HarnessError::Missing`] when there is none.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    let beside = || std::env::current_exe().ok().map(|exe| exe.with_file_name("vmlan"));
    let path = named.map(Path::to_owned).or_else(beside).unwrap_or_else(|| PathBuf::from("vmlan"));
    if path.is_file() {
        return Ok(path);
    }
    let fix = "cargo build --release -p vmlan, or name it with --vmlan PATH";
    Err(HarnessError::missing(format!("there is no {}", path.display()), fix))
}

impl Vmlan {
    fn start(bench: &Bench<'_>, dir: &Path, keys: &[String; 2]) -> Result<Self> {
        let program = program(bench.args.vmlan.as_deref())?;
        let sockets = [dir.join("vu0"), dir.join("vu1")];
        let api = dir.join("api").to_string_lossy().into_owned();
        let ports = ["a", "b"].iter().zip(&sockets).zip(keys);
        let ports = ports.map(|((name, path), keys)| {
            let path = path.display();
            format!("{name}=vhost-user:{path}{keys}")
        });
        let process = launch("vmlan", &program, Pin::Core(SWITCH_CORE), None)
            .args(["switch", "--workers", "1", "--api", &api])
            .args(&bench.args.vmlan_arg)
            .args(ports)
            .spawn(&bench.scratch.log("vmlan"))?;
        let program = program.to_string_lossy().into_owned();
        let mut vmlan = Self { process, program, api };
        bench.stop.wait_for("sockets of vmlan", START, || {
            vmlan.process.alive()?;
            let api = Path::new(&vmlan.api);
            Ok((api.exists() && sockets.iter().all(|path| path.exists())).then_some(()))
        })?;
        Ok(vmlan)
    }
}

impl Switch for Vmlan {
    fn alive(&mut self) -> Result<()> {
        self.process.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Ok(Charged { own: CpuTime::of(self.process.pid())?.total().as_secs_f64(), in_guest: 0.0 })
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64> {
        let text = output_of(&self.program, &["stats", "--json", "--api", &self.api])?;
        delivered(&text)
            .ok_or_else(|| HarnessError::NoFigure("vmlan stats --json cannot be read".into()))
    }
}

fn delivered(text: &str) -> Option<u64> {
    let stats: Value = serde_json::from_str(text).ok()?;
    stats["ports"].as_array()?.iter().map(|port| port["out"]["frames"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_up() {
        let port = |out: u64| format!(r#"{{"in":{{"frames":7}},"out":{{"frames":{out}}}}}"#);
        let text = format!(r#"{{"ports":[{},{}]}}"#, port(40), port(2));
        assert_eq!(delivered(&text), Some(42));
        assert_eq!(delivered(r#"{"ports":[{"in":{}}]}"#), None);
    }
}
