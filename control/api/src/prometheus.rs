//! Statistics in the text format of Prometheus (exposition format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use vmlan_config::gateway::GatewayCounters;
use vmlan_engine::stats::{CsbStats, DeviceStats, LimitStats, PortLimits, PortStats, Stats};

/// Name, type, help and value of a metric that is one number for each port; no number, no line.
type Row = (&'static str, &'static str, &'static str, fn(&PortStats) -> Option<u64>);

const ROWS: &[Row] = &[
    ("in_frames_total", "counter", "Frames from the port", |p| Some(p.r#in.frames)),
    ("in_bytes_total", "counter", "Bytes from the port", |p| Some(p.r#in.bytes)),
    ("in_batches_total", "counter", "Batches from the port", |p| Some(p.r#in.batches)),
    ("out_frames_total", "counter", "Frames to the port", |p| Some(p.out.frames)),
    ("out_bytes_total", "counter", "Bytes to the port", |p| Some(p.out.bytes)),
    ("out_batches_total", "counter", "Batches to the port", |p| Some(p.out.batches)),
    ("doorbells_total", "counter", "Times the guest rang", |p| Some(p.doorbells)),
    ("interrupts_total", "counter", "Interrupts raised", |p| Some(p.interrupts)),
    ("faults_total", "counter", "Protocol violations", |p| Some(p.faults)),
    ("up", "gauge", "1 if connected and ready", |p| Some(u64::from(p.up))),
    (
        "nic_interrupts_raised_total",
        "counter",
        "Times an unmoderated NIC would have interrupted",
        |p| nic(p, |d| d.raised),
    ),
    ("nic_interrupts_held_total", "counter", "Of these, held back by moderation", |p| {
        nic(p, |d| d.held)
    }),
    ("nic_interrupts_delivered_total", "counter", "Interrupts delivered to the guest", |p| {
        nic(p, |d| d.delivered)
    }),
    ("nic_csb_on", "gauge", "1 if the guest uses the NIC's shared status block", |p| {
        csb(p, |c| u64::from(c.on))
    }),
    (
        "nic_csb_interrupts_suppressed_total",
        "counter",
        "Causes that did not interrupt, for the guest was looking",
        |p| csb(p, |c| c.suppressed),
    ),
    ("nic_csb_guest_asked_total", "counter", "Interrupts that the guest asked for", |p| {
        csb(p, |c| c.guest_asked)
    }),
    ("nic_csb_host_asked_total", "counter", "Kicks that the switch asked for", |p| {
        csb(p, |c| c.host_asked)
    }),
];

fn csb(p: &PortStats, value: fn(&CsbStats) -> u64) -> Option<u64> {
    p.device.as_ref()?.csb.as_ref().map(value)
}

fn nic(p: &PortStats, value: fn(&DeviceStats) -> u64) -> Option<u64> {
    p.device.as_ref().map(value)
}

/// In the text format of Prometheus.
pub fn prometheus(stats: &Stats) -> String {
    let mut page = Page(String::new());
    for (name, kind, help, value) in ROWS {
        let mut ports = stats.ports.iter().filter_map(|p| Some((p, value(p)?))).peekable();
        // Metrics of emulated NICs are there when such a NIC is.
        if ports.peek().is_some() || value(&PortStats::default()).is_some() {
            page.head(name, kind, help);
        }
        ports.for_each(|(p, n)| page.line(name, p, "", n));
    }
    page.head("drops_total", "counter", "Frames dropped");
    for p in &stats.ports {
        for (reason, n) in &p.drops {
            page.line("drops_total", p, &format!(",reason=\"{reason}\""), n);
        }
    }
    page.head("work_seconds_total", "counter", "Time that workers spent on the port's frames");
    for p in &stats.ports {
        page.line("work_seconds_total", p, "", seconds(p.work_ns));
    }
    gateways(&mut page, stats);
    limits(&mut page, stats);
    let help = "Source addresses not learned for want of room";
    page.named("vmlan_fdb_unlearned_total", "counter", help);
    let _ = writeln!(page.0, "vmlan_fdb_unlearned_total {}", stats.fdb.unlearned);
    nics(&mut page, stats);
    page.0
}

/// What gateways count; nothing where there is none.
fn gateways(page: &mut Page, stats: &Stats) {
    type Of = fn(&GatewayCounters) -> &BTreeMap<String, u64>;
    const ROWS: [(&str, &str, &str, &str, Of); 4] = [
        ("gateway_flows", "gauge", "Flows at this moment", "proto", |g| &g.flows),
        ("gateway_flows_opened_total", "counter", "Flows opened", "proto", |g| &g.opened),
        ("gateway_refused_total", "counter", "Refused or dropped", "reason", |g| &g.refused),
        ("gateway_answered_total", "counter", "Messages answered", "kind", |g| &g.answered),
    ];
    let ports = || stats.ports.iter().filter_map(|p| Some((p, p.gateway.as_ref()?)));
    for (name, kind, help, label, of) in ROWS {
        if ports().next().is_some() {
            page.head(name, kind, help);
        }
        for (port, counters) in ports() {
            for (value, n) in of(counters) {
                page.line(name, port, &format!(",{label}=\"{value}\""), n);
            }
        }
    }
}

/// Exact: floating point would lose nanoseconds after three months.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// What limits did with frames: the outcomes add up to the frames that came. How often frames had
/// to wait is another metric: one frame may be held many times, and passes in the end.
fn limits(page: &mut Page, stats: &Stats) {
    let outcomes = |c: LimitStats| [("passed", c.passed), ("dropped", c.dropped)];
    let own = |p: &PortStats| p.limits.into_iter().flat_map(PortLimits::directions);
    if stats.ports.iter().any(|p| p.limits.is_some()) {
        page.head("limit_frames_total", "counter", "Frames that came to a limit of the port");
        for p in &stats.ports {
            for (direction, counts) in own(p) {
                for (outcome, n) in outcomes(counts) {
                    let labels = format!(",direction=\"{direction}\",outcome=\"{outcome}\"");
                    page.line("limit_frames_total", p, &labels, n);
                }
            }
        }
        page.head("limit_held_total", "counter", HELD);
        for p in &stats.ports {
            for (direction, counts) in own(p) {
                let labels = format!(",direction=\"{direction}\"");
                page.line("limit_held_total", p, &labels, counts.held);
            }
        }
    }
    shared(page, stats, outcomes);
}

const HELD: &str =
    "Times that a frame was left in its sender's ring for want of tokens, again at each look";

fn shared(
    page: &mut Page,
    stats: &Stats,
    outcomes: impl Fn(LimitStats) -> [(&'static str, u64); 2],
) {
    if stats.limits.is_empty() {
        return;
    }
    let help = "Frames that came to a shared limit";
    page.named("vmlan_limit_frames_total", "counter", help);
    for limit in &stats.limits {
        for (outcome, n) in outcomes(limit.counts) {
            let labels = format!("limit=\"{}\",outcome=\"{outcome}\"", limit.name);
            let _ = writeln!(page.0, "vmlan_limit_frames_total{{{labels}}} {n}");
        }
    }
    page.named("vmlan_limit_held_total", "counter", HELD);
    for limit in &stats.limits {
        let held = limit.counts.held;
        let _ = writeln!(page.0, "vmlan_limit_held_total{{limit=\"{}\"}} {held}", limit.name);
    }
}

/// What is counted by register.
fn nics(page: &mut Page, stats: &Stats) {
    let nics: Vec<_> = stats.ports.iter().filter_map(|p| Some((p, p.device.as_ref()?))).collect();
    if nics.is_empty() {
        return;
    }
    let accesses = "nic_register_accesses_total";
    page.head(accesses, "counter", "Register accesses that left the guest");
    for (p, d) in &nics {
        for (register, n) in &d.registers {
            for (access, n) in [("read", n.reads), ("write", n.writes)] {
                let labels = format!(",register=\"{register}\",access=\"{access}\"");
                page.line(accesses, p, &labels, n);
            }
        }
    }
    let statistics = "nic_statistics_total";
    page.head(statistics, "counter", "The NIC's statistics registers");
    for (p, d) in &nics {
        for (register, n) in &d.statistics {
            page.line(statistics, p, &format!(",register=\"{register}\""), n);
        }
    }
}

/// What is written so far. Writing to a String cannot fail.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.named(&format!("vmlan_port_{name}"), kind, help);
    }

    fn named(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Names of ports, limits, kinds, reasons and registers hold no character that needs escaping
    /// (see `PortName`).
    fn line(&mut self, name: &str, p: &PortStats, labels: &str, n: impl Display) {
        let (port, kind) = (&p.name, &p.kind);
        let _ =
            writeln!(self.0, "vmlan_port_{name}{{port=\"{port}\",kind=\"{kind}\"{labels}}} {n}");
    }
}

#[cfg(test)]
mod tests;
