//! What a guest's own tools say about its NIC, and what the LAN looks like to it.

use crate::{Guest, HarnessError, LanHost, NetNs, Result, linux_nic::Count, numbered::STALL};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The five tests of `ethtool -t eth0 offline`, by their first word, and the driver's verdict: 0 is
/// a pass.
///
/// # Errors
/// [`HarnessError::Garbled`] if ethtool does not name five tests.
pub fn self_test(guest: &mut Guest) -> Result<BTreeMap<String, u64>> {
    // Exit code 1 is a failed test, not a failed run.
    let said = guest.run("ethtool -t eth0 offline", Duration::from_secs(300))?;
    let verdict = |line: &str| {
        let (name, code) = line.split_once("offline)")?;
        Some((name.split_whitespace().next()?.to_lowercase(), code.trim().parse().ok()?))
    };
    let tests: BTreeMap<_, _> = said.text.lines().filter_map(verdict).collect();
    if tests.len() == 5 {
        return Ok(tests);
    }
    Err(HarnessError::Garbled { what: "ethtool -t eth0 offline".into(), heard: said.text })
}

/// `ethtool -S eth0`.
pub fn statistics(guest: &mut Guest) -> Result<BTreeMap<String, u64>> {
    let text = guest.sh("ethtool -S eth0")?;
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(pair).collect())
}

/// By how much a count grew while `during` ran.
///
/// # Errors
/// Those of `during`; [`HarnessError::Garbled`] if there is no such count.
pub fn grown(guest: &mut Guest, count: Count, during: impl FnMut() -> Result<()>) -> Result<u64> {
    grown_to(guest, count, 0, during)
}

/// The same, of a count that is to grow by so much at `least`: a busy guest gets time for it. What
/// is flooded may be dropped on a busy machine, so it is tried again.
pub fn grown_to(
    guest: &mut Guest,
    count: Count,
    least: u64,
    mut during: impl FnMut() -> Result<()>,
) -> Result<u64> {
    const TRIES: u32 = 6;
    let mut grown = 0;
    for _ in 0..TRIES {
        let before = count.read(guest)?;
        during()?;
        let end = Instant::now() + STALL / TRIES;
        while Instant::now() < end {
            // The worker may still be on its way.
            std::thread::sleep(Duration::from_millis(200));
            grown = count.read(guest)?.saturating_sub(before);
            if grown >= least {
                return Ok(grown);
            }
        }
    }
    Ok(grown)
}

/// The same, of a count that is to grow by no more than `most`: the lowest of several tries, as
/// others may speak meanwhile, and a guest with little of the machine takes long for each.
pub fn hardly_grown(
    guest: &mut Guest,
    count: Count,
    most: u64,
    mut during: impl FnMut() -> Result<()>,
) -> Result<u64> {
    let mut lowest = u64::MAX;
    for _ in 0..10 {
        lowest = lowest.min(grown(guest, count, &mut during)?);
        if lowest <= most {
            break;
        }
    }
    Ok(lowest)
}

/// [`pings`], of which all are to be answered, the last one within half a minute, as a guest may
/// have little of the machine; the best of a few tries.
pub fn all_pings(from: &mut dyn LanHost, to: &str, count: u32) -> Result<u32> {
    let mut best = 0;
    for _ in 0..3 {
        best = best.max(answered(from, to, count, 30)?);
        if best == count {
            break;
        }
    }
    Ok(best)
}

/// `count` echo requests, 20 ms apart, to whoever listens there; how many were answered, the last
/// one within a second.
///
/// # Errors
/// [`HarnessError::Garbled`] if ping does not say.
pub fn pings(from: &mut dyn LanHost, to: &str, count: u32) -> Result<u32> {
    answered(from, to, count, 1)
}

/// As [`pings`], the last one within `wait` seconds.
fn answered(from: &mut dyn LanHost, to: &str, count: u32, wait: u32) -> Result<u32> {
    let command = format!("busybox ping -c {count} -i 0.02 -W {wait} {to}");
    let said = from.run(&command, Duration::from_secs(240))?;
    let line = said.text.lines().find(|line| line.contains("packets received"));
    // "10 packets transmitted, 9 packets received, 10% packet loss"
    let received = line.and_then(|line| line.split(", ").nth(1)?.split(' ').next()?.parse().ok());
    received.ok_or(HarnessError::Garbled { what: command, heard: said.text })
}

/// `count` datagrams from the host, 5 ms apart, to whoever it concerns: no answer is waited for.
pub fn calls(from: &mut NetNs, to: &str, count: u32) -> Result<()> {
    let send = format!("echo > /dev/udp/{to}/9; sleep 0.005");
    from.sh(&format!("bash -c 'for n in $(seq {count}); do {send}; done'")).map(drop)
}

/// Waits until the guest's carrier is `up`; returns how long that took.
///
/// # Errors
/// [`HarnessError::Deadline`] after 180 s.
pub fn carrier(guest: &mut Guest, up: bool) -> Result<Duration> {
    let since = Instant::now();
    let want = if up { "1" } else { "0" };
    loop {
        let now = guest.sh("cat /sys/class/net/eth0/carrier")?;
        if now.trim() == want {
            return Ok(since.elapsed());
        }
        if since.elapsed() > Duration::from_secs(180) {
            let heard = guest.sh("dmesg | tail -n 5")?;
            let what = format!("carrier of {} to be {want}", guest.name());
            return Err(HarnessError::Deadline { what, seconds: 180, heard });
        }
    }
}

/// An interface for VLAN `id` on top of `interface`, with the host's last number in
/// 10.78.`id`.0/24.
pub fn vlan(host: &mut dyn LanHost, interface: &str, id: u16) -> Result<()> {
    let number = host.ip().rsplit('.').next().unwrap_or_default().to_owned();
    host.sh(&format!(
        "/bin/ip link add link {interface} name lan{id} type vlan id {id} &&
             ip addr add 10.78.{id}.{number}/24 dev lan{id} && ip link set lan{id} up"
    ))
    .map(drop)
}

/// Tells `host` for good where on its `interface` the address of `other` is, so that it never
/// asks.
pub fn neighbour(
    host: &mut dyn LanHost,
    interface: &str,
    other: &mut dyn LanHost,
    others: &str,
) -> Result<()> {
    let (ip, mac) = (other.ip().to_owned(), mac(other, others)?);
    let command = format!("/bin/ip neigh replace {ip} lladdr {mac} dev {interface} nud permanent");
    host.sh(&command).map(drop)
}

/// Sets the MTU of an interface.
pub fn mtu(host: &mut dyn LanHost, interface: &str, mtu: u32) -> Result<()> {
    host.sh(&format!("ip link set {interface} mtu {mtu}")).map(drop)
}

/// Starts the guest's kernel packet generator: UDP of `size` bytes (without the check sequence) to
/// `mac`, one each `delay`, until [`stop_generator`].
pub fn generate(from: &mut Guest, mac: &str, ip: &str, size: u32, delay: Duration) -> Result<()> {
    let delay = delay.as_nanos();
    from.sh(&format!(
        "cd /proc/net/pktgen && echo 'rem_device_all' > kpktgend_0 && echo 'add_device eth0' > \
            kpktgend_0 &&
         for set in 'count 0' 'pkt_size {size}' 'delay {delay}' 'dst {ip}' 'dst_mac {mac}'; do
           echo \"$set\" > eth0 || exit 1
         done"
    ))?;
    from.sh("echo start > /proc/net/pktgen/pgctrl 2> /dev/null &").map(drop)
}

/// Stops it.
pub fn stop_generator(from: &mut Guest) -> Result<()> {
    from.sh("echo stop > /proc/net/pktgen/pgctrl").map(drop)
}

/// Unloads a NIC's `driver` and loads it with `options`, and gives the interface its address.
pub fn reload(guest: &mut Guest, driver: &str, options: &str) -> Result<()> {
    let load = format!("rmmod {driver} && insmod /lib/m/{driver} {options} && ip link set eth0 up");
    let ip = guest.ip().to_owned();
    guest.sh(&format!("{load} && ip addr add {ip}/24 dev eth0")).map(drop)
}

/// The address of an interface.
pub fn mac(host: &mut dyn LanHost, interface: &str) -> Result<String> {
    let said =
        host.sh(&format!("/bin/ip -o link show {interface} | sed 's/.*ether //; s/ .*//'"))?;
    Ok(said.trim().to_owned())
}

/// How often the guest's NIC has interrupted it, from `/proc/interrupts`.
pub fn interrupts(guest: &mut Guest) -> Result<u64> {
    let text = guest.sh("grep eth0 /proc/interrupts || true")?;
    let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    Ok(text.lines().filter_map(count).sum())
}
