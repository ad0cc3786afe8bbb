//! A round: each own port whose turn it is has a breath.

use vmlan_switch::Breath;

use super::{MANY, Run, breath_times, clock, earlier};

impl Run {
    /// A breath for each own port whose turn it is; returns how many frames were finished, and one
    /// more for each port that was put off.
    pub(super) fn round(&mut self, now: u64) -> usize {
        let mut frames = 0;
        (self.held_ns, self.due) = (None, None);
        self.shares.begin();
        let unseen = self.times.begin(now);
        self.took(unseen, now);
        let begun = self.forwarder.begin_round(now);
        // Of those who send to one receiver the first finds most room. So rounds begin with another
        // port each time, forwards and backwards, and with those alone or those together.
        let all = self.own.len();
        let order = self.order.checked_rem(4 * all).unwrap_or(0);
        self.order = order + 1;
        let (first, backwards) = (order / 4, order % 2 == 1);
        self.joint_first = order % 4 >= 2;
        for n in 0..all {
            let at = (if backwards { first + all - n } else { first + n }) % all;
            frames += self.turn(at);
            if self.waiting.is_full() {
                frames += self.joint_breath();
            }
        }
        while !self.waiting.is_empty() {
            frames += self.joint_breath();
        }
        let mut later = std::mem::take(&mut self.later);
        frames += later.drain(..).map(|at| self.breath(at)).sum::<usize>();
        self.later = later;
        self.forwarder.end_round(begun);
        frames
    }

    /// The turn of an own port, alone or later with others. Returns how many frames were finished
    /// now, or 1 if the port was put off.
    fn turn(&mut self, at: usize) -> usize {
        let Some(own) = self.own.get_mut(at) else { return 0 };
        let now = self.times.next(own.closely, || clock(&self.shared));
        if own.paused_until > now {
            self.due = earlier(self.due, own.paused_until);
            return 0;
        }
        let Some(entry) = self.table.get(own.id) else { return 0 };
        if !self.shares.may_run(own.id, entry.policy.weight) {
            return 1;
        }
        if !self.times.measures(own.closely) && self.forwarder.joins(&self.table, own.id, now) {
            self.waiting.add(own.id, at);
        } else if self.joint_first {
            self.later.push(at);
        } else {
            return self.breath(at);
        }
        0
    }

    /// A breath of an own port. Returns how many frames were finished.
    fn breath(&mut self, at: usize) -> usize {
        let Some(own) = self.own.get_mut(at) else { return 0 };
        let now = self.times.next(own.closely, || clock(&self.shared));
        let breath = own.breath(&mut self.forwarder, &self.table, now);
        self.heed(at, breath, now);
        let Some(own) = self.own.get_mut(at) else { return 0 };
        let spent = if breath.frames == 0 && breath.held_ns.is_none() {
            let spent = self.times.empty(&mut own.closely, || clock(&self.shared));
            if spent >= breath_times::usual(0) {
                self.forwarder.took_long(Some(own.id), spent, self.times.now());
            }
            spent
        } else {
            let spent = self.times.busy(&mut own.closely, || clock(&self.shared));
            let took = self.times.took();
            if took >= breath_times::usual(breath.frames) {
                // Or it was a breath before it, that found nothing.
                let port = (took == spent).then_some(own.id);
                self.forwarder.took_long(port, took, self.times.now());
            }
            spent
        };
        self.pay(at, breath, spent);
        breath.frames
    }

    /// Charges an own port for a breath.
    pub(super) fn pay(&mut self, at: usize, breath: Breath, ns: u64) {
        let Some(own) = self.own.get(at) else { return };
        let Some(entry) = self.table.get(own.id) else { return };
        let counters = entry.port.counters();
        if breath.frames == 0 && breath.held_ns.is_none() && breath.wait_ns.is_none() {
            counters.found_empty(own.lane());
        }
        if ns > 0 {
            counters.worked(own.lane(), ns);
        }
        self.shares.spent(own.id, ns, breath.frames >= MANY);
    }

    /// Notes what an own port waits for after its breath.
    pub(super) fn heed(&mut self, at: usize, breath: Breath, now: u64) {
        let Some(own) = self.own.get_mut(at) else { return };
        let held = breath.held_ns.is_some();
        own.passed_by |= own.held && !held && breath.frames == 0;
        own.held = held;
        self.held_ns = breath.held_ns.map_or(self.held_ns, |ns| earlier(self.held_ns, ns));
        let Some(ns) = breath.wait_ns else { return };
        let due = now.saturating_add(ns);
        own.paused_until = if breath.paused { due } else { 0 };
        self.due = earlier(self.due, due);
        if let Some(entry) = self.table.get(own.id).filter(|_| breath.passed_over) {
            own.tell_passed_over(entry, ns, now);
        }
    }
}
