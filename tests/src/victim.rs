//! A guest process that is killed again and again, and what the switch holds meanwhile.

use crate::native::{STALL, mac};
use crate::{Proc, Result, Switch, usage, vmlan_binary};
use std::path::Path;
use std::time::{Duration, Instant};

/// Starts `vmlan pkt-gen` as guest `from` on the port at `address`; what it sends is for guest `to`.
///
/// # Errors
/// As [`Proc::start`].
pub fn guest_process(dir: &Path, address: &str, function: &str, from: u8, to: u8) -> Result<Proc> {
    let binary = vmlan_binary().display().to_string();
    let text = |id| mac(id, 0).map(|byte| format!("{byte:02x}")).join(":");
    let (to, from) = (text(to), text(from));
    let argv = [&binary, "pkt-gen", "-i", address, "-f", function, "-d", &to, "-s", &from];
    let argv: Vec<_> = argv.iter().map(|&word| word.to_owned()).collect();
    Proc::start("pkt-gen", &dir.join("guest.log"), &argv)
}

/// What the switch holds: descriptors, own memory in KiB, mapped memory in KiB.
#[must_use]
pub fn holdings(switch: &Switch) -> (usize, u64, u64) {
    let pid = switch.pid();
    (switch.descriptors(), usage::rss_kib(pid), usage::mapped_kib(pid))
}

/// The descriptors that a switch has open and should not grow beyond.
///
/// A connection to the API closes a little after its answer, so that a count may be one too high: it is checked
/// against the lowest that was seen, and given time to fall.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors(usize);

impl Descriptors {
    /// As they are now.
    #[must_use]
    pub fn of(switch: &Switch) -> Self {
        Self(switch.descriptors())
    }

    /// Returns how many there are, which are no more than before.
    ///
    /// # Panics
    /// When there are more and stay; `what` was done in between.
    pub fn check(&mut self, switch: &Switch, what: &str) -> usize {
        let end = Instant::now() + STALL;
        loop {
            let now = switch.descriptors();
            if now <= self.0 {
                self.0 = now;
                return now;
            }
            assert!(Instant::now() < end, "{now} descriptors, not {}: {what}", self.0);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits until the counters of `port` are `ready`.
///
/// # Errors
/// As [`Switch::port`].
///
/// # Panics
/// When they never are; `what` was waited for.
pub fn wait_for(
    switch: &Switch,
    port: &str,
    what: &str,
    ready: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    let end = Instant::now() + STALL;
    loop {
        let port = switch.port(port)?;
        if ready(&port) {
            return Ok(());
        }
        assert!(Instant::now() < end, "{what}: {port}");
    }
}
