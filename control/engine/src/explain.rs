//! `vmlan explain`: what would become of a frame, and why.
//!
//! The switch decides ([`vmlan_switch::Explanation`]). Here its findings become sentences. Names,
//! the key that decides and what to do are added.

use serde::{Deserialize, Serialize};
use vmlan_switch::{Check, End, Explanation, Fate, PortId, Receiver, Verdict};

mod advice;
pub mod frame;
mod sentence;
#[cfg(test)]
mod tests;
pub use advice::Known;

/// What would become of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The port it would come from.
    pub port: String,
    /// Its length.
    pub bytes: usize,
    /// What was checked, in the order of the data path.
    pub steps: Vec<StepLine>,
    /// `delivered`, `flooded`, `held` or `refused`.
    pub outcome: String,
    /// What comes after it was held for want of tokens.
    pub then: Option<String>,
    /// Who gets it, at last.
    pub to: Vec<ToLine>,
    /// Monitors that are shown a copy.
    pub copies: Vec<String>,
    /// Why it is refused: the same word as in `stats`.
    pub reason: Option<String>,
    /// The port whose counters show that, and whose key decides it.
    pub by: Option<String>,
    /// The key that decides it, with its value.
    pub key: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
}

/// One check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct StepLine {
    pub check: String,
    /// The receiver that it is about, if it is about one.
    pub port: Option<String>,
    /// `pass`; `refuse`, `hold`: it does not leave its port; `drop`: it is lost at the receiver.
    pub verdict: String,
    pub detail: String,
}

/// A port that gets the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToLine {
    /// Its name.
    pub port: String,
    /// The tags it sees.
    pub form: String,
}

impl Explained {
    /// Says in words what the switch explains of a frame of `bytes` bytes from `source`.
    pub fn new(explanation: &Explanation, bytes: usize, source: PortId, known: &Known<'_>) -> Self {
        let name = |port: PortId| known.name(port).to_owned();
        let step = |s: &vmlan_switch::Step| {
            let text = sentence::finding(&s.finding, known);
            StepLine {
                check: s.check().name().to_owned(),
                port: s.port.map(name),
                verdict: s.verdict.name().to_owned(),
                detail: match s.port.and_then(|to| known.kept_out(source, to, s)) {
                    Some(key) => format!("{text} ({key})"),
                    None => text,
                },
            }
        };
        let mut new = Self {
            port: name(source),
            bytes,
            steps: explanation.steps.iter().map(step).collect(),
            copies: explanation
                .copies
                .iter()
                .filter(|c| c.tags().is_some())
                .map(|c| name(c.port))
                .collect(),
            ..Self::default()
        };
        let ends = Ends { source, known, explanation };
        match &explanation.end {
            End::Refused(reason) => new.refused(source, *reason, &ends),
            End::To(receiver) => new.received("delivered", std::slice::from_ref(receiver), &ends),
            End::Flooded(receivers) => new.received("flooded", receivers, &ends),
        }
        if explanation.held && new.outcome != "refused" {
            new.then = Some(std::mem::take(&mut new.outcome));
            new.held(source, &ends);
        }
        new
    }

    fn refused(&mut self, by: PortId, reason: vmlan_frame::Reason, ends: &Ends<'_>) {
        self.outcome = "refused".to_owned();
        self.reason = Some(reason.name().to_owned());
        self.by = Some(ends.known.name(by).to_owned());
        let (key, fix) = ends.known.fix(reason, by, ends.source, ends.explanation);
        (self.key, self.fix) = (key, Some(fix));
    }

    fn held(&mut self, by: PortId, ends: &Ends<'_>) {
        self.outcome = "held".to_owned();
        self.by = Some(ends.known.name(by).to_owned());
        self.key = ends.known.limit(by, by == ends.source);
        self.fix = Some("nothing: the frame is not lost, and goes when its turn comes".to_owned());
    }

    fn received(&mut self, word: &str, receivers: &[Receiver], ends: &Ends<'_>) {
        for r in receivers {
            if let Some(tags) = r.tags() {
                let port = ends.known.name(r.port).to_owned();
                self.to.push(ToLine { port, form: sentence::tags(&tags) });
            }
        }
        if !self.to.is_empty() {
            word.clone_into(&mut self.outcome);
            return;
        }
        match receivers.first().map(|r| (r.port, &r.fate)) {
            Some((port, Fate::Dropped(reason))) => self.refused(port, *reason, ends),
            Some((port, _)) => self.held(port, ends),
            None => {}
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let row = |s: &StepLine| {
            let port = s.port.as_deref().unwrap_or("-");
            [&s.check, &s.verdict, port, &s.detail].map(str::to_owned).to_vec()
        };
        let mut rows = vec![["CHECK", "VERDICT", "PORT", "WHY"].map(str::to_owned).to_vec()];
        rows.extend(self.steps.iter().map(row));
        let mut text = vmlan_config::human_text::columns(&rows, 4) + "\n" + &self.outcome;
        match &self.reason {
            Some(reason) => text += &format!(": {reason}, counted at {}", self.by()),
            None if self.outcome == "held" => text += &format!(" at {}", self.by()),
            None => {}
        }
        if let Some(then) = &self.then {
            text += &format!(", then {then}");
        }
        if !self.to.is_empty() {
            let to: Vec<_> = self.to.iter().map(|t| format!("{} ({})", t.port, t.form)).collect();
            text += &format!(" to {}", to.join(", "));
        }
        if !self.copies.is_empty() {
            text += &format!("; copied to {}", self.copies.join(", "));
        }
        for (label, text_of) in [("by", &self.key), ("fix", &self.fix)] {
            if let Some(line) = text_of {
                text += &format!("\n  {label:4}  {line}");
            }
        }
        text + "\n"
    }

    fn by(&self) -> &str {
        self.by.as_deref().unwrap_or("-")
    }
}

/// What the end of an explanation is made of.
struct Ends<'a> {
    source: PortId,
    known: &'a Known<'a>,
    explanation: &'a Explanation,
}

/// True if the frame passed all checks of this kind.
fn passed(explanation: &Explanation, check: Check) -> bool {
    explanation.steps.iter().filter(|s| s.check() == check).all(|s| s.verdict == Verdict::Pass)
}
