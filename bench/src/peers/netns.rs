//! A network namespace of our own, so that neither the host nor its router discovery sees our frames.

use std::path::{Path, PathBuf};

use super::Error;
use super::process::output;

/// Deleted, with every device in it, when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: PathBuf,
}

impl Netns {
    /// A new namespace without IPv6: a neighbour solicitation of the kernel would be bounced for ever and be
    /// counted as traffic.
    ///
    /// # Errors
    /// Those of `ip netns`.
    pub fn new() -> Result<Self, Error> {
        let name = format!("vmlan-peers-{}", std::process::id());
        output("ip", &["netns", "add", &name])?;
        let path = Path::new("/run/netns").join(&name);
        let netns = Self { name, path };
        for scope in ["all", "default"] {
            // A kernel built without IPv6 has no such file, and needs none.
            let key = format!("net.ipv6.conf.{scope}.disable_ipv6=1");
            let _ = output("ip", &["netns", "exec", &netns.name, "sysctl", "-qw", &key]);
        }
        Ok(netns)
    }

    /// For `nsenter --net=`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `ip ARGS` inside.
    ///
    /// # Errors
    /// Those of `ip`.
    pub fn ip(&self, args: &[&str]) -> Result<String, Error> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend_from_slice(args);
        output("ip", &all)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = output("ip", &["netns", "del", &self.name]) {
            eprintln!("peers: {}", error.chain());
        }
    }
}
