//! Register accesses of the kernel's driver for a frame, as the switch counts them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use vmlan_harness::{HarnessError, LanHost, connectivity};

use crate::bench::linux_guest::Lab;

/// What iperf3 is told: datagrams that make frames of 60 bytes, one each 10 ms; or of 1,442 bytes,
/// 16 at once each 10 ms.
const LOADS: [(&str, &str); 2] =
    [("sparse", "-u -l 18 -b 14400"), ("in bursts", "-u -l 1400 -b 17920000/16")];
/// Less than this for a frame is the watchdog, or iperf3's own connection.
const SELDOM: f64 = 0.02;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Accesses {
    /// The guest sends; otherwise it receives.
    pub sends: bool,
    /// How frames come.
    pub load: &'static str,
    /// In that direction.
    pub frames: u64,
    /// Reads and writes for each of them.
    pub reads: f64,
    /// The same for writes.
    pub writes: f64,
    /// By register (virtio-net: its doorbells), reads and writes for a frame.
    pub registers: BTreeMap<String, (f64, f64)>,
    /// Interrupts delivered, for a frame.
    pub interrupts: f64,
}

/// All loads in both directions; nothing for a guest that is on no switch.
///
/// # Errors
/// What the guest did not do.
pub(super) fn all(lab: &mut Lab, seconds: u32) -> Result<Vec<Accesses>, HarnessError> {
    let host = lab.host.ip().to_owned();
    let mut all = Vec::new();
    for sends in [true, false] {
        for (load, options) in LOADS {
            let Some(before) = lab.port()? else { return Ok(all) };
            let way = if sends { "" } else { " -R" };
            let options = format!("-t {seconds} {options}{way}");
            connectivity::iperf(&mut lab.guest, &host, &options)?;
            let after = lab.port()?.unwrap_or_default();
            all.push(between(&before, &after, (sends, load)));
        }
    }
    Ok(all)
}

fn between(before: &Value, after: &Value, (sends, load): (bool, &'static str)) -> Accesses {
    let grown = |path: &str| {
        let at = |v: &Value| v.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        at(after).saturating_sub(at(before))
    };
    let frames = grown(if sends { "/in/frames" } else { "/out/frames" });
    let per_frame = |n: u64| n as f64 / frames.max(1) as f64;
    let mut registers: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let names = after.pointer("/device/registers").and_then(Value::as_object);
    for name in names.into_iter().flatten().map(|(name, _)| name) {
        let of = |kind| per_frame(grown(&format!("/device/registers/{name}/{kind}")));
        let sum = registers.entry(family(name)).or_default();
        *sum = (sum.0 + of("reads"), sum.1 + of("writes"));
    }
    let is_virtio = after.get("device").is_none_or(Value::is_null);
    if is_virtio {
        registers.insert("doorbell".into(), (0.0, per_frame(grown("/doorbells"))));
    }
    let interrupts = if is_virtio { "/interrupts" } else { "/device/delivered" };
    let reads = registers.values().map(|n| n.0).sum();
    let writes = registers.values().map(|n| n.1).sum();
    registers.retain(|_, (reads, writes)| *reads + *writes >= SELDOM);
    Accesses {
        sends,
        load,
        frames,
        reads,
        writes,
        registers,
        interrupts: per_frame(grown(interrupts)),
    }
}

/// rtl8139 has four registers for transmitted frames, used in turn.
fn family(register: &str) -> String {
    let is_one = register.strip_prefix("TSD").is_some_and(|n| n.parse::<u8>().is_ok());
    if is_one { "TSD".into() } else { register.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accesses_are_those_of_the_measured_frames() {
        let port = |frames: u64, writes: u64, reads: u64| {
            json!({
                "in": { "frames": frames }, "out": { "frames": 7 },
                "doorbells": writes, "interrupts": 0,
                "device": { "delivered": reads, "registers": {
                    "TSD0": { "reads": 0, "writes": writes },
                    "ISR": { "reads": reads, "writes": 0 },
                    "BMSR": { "reads": 1, "writes": 0 }
                } }
            })
        };
        let seen = between(&port(100, 50, 10), &port(300, 250, 110), (true, "sparse"));
        assert_eq!((seen.frames, seen.registers.len()), (200, 2));
        assert_eq!(seen.registers["TSD"], (0.0, 1.0));
        assert_eq!((seen.reads, seen.writes, seen.interrupts), (0.5, 1.0, 0.5));
        let kicks = |n: u64| json!({ "in": { "frames": n }, "doorbells": n / 2, "device": null });
        let seen = between(&kicks(0), &kicks(100), (true, "sparse"));
        assert_eq!(seen.registers["doorbell"], (0.0, 0.5));
    }
}
