//! The body of the fuzz target `switch`: a whole switch, without threads and sockets. Two honest
//! guests talk, `a` with virtio-net and `b` with an e1000. Two hostile peers, one of either kind,
//! and an operator do what an input says, an act at a time. Kept inputs are replayed as a plain
//! test.
//!
//! An input is what `arbitrary` makes of its bytes: acts, as in `fuzz/grammar.rs`. After each of
//! them both honest guests send a frame, and all ports have a breath. Then
//!
//! - each honest frame has arrived, once, unchanged and in order;
//! - nobody else has spoken in the name of an honest guest, whose address its port lists;
//! - the honest ports' counters say exactly what was sent and received, and of no fault;
//! - nothing has panicked, overflowed or left its memory (the sanitizer looks too).
#![allow(clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use vmlan_attach::fuzz::{Driver, Peer};
use vmlan_config::address::{LimitTable, NamedAddress, PortName};
use vmlan_config::file::Config;
use vmlan_config::settings::Plan;
use vmlan_frame::{Counters, Mac};
use vmlan_switch::{Forwarder, Options, PortId, Source, Switch};

use crate::ports::{Ports, given};
use crate::worker::Workers;

mod grammar;
use grammar::{Act, Address, Frame, Hostile, Keys, Operator, Who, mac_of};

/// Acts of one input.
const ACTS: usize = 64;
/// Time between two rounds, in nanoseconds.
const ROUND: u64 = 10_000;
/// Rounds after which an honest frame must have arrived, whatever it had to wait for.
const PATIENCE: usize = 8;

/// Plays one input.
///
/// # Panics
/// If a promise is broken.
pub fn switch(data: &[u8]) {
    let mut world = World::new();
    let mut input = Unstructured::new(data);
    for _ in 0..ACTS {
        if input.is_empty() {
            break;
        }
        let Ok(act) = Act::arbitrary(&mut input) else { break };
        world.act(&act);
        world.round();
    }
    world.end();
}

/// One of the two that talk.
struct Honest {
    driver: Driver,
    who: Who,
    to: Who,
    /// Frames to the other one, and from it.
    sent: u64,
    came: u64,
    /// Frames from anybody.
    received: u64,
}

/// The `n`th frame to somebody.
fn frame(to: Who, from: Who, n: u64) -> Vec<u8> {
    let mut bytes = [mac_of(to), mac_of(from)].concat();
    bytes.extend([0x88, 0xb5]);
    bytes.extend(n.to_be_bytes());
    let len = 60 + usize::try_from(n * 97 % 900).unwrap_or(0);
    bytes.extend((0..=u8::MAX).cycle().skip(usize::from(n.to_le_bytes()[0])).take(len - 22));
    bytes
}

impl Honest {
    fn new(who: Who, to: Who, peer: Peer) -> Self {
        given::give(who.name(), peer.port());
        let mut driver = Driver::new(peer);
        driver.set_up();
        Self { driver, who, to, sent: 0, came: 0, received: 0 }
    }

    fn send(&mut self) {
        self.driver.send([0; 10], &frame(self.to, self.who, self.sent));
        self.sent += 1;
    }

    /// Takes what has come.
    fn take(&mut self) {
        while let Some(bytes) = self.driver.receive() {
            self.received += 1;
            let source = bytes.get(6..12);
            assert_ne!(source, Some(&mac_of(self.who)[..]), "somebody speaks in its name, to it");
            if source == Some(&mac_of(self.to)[..]) {
                assert_eq!(bytes, frame(self.who, self.to, self.came), "frame {}", self.came);
                self.came += 1;
            }
        }
    }

    fn check(&self) {
        let port = self.driver.peer.port();
        let counters = port.counters();
        let (input, output) = counters.snapshot();
        assert_eq!((input.frames, output.frames), (self.sent, self.received), "{:?}", self.who);
        let lost = |c: &Counters| {
            vmlan_frame::Reason::ALL.iter().map(|r| c.input.dropped(*r)).sum::<u64>()
        };
        assert_eq!((lost(counters), counters.faults.get()), (0, 0), "{:?}", self.who);
    }
}

struct World {
    ports: Ports,
    switch: Arc<Switch>,
    forwarder: Forwarder,
    /// In this round some have their breath together.
    together: bool,
    honest: [Honest; 2],
    hostile: [(Driver, bool); 2],
}

fn name(who: &str) -> PortName {
    who.parse().expect("a name")
}

/// The address of an honest port: others may not use its MAC address.
fn own(who: Who) -> String {
    let kind = if matches!(who, Who::A) { "vhost-user" } else { "vfio-user" };
    format!("{kind}:{},macs={}", who.name(), Mac::new(mac_of(who)))
}

/// The address of a hostile one.
fn theirs(who: Hostile, keys: &Keys) -> String {
    let kind = if who == Hostile::V { "vhost-user" } else { "vfio-user" };
    let keys = keys.pairs().filter(|(_, value)| !value.is_empty());
    keys.fold(format!("{kind}:{}", who.name()), |text, (key, value)| {
        format!("{text},{key}={value}")
    })
}

impl World {
    fn new() -> Self {
        let options = Options { fdb_entries: 64, fdb_port_cap: 16, ..Options::default() };
        let switch = Switch::new(options);
        let workers = Workers::played(switch.clone()).expect("a watchdog");
        let (v, c) = (Peer::virtio(), Peer::chip());
        given::give("v", v.port());
        given::give("c", c.port());
        let honest = [
            Honest::new(Who::A, Who::B, Peer::virtio()),
            Honest::new(Who::B, Who::A, Peer::chip()),
        ];
        let mut world = Self {
            ports: Ports::new(workers, switch.clone(), || {}),
            forwarder: Forwarder::new(switch.clone()),
            together: false,
            switch,
            honest,
            hostile: [v, c].map(|peer| (Driver::new(peer), false)),
        };
        for text in [own(Who::A), own(Who::B), "vhost-user:v".into(), "vfio-user:c".into()] {
            let address = text.parse().expect("an address");
            let who = text.split([':', ',']).nth(1).unwrap_or_default();
            world.ports.add(NamedAddress { name: name(who), address }).expect("a port");
        }
        world
    }

    fn act(&mut self, act: &Act<'_>) {
        match act {
            Act::Step { who, step, bytes } => {
                let (driver, _) = &mut self.hostile[*who as usize];
                driver.peer.step(*step, bytes);
                given::changed(who.name());
            }
            Act::SetUp(who) => {
                let (driver, ready) = &mut self.hostile[*who as usize];
                driver.set_up();
                *ready = true;
                given::changed(who.name());
            }
            Act::Send { who, header, frame } => {
                let (driver, ready) = &mut self.hostile[*who as usize];
                let (header, bytes) = frame.bytes(*header);
                if *ready {
                    driver.send(header, &bytes);
                }
            }
            Act::HangUp(who) => {
                let (driver, ready) = &mut self.hostile[*who as usize];
                driver.peer.hang_up();
                *ready = false;
                given::changed(who.name());
            }
            Act::Sleep => self.sleep(),
            Act::Time(us) => self.ports.workers().pass(u64::from(*us) * 1000),
            Act::Operator(operator) => self.operate(operator),
        }
    }

    /// What a worker does before it sleeps.
    fn sleep(&mut self) {
        let table = self.ports.workers().table();
        let mut blocked = Vec::new();
        self.forwarder.take_blocked(&mut blocked);
        for entry in table.members().iter().filter_map(|id| table.get(*id)) {
            let lanes = 0..entry.port.lanes();
            lanes.clone().for_each(|lane| _ = entry.port.arm(lane));
            entry.port.want_room();
            lanes.for_each(|lane| entry.port.disarm(lane));
        }
    }

    /// The honest send; all ports have a breath. Then what was sent is there.
    fn round(&mut self) {
        self.honest.iter_mut().for_each(Honest::send);
        for _ in 0..PATIENCE {
            self.breaths();
            let [a, b] = &self.honest;
            if (a.came, b.came) == (b.sent, a.sent) {
                break;
            }
        }
        for honest in &self.honest {
            assert!(honest.driver.all_sent(), "{:?}: a buffer is not given back", honest.who);
            honest.check();
        }
        let [a, b] = &self.honest;
        assert_eq!((a.came, b.came), (b.sent, a.sent), "honest frames are lost");
    }

    /// All ports have a breath: in every other round those who may have it together.
    fn breaths(&mut self) {
        let table = self.ports.workers().table();
        self.forwarder.grow(&table);
        let now = self.ports.workers().now();
        self.together = !self.together;
        let joins = |id: &PortId| self.together && self.forwarder.may_join(&table, *id, now);
        let (joint, alone): (Vec<PortId>, Vec<_>) =
            table.members().iter().partition(|id| joins(id));
        let mut joint: Vec<_> = joint.into_iter().map(Source::new).collect();
        while let Some(first) = joint.iter().position(|source| source.breath.is_none()) {
            self.forwarder.joint_breath(&table, &mut joint[first..], now);
            self.honest.iter_mut().for_each(Honest::take);
            self.ports.workers().pass(ROUND);
        }
        for id in alone {
            let now = self.ports.workers().now();
            for lane in 0..table.get(id).map_or(0, |entry| entry.port.lanes()) {
                self.forwarder.breath(&table, id, lane, now);
            }
            self.honest.iter_mut().for_each(Honest::take);
            self.ports.workers().pass(ROUND);
        }
    }

    fn operate(&mut self, operator: &Operator<'_>) {
        let ports = &mut self.ports;
        match operator {
            Operator::Add(who, keys) => {
                if let Ok(address) = theirs(*who, keys).parse() {
                    let _ = ports.add(NamedAddress { name: name(who.name()), address });
                }
            }
            Operator::Remove(who) => _ = ports.remove(&name(who.name())),
            Operator::Set(who, keys) => {
                let keys: Vec<_> =
                    keys.pairs().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                let _ = ports.set(&name(who.name()), &keys);
            }
            Operator::Weight(a, weight) => {
                let who = if *a { "a" } else { "b" };
                let _ = ports.set(&name(who), &[("weight".into(), weight.to_string())]);
            }
            Operator::Pin(mac, who, vid) => {
                let _ = ports.add_mac(Mac::new(mac.octets()), &name(who.name()), *vid);
            }
            Operator::Unpin(mac, vid) => self.unpin(*mac, *vid),
            Operator::Limit(one, rate) => {
                let pairs = [("frames".to_owned(), (u32::from(*rate) + 1).to_string())];
                let table = LimitTable::new(&pairs).expect("a limit");
                ports.set_limit(&name(limit(*one)), table).expect("it needs nothing");
            }
            Operator::NoLimit(one) => _ = ports.remove_limit(&name(limit(*one))),
            Operator::Apply { v, c, dry } => self.apply(&[(Hostile::V, v), (Hostile::C, c)], *dry),
            Operator::Explain(who, frame) => self.explain(*who, frame),
            Operator::Look => self.look(),
            Operator::Age => _ = ports.age(),
            Operator::Forget => _ = ports.forget_departed(),
        }
    }

    fn unpin(&mut self, mac: Address, vid: Option<u16>) {
        let gone = self.ports.remove_mac(Mac::new(mac.octets()), vid);
        let listed = matches!(mac, Address::Of(Who::A | Who::B));
        assert!(!listed || gone.is_err(), "{mac:?} is listed by its port");
    }

    fn apply(&mut self, hostile: &[(Hostile, &Option<Keys>)], dry: bool) {
        let port = |name: &str, address: &str| format!("[port.{name}]\naddress = '{address}'\n");
        let mut text = port("a", &own(Who::A)) + &port("b", &own(Who::B));
        for (who, keys) in hostile {
            if let Some(keys) = keys {
                text += &port(who.name(), &theirs(*who, keys));
            }
        }
        let Ok(mut config) = Config::parse(&text, Path::new("f")) else { return };
        let plan = Plan::new(&mut config, Vec::new());
        if plan.check(|p| config.line_of_port(&p.name)).is_ok() {
            let before = self.ports.list().len();
            let failed = self.ports.apply(&plan, dry).is_err();
            let now = self.ports.list().len();
            assert_eq!(now, if failed || dry { before } else { plan.ports.len() });
        }
    }

    fn explain(&mut self, who: Who, frame: &Frame<'_>) {
        let (_, bytes) = frame.bytes([0; 10]);
        if let Ok(told) = self.ports.explain(&name(who.name()), &bytes) {
            assert!(!told.outcome.is_empty() && told.bytes == bytes.len());
        }
    }

    /// Lists and counters can be had and written down; and an honest frame would get through.
    fn look(&mut self) {
        let stats = serde_json::to_string(&self.ports.stats()).expect("JSON");
        assert!(!stats.is_empty() && self.ports.list().len() >= self.honest.len());
        let _ = (self.ports.fdb(), self.ports.limits());
        let told = self.ports.explain(&name("a"), &frame(Who::B, Who::A, 0)).expect("it is there");
        let to: Vec<_> = told.to.iter().map(|to| to.port.as_str()).collect();
        assert_eq!((told.outcome.as_str(), &to[..]), ("delivered", &["b"][..]));
    }

    /// The hostile go, and are forgotten.
    fn end(mut self) {
        for (driver, _) in &mut self.hostile {
            driver.peer.hang_up();
            let port = driver.peer.port();
            assert!(!port.is_up() && !port.is_connected(), "left behind");
        }
        ["v", "c"].iter().for_each(|place| given::changed(place));
        self.ports.workers().pass(1_000_000_000);
        let _ = self.ports.age();
        let _ = self.ports.forget_departed();
        let alive = [Who::A, Who::B].map(Who::name);
        for line in self.ports.fdb().iter().filter(|line| !line.r#static) {
            assert!(
                alive.contains(&line.port.as_str()),
                "learned from one that has gone: {line:?}"
            );
        }
        self.round();
        drop(self.ports);
        assert_eq!(self.switch.fdb().list(), [], "all ports are closed");
    }
}

fn limit(one: bool) -> &'static str {
    if one { "one" } else { "two" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_inputs() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/switch");
        let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
        assert!(files.len() >= 16, "the seeds are gone from {corpus}");
        for file in files {
            switch(&std::fs::read(file.unwrap().path()).unwrap());
        }
    }

    /// The hostile are heard, or the target would show little.
    #[test]
    fn a_hostile_peer_that_behaves_is_heard() {
        let mut world = World::new();
        [Hostile::V, Hostile::C].iter().for_each(|who| world.act(&Act::SetUp(*who)));
        for (who, to) in [(Hostile::V, Who::C), (Hostile::C, Who::V)] {
            let bytes = [mac_of(to), mac_of(who.into())].concat();
            let data = [&bytes[..], &[0x88, 0xb5], &[7; 46]].concat();
            for _ in 0..3 {
                world.hostile[who as usize].0.send([0; 10], &data);
                world.round();
            }
            let port = world.hostile[who as usize].0.peer.port();
            assert_eq!(port.counters().snapshot().0.frames, 3);
        }
        let [(v, _), (c, _)] = &mut world.hostile;
        assert!(v.receive().is_some() && c.receive().is_some());
        world.end();
    }
}
