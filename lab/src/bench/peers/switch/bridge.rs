//! The Linux bridge between two TAP devices, in a network namespace of our own.

use std::time::Duration;

use serde_json::Value;

use vmlan_harness::{
    HarnessError, LanHost, NetNs, Result, Scratch, Stop, usage::CpuTime, usage::ksoftirqd,
};

use super::super::guest::MAC;
use super::{Charged, Place, Rig, Switch};

const TAPS: [&str; 2] = ["vt0", "vt1"];

struct Bridge {
    netns: NetNs,
    guest: u32,
    ksoftirqd: Vec<u32>,
}

/// testpmd with two `net_tap` ports that hang on one bridge.
pub(super) fn rig(place: &Place<'_>) -> Result<Rig> {
    let mut netns = NetNs::new(&place.scratch.fresh("bridge")?, "bridge", 1)?;
    // A neighbour solicitation of the kernel would be bounced for ever and be counted as traffic. A
    // kernel built without IPv6 has no such file, and needs none.
    netns
        .sh("for s in all default; do echo 1 > /proc/sys/net/ipv6/conf/$s/disable_ipv6; done; :")?;
    netns.sh("ip link add br0 type bridge mcast_snooping 0")?;
    let vdevs = [0, 1].map(|i| format!("net_tap{i},iface={},mac={}", TAPS[i], MAC[i]));
    let mut guest = place.testpmd("guest", place.cores[0], Some(&netns), vdevs)?;
    guest.ready(place.stop)?;
    for (tap, address) in TAPS.iter().zip(["06:00:00:00:00:00", "06:00:00:00:00:01"]) {
        // A bridge keeps what is addressed to its own ports, so the devices may not have the
        // guest's addresses.
        netns.sh(&format!("ip link set {tap} address {address}"))?;
        netns.sh(&format!("ip link set {tap} master br0 up"))?;
    }
    netns.sh("ip link set br0 up")?;
    place.stop.sleep(Duration::from_millis(200))?;
    let switch = Bridge { netns, guest: guest.pid(), ksoftirqd: ksoftirqd() };
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

/// Whether TAP devices and bridges can be made here.
pub(super) fn check() -> Result<()> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err(HarnessError::missing("there is no /dev/net/tun", "modprobe tun"));
    }
    let scratch = Scratch::new()?;
    let made = NetNs::new(scratch.path(), "check", 1)?.sh("ip link add br0 type bridge");
    made.map(|_| ()).map_err(|_| HarnessError::missing("no bridge can be made", "modprobe bridge"))
}

impl Switch for Bridge {
    fn alive(&mut self) -> Result<()> {
        Ok(())
    }

    fn cpu(&self) -> Result<Charged> {
        let threads = self.ksoftirqd.iter().map(|&pid| CpuTime::of(pid).map(CpuTime::total));
        let own: Duration = threads.sum::<Result<_>>()?;
        let in_guest = CpuTime::of(self.guest)?.system.as_secs_f64();
        Ok(Charged { own: own.as_secs_f64(), in_guest })
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64> {
        TAPS.iter().map(|tap| self.frames_to_guest(tap)).sum()
    }
}

impl Bridge {
    fn frames_to_guest(&mut self, tap: &str) -> Result<u64> {
        let text = self.netns.sh(&format!("ip -s -j link show dev {tap}"))?;
        let links: Value = serde_json::from_str(&text).unwrap_or_default();
        links[0]["stats64"]["tx"]["packets"]
            .as_u64()
            .ok_or_else(|| HarnessError::NoFigure(format!("ip shows no statistics for {tap}")))
    }
}
