//! Whose time it was.
//!
//! Breaths that find nothing take some 50 ns each, and reading the clock takes half of that. So it
//! is not read after each of them, and what they take is nobody's. But a VMM can make them long,
//! by holes in its memory, and the next port with frames is not to pay for that. One round in
//! [`SAMPLE`] is measured throughout. The clock's last bits pick it, which no guest knows. A port
//! whose breath was suspiciously long then is measured in each round for [`CLOSELY`].

/// One round in so many is measured throughout.
const SAMPLE: u64 = 16;
/// An empty breath that takes longer, in nanoseconds, is charged to its port.
const LONG: u64 = 5_000;
/// How long such a port is measured in each round.
const CLOSELY: u64 = 10_000_000_000;
/// The most that a port pays, in nanoseconds, for a breath that was not told from those before it.
/// If it took longer, the next round is measured throughout.
const DOUBTED: u64 = 1_000_000;

/// What a breath of so many frames takes at most, in nanoseconds, if nothing is odd: each of them
/// may go to many ports.
pub(super) fn usual(frames: usize) -> u64 {
    200_000 + 2_000 * frames as u64
}

/// What a port is charged for a breath that found nothing and took so long.
pub(super) fn charged_if_empty(ns: u64) -> u64 {
    if ns > LONG { ns } else { 0 }
}

/// The breaths of a worker, as far as they are measured.
#[derive(Debug, Default)]
pub(super) struct BreathTimes {
    /// When the clock was read last.
    now: u64,
    /// How long that was after it was read before.
    took: u64,
    /// There were breaths since then.
    blurred: bool,
    /// All of this round are measured.
    all: bool,
    /// So are those of the next.
    doubt: bool,
}

impl BreathTimes {
    /// A round begins. Says how long breaths took that nobody is charged for.
    pub(super) fn begin(&mut self, now: u64) -> u64 {
        let unseen = self.unseen(now);
        let all = std::mem::take(&mut self.doubt) || now.is_multiple_of(SAMPLE);
        *self = Self { now, all, ..Self::default() };
        unseen
    }

    /// How long breaths since the clock was read last have taken, at most.
    pub(super) fn unseen(&mut self, now: u64) -> u64 {
        if std::mem::take(&mut self.blurred) { now.saturating_sub(self.now) } else { 0 }
    }

    /// When the clock was read last.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// How long that was after it was read before.
    pub(super) fn took(&self) -> u64 {
        self.took
    }

    /// A breath begins, of a port that is measured until `closely`. Says what time it is, roughly.
    #[inline]
    pub(super) fn next(&mut self, closely: u64, clock: impl Fn() -> u64) -> u64 {
        if self.blurred && closely > self.now {
            let unseen = self.read(clock);
            self.doubt |= unseen > DOUBTED;
        }
        self.now
    }

    /// True if the next breath, of a port that is measured until `closely`, is to be measured.
    pub(super) fn measures(&self, closely: u64) -> bool {
        self.all || closely > self.now
    }

    /// A joint breath begins, which is measured. Says how long breaths before it have taken, at
    /// most, that nobody is charged for.
    pub(super) fn joint_begins(&mut self, clock: impl Fn() -> u64) -> u64 {
        let blurred = self.blurred;
        let took = self.read(clock);
        self.doubt |= blurred && took > DOUBTED;
        if blurred { took } else { 0 }
    }

    /// It is over.
    pub(super) fn joint_is_over(&mut self, clock: impl Fn() -> u64) {
        self.read(clock);
    }

    /// It found nothing. Says what its port is charged for it.
    #[inline]
    pub(super) fn empty(&mut self, closely: &mut u64, clock: impl Fn() -> u64) -> u64 {
        if !self.measures(*closely) {
            self.blurred = true;
            return 0;
        }
        let spent = charged_if_empty(self.read(clock));
        if spent == 0 {
            return 0;
        }
        *closely = self.now.saturating_add(CLOSELY);
        spent
    }

    /// It did something. Says what its port is charged for it.
    #[inline]
    pub(super) fn busy(&mut self, closely: &mut u64, clock: impl Fn() -> u64) -> u64 {
        let blurred = self.blurred;
        let spent = self.read(clock);
        if spent <= DOUBTED {
            return spent;
        }
        if blurred {
            self.doubt = true;
            return DOUBTED;
        }
        *closely = self.now.saturating_add(CLOSELY);
        spent
    }

    #[inline]
    fn read(&mut self, clock: impl Fn() -> u64) -> u64 {
        let before = std::mem::replace(&mut self.now, clock());
        self.blurred = false;
        self.took = self.now.saturating_sub(before);
        self.took
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Rounds of some ports, of which the last has frames.
    #[derive(Default)]
    struct Worker {
        times: BreathTimes,
        now: Cell<u64>,
        /// How often the clock was read.
        reads: Cell<u64>,
        closely: Vec<u64>,
        charged: Vec<u64>,
    }

    impl Worker {
        /// `takes`: how long a breath of each port takes.
        fn round(&mut self, takes: &[u64]) {
            let clock = || {
                self.reads.set(self.reads.get() + 1);
                self.now.get()
            };
            self.closely.resize(takes.len(), 0);
            self.charged.resize(takes.len(), 0);
            self.times.begin(self.now.get());
            for (i, ns) in takes.iter().enumerate() {
                self.times.next(self.closely[i], clock);
                self.now.set(self.now.get() + ns);
                self.charged[i] += match i + 1 == takes.len() {
                    true => self.times.busy(&mut self.closely[i], clock),
                    false => self.times.empty(&mut self.closely[i], clock),
                };
            }
        }
    }

    #[test]
    fn who_makes_empty_breaths_long_pays_for_them() {
        let mut sampled = Worker::default();
        sampled.round(&[10_000_000, 10_000]);
        assert_eq!(sampled.charged, [10_000_000, 10_000]);
        // Not in a round that is measured: the next one is.
        let mut doubted = Worker { now: 1.into(), ..Worker::default() };
        (0..100).for_each(|_| doubted.round(&[50, 10_000_000, 10_000]));
        assert_eq!(doubted.charged, [0, 990_000_000, DOUBTED + 990_000]);
        // Too little for that: one round in 16 is measured anyway.
        let mut slow = Worker { now: 1.into(), ..Worker::default() };
        (0..100).for_each(|_| slow.round(&[50, 900_015, 10_000]));
        assert!(slow.charged[1] > 75_000_000 && slow.charged[2] < 16_000_000, "{:?}", slow.charged);
    }

    /// Nobody has frames: it is seen when the next round begins.
    #[test]
    fn a_long_empty_breath_is_seen_though_nobody_is_charged() {
        let mut times = BreathTimes::default();
        assert_eq!(times.begin(1), 0);
        let (mut closely, read) = (0, || unreachable!("the clock is not read"));
        assert_eq!(times.empty(&mut closely, read), 0);
        assert_eq!(times.begin(10_000_001), 10_000_000);
        assert_eq!(times.begin(10_000_003), 0);
    }

    /// It came before a joint breath, which pays for itself alone: the next round is measured.
    #[test]
    fn a_long_empty_breath_before_a_joint_one_is_seen() {
        let mut times = BreathTimes::default();
        times.begin(1);
        let (mut closely, read) = (0, || unreachable!("the clock is not read"));
        assert_eq!(times.joint_begins(|| 60), 0, "nobody came before it");
        times.joint_is_over(|| 100);
        assert_eq!(times.empty(&mut closely, read), 0);
        assert_eq!(times.joint_begins(|| 10_000_100), 10_000_000);
        times.joint_is_over(|| 10_000_101);
        times.begin(10_000_101);
        assert!(times.measures(0));
        times.begin(10_000_101);
        assert!(!times.measures(0));
    }

    /// The port before it has nothing to do with that.
    #[test]
    fn who_has_frames_that_take_long_pays_for_them() {
        let mut worker = Worker { now: 1.into(), ..Worker::default() };
        (0..100).for_each(|_| worker.round(&[50, 10_000_000]));
        assert_eq!(worker.charged, [0, DOUBTED + 990_000_000]);
    }

    /// The clock is read after each breath with frames, and seldom beside.
    #[test]
    fn idle_ports_cost_few_looks_at_the_clock() {
        let mut takes = [50; 64];
        takes[63] = 10_000 + 1 - 63 * 50 % 16;
        let mut worker = Worker::default();
        (0..SAMPLE).for_each(|_| worker.round(&takes));
        assert_eq!(worker.reads.get(), SAMPLE + 63);
        assert_eq!(worker.charged[..63], [0; 63]);
    }
}
