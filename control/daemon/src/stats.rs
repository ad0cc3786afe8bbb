//! Statistics: what `vmlan stats` and `GET /v1/stats` say, as JSON, as a table and for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use vmlan_frame::{Counters, Snapshot};

mod table;
pub(crate) use table::{columns, count, si, to_f64};
pub use table::{rates, table};

/// Counters of all ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// In the order the ports were added.
    pub ports: Vec<PortStats>,
}

/// Counters of one port, all since it was added. The first six fields are a contract.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortStats {
    /// The port's name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// From the port into the switch.
    pub r#in: Flow,
    /// From the switch to the port.
    pub out: Flow,
    /// Frames dropped, by reason; reasons that did not occur are left out.
    pub drops: BTreeMap<String, u64>,
    /// Times the guest rang.
    pub doorbells: u64,
    /// Times the guest was interrupted.
    pub interrupts: u64,
    /// Connected, and its driver is ready.
    pub up: bool,
    /// Times the guest or its VMM broke the protocol.
    pub faults: u64,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Batches they came in.
    pub batches: u64,
}

impl From<Snapshot> for Flow {
    fn from(s: Snapshot) -> Self {
        Self { frames: s.frames, bytes: s.bytes, batches: s.batches }
    }
}

impl PortStats {
    /// Reads `counters`.
    #[must_use]
    pub fn read(name: &str, kind: &str, up: bool, counters: &Counters) -> Self {
        let (input, output) = counters.snapshot();
        Self {
            name: name.into(),
            kind: kind.into(),
            r#in: input.into(),
            out: output.into(),
            drops: counters.drops().map(|(r, n)| (r.name().to_owned(), n)).collect(),
            doorbells: input.notifications + counters.rx_doorbells.get(),
            interrupts: output.notifications + counters.tx_interrupts.get(),
            up,
            faults: counters.faults.get(),
        }
    }

    /// Frames dropped for whatever reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

/// In the text format of Prometheus (exposition format 0.0.4).
#[must_use]
pub fn prometheus(stats: &Stats) -> String {
    type Row = (&'static str, &'static str, &'static str, fn(&PortStats) -> u64);
    const ROWS: &[Row] = &[
        ("vmlan_port_in_frames_total", "counter", "Frames from the port", |p| p.r#in.frames),
        ("vmlan_port_in_bytes_total", "counter", "Bytes from the port", |p| p.r#in.bytes),
        ("vmlan_port_in_batches_total", "counter", "Batches from the port", |p| p.r#in.batches),
        ("vmlan_port_out_frames_total", "counter", "Frames to the port", |p| p.out.frames),
        ("vmlan_port_out_bytes_total", "counter", "Bytes to the port", |p| p.out.bytes),
        ("vmlan_port_out_batches_total", "counter", "Batches to the port", |p| p.out.batches),
        ("vmlan_port_doorbells_total", "counter", "Times the guest rang", |p| p.doorbells),
        ("vmlan_port_interrupts_total", "counter", "Interrupts raised", |p| p.interrupts),
        ("vmlan_port_faults_total", "counter", "Protocol violations", |p| p.faults),
        ("vmlan_port_up", "gauge", "1 if connected and ready", |p| u64::from(p.up)),
    ];
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (metric, kind, help, value) in ROWS {
        let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for p in &stats.ports {
            // Names of ports and kinds hold no character that needs escaping (see PortName).
            let _ =
                writeln!(text, "{metric}{{port=\"{}\",kind=\"{}\"}} {}", p.name, p.kind, value(p));
        }
    }
    let drops = "vmlan_port_drops_total";
    let _ = writeln!(text, "# HELP {drops} Frames dropped\n# TYPE {drops} counter");
    for p in &stats.ports {
        for (reason, n) in &p.drops {
            let _ = writeln!(
                text,
                "{drops}{{port=\"{}\",kind=\"{}\",reason=\"{reason}\"}} {n}",
                p.name, p.kind
            );
        }
    }
    text
}

#[cfg(test)]
mod tests;
