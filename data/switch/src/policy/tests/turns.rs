//! A limit that ports share is divided among those who want it, and an uplink is held up by nobody
//! who has left.

use super::*;

/// What a tenant's ports do.
struct Tenant {
    limit: u64,
    lengths: [usize; 2],
    weights: [u16; 2],
    /// Frames a second of the second one; `None`: it floods.
    polite: Option<u64>,
}

impl Tenant {
    fn world(&self, frames: bool) -> World {
        let bucket = Some(Bucket::new(rate(self.limit), 0));
        let (bits, frames) = if frames { (None, bucket) } else { (bucket, None) };
        let turns = Some(Arc::new(Turns::patient(2_000 * MS)));
        let tenant = Arc::new(Limiter { bits, frames, turns, ..Limiter::default() });
        let from = Limits { own: None, shared: Some(tenant) };
        let port = |weight| Policy { from: from.clone(), weight, ..Policy::default() };
        let [a, b] = self.lengths;
        let ports = vec![Flood::new(0, 2, a), Flood::new(1, 2, b), Flood::new(2, 0, 60)];
        let policies = self.weights.map(port).into_iter().chain([Policy::default()]);
        World::new(ports, policies.collect())
    }

    /// Frames of each in a second, as a worker serves them: always in the same order, each not
    /// before it was told to.
    fn run(&self, frames: bool) -> [u64; 2] {
        let mut world = self.world(frames);
        let mut due = [0; 2];
        let mut late = 1;
        while world.now < 1000 * MS {
            for i in [0, 1] {
                if due[i] > world.now {
                    continue;
                }
                match self.polite.filter(|_| i == 1) {
                    None => world.ports[i].make(256),
                    Some(a_second) => {
                        let by_now = world.now * a_second / (1000 * MS);
                        world.ports[i].sending.lock().unwrap().made = by_now;
                    }
                }
                let breath = world.breathe(i);
                due[i] = breath.wait_ns.map_or(0, |ns| world.now + ns);
            }
            late = late * 7 % 60_000;
            let next = due.into_iter().min().unwrap();
            world.now = (world.now + 2 * US).max((next + late).min(world.now + 20 * MS));
            if self.polite.is_some() {
                world.now = world.now.min(world.now / MS * MS + MS);
            }
        }
        let got = world.ports[2].received();
        assert_eq!(got.missing, 0);
        [got.of[0].0, got.of[1].0]
    }
}

#[test]
fn floods_share_by_weight() {
    for limit in [1_000_000, 20_000_000, 100_000_000, 2_000_000_000] {
        for (lengths, weights) in
            [([1514, 1514], [1, 1]), ([9014, 1514], [1, 1]), ([60, 1514], [1, 3])]
        {
            let tenant = Tenant { limit, lengths, weights, polite: None };
            let frames = tenant.run(false);
            let bits: Vec<u64> = (0..2).map(|i| frames[i] * lengths[i] as u64 * 8).collect();
            let total = bits[0] + bits[1];
            let fair = total * u64::from(weights[0]) / u64::from(weights[0] + weights[1]);
            let slack = total / 50 + 2 * 65_536 * 8;
            assert!(bits[0].abs_diff(fair) <= slack, "{limit} {lengths:?} {weights:?}: {bits:?}");
            assert!(total.abs_diff(limit) <= limit / 100 + 9014 * 8, "{limit}: {total}");
        }
    }
}

#[test]
fn frames_are_shared_as_frames() {
    let tenant = Tenant { limit: 10_000, lengths: [60, 1514], weights: [1, 1], polite: None };
    let [a, b] = tenant.run(true);
    assert!(a.abs_diff(b) <= 100 && (a + b).abs_diff(10_000) <= 100, "{a} {b}");
}

#[test]
fn who_asks_for_little_gets_it() {
    for lengths in [[1514, 1514], [9014, 1514], [60, 100]] {
        let tenant = Tenant { limit: 100_000_000, lengths, weights: [1, 1], polite: Some(2_000) };
        let [flood, polite] = tenant.run(false);
        assert!(polite >= 1_980, "{lengths:?}: {polite} of 2000 beside {flood}");
    }
}

/// A source that waited for an uplink and has nothing for it any more, or may send nothing, is no
/// longer waited for.
#[test]
fn who_has_left_an_uplink_holds_nobody_up() {
    let queue = Arc::new(Turns::patient(1000 * MS));
    let bits = Some(Bucket::new(rate(1_000_000_000), 0));
    let own = Some(Arc::new(Limiter { bits, ..Limiter::default() }));
    let to = Limits { own, shared: None };
    let uplink = Policy { uplink: Some(queue.clone()), to, ..Policy::default() };
    let ports = vec![Flood::new(0, 2, 1514), Flood::new(1, 2, 1514), Flood::new(2, 0, 60)];
    let mut world = World::new(ports, vec![Policy::default(), Policy::default(), uplink]);
    world.ports[0].make(2000);
    while !queue.is_waiting(id(0)) {
        world.breathe(0);
    }
    assert_ne!(queue.grant(id(1), 1, world.now), u64::MAX);
    // As a guest that takes its frames back out of its ring.
    {
        let mut sending = world.ports[0].sending.lock().unwrap();
        sending.made = sending.next;
    }
    world.breathe(0);
    assert!(!queue.is_waiting(id(0)));
    assert_eq!(queue.grant(id(1), 1, world.now), u64::MAX);
}
