//! The table of all ports.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Row, Table, TableState};
use vmlan_config::human_text::si;

use super::history::{History, Order, PortHistory};
use super::screen::Look;

/// A column of the table.
struct Column {
    head: &'static str,
    width: u16,
    /// Shown on screens at least so wide.
    least: u16,
    order: Option<Order>,
    text: fn(&PortHistory) -> String,
}

const fn column(
    head: &'static str,
    width: u16,
    least: u16,
    order: Option<Order>,
    text: fn(&PortHistory) -> String,
) -> Column {
    Column { head, width, least, order, text }
}

/// Those to the right of the name. What is left of a line shows the past.
const COLUMNS: [Column; 13] = [
    column("KIND", 10, 96, None, |p| p.new.kind.clone()),
    column("LINK", 4, 0, None, |p| if p.new.up { "up" } else { "down" }.into()),
    column("IN f/s", 8, 0, Some(Order::Rate), |p| si(p.rates.r#in.frames)),
    column("IN bit/s", 8, 0, None, |p| si(p.rates.r#in.bits)),
    column("BATCH", 6, 140, None, |p| some(p.rates.r#in.batch)),
    column("OUT f/s", 8, 0, Some(Order::Rate), |p| si(p.rates.out.frames)),
    column("OUT bit/s", 9, 0, None, |p| si(p.rates.out.bits)),
    column("BATCH", 6, 140, None, |p| some(p.rates.out.batch)),
    column("DOORB/s", 8, 110, None, |p| si(p.rates.doorbells)),
    column("INTR/s", 8, 110, None, |p| si(p.rates.interrupts)),
    column("DROPS/s", 8, 0, Some(Order::Drops), |p| si(p.rates.drops)),
    column("FAULTS", 7, 160, None, |p| p.new.faults.to_string()),
    column("WORK", 7, 0, Some(Order::Work), |p| percent(p.rates.work)),
];

/// A share of a core's time.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// An average; nothing, if there was nothing.
pub(super) fn some(average: f64) -> String {
    if average > 0.0 { format!("{average:.1}") } else { "-".into() }
}

/// The past as a line of bars; the highest is the highest of these.
fn bars(past: &[u64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = past.iter().copied().max().unwrap_or(0).max(1);
    // At least the lowest bar for what is not nothing.
    let bar = |n: u64| u128::from(n) * 8 / u128::from(most) + u128::from(n > 0 && n < most);
    let bar = |n| usize::try_from(bar(n)).ok().and_then(|bar| BARS.get(bar));
    past.iter().map(|n| bar(*n).copied().unwrap_or('█')).collect()
}

/// Draws the ports that are listed; `at`: the chosen one.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    history: &History,
    look: &Look,
    state: &mut TableState,
) {
    let ports = history.sorted(&look.filter, look.order, look.reverse);
    let columns: Vec<_> = COLUMNS.iter().filter(|c| area.width >= c.least).collect();
    let longest = ports.iter().map(|p| p.new.name.len()).max().unwrap_or(0).clamp(4, 20);
    let name = u16::try_from(longest).unwrap_or(20);
    let used: u16 = name + columns.iter().map(|c| c.width + 1).sum::<u16>() + 1;
    let past = area.width.saturating_sub(used);
    let widths = [name].into_iter().chain(columns.iter().map(|c| c.width)).chain([past]);
    let head = |c: &&Column| {
        let style = match c.order == Some(look.order) {
            true => Style::new().add_modifier(Modifier::UNDERLINED),
            false => Style::new(),
        };
        Text::from(Line::styled(c.head, style).right_aligned())
    };
    let heads = [Text::from("PORT")].into_iter().chain(columns.iter().map(head));
    let rows = ports.iter().map(|port| {
        let name = Text::from(port.new.name.as_str());
        let cell = |c: &&Column| Text::from(Line::from((c.text)(port)).right_aligned());
        let bars = bars(&port.frames.last(usize::from(past)));
        let bars = Text::from(Span::styled(bars, look.accent()));
        let cells = [name].into_iter().chain(columns.iter().map(cell)).chain([bars]);
        Row::new(cells).style(look.of_port(port))
    });
    let table = Table::new(rows, widths.map(Constraint::Length))
        .header(Row::new(heads).style(look.head()))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, state);
}
