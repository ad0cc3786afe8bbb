//! Explains what would become of a frame and why, without sending it.
//!
//! Nothing is sent, learned, spent or counted. Each decision is made by the function that the data
//! path calls, in the data path's order (`forward.rs`); `tests/explain.rs` gives random frames to
//! both. What only the moment of delivery decides is not foreseen: a full ring, buffers that are
//! too short, other frames under way.
//!
//! Unlike the rest of this crate it allocates: only the control thread calls it. It returns data;
//! the sentences for people are made in the engine.

use vmlan_frame::{Batch, Offload, Reason};
use vmlan_ram::Slice;

use crate::forward::Way;
use crate::policy::{Domain, Policy};
use crate::{Entry, PortId, Switch, Table};

mod copies;
mod delivery;
mod finding;
mod sender;
mod source_check;
pub use finding::{Check, Finding, Place, Step, StormTokens, Tag, Tags, Tokens, Verdict};
pub use source_check::{Claim, ClaimFault, ClaimSetting, Claimed, Naming, Unparsed};

/// What would become of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What was checked, in order.
    pub steps: Vec<Step>,
    /// It would first stay in its sender's ring for want of tokens. The rest says what becomes of
    /// it once there are some.
    pub held: bool,
    /// What came of it.
    pub end: End,
    /// The domain that it entered; [`Domain::OPEN`] if it entered none.
    pub domain: Domain,
    /// The address that was refused because it is not its sender's; `None` for other faults.
    pub claim: Option<Claim>,
    /// The settings that refuse its claims, each by itself.
    pub settings: Vec<ClaimSetting>,
    /// What its sender would be answered, because its packet is too long for a link.
    pub answer: Option<Vec<u8>>,
    /// Monitors that would be shown a copy.
    pub copies: Vec<Receiver>,
}

/// How far a frame would come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Nowhere: dropped and counted, at the port it came from.
    Refused(Reason),
    /// To the port that its destination is behind.
    To(Receiver),
    /// To all that may have it.
    Flooded(Vec<Receiver>),
}

/// A port that a frame would be handed to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Receiver {
    pub port: PortId,
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
    /// The tags that it sees; `None` if the frame is not delivered.
    pub fn tags(&self) -> Option<Tags> {
        match &self.fate {
            Fate::Delivered(bytes) => Some(Tags::of(bytes)),
            _ => None,
        }
    }
}

impl Switch {
    /// Explains what would become of `frame`, if `source` sent it at `now` (nanoseconds of the
    /// workers' clock). `None` if there is no such port in `table`.
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
        let outcome = Explanation {
            steps: Vec::new(),
            held: false,
            end: End::Refused(Reason::Runt),
            domain: Domain::OPEN,
            claim: None,
            settings: Vec::new(),
            answer: None,
            copies: Vec::new(),
        };
        let mut trace = Trace { switch: self, table, source, entry, batch, now, outcome };
        trace.outcome.end = match added {
            Ok(()) => trace.follow().unwrap_or_else(|end| end),
            Err(reason) => trace.refuse(reason, Finding::BadLength(frame.len())),
        };
        trace.copies();
        Some(trace.outcome)
    }
}

/// One frame that is followed on its way.
struct Trace<'a> {
    switch: &'a Switch,
    table: &'a Table,
    source: PortId,
    entry: &'a Entry,
    batch: Batch<'a>,
    now: u64,
    outcome: Explanation,
}

impl Trace<'_> {
    fn step(&mut self, port: Option<PortId>, verdict: Verdict, finding: Finding) {
        self.outcome.steps.push(Step { port, verdict, finding });
    }

    fn pass(&mut self, finding: Finding) {
        self.step(None, Verdict::Pass, finding);
    }

    fn refuse(&mut self, reason: Reason, finding: Finding) -> End {
        self.step(None, Verdict::Refuse, finding);
        End::Refused(reason)
    }

    fn policy(&self) -> &Policy {
        &self.entry.policy
    }

    /// What decisions rest on.
    fn frame(&self) -> (&[u8], usize) {
        (self.batch.head(0), self.batch.frame_len(0))
    }

    fn as_source(&self) -> (PortId, &Policy) {
        (self.source, &self.entry.policy)
    }

    /// `Err` if the frame is dropped before anybody could receive it.
    fn follow(&mut self) -> Result<End, End> {
        self.limit();
        let domain = self.domain()?;
        self.outcome.domain = domain;
        self.claims()?;
        self.guard()?;
        self.source(domain)?;
        let at = self.learning(domain)?;
        let way = self.destination(domain, at)?;
        match way {
            Way::Drop(reason) => Err(End::Refused(reason)),
            Way::To(port) | Way::Team(port) => Ok(End::To(self.receive(port, domain, way))),
            Way::WholeTeam(of) => {
                self.storm()?;
                let mates = self.table.mates(of);
                self.flood(domain, mates).map(End::Flooded)
            }
            Way::Flood => {
                self.storm()?;
                let all = self.table.members().iter().copied();
                self.flood(domain, all).map(End::Flooded)
            }
        }
    }
}
