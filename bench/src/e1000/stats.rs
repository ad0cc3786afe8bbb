//! The switch's own counters, as `vmlan stats --json` gives them.

use std::path::Path;

use serde_json::Value;

use super::super::peers::Error;
use super::super::peers::process::output;

/// Totals of all ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that came from ports.
    pub sent: u64,
    /// Frames delivered to ports.
    pub delivered: u64,
    /// Register accesses that were messages (virtio: doorbells).
    pub accesses: u64,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Interrupts held back by moderation.
    pub held: u64,
}

impl Totals {
    /// What came since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            delivered: self.delivered - before.delivered,
            accesses: self.accesses - before.accesses,
            interrupts: self.interrupts - before.interrupts,
            held: self.held - before.held,
        }
    }
}

/// Asks the switch at `api`.
///
/// # Errors
/// When it does not answer, or in a form that is not known here.
pub fn read(program: &Path, api: &Path) -> Result<Totals, Error> {
    let api = api.to_string_lossy();
    let text = output(&program.to_string_lossy(), &["stats", "--json", "--api", &api])?;
    parse(&text).ok_or_else(|| Error::Failed("vmlan stats --json makes no sense".into()))
}

fn parse(text: &str) -> Option<Totals> {
    let stats: Value = serde_json::from_str(text).ok()?;
    let mut sum = Totals::default();
    for port in stats["ports"].as_array()? {
        sum.sent += port["in"]["frames"].as_u64()?;
        sum.delivered += port["out"]["frames"].as_u64()?;
        let device = &port["device"];
        match device["registers"].as_object() {
            None => {
                sum.accesses += port["doorbells"].as_u64()?;
                sum.interrupts += port["interrupts"].as_u64()?;
            }
            Some(registers) => {
                let both = |r: &Value| Some(r["reads"].as_u64()? + r["writes"].as_u64()?);
                sum.accesses += registers.values().map(both).sum::<Option<u64>>()?;
                sum.interrupts += device["delivered"].as_u64()?;
                sum.held += device["held"].as_u64()?;
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_port_are_added_up() {
        let text = r#"{"ports":[
            {"in":{"frames":5},"out":{"frames":1},"doorbells":3,"interrupts":2,"device":null},
            {"in":{"frames":1},"out":{"frames":5},"doorbells":9,"interrupts":9,
             "device":{"registers":{"TDT":{"reads":0,"writes":7},"ICR":{"reads":2,"writes":0}},
                       "raised":4,"held":1,"delivered":3}}]}"#;
        let sum = Totals { sent: 6, delivered: 6, accesses: 12, interrupts: 5, held: 1 };
        assert_eq!(parse(text), Some(sum));
        assert_eq!(parse(r#"{"ports":[{}]}"#), None);
    }
}
