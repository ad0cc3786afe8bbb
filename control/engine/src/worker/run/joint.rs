//! Joint breaths of ports that leave few frames for each receiver.
//!
//! Each port pays for its own part, which is measured, and for its share, by frames and bytes, of
//! each visit to a receiver. Now and then all are alone, as in the rounds that are measured
//! throughout: only that shows who still leaves few frames.

#[cfg(test)]
mod tests;

use vmlan_switch::{PortId, SOURCES, Source};

use super::{Run, breath_times, clock};

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
        let unseen = self.times.joint_begins(|| clock(&self.shared));
        let now = self.times.now();
        self.took(unseen, now);
        let mut waiting = std::mem::take(&mut self.waiting);
        let longest = self.forwarder.joint_breath(&self.table, &mut waiting.sources, now);
        let (mut frames, mut slowest) = (0, None);
        for (at, source) in waiting.own.iter().zip(&waiting.sources) {
            let Some(breath) = source.breath else { break };
            self.heed(*at, breath, now);
            let empty = breath.frames == 0 && breath.held_ns.is_none();
            let ns = if empty { breath_times::charged_if_empty(source.ns) } else { source.ns };
            self.pay(*at, breath, ns);
            if source.own_ns >= breath_times::usual(breath.frames) {
                slowest = slowest.max(Some((source.own_ns, source.port)));
            }
            frames += breath.frames;
        }
        let had = waiting.sources.iter().take_while(|s| s.breath.is_some()).count();
        waiting.sources.drain(..had);
        waiting.own.drain(..had);
        self.waiting = waiting;
        self.times.joint_is_over(|| clock(&self.shared));
        let now = self.times.now();
        if let Some((ns, port)) = slowest {
            self.forwarder.took_long(Some(port), ns, now);
        } else if longest >= breath_times::usual(0) {
            // It is not known whose memory it was.
            self.forwarder.took_long(None, longest, now);
        }
        frames
    }
}
