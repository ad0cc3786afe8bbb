//! The chip's own timer: TCTR (48h) counts clocks of the PCI bus, and when it reaches TimerInt, the
//! chip posts TimeOut (RTL8139C+ and RTL8169 datasheets, "TCTR", "TimerInt"). FreeBSD's `re`
//! moderates interrupts by it.
//!
//! The host has one timer for us, and the interrupt block needs one, too: [`ChipTimer`] stands
//! between them, as the host of both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::chip::Host;
use crate::chip::state::Fields;

const CLOCKS: u128 = 33; // Clocks of a PCI bus of 33 MHz in a microsecond.
const NS: u128 = 1000;
const LAP: u128 = 1 << 32; // Clocks until TCTR is 0 again.

#[derive(Debug, Default)]
struct State {
    /// When TCTR was 0.
    start: u64,
    /// TimerInt; 0: never.
    limit: u32,
    /// When TCTR is that.
    due: Option<u64>,
    /// What the interrupt block asked for.
    other: Option<u64>,
}

impl State {
    fn first(&self) -> Option<u64> {
        self.due.into_iter().chain(self.other).min()
    }

    /// Clocks since TCTR was set to 0.
    fn clocks(&self, now: u64) -> u128 {
        u128::from(now.saturating_sub(self.start)) * CLOCKS / NS
    }

    /// When TCTR is next what TimerInt says, after `now`.
    fn next(&self, now: u64) -> Option<u64> {
        let limit = Some(u128::from(self.limit)).filter(|limit| *limit > 0)?;
        let clocks = self.clocks(now);
        let lap = clocks - clocks % LAP;
        let at = lap + limit + if lap + limit > clocks { 0 } else { LAP };
        u64::try_from((at * NS).div_ceil(CLOCKS)).ok()?.checked_add(self.start)
    }
}

/// The host, with TCTR.
pub struct ChipTimer {
    host: Arc<dyn Host>,
    state: Mutex<State>,
}

impl ChipTimer {
    /// TCTR counts from now on.
    pub fn new(host: Arc<dyn Host>) -> Self {
        let start = host.now();
        Self { host, state: Mutex::new(State { start, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// TCTR: the lower half of all clocks.
    pub fn count(&self) -> u32 {
        let [a, b, c, d, ..] = self.state().clocks(self.host.now()).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// When TCTR was 0.
    pub fn start(&self) -> u64 {
        self.state().start
    }

    /// TCTR is written, whatever to: it counts from 0.
    pub fn restart(&self) {
        self.restart_at(self.host.now());
    }

    /// It counts from what was 0 then.
    pub fn restart_at(&self, start: u64) {
        let mut s = self.state();
        s.start = start;
        self.plan(&mut s);
    }

    /// TimerInt is written.
    pub fn set_limit(&self, limit: u32) {
        let mut s = self.state();
        s.limit = limit;
        self.plan(&mut s);
    }

    /// As after reset: TimerInt is 0.
    pub fn reset(&self) {
        *self.state() = State { start: self.host.now(), ..State::default() };
    }

    fn plan(&self, s: &mut State) {
        s.due = s.next(self.host.now());
        if let Some(at) = s.first().filter(|_| s.due.is_some()) {
            self.host.set_timer(at);
        }
    }

    /// The host's timer has fired. True: TCTR has reached TimerInt. The interrupt block is to look
    /// as well: it states its wish again.
    pub fn fired(&self) -> bool {
        let mut s = self.state();
        s.other = None;
        let now = self.host.now();
        let due = s.due.is_some_and(|at| at <= now);
        if due {
            s.due = s.next(now);
        }
        if let Some(at) = s.due {
            self.host.set_timer(at);
        }
        due
    }
}

impl ChipTimer {
    /// Passes its state. `limit`: TimerInt. What the interrupt block asked for, it asks for again.
    pub fn fields(&self, limit: u32, io: &mut Fields<'_>) {
        let Self { host: _, state: _ } = self;
        let s = &mut *self.state();
        let State { start, limit: known, due, other } = s;
        io.u64(start);
        io.option(due, Fields::u64);
        if io.restores() {
            (*known, *other) = (limit, None);
        }
    }

    /// It goes on from a state. TCTR is never further away from TimerInt than it is now.
    pub fn resume(&self) {
        let mut s = self.state();
        let next = s.next(self.host.now());
        s.due = s.due.into_iter().chain(next).min().filter(|_| s.limit > 0);
        if let Some(at) = s.due {
            self.host.set_timer(at);
        }
    }
}

impl Host for ChipTimer {
    fn now(&self) -> u64 {
        self.host.now()
    }

    fn set_timer(&self, at: u64) {
        let mut s = self.state();
        s.other = Some(at);
        self.host.set_timer(s.first().unwrap_or(at));
    }

    fn raise(&self) {
        self.host.raise();
    }

    fn lower(&self) {
        self.host.lower();
    }

    fn doorbell(&self) {
        self.host.doorbell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Fake {
        now: AtomicU64,
        at: AtomicU64,
    }

    impl Host for Fake {
        fn now(&self) -> u64 {
            self.now.load(Ordering::Relaxed)
        }
        fn set_timer(&self, at: u64) {
            self.at.store(at, Ordering::Relaxed);
        }
        fn raise(&self) {}
        fn doorbell(&self) {}
    }

    fn clock() -> (Arc<Fake>, ChipTimer) {
        let host = Arc::new(Fake::default());
        host.now.store(5_000, Ordering::Relaxed);
        (host.clone(), ChipTimer::new(host))
    }

    #[test]
    fn it_counts_and_fires_once_in_a_lap() {
        let (host, clock) = clock();
        let at = |n| host.now.store(5_000 + n, Ordering::Relaxed);
        at(1_000_000);
        assert_eq!(clock.count(), 33_000);
        clock.set_limit(66_000);
        assert_eq!(host.at.load(Ordering::Relaxed), 2_005_000);
        at(1_999_999);
        assert!(!clock.fired());
        at(2_000_000);
        assert!(clock.fired() && clock.count() >= 66_000);
        assert!(!clock.fired());
        let lap = (1u64 << 32) * 1000 / 33;
        assert!(host.at.load(Ordering::Relaxed).abs_diff(2_005_000 + lap) < 2);
        clock.restart();
        assert_eq!((clock.count(), host.at.load(Ordering::Relaxed)), (0, 4_005_000));
        clock.set_limit(0);
        at(u64::MAX / 2);
        assert!(!clock.fired());
    }

    #[test]
    fn both_users_are_called_in_time() {
        let (host, clock) = clock();
        let first = || host.at.load(Ordering::Relaxed);
        clock.set_limit(33);
        clock.set_timer(7_000);
        assert_eq!(first(), 6_000);
        clock.set_timer(5_500);
        assert_eq!(first(), 5_500);
        host.now.store(5_500, Ordering::Relaxed);
        assert!(!clock.fired());
        assert_eq!(first(), 6_000, "the other wish still stands");
        clock.set_timer(6_500);
        assert_eq!(first(), 6_000);
        host.now.store(6_000, Ordering::Relaxed);
        assert!(clock.fired());
        clock.reset();
        clock.set_timer(9_000);
        assert_eq!(first(), 9_000);
    }
}
