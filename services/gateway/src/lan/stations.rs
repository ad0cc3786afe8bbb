//! Which port a NIC is behind. The switch knows; it is asked when a flow is opened or an address
//! is asked for, and what wants the answer waits for it.

use std::collections::{HashMap, VecDeque};

use smoltcp::time::{Duration, Instant};

use super::Allowance;
use crate::counters::Reason;
use crate::link::{Mac, mac_text};

/// How long an answer is good: a NIC may move.
const GOOD: Duration = Duration::from_secs(1);
/// How long something waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Questions in a second. A guest may invent as many NICs as it likes, and the switch has other
/// things to do.
const QUESTIONS: u32 = 1000;
/// Frames that wait for answers, in all and of one NIC.
const HELD: (usize, usize) = (512, 16);
/// Bytes of frames that wait.
const HELD_BYTES: usize = 1 << 20;
/// NICs of one port.
const MACS: usize = 16;
/// NICs that are remembered in all.
const STATIONS: usize = 16_384;

/// The number of a port, for as long as this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortNo(usize);

/// A frame that waits.
#[derive(Debug)]
pub(crate) struct Held {
    mac: Mac,
    pub(crate) frame: Vec<u8>,
    pub(crate) trusted: bool,
    since: Instant,
}

/// What is known about a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// It is behind this port.
    Port(PortNo),
    /// The switch is being asked.
    Wait,
    /// It may not have any.
    Refused(Reason),
}

#[derive(Debug)]
struct Station {
    port: Option<PortNo>,
    answered: Option<Instant>,
    asked: Option<Instant>,
}

#[derive(Debug)]
struct Port {
    name: String,
    macs: usize,
    allowance: Allowance,
}

/// All NICs that ever asked for something.
#[derive(Debug)]
pub(crate) struct Stations {
    by_mac: HashMap<Mac, Station>,
    ports: Vec<Port>,
    held: VecDeque<Held>,
    /// Questions that are to be sent to the switch.
    questions: Vec<Mac>,
    /// Since when they are counted, and how many there were.
    asked: (Instant, u32),
    /// Nobody can be asked: each NIC is a port by itself.
    alone: bool,
    limits: (u32, u32),
}

impl Stations {
    /// `alone`: there is no switch to ask.
    pub(crate) fn new(alone: bool, flows: u32, rate: u32) -> Self {
        Self {
            by_mac: HashMap::new(),
            ports: Vec::new(),
            held: VecDeque::new(),
            questions: Vec::new(),
            asked: (Instant::ZERO, 0),
            alone,
            limits: (flows, rate),
        }
    }

    /// Follows new limits.
    pub(crate) fn set_limits(&mut self, flows: u32, rate: u32) {
        self.limits = (flows, rate);
        self.ports.iter_mut().for_each(|port| port.allowance.set(flows, rate));
    }

    /// Which port `mac` is behind.
    pub(crate) fn whose(&mut self, mac: Mac, now: Instant) -> Whose {
        if !self.by_mac.contains_key(&mac) && self.by_mac.len() >= STATIONS {
            self.forget_old(now);
            if self.by_mac.len() >= STATIONS {
                return Whose::Refused(Reason::Macs);
            }
        }
        if self.alone {
            return self.settle(mac, &mac_text(mac), now);
        }
        let new = Station { port: None, answered: None, asked: None };
        let station = self.by_mac.entry(mac).or_insert(new);
        match (station.port, station.answered) {
            (Some(port), Some(at)) if now < at + GOOD => return Whose::Port(port),
            (None, Some(at)) if now < at + GOOD => return Whose::Refused(Reason::Macs),
            _ => {}
        }
        if station.asked.is_none_or(|at| now >= at + PATIENCE) {
            if now >= self.asked.0 + GOOD {
                self.asked = (now, 0);
            }
            if self.asked.1 >= QUESTIONS {
                // Who is known is not kept waiting by those who are not.
                return station.port.map_or(Whose::Wait, Whose::Port);
            }
            self.asked.1 += 1;
            station.asked = Some(now);
            self.questions.push(mac);
        }
        Whose::Wait
    }

    /// The port that `mac` was behind when it was last asked about.
    pub(crate) fn last_known(&self, mac: Mac) -> Option<PortNo> {
        self.by_mac.get(&mac)?.port
    }

    /// Those without a port go: they cost nothing to ask about again.
    fn forget_old(&mut self, now: Instant) {
        self.by_mac.retain(|_, station| {
            station.port.is_some() || station.asked.is_some_and(|at| now < at + PATIENCE)
        });
    }

    /// Keeps a frame until the switch has said whose it is.
    pub(crate) fn hold(&mut self, mac: Mac, frame: &[u8], trusted: bool, now: Instant) {
        while self.held.front().is_some_and(|old| now >= old.since + PATIENCE) {
            self.held.pop_front();
        }
        let own = self.held.iter().filter(|held| held.mac == mac).count();
        let bytes: usize = self.held.iter().map(|held| held.frame.len()).sum();
        let fits = bytes + frame.len() <= HELD_BYTES;
        if self.held.len() < HELD.0 && own < HELD.1 && fits {
            self.held.push_back(Held { mac, frame: frame.to_vec(), trusted, since: now });
        }
    }

    /// What is to be asked.
    pub(crate) fn questions(&mut self) -> Vec<Mac> {
        std::mem::take(&mut self.questions)
    }

    /// The switch says which port `mac` is behind. The frames that waited for it.
    pub(crate) fn answer(&mut self, mac: Mac, port: Option<&str>, now: Instant) -> Vec<Held> {
        let was_asked = self.by_mac.get(&mac).is_some_and(|station| station.asked.is_some());
        if !was_asked {
            return Vec::new();
        }
        match port {
            Some(name) => _ = self.settle(mac, name, now),
            None => self.note(mac, None, now),
        }
        let (ready, rest): (Vec<_>, Vec<_>) = self.held.drain(..).partition(|held| held.mac == mac);
        self.held = rest.into();
        ready
    }

    fn note(&mut self, mac: Mac, port: Option<PortNo>, now: Instant) {
        let old = self
            .by_mac
            .insert(mac, Station { port, answered: Some(now), asked: None })
            .and_then(|station| station.port);
        if old == port {
            return;
        }
        let macs = |ports: &mut Vec<Port>, no: PortNo, by: isize| {
            let port = ports.get_mut(no.0);
            port.into_iter().for_each(|port| port.macs = port.macs.saturating_add_signed(by));
        };
        old.into_iter().for_each(|no| macs(&mut self.ports, no, -1));
        port.into_iter().for_each(|no| macs(&mut self.ports, no, 1));
    }

    fn settle(&mut self, mac: Mac, name: &str, now: Instant) -> Whose {
        let no = self.number(name, now);
        let is_new = self.by_mac.get(&mac).is_none_or(|station| station.port != Some(no));
        let full = self.ports.get(no.0).is_some_and(|port| port.macs >= MACS);
        if is_new && full {
            self.note(mac, None, now);
            return Whose::Refused(Reason::Macs);
        }
        self.note(mac, Some(no), now);
        Whose::Port(no)
    }

    fn number(&mut self, name: &str, now: Instant) -> PortNo {
        if let Some(no) = self.ports.iter().position(|port| port.name == name) {
            return PortNo(no);
        }
        let allowance = Allowance::new(self.limits.0, self.limits.1, now);
        self.ports.push(Port { name: name.to_owned(), macs: 0, allowance });
        PortNo(self.ports.len() - 1)
    }

    /// The name of a port.
    pub(crate) fn name(&self, no: PortNo) -> &str {
        self.ports.get(no.0).map_or("", |port| port.name.as_str())
    }

    /// What a port may still do.
    pub(crate) fn allowance(&mut self, no: PortNo) -> Option<&mut Allowance> {
        self.ports.get_mut(no.0).map(|port| &mut port.allowance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn what_wants_an_answer_waits_for_it() {
        let mut all = Stations::new(false, 10, 10);
        let at = Instant::from_millis;
        assert_eq!(all.whose(mac(1), at(0)), Whose::Wait);
        all.hold(mac(1), b"first", true, at(0));
        assert_eq!(all.whose(mac(1), at(1)), Whose::Wait);
        assert_eq!(all.questions(), [mac(1)], "it is asked once");
        assert!(all.answer(mac(2), Some("vm2"), at(2)).is_empty(), "nobody asked about that");
        let ready = all.answer(mac(1), Some("vm1"), at(3));
        assert_eq!(ready.len(), 1);
        assert_eq!(ready[0].frame, b"first");
        let Whose::Port(no) = all.whose(mac(1), at(4)) else { panic!("it is known") };
        assert_eq!(all.name(no), "vm1");
        assert_eq!(all.whose(mac(1), at(1500)), Whose::Wait, "it may have moved");
    }

    #[test]
    fn a_flood_of_nics_is_not_passed_on_and_holds_nobody_up_who_is_known() {
        let mut all = Stations::new(false, 10, 10);
        let at = Instant::from_millis;
        all.whose(mac(1), at(0));
        all.answer(mac(1), Some("vm1"), at(0));
        all.questions();
        for n in 0..10_000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            assert_eq!(all.whose(Mac([2, 1, 0, 0, a, b]), at(2000)), Whose::Wait);
        }
        assert_eq!(all.questions().len(), 1000);
        assert!(matches!(all.whose(mac(1), at(2001)), Whose::Port(_)));
        all.whose(mac(1), at(3001));
        assert_eq!(all.questions(), [mac(1)], "a second later it is asked about again");
    }

    #[test]
    fn a_port_has_sixteen_nics_at_most() {
        let mut all = Stations::new(false, 10, 10);
        let at = Instant::from_millis;
        for n in 0..20 {
            all.whose(mac(n), at(0));
            all.answer(mac(n), Some("vm1"), at(0));
        }
        assert!(matches!(all.whose(mac(15), at(1)), Whose::Port(_)));
        assert_eq!(all.whose(mac(16), at(1)), Whose::Refused(Reason::Macs));
        for n in 0..100 {
            all.hold(mac(77), &[n], true, at(0));
        }
        assert_eq!(all.held.len(), HELD.1);
    }
}
