//! The first pass of a breath: where each frame goes.

use std::ops::Range;

use vmlan_frame::{Batch, Mac, Reason};

use super::{Pass, Way, batch_frame};
use crate::policy::same_verdict::Alike;
use crate::policy::{Domain, Policy};
use crate::snooping;

/// A frame's domain by the policy, and whether it may pass.
#[inline]
fn check_frame(policy: &Policy, batch: &Batch<'_>, i: usize) -> (Domain, Result<(), Reason>) {
    let head = batch.head(i);
    match policy.vlan.enter(head) {
        Ok(domain) => (domain, policy.source_check.check(head, batch.frame_len(i))),
        Err(reason) => (Domain::OPEN, Err(reason)),
    }
}

/// True if `frames` look like one stream.
fn is_one_stream(batch: &Batch<'_>, frames: &Range<usize>) -> bool {
    let first = batch.macs(frames.start);
    let middle = usize::midpoint(frames.start, frames.end);
    first == batch.macs(middle) && first == batch.macs(frames.end.saturating_sub(1))
}

/// [`check_frame`] of a port that is restricted to what it joined.
fn check_member(policy: &Policy, batch: &Batch<'_>, i: usize) -> (Domain, Result<(), Reason>) {
    let (domain, checked) = check_frame(policy, batch, i);
    (domain, checked.and_then(|()| snooping::guard(batch_frame(batch, i))))
}

/// `check_frame` of the first frame of `run`, and how many frames from it on are judged alike.
#[inline]
fn check_run(
    policy: &Policy,
    batch: &Batch<'_>,
    run: Range<usize>,
    check_frame: impl Fn(&Policy, &Batch<'_>, usize) -> (Domain, Result<(), Reason>),
) -> (Domain, Result<(), Reason>, usize) {
    let first = check_frame(policy, batch, run.start);
    let fields = Alike::of(batch.head(run.start));
    let len = batch.frame_len(run.start);
    let same = |i: &usize| {
        let known = batch.frame_len(*i) == len && fields.is_some_and(|f| f.is(batch.head(*i)));
        known || check_frame(policy, batch, *i) == first
    };
    let alike = run.clone().skip(1).take_while(same).count();
    (first.0, first.1, 1 + alike)
}

impl Pass<'_> {
    /// First pass: headers only, of the frames of this source, which come behind those that were
    /// looked at before.
    pub(super) fn classify(&mut self, batch: &mut Batch<'_>, frames: Range<usize>) {
        self.state.ways.truncate(frames.start);
        self.state.domains.truncate(frames.start);
        if self.entry.policy.joined_only {
            return self.classify_each(batch, frames, check_member);
        }
        if self.entry.policy.looks_at_each() || !self.table.all_open() {
            return self.classify_each(batch, frames, check_frame);
        }
        self.classify_by_macs(batch, frames);
    }

    /// [`Pass::classify`] where nothing but MAC addresses counts. Frames of one stream follow each
    /// other: one look-up serves the run.
    pub(super) fn classify_by_macs(&mut self, batch: &mut Batch<'_>, frames: Range<usize>) {
        if !is_one_stream(batch, &frames) {
            return self.classify_mixed(batch, frames);
        }
        let (mut last_src, mut source_ok) = (Mac::default(), Err(Reason::BadSource));
        let mut i = frames.start;
        while i < frames.end {
            let run = batch.run(i).clamp(1, frames.end - i);
            let (dst, src) = batch.macs(i);
            if src != last_src {
                (last_src, source_ok) = (src, self.check_source(src, Domain::OPEN));
            }
            let hash = self.switch.fdb.hash(dst, Domain::OPEN);
            let find = |()| self.find_way(dst, Domain::OPEN, hash);
            let way = source_ok.map_or_else(Way::Drop, find);
            self.state.ways.extend(std::iter::repeat_n(way, run));
            self.append(batch, i..i + run, way);
            i += run;
        }
    }

    /// [`Pass::classify`] where frames of many streams are mixed: the sets of all addresses are
    /// asked for before the first is looked up, so that the cache misses overlap.
    fn classify_mixed(&mut self, batch: &mut Batch<'_>, frames: Range<usize>) {
        let fdb = &self.switch.fdb;
        let mut last_src = Mac::default();
        let mut looks = std::mem::take(&mut self.state.looks);
        looks.clear();
        looks.extend(batch.all_macs(frames.clone()).map(|(dst, src)| {
            let hash = fdb.hash(dst, Domain::OPEN);
            fdb.prefetch(hash);
            if src != last_src {
                fdb.prefetch(fdb.hash(src, Domain::OPEN));
                last_src = src;
            }
            (dst, src, hash)
        }));
        let (mut last_src, mut source_ok) = (Mac::default(), Err(Reason::BadSource));
        let mut i = frames.start;
        while let Some((dst, src, hash)) = looks.get(i - frames.start).copied() {
            if src != last_src {
                (last_src, source_ok) = (src, self.check_source(src, Domain::OPEN));
            }
            let find = |()| self.find_way(dst, Domain::OPEN, hash);
            let way = source_ok.map_or_else(Way::Drop, find);
            if let Way::To(port) = way {
                self.state.ways.push(way);
                self.append_one(port, i);
                i += 1;
            } else {
                let run = batch.run(i).clamp(1, frames.end - i);
                self.state.ways.extend(std::iter::repeat_n(way, run));
                self.append(batch, i..i + run, way);
                i += run;
            }
        }
        self.state.looks = looks;
    }

    /// [`Pass::classify`] for policies that depend on more than the MAC addresses: each frame is
    /// looked at, and equal frames that pass are looked up together.
    fn classify_each(
        &mut self,
        batch: &mut Batch<'_>,
        frames: Range<usize>,
        check: impl Fn(&Policy, &Batch<'_>, usize) -> (Domain, Result<(), Reason>) + Copy,
    ) {
        let policy = &*self.entry.policy;
        let mut last = None;
        let mut way = Way::Drop(Reason::BadSource);
        let mut i = frames.start;
        while i < frames.end {
            let run = batch.run(i).clamp(1, frames.end - i);
            let (domain, checked, alike) = check_run(policy, batch, i..i + run, check);
            let key = (batch.macs(i), domain);
            if last != Some(key) && checked.is_ok() {
                last = Some(key);
                let (dst, src) = key.0;
                let source_ok = self.check_source(src, domain);
                let hash = self.switch.fdb.hash(dst, domain);
                way = source_ok.map_or_else(Way::Drop, |()| self.find_way(dst, domain, hash));
            }
            let pass = checked.map_or(0, |()| self.check_storm(batch, i..i + alike, key.0.0, way));
            let refused = checked.map_or_else(Way::Drop, |()| Way::Drop(Reason::Storm));
            self.go(batch, i..i + pass, domain, way);
            self.go(batch, i + pass..i + alike, domain, refused);
            i += alike;
        }
    }

    /// Notes where frames go, and puts them on the lists.
    #[inline]
    fn go(&mut self, batch: &mut Batch<'_>, run: Range<usize>, domain: Domain, way: Way) {
        if run.is_empty() {
            return;
        }
        self.state.domains.extend(std::iter::repeat_n(domain, run.len()));
        self.state.ways.extend(std::iter::repeat_n(way, run.len()));
        self.append(batch, run, way);
    }
}
