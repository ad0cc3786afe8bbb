use proptest::prelude::*;

use super::*;

const US: u64 = 1000;
const MS: u64 = 1_000_000;

fn id(i: usize) -> PortId {
    PortId::new(i).unwrap()
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Who sends: always has frames, of one of these lengths, while awake.
struct Sender {
    port: usize,
    weight: u16,
    lengths: &'static [u64],
    awake: fn(now: u64) -> bool,
    /// Its worker comes by this often, in nanoseconds.
    every: u64,
}

fn sender(port: usize, weight: u16, lengths: &'static [u64]) -> Sender {
    Sender { port, weight, lengths, awake: |_| true, every: 3 * US }
}

/// An uplink that takes `per_us` bytes a microsecond, and makes room when it likes: bytes that each
/// sent from `from` on, and those it could have.
fn run(queue: &Turns, senders: &[Sender], per_us: u64, from: u64, until: u64) -> (Vec<u64>, u64) {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let mut sent = vec![0; senders.len()];
    let (mut room, mut hidden, mut brought) = (0i64, 0, 0);
    let mut due = vec![0; senders.len()];
    for now in (0..until).step_by(2000) {
        hidden += 2 * per_us;
        brought += if now >= from { 2 * per_us } else { 0 };
        // Room comes in dribbles, and is not piled up without end.
        if chance.below(10) == 0 {
            room = (room + i64::try_from(hidden).unwrap()).min(256 * 1514);
            hidden = 0;
        }
        let first = usize::try_from(chance.below(senders.len() as u64)).unwrap();
        for i in (0..senders.len()).map(|i| (i + first) % senders.len()) {
            let s = &senders[i];
            if due[i] > now || !(s.awake)(now) {
                continue;
            }
            let grant = queue.grant(id(s.port), s.weight, now);
            let (mut bytes, mut frames) = (0, 0);
            while bytes < grant && room > 0 && frames < 256 {
                let n = s.lengths[usize::try_from(chance.below(s.lengths.len() as u64)).unwrap()];
                bytes += n;
                room -= i64::try_from(n).unwrap();
                frames += 1;
            }
            queue.sent(id(s.port), s.weight, bytes, frames < 256, now);
            sent[i] += if now >= from { bytes } else { 0 };
            // As the worker: sooner for room than for the turn.
            due[i] = now + if bytes >= grant { (100 * US).min(s.every * 30) } else { s.every };
        }
    }
    (sent, brought)
}

fn assert_shares(senders: &[Sender], sent: &[u64], percent: u64) {
    let weights: u64 = senders.iter().map(|s| u64::from(s.weight)).sum();
    let total: u64 = sent.iter().sum();
    for (s, bytes) in senders.iter().zip(sent) {
        let fair = total * u64::from(s.weight) / weights;
        assert!(
            bytes.abs_diff(fair) <= fair * percent / 100,
            "{}: {bytes} of {fair}: {sent:?}",
            s.port
        );
    }
}

#[test]
fn nobody_waits() {
    let queue = Turns::default();
    assert_eq!(queue.grant(id(3), 1, 0), u64::MAX);
    for now in 0..1000 {
        queue.sent(id(3), 1, 1 << 20, false, now);
        queue.sent(id(1023), 1, 1 << 10, false, now);
    }
    assert_eq!(queue.grant(id(3), 1, 1000), u64::MAX);
    // Alone, and waiting: still nobody else does.
    queue.sent(id(3), 1, 5, true, 1000);
    assert_eq!(queue.grant(id(3), 1, 1000), u64::MAX);
    // What both sent while nobody waited counts for nothing.
    assert_eq!(queue.grant(id(1023), 1, 1000), QUANTUM);
    queue.sent(id(1023), 1, 100, true, 1000);
    assert_eq!(queue.grant(id(1023), 1, 1000), QUANTUM - 100);
    assert_eq!(queue.grant(id(3), 1, 1000), QUANTUM + 100);
}

/// By bytes and weight, whatever the frames are like: short ones, long ones, large segments.
#[test]
fn weights() {
    let kinds: [[&[u64]; 3]; 4] = [
        [&[1514], &[1514], &[1514]],
        [&[60], &[1514], &[60, 300, 1514]],
        [&[1514], &[60], &[9014]],
        [&[64_000], &[60], &[60, 1514]],
    ];
    for kind in kinds {
        for weights in [[1, 1, 1], [1, 2, 4], [4, 2, 1]] {
            let senders: Vec<_> = (0..3).map(|i| sender(i * 400, weights[i], kind[i])).collect();
            let (sent, brought) = run(&Turns::default(), &senders, 125, 0, 500 * MS);
            assert_shares(&senders, &sent, 2);
            // And nothing of the uplink is wasted.
            assert!(sent.iter().sum::<u64>() > brought - brought / 50, "{sent:?} of {brought}");
        }
    }
}

#[test]
fn extreme_weights() {
    let senders = [sender(0, 1, &[1514]), sender(1, 1000, &[1514]), sender(2, 30, &[60])];
    let (sent, brought) = run(&Turns::default(), &senders, 1250, 0, 1000 * MS);
    assert_shares(&senders, &sent, 3);
    // At this rate the heavy one uses up its quantum before the others look again.
    assert!(sent.iter().sum::<u64>() > brought * 9 / 10, "{sent:?} of {brought}");
}

#[test]
fn many() {
    let senders: Vec<_> = (0..64).map(|i| sender(i, 1, &[60, 1514])).collect();
    let (sent, brought) = run(&Turns::default(), &senders, 1250, 0, 250 * MS);
    assert_shares(&senders, &sent, 2);
    assert!(sent.iter().sum::<u64>() > brought - brought / 50, "{brought}");
}

/// One whose worker is busy with others comes by seldom, and has its share nevertheless.
#[test]
fn a_busy_worker() {
    let senders = [
        sender(0, 1, &[1514]),
        Sender { every: 300 * US, ..sender(1, 1, &[1514]) },
        sender(2, 2, &[60]),
    ];
    let (sent, _) = run(&Turns::default(), &senders, 125, 0, 500 * MS);
    assert_shares(&senders, &sent, 2);
}

/// Falls silent with frames in its ring: others are held up for two milliseconds.
#[test]
fn silent() {
    let senders = [
        sender(0, 1, &[1514]),
        Sender { awake: |now| now < 100 * MS, ..sender(1, 100, &[1514]) },
        sender(2, 2, &[1514]),
    ];
    let (sent, brought) = run(&Turns::default(), &senders, 125, 100 * MS, 400 * MS);
    assert_eq!(sent[1], 0);
    assert!(sent[0] + sent[2] > brought - 125 * 3000 - brought / 50, "{sent:?} of {brought}");
    assert!(sent[2] > sent[0] * 19 / 10);
}

/// One that sleeps for long while it waits, and is taken away: nobody waits for it from then on,
/// and whoever gets its number is as any newcomer.
#[test]
fn who_leaves_is_not_waited_for() {
    let queue = Turns::patient(2000 * MS);
    let now = 5 * MS;
    queue.wants(id(0), 1, now);
    queue.sent(id(7), 1, QUANTUM, true, now);
    assert_eq!(queue.grant(id(7), 1, now), 0, "it is a quantum ahead");
    queue.leave(id(0));
    assert!(!queue.is_waiting(id(0)));
    assert_eq!(queue.grant(id(7), 1, now), u64::MAX);
    queue.sent(id(7), 1, 100 * QUANTUM, true, now);
    queue.sent(id(0), 1, 0, true, now);
    assert_eq!(queue.grant(id(0), 1, now), QUANTUM, "no credit for what another port waited");
    // Nobody with such a number has ever been there.
    queue.leave(id(9));
    assert_eq!(queue.grant(id(7), 1, now), QUANTUM);
}

/// A newcomer, or one who comes back, has its share from then on: no more, and no less.
#[test]
fn newcomers() {
    for before in [50 * MS, 0] {
        let queue = Turns::default();
        let first = [sender(0, 1, &[1514]), sender(7, 1, &[1514])];
        run(&queue, &first[usize::from(before == 0)..], 125, 0, 500 * MS);
        let senders = [sender(0, 1, &[1514]), sender(7, 1, &[1514]), sender(9, 1, &[60])];
        let (sent, _) = run(&queue, &senders, 125, 3 * MS, 100 * MS);
        assert_shares(&senders, &sent, 3);
    }
}

/// The numbers wrap after days at high rates: nobody notices, nor does who slept meanwhile.
#[test]
fn wraps() {
    let queue = Turns::default();
    for sleeper in [0, 1 << 62, 1 << 63, u64::MAX - 5] {
        queue.least.store(u64::MAX - (1 << 20), Ordering::Relaxed);
        queue.sources[5].time.store(sleeper, Ordering::Relaxed);
        for i in [0, 1] {
            queue.sources[i].time.store(u64::MAX - (1 << 20), Ordering::Relaxed);
        }
        let senders = [sender(0, 1, &[1514]), sender(1, 1, &[1514]), sender(5, 1, &[1514])];
        let (sent, _) = run(&queue, &senders, 125, 0, 100 * MS);
        assert_shares(&senders, &sent, 3);
    }
}

/// Several workers at once, each with its own sources.
#[test]
fn two_threads() {
    let queue = Turns::default();
    let room = AtomicU64::new(0);
    let clock = AtomicU64::new(0);
    // Now and then they wait for each other, so that both take part however they are scheduled.
    let together = std::sync::Barrier::new(2);
    let run = |ports: [usize; 2]| {
        let mut sent = [0u64; 2];
        for turn in 0..200_000 {
            if turn % 64 == 0 {
                together.wait();
            }
            let now = clock.fetch_add(500, Ordering::Relaxed);
            room.fetch_add(60, Ordering::Relaxed);
            for (i, bytes) in ports.into_iter().zip(&mut sent) {
                let weight = u16::try_from(i).unwrap() + 1;
                let grant = queue.grant(id(i), weight, now);
                let taken = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |r| {
                    Some(r - r.min(grant).min(6000))
                });
                let n = taken.unwrap().min(grant).min(6000);
                *bytes += n;
                queue.sent(id(i), weight, n, true, now);
            }
        }
        sent
    };
    let (a, b) = std::thread::scope(|s| {
        let other = s.spawn(|| run([0, 1]));
        (run([2, 3]), other.join().unwrap())
    });
    // How the threads take turns is the machine's affair, so shares are not judged. But nobody is
    // left out, and no more goes than there is room for.
    let total = a.iter().chain(&b).sum::<u64>();
    let most = clock.into_inner() / 500 * 60;
    assert!(total > most / 4 && total <= most, "{total} of {most}");
    assert!(a.iter().chain(&b).all(|sent| *sent > 0), "{a:?} {b:?}");
}

proptest! {
    /// Whatever is said and whatever the clock does: of those who wait one may send.
    #[test]
    fn somebody_may_send(
        steps in prop::collection::vec(
            (0usize..6, 1u16..1001, 0u64..100_000, any::<bool>(), 0u64..3_000_000, any::<bool>()),
            1..300,
        ),
    ) {
        let queue = Turns::default();
        let mut now = 10 * MS;
        for (i, weight, bytes, waits, step, back) in steps {
            now = if back { now.saturating_sub(step) } else { now + step / 100 };
            queue.sent(id(i * 200), weight, bytes, waits, now);
            let grants = (0..6).map(|i| queue.grant(id(i * 200), 1, now));
            prop_assert!(grants.max() > Some(0));
        }
    }
}
