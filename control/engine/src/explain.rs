//! `vmlan explain`: what would become of a frame, and why.
//!
//! The switch decides ([`vmlan_switch::Explanation`]); here that gets names, the key that decides it, and the mend.

use serde::{Deserialize, Serialize};
use vmlan_switch::{Check, End, Explanation, Fate, PortId, Receiver, Verdict};

pub mod frame;
mod mend;
#[cfg(test)]
mod tests;
pub use mend::Known;

/// What would become of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The port it would come from.
    pub port: String,
    /// Its length.
    pub bytes: usize,
    /// What was looked at, in the order of the data path.
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
    /// What would help.
    pub mend: Option<String>,
}

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLine {
    /// What was looked at.
    pub check: String,
    /// The receiver that it is about, if it is about one.
    pub port: Option<String>,
    /// `pass`; `refuse`, `hold`: it does not leave its port; `drop`: it is lost at the receiver.
    pub verdict: String,
    /// Why.
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
    /// Puts names and mends to what the switch says of a frame of `bytes` bytes from `source`.
    #[must_use]
    pub fn new(told: &Explanation, bytes: usize, source: PortId, known: &Known<'_>) -> Self {
        let name = |port: PortId| known.name(port).to_owned();
        let step = |s: &vmlan_switch::Step| StepLine {
            check: s.check.name().to_owned(),
            port: s.port.map(name),
            verdict: s.verdict.name().to_owned(),
            detail: match s.port.and_then(|to| known.kept_out(source, to, s)) {
                Some(key) => format!("{} ({key})", s.detail),
                None => s.detail.clone(),
            },
        };
        let mut new = Self {
            port: name(source),
            bytes,
            steps: told.steps.iter().map(step).collect(),
            copies: told
                .copies
                .iter()
                .filter(|c| c.form().is_some())
                .map(|c| name(c.port))
                .collect(),
            ..Self::default()
        };
        let ends = Ends { source, known, told };
        match &told.end {
            End::Refused(reason) => new.refused(source, *reason, &ends),
            End::To(receiver) => new.received("delivered", std::slice::from_ref(receiver), &ends),
            End::Flooded(receivers) => new.received("flooded", receivers, &ends),
        }
        if told.held && new.outcome != "refused" {
            new.then = Some(std::mem::take(&mut new.outcome));
            new.held(source, &ends);
        }
        new
    }

    fn refused(&mut self, by: PortId, reason: vmlan_frame::Reason, ends: &Ends<'_>) {
        self.outcome = "refused".to_owned();
        self.reason = Some(reason.name().to_owned());
        self.by = Some(ends.known.name(by).to_owned());
        let (key, mend) = ends.known.mend(reason, by, ends.source, ends.told);
        (self.key, self.mend) = (key, Some(mend));
    }

    fn held(&mut self, by: PortId, ends: &Ends<'_>) {
        self.outcome = "held".to_owned();
        self.by = Some(ends.known.name(by).to_owned());
        self.key = ends.known.limit(by, by == ends.source);
        self.mend = Some("nothing is lost: it goes when its turn has come".to_owned());
    }

    fn received(&mut self, word: &str, receivers: &[Receiver], ends: &Ends<'_>) {
        for r in receivers {
            if let Some(form) = r.form() {
                self.to.push(ToLine { port: ends.known.name(r.port).to_owned(), form });
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
    #[must_use]
    pub fn table(&self) -> String {
        let row = |s: &StepLine| {
            let port = s.port.as_deref().unwrap_or("-");
            [&s.check, &s.verdict, port, &s.detail].map(str::to_owned).to_vec()
        };
        let mut rows = vec![["CHECK", "VERDICT", "PORT", "WHY"].map(str::to_owned).to_vec()];
        rows.extend(self.steps.iter().map(row));
        let mut text = vmlan_config::text::columns(&rows, 4) + "\n" + &self.outcome;
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
        for (word, said) in [("by", &self.key), ("mend", &self.mend)] {
            if let Some(said) = said {
                text += &format!("\n  {word:4}  {said}");
            }
        }
        text + "\n"
    }

    fn by(&self) -> &str {
        self.by.as_deref().unwrap_or("-")
    }
}

/// What an end is made of.
struct Ends<'a> {
    source: PortId,
    known: &'a Known<'a>,
    told: &'a Explanation,
}

/// True if `told` passed all looks of this kind.
fn passed(told: &Explanation, check: Check) -> bool {
    told.steps.iter().filter(|s| s.check == check).all(|s| s.verdict == Verdict::Pass)
}
