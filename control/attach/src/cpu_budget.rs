//! What a port's own thread may use of the processor before others go first.
//!
//! A peer decides how much its port's thread has to do, and pays less for a message than we do.
//! What is free is shared by all ports that are busy: twenty peers must not get twenty threads of
//! ours against one worker.
//!
//! The thread of a vhost-user port only sets things up: an honest front end needs it for moments. A
//! pause would punish large VMs: unmapping takes 20 ms for each GiB. So a thread that uses much
//! runs with the lowest weight instead, until it has used less for a while: what it gets is what
//! nobody else wants. Only those who contend with it notice: a worker on the same core keeps 98 %
//! of it. A thread without privileges can lower its weight but never raise it again. So the slow
//! turns are another thread's, which ends when they do.
//!
//! The thread of a vfio-user port serves register accesses: an honest e1000 keeps one as busy as a
//! core allows, and its guest waits for each. So one alone may use a core, and several together
//! half of the cores. Who uses more pauses, and keeps its weight: it shares a lock with the workers
//! (the chip's interrupts), who would wait for it while it is kept from running.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::interrupt_cost::{Clocks, SystemClocks, guard_thread};

/// One part in this many of a core is always free.
const SHARE: u32 = 100;
/// CPU time beyond that which makes a thread a slow one, and below half of which it is none again.
/// All that are busy share it.
const DEBT: Duration = Duration::from_millis(100);
/// Who has used so much beyond the free part, and not made up for it, is busy.
const BUSY: Duration = Duration::from_millis(5);
/// Most that is remembered of that: it is made up for in 5 s.
const MOST_BUSY: Duration = Duration::from_millis(50);
/// How often it is looked at, in nanoseconds: asking for a thread's time is a system call.
const LOOK: u64 = 1_000_000;
/// The lowest weight, as a nice value.
const LOWEST: i32 = 19;
/// Longest pause: the port's owner waits for its end.
const LONGEST: Duration = Duration::from_millis(100);

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A front end's messages.
    SettingUp,
    /// Register accesses, on a machine with so many cores.
    Registers(u32),
}

impl Work {
    /// What is free of this time while so many threads are busy.
    fn free(self, time: Duration, busy: u32) -> Duration {
        match self {
            Self::SettingUp => time / SHARE,
            Self::Registers(cores) => time.min(time * (cores / 2).max(1) / busy),
        }
    }
}

/// The busy ones among the threads of all ports.
#[derive(Debug, Default)]
pub struct Crowd(AtomicU32);

/// That of this process.
pub static PORTS: Crowd = Crowd(AtomicU32::new(0));

impl Crowd {
    /// How many are busy; 1 if none is.
    pub fn busy(&self) -> u32 {
        self.0.load(Ordering::Relaxed).max(1)
    }
}

/// CPU time that a port's threads have used beyond their share.
#[derive(Debug)]
struct Debt<'c> {
    work: Work,
    crowd: &'c Crowd,
    owed: Duration,
    /// Beyond the part that is always free.
    heavy: Duration,
    /// Counted in `crowd`.
    busy: bool,
    /// When it was last looked at.
    at: u64,
    /// What the thread had used by then.
    used: Duration,
}

impl<'c> Debt<'c> {
    fn new(work: Work, crowd: &'c Crowd, clocks: &impl Clocks) -> Self {
        let (owed, heavy) = (Duration::ZERO, Duration::ZERO);
        let (at, used) = (clocks.monotonic(), clocks.thread_time());
        Self { work, crowd, owed, heavy, busy: false, at, used }
    }

    /// Another thread goes on.
    fn handed_over(&mut self, clocks: &impl Clocks) {
        self.used = clocks.thread_time();
    }

    /// Adds what was used since the last look, if that is long enough ago.
    fn look(&mut self, clocks: &impl Clocks) {
        let now = clocks.monotonic();
        let passed = now.saturating_sub(self.at);
        if passed < LOOK {
            return;
        }
        let total = clocks.thread_time();
        let (passed, used) = (Duration::from_nanos(passed), total.saturating_sub(self.used));
        self.heavy = (self.heavy + used).saturating_sub(passed / SHARE).min(MOST_BUSY);
        self.count(self.heavy > BUSY);
        let free = self.work.free(passed, self.crowd.busy());
        // Half of the limit is left after 10 s at most.
        let most = self.limit() * 3 / 2;
        self.owed = (self.owed + used).saturating_sub(free).min(most);
        (self.at, self.used) = (now, total);
    }

    fn count(&mut self, busy: bool) {
        match (self.busy, busy) {
            (false, true) => self.crowd.0.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.crowd.0.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.busy = busy;
    }

    fn limit(&self) -> Duration {
        DEBT / self.crowd.busy()
    }

    /// How long to pause until no more is owed than may be.
    fn pause(&self) -> Duration {
        let over = self.owed.saturating_sub(self.limit()).as_secs_f64();
        let free = self.work.free(Duration::from_secs(1), self.crowd.busy()).as_secs_f64();
        Duration::from_secs_f64(over / free).min(LONGEST)
    }
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        self.count(false);
    }
}

/// Calls `turn` until it returns false: by the calling thread, or with the lowest weight by another
/// one while they use much.
pub fn run(turn: impl FnMut() -> bool + Send) {
    run_by(&PORTS, &SystemClocks, turn);
}

/// Calls `turn` until it returns false, for register accesses: with pauses while they use much.
pub fn run_registers(turn: impl FnMut() -> bool) {
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count());
    pace(Work::Registers(cores), &PORTS, &SystemClocks, std::thread::sleep, turn);
}

fn pace(
    work: Work,
    crowd: &Crowd,
    clocks: &impl Clocks,
    sleep: impl Fn(Duration),
    mut turn: impl FnMut() -> bool,
) {
    let mut debt = Debt::new(work, crowd, clocks);
    while turn() {
        debt.look(clocks);
        let pause = debt.pause();
        if !pause.is_zero() {
            sleep(pause);
        }
    }
}

fn run_by(crowd: &Crowd, clocks: &(impl Clocks + Sync), mut turn: impl FnMut() -> bool + Send) {
    let mut debt = Debt::new(Work::SettingUp, crowd, clocks);
    while turns(clocks, &mut debt, &mut turn, |debt| debt.owed <= debt.limit()) {
        let slow = std::thread::scope(|s| {
            let slow = || {
                // Without the guard an interrupt could keep it for ever.
                guard_thread().ok()?;
                let _ = rustix::process::setpriority_process(None, LOWEST);
                debt.handed_over(clocks);
                Some(turns(clocks, &mut debt, &mut turn, |debt| debt.owed > debt.limit() / 2))
            };
            let builder = std::thread::Builder::new().name("slow-port".to_owned());
            let thread = builder.stack_size(crate::thread::STACK).spawn_scoped(s, slow);
            thread.ok().and_then(|thread| thread.join().ok()).flatten()
        });
        match slow {
            Some(true) => debt.handed_over(clocks),
            Some(false) => return,
            // No thread to be had: all is forgiven this time.
            None => debt = Debt::new(Work::SettingUp, crowd, clocks),
        }
    }
}

/// Calls `turn` while `on` holds. False: the end.
fn turns(
    clocks: &impl Clocks,
    debt: &mut Debt<'_>,
    turn: &mut impl FnMut() -> bool,
    on: impl Fn(&Debt<'_>) -> bool,
) -> bool {
    while on(debt) {
        if !turn() {
            return false;
        }
        debt.look(clocks);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Clocks that only move when they are told to.
    #[derive(Default)]
    struct Simulated {
        now: AtomicU64,
        cpu: AtomicU64,
    }

    impl Clocks for Simulated {
        fn monotonic(&self) -> u64 {
            self.now.load(Ordering::Relaxed)
        }
        fn thread_time(&self) -> Duration {
            Duration::from_nanos(self.cpu.load(Ordering::Relaxed))
        }
    }

    /// The nice values of so many turns, each of which takes 20 ms and uses such a part of them, in
    /// percent, beside so many busy threads.
    fn nice(others: u32, turns: &[(u32, u64)]) -> Vec<i32> {
        let (clocks, crowd) = (Simulated::default(), Crowd(others.into()));
        let mut list = turns.iter().flat_map(|(n, part)| (0..*n).map(move |_| *part));
        let mut seen = Vec::new();
        run_by(&crowd, &clocks, || {
            let Some(part) = list.next() else { return false };
            seen.push(rustix::process::getpriority_process(None).unwrap());
            clocks.now.fetch_add(20_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(200_000 * part, Ordering::Relaxed);
            true
        });
        assert_eq!(crowd.0.into_inner(), others, "whoever ends is not busy");
        seen
    }

    /// 1 for each turn that was a slow one.
    fn slow(others: u32, turns: &[(u32, u64)]) -> Vec<u32> {
        let usual = rustix::process::getpriority_process(None).unwrap();
        nice(others, turns).iter().map(|nice| u32::from(*nice != usual)).collect()
    }

    #[test]
    fn who_uses_much_for_long_runs_with_the_lowest_weight_until_it_uses_less() {
        let slow = |turns: &[(u32, u64)]| slow(0, turns);
        assert_eq!(slow(&[(1000, 1)]), [0; 1000], "one part in a hundred is free");
        assert_eq!(slow(&[(5, 100), (1000, 1)]), [0; 1005], "and so is 0.1 s at once");
        // 19.8 ms of each 20 are too many: 100 ms after 6 turns. 0.2 ms are forgiven in each.
        let all = slow(&[(100, 100), (600, 0)]);
        assert_eq!((&all[..6], &all[6..600]), (&[0; 6][..], &[1; 594][..]));
        assert_eq!(all[600..], [0; 100]);
        assert!(nice(0, &[(100, 100)]).contains(&LOWEST));
    }

    /// However many start at once: what is there for one alone is there for all of them.
    #[test]
    fn many_that_set_things_up_share_what_is_free_at_once() {
        assert_eq!(slow(19, &[(3, 100)]), [0, 1, 1]);
        assert_eq!(slow(0, &[(3, 100)]), [0; 3]);
    }

    #[test]
    fn it_ends_wherever_it_is() {
        assert_eq!(nice(0, &[(3, 100)]).len(), 3);
        assert_eq!(nice(0, &[(30, 100)]).len(), 30, "among slow turns");
    }

    /// CPU time in 20 s of a thread that serves register accesses without end, a millisecond each
    /// turn, on so many cores, beside so many that are busy.
    fn used(cores: u32, others: u32) -> u128 {
        let (clocks, crowd) = (Simulated::default(), Crowd(others.into()));
        let pass = |time: u64| clocks.now.fetch_add(time, Ordering::Relaxed) + time;
        let sleep = |time: Duration| _ = pass(u64::try_from(time.as_nanos()).unwrap());
        pace(Work::Registers(cores), &crowd, &clocks, sleep, || {
            clocks.cpu.fetch_add(1_000_000, Ordering::Relaxed);
            pass(1_000_000) < 20_000_000_000
        });
        clocks.thread_time().as_millis()
    }

    #[test]
    fn one_busy_thread_of_registers_may_have_a_core_and_several_share_half_of_them() {
        assert_eq!((used(1, 0), used(2, 0)), (20_000, 20_000), "alone");
        assert_eq!((used(8, 3), used(64, 19)), (20_000, 20_000), "cores enough for all");
        let near = |used: u128, wanted: u128| used.abs_diff(wanted) <= wanted / 50 + 100;
        for (cores, others, wanted) in
            [(1, 1, 10_000), (2, 1, 10_000), (2, 19, 1000), (8, 7, 10_000)]
        {
            let used = used(cores, others);
            assert!(near(used, wanted), "{cores} cores, {others} others: {used} ms");
        }
    }

    #[test]
    fn a_thread_that_serves_few_registers_never_pauses() {
        let (clocks, crowd) = (Simulated::default(), Crowd(19.into()));
        let mut left = 10_000;
        let never = |pause| panic!("{pause:?}");
        pace(Work::Registers(2), &crowd, &clocks, never, || {
            clocks.now.fetch_add(1_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(49_000, Ordering::Relaxed);
            left -= 1;
            left > 0
        });
    }
}
