//! The screen: what it shows, and what keys do.

use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Sparkline, TableState};
use vmlan_config::human_text::si;

use super::feed::{About, News};
use super::history::{History, Order, PortHistory};
use super::list::percent;
use super::{INTERVALS, detail, list};

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum View {
    #[default]
    Ports,
    /// One port, scrolled down by so many lines.
    Port(String, u16),
    Help,
}

/// How it is shown.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub order: Order,
    pub reverse: bool,
    /// Only ports whose name contains this.
    pub filter: String,
    colour: bool,
}

impl Look {
    fn coloured(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn head(&self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn accent(&self) -> Style {
        self.coloured(Color::Green)
    }

    pub(super) fn warning(&self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// A port that drops frames stands out; one that is down does not.
    pub(super) fn of_port(&self, port: &PortHistory) -> Style {
        match (port.rates.drops > 0.0, port.new.up) {
            (true, _) => self.coloured(Color::Yellow),
            (_, false) => Style::new().add_modifier(Modifier::DIM),
            _ => Style::new(),
        }
    }
}

/// All there is to `vmlan top` but the terminal.
#[derive(Debug)]
pub(super) struct Screen {
    history: History,
    about: About,
    look: Look,
    view: View,
    /// The name of the chosen port: it stays chosen where others overtake it.
    chosen: Option<String>,
    table: TableState,
    /// Keys go to the filter.
    typing: bool,
    paused: bool,
    interval: Duration,
    /// Why the last reading failed.
    lost: Option<String>,
}

/// What keys do.
const KEYS: [(&str, &str); 9] = [
    ("Up Down PgUp PgDn", "choose a port; in the detail, scroll"),
    ("Enter", "what there is to know of the chosen port; Esc: back"),
    ("s", "sort by the next of rate, drops, work, name (also: F6)"),
    ("r", "reverse the order"),
    ("/", "list only ports whose name contains what is typed (also: F4); Esc: all"),
    ("p", "pause, and go on"),
    ("+ -", "longer or shorter time between readings"),
    ("? h", "this help (also: F1)"),
    ("q", "quit (also: F10, Ctrl-C)"),
];

impl Screen {
    pub(super) fn new(order: Order, interval: Duration, colour: bool) -> Self {
        let look = Look { order, reverse: false, filter: String::new(), colour };
        Self {
            history: History::default(),
            about: About::default(),
            look,
            view: View::default(),
            chosen: None,
            table: TableState::default(),
            typing: false,
            paused: false,
            interval,
            lost: None,
        }
    }

    /// Time between two readings.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// The port of which everything is shown.
    pub(super) fn shown(&self) -> Option<&str> {
        match &self.view {
            View::Port(name, _) => Some(name),
            _ => None,
        }
    }

    pub(super) fn take(&mut self, news: News) {
        match news {
            News::Counted { at, stats } => {
                self.lost = None;
                if !self.paused {
                    self.history.add(at, *stats);
                }
            }
            // What was asked of the port before may come late.
            News::About(about) if self.shown() == Some(about.port.name.as_str()) => {
                self.about = *about;
            }
            News::About(_) => {}
            News::Lost(why) => self.lost = Some(why),
        }
    }

    /// Obeys a key. True: the program ends.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.code == KeyCode::F(10)
            || key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
        {
            return true;
        }
        if self.typing {
            self.type_filter(key.code);
            return false;
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.view = View::Help,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(INTERVALS.1),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(INTERVALS.0),
            KeyCode::Esc if self.view == View::Ports => self.look.filter.clear(),
            KeyCode::Esc | KeyCode::Backspace => self.view = View::Ports,
            code => self.press_here(code),
        }
        false
    }

    /// Keys whose meaning depends on what is shown.
    fn press_here(&mut self, code: KeyCode) {
        let step: isize = match code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -10,
            KeyCode::PageDown => 10,
            KeyCode::Home => isize::MIN,
            KeyCode::End => isize::MAX,
            _ => 0,
        };
        match &mut self.view {
            View::Port(_, scroll) => {
                let wanted = isize::try_from(*scroll).unwrap_or(0).saturating_add(step);
                *scroll = u16::try_from(wanted.max(0)).unwrap_or(u16::MAX);
            }
            View::Ports if step != 0 => self.choose(step),
            View::Ports => self.press_in_list(code),
            View::Help => self.view = View::Ports,
        }
    }

    fn press_in_list(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('s') | KeyCode::F(6) => self.look.order = self.look.order.next(),
            KeyCode::Char('r') => self.look.reverse = !self.look.reverse,
            KeyCode::Char('/') | KeyCode::F(4) => self.typing = true,
            KeyCode::Enter => {
                if self.chosen.is_none() {
                    self.choose(0);
                }
                if let Some(name) = self.chosen.clone() {
                    self.about = About::default();
                    self.view = View::Port(name, 0);
                }
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.look.filter.push(c),
            KeyCode::Backspace => {
                self.look.filter.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.look.filter.clear();
            }
            _ => {}
        }
    }

    fn listed(&self) -> Vec<&PortHistory> {
        self.history.sorted(&self.look.filter, self.look.order, self.look.reverse)
    }

    /// Chooses the port so many lines further down.
    fn choose(&mut self, step: isize) {
        let listed = self.listed();
        let place = |name: &String| listed.iter().position(|p| p.new.name == *name);
        let last = listed.len().saturating_sub(1);
        let to = match self.chosen.as_ref().and_then(place) {
            Some(at) => at.saturating_add_signed(step).min(last),
            // The first key lights the first port.
            None if step == isize::MAX => last,
            None => 0,
        };
        self.chosen = listed.get(to).map(|p| p.new.name.clone());
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let tall = frame.area().height >= 20;
        let plot = if tall && self.view == View::Ports { 3 } else { 0 };
        let parts = [
            Constraint::Length(2),
            Constraint::Length(plot),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [head, past, body, foot] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(self.head(), head);
        let all = self.history.all.last(usize::from(past.width));
        frame.render_widget(Sparkline::default().data(all).style(self.look.accent()), past);
        self.draw_body(frame, body);
        frame.render_widget(self.foot(), foot);
    }

    fn draw_body(&mut self, frame: &mut Frame<'_>, area: Rect) {
        match &mut self.view {
            View::Ports => {
                let listed = self.listed();
                let chosen = self.chosen.as_ref();
                let at = chosen.and_then(|name| listed.iter().position(|p| p.new.name == *name));
                self.table.select(at);
                list::draw(frame, area, &self.history, &self.look, &mut self.table);
            }
            View::Port(name, scroll) => match self.history.port(name) {
                Some(port) => {
                    let seconds = self.history.apart.as_secs_f64();
                    let shown = detail::Shown { port, about: &self.about, seconds };
                    detail::draw(frame, area, &shown, &self.look, scroll);
                }
                None => {
                    let gone = format!("There is no port {name} any more. Esc: back");
                    frame.render_widget(Paragraph::new(gone), area);
                }
            },
            View::Help => {
                let line = |(keys, what): (&str, &str)| Line::from(format!("{keys:>18}  {what}"));
                let words = "WORK: workers' time for frames from the port, delivery included, of \
                    a core's.";
                let lines = KEYS.into_iter().map(line).chain([Line::default(), words.into()]);
                frame.render_widget(Paragraph::new(Text::from_iter(lines)), area);
            }
        }
    }

    /// Two lines about the whole switch.
    fn head(&self) -> Paragraph<'_> {
        let ports = &self.history.ports;
        let up = ports.iter().filter(|p| p.new.up).count();
        let mut words = vec![
            Span::styled("vmlan top", self.look.head()),
            format!("  {} ports, {up} up", ports.len()).into(),
            format!(", sorted by {}", self.look.order.word()).into(),
            format!(", every {} s", self.interval.as_secs_f64()).into(),
        ];
        if !self.look.filter.is_empty() {
            words.push(format!(", named *{}*", self.look.filter).into());
        }
        if self.paused {
            words.push(Span::styled("  PAUSED", self.look.warning()));
        }
        Paragraph::new(vec![Line::from(words), self.totals()])
    }

    fn totals(&self) -> Line<'_> {
        if let Some(lost) = &self.lost {
            return Line::styled(lost.as_str(), self.look.warning());
        }
        let sum = |of: fn(&super::history::Rates) -> f64| si(self.history.sum(of));
        let mut line = format!(
            "in {} frames/s {}bit/s  drops {}/s  work {}",
            sum(|r| r.r#in.frames),
            prefixed(self.history.sum(|r| r.r#in.bits)),
            sum(|r| r.drops),
            percent(self.history.sum(|r| r.work)),
        );
        if !self.history.sandbox.is_empty() {
            line += &format!("  sandbox {}", self.history.sandbox);
        }
        Line::from(line)
    }

    fn foot(&self) -> Paragraph<'_> {
        if self.typing {
            return Paragraph::new(format!("name contains: {}_", self.look.filter));
        }
        let keys = match self.view {
            View::Ports => "Up Down choose  Enter detail  s sort  / find  p pause  ? help  q quit",
            View::Port(..) => "Up Down scroll  Esc back  p pause  + - interval  q quit",
            View::Help => "Esc back  q quit",
        };
        Paragraph::new(Line::styled(keys, self.look.head()))
    }
}

/// A number before its unit: `1.20 M`, `980 `.
fn prefixed(x: f64) -> String {
    let text = si(x);
    if text.contains(' ') { text } else { text + " " }
}
