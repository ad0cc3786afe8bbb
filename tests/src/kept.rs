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

/// Once all has settled, the same processes have no more than they had `before`: a holder that was
/// being told of a port had more for a moment.
///
/// # Panics
/// If they have.
pub fn assert_kept(switch: &Switch, before: &Kept) {
    let no_more = |now: &Kept| {
        let pairs = now.iter().zip(before);
        let mut less =
            pairs.map(|(now, then)| now.0 == then.0 && now.1 <= then.1 && now.2 <= then.2);
        now.len() == before.len() && less.all(|less| less)
    };
    let fine = settles(|| no_more(&kept(switch)));
    assert!(fine, "{:?} instead of {before:?}", kept(switch));
}
