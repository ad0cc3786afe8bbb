//! The Linux bridge between two TAP devices, in a network namespace of our own.

use std::time::Duration;

use serde_json::Value;

use super::super::guest::MAC;
use super::super::netns::Netns;
use super::super::proc::{Cpu, ksoftirqd};
use super::super::stop::Stop;
use super::super::{Error, GUEST_CORE};
use super::{Bench, Charged, Rig, Switch};

const TAPS: [&str; 2] = ["vt0", "vt1"];

struct Bridge {
    netns: Netns,
    guest: u32,
    ksoftirqd: Vec<u32>,
}

/// testpmd with two `net_tap` ports that hang on one bridge.
pub fn rig(bench: &Bench<'_>, frame_bytes: u32) -> Result<Rig, Error> {
    let netns = Netns::new()?;
    netns.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])?;
    let vdevs = [0, 1].map(|i| format!("net_tap{i},iface={},mac={}", TAPS[i], MAC[i]));
    let path = Some(netns.path());
    let mut guest = bench.testpmd("guest", GUEST_CORE, path, vdevs, frame_bytes)?;
    guest.ready(bench.stop)?;
    for (tap, address) in TAPS.iter().zip(["06:00:00:00:00:00", "06:00:00:00:00:01"]) {
        // A bridge keeps what is addressed to its own ports, so the devices may not have the guest's addresses.
        netns.ip(&["link", "set", tap, "address", address])?;
        netns.ip(&["link", "set", tap, "master", "br0", "up"])?;
    }
    netns.ip(&["link", "set", "br0", "up"])?;
    bench.stop.sleep(Duration::from_millis(200))?;
    let switch = Bridge { netns, guest: guest.pid(), ksoftirqd: ksoftirqd() };
    Ok(Rig { guest: Box::new(guest), switch: Box::new(switch) })
}

/// Whether TAP devices and bridges can be made here.
pub fn check() -> Result<(), Error> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err(Error::missing("there is no /dev/net/tun", "modprobe tun"));
    }
    let made = Netns::new()?.ip(&["link", "add", "br0", "type", "bridge"]);
    made.map(|_| ()).map_err(|_| Error::missing("no bridge can be made", "modprobe bridge"))
}

impl Switch for Bridge {
    fn alive(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn cpu(&self) -> Result<Charged, Error> {
        let threads = self.ksoftirqd.iter().map(|&pid| Cpu::of(pid).map(Cpu::total));
        Ok(Charged { own: threads.sum::<Result<_, _>>()?, in_guest: Cpu::of(self.guest)?.system })
    }

    fn delivered(&mut self, _: &Stop) -> Result<u64, Error> {
        TAPS.iter().map(|tap| self.to_guest(tap)).sum()
    }
}

impl Bridge {
    fn to_guest(&self, tap: &str) -> Result<u64, Error> {
        let text = self.netns.ip(&["-s", "-j", "link", "show", "dev", tap])?;
        let links: Value = serde_json::from_str(&text).unwrap_or_default();
        links[0]["stats64"]["tx"]["packets"]
            .as_u64()
            .ok_or_else(|| Error::Failed(format!("ip shows no statistics for {tap}")))
    }
}
