//! Joint breaths: several sources, and one visit to each receiver for all of them.
//!
//! Where many ports send to many, a breath of one source leaves a few frames for each receiver. To
//! visit one costs a lock, a look at its ring and a publication, whose cache lines other workers
//! and its guest have had meanwhile, so these cost more than the frames. In a joint breath the
//! frames of one source stay lent while the next source is pulled from, in its [`Sink::deliver`],
//! and the last one delivers them all.
//!
//! What policies know of a source, and what measures memory that makes workers sleep, takes one
//! source at a time: sources that need it, and all while somebody is watched, breathe alone.

use std::ops::Range;

use vmlan_frame::{BATCH, Batch, JOINT, Sink, Verdict};

use super::{Breath, Common, Forwarder, Pass, State};
use crate::stalls::PRICE;
use crate::{PortId, Table};

/// Sources that have one breath together, at most: each takes some of the worker's stack.
pub const SOURCES: usize = 16;

/// Frames for each receiver, up to which to visit it costs more than they do.
const FEW: usize = 8;

/// As long as there is room for so many frames another source may join.
const LEAST: usize = BATCH / 2;

/// What it takes to deliver a frame, beside copying it, in bytes to copy.
const FRAME: u64 = 256;

/// So many breaths a source has alone, after a joint one in which it shared few receivers.
const ALONE: u8 = 255;

/// A visit that takes longer, in nanoseconds, beyond one for each byte that it is worth, is dear:
/// perhaps one sender made it so. For [`PRICE`] times as long each is measured there by itself.
const DEAR: u64 = 5_000;

/// A source that has a breath with others.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// It has one lane.
    pub port: PortId,
    /// What it did; `None`: it had no turn, since the batch was full.
    pub breath: Option<Breath>,
    /// What that took, in nanoseconds, if the forwarder has a clock: its own part, and its share,
    /// by frames and bytes, of each visit to a receiver.
    pub ns: u64,
    /// As much of that as was measured for it alone.
    pub own_ns: u64,
}

impl Source {
    /// It had no turn so far.
    pub fn new(port: PortId) -> Self {
        Self { port, breath: None, ns: 0, own_ns: 0 }
    }
}

/// How a source's breaths were when it had them alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// The last one left few frames for each receiver.
    few: bool,
    /// It stays alone for so many more.
    alone: u8,
}

/// A source whose frames are in the joint batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) source: PortId,
    /// Its ring, and its first frame.
    pub(super) ring: u8,
    pub(super) first: usize,
    uplink: Option<PortId>,
    done: Breath,
    /// Its share of visits, and what was measured for it alone, in nanoseconds.
    shared_ns: u64,
    own_ns: u64,
    /// What its frames for one receiver are worth.
    pub(super) worth: u64,
    /// Receivers of its frames, and those of them that others had frames for, too.
    receivers: usize,
    shared: usize,
}

impl Sender {
    fn new(source: PortId, ring: u8, first: usize) -> Self {
        Self {
            source,
            ring,
            first,
            uplink: None,
            done: Breath::default(),
            shared_ns: 0,
            own_ns: 0,
            worth: 0,
            receivers: 0,
            shared: 0,
        }
    }
}

impl State {
    /// A source was alone with its last batch.
    #[inline]
    pub(super) fn note_habit(&mut self, source: PortId) {
        let (frames, receivers) = std::mem::take(&mut self.last);
        if let Some(habit) = self.habits.get_mut(source.index()) {
            habit.few = frames > 0 && frames <= receivers * FEW;
        }
    }

    /// Nanoseconds since this was asked last.
    fn lap(&mut self) -> u64 {
        let Some(now) = self.measuring.clock() else { return 0 };
        now.saturating_sub(std::mem::replace(&mut self.lapped, now))
    }

    /// What each sender's frames for `to` are worth, in bytes to copy, before they are handed to
    /// it. Returns how many frames these are.
    fn weigh(&mut self, all: &Batch<'_>, to: PortId) -> usize {
        let list = self.lists.get(to.index()).map_or(&[][..], Vec::as_slice);
        let worth = |i: &u16| FRAME + all.frame_len(usize::from(*i)) as u64;
        let mut rest = list;
        for sender in self.senders.iter_mut().rev() {
            let first = rest.partition_point(|i| usize::from(*i) < sender.first);
            let (before, theirs) = rest.split_at(first);
            sender.worth = theirs.iter().map(worth).sum();
            rest = before;
        }
        list.len()
    }

    /// A visit is over. If its frames were handed over `at_once`, their senders share what it took,
    /// and are measured one by one for a while if that was dear.
    fn visited(&mut self, to: PortId, at_once: bool) {
        let ns = if at_once { self.lap() } else { 0 };
        let all = self.senders.iter().map(|sender| sender.worth).sum::<u64>().max(1);
        for sender in self.senders.iter_mut().filter(|sender| sender.worth > 0) {
            sender.shared_ns += ns.saturating_mul(sender.worth) / all;
            sender.receivers += 1;
            sender.shared += usize::from(sender.worth < all);
        }
        self.longest = self.longest.max(ns);
        if ns > all + DEAR
            && let Some(until) = self.apart.get_mut(to.index())
        {
            *until = self.lapped.saturating_add(ns.saturating_mul(PRICE));
        }
    }

    /// Those who shared few of their receivers are alone for some time.
    fn learn(&mut self) {
        for sender in self.senders.iter().filter(|sender| 2 * sender.shared < sender.receivers) {
            if let Some(habit) = self.habits.get_mut(sender.source.index()) {
                habit.alone = ALONE;
            }
        }
    }

    /// A source of a joint breath has no frames, or some that are not delivered with others.
    fn parts(&mut self, source: PortId) {
        if let Some(habit) = self.habits.get_mut(source.index()) {
            habit.few = false;
        }
    }

    /// Frames of a joint breath are held: what `done` says is for those whose frames these are.
    #[cold]
    fn note_held(&mut self, all: &Batch<'_>, done: Breath) {
        let mut end = all.len();
        for sender in self.senders.iter_mut().rev() {
            if (sender.first..end).any(|i| all.verdict(i) == Verdict::Held) {
                let own = sender.done.held_ns;
                sender.done.held_ns = own.into_iter().chain(done.held_ns).min();
            }
            end = sender.first;
        }
    }
}

impl Forwarder {
    /// True if `source` had better have its next breath with others, by
    /// [`Forwarder::joint_breath`]: it left few frames for each receiver.
    #[inline]
    pub fn joins(&mut self, table: &Table, source: PortId, now: u64) -> bool {
        let Some(habit) = self.state.habits.get_mut(source.index()) else { return false };
        if !habit.few {
            return false;
        }
        if habit.alone > 0 {
            habit.alone -= 1;
            return false;
        }
        self.may_join(table, source, now)
    }

    /// True if `source` can have a breath with others: it has one lane, and nothing is to be told
    /// of its frames but their addresses.
    pub fn may_join(&self, table: &Table, source: PortId, now: u64) -> bool {
        let Some(entry) = table.get(source) else { return false };
        let policy = &entry.policy;
        let plain = policy.from.is_none() && !policy.joined_only && !policy.looks_at_each();
        let lanes = self.state.at_uplink.get(source.index()).map(Vec::as_slice);
        // It does not wait at an uplink.
        let leaves = lanes == Some(&[None]);
        plain && leaves && table.is_simple() && !self.switch.stalls.are_some(now)
    }

    /// A breath of several sources together, who may all join: see [`Forwarder::breath`]. As many
    /// of `sources`, from the first on, have it as fill a batch; at least one. Returns how long the
    /// longest visit took that several shared, in nanoseconds.
    pub fn joint_breath(&mut self, table: &Table, sources: &mut [Source], now: u64) -> u64 {
        self.state.longest = 0;
        self.state.ways.clear();
        self.state.domains.clear();
        self.state.senders.clear();
        self.state.have_heads = false;
        self.state.lap();
        let (switch, state) = (&*self.switch, &mut self.state);
        let common = Common { switch, state, table, now };
        let all = Batch::take(&mut self.joint);
        let (all, _) = common.pull(all, &mut self.spares, sources);
        all.give_back(&mut self.joint);
        for source in sources {
            let empty = |breath: &Breath| breath.frames == 0 && breath.held_ns.is_none();
            if source.breath.as_ref().is_some_and(empty) {
                self.state.parts(source.port);
            }
        }
        self.state.longest
    }
}

impl Common<'_> {
    /// Pulls from `sources`, each while the frames of those before it are lent. Returns the batch,
    /// and whether it was delivered; else they added nothing to it.
    fn pull<'m>(
        self,
        mut all: Batch<'m>,
        spares: &mut [Batch<'static>],
        sources: &mut [Source],
    ) -> (Batch<'m>, bool) {
        let Some((spare, spares)) = spares.split_first_mut() else { return (all, false) };
        let mut sources = sources;
        while let Some((source, behind)) = sources.split_first_mut()
            && JOINT - all.len() >= LEAST
        {
            source.breath = Some(Breath::default());
            if let Some(entry) = self.table.get(source.port) {
                let Self { switch, table, now, .. } = self;
                let common = Common { switch, state: &mut *self.state, table, now };
                let limit = BATCH.min(JOINT - all.len());
                let pass = Pass::new(common, (source.port, entry), 0, None);
                let mut turn = Turn {
                    pass,
                    all,
                    spares,
                    sources: behind,
                    delivered: false,
                    shared_ns: 0,
                    own_ns: 0,
                };
                spare.set_source(source.port.number());
                let frames = entry.port.pull(0, spare, limit, &mut turn);
                let Turn { pass, all: given_back, delivered, shared_ns, own_ns, .. } = turn;
                source.own_ns = own_ns + pass.state.lap();
                source.ns = source.own_ns + shared_ns;
                let (done, uplink) = (pass.done, pass.uplink);
                all = given_back;
                if let Some(at) = self.state.at_uplink(source.port, 0) {
                    *at = uplink;
                }
                source.breath = Some(Breath { frames, ..done });
                if delivered {
                    return (all, true);
                }
            }
            sources = behind;
        }
        (all, false)
    }
}

/// The turn of a source in a joint breath.
struct Turn<'a, 'm> {
    pass: Pass<'a>,
    /// Frames of those before it; when they are delivered, what became of them.
    all: Batch<'m>,
    spares: &'a mut [Batch<'static>],
    /// Those behind it.
    sources: &'a mut [Source],
    delivered: bool,
    /// Its share of visits, and what was measured for it alone, in nanoseconds.
    shared_ns: u64,
    own_ns: u64,
}

impl Sink for Turn<'_, '_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut all: Batch<'_> = std::mem::take(&mut self.all);
        let first = all.len();
        let joins = !self.delivered && batch.is_plain() && all.append(batch);
        if !joins {
            self.own_ns += self.pass.state.lap();
            if !self.delivered {
                self.pass.push_joint(&mut all);
            }
            self.pass.deliver(batch);
            self.pass.state.parts(self.pass.source);
        } else {
            batch.touch();
            let frames = first..all.len();
            self.pass.classify_by_macs(&mut all, frames.clone());
            let at = self.pass.state.senders.len();
            self.pass.state.senders.push(Sender::new(self.pass.source, batch.ring(), first));
            self.pass.state.have_heads |= self.pass.has_heads;
            self.own_ns += self.pass.state.lap();
            let delivered;
            (all, delivered) = self.pass.common().pull(all, self.spares, self.sources);
            if !delivered {
                self.pass.push_joint(&mut all);
            }
            give_verdicts(&all, frames, batch);
            if let Some(sender) = self.pass.state.senders.get(at) {
                (self.pass.uplink, self.pass.done) = (sender.uplink, sender.done);
                self.shared_ns += sender.shared_ns;
                self.own_ns += sender.own_ns;
            }
        }
        self.delivered = true;
        self.all = all.without_pieces();
    }
}

/// What became of `frames` of all is what became of the batch.
fn give_verdicts(all: &Batch<'_>, frames: Range<usize>, batch: &mut Batch<'_>) {
    if all.any_held() {
        let held = frames.enumerate().filter(|(_, k)| all.verdict(*k) == Verdict::Held);
        held.for_each(|(i, _)| batch.hold(i));
    }
}

impl Pass<'_> {
    fn common(&mut self) -> Common<'_> {
        let Self { switch, table, now, .. } = *self;
        Common { switch, state: &mut *self.state, table, now }
    }

    /// Second pass of a joint breath, all destinations.
    fn push_joint(&mut self, batch: &mut Batch<'_>) {
        let touched = std::mem::take(&mut self.state.touched);
        let own = std::mem::take(&mut self.done);
        let has_heads = std::mem::replace(&mut self.has_heads, self.state.have_heads);
        self.visit(&touched, |pass, to| {
            let frames = pass.state.weigh(batch, to);
            let at_once = pass.takes_mixed(to, frames);
            pass.mixed = at_once;
            match at_once {
                true => pass.push(batch, to),
                false => pass.push_apart(batch, to),
            }
            pass.state.visited(to, at_once);
        });
        (self.mixed, self.has_heads) = (false, has_heads);
        self.state.learn();
        let done = std::mem::replace(&mut self.done, own);
        self.state.touched = touched;
        self.state.touched.clear();
        if batch.any_held() {
            self.state.note_held(batch, done);
        }
    }

    /// True if the `frames` for `to` can be handed to it at once.
    fn takes_mixed(&self, to: PortId, frames: usize) -> bool {
        let apart = self.state.apart.get(to.index()).is_none_or(|until| *until > self.state.lapped);
        let can = frames <= BATCH && !apart && self.table.takes_mixed(to);
        can && self.none_waits_long_for(to)
    }

    /// Second pass, one destination, a sender at a time: its limits or lanes are by sender, or each
    /// is measured, or some have waited for it, or all their frames are more than a port takes at
    /// once.
    #[cold]
    fn push_apart(&mut self, batch: &mut Batch<'_>, to: PortId) {
        let Some(place) = self.state.lists.get_mut(to.index()) else { return };
        let mut list = std::mem::replace(place, std::mem::take(&mut self.state.spare_list));
        let mut senders = std::mem::take(&mut self.state.senders);
        let own = (self.source, self.entry, self.ring, self.first);
        let own_done = (self.uplink, self.done);
        let mut rest = list.as_slice();
        for k in 0..senders.len() {
            let end = senders.get(k + 1).map_or(JOINT, |next| next.first);
            let (theirs, behind) = rest.split_at(rest.partition_point(|i| usize::from(*i) < end));
            rest = behind;
            let Some(sender) = senders.get_mut(k).filter(|_| !theirs.is_empty()) else { continue };
            let Some(entry) = self.table.get(sender.source) else { continue };
            if let Some(place) = self.state.lists.get_mut(to.index()) {
                place.extend_from_slice(theirs);
            }
            batch.set_source(sender.source.number());
            (self.source, self.entry) = (sender.source, entry);
            (self.ring, self.first) = (sender.ring, sender.first);
            (self.uplink, self.done) = (sender.uplink, sender.done);
            self.push(batch, to);
            (sender.uplink, sender.done) = (self.uplink, self.done);
            sender.own_ns += self.state.lap();
        }
        (self.source, self.entry, self.ring, self.first) = own;
        (self.uplink, self.done) = own_done;
        list.clear();
        (self.state.senders, self.state.spare_list) = (senders, list);
    }
}
