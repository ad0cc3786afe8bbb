//! The loads: kernel pktgen out of the guest, iperf3 both ways.

use std::time::{Duration, Instant};

use serde::Serialize;
use vmlan_harness::{HarnessError, LanHost};

use crate::bench::linux_guest::Lab;

/// What one load has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// The load.
    pub load: &'static str,
    /// Frames per second: at the host's TAP for pktgen; TCP segments as the guest's NIC counts them
    /// otherwise.
    pub frames_per_s: f64,
    /// Gbit/s: Ethernet frames for pktgen, payload for iperf3.
    pub gbit_per_s: f64,
    /// Interrupts that the guest's kernel counted, for each 1,000 frames.
    pub interrupts_per_k: f64,
    /// Register accesses that were messages to the switch, for each 1,000 frames; `None`: QEMU's
    /// own model does not tell.
    pub accesses_per_k: Option<f64>,
    /// CPU seconds per second of QEMU (with TCG the guest's own work is in it).
    pub cpu_qemu: f64,
    /// Of the switch.
    pub cpu_switch: f64,
}

const PKTGEN: &str = r#"
pg() { echo "$2" > /proc/net/pktgen/$1 || exit 1; }
pg kpktgend_0 rem_device_all; pg kpktgend_0 'add_device eth0'
pg eth0 'count 0'; pg eth0 'delay 0'; pg eth0 'clone_skb 1000'; pg eth0 'pkt_size SIZE'
pg eth0 'dst_mac MAC'; pg eth0 'dst 10.77.0.1'
timeout -s INT SECONDS sh -c 'echo start > /proc/net/pktgen/pgctrl'
grep -A1 '^Result' /proc/net/pktgen/eth0
"#;

/// Every load, one after the other.
///
/// # Errors
/// What the guest did not do.
pub fn all(lab: &mut Lab, seconds: u32) -> Result<Vec<Figures>, HarnessError> {
    Ok(vec![
        pktgen(lab, "pktgen 60 B", 60, seconds)?,
        pktgen(lab, "pktgen 1500 B", 1500, seconds)?,
        iperf(lab, "TCP guest to host", "", seconds)?,
        iperf(lab, "TCP host to guest", "-R", seconds)?,
    ])
}

/// Counters at one moment.
struct Look {
    at: Instant,
    host: crate::bench::linux_guest::Host,
    interrupts: u64,
    guest_frames: u64,
}

fn look(lab: &mut Lab) -> Result<Look, HarnessError> {
    let said = lab.guest.sh(
        "awk '/eth0/{n+=$2} END{print n+0}' /proc/interrupts; cd /sys/class/net/eth0/statistics; \
            cat rx_packets tx_packets",
    )?;
    let mut numbers = said.split_whitespace().map(|n| n.parse::<u64>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    let interrupts = next();
    let guest_frames = next() + next();
    Ok(Look { at: Instant::now(), host: lab.look()?, interrupts, guest_frames })
}

fn pktgen(
    lab: &mut Lab,
    load: &'static str,
    size: u32,
    seconds: u32,
) -> Result<Figures, HarnessError> {
    let link = crate::bench::linux_guest::link(&mut lab.host)?;
    let mac = link["address"].as_str().unwrap_or("ff:ff:ff:ff:ff:ff");
    let script = PKTGEN
        .replace("SIZE", &size.to_string())
        .replace("MAC", mac)
        .replace("SECONDS", &seconds.to_string());
    let before = look(lab)?;
    let said = lab.guest.run(&script, Duration::from_secs(u64::from(seconds) + 20))?;
    let after = look(lab)?;
    // The time is pktgen's own: looking takes a good part of a second under TCG.
    let micros = said
        .text
        .split_once("OK: ")
        .and_then(|(_, rest)| rest.split('(').next()?.parse::<f64>().ok())
        .ok_or_else(|| HarnessError::Failed { what: "pktgen".into(), heard: said.text.clone() })?;
    let frames = after.host.frames - before.host.frames;
    let rate = frames as f64 / (micros / 1e6);
    let gbit = rate * f64::from(size) * 8.0 / 1e9;
    Ok(figures(load, &before, &after, frames, rate, gbit, micros / 1e6))
}

fn iperf(
    lab: &mut Lab,
    load: &'static str,
    option: &str,
    seconds: u32,
) -> Result<Figures, HarnessError> {
    let command = format!("iperf3 -c 10.77.0.1 -J -t {seconds} {option}");
    let before = look(lab)?;
    let said = lab.guest.run(&command, Duration::from_secs(u64::from(seconds) + 30))?;
    let after = look(lab)?;
    let garbled = || HarnessError::Failed { what: command.clone(), heard: said.text.clone() };
    let json: serde_json::Value = serde_json::from_str(&said.text).map_err(|_| garbled())?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64().ok_or_else(garbled)?;
    let frames = after.guest_frames - before.guest_frames;
    let time = f64::from(seconds);
    Ok(figures(load, &before, &after, frames, frames as f64 / time, bits / 1e9, time))
}

fn figures(
    load: &'static str,
    a: &Look,
    b: &Look,
    frames: u64,
    rate: f64,
    gbit: f64,
    seconds: f64,
) -> Figures {
    let per_k = |n: u64| 1000.0 * n as f64 / frames.max(1) as f64;
    let accesses = b.host.accesses - a.host.accesses;
    let wall = (b.at - a.at).as_secs_f64().max(seconds);
    Figures {
        load,
        frames_per_s: rate,
        gbit_per_s: gbit,
        interrupts_per_k: per_k(b.interrupts - a.interrupts),
        accesses_per_k: (b.host.accesses > 0).then(|| per_k(accesses)),
        cpu_qemu: (b.host.cpu_qemu - a.host.cpu_qemu) / wall,
        cpu_switch: (b.host.cpu_switch - a.host.cpu_switch) / wall,
    }
}
