//! Open vSwitch with DPDK: one polling thread on the switch's core, a database of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use vmlan_harness::{HarnessError, NetNs, Pin, Process, Result, Stop, output_of};

use super::super::hugepages::node;
use super::{Charged, Place, Rig, Switch, launch, tool};
use crate::probe::limit::Ring;

/// Debian keeps both builds; `ovs-vswitchd` may be the one without DPDK.
const DEBIAN: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "usr/share/openvswitch/vswitch.ovsschema";
const START: Duration = Duration::from_secs(10);
/// The programs that are needed beside the switch.
const TOOLS: [&str; 4] = ["ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-appctl"];

/// One version of it.
pub(super) struct Build {
    /// Where scripts/setup.sh has unpacked it, with programs below `bin`; `None`: installed.
    unpacked: Option<PathBuf>,
}

impl Build {
    pub(super) fn installed() -> Self {
        Self { unpacked: None }
    }

    /// Into the cache, as scripts/setup.sh knows it.
    pub(super) fn unpacked() -> Self {
        let var = |name| std::env::var_os(name).map(PathBuf::from);
        let cache = var("VMLAN_CACHE")
            .or_else(|| Some(var("XDG_CACHE_HOME")?.join("vmlan")))
            .or_else(|| Some(var("HOME")?.join(".cache/vmlan")));
        Self { unpacked: Some(cache.unwrap_or_default().join("peers")) }
    }

    /// # Errors
    /// [`HarnessError::Missing`] for the first thing that is not there.
    pub(super) fn check(&self) -> Result<()> {
        TOOLS.iter().try_for_each(|name| self.tool(name).map(|_| ()))?;
        self.vswitchd().map(|_| ())
    }

    fn tool(&self, name: &str) -> Result<PathBuf> {
        let Some(dir) = &self.unpacked else { return tool(name) };
        let found = Some(dir.join("bin").join(name)).filter(|path| path.is_file());
        found.ok_or_else(|| {
            let what = format!("there is no {} of Debian 13", dir.display());
            HarnessError::missing(what, "run scripts/setup.sh peers")
        })
    }

    /// `ovs-vswitchd` with DPDK in it.
    fn vswitchd(&self) -> Result<PathBuf> {
        let debian = PathBuf::from(DEBIAN);
        if self.unpacked.is_some() {
            return self.tool("ovs-vswitchd-dpdk");
        }
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

    fn run(&self, name: &str, args: &[&str]) -> Result<String> {
        output_of(&self.tool(name)?.to_string_lossy(), args)
    }

    fn vsctl(&self, db: &str, args: &[&str]) -> Result<()> {
        let db = format!("--db=unix:{db}");
        self.run("ovs-vsctl", &[&[db.as_str(), "--timeout=20"], args].concat()).map(|_| ())
    }

    /// Versions of OVS and of the DPDK inside it, in one line.
    pub(super) fn version(&self) -> Result<String> {
        let text = output_of(&self.vswitchd()?.to_string_lossy(), &["--version"])?;
        Ok(text.lines().map(str::trim).collect::<Vec<_>>().join(", "))
    }
}

struct Ovs {
    build: Build,
    vswitchd: Process,
    _database: Process,
    control: String,
    /// Its TAP devices have names that another one would want as well.
    _netns: NetNs,
}

/// OVS with two vhost-user ports; it connects, the guest listens.
pub(super) fn rig(place: &Place<'_>, build: Build, ring: Ring) -> Result<Rig> {
    let dir = place.scratch.fresh("ovs")?;
    let switch = Ovs::start(place, &dir, build)?;
    let guest = place.virtio_guest(&dir, true, ring)?;
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

impl Ovs {
    fn start(place: &Place<'_>, dir: &Path, build: Build) -> Result<Self> {
        let text = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (conf, db, control) = (text("conf.db"), text("db.sock"), text("vs.ctl"));
        let root = build.unpacked.clone().unwrap_or_else(|| PathBuf::from("/"));
        build.run("ovsdb-tool", &["create", &conf, &root.join(SCHEMA).to_string_lossy()])?;
        let database = launch("ovsdb-server", &build.tool("ovsdb-server")?, place.here(), None)
            .args([conf, format!("--remote=punix:{db}"), "--unixctl=".to_owned() + &text("db.ctl")])
            .env("OVS_RUNDIR", Some(dir.as_os_str()))
            .spawn(&place.scratch.log("ovsdb-server"))?;
        let exists = |path: &str| Ok(Path::new(path).exists().then_some(()));
        place.stop.wait_for("socket of ovsdb-server", START, || exists(&db))?;
        configure(&build, &db, place.cores)?;
        // Not pinned from outside: it places its threads itself by the two masks, as in production.
        let netns = NetNs::new(&place.scratch.fresh("netns")?, "ovs", 1)?;
        let vswitchd = launch("ovs-vswitchd", &build.vswitchd()?, Pin::Free, Some(&netns))
            .args([format!("unix:{db}"), format!("--unixctl={control}")])
            .env("OVS_RUNDIR", Some(dir.as_os_str()))
            .spawn(&place.scratch.log("ovs-vswitchd"))?;
        let mut ovs = Self { build, vswitchd, _database: database, control, _netns: netns };
        ovs.add_ports(&db, dir)?;
        Ok(ovs)
    }

    fn add_ports(&mut self, db: &str, dir: &Path) -> Result<()> {
        let vsctl = |args: &[&str]| self.build.vsctl(db, args);
        vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        for port in ["vu0", "vu1"] {
            let path = format!("options:vhost-server-path={}", dir.join(port).display());
            let kind = "type=dpdkvhostuserclient";
            vsctl(&["add-port", "br0", port, "--", "set", "Interface", port, kind, &path])?;
        }
        self.vswitchd.alive()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.vswitchd.pid()).ok().and_then(Pid::from_raw);
        let gone = || HarnessError::NoFigure("ovs-vswitchd has no process".into());
        kill_process(pid.ok_or_else(gone)?, signal)
            .map_err(|e| HarnessError::io("stop ovs-vswitchd for a while")(e.into()))
    }
}

fn configure(build: &Build, db: &str, [here, there]: [usize; 2]) -> Result<()> {
    build.vsctl(db, &["--no-wait", "init"])?;
    let pmd = format!("other_config:pmd-cpu-mask={}", mask(there));
    let main = format!("other_config:dpdk-lcore-mask={}", mask(here));
    let set = ["--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true"];
    // DPDK looks for its driver where it would be installed.
    let driver = build.unpacked.as_ref().map(|dir| dir.join("mempool.so"));
    let driver = driver.map_or_else(String::new, |file| format!(" -d {}", file.display()));
    let extra = format!("other_config:dpdk-extra=\"--in-memory{driver}\"");
    // A vhost port's buffers are on the node of the first core, where the guest's memory is, too.
    let memory = format!("other_config:dpdk-socket-mem={}", on_node(node(here), 768));
    build.vsctl(db, &[&set[..], &[&memory, &extra], &[&pmd, &main]].concat())
}

/// A core as a mask of any length.
fn mask(core: usize) -> String {
    format!("0x{:x}{}", 1 << (core % 4), "0".repeat(core / 4))
}

/// So many MiB of one NUMA node, as a list of all up to that.
fn on_node(node: usize, mib: u32) -> String {
    format!("{}{mib}", "0,".repeat(node))
}

impl Switch for Ovs {
    fn alive(&mut self) -> Result<()> {
        self.vswitchd.alive()
    }

    fn cpu(&self) -> Result<Charged> {
        Charged::of(self.vswitchd.pid())
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64> {
        let ask = ["-t", &self.control, "dpif-netdev/pmd-stats-show"];
        let text = self.build.run("ovs-appctl", &ask)?;
        received(&text)
            .ok_or_else(|| HarnessError::NoFigure("pmd-stats-show cannot be read".into()))
    }

    fn pause(&mut self, _: &Stop) -> Result<()> {
        self.signal(Signal::STOP)
    }

    fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
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

    #[test]
    fn cores_and_nodes_of_large_machines_have_words() {
        let masks = [0, 1, 6, 64, 129].map(mask);
        let zeros = "0".repeat(16);
        assert_eq!(masks[..3], ["0x1", "0x2", "0x40"]);
        assert_eq!(masks[3..], [format!("0x1{zeros}"), format!("0x2{zeros}{zeros}")]);
        assert_eq!([on_node(0, 768), on_node(2, 768)], ["768", "0,0,768"]);
    }

    #[test]
    fn a_version_that_is_not_there_is_named() {
        let nowhere = Build { unpacked: Some("/nonexistent/peers".into()) };
        let why = nowhere.check().unwrap_err().chain();
        assert!(why.contains("/nonexistent/peers") && why.contains("setup.sh peers"), "{why}");
    }
}
