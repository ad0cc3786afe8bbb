//! What would become of a frame, and why: told, not done.
//!
//! Nothing is sent, learned, spent or counted. Each decision is that of the function which the data path asks, in the data
//! path's order (`forward.rs`, `meter.rs`); `tests/explain.rs` shows random frames to both. What only the moment of delivery
//! knows is not foreseen: a full ring, buffers that are too short, other frames under way.
//!
//! Unlike the rest of this crate it allocates and writes texts: nobody asks it while frames move but the control thread.

use vmlan_frame::{Batch, Counters, Mac, Offload, Reason};
use vmlan_ram::Slice;

use crate::fdb::WouldLearn;
use crate::forward::Way;
use crate::meter::{budget_to, covered};
use crate::policy::retag::Retagged;
use crate::policy::{Budget, Domain, Policy};
use crate::{Entry, PortId, Switch, Table};

mod copies;
mod words;
use words::{Bits, Time};
pub use words::{Check, Step, Verdict};

/// What would become of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What was looked at, in order.
    pub steps: Vec<Step>,
    /// It would stay in its sender's ring at first, for want of tokens. What stands here becomes of it when there are some.
    pub held: bool,
    /// What came of it.
    pub end: End,
    /// The MAC or IP address that was refused because it is not its sender's, where it could be.
    pub claim: Option<String>,
    /// The keys of those claims that refuse it, each by itself.
    pub keys: Vec<&'static str>,
    /// Monitors that would be shown a copy.
    pub copies: Vec<Receiver>,
}

/// How far a frame would come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Nowhere: dropped and counted, at the port it came from.
    Refused(Reason),
    /// To the port that its destination lives behind.
    To(Receiver),
    /// To all that may have it.
    Flooded(Vec<Receiver>),
}

/// A port that a frame would be handed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Which.
    pub port: PortId,
    /// What became of the frame there.
    pub fate: Fate,
}

/// What becomes of a frame at its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered. The bytes are those that the receiver sees.
    Delivered(Vec<u8>),
    /// It would wait in its sender's ring.
    Held,
    /// It is dropped, and counted as the receiver's.
    Dropped(Reason),
}

impl Receiver {
    /// The tags that it sees, in words; nothing if the frame is not delivered.
    #[must_use]
    pub fn form(&self) -> Option<String> {
        match &self.fate {
            Fate::Delivered(bytes) => Some(words::tags(bytes)),
            _ => None,
        }
    }
}

impl Switch {
    /// Tells what would become of `frame`, if `source` sent it at `now`. `None` if there is no such port in `table`.
    #[must_use]
    pub fn explain(
        &self,
        table: &Table,
        source: PortId,
        frame: &[u8],
        now: u64,
    ) -> Option<Explanation> {
        let entry = table.get(source)?;
        let mut batch = Batch::new();
        let added = batch.add(&[Slice::from_bytes(frame)], Offload::NONE);
        let told = Explanation {
            steps: Vec::new(),
            held: false,
            end: End::Refused(Reason::Runt),
            claim: None,
            keys: Vec::new(),
            copies: Vec::new(),
        };
        let domain = Domain::OPEN;
        let mut case = Case { switch: self, table, source, entry, batch, now, domain, told };
        case.told.end = match added {
            Ok(()) => case.decide().unwrap_or_else(|end| end),
            Err(reason) => {
                let detail = format!("{} bytes: no Ethernet frame has that length", frame.len());
                case.refuse(Check::Length, reason, detail)
            }
        };
        case.copies();
        Some(case.told)
    }
}

/// One frame on its way.
struct Case<'a> {
    switch: &'a Switch,
    table: &'a Table,
    source: PortId,
    entry: &'a Entry,
    batch: Batch<'a>,
    now: u64,
    domain: Domain,
    told: Explanation,
}

impl Case<'_> {
    fn step(&mut self, check: Check, verdict: Verdict, detail: impl Into<String>) {
        self.told.steps.push(Step { check, port: None, verdict, detail: detail.into() });
    }

    fn pass(&mut self, check: Check, detail: impl Into<String>) {
        self.step(check, Verdict::Pass, detail);
    }

    fn refuse(&mut self, check: Check, reason: Reason, detail: impl Into<String>) -> End {
        self.step(check, Verdict::Refuse, detail);
        End::Refused(reason)
    }

    fn policy(&self) -> &Policy {
        &self.entry.policy
    }

    fn as_source(&self) -> (PortId, &Policy) {
        (self.source, &self.entry.policy)
    }

    fn name(&self, port: PortId) -> String {
        self.table
            .get(port)
            .map_or_else(|| "a port that is gone".to_owned(), |e| e.name.to_string())
    }

    /// `Err` where it ends before anybody could receive it.
    fn decide(&mut self) -> Result<End, End> {
        self.limit();
        let domain = self.domain()?;
        self.domain = domain;
        self.claims()?;
        self.source(domain)?;
        let lives = self.learning(domain)?;
        let way = self.destination(domain, lives)?;
        match way {
            Way::Drop(reason) => Err(End::Refused(reason)),
            Way::To(port) => Ok(End::To(self.receive(port, domain, way))),
            Way::Flood => {
                self.storm()?;
                self.flood(domain).map(End::Flooded)
            }
        }
    }

    /// `Forwarder::breath` and `Pass::admit`. Whoever asks why a guest has no network wants the refusal that comes after the
    /// waiting, too: so the frame is looked at further.
    fn limit(&mut self) {
        let from = &self.entry.policy.from;
        if from.is_none() {
            return self.pass(Check::FromLimit, "there is none");
        }
        let budget = from.budget(self.now);
        if covered(&self.batch, 0..1, budget) == 1 {
            return self.pass(Check::FromLimit, left(budget));
        }
        let wait = Time(from.wait(self.now).max(1));
        self.told.held = true;
        let detail = format!("no tokens: it stays in its sender's ring for {wait}");
        self.step(Check::FromLimit, Verdict::Hold, detail);
    }

    fn domain(&mut self) -> Result<Domain, End> {
        let head = self.batch.head(0);
        let tags = words::tags(head);
        let vlan = &self.entry.policy.vlan;
        match vlan.enter(head) {
            Ok(domain) => {
                self.pass(
                    Check::Vlan,
                    format!("{tags}, {vlan}: it is in {}", words::domain(domain)),
                );
                Ok(domain)
            }
            Err(reason) => {
                let detail = format!("{tags}, which {vlan} does not take");
                Err(self.refuse(Check::Vlan, reason, detail))
            }
        }
    }

    fn claims(&mut self) -> Result<(), End> {
        let claims = &self.entry.policy.claims;
        if claims.is_any() {
            self.pass(Check::Claims, "nothing is asked");
            return Ok(());
        }
        let (head, len) = (self.batch.head(0), self.batch.frame_len(0));
        match claims.peek(head, len) {
            Ok(()) => {
                self.pass(Check::Claims, words::claimed(head, len));
                Ok(())
            }
            Err(reason) => {
                let (detail, claim) = words::claim_refused(reason, claims, head, len);
                self.told.claim = claim;
                self.told.keys = words::deciding(claims, head, len);
                Err(self.refuse(Check::Claims, reason, detail))
            }
        }
    }

    /// `Pass::check_source`, but for what it learns.
    fn source(&mut self, domain: Domain) -> Result<(), End> {
        let (dst, src) = self.batch.macs(0);
        if src.is_group() || src == Mac::default() {
            let detail = format!("{src} is no address that a frame can come from");
            return Err(self.refuse(Check::Source, Reason::BadSource, detail));
        }
        if self.policy().monitor {
            let detail = "the port is a monitor, which sends nothing";
            return Err(self.refuse(Check::Source, Reason::Isolated, detail));
        }
        self.pass(Check::Source, src.to_string());
        if self.policy().reach.is_nobody() {
            let to = if dst.is_group() { None } else { self.switch.fdb.lookup(dst, domain) };
            let port = to.filter(|to| *to != self.source);
            let detail = "this port may send to nobody, and nothing is learned from it".into();
            let verdict = Verdict::Refuse;
            self.told.steps.push(Step { check: Check::Reach, port, verdict, detail });
            return Err(End::Refused(Reason::Isolated));
        }
        Ok(())
    }

    /// Where the frame's source address would live once the frame had come.
    fn learning(&mut self, domain: Domain) -> Result<Option<PortId>, End> {
        let (_, src) = self.batch.macs(0);
        let would = self.switch.fdb.would_learn(src, domain, self.source);
        let detail = match would {
            WouldLearn::Known(None) => format!("{src} is pinned to this port"),
            WouldLearn::Known(Some(_)) => format!("{src} is known to live here"),
            WouldLearn::New => format!("{src} would be learned"),
            WouldLearn::Moves(old) => format!("{src} would move here from {}", self.name(old)),
            WouldLearn::Full(_) => {
                format!(
                    "{src} would not be learned: the table, or this port's share of it, is full"
                )
            }
            WouldLearn::Pinned(other) => {
                let detail = format!("{src} is pinned to {}", self.name(other));
                return Err(self.refuse(Check::Learning, Reason::NotAllowed, detail));
            }
        };
        self.pass(Check::Learning, detail);
        Ok(match would {
            WouldLearn::Full(other) => other,
            _ => Some(self.source),
        })
    }

    /// `Pass::find_way`. A frame to its own source is for whoever that has been learned to be.
    fn destination(&mut self, domain: Domain, lives: Option<PortId>) -> Result<Way, End> {
        let (dst, src) = self.batch.macs(0);
        if dst.is_group() {
            let what = if dst == Mac::BROADCAST { "broadcast" } else { "a group address" };
            self.pass(Check::Destination, format!("{dst}, {what}: to all"));
            return Ok(Way::Flood);
        }
        let found = if dst == src { lives } else { self.switch.fdb.lookup(dst, domain) };
        let Some(port) = found else {
            self.pass(Check::Destination, format!("{dst} is not known: to all"));
            return Ok(Way::Flood);
        };
        let way = self.table.way_to(self.as_source(), domain, port);
        let behind = format!("{dst} lives behind {}", self.name(port));
        match way {
            Way::Drop(Reason::SamePort) => {
                let detail = format!("{behind}, where the frame comes from");
                Err(self.refuse(Check::Destination, Reason::SamePort, detail))
            }
            Way::Drop(reason) => {
                self.pass(Check::Destination, behind);
                let detail = format!("this port may not send to {}", self.name(port));
                self.at(Check::Reach, port, Verdict::Refuse, detail);
                Err(End::Refused(reason))
            }
            Way::Flood => {
                let detail = format!("{behind}, which no longer takes such frames: to all");
                self.pass(Check::Destination, detail);
                Ok(way)
            }
            Way::To(to) => {
                self.pass(Check::Destination, behind);
                let detail = match to == port {
                    true => format!("this port may send to {}", self.name(to)),
                    false => format!("it leaves by this port's uplink, {}", self.name(to)),
                };
                self.pass(Check::Reach, detail);
                Ok(way)
            }
        }
    }

    /// `Pass::check_storm`.
    fn storm(&mut self) -> Result<(), End> {
        let (dst, _) = self.batch.macs(0);
        let Some(bucket) = self.entry.policy.storm.bucket(dst) else {
            self.pass(Check::Storm, "frames like this to all are not limited");
            return Ok(());
        };
        let (tokens, rate) = (bucket.tokens(self.now), bucket.rate().per_second);
        if tokens <= 0 {
            let detail = format!("over {rate} frames a second like this to all");
            return Err(self.refuse(Check::Storm, Reason::Storm, detail));
        }
        self.pass(Check::Storm, format!("{tokens} frames left of {rate} a second"));
        Ok(())
    }

    /// `Pass::flood`.
    fn flood(&mut self, domain: Domain) -> Result<Vec<Receiver>, End> {
        let (mut receivers, mut refused) = (Vec::new(), false);
        let (table, source) = (self.table, self.source);
        for port in table.members().iter().copied().filter(|p| *p != source) {
            match self.table.floods_to(self.as_source(), domain, port) {
                Some(true) => receivers.push(self.receive(port, domain, Way::Flood)),
                Some(false) => {
                    refused = true;
                    let detail = "this port may not send to it";
                    self.at(Check::Reach, port, Verdict::Refuse, detail);
                }
                None => self.left_out(port, domain),
            }
        }
        if !receivers.is_empty() {
            return Ok(receivers);
        }
        let (reason, detail) = match refused {
            true => (Reason::Isolated, "nobody is left that this port may send to"),
            false => (Reason::NoReceiver, "no other port is up that takes such frames"),
        };
        Err(self.refuse(Check::Receivers, reason, detail))
    }

    /// Why a frame to all is not for `port`.
    fn left_out(&mut self, port: PortId, domain: Domain) {
        let Some(entry) = self.table.get(port) else { return };
        let vlan = &entry.policy.vlan;
        if entry.policy.monitor {
            self.at(Check::Reach, port, Verdict::Refuse, "a monitor: it gets copies only");
        } else if !vlan.carries(domain) {
            let detail = format!("{vlan}: not in {}", words::domain(domain));
            self.at(Check::Vlan, port, Verdict::Refuse, detail);
        } else {
            self.at(Check::Link, port, Verdict::Refuse, "down");
        }
    }

    fn at(&mut self, check: Check, port: PortId, verdict: Verdict, detail: impl Into<String>) {
        self.told.steps.push(Step { check, port: Some(port), verdict, detail: detail.into() });
    }

    /// `Pass::push`.
    fn receive(&mut self, port: PortId, domain: Domain, way: Way) -> Receiver {
        let (check, verdict, detail, fate) = match self.table.get(port) {
            Some(entry) => self.handed_over(port, entry, domain, way),
            None => (Check::Link, Verdict::Drop, "gone".into(), Fate::Dropped(Reason::LinkDown)),
        };
        self.at(check, port, verdict, detail);
        Receiver { port, fate }
    }

    fn handed_over(
        &self,
        port: PortId,
        entry: &Entry,
        domain: Domain,
        way: Way,
    ) -> (Check, Verdict, String, Fate) {
        let dropped = |check, reason, detail| (check, Verdict::Drop, detail, Fate::Dropped(reason));
        let policy = &*entry.policy;
        if let Some((check, detail)) = self.over(policy) {
            if policy.uplink.is_some() && way == Way::To(port) {
                return (check, Verdict::Hold, detail, Fate::Held);
            }
            return dropped(check, Reason::OverLimit, detail);
        }
        let seen = match self.seen(entry, domain) {
            Ok(seen) => seen,
            Err(reason) => {
                let detail = "it cannot have the tag that it would need there".to_owned();
                return dropped(Check::Vlan, reason, detail);
            }
        };
        if !entry.port.is_up() {
            return dropped(Check::Link, Reason::LinkDown, "down".into());
        }
        let mut detail = words::tags(&seen);
        if !policy.to.is_none() {
            detail += &format!(", {}", left(budget_to(policy, self.now)));
        }
        if self.switch.waits.is_full(port) {
            detail += ", but it is full at present";
        }
        (Check::Delivery, Verdict::Pass, detail, Fate::Delivered(seen))
    }

    /// `Pass::allowed`: nothing if the receiver has tokens left, and it is the source's turn.
    fn over(&self, to: &Policy) -> Option<(Check, String)> {
        let limits = &to.to;
        if !limits.is_none() && covered(&self.batch, 0..1, budget_to(to, self.now)) == 0 {
            let more = Time(limits.wait(self.now).max(1));
            return Some((Check::ToLimit, format!("no tokens: for {more}, nothing gets there")));
        }
        let bytes = to.uplink.as_ref()?.grant(self.source, self.policy().weight, self.now);
        let bits = i64::try_from(bytes.saturating_mul(8)).unwrap_or(i64::MAX);
        let turn = covered(&self.batch, 0..1, Budget { bits, frames: i64::MAX });
        (turn == 0).then(|| (Check::Uplink, "it is the turn of others".to_owned()))
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
        Retagged::new().push(&self.batch, &[0], from, to, |batch, list| {
            for i in list {
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

/// What is left of a limit.
fn left(Budget { bits, frames }: Budget) -> String {
    match (bits, frames) {
        (i64::MAX, frames) => format!("{frames} frames left"),
        (bits, i64::MAX) => format!("{} left", Bits(bits)),
        (bits, frames) => format!("{} and {frames} frames left", Bits(bits)),
    }
}
