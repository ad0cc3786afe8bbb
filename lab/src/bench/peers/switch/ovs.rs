//! Open vSwitch with DPDK: one polling thread on the switch's core, a database of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vmlan_harness::{HarnessError, Pin, Process, Result, Stop, output_of, usage::CpuTime};

use super::super::{GUEST_CORE, SWITCH_CORE};
use super::{Bench, Charged, Rig, Switch, launch, tool};

/// Debian keeps both builds; `ovs-vswitchd` may be the one without DPDK.
const DEBIAN: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const START: Duration = Duration::from_secs(10);

struct Ovs {
    vswitchd: Process,
    _database: Process,
    control: String,
}

/// OVS with two vhost-user ports; it connects, the guest listens.
pub fn rig(bench: &Bench<'_>, frame_bytes: u32) -> Result<Rig> {
    let dir = bench.scratch.fresh("ovs")?;
    let switch = Ovs::start(bench, &dir)?;
    let guest = bench.virtio_guest(&dir, true, frame_bytes)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

/// `ovs-vswitchd` with DPDK in it.
pub fn program() -> Result<PathBuf> {
    let debian = PathBuf::from(DEBIAN);
    if debian.is_file() {
        return Ok(debian);
    }
    let fix = "apt-get install -y openvswitch-switch-dpdk";
    let other =
        tool("ovs-vswitchd").map_err(|_| HarnessError::missing("OVS is not installed", fix))?;
    let version = output_of(&other.to_string_lossy(), &["--version"])?;
    if version.contains("DPDK") {
        return Ok(other);
    }
    Err(HarnessError::missing(format!("{} has no DPDK in it", other.display()), fix))
}

/// Versions of OVS and of the DPDK inside it, in one line.
///
/// # Errors
/// When it is not installed.
pub fn version() -> Result<String> {
    let text = output_of(&program()?.to_string_lossy(), &["--version"])?;
    Ok(text.lines().map(str::trim).collect::<Vec<_>>().join(", "))
}

impl Ovs {
    fn start(bench: &Bench<'_>, dir: &Path) -> Result<Self> {
        let text = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (conf, db, control) = (text("conf.db"), text("db.sock"), text("vs.ctl"));
        output_of("ovsdb-tool", &["create", &conf, SCHEMA])?;
        let database = launch("ovsdb-server", &tool("ovsdb-server")?, Pin::Core(GUEST_CORE), None)
            .args([conf, format!("--remote=punix:{db}"), "--unixctl=".to_owned() + &text("db.ctl")])
            .env("OVS_RUNDIR", Some(dir.as_os_str()))
            .spawn(&bench.scratch.log("ovsdb-server"))?;
        let exists = |path: &str| Ok(Path::new(path).exists().then_some(()));
        bench.stop.wait_for("socket of ovsdb-server", START, || exists(&db))?;
        configure(&db)?;
        // Not pinned from outside: it places its threads itself by the two masks, as in production.
        let vswitchd = launch("ovs-vswitchd", &program()?, Pin::Free, None)
            .args([format!("unix:{db}"), format!("--unixctl={control}")])
            .env("OVS_RUNDIR", Some(dir.as_os_str()))
            .spawn(&bench.scratch.log("ovs-vswitchd"))?;
        let mut ovs = Self { vswitchd, _database: database, control };
        ovs.add_ports(&db, dir)?;
        Ok(ovs)
    }

    fn add_ports(&mut self, db: &str, dir: &Path) -> Result<()> {
        vsctl(db, &["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        for port in ["vu0", "vu1"] {
            let path = format!("options:vhost-server-path={}", dir.join(port).display());
            let kind = "type=dpdkvhostuserclient";
            vsctl(db, &["add-port", "br0", port, "--", "set", "Interface", port, kind, &path])?;
        }
        self.vswitchd.alive()
    }
}

fn configure(db: &str) -> Result<()> {
    vsctl(db, &["--no-wait", "init"])?;
    let pmd = format!("other_config:pmd-cpu-mask={:#x}", 1 << SWITCH_CORE);
    let main = format!("other_config:dpdk-lcore-mask={:#x}", 1 << GUEST_CORE);
    let set = ["--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true"];
    let memory = ["other_config:dpdk-socket-mem=512", "other_config:dpdk-extra=--in-memory"];
    vsctl(db, &[&set[..], &memory, &[&pmd, &main]].concat())
}

fn vsctl(db: &str, args: &[&str]) -> Result<()> {
    let db = format!("--db=unix:{db}");
    output_of("ovs-vsctl", &[&[db.as_str(), "--timeout=20"], args].concat()).map(|_| ())
}

impl Switch for Ovs {
    fn alive(&mut self) -> Result<()> {
        self.vswitchd.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Ok(Charged { own: CpuTime::of(self.vswitchd.pid())?.total().as_secs_f64(), in_guest: 0.0 })
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64> {
        let text = output_of("ovs-appctl", &["-t", &self.control, "dpif-netdev/pmd-stats-show"])?;
        received(&text)
            .ok_or_else(|| HarnessError::NoFigure("pmd-stats-show cannot be read".into()))
    }
}

fn received(text: &str) -> Option<u64> {
    let mut lines =
        text.lines().filter_map(|line| line.trim().strip_prefix("packets received:")).peekable();
    lines.peek()?;
    lines.map(|number| number.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up() {
        let text = "pmd thread numa_id 0 core_id 1:\n  packets received: 40\n  emc hits: 1\n\
                    main thread:\n  packets received: 2\n";
        assert_eq!(received(text), Some(42));
        assert_eq!(received("no such command"), None);
    }
}
