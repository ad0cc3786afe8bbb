//! Joint breaths of ports that leave few frames for each receiver.
//!
//! What one takes is not measured for each of its ports. They pay for it by their frames, and by
//! what a frame of each cost when it was alone: as all are in the rounds that are measured, which
//! no guest knows beforehand. Else who sends the most expensive frames would gain by company.

#[cfg(test)]
mod tests;

use vmlan_switch::{Breath, PortId, SOURCES, Source};

use super::{MANY, Run, breath_times, clock};

/// What a port's frames cost that were delivered for it alone, in nanoseconds each; 0: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct FrameCost(u64);

impl FrameCost {
    /// A breath of so many frames took `ns`. One that took too long, as when others had the
    /// processor, counts for four at most.
    #[inline]
    pub(in crate::worker) fn learn(&mut self, ns: u64, frames: usize) {
        let Some(each) = ns.checked_div(frames as u64).map(|ns| ns.max(1)) else { return };
        self.0 = match self.0 {
            0 => each,
            known => (3 * known + each.min(4 * known)).div_ceil(4),
        };
    }

    fn of(self, frames: usize) -> u64 {
        self.0.saturating_mul(frames as u64)
    }
}

/// Own ports that have their next breath together.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    sources: Vec<Source>,
    /// Their places among the worker's own.
    own: Vec<usize>,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self { sources: Vec::with_capacity(SOURCES), own: Vec::with_capacity(SOURCES) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.own.len() == SOURCES
    }

    pub(super) fn add(&mut self, id: PortId, own: usize) {
        self.sources.push(Source::new(id));
        self.own.push(own);
    }
}

impl Run {
    /// A joint breath of as many of those who wait as fill a batch. Returns how many frames were
    /// finished.
    pub(super) fn joint_breath(&mut self) -> usize {
        let clock = || clock(&self.shared);
        let mut waiting = std::mem::take(&mut self.waiting);
        let now = self.times.next(u64::MAX, clock);
        self.forwarder.joint_breath(&self.table, &mut waiting.sources, now);
        let spent = self.times.joint(clock);
        let had = waiting.sources.iter().take_while(|s| s.breath.is_some()).count();
        let frames = waiting.sources.iter().map(|s| s.breath.map_or(0, |b| b.frames)).sum();
        if spent >= breath_times::usual(frames) {
            self.forwarder.took_long(None, spent, self.times.now());
        }
        let breaths = || {
            let breaths = waiting.sources.iter().map_while(|s| s.breath);
            waiting.own.iter().copied().zip(breaths)
        };
        let cost = |run: &Self, own: usize, breath: Breath| {
            run.own.get(own).map_or(0, |own| own.frame_cost.of(breath.frames))
        };
        let all: u64 = breaths().map(|(own, breath)| cost(self, own, breath)).sum();
        for (own, breath) in breaths() {
            self.heed(own, breath, now);
            let part = spent.saturating_mul(cost(self, own, breath)) / all.max(1);
            self.pay(own, breath, part);
        }
        waiting.sources.drain(..had);
        waiting.own.drain(..had);
        self.waiting = waiting;
        frames
    }

    /// Charges a port for its part of a joint breath.
    fn pay(&mut self, own: usize, breath: Breath, ns: u64) {
        let Some(own) = self.own.get(own) else { return };
        let Some(entry) = self.table.get(own.id) else { return };
        let counters = entry.port.counters();
        if breath.frames > 0 {
            counters.worked(own.lane(), ns);
        } else if breath.held_ns.is_none() && breath.wait_ns.is_none() {
            counters.found_empty(own.lane());
        }
        self.shares.spent(own.id, ns, breath.frames >= MANY);
    }
}
