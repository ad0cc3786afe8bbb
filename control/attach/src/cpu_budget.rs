//! What a vhost-user port's own thread may use of the processor before others go first.
//!
//! It only sets things up, so an honest front end needs it for moments. But a front end decides how
//! much it has to do, and pays less for a message than we do. A pause would punish large VMs:
//! unmapping takes 20 ms for each GiB. So a thread that uses much runs with the lowest weight
//! instead, until it has used less for a while: what it gets is what nobody else wants. Only those
//! who contend with it notice: a worker on the same core keeps 98 % of it.
//!
//! A thread without privileges can lower its weight but never raise it again. So the slow turns
//! are another thread's, which ends when they do.
//!
//! Threads of vfio-user ports are not limited so: the register accesses of a busy e1000 take most
//! of a core, and a guest waits for each of them.

use std::time::Duration;

use crate::interrupt_cost::{Clocks, SystemClocks, guard_thread};

/// One part in this many of a core is always free.
const SHARE: u32 = 100;
/// CPU time beyond that which makes a thread a slow one, and below half of which it is none again.
const DEBT: Duration = Duration::from_millis(100);
/// Most that is owed: half of the above is left after 10 s.
const MOST: Duration = Duration::from_millis(150);
/// How often it is looked at, in nanoseconds: asking for a thread's time is a system call.
const LOOK: u64 = 10_000_000;
/// The lowest weight, as a nice value.
const LOWEST: i32 = 19;

/// CPU time that a port's threads have used beyond their share.
#[derive(Debug)]
struct Debt {
    owed: Duration,
    /// When it was last looked at.
    at: u64,
    /// What the thread had used by then.
    used: Duration,
}

impl Debt {
    fn new(clocks: &impl Clocks) -> Self {
        Self { owed: Duration::ZERO, at: clocks.monotonic(), used: clocks.thread_time() }
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
        let used = clocks.thread_time();
        let free = Duration::from_nanos(passed) / SHARE;
        self.owed = (self.owed + used.saturating_sub(self.used)).saturating_sub(free).min(MOST);
        (self.at, self.used) = (now, used);
    }
}

/// Calls `turn` until it returns false: by the calling thread, or with the lowest weight by another
/// one while they use much.
pub fn run(turn: impl FnMut() -> bool + Send) {
    run_by(&SystemClocks, turn);
}

fn run_by(clocks: &(impl Clocks + Sync), mut turn: impl FnMut() -> bool + Send) {
    let mut debt = Debt::new(clocks);
    while turns(clocks, &mut debt, &mut turn, |debt| debt.owed <= DEBT) {
        let slow = std::thread::scope(|s| {
            let slow = || {
                // Without the guard an interrupt could keep it for ever.
                guard_thread().ok()?;
                let _ = rustix::process::setpriority_process(None, LOWEST);
                debt.handed_over(clocks);
                Some(turns(clocks, &mut debt, &mut turn, |debt| debt.owed > DEBT / 2))
            };
            let builder = std::thread::Builder::new().name("slow-port".to_owned());
            let thread = builder.stack_size(crate::thread::STACK).spawn_scoped(s, slow);
            thread.ok().and_then(|thread| thread.join().ok()).flatten()
        });
        match slow {
            Some(true) => debt.handed_over(clocks),
            Some(false) => return,
            // No thread to be had: all is forgiven this time.
            None => debt = Debt::new(clocks),
        }
    }
}

/// Calls `turn` while `on` holds. False: the end.
fn turns(
    clocks: &impl Clocks,
    debt: &mut Debt,
    turn: &mut impl FnMut() -> bool,
    on: impl Fn(&Debt) -> bool,
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
    use std::sync::atomic::{AtomicU64, Ordering};

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
    /// percent.
    fn nice(turns: &[(u32, u64)]) -> Vec<i32> {
        let clocks = Simulated::default();
        let mut list = turns.iter().flat_map(|(n, part)| (0..*n).map(move |_| *part));
        let mut seen = Vec::new();
        run_by(&clocks, || {
            let Some(part) = list.next() else { return false };
            seen.push(rustix::process::getpriority_process(None).unwrap());
            clocks.now.fetch_add(20_000_000, Ordering::Relaxed);
            clocks.cpu.fetch_add(200_000 * part, Ordering::Relaxed);
            true
        });
        seen
    }

    #[test]
    fn who_uses_much_for_long_runs_with_the_lowest_weight_until_it_uses_less() {
        let usual = rustix::process::getpriority_process(None).unwrap();
        let slow = |turns: &[(u32, u64)]| {
            nice(turns).iter().map(|nice| u32::from(*nice != usual)).collect::<Vec<_>>()
        };
        assert_eq!(slow(&[(1000, 1)]), [0; 1000], "one part in a hundred is free");
        assert_eq!(slow(&[(5, 100), (1000, 1)]), [0; 1005], "and so is 0.1 s at once");
        // 19.8 ms of each 20 are too many: 100 ms after 6 turns. 0.2 ms are forgiven in each.
        let all = slow(&[(100, 100), (600, 0)]);
        assert_eq!((&all[..6], &all[6..600]), (&[0; 6][..], &[1; 594][..]));
        assert_eq!(all[600..], [0; 100]);
        assert!(nice(&[(100, 100)]).contains(&LOWEST));
    }

    #[test]
    fn it_ends_wherever_it_is() {
        assert_eq!(nice(&[(3, 100)]).len(), 3);
        assert_eq!(nice(&[(30, 100)]).len(), 30, "among slow turns");
    }
}
