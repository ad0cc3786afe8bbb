//! Shares of an uplink, through whole breaths.

use super::*;

/// Three ports flood an uplink that takes 1 Gbit/s, each frames of another length: by weight, in
/// bytes, and nothing is lost.
#[test]
fn of_an_uplink() {
    let weights = [1, 2, 4];
    let lengths = [60, 1514, 600];
    let queue = Arc::new(Turns::default());
    let sender = |weight| Policy { weight, ..Policy::default() };
    let mut policies: Vec<_> = weights.into_iter().map(sender).collect();
    policies.push(Policy { uplink: Some(queue), ..Policy::default() });
    let mut ports: Vec<_> = (0..3).map(|i| Flood::new(i, 3, lengths[i])).collect();
    ports.push(Flood::new(3, 0, 60));
    let mut world = World::new(ports, policies);
    world.ports[3].received.lock().unwrap().room = 0;
    let mut brought = 0;
    while world.now < 500 * MS {
        for i in 0..3 {
            world.ports[i].make(64);
            world.breathe(i);
            world.now += 2 * US;
            // 125 bytes a microsecond, in frames: as many as it has room for.
            brought += 250;
            let mut received = world.ports[3].received.lock().unwrap();
            let took = received.bits / 8;
            let mean = 700;
            received.room = (brought - took.min(brought)) / mean;
            received.room = received.room.min(256);
        }
    }
    let got = world.ports[3].received();
    let bytes: Vec<u64> = (0..3).map(|i| got.of[i].0 * lengths[i] as u64).collect();
    let total: u64 = bytes.iter().sum();
    for (bytes, weight) in bytes.iter().zip(weights) {
        let fair = total * u64::from(weight) / 7;
        assert!(bytes.abs_diff(fair) <= fair / 50, "{bytes} of {fair}: {got:?}");
    }
    assert!(total > brought * 95 / 100, "{total} of {brought}");
    assert_eq!(got.missing, 0);
}

/// An uplink that is limited, and frames of other lengths beside each other: in whatever order the
/// worker comes by.
#[test]
fn of_a_limited_uplink() {
    for (lengths, ns) in [([1514, 512, 60], 300), ([60, 512, 1514], 300), ([1514, 60, 1514], 50)] {
        let mut world = limited_uplink(lengths);
        let mut shares = Shares::default();
        let mut before = None;
        while world.now < 150 * MS {
            if world.now > 50 * MS && before.is_none() {
                before = Some(world.ports[3].received());
            }
            shares.begin();
            world.now += US / 2;
            for (i, weight) in [1, 2, 4].into_iter().enumerate() {
                if !shares.may_run(id(i), weight) {
                    continue;
                }
                let sent = world.ports[i].sent();
                world.ports[i].sending.lock().unwrap().made = sent + 512;
                let breath = world.breathe(i);
                let took = US / 2 + breath.frames as u64 * ns;
                world.now += took;
                shares.spent(id(i), took, breath.frames >= 32);
            }
        }
        let (got, before) = (world.ports[3].received(), before.unwrap());
        let frames = |i: usize| got.of[i].0 - before.of[i].0;
        let bytes: Vec<u64> = (0..3).map(|i| frames(i) * lengths[i] as u64).collect();
        let total: u64 = bytes.iter().sum();
        for (bytes, weight) in bytes.iter().zip([1, 2, 4]) {
            let fair = total * weight / 7;
            assert!(bytes.abs_diff(fair) <= fair / 50, "{lengths:?}: {bytes} of {fair}");
        }
        assert!(total.abs_diff(12_500_000) <= 125_000, "{total}");
        assert_eq!(got.missing, 0);
    }
}

fn limited_uplink(lengths: [usize; 3]) -> World {
    let sender = |weight| Policy { weight, ..Policy::default() };
    let mut policies: Vec<_> = [1, 2, 4].into_iter().map(sender).collect();
    let bits = Some(Bucket::new(rate(1_000_000_000), 0));
    let own = Some(Arc::new(Limiter { bits, ..Limiter::default() }));
    let to = Limits { own, shared: None };
    policies.push(Policy { uplink: Some(Arc::default()), to, ..Policy::default() });
    let mut ports: Vec<_> = (0..3).map(|i| Flood::new(i, 3, lengths[i])).collect();
    ports.push(Flood::new(3, 0, 60));
    World::new(ports, policies)
}
