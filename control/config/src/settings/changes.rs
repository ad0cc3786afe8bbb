//! What was changed while a switch ran, in words for the next one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use vmlan_switch::MAX_PORTS;

use super::Plan;
use crate::address::{
    AddressError, LimitTable, NamedAddress, Pair, PortName, SflowTable, rule_name,
};

/// A plan in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Words {
    ports: Vec<String>,
    limits: BTreeMap<String, Vec<Pair>>,
    groups: BTreeSet<String>,
    sflow: Option<Vec<Pair>>,
}

fn owned(pairs: Vec<(&'static str, String)>) -> Vec<Pair> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl Words {
    fn of(plan: &Plan) -> Self {
        let port = |named: &NamedAddress| format!("{}={}", named.name, named.address);
        let limit =
            |(name, table): (&PortName, &LimitTable)| (name.to_string(), owned(table.pairs()));
        Self {
            ports: plan.ports.iter().map(port).collect(),
            limits: plan.limits.iter().map(limit).collect(),
            groups: plan.groups.iter().map(PortName::to_string).collect(),
            sflow: plan.sflow.as_ref().map(|table| owned(table.pairs())),
        }
    }

    fn plan(&self) -> Result<Plan, AddressError> {
        let limit =
            |(name, pairs): (&String, &Vec<Pair>)| Ok((rule_name(name)?, LimitTable::new(pairs)?));
        Ok(Plan {
            ports: self.ports.iter().map(|port| port.parse()).collect::<Result<_, _>>()?,
            limits: self.limits.iter().map(limit).collect::<Result<_, AddressError>>()?,
            groups: self.groups.iter().map(|name| rule_name(name)).collect::<Result<_, _>>()?,
            sflow: self.sflow.as_ref().map(SflowTable::new).transpose()?,
        })
    }
}

/// An address that is pinned to a port, in the domain of this number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Pin {
    pub mac: String,
    pub domain: u16,
    pub port: String,
}

/// Why nobody can go on with what was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongChanges {
    /// It is of another release, which has other words.
    #[error(transparent)]
    Words(#[from] AddressError),
    /// No switch has written it.
    #[error("more ports are in it than a switch has")]
    TooMany,
}

/// Plans that a running one comes from.
const MOST_FROM: usize = 2;

/// The plan that runs, and what it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// What the switch was started with, and the plan that was applied last.
    from: Vec<Words>,
    running: Words,
    /// Addresses that were pinned to ports.
    pub pins: BTreeSet<Pin>,
    /// Switches in a row that have gone on with them, and died soon after.
    #[serde(default)]
    pub deaths: u32,
}

impl Changes {
    /// From plans to the one that is `running`.
    pub fn new(from: &[Plan], running: &Plan, pins: BTreeSet<Pin>) -> Self {
        let from = from.iter().map(Words::of).collect();
        Self { from, running: Words::of(running), pins, deaths: 0 }
    }

    /// There are none: the next switch has all of it by itself.
    pub fn is_nothing(&self) -> bool {
        let first = self.from.first();
        self.pins.is_empty() && first.is_some_and(|first| *first == self.running)
    }

    /// The plan of the next switch, which is started with `own`: that, but for what was changed of
    /// it. What its configuration says otherwise than before counts as the newer word.
    ///
    /// # Errors
    /// [`WrongChanges`].
    pub fn applied_to(&self, own: &Plan) -> Result<Plan, WrongChanges> {
        let plans = || self.from.iter().chain([&self.running]);
        if self.from.len() > MOST_FROM || plans().any(|plan| plan.ports.len() > MAX_PORTS) {
            return Err(WrongChanges::TooMany);
        }
        let from = self.from.iter().map(Words::plan).collect::<Result<Vec<_>, _>>()?;
        let running = self.running.plan()?;
        let at = |plan: &Plan, name: &PortName| {
            plan.ports.iter().find(|port| port.name == *name).cloned()
        };
        let others = running.ports.iter().filter(|port| at(own, &port.name).is_none());
        let names = own.ports.iter().chain(others).map(|port| &port.name);
        let ports = names.filter_map(|name| later(own, &from, &running, |plan| at(plan, name)));
        let limits = own.limits.keys().chain(running.limits.keys()).collect::<BTreeSet<_>>();
        let limits = limits.into_iter().filter_map(|name| {
            let limit = |plan: &Plan| plan.limits.get(name).copied();
            Some((name.clone(), later(own, &from, &running, limit)?))
        });
        let groups = own.groups.union(&running.groups);
        let is_there =
            |name: &&PortName| later(own, &from, &running, |plan| plan.groups.contains(*name));
        Ok(Plan {
            ports: ports.collect(),
            limits: limits.collect(),
            groups: groups.filter(is_there).cloned().collect(),
            sflow: later(own, &from, &running, |plan| plan.sflow.clone()),
        })
    }
}

/// A part of the plan: what was running, unless `own` says something else than before.
fn later<T: PartialEq>(own: &Plan, from: &[Plan], running: &Plan, part: impl Fn(&Plan) -> T) -> T {
    let now = part(own);
    if from.iter().any(|plan| part(plan) == now) { part(running) } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ports: &[&str]) -> Plan {
        Plan { ports: ports.iter().map(|port| port.parse().unwrap()).collect(), ..Plan::default() }
    }

    /// Says and reads them again.
    fn said(from: &[Plan], running: &Plan) -> Changes {
        let changes = Changes::new(from, running, BTreeSet::new());
        let text = serde_json::to_string(&changes).unwrap();
        let read: Changes = serde_json::from_str(&text).unwrap();
        assert_eq!(read, changes);
        read
    }

    fn ports(plan: &Plan) -> Vec<String> {
        Words::of(plan).ports
    }

    const A: &str = "a=vhost-user:/a";
    const B: &str = "b=vfio-user:/b,model=e1000";
    const X: &str = "x=vhost-user:/x,from_rate=1Mbit";

    #[test]
    fn what_was_changed_stays_and_what_is_configured_anew_counts() {
        let started = plan(&[A, B]);
        // `a` is limited, `b` removed, `x` added.
        let limited = "a=vhost-user:/a,from_rate=5Mbit";
        let changes = said(std::slice::from_ref(&started), &plan(&[limited, X]));
        assert!(!changes.is_nothing());
        let after = |own: &[&str]| ports(&changes.applied_to(&plan(own)).unwrap());
        assert_eq!(after(&[A, B]), [limited, X]);
        assert_eq!(after(&[B, A]), [limited, X]);
        // The configuration has changed meanwhile: of `a`; of `b`; it has `x`; `a` is gone; new.
        assert_eq!(after(&["a=vhost-user:/other", B]), ["a=vhost-user:/other", X]);
        let other = "b=vfio-user:/b,model=r8169";
        assert_eq!(after(&[A, other]), [limited, other, X]);
        assert_eq!(after(&[A, B, "x=vhost-user:/x"]), [limited, "x=vhost-user:/x"]);
        assert_eq!(after(&[B]), [X]);
        assert_eq!(after(&[A, B, "n=vhost-user:/n"]), [limited, "n=vhost-user:/n", X]);
    }

    #[test]
    fn a_configuration_that_was_applied_is_what_was_started_with() {
        let (started, applied) = (plan(&[A]), plan(&[A, B]));
        let changes = said(&[started, applied], &plan(&[A, B, X]));
        let after = |own: &[&str]| ports(&changes.applied_to(&plan(own)).unwrap());
        // The file has it now, or has not.
        assert_eq!(after(&[A, B]), [A, B, X]);
        assert_eq!(after(&[A]), [A, B, X]);
    }

    #[test]
    fn limits_groups_and_sampling_are_kept_as_ports_are() {
        let limit = |rate: &str| LimitTable::new(&[("rate".to_owned(), rate.to_owned())]).unwrap();
        let name = |name: &str| rule_name(name).unwrap();
        let sflow = SflowTable::new(&[("collector".to_owned(), "10.0.0.9:6343".to_owned())]);
        let started = Plan {
            limits: [(name("one"), limit("1Mbit")), (name("two"), limit("2Mbit"))].into(),
            groups: [name("g")].into(),
            ..Plan::default()
        };
        let running = Plan {
            limits: [(name("two"), limit("7Mbit")), (name("three"), limit("3Mbit"))].into(),
            groups: [name("h")].into(),
            sflow: Some(sflow.unwrap()),
            ..Plan::default()
        };
        let changes = said(std::slice::from_ref(&started), &running);
        let after = changes.applied_to(&started).unwrap();
        assert_eq!(Words::of(&after), Words::of(&running));
        let own = Plan { limits: [(name("two"), limit("9Mbit"))].into(), ..Plan::default() };
        let after = changes.applied_to(&own).unwrap();
        assert_eq!(
            after.limits,
            [(name("three"), limit("3Mbit")), (name("two"), limit("9Mbit"))].into()
        );
        assert_eq!((after.groups, after.sflow), ([name("h")].into(), running.sflow));
    }

    #[test]
    fn nothing_was_changed_if_it_is_as_it_was_started() {
        let started = plan(&[A, B]);
        assert!(said(std::slice::from_ref(&started), &started).is_nothing());
        // The next one is started with less than what was applied.
        let applied = plan(&[A]);
        assert!(!said(&[started, applied.clone()], &applied).is_nothing());
    }

    #[test]
    fn more_than_a_switch_has_is_an_error() {
        let many = vec!["a=tap:b".to_owned(); MAX_PORTS + 1];
        let mut changes = Changes { from: vec![Words::default(); 2], ..Changes::default() };
        assert!(changes.applied_to(&Plan::default()).is_ok());
        changes.from.push(Words::default());
        assert_eq!(changes.applied_to(&Plan::default()).unwrap_err(), WrongChanges::TooMany);
        changes.from.clear();
        changes.running.ports = many;
        assert_eq!(changes.applied_to(&Plan::default()).unwrap_err(), WrongChanges::TooMany);
    }

    #[test]
    fn words_of_another_release_are_an_error() {
        let ports = r#""ports":["a=warp:/a"],"limits":{}"#;
        let limits = r#""ports":[],"limits":{"x":[["hue","1"]]}"#;
        for wrong in [ports, limits] {
            let running = format!(r#"{{{wrong},"groups":[],"sflow":null}}"#);
            let text = format!(r#"{{"from":[],"running":{running},"pins":[]}}"#);
            let changes: Changes = serde_json::from_str(&text).unwrap();
            assert!(changes.applied_to(&Plan::default()).is_err(), "{text}");
        }
    }
}
