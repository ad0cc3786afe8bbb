//! What the figures mean: which technique this host gains most from.
//!
//! The sum is done for one piece of work: a guest sends bursts of [`BURST`] frames of 60 bytes, and
//! between bursts both sides sleep. Counted is what a frame costs the guest's processor, or the
//! thread that serves its registers where that is the slower of the two.

use serde::Serialize;

use super::figure::Found;
use super::kvm::State;
use vmlan_config::human_text::si;

/// Frames of a burst.
const BURST: f64 = 32.0;
/// Cache lines that change hands for each frame whatever is done: its descriptor, there and back.
const LINES: f64 = 2.0;
/// A technique that comes so near to the best does.
const NEAR: f64 = 0.8;
/// Between paragraphs.
pub(super) const PARAGRAPH: &str = "\n\n";

/// Nanoseconds that the sum is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Costs {
    /// 64 bytes of cold memory.
    copy: f64,
    /// A cache line, from core to core; 0 on one core.
    line: f64,
    /// A trapped register write, posted.
    write: f64,
    /// A trapped register read.
    read: f64,
    /// Virtio's doorbell.
    kick: f64,
    /// An interrupt, until the sleeping guest handles it.
    interrupt: f64,
    /// A store to a mapped register.
    store: f64,
    /// What of a write and of a read is the exit; nothing where no exit could be measured.
    exit: Option<f64>,
}

impl Costs {
    /// An error: the parts of the probe that figures are lacking of.
    pub(super) fn of(found: &Found, kvm: &State) -> Result<Self, String> {
        let need = |name: &str| found.median(name).ok_or_else(|| lacking(found));
        let of_kvm = |name: &str| found.median(name).filter(|_| kvm.counts());
        let exit = of_kvm("exit-user-write");
        let out = exit.unwrap_or(0.0);
        let wake = found.median("wake").map_or_else(|| need("wake-one-core"), Ok)?;
        let ring = found.median("ring").map_or_else(|| need("ring-one-core"), Ok)?;
        Ok(Self {
            copy: need("copy-64-cold")?,
            line: found.median("line").unwrap_or(0.0),
            // A server that is slower than its client holds it up.
            write: (out + need("write")?).max(need("write-row")?),
            read: of_kvm("exit-user-read").unwrap_or(out) + need("read")?,
            kick: of_kvm("exit-kernel-memory").unwrap_or(ring),
            interrupt: of_kvm("interrupt-halted").unwrap_or(wake),
            store: need("store")?,
            exit,
        })
    }

    /// What nothing takes away.
    fn frame(self) -> f64 {
        self.copy + LINES * self.line
    }

    /// An interrupt with what its handler does: read the cause (e1000: ICR), mask, unmask.
    fn handled(self) -> f64 {
        self.interrupt + self.read + 2.0 * self.write
    }

    /// Of a frame, all in all.
    fn with(self, technique: Technique) -> f64 {
        use Technique::{Combining, Csb, Mapped, Moderation, Plain, Virtio};
        self.frame()
            + match technique {
                Plain => self.write + self.handled(),
                Moderation => self.write + self.handled() / BURST,
                Mapped => self.store + self.line + self.handled() / BURST,
                Combining => (self.write + self.handled()) / BURST,
                // Indexes in memory: one more line. The interrupt's cause stands there too.
                Csb => self.line + (self.write + self.interrupt) / BURST,
                Virtio => self.line + (self.kick + self.interrupt) / BURST,
            }
    }
}

/// The parts whose figures the sum takes and that have not given all of them.
fn lacking(found: &Found) -> String {
    let has = |name: &&str| found.median(name).is_some();
    let parts = [
        ("vfio-user", ["write", "write-row", "read", "store"].iter().all(has)),
        (
            "wake",
            ["wake", "wake-one-core"].iter().any(has) && ["ring", "ring-one-core"].iter().any(has),
        ),
        ("copy", has(&"copy-64-cold")),
    ];
    let names: Vec<_> = parts.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
    names.join(", ")
}

/// In the order of what has to be changed for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Technique {
    /// Nothing.
    Plain,
    /// A register, or a key of the port.
    Moderation,
    /// A key of the port.
    Mapped,
    /// The guest's driver.
    Combining,
    /// Driver and chip.
    Csb,
    /// Another NIC.
    Virtio,
}

impl Technique {
    const ALL: [Self; 6] =
        [Self::Plain, Self::Moderation, Self::Mapped, Self::Combining, Self::Csb, Self::Virtio];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Plain => "a plain e1000",
            Self::Moderation => "interrupt moderation",
            Self::Mapped => "mapped doorbells",
            Self::Combining => "send combining",
            Self::Csb => "the CSB",
            Self::Virtio => "virtio with event idx",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Plain => "nothing to set",
            Self::Moderation => "the driver's ITR, or `irq_rate_max=` at the port",
            Self::Mapped => "`doorbell=mapped` at the port",
            Self::Combining => "a driver that does it; `combine=on` for ours",
            Self::Csb => "`csb=on` at the port, and a driver that knows it",
            Self::Virtio => "a `vhost-user:` port, for guests that have its driver",
        }
    }
}

/// A row of the sum.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Row {
    pub(super) technique: Technique,
    pub(super) ns_per_frame: f64,
    pub(super) frames_per_s: f64,
    /// Times as many frames as plain.
    pub(super) gain: f64,
}

/// What comes of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Advice {
    pub(super) techniques: Vec<Row>,
    /// The least change that comes near to the best.
    pub(super) gains_most: Technique,
    pub(super) text: String,
}

impl Advice {
    pub(super) fn of(costs: Costs) -> Self {
        let plain = costs.with(Technique::Plain);
        let row = |technique| {
            let ns_per_frame = costs.with(technique);
            let gain = plain / ns_per_frame;
            Row { technique, ns_per_frame, frames_per_s: 1e9 / ns_per_frame, gain }
        };
        let techniques: Vec<_> = Technique::ALL.map(row).to_vec();
        let mut best = row(Technique::Plain);
        for row in &techniques {
            if row.gain > best.gain {
                best = *row;
            }
        }
        let enough = techniques.iter().find(|row| row.gain >= NEAR * best.gain);
        let chosen = enough.copied().unwrap_or(best);
        let what_costs = [measure(costs), parts(costs)].join(" ");
        let what_helps = [verdict(costs, chosen, best), unchanged(row), limits(costs)].join(" ");
        let text = [what_costs, what_helps].join(PARAGRAPH);
        Self { techniques, gains_most: chosen.technique, text }
    }
}

/// Everything in copies of 64 bytes.
fn measure(costs: Costs) -> String {
    let times = |what: &str, ns: f64| match ns / costs.copy {
        x if x >= 9.95 => format!("{what} {} ({x:.0})", short(ns)),
        x if x >= 0.095 => format!("{what} {} ({x:.1})", short(ns)),
        _ => format!("{what} {} (nothing beside it)", short(ns)),
    };
    let mut all = vec![
        times("a posted register write", costs.write),
        times("a register read", costs.read),
        times("an interrupt", costs.interrupt),
        times("virtio's doorbell", costs.kick),
        times("a store to a mapped register", costs.store),
    ];
    if let Some(exit) = costs.exit {
        all.insert(0, times("an exit to user space", exit));
    }
    if costs.line > 0.0 {
        all.push(times("a cache line from another core", costs.line));
    }
    format!(
        "Copying 64 bytes that no cache has takes {} here; in such copies, {}.",
        short(costs.copy),
        all.join(", ")
    )
}

/// Where a plain frame's time goes.
fn parts(costs: Costs) -> String {
    let all = costs.with(Technique::Plain);
    let share = |part: f64| format!("{:.0} %", 100.0 * part / all);
    format!(
        "A plain e1000 that rings and is interrupted for each frame of 60 bytes spends {} on it, \
         {} frames/s: {} is the doorbell, {} the interrupt and the three accesses of its handler, \
         {} the frame itself.",
        short(all),
        si(1e9 / all),
        share(costs.write),
        share(costs.handled()),
        share(costs.frame())
    )
}

fn verdict(costs: Costs, chosen: Row, best: Row) -> String {
    let rate = |row: Row| format!("{} frames/s, {:.1} times", si(row.frames_per_s), row.gain);
    let mut text = if chosen.technique == Technique::Plain {
        format!(
            "This host gains little from any technique: {} would make it {}.",
            best.technique.words(),
            rate(best)
        )
    } else {
        format!(
            "This host gains most from {} ({}): {}; {}.",
            chosen.technique.words(),
            chosen.technique.key(),
            reason(costs, chosen.technique),
            rate(chosen)
        )
    };
    if chosen.technique != best.technique && chosen.technique != Technique::Plain {
        text += &format!(
            " The most, {}, is {}: less than a quarter more.",
            rate(best),
            best.technique.words()
        );
    }
    text
}

/// What there is without another driver for the NIC.
fn unchanged(row: impl Fn(Technique) -> Row) -> String {
    let of = |technique| {
        let row: Row = row(technique);
        format!("{} frames/s, {:.1} times", si(row.frames_per_s), row.gain)
    };
    format!(
        "Drivers as systems have them need no change for `irq_rate_max=` at the port ({}), for \
         `doorbell=mapped` at an e1000's port ({}, interrupts moderated as well), or, where the \
         system has virtio's, for a `vhost-user:` port ({}).",
        of(Technique::Moderation),
        of(Technique::Mapped),
        of(Technique::Virtio)
    )
}

fn reason(costs: Costs, technique: Technique) -> String {
    let once = |ns: f64| short(ns / BURST);
    match technique {
        Technique::Plain => String::new(),
        Technique::Moderation => format!(
            "an interrupt with its handler's accesses ({}) is what costs, {:.0} times a doorbell, \
                and one for {BURST} frames is {} a frame",
            short(costs.handled()),
            costs.handled() / costs.write,
            once(costs.handled())
        ),
        Technique::Mapped => format!(
            "a doorbell is a message of {}, and in a shared page a store and a cache line of {}",
            short(costs.write),
            short(costs.store + costs.line)
        ),
        Technique::Combining => format!(
            "one doorbell for {BURST} frames is {} a frame, where whatever lies in shared memory \
                costs a cache line of {} for each",
            once(costs.write),
            short(costs.line)
        ),
        Technique::Csb => format!(
            "even once for {BURST} frames the interrupt and its handler's accesses are {} a frame, \
                and without accesses {}",
            once(costs.handled()),
            once(costs.write + costs.interrupt)
        ),
        Technique::Virtio => format!(
            "its doorbell ends in the kernel, {} against {} for a register write, which weighs \
                even once for {BURST} frames",
            short(costs.kick),
            short(costs.write)
        ),
    }
}

/// What the sum leaves out.
fn limits(costs: Costs) -> String {
    let exits = match costs.exit {
        Some(_) => "",
        None => {
            " No exit that a processor makes could be measured, so none is in these sums: they \
             hold for guests that are processes, and under KVM each register access costs an exit \
             more."
        }
    };
    let cores = if costs.line > 0.0 {
        ""
    } else {
        " There is no second core, so cache lines cost nothing here."
    };
    format!(
        "Computed for bursts of {BURST} frames with sleep between them; latency, which send \
         combining and mapped doorbells (a sleeping worker looks every 50 us and then less often) \
         pay with, is not in it.{exits}{cores}"
    )
}

/// `12.3 ns`, `4.57 us`.
pub(super) fn short(ns: f64) -> String {
    match ns {
        x if x >= 99_950.0 => format!("{:.0} us", x / 1e3),
        x if x >= 9995.0 => format!("{:.1} us", x / 1e3),
        x if x >= 999.5 => format!("{:.2} us", x / 1e3),
        x if x >= 9.95 => format!("{x:.0} ns"),
        x => format!("{x:.1} ns"),
    }
}

#[cfg(test)]
mod tests;
