//! Where and with what a figure was taken.

use std::fs;

use serde::Serialize;

use super::process::output;
use super::switch::{ovs_version, vmlan_program};
use super::{Args, Peer};

/// Printed above the table and written to the JSON file.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Number of CPUs online.
    pub cores: usize,
    /// Release of the running kernel.
    pub kernel: String,
    /// Name and version of every program that takes part.
    pub versions: Vec<String>,
    /// Commit of the source tree, `-dirty` if it has changes.
    pub commit: String,
}

impl Machine {
    /// Asks the system; what it does not tell is `unknown`.
    pub fn read(args: &Args) -> Self {
        Self { versions: versions(args), ..Self::plain() }
    }

    /// As [`Machine::read`], without peers.
    pub fn plain() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            cpu: model.map_or_else(unknown, |(_, name)| name.trim().to_owned()),
            cores: cores(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            versions: Vec::new(),
            commit: commit(),
        }
    }
}

/// Number of CPUs online.
pub fn cores() -> usize {
    fs::read_to_string("/proc/cpuinfo")
        .map_or(0, |text| text.lines().filter(|line| line.starts_with("processor")).count())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn versions(args: &Args) -> Vec<String> {
    let first = |text: String| text.lines().next().map(|line| line.trim().to_owned());
    let ask = |program: &str| output(program, &["--version"]).ok().and_then(first);
    let dpdk = output("dpkg-query", &["-W", "-f", "${Version}", "dpdk-dev"]);
    let mut versions = vec![format!("DPDK testpmd {}", dpdk.unwrap_or_else(|_| unknown()))];
    for &peer in &args.only {
        let version = match peer {
            Peer::OvsDpdk => ovs_version().ok(),
            Peer::Vmlan => vmlan_program(args.vmlan.as_deref())
                .ok()
                .and_then(|path| ask(&path.to_string_lossy())),
            Peer::Vde => ask("vde_switch"),
            // One is DPDK, the other the kernel.
            Peer::Policies | Peer::Vhost | Peer::Bridge => continue,
        };
        versions.push(version.unwrap_or_else(|| format!("{peer} {}", unknown())));
    }
    versions
}

fn commit() -> String {
    let tree = env!("CARGO_MANIFEST_DIR");
    output("git", &["-C", tree, "describe", "--always", "--dirty", "--abbrev=12"])
        .map_or_else(|_| unknown(), |text| text.trim().to_owned())
}
