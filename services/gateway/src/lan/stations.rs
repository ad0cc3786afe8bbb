//! Which port a NIC is behind. The switch knows; it is asked when a flow is opened or an address
//! is asked for, and what wants the answer waits for it.

use std::collections::{HashMap, VecDeque};

use smoltcp::time::{Duration, Instant};

use super::Allowance;
use crate::counters::Reason;
use crate::link::{Arrived, Mac, mac_text};

/// How long an answer is good: a NIC may move.
const GOOD: Duration = Duration::from_secs(1);
/// How long something waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Lanes that frames come by, and one for what the gateway itself wants to know. Each has its share
/// of what follows, so that a guest that invents NICs takes it from those on its lane only.
const LANES: usize = vmlan_config::gateway::LANES as usize + 1;
/// Questions in a second. The switch has other things to do.
const QUESTIONS: u32 = 125;
/// Questions that are not answered yet. The switch does not wait for whoever does not read: what
/// all lanes have asked fits into a socket.
const OPEN: u32 = 8;
/// Frames that wait for answers, in all and of one NIC.
const HELD: (usize, usize) = (64, 16);
/// Bytes of frames that wait: two of the longest.
const HELD_BYTES: usize = 128 << 10;
/// NICs of one port.
const MACS: usize = 16;
/// How long a NIC keeps its place from others of its port without a word of the switch about it.
const KEPT: Duration = Duration::from_secs(60);
/// NICs that are remembered in all.
const STATIONS: usize = 16_384;

/// The number of a port, for as long as it has NICs or flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortNo(usize);

/// A frame that waits.
#[derive(Debug)]
pub(crate) struct Held {
    mac: Mac,
    pub(crate) frame: Vec<u8>,
    pub(crate) arrived: Arrived,
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

/// What is shared by those whose frames come by one queue.
#[derive(Debug)]
struct Lane {
    held: VecDeque<Held>,
    /// Since when questions are counted, and how many there were.
    asked: (Instant, u32),
    /// Those that are not answered.
    open: u32,
}

impl Lane {
    fn new() -> Self {
        Self { held: VecDeque::new(), asked: (Instant::ZERO, 0), open: 0 }
    }

    /// True if one more question may be asked now; it counts.
    fn may_ask(&mut self, now: Instant) -> bool {
        if now >= self.asked.0 + GOOD {
            self.asked = (now, 0);
        }
        let may = self.asked.1 < QUESTIONS && self.open < OPEN;
        self.asked.1 += u32::from(may);
        self.open += u32::from(may);
        may
    }
}

/// All NICs that asked for something, as far as there is room.
#[derive(Debug)]
pub(crate) struct Stations {
    by_mac: HashMap<Mac, Station>,
    ports: Vec<Port>,
    /// Questions that are to be sent to the switch.
    questions: Vec<Mac>,
    /// The lanes of those that are not answered, the oldest first: so they are answered.
    open: VecDeque<usize>,
    lanes: [Lane; LANES],
    /// The lane of the frame that is looked at.
    lane: usize,
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
            questions: Vec::new(),
            open: VecDeque::new(),
            lanes: std::array::from_fn(|_| Lane::new()),
            lane: LANES - 1,
            alone,
            limits: (flows, rate),
        }
    }

    /// Follows new limits.
    pub(crate) fn set_limits(&mut self, flows: u32, rate: u32) {
        self.limits = (flows, rate);
        self.ports.iter_mut().for_each(|port| port.allowance.set(flows, rate));
    }

    /// What is asked from now on is for a frame that came by `lane`, or for the gateway itself.
    pub(crate) fn enter(&mut self, lane: Option<usize>) {
        self.lane = lane.map_or(LANES - 1, |lane| lane.min(LANES - 2));
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
            // Its port is its own for good.
            if let Some(Station { port: Some(port), answered, .. }) = self.by_mac.get_mut(&mac) {
                *answered = Some(now);
                return Whose::Port(*port);
            }
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
            if !self.lanes.get_mut(self.lane).is_some_and(|lane| lane.may_ask(now)) {
                // Who is known is not kept waiting by those who are not.
                return station.port.map_or(Whose::Wait, Whose::Port);
            }
            station.asked = Some(now);
            self.questions.push(mac);
            self.open.push_back(self.lane);
        }
        Whose::Wait
    }

    /// The port that `mac` was behind when it was last asked about.
    pub(crate) fn last_known(&self, mac: Mac) -> Option<PortNo> {
        self.by_mac.get(&mac)?.port
    }

    /// Those go that were silent: it costs nothing to ask about them again.
    fn forget_old(&mut self, now: Instant) {
        let ports = &mut self.ports;
        self.by_mac.retain(|_, station| {
            let waits = station.asked.is_some_and(|at| now < at + PATIENCE);
            let fresh = station.answered.is_some_and(|at| now < at + KEPT);
            let port = station.port.and_then(|no| ports.get_mut(no.0));
            let stays = waits || port.is_some() && fresh;
            if let Some(port) = port.filter(|_| !stays) {
                port.macs = port.macs.saturating_sub(1);
            }
            stays
        });
    }

    /// Keeps a frame until the switch has said whose it is.
    pub(crate) fn hold(&mut self, mac: Mac, frame: &[u8], arrived: Arrived, now: Instant) {
        let Some(lane) = self.lanes.get_mut(self.lane) else { return };
        let held = &mut lane.held;
        while held.front().is_some_and(|old| now >= old.since + PATIENCE) {
            held.pop_front();
        }
        let own = held.iter().filter(|held| held.mac == mac).count();
        let bytes: usize = held.iter().map(|held| held.frame.len()).sum();
        if held.len() < HELD.0 && own < HELD.1 && bytes + frame.len() <= HELD_BYTES {
            held.push_back(Held { mac, frame: frame.to_vec(), arrived, since: now });
        }
    }

    /// What is to be asked.
    pub(crate) fn questions(&mut self) -> Vec<Mac> {
        std::mem::take(&mut self.questions)
    }

    /// The switch says which port `mac` is behind. The frames that waited for it.
    pub(crate) fn answer(&mut self, mac: Mac, port: Option<&str>, now: Instant) -> Vec<Held> {
        let by = self.open.pop_front();
        if let Some(lane) = by.and_then(|by| self.lanes.get_mut(by)) {
            lane.open -= 1;
        }
        let was_asked = self.by_mac.get(&mac).is_some_and(|station| station.asked.is_some());
        if !was_asked {
            return Vec::new();
        }
        match port {
            Some(name) => _ = self.settle(mac, name, now),
            None => self.note(mac, None, now),
        }
        let mut ready = Vec::new();
        for lane in &mut self.lanes {
            let (own, rest): (Vec<_>, _) = lane.held.drain(..).partition(|held| held.mac == mac);
            ready.extend(own);
            lane.held = rest.into();
        }
        by.into_iter().for_each(|by| self.ask_next(by, now));
        ready
    }

    /// Asks for the next frame that waits on this lane, if nobody has asked about its NIC.
    fn ask_next(&mut self, lane: usize, now: Instant) {
        let held = self.lanes.get(lane).into_iter().flat_map(|lane| &lane.held);
        let asked = |mac: &Mac| self.by_mac.get(mac).is_some_and(|known| known.asked.is_some());
        if let Some(mac) = held.map(|held| held.mac).find(|mac| !asked(mac)) {
            let current = std::mem::replace(&mut self.lane, lane);
            self.whose(mac, now);
            self.lane = current;
        }
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
        if is_new && full && !self.make_room(no, now) {
            self.note(mac, None, now);
            return Whose::Refused(Reason::Macs);
        }
        self.note(mac, Some(no), now);
        Whose::Port(no)
    }

    /// Forgets the NIC of a port that was not asked about for the longest time, if there is one: a
    /// guest gets new ones, and one port has many guests, one after the other.
    fn make_room(&mut self, no: PortNo, now: Instant) -> bool {
        let own = self.by_mac.iter().filter(|(_, station)| station.port == Some(no));
        let silent = own.filter_map(|(mac, station)| {
            let at = station.answered.filter(|at| station.asked.is_none() && now >= *at + KEPT)?;
            Some((at, *mac))
        });
        let Some((_, mac)) = silent.min_by_key(|(at, _)| *at) else { return false };
        self.by_mac.remove(&mac);
        let port = self.ports.get_mut(no.0);
        port.into_iter().for_each(|port| port.macs = port.macs.saturating_sub(1));
        true
    }

    fn number(&mut self, name: &str, now: Instant) -> PortNo {
        if let Some(no) = self.ports.iter().position(|port| port.name == name) {
            return PortNo(no);
        }
        let allowance = Allowance::new(self.limits.0, self.limits.1, now);
        let new = Port { name: name.to_owned(), macs: 0, allowance };
        // Ports come and go, each with a name of its own.
        let left = |port: &Port| port.macs == 0 && !port.allowance.is_used();
        let no = self.ports.iter().position(left).unwrap_or(self.ports.len());
        match self.ports.get_mut(no) {
            Some(port) => *port = new,
            None => self.ports.push(new),
        }
        PortNo(no)
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
        all.hold(mac(1), b"first", Arrived::default(), at(0));
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
        all.enter(Some(3));
        all.whose(mac(1), at(0));
        all.answer(mac(1), Some("vm1"), at(0));
        all.questions();
        let mut asked = 0;
        for n in 0..10_000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            let new = Mac([2, 1, 0, 0, a, b]);
            assert_eq!(all.whose(new, at(2000)), Whose::Wait);
            all.hold(new, &[0; 60], Arrived::default(), at(2000));
            // The switch answers now and then, and some wait for their question meanwhile.
            if n % 20 == 0 {
                for mac in all.questions() {
                    asked += 1;
                    all.answer(mac, None, at(2000));
                }
            }
        }
        assert_eq!(asked, QUESTIONS);
        assert!(matches!(all.whose(mac(1), at(2001)), Whose::Port(_)));
        // Who comes by another lane is asked about, and waits with a frame.
        all.enter(Some(4));
        assert_eq!(all.whose(mac(2), at(2001)), Whose::Wait);
        all.hold(mac(2), b"new", Arrived::default(), at(2001));
        assert_eq!(all.questions(), [mac(2)]);
        assert_eq!(all.answer(mac(2), Some("vm2"), at(2002)).len(), 1);
        all.enter(Some(3));
        all.whose(mac(1), at(3001));
        assert_eq!(all.questions(), [mac(1)], "a second later it is asked about again");
    }

    #[test]
    fn no_more_is_asked_than_the_switch_can_answer_to_one_that_does_not_read() {
        let mut all = Stations::new(false, 10, 10);
        let at = Instant::from_millis;
        for lane in 0..LANES - 1 {
            all.enter(Some(lane));
            for n in 0..100 {
                let new = Mac([2, 1, 0, 0, u8::try_from(lane).unwrap(), n]);
                all.whose(new, at(0));
                all.hold(new, &[n], Arrived::default(), at(0));
            }
        }
        let mut questions = VecDeque::from(all.questions());
        assert_eq!(questions.len(), 8 * (LANES - 1));
        // Each answer has the next one asked for which a frame waits.
        let mut answered = 0;
        while let Some(mac) = questions.pop_front() {
            answered += all.answer(mac, Some("vm1"), at(1)).len();
            questions.extend(all.questions());
            assert!(questions.len() <= 8 * (LANES - 1));
        }
        assert_eq!(answered, HELD.0 * (LANES - 1));
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
            all.hold(mac(77), &[n], Arrived::default(), at(0));
        }
        assert_eq!(all.lanes[LANES - 1].held.len(), HELD.1);
    }

    #[test]
    fn guests_that_have_gone_make_room_for_others() {
        let nic = |n: u32| {
            let [_, a, b, c] = n.to_be_bytes();
            Mac([2, 1, 0, a, b, c])
        };
        for alone in [false, true] {
            let mut all = Stations::new(alone, 10, 10);
            let mut used = None;
            // One guest after the other, each at a port of its own, five a second.
            for n in 0..17_000u32 {
                let now = Instant::from_millis(i64::from(n) * 200);
                all.whose(nic(n), now);
                all.answer(nic(n), Some(&format!("vm{n}")), now);
                let Whose::Port(no) = all.whose(nic(n), now) else { panic!("{alone}: guest {n}") };
                if n == 7 {
                    // The first connection of a guest that is silent, and stays.
                    all.allowance(no).unwrap().open(crate::lan::Kind::Tcp, now).unwrap();
                    used = Some((no, all.name(no).to_owned()));
                }
            }
            assert!(all.by_mac.len() <= STATIONS && all.ports.len() <= STATIONS + 1);
            let (no, name) = used.unwrap();
            assert_eq!(all.name(no), name, "a flow's port stays its own");
            let of_nics: usize = all.ports.iter().map(|port| port.macs).sum();
            assert_eq!(of_nics, all.by_mac.len());
        }
    }

    #[test]
    fn a_nic_that_was_not_heard_of_for_a_minute_makes_room() {
        let mut all = Stations::new(false, 10, 10);
        let at = Instant::from_secs;
        let mut ask = |n: u8, seconds: i64| {
            all.whose(mac(n), at(seconds));
            all.answer(mac(n), Some("vm1"), at(seconds));
            matches!(all.whose(mac(n), at(seconds)), Whose::Port(_))
        };
        assert!((0..16).all(|n| ask(n, n.into())));
        assert!(ask(0, 20), "it is still there");
        assert!(!ask(16, 59));
        // Now the second one has been silent for a minute.
        assert!(ask(16, 61));
        assert!(!ask(17, 61), "one makes room for one");
        assert!(!ask(1, 61));
        assert!(ask(0, 62) && ask(1, 62), "the third has gone");
        assert_eq!(all.ports[0].macs, MACS);
    }
}
