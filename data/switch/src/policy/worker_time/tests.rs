use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// A port that works: what its breaths cost, and when it has something to do.
struct Worker {
    weight: u16,
    cost: u64,
    awake: fn(now: u64) -> bool,
    more: bool,
}

/// What a worker's second looked like.
#[derive(Default)]
struct Day {
    /// Time used by each port, and its breaths.
    used: Vec<u64>,
    breaths: Vec<u64>,
    /// The longest that each waited, having something to do.
    waited: Vec<u64>,
    /// Rounds in which somebody had something to do and nobody did anything.
    wasted: u64,
    rounds: u64,
}

fn always(_: u64) -> bool {
    true
}

fn port(weight: u16, cost: u64) -> Worker {
    Worker { weight, cost, awake: always, more: true }
}

/// Costs vary by a fifth. After each 100 ms of work or so, the worker loses its processor for 4 ms.
fn live(ports: &[Worker], from: u64, until: u64) -> Day {
    let mut shares = Shares::default();
    let mut day = Day::default();
    for all in [&mut day.used, &mut day.breaths, &mut day.waited] {
        all.resize(ports.len(), 0);
    }
    let mut since: Vec<Option<u64>> = vec![None; ports.len()];
    let (mut now, mut chance) = (0u64, 88_172_645_463_325_252u64);
    let mut next_loss = 50 * MS;
    while now < until {
        shares.begin();
        let (mut any, mut ran) = (false, false);
        for (i, port) in ports.iter().enumerate() {
            let awake = (port.awake)(now);
            any |= awake;
            let waits = since[i].filter(|_| awake);
            since[i] = awake.then_some(waits.unwrap_or(now));
            if !shares.may_run(PortId::new(i).unwrap(), port.weight) {
                continue;
            }
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            if !awake {
                now += 60;
                shares.spent(PortId::new(i).unwrap(), 60, false);
                continue;
            }
            ran = true;
            let cost = port.cost * (80 + chance % 41) / 100;
            let mut lost = 0;
            if now >= next_loss {
                lost = 4 * MS;
                next_loss = now + 50 * MS + chance % (100 * MS);
            }
            shares.spent(PortId::new(i).unwrap(), cost + lost, port.more);
            if now >= from {
                day.used[i] += cost;
                day.breaths[i] += 1;
                let waited = now - since[i].unwrap_or(now);
                // Who lost the processor made everybody wait.
                day.waited[i] = day.waited[i].max(waited);
            }
            // The clock of this world does not count what was lost, so that what others wait for is
            // each other.
            now += cost;
            since[i] = Some(now);
        }
        now += 20;
        day.rounds += 1;
        day.wasted += u64::from(any && !ran);
    }
    day
}

fn jain(all: impl Iterator<Item = u64> + Clone) -> f64 {
    let float = |n: u64| u32::try_from(n / 16).map(f64::from).unwrap();
    let (n, sum) = (all.clone().count(), all.clone().map(float).sum::<f64>());
    let squares = all.map(|n| float(n).powi(2)).sum::<f64>();
    sum * sum / (f64::from(u32::try_from(n).unwrap()) * squares)
}

#[test]
fn equal_ports() {
    for n in [2, 4, 16, 64] {
        let ports: Vec<_> = (0..n).map(|_| port(1, 6000)).collect();
        let day = live(&ports, 0, 1000 * MS);
        assert!(jain(day.breaths.iter().map(|n| n * 16)) >= 0.999, "{:?}", day.breaths);
        assert!(jain(day.used.iter().copied()) >= 0.999, "{:?}", day.used);
        assert_eq!(day.wasted, 0);
        // As if they took turns: a few sit out a round when they had longer breaths than others.
        let rounds = day.rounds - day.rounds / 8;
        assert!(day.breaths.iter().all(|b| *b >= rounds), "{rounds} {:?}", day.breaths);
    }
}

#[test]
fn equal_costs_take_turns() {
    let mut shares = Shares::default();
    for _ in 0..1000 {
        shares.begin();
        for i in 0..64 {
            let port = PortId::new(i).unwrap();
            assert!(shares.may_run(port, 3));
            shares.spent(port, 5000, true);
        }
    }
}

/// Equal time, however long the breaths: as of 60-byte frames, of 1514-byte frames, of large
/// segments.
#[test]
fn mixed_costs() {
    for n in [2, 4, 16, 64] {
        let costs = [5000, 20_000, 60_000, 11_000];
        let ports: Vec<_> = (0..n).map(|i| port(1, costs[i % 4])).collect();
        let day = live(&ports, 0, 1000 * MS);
        assert!(jain(day.used.iter().copied()) >= 0.999, "{:?}", day.used);
        assert_eq!(day.wasted, 0);
    }
}

fn assert_by_weight(ports: &[Worker], day: &Day, percent: u64) {
    let (total, weights): (u64, u64) =
        (day.used.iter().sum(), ports.iter().map(|p| u64::from(p.weight)).sum());
    for (used, port) in day.used.iter().zip(ports) {
        let fair = total * u64::from(port.weight) / weights;
        let off = used.abs_diff(fair);
        assert!(off <= fair * percent / 100, "{} of {fair} for {}", used, port.weight);
    }
}

#[test]
fn weights() {
    for costs in [[6000, 6000, 6000], [5000, 20_000, 60_000], [60_000, 20_000, 5000]] {
        let ports = [port(1, costs[0]), port(2, costs[1]), port(4, costs[2])];
        assert_by_weight(&ports, &live(&ports, 0, 1000 * MS), 2);
    }
    let ports = [port(1, 5000), port(1000, 9000), port(30, 5000)];
    assert_by_weight(&ports, &live(&ports, 0, 20_000 * MS), 2);
}

/// A port that is empty for a tenth of the time is short of a tenth of its share, and the others
/// have that by their weights.
#[test]
fn what_a_port_does_not_have_ready() {
    let dry = Worker { awake: |now| !(now / MS).is_multiple_of(10), ..port(4, 6000) };
    let day = live(&[port(1, 6000), port(2, 6000), dry], 0, 1000 * MS);
    let total: u64 = day.used.iter().sum();
    // 9/10 of 1, 2 and 4 sevenths, and the first two's thirds of the last tenth.
    for (used, part) in day.used.iter().zip([34, 68, 108]) {
        let expected = total * part / 210;
        assert!(used.abs_diff(expected) <= expected / 50, "{:?} of {total}", day.used);
    }
    // The others look for it in one round each time.
    assert!(day.wasted <= 100, "{}", day.wasted);
}

/// Who wakes up runs in the same round, and gets nothing for the time it slept.
#[test]
fn newly_awake() {
    let mut ports: Vec<_> = (0..16).map(|_| port(1, 20_000)).collect();
    ports.push(Worker { awake: |now| now / (50 * MS) % 2 == 1, ..port(1, 6000) });
    let day = live(&ports, 0, 1000 * MS);
    // A round, and what it owes of the breath before.
    assert!(day.waited[16] <= 2 * 16 * 24_000, "{:?}", day.waited);
    let others: u64 = day.used[..16].iter().sum();
    let fair = (others + day.used[16]) / 17 / 2;
    assert!(
        day.used[16] <= fair + fair / 50 && day.used[16] > fair * 9 / 10,
        "{} {fair}",
        day.used[16]
    );
    assert_eq!(day.wasted, 0);
}

/// One frame now and then: served at once, beside those who flood; and those lose no time to it.
#[test]
fn light_ports() {
    let mut ports: Vec<_> = (0..4).map(|_| port(1, 20_000)).collect();
    ports.extend((0..28).map(|_| Worker { more: false, ..port(1, 300) }));
    let day = live(&ports, 0, 1000 * MS);
    assert!(day.waited[4..].iter().all(|w| *w <= 4 * 24_000 + 28 * 500 + 1000), "{:?}", day.waited);
    assert!(jain(day.used[..4].iter().copied()) >= 0.999);
    assert!(day.used[..4].iter().sum::<u64>() > 850 * MS, "{:?}", day.used);
    assert_eq!(day.wasted, 0);
}

/// Owing time to nobody: who is alone runs at once.
#[test]
fn debts_are_owed_to_those_who_have_work() {
    let (a, b) = (PortId::new(3).unwrap(), PortId::new(900).unwrap());
    let mut shares = Shares::default();
    for _ in 0..10 {
        shares.begin();
        for port in [a, b] {
            assert!(shares.may_run(port, 1));
            shares.spent(port, 5000, true);
        }
    }
    shares.begin();
    assert!(shares.may_run(a, 1) && shares.may_run(b, 1));
    shares.spent(a, 19_000, true);
    shares.spent(b, 5000, true);
    shares.begin();
    assert!(!shares.may_run(a, 1) && shares.may_run(b, 1));
    shares.spent(b, 100, false);
    // The other has nothing to do any more.
    shares.begin();
    assert!(shares.may_run(a, 1));
}

/// A port that is gone, or waits for something else, holds nobody up.
#[test]
fn not_asked() {
    let (a, b) = (PortId::new(0).unwrap(), PortId::new(1).unwrap());
    let mut shares = Shares::default();
    shares.begin();
    assert!(shares.may_run(a, 1) && shares.may_run(b, 1));
    shares.spent(a, 5000, true);
    shares.spent(b, 5000, true);
    let mut refused = 0;
    for _ in 0..1000 {
        shares.begin();
        let may = shares.may_run(b, 1);
        refused += u32::from(!may);
        if may {
            shares.spent(b, 5000, true);
        }
    }
    assert!(refused <= 1);
    // Back again, it has no claim to the time it was away.
    shares.begin();
    assert!(shares.may_run(a, 1));
    shares.spent(a, 5000, true);
    let turns = (0..10).filter(|_| {
        shares.begin();
        let may = shares.may_run(a, 1);
        if may {
            shares.spent(a, 5000, true);
        }
        if shares.may_run(b, 1) {
            shares.spent(b, 5000, true);
        }
        may
    });
    assert!(turns.count() >= 9);
    assert!(shares.ports[0].used.abs_diff(shares.ports[1].used) <= 2 * 5000 * SCALE);
}

/// Short breaths buy no long ones: in turns, or by the hundred.
#[test]
fn outliers_are_no_way_out() {
    for period in [2, 5, 20, 100, 300] {
        let (mut charged, mut took) = (0, 0);
        let mut share = Share::default();
        for i in 0..100 * period {
            let ns = if i % period == 0 { 400_000 } else { 1000 };
            charged += share.charge(ns);
            took += ns;
        }
        assert!(charged * 10 > took * 4, "{period}: {charged} of {took}");
    }
    // One that is not the port's doing costs it little.
    let mut share = Share::default();
    (0..100).for_each(|_| assert_eq!(share.charge(5000), 5000));
    assert!(share.charge(4 * MS) <= 21_000);
}

proptest! {
    /// Whatever ports do: somebody may run if anybody has anything to do, at the latest in the
    /// round after the next.
    #[test]
    fn work_conserving(
        steps in prop::collection::vec(
            (0usize..6, 0u64..100_000, any::<bool>(), 1u16..1001),
            1..300,
        ),
    ) {
        let mut shares = Shares::default();
        let mut refused = [0; 6];
        for (skip, ns, more, weight) in steps {
            shares.begin();
            let mut ran = false;
            for i in (0..6).filter(|i| *i != skip) {
                let port = PortId::new(i).unwrap();
                if shares.may_run(port, weight) {
                    ran = true;
                    refused[i] = 0;
                    shares.spent(port, ns >> i, more);
                }
            }
            refused.iter_mut().for_each(|n| *n = if ran { 0 } else { *n + 1 });
            prop_assert!(refused.iter().all(|n| *n <= 2));
        }
    }
}

/// Frames and time of each port in rounds of batches that take `costs` nanoseconds a frame, a fifth
/// more or less from breath to breath.
fn batches(costs: &[u64], weights: &[u16], rounds: usize) -> Vec<(u64, u64)> {
    let mut shares = Shares::default();
    let mut got = vec![(0, 0); costs.len()];
    let mut seed = 1u64;
    for _ in 0..rounds {
        shares.begin();
        for (i, (cost, weight)) in costs.iter().zip(weights).enumerate() {
            let port = PortId::new(i).unwrap();
            if !shares.may_run(port, *weight) {
                continue;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ns = 256 * cost * (80 + (seed >> 33) % 41) / 100;
            shares.spent(port, ns, true);
            got[i] = (got[i].0 + 256, got[i].1 + ns);
        }
    }
    got
}

/// The furthest that any port is from its share by weight, in thousandths.
fn off(got: impl Iterator<Item = u64> + Clone, weights: &[u16]) -> u64 {
    let total = got.clone().sum::<u64>();
    let all = weights.iter().map(|w| u64::from(*w)).sum::<u64>();
    let fair = weights.iter().map(|w| total * u64::from(*w) / all);
    got.zip(fair).map(|(got, fair)| got.abs_diff(fair) * 1000 / fair).max().unwrap()
}

/// Whatever frames cost, by placement in the cache or by intent: time is shared to 2 in a thousand,
/// and frames as far as they cost the same.
#[test]
fn time_is_shared_whatever_frames_cost() {
    for (costs, weights) in [
        (&[100, 104, 97, 93, 106, 100, 95, 103][..], &[1; 8][..]),
        (&[40, 160, 41, 155][..], &[1; 4][..]),
        (&[100, 100, 100, 112][..], &[1; 4][..]),
        (&[97, 93, 106][..], &[1, 2, 4][..]),
    ] {
        let got = batches(costs, weights, 100_000);
        let time = off(got.iter().map(|g| g.1), weights);
        assert!(time <= 2, "{costs:?} {weights:?}: {time}");
        // Frames are equal but for their cost.
        let worth = got.iter().zip(costs).map(|(g, cost)| g.0 * cost);
        assert!(off(worth, weights) <= 5, "{costs:?} {weights:?}: {got:?}");
    }
}

/// A guest cannot get more than one and a half times its share by breaths of different length,
/// however long the long ones are and however seldom they come.
#[test]
fn short_breaths_do_not_buy_long_ones() {
    for period in [2, 50, 200, 235, 300, 500, 1000, 5000] {
        for long in [100_000, 400_000, 20_000_000] {
            let mut shares = Shares::default();
            let mut used = [0; 9];
            let mut breaths = 0;
            // Long enough for what is forgiven at first not to count.
            while used[0] < 3_000 * MS {
                shares.begin();
                for (i, used) in used.iter_mut().enumerate() {
                    let port = PortId::new(i).unwrap();
                    if !shares.may_run(port, 1) {
                        continue;
                    }
                    breaths += u64::from(i == 0);
                    let mixed = if breaths % period == 0 { long } else { 1000 };
                    let ns = if i == 0 { mixed } else { 10_000 };
                    shares.spent(port, ns, true);
                    *used += ns;
                }
            }
            let fair = used[1..].iter().sum::<u64>() / 8;
            assert!(used[0] <= fair * 153 / 100, "{period} {long}: {} of {fair}", used[0]);
        }
    }
}
