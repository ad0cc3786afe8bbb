//! Bars: frames per CPU second, one panel for each size.

use std::fmt::{Result, Write as _};

use super::super::Peer;
use super::Report;

const WIDTH: usize = 760;
const BAR: usize = 22;
const PANEL_HEAD: usize = 34;
const LEFT: usize = 110;
const LONGEST: f64 = 480.0;

/// A drawing of the medians; a bar that could not be measured says so.
pub fn svg(report: &Report<'_>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut out, report);
    out
}

fn draw(out: &mut String, report: &Report<'_>) -> Result {
    let panel = PANEL_HEAD + BAR * report.args.only.len();
    let height = 70 + panel * report.args.sizes.len();
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"
     viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">"#
    )?;
    writeln!(out, r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##)?;
    label(out, 12, 24, "#000000", "Million frames per CPU second of the switch")?;
    let machine = &report.machine.host;
    let place = format!(
        "guest: native (DPDK virtio-user); {}, Linux {}, {}",
        machine.cpu, machine.kernel, machine.commit
    );
    label(out, 12, 44, "#666666", &place)?;
    for (i, &bytes) in report.args.sizes.iter().enumerate() {
        bars(out, report, bytes, 56 + i * panel)?;
    }
    writeln!(out, "</svg>")
}

fn bars(out: &mut String, report: &Report<'_>, bytes: u32, top: usize) -> Result {
    label(out, 12, top + 22, "#000000", &format!("{bytes} bytes"))?;
    let value = |peer| report.median(peer, bytes, |f| f.frames_per_cpu_s / 1e6);
    let peers = || Peer::ALL.into_iter().filter(|peer| report.args.only.contains(peer));
    let most = peers().filter_map(value).fold(f64::MIN_POSITIVE, f64::max);
    for (i, peer) in peers().enumerate() {
        let y = top + PANEL_HEAD + i * BAR;
        label(out, 24, y + 13, "#000000", peer.name())?;
        let Some(millions) = value(peer) else {
            label(out, LEFT, y + 13, "#aa0000", "no figure")?;
            continue;
        };
        let (length, colour) = (millions / most * LONGEST, colour(peer));
        writeln!(
            out,
            r#"<rect x="{LEFT}" y="{y}" width="{length:.1}" height="16" fill="{colour}"/>"#
        )?;
        let x = LEFT as f64 + length + 6.0;
        writeln!(out, r#"<text x="{x:.1}" y="{}">{millions:.2}</text>"#, y + 13)?;
    }
    Ok(())
}

fn colour(peer: Peer) -> &'static str {
    if peer == Peer::Vmlan { "#1f6fb2" } else { "#9aa5b1" }
}

fn label(out: &mut String, x: usize, y: usize, colour: &str, text: &str) -> Result {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(out, r#"<text x="{x}" y="{y}" fill="{colour}">{text}</text>"#)
}
