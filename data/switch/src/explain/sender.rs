//! Checks of a frame by itself: limits, VLAN, claims, addresses, reach.

use vmlan_frame::{Mac, Reason};

use super::source_check::deciding;
use super::{ClaimFault, Claimed, End, Finding, Place, StormTokens, Tags, Tokens, Trace, Verdict};
use crate::PortId;
use crate::fdb::WouldLearn;
use crate::forward::Way;
use crate::meter::covered;
use crate::policy::Domain;
use crate::snooping;

impl Trace<'_> {
    /// `Forwarder::breath` and `Pass::admit`. A frame without tokens is followed further: whoever
    /// asks why a guest has no network also wants to know what refuses it after the waiting.
    pub(super) fn limit(&mut self) {
        if let Some(wait_ns) = self.switch.stalls.left(self.source, self.now) {
            self.outcome.held = true;
            self.step(None, Verdict::Hold, Finding::PassedOver { wait_ns });
        }
        let from = &self.entry.policy.from;
        if from.is_none() {
            return self.pass(Finding::FromLimit(Tokens::Unlimited));
        }
        let budget = from.budget(self.now);
        if covered(&self.batch, 0..1, budget) == 1 {
            return self.pass(Finding::FromLimit(Tokens::Left(budget)));
        }
        let wait_ns = from.wait(self.now).max(1);
        self.outcome.held = true;
        self.step(None, Verdict::Hold, Finding::FromLimit(Tokens::Spent { wait_ns }));
    }

    pub(super) fn domain(&mut self) -> Result<Domain, End> {
        let head = self.batch.head(0);
        let (tags, vlan) = (Tags::of(head), self.entry.policy.vlan.clone());
        match vlan.enter(head) {
            Ok(domain) => {
                self.pass(Finding::Enters(tags, vlan, domain));
                Ok(domain)
            }
            Err(reason) => Err(self.refuse(reason, Finding::TagsRefused(tags, vlan))),
        }
    }

    pub(super) fn claims(&mut self) -> Result<(), End> {
        let source_check = &self.entry.policy.source_check;
        if source_check.is_any() {
            self.pass(Finding::AnyClaim);
            return Ok(());
        }
        let (head, len) = (self.batch.head(0), self.batch.frame_len(0));
        match source_check.peek(head, len) {
            Ok(()) => {
                self.pass(Finding::Claims(Claimed::by(head, len)));
                Ok(())
            }
            Err(reason) => {
                let fault = ClaimFault::of(reason, source_check, head, len);
                self.outcome.claim = fault.claim();
                self.outcome.settings = deciding(source_check, head, len);
                Err(self.refuse(reason, Finding::ClaimRefused(fault)))
            }
        }
    }

    /// `check_member`.
    pub(super) fn guard(&mut self) -> Result<(), End> {
        let guarded = self.policy().joined_only;
        match snooping::guard(self.frame()).err().filter(|_| guarded) {
            Some(reason) => Err(self.refuse(reason, Finding::Query)),
            None => Ok(()),
        }
    }

    /// `Pass::check_source`, except for what it learns.
    pub(super) fn source(&mut self, domain: Domain) -> Result<(), End> {
        let (dst, src) = self.batch.macs(0);
        if src.is_group() || src == Mac::default() {
            return Err(self.refuse(Reason::BadSource, Finding::BadSource(src)));
        }
        if self.policy().monitor {
            return Err(self.refuse(Reason::Isolated, Finding::SourceIsMonitor));
        }
        self.pass(Finding::Source(src));
        if self.policy().reach.is_nobody() {
            let to = if dst.is_group() { None } else { self.switch.fdb.lookup(dst, domain) };
            let port = to.filter(|to| *to != self.source);
            self.step(port, Verdict::Refuse, Finding::ReachesNobody);
            return Err(End::Refused(Reason::Isolated));
        }
        Ok(())
    }

    /// Where the frame's source address would be once the frame had come.
    pub(super) fn learning(&mut self, domain: Domain) -> Result<Option<PortId>, End> {
        let (_, src) = self.batch.macs(0);
        let would = self.switch.fdb.would_learn(src, domain, self.source);
        let finding = Finding::Learning(src, would);
        if let WouldLearn::Pinned(at) = would {
            // `Pass::is_pinned_to_team`.
            if self.table.get(at).is_some_and(|e| e.policy.is_mate(self.policy())) {
                self.pass(finding);
                return Ok(Some(at));
            }
            return Err(self.refuse(Reason::NotAllowed, finding));
        }
        self.pass(finding);
        Ok(match would {
            WouldLearn::Full(other) => other,
            _ => Some(self.source),
        })
    }

    /// `Pass::find_way`. `source_at` is where the frame's source address is by then: a frame may be
    /// addressed to its own source.
    pub(super) fn destination(
        &mut self,
        domain: Domain,
        source_at: Option<PortId>,
    ) -> Result<Way, End> {
        let (dst, src) = self.batch.macs(0);
        if dst.is_group() {
            let place = if dst.is_reserved() { Place::Reserved } else { Place::Group };
            return self.for_all(self.policy().way_to_group(dst), dst, place);
        }
        let found = if dst == src { source_at } else { self.switch.fdb.lookup(dst, domain) };
        let Some(port) = found else {
            return self.for_all(self.policy().way_to_unknown(), dst, Place::Unknown);
        };
        let mut way = self.table.way_to(self.as_source(), domain, port);
        let team = if let Way::Team(port) = way { Some(port) } else { None };
        if let Some(port) = team {
            way = self.table.way_to_team(self.as_source(), domain, port, self.frame());
        }
        match way {
            Way::Drop(Reason::Unknown) if team.is_some() => {
                self.pass(Finding::Destination(dst, Place::Behind(port)));
                return Err(self.refuse(Reason::Unknown, Finding::NoMember(port)));
            }
            Way::Drop(Reason::SamePort) => {
                let finding = Finding::Destination(dst, Place::SamePort(port));
                return Err(self.refuse(Reason::SamePort, finding));
            }
            Way::Flood | Way::Drop(Reason::Unknown) => {
                return self.for_all(way, dst, Place::OutsideDomain(port));
            }
            Way::Drop(reason) => {
                self.pass(Finding::Destination(dst, Place::Behind(port)));
                self.step(Some(port), Verdict::Refuse, Finding::MayNotSend(port));
                return Err(End::Refused(reason));
            }
            Way::WholeTeam(of) => {
                self.pass(Finding::Destination(dst, Place::Behind(port)));
                self.pass(Finding::ChosenAll(of));
            }
            Way::To(to) | Way::Team(to) => {
                self.pass(Finding::Destination(dst, Place::Behind(port)));
                if team.is_some() {
                    self.pass(Finding::Chosen(to));
                    return Ok(way);
                }
                let own = to == port;
                self.pass(if own { Finding::MaySend(to) } else { Finding::LeavesByUplink(to) });
            }
        }
        Ok(way)
    }

    /// Whether a frame to `dst`, which is at no single port, goes to all.
    fn for_all(&mut self, way: Way, dst: Mac, place: Place) -> Result<Way, End> {
        let finding = Finding::Destination(dst, place);
        if let Way::Drop(reason) = way {
            return Err(self.refuse(reason, finding));
        }
        self.pass(finding);
        Ok(way)
    }

    /// `Pass::check_storm`.
    pub(super) fn storm(&mut self) -> Result<(), End> {
        let (dst, _) = self.batch.macs(0);
        let Some(bucket) = self.entry.policy.storm.bucket(dst) else {
            self.pass(Finding::Storm(StormTokens::Unlimited));
            return Ok(());
        };
        let (frames, rate) = (bucket.tokens(self.now), bucket.rate().per_second);
        if frames <= 0 {
            let finding = Finding::Storm(StormTokens::Spent { rate });
            return Err(self.refuse(Reason::Storm, finding));
        }
        self.pass(Finding::Storm(StormTokens::Left { frames, rate }));
        Ok(())
    }
}
