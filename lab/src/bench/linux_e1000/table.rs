//! For people.

use std::fmt::Write as _;

use super::{Figures, Row};

/// One load in one line.
pub fn line(f: &Figures) -> String {
    let accesses = f.accesses_per_k.map_or_else(|| "-".to_owned(), |n| format!("{n:.0}"));
    format!(
        "{:18} {:>9.0} {:>7.3} {:>8.1} {:>8} {:>6.2} {:>6.2}",
        f.load,
        f.frames_per_s,
        f.gbit_per_s,
        f.interrupts_per_k,
        accesses,
        f.cpu_qemu,
        f.cpu_switch
    )
}

/// All rows, with the ratio to the first model of the same round.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "Linux guest (TCG), unmodified e1000 driver, to a TAP of the host\n\n\
         round model                    {:18} {:>9} {:>7} {:>8} {:>8} {:>6} {:>6}  times QEMU's",
        "load", "frames/s", "Gbit/s", "irq/1k", "acc/1k", "qemu", "switch"
    );
    for row in rows {
        let qemu = rows.iter().find(|r| r.round == row.round && r.model.starts_with("QEMU"));
        for (i, load) in row.loads.iter().enumerate() {
            let ratio = qemu.and_then(|q| q.loads.get(i)).map(|q| load.gbit_per_s / q.gbit_per_s);
            let _ = writeln!(
                out,
                "{:>5} {:24} {}  {:.2}",
                row.round,
                row.model,
                line(load),
                ratio.unwrap_or(0.0)
            );
        }
    }
    let _ = writeln!(
        out,
        "\nirq/1k: interrupts the guest's kernel counted, for each 1,000 frames (iperf3: frames \
            both ways); acc/1k: register accesses that\n\
         were messages to the switch; qemu, switch: CPU seconds per second. Under TCG the guest's \
         own work is in QEMU's."
    );
    out
}
