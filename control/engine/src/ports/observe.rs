//! Looks for what has happened, for those who listen.

use std::collections::BTreeMap;
use std::time::Duration;

use vmlan_frame::Reason;
use vmlan_switch::{FdbNews, PortId};

use super::{Entry, Ports, fdb};
use crate::events::{Event, Events, Listener, MOST_LISTENERS};
use vmlan_config::address::PortName;
use vmlan_config::refusal::{Cause, Refusal};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Least time between two events about drops of a port for one reason, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;

/// What was told of a port.
#[derive(Default)]
struct Told {
    up: bool,
    /// Counts by word, and when they may be told again.
    counts: BTreeMap<&'static str, (u64, u64)>,
}

/// What happens, and what was told of it.
#[derive(Default)]
pub(super) struct Observer {
    events: Events,
    told: BTreeMap<PortName, Told>,
    /// Addresses that were learned too fast to be told.
    missed: u64,
    /// The configuration's.
    generation: u64,
    listening: bool,
}

impl Observer {
    /// A port was opened, perhaps again: it counts from 0. What limits it may count on.
    pub(super) fn opened(&mut self, name: &PortName, limits_go_on: bool) {
        let counts = self.told.get_mut(name).into_iter().flat_map(|told| &mut told.counts);
        for (_, (before, _)) in counts.filter(|(word, _)| !limits_go_on || **word != HELD) {
            *before = 0;
        }
    }
}

#[cfg(test)]
impl Observer {
    /// A second has passed: what happens may be told again.
    pub(super) fn tell_again(&mut self) {
        let counts = self.told.values_mut().flat_map(|told| told.counts.values_mut());
        counts.for_each(|(_, next)| *next = 0);
    }
}

/// What a port has counted that is worth an event: a word, and how often.
fn counts(entry: &Entry) -> impl Iterator<Item = (&'static str, u64)> {
    entry.opened.count_losses();
    let port = entry.opened.port();
    let counters = port.counters();
    let drops: Vec<_> = counters.drops().map(|(reason, n)| (reason.name(), n)).collect();
    let from = entry.kept.policy().map(|policy| policy.from.clone());
    let own = from.as_ref().and_then(|from| from.own.as_ref());
    let held = own.map_or(0, |limiter| limiter.counters.held.get());
    drops.into_iter().chain([(FAULT, counters.faults.get()), (HELD, held)])
}

const FAULT: &str = "fault";
const HELD: &str = "held";

impl Told {
    /// What is there before anybody listens is told to nobody.
    fn before(entry: &Entry) -> Self {
        let counts = counts(entry).map(|(word, n)| (word, (n, 0)));
        Self { up: entry.is_up(), counts: counts.collect() }
    }

    /// Tells what has changed at `now` nanoseconds.
    fn look(&mut self, entry: &Entry, now: u64, events: &mut Events) {
        let name = entry.name.as_str();
        let up = entry.is_up();
        if up != self.up {
            self.up = up;
            events.tell(Event::of(if up { "port-up" } else { "port-down" }, name));
        }
        for (word, n) in counts(entry) {
            let (before, next) = self.counts.entry(word).or_default();
            if n < *before {
                // A limiter that was made anew.
                *before = 0;
            }
            if n <= *before || now < *next {
                continue;
            }
            let reason = Reason::ALL.iter().find(|reason| reason.name() == word);
            events.tell(Event {
                reason: reason.map(|_| word.to_owned()),
                count: Some(n - *before),
                ..Event::of(if reason.is_some() { "dropped" } else { word }, name)
            });
            (*before, *next) = (n, now + AGAIN_NS);
        }
    }
}

impl Ports {
    /// What happens from now on.
    ///
    /// # Errors
    /// If too many listen already.
    pub fn listen(&mut self) -> Result<(Listener, Event), Refusal> {
        if self.observer.events.listeners() >= MOST_LISTENERS {
            let text = format!("{MOST_LISTENERS} listen already: end one of them first");
            return Err(Refusal::new(Cause::Failed, text));
        }
        if !std::mem::replace(&mut self.observer.listening, true) {
            self.switch.fdb().want_news(true);
            self.observer.missed = self.switch.fdb().take_news(&mut Vec::new());
            let told = |e: &Entry| (e.name.clone(), Told::before(e));
            self.observer.told = self.entries.iter().map(told).collect();
        }
        let hello = Event { generation: Some(self.generation()), ..Event::new("listening") };
        Ok((self.observer.events.listen(), hello))
    }

    /// Counts the changes of the configuration since the switch was started.
    pub fn generation(&self) -> u64 {
        self.observer.generation
    }

    /// The configuration has changed.
    pub(super) fn has_changed(&mut self, event: Event) {
        self.observer.generation += 1;
        let generation = Some(self.observer.generation);
        self.keep_changes();
        self.observer.events.tell(Event { generation, ..event });
    }

    /// Looks for what has happened. Returns when to look again; `None` if nobody listens.
    #[must_use]
    pub fn look(&mut self) -> Option<Duration> {
        if self.observer.events.listeners() == 0 {
            if std::mem::take(&mut self.observer.listening) {
                self.switch.fdb().want_news(false);
                self.observer.told.clear();
            }
            return None;
        }
        let (observer, now) = (&mut self.observer, self.workers.now());
        observer.told.retain(|name, _| self.entries.iter().any(|e| e.name == *name));
        for entry in self.entries.iter().filter(|e| e.opened.moves_frames()) {
            let told = observer.told.entry(entry.name.clone()).or_default();
            told.look(entry, now, &mut observer.events);
        }
        let mut news = Vec::new();
        let missed = self.switch.fdb().take_news(&mut news);
        for learned in news.into_iter().filter_map(|news| learned(&self.entries, news)) {
            self.observer.events.tell(learned);
        }
        let more = missed - std::mem::replace(&mut self.observer.missed, missed);
        if more > 0 {
            self.observer.events.tell(Event::missed(more));
        }
        Some(LOOK)
    }
}

/// The event of an address; `None` if its port has gone, or it is with a team as before.
fn learned(entries: &[Entry], news: FdbNews) -> Option<Event> {
    let entry = |id: PortId| entries.iter().find(|e| e.id == Some(id));
    let to = entry(news.port)?;
    let from = news.from.and_then(entry);
    let team = |e: &Entry| e.address.policy().team.as_ref().map(|(name, _)| name.clone());
    if from.is_some_and(|from| team(from).is_some() && team(from) == team(to)) {
        return None;
    }
    let (vlan, qinq) = fdb::vids(news.domain);
    let event = if news.from.is_some() { "address-moved" } else { "address-learned" };
    Some(Event {
        mac: Some(news.mac.to_string()),
        vlan,
        qinq,
        from: from.map(|from| from.name.to_string()),
        ..Event::of(event, to.name.as_str())
    })
}
