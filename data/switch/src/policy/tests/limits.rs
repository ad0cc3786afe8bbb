//! Limits, through whole breaths: exact to 1 % over a second, nothing lost at senders, everything
//! counted at receivers.

use super::*;

/// A limit in bits or in frames.
#[derive(Clone, Copy, Debug)]
enum Of {
    Bits(u64),
    Frames(u64),
}

const KBIT: u64 = 1000;
const MBIT: u64 = 1000 * KBIT;
const GBIT: u64 = 1000 * MBIT;

/// The rates of the acceptance test, and the ends of the range; with frames that are much or little
/// beside them.
const CASES: [(Of, usize); 12] = [
    (Of::Bits(64 * KBIT), 60),
    (Of::Bits(MBIT), 60),
    (Of::Bits(MBIT), 1514),
    (Of::Bits(100 * MBIT), 60),
    (Of::Bits(100 * MBIT), 1514),
    (Of::Bits(10 * GBIT), 1514),
    (Of::Bits(10 * GBIT), 9014),
    (Of::Bits(400 * GBIT), 9014),
    (Of::Frames(100), 1514),
    (Of::Frames(10_000), 60),
    (Of::Frames(10_000), 1514),
    (Of::Frames(5_000_000), 60),
];

fn limiter(of: Of, now: u64, old: Option<&Limiter>) -> Arc<Limiter> {
    let bucket = |n: u64, old: Option<&Bucket>| {
        old.map_or_else(|| Bucket::new(rate(n), now), |b| b.with_rate(rate(n), now))
    };
    let counters = old.map_or_else(Arc::default, |l| l.counters.clone());
    Arc::new(match of {
        Of::Bits(n) => {
            let bits = Some(bucket(n, old.and_then(|l| l.bits.as_ref())));
            Limiter { bits, frames: None, counters, turns: None }
        }
        Of::Frames(n) => {
            let frames = Some(bucket(n, old.and_then(|l| l.frames.as_ref())));
            Limiter { bits: None, frames, counters, turns: None }
        }
    })
}

/// Half a second to 10: so that a frame more or less, and the first burst, are no matter.
fn long_enough(of: Of, len: usize) -> u64 {
    let frames = match of {
        Of::Bits(n) => n / (len as u64 * 8),
        Of::Frames(n) => n,
    };
    if frames < 1000 { 10_000 * MS } else { 1000 * MS }
}

fn assert_exact(of: Of, len: usize, (frames, bits): (u64, u64), ns: u64) {
    let (is, should) = match of {
        Of::Bits(n) => (bits, n * (ns / MS) / 1000),
        Of::Frames(n) => (frames, n * (ns / MS) / 1000),
    };
    let helping = match of {
        Of::Bits(_) => len as u64 * 8,
        Of::Frames(_) => 1,
    };
    let off = is.abs_diff(should);
    assert!(off <= should / 100 + helping, "{of:?} {len}: {is} of {should} in {} ms", ns / MS);
}

/// A sender that always has more, and its worker: sleeps as long as it is told, and a little
/// longer.
fn run_from(world: &mut World, until: u64, mut late: u64) {
    while world.now < until {
        world.ports[0].make(256);
        let breath = world.breathe(0);
        late = late * 7 % 60_000;
        // As long as a breath takes at 400 Gbit/s, or as the kernel lets it sleep.
        world.now += match breath.wait_ns {
            Some(ns) if breath.paused => ns + late,
            _ => 2 * US,
        };
    }
}

#[test]
fn from_a_port() {
    for (of, len) in CASES {
        let own = limiter(of, 0, None);
        let from = Limits { own: Some(own.clone()), shared: None };
        let policies = vec![Policy { from, ..Policy::default() }, Policy::default()];
        let mut world = World::new(vec![Flood::new(0, 1, len), Flood::new(1, 0, 60)], policies);
        run_from(&mut world, 50 * MS, 17);
        let (begin, before) = (world.now, world.ports[1].received());
        run_from(&mut world, begin + long_enough(of, len), 17);
        let got = world.ports[1].received();
        let window = (got.frames - before.frames, got.bits - before.bits);
        assert_exact(of, len, window, world.now - begin);
        assert_eq!((got.missing, got.frames), (0, world.ports[0].sent()));
        let c = &own.counters;
        assert_eq!((c.passed.get(), c.offered(), c.dropped.get()), (got.frames, got.frames, 0));
        assert!(c.held.get() > 0);
    }
}

/// A peer of a socket sends nothing but frames that are too long. They are read and dropped, and
/// cost it as much as others.
#[test]
fn bytes_that_are_read_and_dropped_are_charged() {
    let of = Of::Bits(10 * MBIT);
    let own = limiter(of, 0, None);
    let from = Limits { own: Some(own.clone()), shared: None };
    let policies = vec![Policy { from, ..Policy::default() }, Policy::default()];
    let mut world = World::new(vec![Flood::new(0, 1, 60), Flood::new(1, 0, 60)], policies);
    world.ports[0].sending.lock().unwrap().skips = 10_000;
    run_from(&mut world, 1000 * MS, 17);
    let bits = world.ports[0].sending.lock().unwrap().skipped * 8;
    assert!((9_900_000..=10_250_000).contains(&bits), "{bits} bits read in a second");
    assert_eq!(own.counters.passed.get(), bits / 80_000);
}

/// A sender of two and a half times as much as the receiver may have.
#[test]
fn to_a_port() {
    for (of, len) in CASES {
        let own = limiter(of, 0, None);
        let to = Limits { own: Some(own.clone()), shared: None };
        let policies = vec![Policy::default(), Policy { to, ..Policy::default() }];
        let mut world = World::new(vec![Flood::new(0, 1, len), Flood::new(1, 0, 60)], policies);
        let per_second = match of {
            Of::Bits(n) => n / (len as u64 * 8),
            Of::Frames(n) => n,
        } * 5
            / 2;
        let (mut begin, mut before, mut helpings, mut shut) = (0, Received::default(), 0u64, true);
        let mut made = 0;
        let until = 50 * MS + long_enough(of, len);
        while world.now < until {
            if begin == 0 && world.now >= 50 * MS {
                (begin, before, helpings) = (world.now, world.ports[1].received(), 0);
            }
            let there =
                u64::try_from(u128::from(per_second) * u128::from(world.now) / 1_000_000_000);
            let new = there.unwrap() - made;
            made += new;
            world.ports[0].make(new);
            let passed = own.counters.passed.get();
            world.breathe(0);
            let nothing = passed == own.counters.passed.get();
            helpings += u64::from(shut && !nothing);
            shut = nothing;
            world.now += 1000 * MS / per_second.clamp(1000, 400_000);
        }
        let got = world.ports[1].received();
        let window = (got.frames - before.frames, got.bits - before.bits);
        assert_exact(of, len, window, world.now - begin);
        let c = &own.counters;
        let dropped = world.ports[1].counters.output.dropped(vmlan_frame::Reason::OverLimit);
        assert_eq!(c.offered(), world.ports[0].sent());
        assert_eq!((c.passed.get(), c.dropped.get()), (got.frames, dropped));
        assert!(c.dropped.get() > c.offered() / 2);
        // Twice in a burst at most is it woken; of frames that fill the burst, for each of them.
        let each = got.frames - before.frames;
        assert!(helpings <= 402 * (world.now - begin).div_ceil(1000 * MS) || helpings <= each);
    }
}

/// Two ports below one limit, each with its own as well: tenant, then port.
#[test]
fn shared_by_several() {
    let tenant = limiter(Of::Bits(100 * MBIT), 0, None);
    let own = limiter(Of::Bits(20 * MBIT), 0, None);
    let from = |own| Limits { own, shared: Some(tenant.clone()) };
    let policies = vec![
        Policy { from: from(Some(own.clone())), ..Policy::default() },
        Policy { from: from(None), ..Policy::default() },
        Policy::default(),
    ];
    let ports = vec![Flood::new(0, 2, 1514), Flood::new(1, 2, 600), Flood::new(2, 0, 60)];
    let mut world = World::new(ports, policies);
    while world.now < 1000 * MS {
        for i in [0, 1] {
            world.ports[i].make(256);
            world.breathe(i);
        }
        world.now += 50 * US;
    }
    let got = world.ports[2].received();
    assert_exact(Of::Bits(100 * MBIT), 1514 * 2, (got.frames, got.bits), world.now);
    assert_eq!(tenant.counters.passed.get(), got.frames);
    assert_eq!(own.counters.passed.get(), got.of[0].0);
    assert_eq!(got.missing, 0);
    let first = got.of[0].0 * 1514 * 8;
    assert!(first <= 20 * MBIT * 101 / 100 + 12_112 && first > 10 * MBIT, "{first}");
}

/// Frames that a full receiver sends back cost nothing, and come again.
#[test]
fn held_by_a_full_receiver() {
    let own = limiter(Of::Frames(200_000), 0, None);
    let policies = vec![
        Policy { from: Limits { own: Some(own.clone()), shared: None }, ..Policy::default() },
        Policy::default(),
    ];
    let mut world = World::new(vec![Flood::new(0, 1, 200), Flood::new(1, 0, 60)], policies);
    world.ports[1].received.lock().unwrap().room = 0;
    let mut posted = 0;
    while world.now < 1000 * MS {
        world.ports[0].make(256);
        world.breathe(0);
        world.now += 100 * US;
        // A receiver that takes half of what the limit allows, a few at a time.
        if world.now.is_multiple_of(MS) {
            world.ports[1].received.lock().unwrap().room += 100;
            posted += 100;
        }
    }
    let got = world.ports[1].received();
    let drops = world.ports[1].counters.output.dropped(vmlan_frame::Reason::ReceiverFull);
    assert_eq!(got.frames + drops, world.ports[0].sent());
    assert_eq!(own.counters.passed.get(), world.ports[0].sent());
    assert!(posted - got.frames <= 100 && drops == 0, "{posted} {} {drops}", got.frames);
}

/// Another rate is in force at once, and nothing is lost on the way.
#[test]
fn changed_while_running() {
    for of in [
        [Of::Bits(100 * MBIT), Of::Bits(10 * MBIT), Of::Bits(GBIT), Of::Bits(MBIT)],
        [Of::Bits(64 * KBIT), Of::Bits(10 * GBIT), Of::Bits(64 * KBIT), Of::Bits(GBIT)],
        [Of::Frames(100), Of::Frames(1_000_000), Of::Frames(10_000), Of::Frames(1000)],
    ] {
        let mut own = limiter(of[0], 0, None);
        let from = |own: &Arc<Limiter>| Limits { own: Some(own.clone()), shared: None };
        let policies = vec![Policy { from: from(&own), ..Policy::default() }, Policy::default()];
        let mut world = World::new(vec![Flood::new(0, 1, 1514), Flood::new(1, 0, 60)], policies);
        run_from(&mut world, 333 * MS, 5);
        for new in &of[1..] {
            own = limiter(*new, world.now, Some(&own));
            world.policies[0].from = from(&own);
            world.enforce();
            let (changed, before) = (world.now, world.ports[1].received());
            // The worker looks at once when its table changes. In ten milliseconds, no more than
            // these bring, and what was there.
            run_from(&mut world, changed + 10 * MS, 5);
            let (begin, then) = (world.now, world.ports[1].received());
            let frames = then.frames - before.frames;
            let most = match new {
                Of::Bits(n) => n * 15 / 1000 / 12_112 + 2,
                Of::Frames(n) => n * 15 / 1000 + 2,
            };
            let ran = (begin - changed).div_ceil(10 * MS);
            assert!(frames <= most * ran, "{new:?}: {frames} of {most}");
            run_from(&mut world, begin + 1000 * MS, 5);
            let got = world.ports[1].received();
            let window = (got.frames - then.frames, got.bits - then.bits);
            assert_exact(*new, 1514, window, world.now - begin);
            assert_eq!((got.missing, got.frames), (0, world.ports[0].sent()));
        }
        assert_eq!(own.counters.passed.get(), world.ports[1].received().frames);
    }
}
