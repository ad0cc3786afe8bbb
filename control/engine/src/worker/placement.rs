//! Which worker owns which port.
//!
//! A new port goes to the worker with the fewest. Then load decides: while a worker is short of
//! time and another has some left, one port at a time moves. What a port would take if it had a
//! worker of its own is not known while it shares one that is short of time; [`demands`] says what
//! is assumed.

/// Gives every used port that has none an owner below `workers`: one that has the fewest ports.
pub(super) fn place(owners: &mut [Option<usize>], used: &[bool], workers: usize) {
    for (owner, used) in owners.iter_mut().zip(used) {
        if !used {
            *owner = None;
        }
    }
    for i in 0..owners.len().min(used.len()) {
        if used[i] && owners[i].is_none() {
            let count = |w: &usize| owners.iter().filter(|o| **o == Some(*w)).count();
            owners[i] = (0..workers).min_by_key(count);
        }
    }
}

/// A worker that was busy for more of the time is short of time.
const SHORT: f64 = 0.75;
/// One that was busy for more of it had no time for all that its ports would have taken.
const FULL: f64 = 0.9;
/// Ports that are kept from taking more all take the same, by their weights. Those that had this
/// part of what the greediest had are taken for such.
const GREEDY: f64 = 0.75;
/// Moving a port is worth the trouble if it evens loads out as much as moving this part of a
/// worker's time from one that is full to one that is idle.
const WORTH: f64 = 0.125;
/// A port that takes less is not looked at: there may be a thousand.
const LITTLE: f64 = 0.01;

/// What was measured of a port.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    pub(super) owner: usize,
    pub(super) weight: f64,
    /// It was moved not long ago, and stays.
    pub(super) rests: bool,
    /// The part of the time that was spent on each of its lanes.
    pub(super) lanes: Vec<f64>,
}

impl Load {
    /// The worker that has one of its lanes.
    fn worker(&self, lane: usize, workers: usize) -> usize {
        (self.owner + lane) % workers
    }
}

/// The time that each worker spent.
fn totals(ports: &[Load], workers: usize) -> Vec<f64> {
    let mut totals = vec![0.0; workers];
    for port in ports {
        for (lane, load) in port.lanes.iter().enumerate() {
            totals[port.worker(lane, workers)] += load;
        }
    }
    totals
}

/// What the ports would take: as much as they took, or a whole worker for each lane that took as
/// much as the greediest on a worker that is full.
fn demands(ports: &[Load], busy: &[f64]) -> Vec<Load> {
    let workers = busy.len();
    let mut greediest = vec![0.0_f64; workers];
    for port in ports {
        for (lane, load) in port.lanes.iter().enumerate() {
            let most = &mut greediest[port.worker(lane, workers)];
            *most = most.max(load / port.weight);
        }
    }
    let mut demands = ports.to_vec();
    for port in &mut demands {
        for lane in 0..port.lanes.len() {
            let at = port.worker(lane, workers);
            let greedy = port.lanes[lane] / port.weight > GREEDY * greediest[at];
            if busy[at] > FULL && greedy {
                port.lanes[lane] = 1.0;
            }
        }
    }
    demands
}

/// Which port is to have which owner from now on, if that helps a worker that is short of time.
pub(super) fn relieve(ports: &[Load], workers: usize) -> Option<(usize, usize)> {
    let busy = totals(ports, workers);
    if busy.iter().all(|busy| *busy <= SHORT) {
        return None;
    }
    let demands = demands(ports, &busy);
    let wanted = totals(&demands, workers);
    let unevenness = |wanted: &[f64]| wanted.iter().map(|w| w * w).sum::<f64>();
    let mut best = (unevenness(&wanted) - 2.0 * WORTH * WORTH, None);
    for (index, port) in demands.iter().enumerate() {
        let short = |lane| busy[port.worker(lane, workers)] > SHORT;
        let any = (0..port.lanes.len()).any(|lane| port.lanes[lane] > LITTLE && short(lane));
        if port.rests || !any {
            continue;
        }
        for owner in (0..workers).filter(|owner| *owner != port.owner) {
            let mut after = wanted.clone();
            let moved = Load { owner, ..port.clone() };
            for (lane, load) in port.lanes.iter().enumerate() {
                after[port.worker(lane, workers)] -= load;
                after[moved.worker(lane, workers)] += load;
            }
            let after = unevenness(&after);
            if after < best.0 {
                best = (after, Some((index, owner)));
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ports_are_spread_evenly_and_none_moves() {
        let mut owners = vec![None; 6];
        place(&mut owners, &[true; 6], 3);
        let count = |o: &[Option<usize>], w| o.iter().filter(|x| **x == Some(w)).count();
        assert!((0..3).all(|w| count(&owners, w) == 2));
        let before = owners.clone();
        let gone = owners.iter().position(|o| *o == Some(0)).unwrap();
        let mut used = [true; 6];
        used[gone] = false;
        place(&mut owners, &used, 3);
        assert!((0..6).all(|i| i == gone || owners[i] == before[i]));
        assert_eq!(owners[gone], None);
        place(&mut owners, &[true; 6], 3);
        assert_eq!(owners[gone], Some(0));
    }

    fn load(owner: usize, lanes: &[f64]) -> Load {
        Load { owner, weight: 1.0, rests: false, lanes: lanes.to_vec() }
    }

    /// Ports of one lane each.
    fn relieves(all: &[(usize, f64)], workers: usize) -> Option<(usize, usize)> {
        let all: Vec<_> = all.iter().map(|(owner, one)| load(*owner, &[*one])).collect();
        relieve(&all, workers)
    }

    #[test]
    fn a_port_leaves_a_worker_that_is_short_of_time() {
        assert_eq!(relieves(&[(0, 0.5), (0, 0.5), (1, 0.0)], 2), Some((0, 1)));
        assert_eq!(relieves(&[(0, 0.5), (0, 0.4), (1, 0.2)], 2), Some((1, 1)));
        // Two ports that want all they can get beside one that wants little.
        assert_eq!(relieves(&[(0, 0.5), (0, 0.5), (1, 0.3)], 2), Some((0, 1)));
        // Three and one become two and two, though both workers are full.
        assert_eq!(relieves(&[(0, 0.3), (0, 0.3), (0, 0.4), (1, 1.0)], 2).map(|m| m.1), Some(1));
        // Another pair of workers is as bad, a third is idle.
        let pairs = [(0, 0.5), (0, 0.5), (1, 0.5), (1, 0.5), (2, 0.0)];
        assert_eq!(relieves(&pairs, 3).map(|m| m.1), Some(2));
    }

    #[test]
    fn what_helps_nobody_is_left() {
        assert_eq!(relieves(&[(0, 0.3), (0, 0.4), (1, 0.0)], 2), None, "nobody is short of time");
        assert_eq!(relieves(&[(0, 1.0), (1, 0.0)], 2), None, "a port alone");
        assert_eq!(relieves(&[(0, 0.5), (0, 0.5), (1, 1.0)], 2), None, "two and one stay");
        assert_eq!(
            relieves(&[(0, 0.99), (0, 0.01), (1, 0.0)], 2),
            None,
            "a port that takes little"
        );
        assert_eq!(relieves(&[(0, 0.5), (0, 0.5)], 1), None, "one worker");
        assert_eq!(relieves(&[], 2), None);
    }

    /// The lanes of a port move together, each to the next worker.
    #[test]
    fn lanes_that_meet_on_one_worker_are_moved_apart() {
        let all = [load(0, &[0.5, 0.0]), load(0, &[0.5, 0.0])];
        assert_eq!(relieve(&all, 2), Some((0, 1)));
        let all = [load(0, &[0.5, 0.5]), load(0, &[0.5, 0.5])];
        assert_eq!(relieve(&all, 2), None, "they are spread already");
    }

    #[test]
    fn a_port_that_was_moved_stays_for_a_while() {
        let [mut a, b] = [load(0, &[0.6]), load(0, &[0.4])];
        a.rests = true;
        assert_eq!(relieve(&[a.clone(), b.clone()], 2), Some((1, 1)), "the other one goes");
        assert_eq!(relieve(&[a.clone(), Load { rests: true, ..b }], 2), None);
    }

    /// A heavy port that has more time than the others is not the only one that wants more.
    #[test]
    fn weights_are_seen_through() {
        let all = [load(0, &[0.2]), Load { weight: 4.0, ..load(0, &[0.8]) }, load(1, &[0.4])];
        // One and a half each, instead of two and a half.
        assert_eq!(relieve(&all, 2).map(|m| m.1), Some(1));
    }

    /// What is measured of ports that would take `wanted`: their workers share time out equally.
    fn measure(wanted: &[f64], owners: &[usize], workers: usize) -> Vec<f64> {
        let mut got = vec![0.0; wanted.len()];
        for worker in 0..workers {
            let (mut left, mut hungry) = (1.0, Vec::new());
            hungry.extend((0..wanted.len()).filter(|i| owners[*i] == worker));
            hungry.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
            for (n, index) in hungry.iter().enumerate() {
                let count = u32::try_from(hungry.len() - n).expect("few");
                got[*index] = wanted[*index].min(left / f64::from(count));
                left -= got[*index];
            }
        }
        got
    }

    /// Ports that start anywhere get what they can get, each moved once at most: with 8 and 64
    /// workers as well as with 2.
    #[test]
    fn the_work_is_done() {
        let mut state = 0x5eed_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).expect("31 bits") % below
        };
        for case in 0..120 {
            let workers = if case % 40 == 39 { 64 } else { [2, 3, 8][case % 3] };
            let count = workers * (1 + case / 3 % 4);
            // A third of them wants a worker each, and the others some of one.
            let wanted: Vec<f64> = (0..count)
                .map(|_| if random(3) == 0 { 1.0 } else { random(30) as f64 / 100.0 })
                .collect();
            let mut owners: Vec<usize> = (0..count).map(|_| random(workers)).collect();
            let total = |owners: &[usize]| measure(&wanted, owners, workers).iter().sum::<f64>();
            let before = total(&owners);
            let mut moved = vec![false; count];
            loop {
                let got = measure(&wanted, &owners, workers);
                let loads = owners.iter().zip(&got).zip(&moved);
                let loads = loads
                    .map(|((owner, got), rests)| Load { rests: *rests, ..load(*owner, &[*got]) });
                let all: Vec<_> = loads.collect();
                let Some((port, owner)) = relieve(&all, workers) else { break };
                owners[port] = owner;
                moved[port] = true;
            }
            let (after, most) = (total(&owners), wanted.iter().sum::<f64>().min(workers as f64));
            assert!(after > 0.85 * most, "case {case}: {before} {after} of {most}");
            assert!(after > 0.9 * before, "case {case}: {before} {after} of {most}");
        }
    }
}
