//! What raising interrupts costs, and how a write that hangs is ended.
//!
//! A write to an eventfd waits while its counter is full, unless the open file is non-blocking. We
//! make it so, but the front end shares the open file, and can clear the flag and fill the counter
//! at any time. So only threads that can be interrupted write to one: workers have a watchdog, a
//! port's own thread has a timer ([`guard_thread`]). The signal ends the write with EINTR, and
//! [`InterruptEventFd`] never writes to that descriptor again.
//!
//! [`InterruptEventFd`]: crate::interrupt_eventfd::InterruptEventFd

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::sys;
use crate::timer::{monotonic, thread_time};

/// What people are told of a peer whose interrupt cannot be raised.
pub const STUCK_INTERRUPT: &str = "an eventfd hung, failed or is slow: the VMM tampers with it";

thread_local! {
    static GUARD: OnceCell<sys::Interrupter> = const { OnceCell::new() };
}

/// How long a port's own thread may take for one write.
const PATIENCE: Duration = Duration::from_millis(50);

/// Makes sure that no [`InterruptEventFd`] can keep the calling thread for ever.
///
/// # Errors
/// That of the system: this thread must not raise interrupts.
pub fn guard_thread() -> io::Result<()> {
    let timer = sys::Interrupter::new()?;
    GUARD.with(|guard| guard.set(timer)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Writes to `fd`. On a port's own thread the write is interrupted if it takes too long.
pub fn write(fd: &File) -> io::Result<usize> {
    let one = || {
        let mut fd = fd;
        fd.write(&1u64.to_ne_bytes())
    };
    GUARD.with(|guard| match guard.get() {
        Some(timer) => timer.during(PATIENCE, one),
        None => one(),
    })
}

/// The clocks that a write is measured by.
pub trait Clocks {
    /// Nanoseconds that only ever grow.
    fn monotonic(&self) -> u64;

    /// CPU time that the calling thread has used.
    fn thread_time(&self) -> Duration;
}

pub struct SystemClocks;

impl Clocks for SystemClocks {
    fn monotonic(&self) -> u64 {
        monotonic()
    }

    fn thread_time(&self) -> Duration {
        thread_time()
    }
}

/// What the interrupts of one port cost those who raise them. It belongs to the port and not to a
/// connection: otherwise a peer could start afresh by connecting again or by exchanging its
/// descriptor.
///
/// A write wakes everybody who waits for the eventfd. A peer can make that hundreds of thousands of
/// epoll watches: 50 ms of a worker's time for each interrupt, which no signal ends. CPU time tells
/// this from a worker that was preempted. Asking for it costs system calls, so it is measured only
/// for a while after a write that seemed slow.
#[derive(Debug, Default)]
pub struct InterruptCost {
    /// Until then, on [`monotonic`], writes are measured in CPU time.
    measured: AtomicU64,
    debt: Mutex<Debt>,
    broken: AtomicBool,
}

/// CPU time of slow writes that is not forgiven yet.
#[derive(Debug, Default)]
struct Debt {
    time: Duration,
    writes: u32,
    at: Duration,
}

/// A write that takes longer is looked at more closely. It may only have been preempted. A crowd of
/// a thousand watches takes as long.
const SUSPECT: Duration = Duration::from_micros(100);

/// One that takes longer is charged in part even if it is quick when it is repeated. It is also the
/// most that the look at a kick's watches may take: a port's thread may not do that often.
const LONG: Duration = Duration::from_micros(500);

/// How long to look closely, in nanoseconds. The first slow write is not measured: a peer gets one
/// such write for each of these times at most.
const MEASURED: u64 = 10_000_000_000;

/// A peer that owes more CPU time than that, of more than [`SLOW`] writes, is hung up on.
const DEBT: Duration = Duration::from_millis(5);

/// Slow writes that are tolerated in any case, whatever they cost.
const SLOW: u32 = 3;

/// What is charged for a long write that is quick when it is repeated: one part in this many.
///
/// An honest peer's write also takes what the machine does meanwhile: soft interrupts, where
/// kernels do not account for them, and what the hypervisor takes away. On a busy virtual machine
/// of 2 processors that was up to 10 ms, now and then several times within a second. A crowd is
/// there the next time, too, unless the peer has taken it away as soon as it could.
const DOUBT: u32 = 6;

/// It is quick if it takes less than one part in this many, or no time at all: of a crowd that is
/// awake already, each watch takes less than before.
const ALIKE: u32 = 16;
const AT_ONCE: Duration = Duration::from_micros(25);

/// How often something is tried to see whether a crowd makes it slow.
const TRIALS: u32 = 4;

/// What is forgiven: one part in this many of the time that passes, 5 ms in each second.
const FORGIVEN: u32 = 200;
/// Most that is owed, so that everything is forgotten after 10 s.
const MOST: Duration = Duration::from_millis(50);

impl InterruptCost {
    /// True once after a write hung, failed, or was one too many that was slow.
    #[must_use]
    pub fn take_broken(&self) -> bool {
        self.is_broken() && self.broken.swap(false, Ordering::Relaxed)
    }

    /// True until it is taken.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Notes that a write hung, failed, or was one too many that was slow.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Makes a write, and measures it by `clocks`; and once more if it was slow. False: it was one
    /// slow write too many.
    pub fn timed<T>(&self, clocks: &impl Clocks, mut write: impl FnMut() -> T) -> (T, bool) {
        let start = clocks.monotonic();
        let measured = start < self.measured.load(Ordering::Relaxed);
        let before = measured.then(|| clocks.thread_time());
        let done = write();
        let now = clocks.monotonic();
        if Duration::from_nanos(now.saturating_sub(start)) <= SUSPECT {
            return (done, true);
        }
        let after = before.map(|before| (before, clocks.thread_time()));
        let used = after.map(|(before, after)| (after.saturating_sub(before), after));
        if used.is_some_and(|(used, _)| used <= SUSPECT) {
            return (done, true);
        }
        self.measured.store(now + MEASURED, Ordering::Relaxed);
        let Some((used, after)) = used else { return (done, true) };
        let done = write();
        let again = clocks.thread_time().saturating_sub(after);
        (done, self.charge(Duration::from_nanos(clocks.monotonic()), used, again))
    }

    /// True if `act` meets a crowd: it is slow each time, by the CPU time that it uses. Whatever
    /// else the machine does is not charged to it each time. It is one slow write too many then.
    #[must_use]
    pub fn finds_crowd(&self, clocks: &impl Clocks, mut act: impl FnMut()) -> bool {
        let crowd = (0..TRIALS).all(|_| {
            let before = clocks.thread_time();
            act();
            clocks.thread_time().saturating_sub(before) > LONG
        });
        if crowd {
            self.set_broken();
        }
        crowd
    }

    /// Judges a write that was slow, by the CPU time that it and its repetition have used.
    #[cold]
    fn charge(&self, now: Duration, used: Duration, again: Duration) -> bool {
        let mut debt = self.debt.lock().unwrap_or_else(PoisonError::into_inner);
        if again > (used / ALIKE).max(AT_ONCE) {
            debt.add(now, used + again, 2)
        } else if used > LONG {
            debt.add(now, used / DOUBT, 1)
        } else {
            true
        }
    }
}

impl Debt {
    /// Adds slow writes. True if that is tolerable.
    fn add(&mut self, now: Duration, used: Duration, writes: u32) -> bool {
        self.time = self.time.saturating_sub(now.saturating_sub(self.at) / FORGIVEN);
        if self.time.is_zero() {
            self.writes = 0;
        }
        self.at = now;
        self.time = (self.time + used).min(MOST);
        self.writes = self.writes.saturating_add(writes);
        self.time <= DEBT || self.writes <= SLOW
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn slow_writes_are_forgiven_with_time_only() {
        let ms = Duration::from_millis;
        let slow = |every, used| {
            let mut debt = Debt::default();
            (1..100).take_while(|i| debt.add(every * *i, used, 1)).count()
        };
        assert_eq!(slow(ms(1), ms(50)), 3, "a crowd");
        assert_eq!(slow(ms(2000), ms(50)), 3, "with pauses");
        assert_eq!(slow(ms(1), ms(1)), 5, "a small crowd");
        assert_eq!(slow(ms(500), ms(1)), 99, "a machine with its own troubles");
        assert_eq!(slow(ms(11_000), ms(50)), 99, "50 ms in 11 s");
    }

    /// Clocks that only move when they are told to.
    #[derive(Default)]
    struct Simulated {
        now: Cell<u64>,
        cpu: Cell<u64>,
    }

    impl Simulated {
        fn pass(&self, wall: u64, cpu: u64) {
            self.now.set(self.now.get() + wall * 1000);
            self.cpu.set(self.cpu.get() + cpu * 1000);
        }

        /// A write that takes so many microseconds, and so many of CPU time, each time.
        fn write(&self, cost: &InterruptCost, wall: u64, cpu: u64) -> bool {
            cost.timed(self, || self.pass(wall, cpu)).1
        }

        /// One that takes so many microseconds of CPU time at first, and few when it is repeated:
        /// less than a sixteenth of a slow one's.
        fn write_once(&self, cost: &InterruptCost, cpu: u64) -> bool {
            let mut next = cpu;
            cost.timed(self, || {
                let cpu = std::mem::replace(&mut next, 10);
                self.pass(cpu, cpu);
            })
            .1
        }
    }

    impl Clocks for Simulated {
        fn monotonic(&self) -> u64 {
            self.now.get()
        }
        fn thread_time(&self) -> Duration {
            Duration::from_nanos(self.cpu.get())
        }
    }

    /// Each watch on an eventfd is served by whoever writes to it.
    #[test]
    fn an_interrupt_that_wakes_a_crowd_is_soon_one_too_many() {
        let count = |cpu| {
            let (clocks, cost) = (Simulated::default(), InterruptCost::default());
            1 + (0..1000).take_while(|_| clocks.write(&cost, cpu, cpu)).count()
        };
        assert_eq!(count(50_000), 3, "the first is not measured, and three are tolerated");
        assert_eq!(count(2_000), 3);
        assert_eq!(count(1_000), 4, "5 ms in all");
        assert_eq!(count(300), 10);
        assert_eq!(count(100), 1001, "quick enough");
    }

    /// By another descriptor now and then, or another connection: the cost is the port's.
    #[test]
    fn a_quick_interrupt_does_not_excuse_the_slow_ones_before() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        let slow = (0..100).take_while(|n| {
            let _ = clocks.write(&cost, 10, 10);
            clocks.write(&cost, 50_000, 50_000) && *n < 99
        });
        assert_eq!(1 + slow.count(), 3);
    }

    /// As measured while others compiled on the same two processors, here all of it at once.
    #[test]
    fn a_bad_moment_of_the_machine_ends_no_connection() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        for cpu in [700, 10_362, 925, 2_035, 1_286, 829, 817, 10_000] {
            assert!(clocks.write_once(&cost, cpu) && clocks.write(&cost, 10, 10));
        }
    }

    /// An interrupt of the host's that falls into a write of ours is not the peer's doing. There
    /// may be many, each much shorter than that.
    #[test]
    fn soft_interrupts_of_the_host_end_no_connection() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        assert!((0..10_000).all(|_| clocks.write_once(&cost, 400)));
    }

    /// Who takes the crowd away before the write is repeated gains something, and not much.
    #[test]
    fn a_crowd_that_flees_is_soon_one_too_many() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        let flees = |_: &u32| clocks.write_once(&cost, 50_000);
        assert_eq!(1 + (0..1000).take_while(flees).count(), 5);
    }

    #[test]
    fn a_crowd_is_found_by_what_is_slow_each_time() {
        let finds = |times: [(u64, u64); 4]| {
            let (clocks, cost) = (Simulated::default(), InterruptCost::default());
            let mut times = times.into_iter();
            let act = || times.next().into_iter().for_each(|(wall, cpu)| clocks.pass(wall, cpu));
            let found = cost.finds_crowd(&clocks, act);
            assert_eq!(cost.is_broken(), found);
            found
        };
        assert!(finds([(50_000, 50_000); 4]) && finds([(510, 510); 4]));
        assert!(!finds([(500, 500); 4]), "quick enough");
        assert!(!finds([(50_000, 10); 4]), "preempted");
        assert!(!finds([(10_000, 10_000), (10_000, 10_000), (10_000, 10_000), (5, 5)]));
    }

    #[test]
    fn a_writer_that_was_preempted_is_not_charged() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        assert!((0..1000).all(|_| clocks.write(&cost, 50_000, 10)));
    }

    #[test]
    fn a_crowd_that_comes_again_later_is_looked_at_afresh() {
        let (clocks, cost) = (Simulated::default(), InterruptCost::default());
        for _ in 0..100 {
            assert!((0..2).all(|_| clocks.write(&cost, 20_000, 20_000)));
            clocks.now.set(clocks.now.get() + MEASURED);
        }
    }

    #[test]
    fn a_thread_has_one_guard() {
        let guard = || std::thread::spawn(|| (guard_thread().is_ok(), guard_thread().is_err()));
        assert_eq!(guard().join().unwrap(), (true, true));
    }
}
