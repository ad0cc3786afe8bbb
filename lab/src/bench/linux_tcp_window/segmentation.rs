//! TCP from the guest with its NIC cutting the segments (TSO), and with the kernel cutting them:
//! the ANCS paper's figure 11, on each NIC whose driver has it.

use serde::Serialize;
use vmlan_harness::{HarnessError, LanHost, connectivity};

use crate::alike::{self, Class, Spreads};
use crate::bench::linux_guest::Lab;
use crate::failure::Failure;
use crate::probe::cores::line_ns;

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bulk {
    /// Which of the pairs.
    pub pair: u32,
    /// The NIC cuts.
    pub tso: bool,
    /// Of payload that arrived.
    pub mbit_per_s: f64,
    /// Bytes of a frame as the switch took it; 0 where there is no switch.
    pub frame_bytes: f64,
    /// Nanoseconds that a cache line took between the two cores, before and after.
    pub line_ns: [f64; 2],
}

const FEATURE: &str = "tcp-segmentation-offload";

/// Pairs in turn, the order changing; nothing for a driver without it.
///
/// # Errors
/// When the guest does not answer.
pub(super) fn all(lab: &mut Lab, pairs: u32, seconds: u32) -> Result<Vec<Bulk>, HarnessError> {
    let mut found = Vec::new();
    if pairs == 0 || set(lab, true).is_err() {
        return Ok(found);
    }
    for pair in 0..pairs {
        let first = pair % 2 == 0;
        for tso in [first, !first] {
            set(lab, tso)?;
            let read = || line_ns().map_err(Failure::Failed);
            let once = || bulk(lab, seconds).map_err(Failure::from);
            match alike::cell(read, once) {
                Ok(((mbit_per_s, frame_bytes), about)) => {
                    let line_ns = about.line_ns;
                    found.push(Bulk { pair, tso, mbit_per_s, frame_bytes, line_ns });
                }
                Err(why) => eprintln!("pair {pair}, TSO {}: no figure: {why}", words(tso)),
            }
        }
    }
    set(lab, true)?;
    Ok(found)
}

fn words(tso: bool) -> &'static str {
    if tso { "on" } else { "off" }
}

/// With the kernel's own joining (GSO). What TSO needs stays on; r8169's driver begins without it.
fn set(lab: &mut Lab, tso: bool) -> Result<(), HarnessError> {
    let want = words(tso);
    let on = "ethtool -K eth0 tx on; ethtool -K eth0 sg on";
    let set = format!("{on}; ethtool -K eth0 tso {want} gso {want}; ethtool -k eth0");
    let state = lab.guest.sh(&set)?;
    let is = state.contains(&format!("{FEATURE}: {want}"));
    let heard = state.clone();
    if is { Ok(()) } else { Err(HarnessError::Failed { what: "ethtool".into(), heard }) }
}

/// Mbit/s, and bytes of a frame.
fn bulk(lab: &mut Lab, seconds: u32) -> Result<(f64, f64), HarnessError> {
    let host = lab.host.ip().to_owned();
    let before = sent(lab)?;
    let flow = connectivity::iperf(&mut lab.guest, &host, &format!("-t {seconds}"))?;
    let after = sent(lab)?;
    let frames = (after.0 - before.0).max(1);
    Ok((flow.bits_per_second / 1e6, (after.1 - before.1) as f64 / frames as f64))
}

/// Frames and bytes that the switch took from the guest.
fn sent(lab: &Lab) -> Result<(u64, u64), HarnessError> {
    let port = lab.port()?.unwrap_or_default();
    let of = |name: &str| port["in"][name].as_u64().unwrap_or(0);
    Ok((of("frames"), of("bytes")))
}

/// With over without: pairs of one class.
pub(super) fn ratios(all: &[Bulk]) -> Spreads {
    let class = |bulk: &Bulk| Class::of(bulk.line_ns[0]);
    let pairs = all.iter().filter(|bulk| bulk.tso).filter_map(|on| {
        let off = all.iter().find(|bulk| !bulk.tso && bulk.pair == on.pair)?;
        (class(on) == class(off)).then(|| (class(on), on.mbit_per_s / off.mbit_per_s))
    });
    Spreads::of(&pairs.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_are_compared_within_a_class() {
        let bulk = |pair, tso, mbit_per_s, line| Bulk {
            pair,
            tso,
            mbit_per_s,
            frame_bytes: 1514.0,
            line_ns: [line, line],
        };
        let all = [
            bulk(0, true, 900.0, 15.0),
            bulk(0, false, 300.0, 15.0),
            bulk(1, false, 300.0, 150.0),
            bulk(1, true, 600.0, 15.0),
        ];
        assert_eq!(ratios(&all), Spreads::of(&[(Class::Near, 3.0)]));
    }
}
