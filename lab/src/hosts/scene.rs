//! Two network namespaces as hosts: a link between them, what `vmlan host-link` makes, FRR where it
//! is to speak, and a switch on each.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use vmlan_harness::{HarnessError, LanHost as _, NetNs, Process, Scratch, Stop, Switch};
use vmlan_harness::{frr, use_program, vmlan_program};

use super::Fabric;
use crate::failure::Failure;

/// Longest wait for what takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host.
pub(super) struct Host {
    // Dropped in this order.
    switch: Switch,
    /// The other one, on a plain bridge.
    _plain: Switch,
    followers: Vec<Process>,
    net: NetNs,
    dir: PathBuf,
}

/// Both hosts.
pub(super) struct Scene {
    pub(super) hosts: [Host; 2],
    stop: Stop,
    _dir: Scratch,
}

impl Scene {
    /// Sets all of it up.
    pub(super) fn new(fabric: Fabric) -> Result<Self, Failure> {
        let stop = Stop::on_signals()?;
        use_program(std::env::current_exe().map_err(HarnessError::io("find this program"))?);
        let dir = Scratch::new()?;
        let at = dir.path();
        // FRR's daemons are users of their own.
        fs::set_permissions(at, fs::Permissions::from_mode(0o711))
            .map_err(HarnessError::file(at))?;
        let [mut one, two] = NetNs::hosts(at)?;
        // Between the bridges without a tunnel.
        one.sh("ip link add v1 type veth peer name v2")?;
        one.give("v2", &two)?;
        let hosts = [Host::new(at, one, 1, fabric)?, Host::new(at, two, 2, fabric)?];
        Ok(Self { hosts, stop, _dir: dir })
    }

    /// Waits until `ready`.
    pub(super) fn wait(
        &self,
        what: &str,
        mut ready: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut failed = None;
        let done = self.stop.wait_for(what, PATIENCE, || {
            Ok(ready()
                .unwrap_or_else(|e| {
                    failed = Some(e);
                    true
                })
                .then_some(()))
        });
        failed.map_or(done.map_err(Failure::from), Err)
    }

    /// Sleeps, unless all is to end.
    pub(super) fn check(&self) -> Result<(), Failure> {
        Ok(self.stop.check()?)
    }
}

impl Host {
    fn new(at: &Path, mut net: NetNs, number: u8, fabric: Fabric) -> Result<Self, Failure> {
        let dir = at.join(format!("h{number}"));
        fs::create_dir(&dir).map_err(HarnessError::file(&dir))?;
        let (own, other) = (number, 3 - number);
        let vmlan = vmlan_program().display();
        let evpn = if fabric == Fabric::Evpn { " --evpn" } else { "" };
        let link = format!(
            "{vmlan} host-link lan0 --vni 100 --local 192.0.2.{own} --peer 192.0.2.{other}{evpn}"
        );
        net.sh(&format!("{link} --apply"))?;
        let mut followers = Vec::new();
        if fabric == Fabric::Evpn {
            let config = net.sh(&format!("{link} --frr"))?;
            followers = frr::start(&net, at, &number.to_string(), &config)?;
        }
        let port = |name: &str| format!("vhost-user:{}", dir.join(name).display());
        let ports = [
            format!("peer={}", port("peer")),
            format!("rr={}", port("rr")),
            // Its address is known, so it need not say a word.
            format!("silent={},mac=52:54:00:00:00:11,ips=10.0.0.17", port("silent")),
            format!("talker={}", port("talker")),
            "lan=tap:lan0".into(),
        ];
        let switch = Switch::start(&dir, Some(&net), &ports)?;
        if fabric == Fabric::Evpn {
            let api = dir.join("api.sock");
            let words = format!("{link} --follow --api {}", api.display());
            let argv = net.enter(&words.split(' ').collect::<Vec<_>>());
            followers.push(Process::start("host-link", &dir.join("follow.log"), &argv)?);
        }
        let plain = plain(&mut net, &dir.join("plain"), number)?;
        Ok(Self { switch, _plain: plain, followers, net, dir })
    }

    /// A socket of a guest.
    pub(super) fn socket(&self, port: &str) -> PathBuf {
        self.dir.join(port)
    }

    /// Runs a command on this host.
    pub(super) fn sh(&mut self, command: &str) -> Result<String, Failure> {
        for process in &mut self.followers {
            process.alive()?;
        }
        self.switch.alive()?;
        Ok(self.net.sh(command)?)
    }

    /// Frames that this host has sent to the other through the tunnel.
    pub(super) fn tunnelled(&mut self) -> Result<u64, Failure> {
        let said = self.sh("ip -j -s link show vx100")?;
        let read =
            || serde_json::from_str::<Value>(&said).ok()?[0]["stats64"]["tx"]["packets"].as_u64();
        read().ok_or_else(|| Failure::Failed(format!("ip -j -s link: {said}")))
    }

    /// Addresses of guests that this host knows on the other, and by which word of the kernel's:
    /// those that somebody told it, and those that it learned from frames.
    pub(super) fn learned(&mut self) -> Result<(usize, usize), Failure> {
        let said = self.sh("bridge fdb show dev vx100")?;
        let guests = said.lines().filter(|line| line.starts_with("52:54:") && line.contains("dst"));
        let (told, seen): (Vec<_>, Vec<_>) = guests.partition(|l| l.contains("extern_learn"));
        Ok((told.len(), seen.len()))
    }
}

/// A switch on a bridge that the other host's `vN` is on as well.
fn plain(net: &mut NetNs, dir: &Path, number: u8) -> Result<Switch, Failure> {
    fs::create_dir(dir).map_err(HarnessError::file(dir))?;
    net.sh(&format!(
        "ip link add plain type bridge && ip tuntap add plain0 mode tap && \
         for i in v{number} plain0; do ip link set $i master plain up || exit 1; done && \
         ip link set plain up"
    ))?;
    let ports =
        [format!("rr=vhost-user:{}", dir.join("rr").display()), "lan=tap:plain0,mtu=1450".into()];
    Ok(Switch::start(dir, Some(net), &ports)?)
}
