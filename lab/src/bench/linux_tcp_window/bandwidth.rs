//! TCP bandwidth against the window, both ways.

use serde::Serialize;
use vmlan_harness::{HarnessError, LanHost, connectivity};

use crate::bench::linux_guest::Lab;

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Point {
    /// The guest sends; otherwise it receives.
    pub sends: bool,
    /// What iperf3 was told, for both ends.
    pub window_kib: u32,
    /// Of payload that arrived.
    pub mbit_per_s: f64,
    /// Frames that the switch dropped meanwhile on their way to the guest.
    pub drops: u64,
}

/// Every window, transmitted and received.
///
/// # Errors
/// What the guest did not do.
pub(super) fn all(
    lab: &mut Lab,
    windows: &[u32],
    seconds: u32,
) -> Result<Vec<Point>, HarnessError> {
    let host = lab.host.ip().to_owned();
    let mut points = Vec::new();
    for sends in [true, false] {
        for &window_kib in windows {
            let way = if sends { "" } else { " -R" };
            let options = format!("-t {seconds} -w {window_kib}K{way}");
            let before = drops(lab)?;
            let flow = connectivity::iperf(&mut lab.guest, &host, &options)?;
            let drops = drops(lab)? - before;
            points.push(Point { sends, window_kib, mbit_per_s: flow.bits_per_second / 1e6, drops });
        }
    }
    Ok(points)
}

fn drops(lab: &Lab) -> Result<u64, HarnessError> {
    let port = lab.port()?.unwrap_or_default();
    let all = port["drops"].as_object().into_iter().flatten();
    Ok(all.filter_map(|(_, n)| n.as_u64()).sum())
}
