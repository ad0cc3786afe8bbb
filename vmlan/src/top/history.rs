//! What ports did between readings, and for some time before.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use vmlan_config::human_text::to_f64;
use vmlan_engine::stats::{Flow, PortStats, Stats, grown};

/// Readings that are kept: more than a screen is wide.
const KEPT: usize = 512;

/// What ports are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// Frames a second, both ways
    Rate,
    /// Frames dropped a second
    Drops,
    /// Workers' time
    Work,
    /// Name
    Name,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Rate => Self::Drops,
            Self::Drops => Self::Work,
            Self::Work => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Drops => "drops",
            Self::Work => "work",
            Self::Name => "name",
        }
    }
}

/// One direction, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct FlowRate {
    pub frames: f64,
    pub bits: f64,
    /// Frames of a batch; 0: there was none.
    pub batch: f64,
}

/// What a port did between the last two readings, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub r#in: FlowRate,
    pub out: FlowRate,
    pub drops: f64,
    pub doorbells: f64,
    pub interrupts: f64,
    pub empty_looks: f64,
    /// Of a core's time: 1 is all of it.
    pub work: f64,
}

impl Rates {
    fn between(old: &PortStats, new: &PortStats, apart: f64) -> Self {
        let rate = |value: fn(&PortStats) -> u64| to_f64(grown(value(new), value(old))) / apart;
        Self {
            r#in: FlowRate::between(old.r#in, new.r#in, apart),
            out: FlowRate::between(old.out, new.out, apart),
            drops: rate(PortStats::dropped),
            doorbells: rate(|p| p.doorbells),
            interrupts: rate(|p| p.interrupts),
            empty_looks: rate(|p| p.empty_looks),
            work: rate(|p| p.work_ns) / 1e9,
        }
    }

    pub(super) fn frames(&self) -> f64 {
        self.r#in.frames + self.out.frames
    }
}

impl FlowRate {
    fn between(old: Flow, new: Flow, apart: f64) -> Self {
        let since = |new, old| to_f64(grown(new, old));
        let frames = since(new.frames, old.frames);
        let batches = since(new.batches, old.batches);
        Self {
            frames: frames / apart,
            bits: 8.0 * since(new.bytes, old.bytes) / apart,
            batch: if batches > 0.0 { frames / batches } else { 0.0 },
        }
    }
}

/// Rates of the past, the last at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(VecDeque<u64>);

impl Past {
    fn add(&mut self, rate: f64) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        // For a picture of some ten steps: digits behind the point, and beyond u64, do not show.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        self.0.push_back(rate.round() as u64);
    }

    /// The last `n`, in order of time.
    pub(super) fn last(&self, n: usize) -> Vec<u64> {
        self.0.iter().skip(self.0.len().saturating_sub(n)).copied().collect()
    }
}

/// A port, now and before.
#[derive(Clone, Debug, Default)]
pub(super) struct PortHistory {
    pub new: PortStats,
    /// At the reading before.
    pub old: PortStats,
    pub rates: Rates,
    pub r#in: Past,
    pub out: Past,
    /// Both.
    pub frames: Past,
}

/// All ports.
#[derive(Debug, Default)]
pub(super) struct History {
    pub ports: Vec<PortHistory>,
    pub sandbox: String,
    /// Frames into the switch.
    pub all: Past,
    /// Time between the last two readings.
    pub apart: Duration,
    read: Option<Instant>,
}

impl History {
    /// Adds a reading. Ports that are gone are forgotten; those that are new start at 0.
    pub(super) fn add(&mut self, at: Instant, stats: Stats) {
        let first = self.read.is_none();
        let apart = self.read.replace(at).map_or(Duration::ZERO, |before| at - before);
        self.apart = apart;
        let seconds = apart.as_secs_f64().max(1e-3);
        let mut before = std::mem::take(&mut self.ports);
        for new in stats.ports {
            let known = before.iter().position(|p| p.new.name == new.name);
            let mut port = known.map(|at| before.swap_remove(at)).unwrap_or_default();
            // What was counted before the first reading is nobody's rate.
            let fresh = first.then(|| new.clone());
            port.old = fresh.unwrap_or_else(|| std::mem::take(&mut port.new));
            port.rates = Rates::between(&port.old, &new, seconds);
            port.new = new;
            if !first {
                port.r#in.add(port.rates.r#in.frames);
                port.out.add(port.rates.out.frames);
                port.frames.add(port.rates.frames());
            }
            self.ports.push(port);
        }
        self.sandbox = stats.sandbox;
        if !first {
            let all = self.sum(|r| r.r#in.frames);
            self.all.add(all);
        }
    }

    pub(super) fn sum(&self, of: impl Fn(&Rates) -> f64) -> f64 {
        self.ports.iter().map(|p| of(&p.rates)).sum()
    }

    pub(super) fn port(&self, name: &str) -> Option<&PortHistory> {
        self.ports.iter().find(|p| p.new.name == name)
    }

    /// The ports whose name contains `part`, sorted: the most, or the first in the alphabet, comes
    /// first; or last. Ports that are alike stay in the order of their names.
    pub(super) fn sorted(&self, part: &str, order: Order, reverse: bool) -> Vec<&PortHistory> {
        let mut ports: Vec<_> = self.ports.iter().filter(|p| p.new.name.contains(part)).collect();
        ports.sort_by(|a, b| a.new.name.cmp(&b.new.name));
        let most_first = |value: fn(&Rates) -> f64| {
            // Rates are finite and not negative: their bits stand in their order.
            move |p: &&PortHistory| Reverse(value(&p.rates).to_bits())
        };
        match order {
            Order::Rate => ports.sort_by_key(most_first(Rates::frames)),
            Order::Drops => ports.sort_by_key(most_first(|r| r.drops)),
            Order::Work => ports.sort_by_key(most_first(|r| r.work)),
            Order::Name => {}
        }
        if reverse {
            ports.reverse();
        }
        ports
    }
}
