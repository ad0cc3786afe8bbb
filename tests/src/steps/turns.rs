//! Whose turn it is, and what time.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::GUESTS;
use super::host::StepHost;
use crate::random::Random;

thread_local! {
    /// The number of the thread.
    static ME: Cell<usize> = const { Cell::new(GUESTS) };
}

/// How much time passes at least while nobody has anything to do, in nanoseconds.
const LONG: u64 = 300_000;

#[derive(Debug)]
struct State {
    random: Random,
    current: usize,
    asleep: Vec<bool>,
    /// When those who sleep wake up by themselves.
    until: Vec<Option<u64>>,
    /// How likely each is to go on, until the lot is drawn again.
    weights: Vec<u64>,
    drawn_until: u64,
    steps: u64,
    now: u64,
    over: bool,
}

impl State {
    /// Some are slow for a while, or stand still, as on a machine that is busy.
    fn draw_weights(&mut self) {
        if self.steps < self.drawn_until {
            return;
        }
        for weight in &mut self.weights {
            *weight = match self.random.below(4) {
                0 => 0,
                1 => 1,
                2 => 8,
                _ => 200,
            };
        }
        self.drawn_until = self.steps + 1 + self.random.below(400);
    }

    /// Who goes on.
    fn draw(&mut self) -> usize {
        let awake = |state: &Self, who: &usize| !state.asleep[*who];
        let all = |state: &Self, least: u64| {
            let who = (0..state.asleep.len()).filter(|who| awake(state, who));
            who.map(|who| state.weights[who].max(least)).sum::<u64>()
        };
        // Those who stand still go on if nobody else can.
        let least = u64::from(all(self, 0) == 0);
        let sum = all(self, least);
        if sum == 0 {
            return GUESTS;
        }
        let mut lot = self.random.below(sum);
        for who in (0..self.asleep.len()).filter(|who| awake(self, who)) {
            let weight = self.weights[who].max(least);
            if lot < weight {
                return who;
            }
            lot -= weight;
        }
        GUESTS
    }
}

/// Whose turn it is.
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    alarms: Mutex<Vec<Arc<StepHost>>>,
}

/// Ends all when a thread does.
struct Ends<'t>(&'t Turns);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Turns {
    /// For so many threads; it is the guests' turn, and no other's before [`Turns::begin`].
    pub(super) fn new(seed: u64, threads: usize) -> Arc<Self> {
        ME.set(GUESTS);
        let state = State {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            current: GUESTS,
            asleep: vec![false; threads],
            until: vec![None; threads],
            weights: vec![1; threads],
            drawn_until: 0,
            steps: 0,
            now: 1_000_000,
            over: true,
        };
        let (changed, alarms) = (Condvar::new(), Mutex::default());
        Arc::new(Self { state: Mutex::new(state), changed, alarms })
    }

    /// From now on the others have turns, too.
    pub(super) fn begin(&self, alarms: Vec<Arc<StepHost>>) {
        self.state().over = false;
        *self.alarms.lock().unwrap_or_else(PoisonError::into_inner) = alarms;
    }

    /// Nobody waits for a turn any more.
    pub(super) fn end(&self) {
        self.state().over = true;
        self.changed.notify_all();
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Runs `work` as thread `who`, from its first turn on.
    pub(super) fn take_part(&self, who: usize, work: impl FnOnce()) {
        ME.set(who);
        let _ends = Ends(self);
        let mut state = self.state();
        while state.current != who && !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        work();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> u64 {
        self.state().now
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.state().random.below(bound)
    }

    pub(super) fn wake(&self, who: usize) {
        self.state().asleep[who] = false;
    }

    /// Wakes those whose timers are due, and those who have slept for long enough.
    fn ring_alarms(&self, state: &mut State) {
        for (asleep, until) in state.asleep.iter_mut().zip(&state.until) {
            *asleep &= until.is_none_or(|at| at > state.now);
        }
        for host in self.alarms.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if host.is_due(state.now) {
                state.asleep[host.who] = false;
            }
        }
    }

    /// Somebody else may go on; returns when it is this thread's turn again. False: the end.
    pub(super) fn step(&self) -> bool {
        let me = ME.get();
        let mut state = self.state();
        if state.over {
            return false;
        }
        state.steps += 1;
        let pause = if state.random.below(50) == 0 { 30_000 } else { 700 };
        let pause = state.random.below(pause);
        state.now += pause;
        self.ring_alarms(&mut state);
        state.draw_weights();
        state.current = state.draw();
        if state.current != me {
            self.changed.notify_all();
        }
        while state.current != me && !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.over
    }

    /// Sleeps until somebody wakes this thread. False: the end.
    pub(super) fn sleep(&self) -> bool {
        self.sleep_until(None)
    }

    /// The same, but until this time at most, if one is given.
    pub(super) fn sleep_until(&self, until: Option<u64>) -> bool {
        let me = ME.get();
        let mut state = self.state();
        (state.asleep[me], state.until[me]) = (true, until);
        drop(state);
        loop {
            if !self.step() {
                return false;
            }
            let mut state = self.state();
            if !state.asleep[me] {
                state.until[me] = None;
                return true;
            }
        }
    }

    /// The guests have nothing to do: all others go on until they sleep, and time passes.
    pub(super) fn idle(&self) {
        loop {
            let mut state = self.state();
            if state.over || state.asleep[GUESTS + 1..].iter().all(|asleep| *asleep) {
                break;
            }
            state.weights[GUESTS] = 0;
            drop(state);
            self.step();
        }
        let mut state = self.state();
        let alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        let due = alarms.iter().filter_map(|host| host.due());
        let next = due.chain(state.until.iter().flatten().copied()).min();
        drop(alarms);
        state.now = next.unwrap_or_default().max(state.now + LONG);
        self.ring_alarms(&mut state);
    }

    pub(super) fn is_asleep(&self, who: usize) -> bool {
        self.state().asleep[who]
    }
}
