//! One worker's breath: pull from a port, look up, push to the others.
//!
//! Two passes over a batch. The first looks only at headers: it learns the source, finds the
//! destination, and appends the frame's number to that destination's list. The second walks the
//! destinations that got any: one lock, one reservation, the copies, one publish, one interrupt
//! decision for each. So the forwarding table is in the cache during the first pass, and each
//! receiver's ring during its turn of the second.

use std::ops::Range;
use std::sync::Arc;

use vmlan_frame::headers::TOO_BIG;
use vmlan_frame::{BATCH, Batch, JOINT, Mac, Offload, Port, Reason, Sink};
use vmlan_ram::Slice;

use crate::fdb::Learned;
use crate::policy::retag::Retagged;
use crate::policy::{Budget, Domain};
use crate::software_offload::Finished;
use crate::stalls::{Measuring, Part, Usage};
use crate::{Entry, MAX_PORTS, PortId, Switch, Table, frame_lists, meter};

mod classify;
mod deliver;
mod flood;
mod heads;
mod joint;
mod limits;
pub(crate) mod too_long;

use heads::Heads;
use joint::{Habit, Sender};
pub use joint::{SOURCES, Source};

/// What a breath did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breath {
    /// Frames the port is finished with.
    pub frames: usize,
    /// The work that these can make, in bytes to copy; of ports that have several lanes.
    pub work: usize,
    /// Frames wait for a full receiver: look again within this many nanoseconds.
    pub held_ns: Option<u64>,
    /// Frames wait for tokens, or for their turn at an uplink: look again after this many
    /// nanoseconds.
    pub wait_ns: Option<u64>,
    /// The tokens are the port's own: until then nothing of it can pass, and its doorbell need not
    /// be heard.
    pub paused: bool,
    /// Its memory made a worker sleep: it is passed over for `wait_ns`.
    pub passed_over: bool,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    To(PortId),
    /// To a member of this port's team.
    Team(PortId),
    /// To all members of this port's team that may have it.
    WholeTeam(PortId),
    Flood,
    Drop(Reason),
}

/// A worker's part of the switch: its storage and its breath.
pub struct Forwarder {
    switch: Arc<Switch>,
    batch: Batch<'static>,
    /// Storage of a joint breath, and of its sources.
    joint: Batch<'static>,
    spares: Vec<Batch<'static>>,
    state: State,
}

/// When a worker began something, if that is measured.
#[must_use]
pub struct Begun(Option<Part>);

/// What a breath needs besides the batch. Sized once; nothing here grows while frames move.
pub(crate) struct State {
    /// Numbers of the frames for each port.
    pub(crate) lists: Vec<Vec<u16>>,
    /// Ports whose list is not empty.
    touched: Vec<PortId>,
    /// Frames of the last batch that a source had alone, and how many receivers they had.
    last: (usize, usize),
    /// When a joint breath read the clock last, and what its longest shared visit took.
    lapped: u64,
    longest: u64,
    /// Until when each receiver is handed the frames of one source at a time in joint breaths.
    apart: Vec<u64>,
    habits: Vec<Habit>,
    /// Sources of a joint breath, in order, and whether heads of any are held.
    senders: Vec<Sender>,
    have_heads: bool,
    /// Storage of one more list.
    spare_list: Vec<u16>,
    pub(crate) ways: Vec<Way>,
    /// Broadcast domain of each frame; empty if all ports are open.
    pub(crate) domains: Vec<Domain>,
    /// Destinations, sources, and hashes of the destinations, where streams are mixed.
    looks: Vec<(Mac, Mac, u64)>,
    pub(crate) out: Out,
    /// What a sender is answered.
    answer: Batch<'static>,
    /// The uplinks that each source waited for when its lanes had their last breaths.
    at_uplink: Vec<Vec<Option<PortId>>>,
    /// For whom each source's lanes are held up, and which of them may be: a bit each.
    heads: Vec<Vec<Heads>>,
    has_heads: Vec<u64>,
    /// Full receivers that somebody waits for: ask them for a doorbell before sleeping.
    blocked: Vec<PortId>,
    pub(crate) measuring: Measuring,
    /// What the source is to be told.
    told: Option<(usize, [u8; TOO_BIG])>,
}

impl State {
    fn at_uplink(&mut self, source: PortId, lane: usize) -> Option<&mut Option<PortId>> {
        self.at_uplink.get_mut(source.index())?.get_mut(lane)
    }
}

/// Storage of frames that are changed on their way out.
pub(crate) struct Out {
    pub(crate) finished: Finished,
    retagged: Retagged,
}

impl Forwarder {
    /// A forwarder for `switch`; all its storage is allocated here and by [`Forwarder::grow`].
    pub fn new(switch: Arc<Switch>) -> Self {
        let state = State {
            lists: Vec::new(),
            touched: Vec::with_capacity(MAX_PORTS),
            last: (0, 0),
            lapped: 0,
            longest: 0,
            apart: vec![0; MAX_PORTS],
            habits: vec![Habit::default(); MAX_PORTS],
            senders: Vec::with_capacity(SOURCES),
            have_heads: false,
            spare_list: Vec::with_capacity(JOINT),
            ways: Vec::with_capacity(JOINT),
            domains: Vec::with_capacity(JOINT),
            looks: Vec::with_capacity(BATCH),
            out: Out { finished: Finished::new(), retagged: Retagged::new() },
            answer: Batch::new(),
            at_uplink: vec![Vec::new(); MAX_PORTS],
            heads: vec![Vec::new(); MAX_PORTS],
            has_heads: vec![0; MAX_PORTS],
            blocked: Vec::with_capacity(MAX_PORTS),
            measuring: Measuring::default(),
            told: None,
        };
        let spares = (0..SOURCES).map(|_| Batch::new()).collect();
        Self { switch, batch: Batch::new(), joint: Batch::joint(), spares, state }
    }

    /// Who makes the worker sleep by its memory is found by `usage`, of the worker's thread, and
    /// passed over; without it nobody is. `clock` is the one that `now` is of.
    #[must_use]
    pub fn measured_by(
        mut self,
        clock: impl Fn() -> u64 + Send + 'static,
        usage: impl Fn() -> Usage + Send + 'static,
    ) -> Self {
        self.state.measuring = Measuring::by(clock, usage);
        self
    }

    /// A breath of `port`, or something that touches memory of several, took `ns` nanoseconds until
    /// now, which is suspiciously long.
    #[cold]
    pub fn took_long(&mut self, port: Option<PortId>, ns: u64, now: u64) {
        if !self.state.measuring.may_be_memory(ns, now) {
            return;
        }
        match port {
            Some(port) => self.switch.stalls.suspect(port, ns, now),
            None => self.switch.stalls.took_long(ns, now),
        }
    }

    /// The worker has slept because there was nothing to do.
    #[inline]
    pub fn awake(&mut self, now: u64) {
        self.state.measuring.awake(&self.switch.stalls, now);
    }

    /// A round of breaths begins, or something else that touches memory of several ports.
    #[inline]
    pub fn begin_round(&mut self, now: u64) -> Begun {
        Begun(self.state.measuring.round(&self.switch.stalls, now))
    }

    /// It is over.
    #[inline]
    pub fn end_round(&mut self, begun: Begun) {
        if let Some(began) = begun.0 {
            self.state.measuring.round_is_over(&self.switch.stalls, began);
        }
    }

    /// Runs `touch`, which gets the port of an entry and touches its memory only.
    #[inline]
    pub fn touches<T>(
        &mut self,
        (id, port): (PortId, &dyn Port),
        now: u64,
        touch: impl FnOnce(&dyn Port) -> T,
    ) -> T {
        self.state.measuring.begin(&self.switch.stalls, id, now);
        let done = touch(port);
        self.state.measuring.end(&self.switch.stalls, id, port.is_guest());
        done
    }

    /// Makes room for the ports of a new table, and notes what is new of them. Call when the table
    /// was replaced, not per frame.
    pub fn grow(&mut self, table: &Table) {
        let most = table.members().iter().map(|p| p.index() + 1).max().unwrap_or(0);
        while self.state.lists.len() < most {
            self.state.lists.push(Vec::with_capacity(JOINT));
        }
        for id in table.members() {
            let entry = table.get(*id);
            entry.iter().for_each(|e| self.switch.snooping.restrict(*id, &e.policy));
            let lanes = entry.map_or(0, |entry| entry.port.lanes());
            if let Some(at) = self.state.at_uplink.get_mut(id.index()) {
                at.resize(lanes, None);
            }
            if let Some(heads) = self.state.heads.get_mut(id.index()) {
                heads.resize(lanes, Heads::default());
            }
        }
    }

    /// Pulls up to a batch from a lane of `source` and delivers it. `now` is in nanoseconds of the
    /// clock that the ports' limits were made with.
    pub fn breath(&mut self, table: &Table, source: PortId, lane: usize, now: u64) -> Breath {
        let Some(entry) = table.get(source) else { return Breath::default() };
        if let Some(ns) = self.switch.stalls.left(source, now) {
            self.stand_back(table, (source, entry), now);
            let wait_ns = Some(ns);
            return Breath { wait_ns, paused: true, passed_over: true, ..Breath::default() };
        }
        let budget = meter::budget_from(&entry.policy, source, now);
        self.state.measuring.begin(&self.switch.stalls, source, now);
        let waited = self.state.at_uplink(source, lane).and_then(Option::take);
        self.state.last = (0, 0);
        let common = Common { switch: &self.switch, state: &mut self.state, table, now };
        let mut pass = Pass::new(common, (source, entry), lane, budget);
        if budget.is_some_and(|b| b.is_spent()) {
            let wait_ns = Some(meter::wait_from(&entry.policy, now));
            pass.leave_uplink(waited);
            return Breath { wait_ns, paused: true, ..Breath::default() };
        }
        let limit = budget.map_or(BATCH, meter::worth_pulling);
        self.batch.set_source(source.number());
        let frames = entry.port.pull(lane, &mut self.batch, limit, &mut pass);
        pass.charge_unseen(frames);
        pass.report_to_turns();
        pass.leave_uplink(waited);
        let (done, uplink) = (pass.done, pass.uplink);
        if let Some(at) = self.state.at_uplink(source, lane) {
            *at = uplink;
        }
        self.state.measuring.end(&self.switch.stalls, source, entry.port.is_guest());
        self.state.note_habit(source);
        Breath { frames, ..done }
    }

    /// A source that is passed over for its memory leaves all queues, by all lanes: nobody is to
    /// wait for it.
    #[cold]
    fn stand_back(&mut self, table: &Table, (source, entry): (PortId, &Entry), now: u64) {
        if let Some((_, turns)) = meter::shared(&entry.policy) {
            turns.sent(source, entry.policy.weight, 0, false, now);
        }
        let Some(lanes) = self.state.at_uplink.get_mut(source.index()) else { return };
        for uplink in lanes.iter_mut().filter_map(Option::take) {
            let queue = table.get(uplink).and_then(|e| e.policy.uplink.as_ref());
            if let Some(queue) = queue {
                queue.sent(source, entry.policy.weight, 0, false, now);
            }
        }
    }

    /// Hands a frame of the switch's own to `to`, as it stands; dropped if it finds no room. True
    /// if it was taken.
    pub fn send(&mut self, table: &Table, to: PortId, frame: &[u8], now: u64) -> bool {
        let Some(entry) = table.get(to) else { return false };
        let mut batch = Batch::take(&mut self.batch);
        let taken = batch.add(&[Slice::from_bytes(frame)], Offload::NONE).is_ok()
            && self.switch.stalls.left(to, now).is_none()
            && self.touches((to, &*entry.port), now, |port| port.push(&batch, &mut [0]) == 1);
        if let (Some((mirror, interface)), Some(frame)) = (&entry.mirror, batch.frame(0)) {
            mirror.capture(*interface, true, &frame, (!taken).then_some(Reason::ReceiverFull));
        }
        batch.give_back(&mut self.batch);
        if !taken {
            entry.port.counters().output.drop(Reason::ReceiverFull, 1);
        }
        taken
    }

    /// The full receivers that frames have been held for since the last call.
    pub fn take_blocked(&mut self, out: &mut Vec<PortId>) {
        out.append(&mut self.state.blocked);
    }
}

/// What decisions on a frame rest on: its snapshot and its length.
fn batch_frame<'b>(batch: &'b Batch<'_>, i: usize) -> (&'b [u8], usize) {
    (batch.head(i), batch.frame_len(i))
}

/// What all sources of a breath have in common.
struct Common<'a> {
    switch: &'a Switch,
    state: &'a mut State,
    table: &'a Table,
    now: u64,
}

/// One batch on its way.
pub(crate) struct Pass<'a> {
    pub(crate) switch: &'a Switch,
    pub(crate) state: &'a mut State,
    pub(crate) table: &'a Table,
    pub(crate) source: PortId,
    pub(crate) entry: &'a Entry,
    pub(crate) now: u64,
    /// What the source may still send, if that is limited.
    pub(crate) budget: Option<Budget>,
    /// Frames and bits of it that have passed, and whether it had more.
    pub(crate) sent: (u64, u64),
    pub(crate) more: bool,
    /// Frames that the switch has seen and that are finished with.
    pub(crate) finished: usize,
    /// The uplink that it waits for.
    pub(crate) uplink: Option<PortId>,
    lane: usize,
    /// The ring of the lane, and its first frame in the batch.
    ring: u8,
    first: usize,
    /// The batch has frames of several sources, and those of one list may be of any.
    mixed: bool,
    /// Heads of it, or of somebody in the same breath, are held or were not long ago.
    has_heads: bool,
    pub(crate) done: Breath,
}

impl Sink for Pass<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.ring = batch.ring();
        let admitted = self.admit(batch);
        self.classify(batch, 0..admitted);
        let touched = std::mem::take(&mut self.state.touched);
        self.state.last = (batch.len(), touched.len());
        if self.switch.stalls.are_some(self.now) {
            self.push_measured(batch, &touched);
        } else {
            self.visit(&touched, |pass, to| pass.push(batch, to));
            self.show(batch);
        }
        self.state.touched = touched;
        self.state.touched.clear();
        self.settle(batch, admitted);
        if self.entry.port.lanes() > 1 {
            self.done.work += batch.work();
        }
        self.tell_source();
    }

    fn skipped(&mut self, frames: usize, bytes: u64) {
        self.charge_skipped(frames, bytes);
    }
}

impl<'a> Pass<'a> {
    fn new(
        common: Common<'a>,
        (source, entry): (PortId, &'a Entry),
        lane: usize,
        budget: Option<Budget>,
    ) -> Self {
        let Common { switch, state, table, now } = common;
        let has_heads = state.has_heads((source, lane), &switch.waits, now);
        Self {
            switch,
            state,
            table,
            source,
            entry,
            now,
            budget,
            sent: (0, 0),
            finished: 0,
            more: false,
            uplink: None,
            lane,
            ring: 0,
            first: 0,
            mixed: false,
            has_heads,
            done: Breath::default(),
        }
    }
}

impl Pass<'_> {
    /// Shows the batch, which is delivered, to all who watch.
    #[inline]
    fn show(&mut self, batch: &Batch<'_>) {
        if self.table.watched() {
            self.watched(batch, false);
        }
    }

    /// True if frame `i`, which is for several, is beyond the limit of frames to many.
    fn is_storm(&self, batch: &Batch<'_>, i: usize) -> bool {
        self.check_storm(batch, i..i + 1, batch.macs(i).0, Way::Flood) == 0
    }

    /// How many frames of the run the limit of frames to many lets pass, whatever becomes of them.
    #[inline]
    fn check_storm(&self, batch: &Batch<'_>, run: Range<usize>, dst: Mac, way: Way) -> usize {
        let storm = &self.entry.policy.storm;
        let bucket = if way == Way::Flood { storm.bucket(dst) } else { None };
        let Some(bucket) = bucket else { return run.len() };
        let (pass, frames) = meter::frames_within(batch, run, bucket.tokens(self.now));
        bucket.spend(frames);
        pass
    }

    fn check_source(&self, src: Mac, domain: Domain) -> Result<(), Reason> {
        if src.is_group() || src == Mac::default() {
            return Err(Reason::BadSource);
        }
        if self.entry.policy.monitor || self.entry.policy.reach.is_nobody() {
            return Err(Reason::Isolated);
        }
        match self.switch.fdb.learn(src, domain, self.source) {
            Learned::Pass => Ok(()),
            Learned::Refused if self.is_pinned_to_team(src, domain) => Ok(()),
            Learned::Refused => Err(Reason::NotAllowed),
        }
    }

    /// True if `src` is pinned to another member of the source's team.
    #[cold]
    fn is_pinned_to_team(&self, src: Mac, domain: Domain) -> bool {
        let at = self.switch.fdb.lookup(src, domain).and_then(|port| self.table.get(port));
        at.is_some_and(|e| e.policy.is_mate(&self.entry.policy))
    }

    #[inline(always)]
    fn find_way(&self, dst: Mac, domain: Domain, hash: u64) -> Way {
        if dst.is_group() {
            return self.entry.policy.way_to_group(dst);
        }
        let fdb = &self.switch.fdb;
        match fdb.lookup_hashed(dst, domain, hash) {
            Some(port) => self.table.way_to((self.source, &self.entry.policy), domain, port),
            None => self.entry.policy.way_to_unknown(),
        }
    }

    #[inline]
    fn append(&mut self, batch: &mut Batch<'_>, run: Range<usize>, way: Way) {
        match way {
            Way::To(port) => self.append_to(port, run),
            Way::Team(port) => self.steer(batch, run, port),
            Way::WholeTeam(_) => {}
            Way::Flood => self.flood(batch, run),
            Way::Drop(reason) => self.drop_at_source(batch, run, reason),
        }
    }

    /// Frames for a team, of which each has its member.
    #[cold]
    fn steer(&mut self, batch: &mut Batch<'_>, run: Range<usize>, port: PortId) {
        let domain = self.state.domains.last().copied().unwrap_or_default();
        for i in run {
            let (source, frame) = ((self.source, &*self.entry.policy), batch_frame(batch, i));
            let way = match self.table.way_to_team(source, domain, port, frame) {
                // A copy for each of them, as of a flood.
                Way::WholeTeam(_) if self.is_storm(batch, i) => Way::Drop(Reason::Storm),
                way => way,
            };
            if let Some(place) = self.state.ways.get_mut(i) {
                *place = way;
            }
            match way {
                Way::To(to) => self.append_to(to, i..i + 1),
                Way::Drop(reason) => self.drop_at_source(batch, i..i + 1, reason),
                Way::WholeTeam(of) => {
                    let mates = self.table.mates(of);
                    self.for_all(batch, i..i + 1, domain, None, mates);
                }
                Way::Team(_) | Way::Flood => {}
            }
        }
    }

    #[inline]
    fn append_to(&mut self, port: PortId, run: Range<usize>) {
        let Some(list) = self.state.lists.get_mut(port.index()) else { return };
        if list.is_empty() {
            self.state.touched.push(port);
        }
        list.extend(frame_lists::range(&run));
    }

    /// [`Pass::append_to`] of one frame.
    #[inline]
    fn append_one(&mut self, port: PortId, i: usize) {
        let Some(list) = self.state.lists.get_mut(port.index()) else { return };
        if list.is_empty() {
            self.state.touched.push(port);
        }
        list.push(frame_lists::number(i));
    }

    fn drop_at_source(&self, batch: &mut Batch<'_>, run: Range<usize>, reason: Reason) {
        if let Some(entry) = self.table.get(self.source) {
            entry.port.counters().input.drop(reason, run.len() as u64);
        }
        run.for_each(|i| batch.set_dropped(i, reason));
    }
}
