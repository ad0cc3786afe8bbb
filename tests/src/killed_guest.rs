//! A guest process that is killed again and again, and what the switch holds meanwhile.

use crate::numbered::{STALL, mac, settles};
use crate::{Process, Result, Switch, usage, vmlan_program};
use std::path::Path;
use std::time::{Duration, Instant};

/// Starts `vmlan pkt-gen` as guest `from` on the port at `address`; what it sends is for guest
/// `to`.
pub fn guest_process(
    dir: &Path,
    address: &str,
    function: &str,
    from: u8,
    to: u8,
) -> Result<Process> {
    let binary = vmlan_program().display().to_string();
    let text = |id| mac(id, 0).map(|byte| format!("{byte:02x}")).join(":");
    let (to, from) = (text(to), text(from));
    let argv = [&binary, "pkt-gen", "-i", address, "-f", function, "-d", &to, "-s", &from];
    let argv: Vec<_> = argv.iter().map(|&word| word.to_owned()).collect();
    Process::start("pkt-gen", &dir.join("guest.log"), &argv)
}

/// What the switch holds: descriptors, own memory in KiB, mapped memory in KiB.
pub fn holdings(switch: &Switch) -> (usize, u64, u64) {
    let pid = switch.pid();
    (switch.descriptors(), usage::rss_kib(pid), usage::mapped_kib(pid))
}

/// What it holds once that is no more than `first` and so much more memory of its own and mapped,
/// in KiB: what is just being given back may take a moment.
///
/// # Panics
/// When it stays more.
pub fn has_not_grown(
    switch: &Switch,
    first: (usize, u64, u64),
    more: [u64; 2],
) -> (usize, u64, u64) {
    let mut last = first;
    let flat = settles(|| {
        last = holdings(switch);
        last.1 <= first.1 + more[0] && last.2 <= first.2 + more[1]
    });
    assert!(flat, "descriptors, own and mapped KiB grew from {first:?} to {last:?}");
    last
}

/// Pauses of others' traffic, one for each kill. They are told, not judged: how long a process
/// takes to start and a guest to be scheduled is the machine's doing.
#[derive(Debug, Default)]
pub struct Pauses(Vec<Duration>);

impl Pauses {
    /// The longest during a kill.
    pub fn add(&mut self, pause: Duration) {
        self.0.push(pause);
    }

    /// The median and the longest of all.
    pub fn median_and_longest(mut self) -> [Duration; 2] {
        self.0.sort_unstable();
        let at = |index: usize| self.0.get(index).copied().unwrap_or_default();
        [at(self.0.len() / 2), at(self.0.len().saturating_sub(1))]
    }
}

/// The descriptors that a switch has open and should not grow beyond.
///
/// A connection to the API closes a little after its answer, so that a count may be one too high:
/// it is checked against the lowest that was seen, and given time to fall.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors(usize);

impl Descriptors {
    /// As they are now.
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
