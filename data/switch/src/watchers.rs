//! Who watches frames: capture files, monitor ports, samplers.
//!
//! All of them are served after a batch has been delivered, and cost one branch for each batch
//! where there are none. None of them holds a frame up: what finds no room is lost to the watcher,
//! and counted.

use std::sync::Arc;

use vmlan_frame::{Batch, Fate, Offloads, Reason, Sample, Sampling, Verdict};

use crate::forward::{Pass, Way};
use crate::policy::Domain;
use crate::{PortId, PortSet, frame_lists};

/// What a monitor port is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Frames that come from these ports or go to them.
    pub ports: PortSet,
    /// All frames of this domain.
    pub domain: Option<Domain>,
}

impl Pass<'_> {
    /// Shows the batch, which is delivered, to all who watch. `measured`: the frames were copied,
    /// and whose memory is slow is looked at.
    #[cold]
    pub(crate) fn watched(&mut self, batch: &Batch<'_>, measured: bool) {
        let table = self.table;
        if table.mirrored() {
            self.mirror(batch);
            self.handed(None, measured);
        }
        for monitor in table.monitors() {
            self.show_to(batch, *monitor);
            self.handed(self.guest(*monitor), measured);
        }
        if let Some(sampling) = &self.entry.policy.sampling {
            self.sample(batch, sampling);
            self.handed(None, measured);
        }
    }

    /// That was for a monitor, or for what has no guest's memory.
    fn handed(&mut self, to: Option<PortId>, measured: bool) {
        if measured {
            self.state.measuring.pushed(&self.switch.stalls, to);
        }
    }

    fn domain(&self, i: usize) -> Domain {
        self.state.domains.get(i).copied().unwrap_or_default()
    }

    /// Where frame `i` went, if it is finished with. A frame to all is not lost because one
    /// receiver had no room for it.
    fn fate(&self, batch: &Batch<'_>, i: usize) -> Option<Fate> {
        if batch.verdict(i) == Verdict::Held {
            return None;
        }
        let way = *self.state.ways.get(i)?;
        Some(match (way, batch.dropped(i)) {
            (
                Way::Flood | Way::WholeTeam(_),
                None | Some(Reason::ReceiverFull | Reason::OverLimit | Reason::TooLong),
            ) => Fate::Many,
            (Way::To(port) | Way::Team(port), None) => Fate::Port(port.index()),
            (Way::Drop(reason), _) | (_, Some(reason)) => Fate::Dropped(reason),
        })
    }

    /// Shows the batch to captures of its source or its destinations. Held frames are shown when
    /// they are finished with, and a capture of both ends shows a frame only where it came in: a
    /// capture in which every frame is there twice looks like a network full of retransmissions.
    fn mirror(&self, batch: &Batch<'_>) {
        let watcher = |port: PortId| self.table.get(port).and_then(|e| e.mirror.as_ref());
        let source = watcher(self.source);
        for i in (0..batch.len()).filter(|i| batch.verdict(*i) != Verdict::Held) {
            let Some(frame) = batch.frame(i) else { continue };
            let dropped = batch.dropped(i);
            if let Some((mirror, interface)) = source {
                mirror.capture(*interface, false, &frame, dropped);
            }
            let (receivers, to_many) = match self.state.ways.get(i) {
                Some(Way::To(port)) if dropped.is_none() => (std::slice::from_ref(port), false),
                Some(Way::Flood | Way::WholeTeam(_)) => (self.table.members(), true),
                _ => continue,
            };
            for port in receivers {
                // Most ports are not captured: that is asked first, it costs less.
                let Some((mirror, interface)) = watcher(*port) else { continue };
                if source.is_some_and(|(m, _)| Arc::ptr_eq(m, mirror)) {
                    continue;
                }
                if !to_many || self.flooded(batch, i, *port) {
                    mirror.capture(*interface, true, &frame, None);
                }
            }
        }
    }

    /// Copies what the monitor port `to` is to see, in the form in which it came, tags and all.
    /// Only what was let through: a monitor shows what the network carries. Use a capture file to
    /// see refused frames.
    fn show_to(&mut self, batch: &Batch<'_>, to: PortId) {
        let Some(entry) = self.table.get(to).filter(|e| e.port.is_up()) else { return };
        let (Some(watch), Some(list)) = (&entry.policy.watch, self.state.lists.get_mut(to.index()))
        else {
            return;
        };
        let mut list = std::mem::take(list);
        let wanted = |i: &&u16| self.is_wanted(watch, batch, usize::from(**i));
        list.extend(frame_lists::first(batch.len()).iter().filter(wanted));
        if !list.is_empty() {
            self.copy(batch, to, &mut list);
        }
        list.clear();
        if let Some(place) = self.state.lists.get_mut(to.index()) {
            *place = list;
        }
    }

    fn is_wanted(&self, watch: &Watch, batch: &Batch<'_>, i: usize) -> bool {
        let Some(fate) = self.fate(batch, i) else { return false };
        let domain = self.domain(i);
        let watched = watch.ports.has(self.source) || watch.domain == Some(domain);
        match fate {
            Fate::Port(port) => watched || PortId::new(port).is_some_and(|p| watch.ports.has(p)),
            Fate::Many => {
                let to = |p: &PortId| watch.ports.has(*p) && self.flooded(batch, i, *p);
                watched || self.table.members().iter().any(to)
            }
            // Nobody was there to take it; it was not refused.
            Fate::Dropped(reason) => watched && reason == Reason::NoReceiver,
        }
    }

    fn copy(&mut self, batch: &Batch<'_>, to: PortId, list: &mut [u16]) {
        let table = self.table;
        let Some(entry) = table.get(to) else { return };
        let counters = &entry.port.counters().output;
        if self.switch.stalls.left(to, self.now).is_some() {
            return counters.drop(Reason::ReceiverFull, list.len() as u64);
        }
        let most = self.allowed(batch, to, list).min(list.len());
        let (allowed, rest) = list.split_at_mut(most);
        let takes = entry.port.offloads();
        let done = if allowed.is_empty() {
            0
        } else if batch.needs() == Offloads::NONE || takes.covers(batch.needs()) {
            entry.port.push(batch, allowed)
        } else {
            let finished = &mut self.state.out.finished;
            let done = finished.push(batch, allowed, (&*entry.port, takes), false);
            // Else it would be charged to the next receiver, and shorten the time that others wait
            // for that one.
            finished.take_lost();
            done
        };
        let (copied, lost) = allowed.split_at(done.min(allowed.len()));
        if !lost.is_empty() {
            counters.drop(Reason::ReceiverFull, lost.len() as u64);
        }
        self.pushed(batch, to, copied, false);
        if !rest.is_empty() {
            // After what passed was counted: then it is known which limit had no tokens left.
            entry.policy.to.dropped(rest.len() as u64);
            counters.drop(Reason::OverLimit, rest.len() as u64);
        }
    }

    /// Hands over the frames of the batch that were chosen at random. A held frame is counted when
    /// it is finished with.
    fn sample(&self, batch: &Batch<'_>, sampling: &Sampling) {
        let done = || (0..batch.len()).filter(|i| batch.verdict(*i) != Verdict::Held);
        let frames = if batch.any_held() { done().count() } else { batch.len() };
        sampling.pass(frames, |place, number| {
            let i = if batch.any_held() { done().nth(place) } else { Some(place) };
            let Some((i, fate)) = i.and_then(|i| Some((i, self.fate(batch, i)?))) else { return };
            sampling.sampler().sample(&Sample {
                head: batch.head(i),
                len: batch.frame_len(i),
                number,
                vid: self.domain(i).bits() & 0xfff,
                fate,
            });
        });
    }
}
