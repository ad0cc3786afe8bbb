//! What the processes of a switch keep, for tests of what outlives it.

use vmlan_harness::{Switch, output_of, usage::descriptors};

use crate::numbered::settles;

/// The processes of a switch: what each is called, how many descriptors it has open, and how many
/// pieces of shared memory it has mapped.
pub type Kept = Vec<(String, usize, usize)>;

/// Those of `switch`, its holder's and keepers' included.
pub fn kept(switch: &Switch) -> Kept {
    let pids = output_of("pgrep", &["-f", &switch.api_path().to_string_lossy()]);
    let pids = pids.unwrap_or_default();
    let mut all: Kept = pids
        .lines()
        .filter_map(|pid| pid.parse().ok())
        .map(|pid: u32| {
            let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
            let maps = read("maps").unwrap_or_default();
            let shared = maps.lines().filter(|line| line.contains("/memfd:")).count();
            (read("comm").unwrap_or_default().trim().to_owned(), descriptors(pid), shared)
        })
        .collect();
    all.sort();
    all
}

/// Once all has settled, they have what they had `before`.
///
/// # Panics
/// If they have not.
pub fn assert_kept(switch: &Switch, before: &Kept) {
    let same = settles(|| kept(switch) == *before);
    assert!(same, "{:?} instead of {before:?}", kept(switch));
}
