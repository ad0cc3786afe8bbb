//! What receivers do with a frame: limits, turns, tags, links.

use vmlan_frame::headers::{TOO_BIG, too_big};
use vmlan_frame::{Counters, Reason};

use super::{End, Fate, Finding, Receiver, Tags, Trace, Verdict};
use crate::forward::Way;
use crate::forward::too_long::exceeds;
use crate::meter::{budget_to, covered, in_bits};
use crate::policy::retag::Retagged;
use crate::policy::{Budget, Domain, Policy};
use crate::snooping::Cast;
use crate::{Entry, PortId};

impl Trace<'_> {
    /// `Pass::for_all`.
    pub(super) fn flood(
        &mut self,
        domain: Domain,
        ports: impl Iterator<Item = PortId>,
    ) -> Result<Vec<Receiver>, End> {
        let cast = self.cast(domain);
        let (mut receivers, mut refused) = (Vec::new(), false);
        let (table, source) = (self.table, self.source);
        for port in ports.filter(|p| *p != source) {
            match self.table.floods_to(self.as_source(), domain, port) {
                Some(true) if !self.switch.wants(table, port, cast, self.now) => {
                    self.step(Some(port), Verdict::Refuse, Finding::NotJoined);
                }
                Some(true) if !table.is_chosen(self.policy(), domain, port, self.frame()) => {
                    self.step(Some(port), Verdict::Refuse, Finding::NotChosen);
                }
                Some(true) => receivers.push(self.receive(port, domain, Way::Flood)),
                Some(false) => {
                    refused = true;
                    self.step(Some(port), Verdict::Refuse, Finding::MayNotSend(port));
                }
                None => self.left_out(port, domain),
            }
        }
        if !receivers.is_empty() {
            return Ok(receivers);
        }
        Err(match refused {
            true => self.refuse(Reason::Isolated, Finding::NobodyReachable),
            false => self.refuse(Reason::NoReceiver, Finding::NobodyUp),
        })
    }

    /// `Pass::look`, except for what is heard.
    fn cast(&mut self, domain: Domain) -> Cast {
        if !self.table.snoops() || !self.batch.macs(0).0.is_group() {
            return Cast::All;
        }
        let vlan = (&self.policy().vlan, domain);
        let (cast, _) = self.switch.snooping.look(self.frame(), vlan, self.now);
        self.pass(match cast {
            Cast::All => Finding::Multicast,
            Cast::Routers => Finding::Report,
            Cast::Members(_) => Finding::Members,
        });
        cast
    }

    /// Why a frame to all is not for `port`.
    fn left_out(&mut self, port: PortId, domain: Domain) {
        let Some(entry) = self.table.get(port) else { return };
        let vlan = &entry.policy.vlan;
        let finding = if entry.policy.monitor {
            Finding::ReceiverIsMonitor
        } else if !vlan.carries(domain) {
            Finding::OutsideDomain(vlan.clone(), domain)
        } else {
            Finding::LinkDown
        };
        self.step(Some(port), Verdict::Refuse, finding);
    }

    /// `Pass::push`.
    pub(super) fn receive(&mut self, port: PortId, domain: Domain, way: Way) -> Receiver {
        let (finding, fate) = match self.table.get(port) {
            Some(entry) => self.handed_over(port, entry, domain, way),
            None => (Finding::PortGone, Fate::Dropped(Reason::LinkDown)),
        };
        let verdict = match &fate {
            Fate::Delivered(_) => Verdict::Pass,
            Fate::Held => Verdict::Hold,
            Fate::Dropped(_) => Verdict::Drop,
        };
        self.step(Some(port), verdict, finding);
        Receiver { port, fate }
    }

    fn handed_over(
        &mut self,
        port: PortId,
        entry: &Entry,
        domain: Domain,
        way: Way,
    ) -> (Finding, Fate) {
        if let Some(wait_ns) = self.switch.stalls.left(port, self.now) {
            return (Finding::PassedOver { wait_ns }, Fate::Dropped(Reason::ReceiverFull));
        }
        let policy = &*entry.policy;
        let narrow = policy.mtu.filter(|mtu| entry.port.is_up() && exceeds(*mtu, &self.batch, 0));
        if let Some(mtu) = narrow {
            if way == Way::To(port) {
                self.answer(mtu);
            }
            return (Finding::TooLong(mtu), Fate::Dropped(Reason::TooLong));
        }
        if let Some(finding) = self.over(policy) {
            let waits = policy.uplink.is_some() && way == Way::To(port);
            let fate = if waits { Fate::Held } else { Fate::Dropped(Reason::OverLimit) };
            return (finding, fate);
        }
        let seen = match self.seen(entry, domain) {
            Ok(seen) => seen,
            Err(reason) => return (Finding::NoRoomForTag, Fate::Dropped(reason)),
        };
        if !entry.port.is_up() {
            return (Finding::LinkDown, Fate::Dropped(Reason::LinkDown));
        }
        let left = (!policy.to.is_none()).then(|| budget_to(policy, self.now));
        let full = self.switch.waits.is_full(port);
        (Finding::Delivery { tags: Tags::of(&seen), left, full }, Fate::Delivered(seen))
    }

    /// `Pass::answer`.
    fn answer(&mut self, mtu: u16) {
        let (head, len) = self.frame();
        let mut frame = [0; TOO_BIG];
        let size = too_big(head, len, mtu, &mut frame);
        let may = self.outcome.answer.is_none()
            && self.entry.port.is_up()
            && self.switch.told.may(self.source, self.now);
        if let Some(answer) = size.filter(|_| may).and_then(|size| frame.get(..size)) {
            self.outcome.answer = Some(answer.to_vec());
        }
    }

    /// `Pass::allowed`: `None` if the receiver has tokens left and it is the source's turn.
    pub(super) fn over(&self, to: &Policy) -> Option<Finding> {
        let limits = &to.to;
        if !limits.is_none() && covered(&self.batch, 0..1, budget_to(to, self.now)) == 0 {
            return Some(Finding::ToLimit { wait_ns: limits.wait(self.now).max(1) });
        }
        let bytes = to.uplink.as_ref()?.grant(self.source, self.policy().weight, self.now);
        let turn = Budget { bits: in_bits(bytes), frames: i64::MAX };
        let turn = covered(&self.batch, 0..1, turn);
        (turn == 0).then_some(Finding::NotItsTurn)
    }

    /// The frame as a port with `entry` is given it.
    ///
    /// # Errors
    /// Why it cannot have the form that it would need there.
    fn seen(&self, entry: &Entry, domain: Domain) -> Result<Vec<u8>, Reason> {
        let mut seen = None;
        let counters = Counters::default();
        let from = (&self.policy().vlan, &[domain][..]);
        let to = (&entry.policy.vlan, &counters);
        Retagged::new().push(&self.batch, &mut [0], from, to, |batch, list| {
            for i in list.iter() {
                seen = batch.frame(usize::from(*i)).map(|frame| {
                    let mut bytes = vec![0; frame.len];
                    frame.copy_to(&mut bytes);
                    bytes
                });
            }
            list.len()
        });
        let refused = counters.drops().next().map_or(Reason::Vlan, |(reason, _)| reason);
        seen.ok_or(refused)
    }
}
