//! What a port's own thread may use of the processor before others go first.
//!
//! A peer decides how much its port's thread has to do, and pays less for a message than we do.
//! What is free is shared by all ports that use it: twenty peers must not get twenty threads of
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
//! (the chip's interrupts), who would wait for it while it is kept from running. An honest driver
//! has frames to show for its accesses, at most 10 for each. Ports that have not share little.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::interrupt_cost::{Clocks, SystemClocks, guard_thread};
use crate::pool::{Member, Pool, count};
use crate::waker::Waker;

/// One part in this many of a core is always free.
const SHARE: u32 = 100;
/// All that set things up have so many times as much together.
const TOGETHER: u32 = 4;
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
/// Longest pause: a VMM does not wait for an answer for ever.
const LONGEST: Duration = Duration::from_secs(1);
/// Parts of it: the port's owner waits for the end of one.
const NAP: Duration = Duration::from_millis(100);

/// What a register access is counted as, in microseconds.
const ACCESS: u64 = 2;
/// Accesses that a port earns by each frame.
const FOR_A_FRAME: u64 = 32;
/// Accesses beyond those that a port may do at once: some 65,000. Its guest may start with that.
const AT_ONCE: Duration = Duration::from_micros(ACCESS << 16);
/// One part in this many of the time is free for more of them, 20,000 a second, for all ports.
const FRAMELESS: u32 = 25;
/// One part in this many of the cores is there for all that exceed this, if several are busy.
const FEW: u32 = 20;

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A front end's messages.
    SettingUp,
    /// Register accesses, on a machine with so many cores.
    Registers(u32),
}

/// What has passed through a vfio-user port so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    pub accesses: u64,
    /// In both directions.
    pub frames: u64,
}

/// What the threads of all ports share.
#[derive(Debug)]
pub struct Crowd {
    busy: AtomicU32,
    /// Have done more register accesses than their frames and the time explain.
    frameless: AtomicU32,
    setting_up: Pool,
    accesses: Pool,
}

/// That of this process.
pub static PORTS: Crowd = Crowd::new();

impl Crowd {
    const fn new() -> Self {
        let (busy, frameless) = (AtomicU32::new(0), AtomicU32::new(0));
        let (setting_up, accesses) = (Pool::new(SHARE, TOGETHER), Pool::new(FRAMELESS, 1));
        Self { busy, frameless, setting_up, accesses }
    }

    /// How many are busy; 1 if none is.
    pub fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed).max(1)
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
    /// What its work uses of the pool for that.
    member: Member<'c>,
    moved: Moved,
    /// Accesses that are not earned.
    unearned: Duration,
    /// Counted in `crowd`.
    frameless: bool,
    /// When it was last looked at.
    at: u64,
    /// What the thread had used by then.
    used: Duration,
}

impl<'c> Debt<'c> {
    fn new(work: Work, crowd: &'c Crowd, clocks: &impl Clocks) -> Self {
        let pool = match work {
            Work::SettingUp => &crowd.setting_up,
            Work::Registers(_) => &crowd.accesses,
        };
        let [owed, heavy, unearned] = [Duration::ZERO; 3];
        Self {
            work,
            crowd,
            owed,
            heavy,
            busy: false,
            member: pool.join(),
            moved: Moved::default(),
            unearned,
            frameless: false,
            at: clocks.monotonic(),
            used: clocks.thread_time(),
        }
    }

    /// Another thread goes on.
    fn handed_over(&mut self, clocks: &impl Clocks) {
        self.used = clocks.thread_time();
    }

    /// Adds what was used since the last look, if that is long enough ago.
    fn look(&mut self, clocks: &impl Clocks, moved: impl Fn() -> Moved) {
        let now = clocks.monotonic();
        let passed = now.saturating_sub(self.at);
        if passed < LOOK {
            return;
        }
        let total = clocks.thread_time();
        let (passed, used) = (Duration::from_nanos(passed), total.saturating_sub(self.used));
        self.heavy = (self.heavy + used).saturating_sub(passed / SHARE).min(MOST_BUSY);
        count(&self.crowd.busy, &mut self.busy, self.heavy > BUSY);
        match self.work {
            Work::SettingUp => self.member.note(passed, used, Duration::ZERO),
            Work::Registers(_) => self.look_at_accesses(passed, moved()),
        }
        // Half of the limit is left after 10 s at most.
        let most = self.limit() * 3 / 2;
        self.owed = (self.owed + used).saturating_sub(self.free(passed)).min(most);
        (self.at, self.used) = (now, total);
    }

    fn look_at_accesses(&mut self, passed: Duration, moved: Moved) {
        let time = |n: u64, each| Duration::from_micros(n.saturating_mul(each));
        let used = time(moved.accesses.saturating_sub(self.moved.accesses), ACCESS);
        let frames = moved.frames.saturating_sub(self.moved.frames);
        let earned = time(frames, FOR_A_FRAME * ACCESS);
        self.moved = moved;
        self.member.note(passed, used, earned);
        // So an honest one that has frames again is soon excused.
        let most = AT_ONCE + AT_ONCE / 4;
        let paid = earned + self.member.free(passed);
        self.unearned = (self.unearned + used).saturating_sub(paid).min(most);
        count(&self.crowd.frameless, &mut self.frameless, self.unearned > AT_ONCE);
    }

    /// How many want what this one wants. Those whose accesses move no frames have a part of their
    /// own, and take nothing from those that do.
    fn others(&self) -> u32 {
        let more = match self.work {
            Work::SettingUp => self.member.active(),
            Work::Registers(_) if !self.frameless => 0,
            Work::Registers(_) => self.crowd.frameless.load(Ordering::Relaxed),
        };
        self.crowd.busy().max(more)
    }

    /// What is free of this time.
    fn free(&self, time: Duration) -> Duration {
        let Work::Registers(cores) = self.work else { return self.member.free(time) };
        let others = self.others();
        let free = time.min(time * (cores / 2).max(1) / others);
        if self.frameless && others > 1 {
            let frameless = self.crowd.frameless.load(Ordering::Relaxed).max(1);
            return free.min(time * cores / (FEW * frameless));
        }
        free
    }

    fn limit(&self) -> Duration {
        DEBT / self.others()
    }

    /// How long to pause until no more is owed than may be.
    fn pause(&self) -> Duration {
        let free = self.free(Duration::from_secs(1));
        to_earn(self.owed.saturating_sub(self.limit()), free).min(LONGEST)
    }

    /// True if the turns are to be slow ones from now on; `slow`: they are.
    fn is_slow(&self, slow: bool) -> bool {
        self.owed > if slow { self.limit() / 2 } else { self.limit() }
    }

    /// When it wants to be looked at again though nothing has happened: whoever sleeps is not
    /// counted for ever.
    fn due(&self) -> Option<Duration> {
        let busy = self.busy.then(|| self.heavy.saturating_sub(BUSY / 2) * SHARE);
        let frameless = self.frameless.then(|| {
            let over = self.unearned.saturating_sub(AT_ONCE);
            to_earn(over, self.member.free(Duration::from_secs(1)))
        });
        let due = [busy, frameless, self.member.ends()].into_iter().flatten().min()?;
        Some(due + Duration::from_nanos(2 * LOOK))
    }
}

/// How long `time` takes to be earned, if so much is in each second.
fn to_earn(time: Duration, each_second: Duration) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() / each_second.as_secs_f64()).unwrap_or(LONGEST)
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        count(&self.crowd.busy, &mut self.busy, false);
        count(&self.crowd.frameless, &mut self.frameless, false);
    }
}

/// Calls `turn` until it returns false: by the calling thread, or with the lowest weight by another
/// one while they use much. A turn sleeps no longer than it is told.
pub fn run(turn: impl FnMut(Option<Duration>) -> bool + Send) {
    run_by(&PORTS, &SystemClocks, turn);
}

/// Calls `turn` until it returns false, for register accesses: with pauses while they use much and
/// `waker` does not say stop.
pub fn run_registers(
    waker: &Waker,
    moved: impl Fn() -> Moved,
    turn: impl FnMut(Option<Duration>) -> bool,
) {
    let cores = rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count());
    let sleep = |pause| {
        let end = Instant::now() + pause;
        while !waker.stops() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(NAP));
        }
    };
    pace(Work::Registers(cores), &PORTS, &SystemClocks, sleep, moved, turn);
}

fn pace(
    work: Work,
    crowd: &Crowd,
    clocks: &impl Clocks,
    sleep: impl Fn(Duration),
    moved: impl Fn() -> Moved,
    mut turn: impl FnMut(Option<Duration>) -> bool,
) {
    let mut debt = Debt::new(work, crowd, clocks);
    debt.moved = moved();
    while turn(debt.due()) {
        debt.look(clocks, &moved);
        let pause = debt.pause();
        if !pause.is_zero() {
            sleep(pause);
        }
    }
}

fn run_by(
    crowd: &Crowd,
    clocks: &(impl Clocks + Sync),
    mut turn: impl FnMut(Option<Duration>) -> bool + Send,
) {
    let mut debt = Debt::new(Work::SettingUp, crowd, clocks);
    while turns(clocks, &mut debt, &mut turn, false) {
        let slow = std::thread::scope(|s| {
            let slow = || {
                // Without the guard an interrupt could keep it for ever.
                guard_thread().ok()?;
                let _ = rustix::process::setpriority_process(None, LOWEST);
                debt.handed_over(clocks);
                Some(turns(clocks, &mut debt, &mut turn, true))
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

/// Calls `turn` while they are to be `slow` or not. False: the end.
fn turns(
    clocks: &impl Clocks,
    debt: &mut Debt<'_>,
    turn: &mut impl FnMut(Option<Duration>) -> bool,
    slow: bool,
) -> bool {
    while debt.is_slow(slow) == slow {
        if !turn(debt.due()) {
            return false;
        }
        debt.look(clocks, Moved::default);
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

    /// Whom so many others share with.
    fn crowd(others: u32) -> Crowd {
        let crowd = Crowd::new();
        crowd.busy.store(others, Ordering::Relaxed);
        crowd
    }

    /// The nice values of so many turns, each of which takes 20 ms and uses such a part of them, in
    /// percent, beside so many busy threads.
    fn nice(others: u32, turns: &[(u32, u64)]) -> Vec<i32> {
        let (clocks, crowd) = (Simulated::default(), crowd(others));
        let mut list = turns.iter().flat_map(|(n, part)| (0..*n).map(move |_| *part));
        let mut seen = Vec::new();
        run_by(&crowd, &clocks, |_| {
            let Some(part) = list.next() else { return false };
            seen.push(rustix::process::getpriority_process(None).unwrap());
            clocks.now.fetch_add(20_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(200_000 * part, Ordering::Relaxed);
            true
        });
        assert_eq!(crowd.busy.into_inner(), others, "whoever ends is not busy");
        assert_eq!(crowd.setting_up.counts(), (0, 0));
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

    /// CPU time that so many ports have at full weight in 600 s if each uses so much, in
    /// millionths, and what they use at once is left out.
    fn at_full_weight(ports: usize, millionths: u64) -> Duration {
        let (clocks, crowd) = (Simulated::default(), Crowd::new());
        let mut all: Vec<_> =
            (0..ports).map(|_| (Debt::new(Work::SettingUp, &crowd, &clocks), false)).collect();
        let mut full = 0;
        for second in 0..700 {
            clocks.now.fetch_add(1_000_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(1000 * millionths, Ordering::Relaxed);
            for (debt, slow) in &mut all {
                debt.look(&clocks, Moved::default);
                *slow = debt.is_slow(*slow);
                full += u64::from(second >= 100 && !*slow) * millionths;
            }
        }
        drop(all);
        assert_eq!((crowd.busy(), crowd.setting_up.counts()), (1, (0, 0)));
        Duration::from_micros(full)
    }

    /// Whoever stays below what one alone may use is not one of a hundred who may.
    #[test]
    fn many_that_use_little_have_four_parts_in_a_hundred_together() {
        let four = Duration::from_secs(24);
        for millionths in [100, 150, 300, 390, 1000, 2000, 4900, 9000, 20_000, 1_000_000] {
            let used = at_full_weight(100, millionths);
            assert!(used <= four, "100 ports, {millionths} millionths each: {used:?}");
        }
        assert_eq!(at_full_weight(100, 150), Duration::from_secs(9), "as much as they want");
        assert_eq!(at_full_weight(4, 9000), Duration::from_micros(21_600_000));
        // As much as one may have alone.
        assert_eq!(at_full_weight(1, 9000), Duration::from_micros(5_400_000));
    }

    /// It was busy, sleeps, and is looked at when it says.
    #[test]
    fn who_was_busy_and_sleeps_is_not_counted_for_ever() {
        let (clocks, crowd) = (Simulated::default(), Crowd::new());
        let others: Vec<_> = (0..99).map(|_| crowd.setting_up.join()).collect();
        let mut slept = Vec::new();
        run_by(&crowd, &clocks, |due| {
            let counts = (crowd.busy.load(Ordering::Relaxed), crowd.setting_up.counts().1);
            if slept.is_empty() {
                clocks.cpu.fetch_add(50_000_000, Ordering::Relaxed);
            }
            let Some(due) = due.or(slept.is_empty().then_some(Duration::from_millis(50))) else {
                assert_eq!(counts, (0, 0));
                return false;
            };
            slept.push(counts);
            let due = u64::try_from(due.as_nanos()).unwrap();
            clocks.now.fetch_add(due, Ordering::Relaxed);
            true
        });
        // Each is an end of its own.
        assert_eq!(slept, [(0, 0), (1, 1), (0, 1)]);
        drop(others);
    }

    #[test]
    fn it_ends_wherever_it_is() {
        assert_eq!(nice(0, &[(3, 100)]).len(), 3);
        assert_eq!(nice(0, &[(30, 100)]).len(), 30, "among slow turns");
    }

    /// What a thread uses in 20 s that serves register accesses without end, on so many cores.
    struct Guest {
        cores: u32,
        /// So many others are busy, and so many of them without frames.
        others: u32,
        frameless: u32,
        /// So many accesses for each frame.
        each_frame: u64,
    }

    impl Guest {
        /// The CPU time, in milliseconds.
        fn used(&self) -> u128 {
            let (clocks, crowd) = (Simulated::default(), crowd(self.others));
            crowd.frameless.store(self.frameless, Ordering::Relaxed);
            let _others: Vec<_> =
                (0..self.frameless).map(|_| crowd.accesses.busy_member()).collect();
            let pass = |time: u64| clocks.now.fetch_add(time, Ordering::Relaxed) + time;
            let sleep = |time: Duration| _ = pass(u64::try_from(time.as_nanos()).unwrap());
            let moved = || {
                // A microsecond each.
                let accesses = clocks.cpu.load(Ordering::Relaxed) / 1000;
                Moved { accesses, frames: accesses / self.each_frame }
            };
            pace(Work::Registers(self.cores), &crowd, &clocks, sleep, moved, |_| {
                clocks.cpu.fetch_add(1_000_000, Ordering::Relaxed);
                pass(1_000_000) < 20_000_000_000
            });
            assert_eq!(crowd.busy.into_inner(), self.others);
            assert_eq!(crowd.frameless.into_inner(), self.frameless);
            clocks.thread_time().as_millis()
        }
    }

    /// As [`Guest::used`], for a driver that moves frames.
    fn used(cores: u32, others: u32) -> u128 {
        Guest { cores, others, frameless: 0, each_frame: 10 }.used()
    }

    #[test]
    fn accesses_that_move_no_frame_have_a_twentieth_of_the_cores_for_all_who_make_them() {
        const NEVER: u64 = u64::MAX;
        let guest = |frameless, each_frame| Guest { cores: 2, others: 19, frameless, each_frame };
        // A twentieth of two cores, a twentieth of that: 5 ms in each second, and what it may do at
        // once before that.
        let used = guest(19, NEVER).used();
        assert!((100..=100 + 66 + 20).contains(&used), "{used} ms");
        // Who moves frames has what it had.
        let honest = guest(19, 10).used();
        assert!(honest.abs_diff(self::used(2, 19)) <= 20, "{honest} ms");
        assert_eq!(Guest { others: 0, ..guest(0, NEVER) }.used(), 20_000, "alone");
        let beside = Guest { others: 0, ..guest(19, 10) };
        assert_eq!(beside.used(), self::used(2, 0), "beside those that have used up their part");
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
        let (clocks, crowd) = (Simulated::default(), crowd(19));
        let mut left = 10_000;
        let never = |pause| panic!("{pause:?}");
        pace(Work::Registers(2), &crowd, &clocks, never, Moved::default, |_| {
            clocks.now.fetch_add(1_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(49_000, Ordering::Relaxed);
            left -= 1;
            left > 0
        });
    }
}
