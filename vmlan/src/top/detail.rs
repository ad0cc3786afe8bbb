//! All there is to know of one port.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline, Wrap};
use vmlan_config::human_text::{columns, count, si, to_f64};
use vmlan_engine::stats::{DeviceStats, PortStats, Ratios, grown};

use super::feed::About;
use super::history::{FlowRate, Past, PortHistory};
use super::list::{percent, some};
use super::screen::Look;
use crate::tables::{csb_text, top_registers};

/// Neighbours that are listed; there may be thousands.
const NEIGHBOURS: usize = 16;

/// The port, and what is known of it.
pub(super) struct Shown<'a> {
    pub port: &'a PortHistory,
    pub about: &'a About,
    /// Between the last two readings.
    pub seconds: f64,
}

/// Draws it; `scroll` is brought back to where there is something.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    shown: &Shown<'_>,
    look: &Look,
    scroll: &mut u16,
) {
    let plot = if area.height >= 16 { 5 } else { 0 };
    let [plots, text] =
        Layout::vertical([Constraint::Length(plot), Constraint::Min(1)]).areas(area);
    let [from, to] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(plots);
    draw_past(frame, from, &shown.port.r#in, "frames/s from it", look);
    draw_past(frame, to, &shown.port.out, "frames/s to it", look);
    let lines = shown.lines();
    let body = Text::from_iter(lines.into_iter().map(|line| match line.strip_prefix('#') {
        Some(head) => Line::styled(head.to_owned(), look.head()),
        None => Line::from(line),
    }));
    let long = u16::try_from(body.lines.len()).unwrap_or(u16::MAX);
    *scroll = (*scroll).min(long.saturating_sub(1));
    let body = Paragraph::new(body).wrap(Wrap { trim: false }).scroll((*scroll, 0));
    frame.render_widget(body, text);
}

fn draw_past(frame: &mut Frame<'_>, area: Rect, past: &Past, title: &str, look: &Look) {
    let past = past.last(usize::from(area.width.saturating_sub(2)));
    let most = past.iter().copied().max().unwrap_or(0);
    let title = format!(" {title}, at most {} ", si(to_f64(most)));
    let block = Block::new().borders(Borders::ALL).title(title);
    let plot = Sparkline::default().data(past).style(look.accent());
    frame.render_widget(plot.block(block), area);
}

impl Shown<'_> {
    /// Its lines; those that begin with `#` are heads.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.first();
        lines.extend(self.flows());
        lines.extend(self.drops());
        lines.extend(self.limits());
        lines.extend(self.device());
        lines.extend(self.gateway());
        lines.extend(self.addresses());
        lines.extend(self.details());
        lines
    }

    fn first(&self) -> Vec<String> {
        let new = &self.port.new;
        let link = if new.up { "up" } else { "down" };
        let mut lines = vec![format!("#{}  {}  {link}", new.name, new.kind)];
        // It holds the policy as well.
        if !self.about.port.address.is_empty() {
            lines.push(self.about.port.address.clone());
        }
        lines
    }

    fn flows(&self) -> Vec<String> {
        let PortHistory { new, rates, .. } = self.port;
        let row = |name: &str, rate: FlowRate, flow: vmlan_engine::stats::Flow| {
            let FlowRate { frames, bits, batch } = rate;
            let cells = [si(frames), si(bits), some(batch), count(flow.frames), count(flow.bytes)];
            [vec![name.to_owned()], cells.to_vec()].concat()
        };
        let heads = ["", "FRAMES/s", "BIT/s", "A BATCH", "FRAMES", "BYTES"].map(str::to_owned);
        let rows = [
            heads.to_vec(),
            row("from it", rates.r#in, new.r#in),
            row("to it", rates.out, new.out),
        ];
        let mut lines: Vec<_> = columns(&rows, 1).lines().map(str::to_owned).collect();
        lines.push(format!(
            "work {} of a core  doorbells {}/s ({})  interrupts {}/s ({})  empty looks {}/s",
            percent(rates.work),
            si(rates.doorbells),
            count(new.doorbells),
            si(rates.interrupts),
            count(new.interrupts),
            si(rates.empty_looks),
        ));
        if new.faults > 0 {
            lines.push(format!("faults {}: its guest or VMM broke a protocol", count(new.faults)));
        }
        lines
    }

    /// `12.00 k/s (1,234,567)`.
    fn paced(&self, new: u64, old: u64) -> String {
        format!("{}/s ({})", si(self.rate(grown(new, old))), count(new))
    }

    fn rate(&self, n: u64) -> f64 {
        to_f64(n) / self.seconds.max(1e-3)
    }

    /// By reason, the most first.
    fn drops(&self) -> Vec<String> {
        let PortHistory { new, old, .. } = self.port;
        let mut drops: Vec<_> = new.drops.iter().collect();
        drops.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let line = |(reason, n): (&String, &u64)| {
            let before = old.drops.get(reason).copied().unwrap_or(0);
            format!("  {reason} {}", self.paced(*n, before))
        };
        under("drops", drops.into_iter().map(line))
    }

    fn limits(&self) -> Vec<String> {
        let own = |p: &PortStats| p.limits.unwrap_or_default().directions().collect::<Vec<_>>();
        let before: BTreeMap<_, _> = own(&self.port.old).into_iter().collect();
        let line = |(direction, now): (&'static str, vmlan_engine::stats::LimitStats)| {
            let old = before.get(direction).copied().unwrap_or_default().outcomes();
            let words = now
                .outcomes()
                .into_iter()
                .zip(old)
                .map(|((word, n), (_, old))| format!("{word} {}", self.paced(n, old)));
            format!("  {direction} it: {}", words.collect::<Vec<_>>().join(", "))
        };
        under("limits", own(&self.port.new).into_iter().map(line))
    }

    fn device(&self) -> Vec<String> {
        let PortHistory { new, old, .. } = self.port;
        let Some(device) = &new.device else { return Vec::new() };
        let since = device.since(old.device.as_ref().unwrap_or(&DeviceStats::default()));
        let frames = grown(new.frames(), old.frames());
        let ratios = Ratios::new(&since, frames, grown(new.doorbells, old.doorbells));
        let ratio = |r: Option<f64>| r.map_or_else(|| "-".to_owned(), |r| format!("{r:.1}"));
        let show = |n: u64| si(self.rate(n)) + "/s";
        let mut lines = vec![
            "#NIC".to_owned(),
            format!(
                "  interrupts raised {}, held {}, delivered {}",
                show(since.raised),
                show(since.held),
                show(since.delivered)
            ),
            format!(
                "  registers for 1,000 frames {}; frames for a doorbell {}, an interrupt {}",
                ratio(ratios.accesses_per_1000_frames),
                ratio(ratios.frames_per_doorbell),
                ratio(ratios.frames_per_interrupt)
            ),
        ];
        let most = top_registers(&since, show);
        if !most.is_empty() {
            lines.push(format!("  {most}"));
        }
        lines.extend(since.csb.map(|csb| format!("  {}", csb_text(csb, &show))));
        lines
    }

    fn gateway(&self) -> Vec<String> {
        let Some(gateway) = &self.port.new.gateway else { return Vec::new() };
        let kinds = [
            ("flows now", &gateway.flows),
            ("opened", &gateway.opened),
            ("refused", &gateway.refused),
            ("answered", &gateway.answered),
        ];
        let line = |(what, counts): (&str, &BTreeMap<String, u64>)| {
            let counted = counts.iter().filter(|(_, n)| **n > 0);
            let words: Vec<_> = counted.map(|(name, n)| format!("{name} {}", count(*n))).collect();
            (!words.is_empty()).then(|| format!("  {what}: {}", words.join(", ")))
        };
        under("gateway", kinds.into_iter().filter_map(line))
    }

    /// Who is behind it: leases, and addresses that were learned.
    fn addresses(&self) -> Vec<String> {
        let lease = |l: &vmlan_engine::info::LeaseInfo| {
            let host = l.hostname.as_deref().unwrap_or("");
            format!("  {} {} {} {host}, {} s left", l.ip, l.mac, l.port, l.seconds)
        };
        let mut lines = under("leases", self.about.leases.iter().map(lease));
        let all = &self.about.neighbours;
        let neighbour = |e: &vmlan_engine::info::FdbLine| {
            let vlan = e.vlan.map(|v| format!(" vlan {v}")).unwrap_or_default();
            let age = e.age.map_or_else(|| "pinned".to_owned(), |s| format!("{s} s ago"));
            format!("  {}{vlan} {age}", e.mac)
        };
        let more = all.len().saturating_sub(NEIGHBOURS);
        let more = (more > 0).then(|| format!("  and {}", count(more as u64)));
        lines.extend(under("neighbours", all.iter().take(NEIGHBOURS).map(neighbour).chain(more)));
        lines
    }

    fn details(&self) -> Vec<String> {
        let line = |(key, value): (&String, &serde_json::Value)| match value {
            serde_json::Value::String(text) => format!("  {key} {text}"),
            other => format!("  {key} {other}"),
        };
        under("state", self.about.port.details.iter().map(line))
    }
}

/// A head and its lines; nothing, if there are none.
fn under(head: &str, lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut all = vec![format!("#{head}")];
    all.extend(lines);
    if all.len() == 1 { Vec::new() } else { all }
}
