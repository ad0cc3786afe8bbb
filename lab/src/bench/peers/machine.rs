//! Where and with what a figure was taken.

use serde::Serialize;

use vmlan_harness::output_of;

use super::switch::{ovs_version, vmlan_program};
use super::{Args, Peer};

/// Printed above the table and written to the JSON file.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The machine itself, and the commit of the source tree, `-dirty` if it has changes.
    #[serde(flatten)]
    pub host: vmlan_harness::Machine,
    /// Name and version of every program that takes part.
    pub versions: Vec<String>,
}

impl Machine {
    /// Asks the system; what it does not tell is `unknown`.
    pub fn read(args: &Args) -> Self {
        Self { host: vmlan_harness::Machine::read(commit()), versions: versions(args) }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn versions(args: &Args) -> Vec<String> {
    let first = |text: String| text.lines().next().map(|line| line.trim().to_owned());
    let ask = |program: &str| output_of(program, &["--version"]).ok().and_then(first);
    let dpdk = output_of("dpkg-query", &["-W", "-f", "${Version}", "dpdk-dev"]);
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
    output_of("git", &["-C", tree, "describe", "--always", "--dirty", "--abbrev=12"])
        .map_or_else(|_| unknown(), |text| text.trim().to_owned())
}
