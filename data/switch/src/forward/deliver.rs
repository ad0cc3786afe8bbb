//! The second pass of a breath: what each destination is handed.

use vmlan_frame::{Batch, Offloads, Reason};

use super::{Out, Pass, Way};
use crate::PortId;

const USUAL: usize = 1514; // The bytes of a frame of Ethernet's usual length.

/// How many receivers before its turn one is told to expect frames: the misses of its lock, its
/// ring and its buffers overlap with the copies for those before it.
const AHEAD: usize = 2;

/// How many frames of the usual length carry what these do, at least one each. By bytes and not by
/// segments: how many of those a frame is worth is whatever its sender says.
fn usual_frames(batch: &Batch<'_>, list: &[u16]) -> usize {
    list.iter().map(|i| batch.frame_len(usize::from(*i)).div_ceil(USUAL).max(1)).sum()
}

impl Pass<'_> {
    /// Second pass, all destinations: `push` is called for each.
    #[inline]
    pub(super) fn visit(&mut self, touched: &[PortId], mut push: impl FnMut(&mut Self, PortId)) {
        for (i, to) in touched.iter().enumerate() {
            let soon = touched.get(i + AHEAD).and_then(|soon| self.table.get(*soon));
            if let Some(entry) = soon {
                entry.port.expect();
            }
            push(self, *to);
        }
    }

    /// Second pass, all destinations, while it is measured whose memory makes workers sleep.
    #[cold]
    pub(super) fn push_measured(&mut self, batch: &mut Batch<'_>, touched: &[PortId]) {
        let (stalls, now) = (&self.switch.stalls, self.now);
        let receivers = touched.iter().chain(self.table.monitors());
        let copy = self.state.measuring.copies(stalls, receivers, now);
        let Some(mut copy) = copy else {
            touched.iter().for_each(|to| self.push(batch, *to));
            return self.show(batch);
        };
        copy.deliver(batch, |copy| {
            self.state.measuring.push(stalls, self.source, self.entry.port.is_guest());
            for to in touched {
                self.push(copy, *to);
                let guest = self.guest(*to);
                self.state.measuring.pushed(stalls, guest);
            }
            if self.table.watched() {
                self.watched(copy, true);
            }
        });
        self.state.measuring.give_back(copy);
    }

    /// `port`, if its memory is a guest's.
    pub(crate) fn guest(&self, port: PortId) -> Option<PortId> {
        self.table.get(port).filter(|entry| entry.port.is_guest()).map(|_| port)
    }

    /// Second pass, one destination: everything on its list.
    pub(super) fn push(&mut self, batch: &mut Batch<'_>, to: PortId) {
        let Some(list) = self.state.lists.get_mut(to.index()) else { return };
        let mut list = std::mem::take(list);
        if self.switch.stalls.left(to, self.now).is_some() {
            self.lose(batch, to, &list);
            list.clear();
        }
        if self.table.narrow() {
            self.drop_too_long(batch, to, &mut list);
        }
        let limited = !self.table.is_unlimited(to);
        let allowed =
            if limited { self.allowed(batch, to, &list).min(list.len()) } else { list.len() };
        let (now, later) = list.split_at_mut(allowed);
        let pushed = if now.is_empty() { 0 } else { self.push_list(batch, to, now) };
        let (taken, rest) = now.split_at(pushed.min(now.len()));
        if pushed > 0 {
            // Of a frame that was cut some segments may have been lost.
            let lost = self.state.out.finished.take_lost();
            let took = || usual_frames(batch, taken).saturating_sub(lost);
            self.switch.waits.took(to, || took().max(1), self.now);
            if self.has_heads && !self.mixed {
                self.note_served(to, took());
            }
        }
        if limited {
            self.pushed(batch, to, taken, !rest.is_empty() || !later.is_empty());
            self.not_allowed(batch, to, later);
        }
        if !rest.is_empty() {
            self.full(batch, to, rest);
        }
        list.clear();
        if let Some(place) = self.state.lists.get_mut(to.index()) {
            *place = list;
        }
    }

    /// Hands frames to a port in the form it takes them: its tags, its offloads.
    fn push_list(&mut self, batch: &Batch<'_>, to: PortId, list: &mut [u16]) -> usize {
        let Some(entry) = self.table.get(to) else { return list.len() };
        let (waits, source) = (&self.switch.waits, (!self.mixed).then_some(self.source));
        let may_wait = || waits.may(to, source, self.now);
        let Out { finished, retagged } = &mut self.state.out;
        let mut push = |batch: &Batch<'_>, list: &mut [u16]| {
            if batch.needs() == Offloads::NONE {
                return entry.port.push(batch, list);
            }
            let takes = entry.port.offloads();
            if takes.covers(batch.needs()) {
                return entry.port.push(batch, list);
            }
            finished.push(batch, list, (&*entry.port, takes), may_wait())
        };
        if self.table.all_open() {
            return push(batch, list);
        }
        let from = (&self.entry.policy.vlan, self.state.domains.as_slice());
        let to = (&entry.policy.vlan, entry.port.counters());
        retagged.push(batch, list, from, to, push)
    }

    /// The frames of `list` find no room at `to` and are not to wait for it.
    #[cold]
    fn lose(&self, batch: &mut Batch<'_>, to: PortId, list: &[u16]) {
        self.switch.waits.is_over(to);
        list.iter().for_each(|i| batch.set_dropped(usize::from(*i), Reason::ReceiverFull));
        if let Some(entry) = self.table.get(to) {
            entry.port.counters().output.drop(Reason::ReceiverFull, list.len() as u64);
        }
    }

    /// `rest` found no room at `to`: held while the receiver may be waited for, else dropped.
    /// Floods never wait, or one full port would stop everybody's broadcasts.
    fn full(&mut self, batch: &mut Batch<'_>, to: PortId, rest: &[u16]) {
        // Frames of sources that have given up are not mixed with others'.
        let source = (!self.mixed).then_some(self.source);
        let left = self.switch.waits.full(to, source, self.now);
        let (mut dropped, mut held) = (0, false);
        for i in rest.iter().map(|i| usize::from(*i)) {
            if left.is_some() && self.state.ways.get(i) == Some(&Way::To(to)) {
                batch.hold(i);
                self.note_full(i, to);
                held = true;
            } else {
                batch.set_dropped(i, Reason::ReceiverFull);
                dropped += 1;
            }
        }
        if let Some(entry) = self.table.get(to).filter(|_| dropped > 0) {
            entry.port.counters().output.drop(Reason::ReceiverFull, dropped);
        }
        if held {
            let held = &mut self.done.held_ns;
            *held = Some(left.unwrap_or(0).min(held.unwrap_or(u64::MAX)));
            if !self.state.blocked.contains(&to) {
                self.state.blocked.push(to);
            }
        }
    }
}
