//! Frames to many: broadcast, multicast, unknown unicast.

use std::ops::Range;

use vmlan_frame::{Batch, Reason};

use super::{Pass, Way, batch_frame};
use crate::PortId;
use crate::policy::Domain;
use crate::snooping::Cast;

impl Pass<'_> {
    pub(super) fn flood(&mut self, batch: &mut Batch<'_>, run: Range<usize>) {
        let domain = self.state.domains.last().copied().unwrap_or_default();
        let all = self.table.members().iter().copied();
        if self.are_alike(batch, run.start) {
            return self.for_all(batch, run, domain, None, all);
        }
        for i in run {
            let cast = self.look(batch, i, domain, true);
            self.for_all(batch, i..i + 1, domain, Some(cast), all.clone());
        }
    }

    /// True if all frames to many with the MAC addresses of frame `i` are for the same ports.
    #[inline]
    fn are_alike(&self, batch: &Batch<'_>, i: usize) -> bool {
        let snooped = || self.table.snoops() && batch.macs(i).0.is_group();
        !(self.table.teams() || snooped())
    }

    /// Whom frame `i` is for, as far as multicast groups decide. `hears`: what it says about them
    /// is noted. Once for a frame: to hear a query takes a look at all ports.
    fn look(&self, batch: &Batch<'_>, i: usize, domain: Domain, hears: bool) -> Cast {
        if !self.table.snoops() || !batch.macs(i).0.is_group() {
            return Cast::All;
        }
        let (policy, snooping) = (&*self.entry.policy, &self.switch.snooping);
        let vlan = (&policy.vlan, domain);
        let (cast, said) = snooping.look(batch_frame(batch, i), vlan, self.now);
        if hears {
            // A sum that is right now is another one when it has been done.
            let whole = !batch.offload(i).needs_csum;
            let asks_all = || whole && self.is_for_all_joined(batch, i, domain);
            snooping.hear(said, (self.source, policy), domain, asks_all, self.now);
        }
        cast
    }

    /// True if frame `i`, which is for all, goes to each port that gets only what it joined.
    fn is_for_all_joined(&self, batch: &Batch<'_>, i: usize, domain: Domain) -> bool {
        self.table.members().iter().copied().all(|port| {
            let joined = self.table.get(port).is_some_and(|e| e.policy.joined_only);
            let gets = |may| may && self.gets(batch, i, port, Cast::All);
            !joined || self.floods_to(port, domain).is_none_or(gets)
        })
    }

    /// Appends `run` to the lists of all of `ports` who may have it; if it is one frame for some of
    /// them, of those.
    pub(super) fn for_all(
        &mut self,
        batch: &mut Batch<'_>,
        run: Range<usize>,
        domain: Domain,
        some: Option<Cast>,
        ports: impl Iterator<Item = PortId>,
    ) {
        let (mut copies, mut refused) = (0, 0);
        for port in ports {
            match self.floods_to(port, domain) {
                Some(true) if some.is_some_and(|c| !self.gets(batch, run.start, port, c)) => {
                    continue;
                }
                Some(true) => self.append_to(port, run.clone()),
                Some(false) => refused += 1,
                None => continue,
            }
            copies += 1;
        }
        if copies == refused {
            let reason = if refused > 0 { Reason::Isolated } else { Reason::NoReceiver };
            self.drop_at_source(batch, run, reason);
        }
    }

    /// If a frame to all in `domain` is for `port`: whether it may go there.
    fn floods_to(&self, port: PortId, domain: Domain) -> Option<bool> {
        self.table.floods_to((self.source, &self.entry.policy), domain, port)
    }

    /// True if frame `i`, which is for `cast` of all, is for `port`.
    fn gets(&self, batch: &Batch<'_>, i: usize, port: PortId, cast: Cast) -> bool {
        let domain = self.state.domains.get(i).copied().unwrap_or_default();
        let frame = batch_frame(batch, i);
        self.switch.wants(self.table, port, cast, self.now)
            && self.table.is_chosen(&self.entry.policy, domain, port, frame)
    }

    /// True if frame `i`, which was for many, has gone to `port`.
    pub(crate) fn flooded(&self, batch: &Batch<'_>, i: usize, port: PortId) -> bool {
        let domain = self.state.domains.get(i).copied().unwrap_or_default();
        let gets = || match self.state.ways.get(i) {
            Some(Way::WholeTeam(of)) => self.table.mates(*of).any(|mate| mate == port),
            _ => {
                let look = || self.look(batch, i, domain, false);
                self.are_alike(batch, i) || self.gets(batch, i, port, look())
            }
        };
        self.floods_to(port, domain) == Some(true) && gets()
    }
}
