//! Which worker owns which port.

/// Gives every used port an owner below `workers` and evens out the numbers, moving as few as
/// possible.
pub(super) fn spread(owners: &mut [Option<usize>], used: &[bool], workers: usize) {
    for (owner, used) in owners.iter_mut().zip(used) {
        if !used {
            *owner = None;
        }
    }
    for i in 0..owners.len().min(used.len()) {
        if used[i] && owners[i].is_none() {
            owners[i] = Some(extremes(owners, workers).0);
        }
    }
    loop {
        let (least, most, difference) = extremes(owners, workers);
        if difference <= 1 {
            return;
        }
        if let Some(o) = owners.iter_mut().find(|o| **o == Some(most)) {
            *o = Some(least);
        }
    }
}

/// The workers with the fewest and the most ports, and the difference.
fn extremes(owners: &[Option<usize>], workers: usize) -> (usize, usize, usize) {
    let count = |w: usize| owners.iter().filter(|o| **o == Some(w)).count();
    let least = (0..workers).min_by_key(|w| count(*w)).unwrap_or(0);
    let most = (0..workers).max_by_key(|w| count(*w)).unwrap_or(0);
    (least, most, count(most) - count(least))
}
