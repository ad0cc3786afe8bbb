//! Pings: back to back, each after the answer to the one before; or at a rate, whatever becomes of
//! the answers.
//!
//! At a rate each ping has a time at which it is due, and is noted with that and with the time at
//! which it was sent. If the NIC stalls for a second, a thousand pings at 1,000/s are late by up to
//! that second; measured from when they were sent, they would look as quick as ever ("coordinated
//! omission").

use std::collections::VecDeque;
use std::time::Duration;

use super::super::PktGenError;
use super::super::frame::Verdict;
use super::super::histogram::Histogram;
use super::{Engine, NAP};
use vmlan_driver::nic::Nic;
use vmlan_driver::wait::{Interest, Wake};
use vmlan_transport::numbers::{limit64, nanos};

const TIMEOUT_NS: u64 = 1_000_000_000; // A ping without an answer for so long is lost.
const MOST: usize = 1 << 20; // Most pings without an answer.

#[derive(Clone, Copy)]
struct Ping {
    number: u64,
    due: u64,
    sent: u64,
    answered: bool,
}

/// Pings sent and not answered, and the round trips of those that were.
pub(super) struct Pings {
    /// Pings a second; 0: back to back.
    rate: u64,
    start: u64,
    /// Pings that the schedule has given so far.
    made: u64,
    under_way: VecDeque<Ping>,
    pub(super) sent: Histogram,
    pub(super) due: Histogram,
    interval: Option<(u64, u64, u64)>,
}

impl Pings {
    pub(super) fn new(rate: u64, now: u64) -> Self {
        Self {
            rate,
            start: now,
            made: 0,
            under_way: VecDeque::new(),
            sent: Histogram::new(),
            due: Histogram::new(),
            interval: None,
        }
    }

    pub(super) fn none_under_way(&self) -> bool {
        self.under_way.is_empty()
    }

    /// When the next one is due.
    fn next_due(&self) -> u64 {
        let after = u128::from(self.made) * 1_000_000_000 / u128::from(self.rate.max(1));
        self.start.saturating_add(limit64(after))
    }

    /// How long until the next one is due; None back to back.
    pub(super) fn until(&self, now: u64) -> Option<Duration> {
        (self.rate > 0).then(|| Duration::from_nanos(self.next_due().saturating_sub(now)))
    }

    /// When the ping that may be sent now was due.
    pub(super) fn take_due(&mut self, now: u64) -> Option<u64> {
        if self.rate == 0 {
            return self.under_way.is_empty().then_some(now);
        }
        let due = self.next_due();
        if due > now || self.under_way.len() >= MOST {
            return None;
        }
        self.made += 1;
        Some(due)
    }

    pub(super) fn add(&mut self, number: u64, due: u64, sent: u64) {
        self.under_way.push_back(Ping { number, due, sent, answered: false });
    }

    /// An answer; false when it answers no ping under way.
    pub(super) fn answer(&mut self, number: u64, now: u64) -> bool {
        let first = self.under_way.front().map_or(0, |ping| ping.number);
        let at = number.checked_sub(first).and_then(|at| usize::try_from(at).ok());
        let Some(ping) = at.and_then(|at| self.under_way.get_mut(at)).filter(|p| !p.answered)
        else {
            return false;
        };
        ping.answered = true;
        let (trip, since_due) = (now.saturating_sub(ping.sent), now.saturating_sub(ping.due));
        self.sent.add(trip);
        self.due.add(since_due);
        let (least, sum, count) = self.interval.unwrap_or((u64::MAX, 0, 0));
        self.interval = Some((least.min(trip), sum.saturating_add(trip), count + 1));
        while self.under_way.front().is_some_and(|ping| ping.answered) {
            self.under_way.pop_front();
        }
        true
    }

    /// Gives up on those that are overdue; how many.
    pub(super) fn give_up(&mut self, now: u64) -> u64 {
        let mut lost = 0;
        let over = |ping: &Ping| now.saturating_sub(ping.sent) >= TIMEOUT_NS;
        while let Some(ping) = self.under_way.front().copied().filter(|p| p.answered || over(p)) {
            lost += u64::from(!ping.answered);
            self.under_way.pop_front();
        }
        lost
    }

    /// Shortest and mean round trip since it was last asked.
    pub(super) fn take_interval(&mut self) -> Option<(u64, u64)> {
        let (least, sum, count) = self.interval.take()?;
        Some((least, sum / count))
    }
}

impl<N: Nic> Engine<'_, N> {
    pub(super) fn ping_pass(&mut self, now: u64) -> u32 {
        self.take_answers();
        self.counts.lost += self.pings.give_up(now);
        if self.nic.reap(0) == 0 {
            return 0;
        }
        let claimed = self.claim();
        let (mut sent, mut bytes) = (0, 0);
        while sent < claimed && self.nic.free_slots(0) > 0 {
            let Some(due) = self.pings.take_due(self.now()) else { break };
            let number = self.lanes[0].number;
            // Before the frame leaves: an e1000's doorbell may take as long as the whole way there
            // and back.
            let start = self.now();
            let (count, len) = self.send_each(0, 1);
            self.nic.flush(0);
            self.pings.add(number, due, start);
            sent += count;
            bytes += len;
        }
        self.count(claimed, sent, bytes);
        sent
    }

    /// After the end at `end`: takes the answers that are under way, and sends no more.
    pub(super) fn last_answers(&mut self, end: u64) -> Result<(), PktGenError> {
        self.ended_ns = end;
        while !self.pings.none_under_way() {
            self.take_answers();
            let now = self.now();
            self.counts.lost += self.pings.give_up(now);
            if now - end < nanos(self.options.spin) {
                std::hint::spin_loop();
            } else if self.nic.wait(Interest { rx: true, tx: false }, NAP)? == Wake::Disconnected {
                self.counts.lost += self.pings.give_up(u64::MAX);
            }
        }
        Ok(())
    }

    fn take_answers(&mut self) {
        for n in 0..self.lanes.len() {
            self.take_answers_of(n);
        }
    }

    fn take_answers_of(&mut self, n: usize) {
        let count = self.nic.poll(n, &mut self.lanes[n].batch, usize::MAX);
        for at in 0..count {
            match self.verdict(n, at) {
                Verdict::Corrupt => self.counts.corrupt += 1,
                Verdict::Good { queue, number } if queue == self.lanes[0].queue => {
                    let now = self.now();
                    self.counts.other += u64::from(!self.pings.answer(number, now));
                }
                _ => self.counts.other += 1,
            }
        }
        self.nic.release(n, &mut self.lanes[n].batch);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::run::drive;
    use super::super::share::Share;
    use super::*;
    use crate::pktgen::{Function, Options, Summary};
    use crate::stack::tests::wire::{Wire, pair};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_stall_counts_from_when_each_ping_was_due() {
        let mut pings = Pings::new(1000, 0);
        // Nothing can be sent for the first 100 ms; then each answer takes 1 ms.
        let now = 100 * MS;
        let mut number = 0;
        while let Some(due) = pings.take_due(now) {
            assert_eq!(due, number * MS);
            pings.add(number, due, now);
            number += 1;
        }
        assert_eq!(number, 101);
        assert_eq!(pings.until(now), Some(Duration::from_millis(1)));
        for number in 0..=100 {
            assert!(pings.answer(number, now + MS));
            assert!(!pings.answer(number, now + MS), "once");
        }
        assert!(pings.none_under_way());
        assert_eq!(pings.sent.latency().unwrap().max_ns, MS);
        let due = pings.due.latency().unwrap();
        assert_eq!((due.min_ns, due.max_ns), (MS, 101 * MS));
        assert_eq!(due.p50_ns / MS, 51);
    }

    #[test]
    fn back_to_back_waits_for_the_answer_or_gives_up() {
        let mut pings = Pings::new(0, 0);
        assert_eq!((pings.until(5), pings.take_due(5)), (None, Some(5)));
        pings.add(0, 5, 6);
        assert_eq!(pings.take_due(7), None);
        assert_eq!((pings.give_up(TIMEOUT_NS), pings.give_up(6 + TIMEOUT_NS)), (0, 1));
        assert!(!pings.answer(0, 8 + TIMEOUT_NS), "too late");
        assert!(pings.take_due(9).is_some() && pings.take_interval().is_none());
    }

    fn options(function: Function) -> Options {
        let mut options = Options::new("vhost-user:/nowhere".parse().unwrap(), function);
        options.announce = false;
        options
    }

    fn run(end: Wire, options: &Options) -> Summary {
        let share = Share::alone(1, options.count);
        let outcome = drive(options, end, share, &mut |_| {}).unwrap();
        outcome.summary(options, Duration::ZERO)
    }

    #[test]
    fn a_ping_under_way_at_the_end_is_answered_or_lost() {
        let (a, _b) = pair(Box::new(|_| true));
        let mut pings = options(Function::Ping);
        (pings.rate, pings.seconds) = (1000, Some(Duration::from_millis(50)));
        let alone = run(a, &pings);
        assert!(alone.frames > 0 && alone.lost == alone.frames, "{alone}");
        assert!(alone.latency.is_none());
        let (a, b) = pair(Box::new(|_| true));
        let (mut answers, stop) = (options(Function::Pong), Arc::new(AtomicBool::new(false)));
        answers.stop = Some(Arc::clone(&stop));
        std::thread::scope(|scope| {
            scope.spawn(move || run(b, &answers));
            let got = run(a, &pings);
            stop.store(true, Ordering::Relaxed);
            let answered = got.latency.map_or(0, |latency| latency.samples);
            assert_eq!(answered + got.lost, got.frames, "{got:?}");
        });
    }

    #[test]
    fn answers_may_overtake_each_other() {
        let mut pings = Pings::new(1000, 0);
        for number in 0..3 {
            let due = pings.take_due(10 * MS).unwrap();
            pings.add(number, due, 10 * MS);
        }
        assert!(pings.answer(2, 12 * MS) && pings.answer(0, 11 * MS) && !pings.answer(3, 12 * MS));
        assert_eq!(pings.give_up(2000 * MS), 1);
        assert!(pings.none_under_way());
        assert_eq!(pings.take_interval(), Some((MS, 3 * MS / 2)));
    }
}
