//! How often a peer may ask for something that costs us more than itself.
//!
//! What a port's thread does on a peer's behalf is not charged to the peer's process. So whoever
//! asks for more than a well-behaved peer ever does waits, in the port's own thread: its messages
//! stay in its socket, and in the end its own calls wait.

use std::time::{Duration, Instant};

use crate::pool::{Member, Pool};

/// Pauses end when so much has been earned: waking up for each message would cost more than the
/// message.
const SLICE: Duration = Duration::from_millis(2);

/// So many at once, and one more in each `each`.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    burst: u32,
    each: Duration,
    owed: Duration,
    /// When that much was owed.
    at: Option<Instant>,
    /// Nothing more is served before.
    until: Option<Instant>,
}

impl Budget {
    /// Messages of one front end. QEMU sends some hundred when a guest starts, and for each of 32
    /// queue pairs a dozen; a worker is told of each change, and a table of memory is mapped.
    pub const MESSAGES: Self = Self::new(4096, Duration::from_micros(100));

    /// Connections to one port. Each is opened and closed by two processes, and what it set up is
    /// taken down.
    pub const CONNECTIONS: Self = Self::new(64, Duration::from_millis(20));

    /// Those of them that moved no frame. Front ends that try again do so once in a second.
    pub const IDLE_CONNECTIONS: Self = Self::new(16, Duration::from_millis(200));

    /// Descriptors that a keeper takes. 32 queue pairs need some 400.
    const DESCRIPTORS: Self = Self::new(512, Duration::from_millis(2));

    const fn new(burst: u32, each: Duration) -> Self {
        Self { burst, each, owed: Duration::ZERO, at: None, until: None }
    }

    /// One more was served.
    pub fn spend(&mut self, now: Instant) {
        self.spend_among(now, 1, 1);
    }

    /// So many more were served, and so many ports share what is earned with time.
    fn spend_among(&mut self, now: Instant, count: u32, sharers: u32) {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.owed = self.owed.saturating_sub(passed / sharers) + self.each * count;
        self.at = Some(now);
        let over = self.owed.saturating_sub(self.each * self.burst);
        self.until = (!over.is_zero()).then(|| now + over * sharers + SLICE);
    }

    /// How long to wait before the next; `None`: it may be served.
    #[must_use]
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// What taking a descriptor is counted as.
const TAKE: Duration = Duration::from_micros(40);
/// So 500 in each second are there for all ports.
static TAKES: Pool = Pool::new(50, 1);

/// What a port may have its keeper take. It outlives connections.
#[derive(Debug)]
pub struct Takes {
    budget: Budget,
    member: Member<'static>,
    /// When it was last noted what was used.
    at: Instant,
}

impl Takes {
    pub fn new(now: Instant) -> Self {
        Self::among(&TAKES, now)
    }

    fn among(pool: &'static Pool, now: Instant) -> Self {
        Self { budget: Budget::DESCRIPTORS, member: pool.join(), at: now }
    }

    /// So many were taken at once. None is as much as one.
    pub fn spend(&mut self, now: Instant, count: usize) {
        let count = u32::try_from(count).map_or(1, |count| count.max(1));
        self.note(now, TAKE * count);
        self.budget.spend_among(now, count, self.member.active());
    }

    /// As [`Budget::left`].
    #[must_use]
    pub fn left(&self, now: Instant) -> Option<Duration> {
        self.budget.left(now)
    }

    /// When it wants to be looked at though nothing happens.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.at);
        let ends = self.member.ends().map(|ends| ends.saturating_sub(passed));
        self.left(now).into_iter().chain(ends).min()
    }

    /// Time has passed: whoever sleeps is not counted for ever.
    pub fn look(&mut self, now: Instant) {
        if self.due(now) == Some(Duration::ZERO) {
            self.note(now, Duration::ZERO);
        }
    }

    fn note(&mut self, now: Instant, used: Duration) {
        let passed = now.saturating_duration_since(self.at);
        self.member.note(passed, used, Duration::ZERO);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that are served in so many seconds to whoever always has another.
    fn served(mut budget: Budget, seconds: u64) -> u32 {
        let start = Instant::now();
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(seconds) {
            match budget.left(now) {
                Some(left) => now += left,
                None => {
                    budget.spend(now);
                    (now, count) = (now + Duration::from_micros(1), count + 1);
                }
            }
        }
        count
    }

    #[test]
    fn a_burst_passes_and_a_flood_waits() {
        assert!((13_996..=14_196).contains(&served(Budget::MESSAGES, 1)));
        assert!((103_996..=104_196).contains(&served(Budget::MESSAGES, 10)));
        assert!((560..=570).contains(&served(Budget::CONNECTIONS, 10)));
        assert!((64..=68).contains(&served(Budget::IDLE_CONNECTIONS, 10)));
        assert!((5500..=5520).contains(&served(Budget::DESCRIPTORS, 10)));
    }

    /// Descriptors that are taken in 100 s for so many ports that always have more.
    fn taken(pool: &'static Pool, ports: usize) -> u32 {
        let start = Instant::now();
        let mut all: Vec<_> = (0..ports).map(|_| Takes::among(pool, start)).collect();
        let mut count = 0;
        for now in (0..10_000).map(|n| start + Duration::from_millis(10) * n) {
            for port in &mut all {
                while port.left(now).is_none() {
                    port.spend(now, 1);
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn many_that_send_descriptors_share_what_one_may_send() {
        static ONE: Pool = Pool::new(50, 1);
        static MANY: Pool = Pool::new(50, 1);
        assert!((50_000..=50_600).contains(&taken(&ONE, 1)));
        // What each may send at once, and what all may.
        assert!((90_000..=103_000).contains(&taken(&MANY, 100)), "{}", taken(&MANY, 100));
    }

    #[test]
    fn a_port_that_has_sent_many_descriptors_and_sleeps_is_not_counted_for_ever() {
        static POOL: Pool = Pool::new(50, 1);
        let start = Instant::now();
        let [mut one, other] = [(); 2].map(|()| Takes::among(&POOL, start));
        (0..400).for_each(|_| one.spend(start, 1));
        assert_eq!((other.member.active(), one.left(start)), (1, None));
        let due = one.due(start).unwrap();
        one.look(start + due);
        assert_eq!(one.due(start + due), None);
    }

    #[test]
    fn who_stays_below_never_waits() {
        let (start, mut budget) = (Instant::now(), Budget::MESSAGES);
        for n in 0..20_000 {
            let now = start + Duration::from_micros(110) * n;
            assert_eq!(budget.left(now), None);
            budget.spend(now);
        }
    }
}
