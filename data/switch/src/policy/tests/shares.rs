//! Shares of an uplink, through whole breaths.

use super::*;

/// Three ports flood an uplink that takes 1 Gbit/s, each frames of another length: by weight, in bytes, and nothing is lost.
#[test]
fn of_an_uplink() {
    let weights = [1, 2, 4];
    let lengths = [60, 1514, 600];
    let queue = Arc::new(UplinkQueue::default());
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
