//! Pictures: panels of lines or bars with a legend beside them, as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use crate::native::technique::ALL;
use vmlan_config::human_text::to_f64;

/// Colours that colour-blind people can tell apart (Okabe and Ito), and some more: for the
/// techniques in their order (no picture has all of them), and two.
const COLOURS: [RGBColor; 14] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(100, 200, 160),
    RGBColor(240, 160, 110),
    RGBColor(120, 150, 200),
    RGBColor(150, 110, 60),
    RGBColor(200, 190, 60),
    RGBColor(70, 200, 200),
    RGBColor(140, 140, 140),
];

const PANEL: (u32, u32) = (440, 300);
const LEGEND: u32 = 150;
const HEAD: u32 = 56;
const FONT: &str = "sans-serif";

/// A picture: panels that share the names of their series.
pub(super) struct Figure {
    pub(super) title: String,
    /// Panels side by side.
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
}

/// A diagram.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: X,
    /// What stands at the vertical axis.
    pub(super) y: String,
    /// Logarithmic; otherwise from 0.
    pub(super) log: bool,
    /// Name and points; y by x, or by the number of the group. The name is `""` for a line that
    /// only guides the eye.
    pub(super) series: Vec<(String, Vec<(f64, f64)>)>,
}

/// The horizontal axis.
pub(super) enum X {
    /// Lines over a quantity.
    Lines {
        /// What it is.
        label: String,
        /// Where it is marked.
        marks: Vec<f64>,
        /// Logarithmic; otherwise from 0.
        log: bool,
    },
    /// Bars in groups.
    Groups(Vec<String>),
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Done = Result<(), String>;
type Axes = Cartesian2d<Scale, Scale>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Axes>;

fn word(e: impl std::fmt::Display) -> String {
    format!("the picture cannot be drawn: {e}")
}

impl Figure {
    /// The picture; `below` stands under its title.
    ///
    /// # Errors
    /// None that is known of.
    pub(super) fn svg(&self, below: &str) -> Result<String, String> {
        let mut text = String::new();
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let rows = self.panels.len().div_ceil(columns);
        let wide = |n: usize| u32::try_from(n).unwrap_or(1);
        let size = (PANEL.0 * wide(columns) + LEGEND, PANEL.1 * wide(rows) + HEAD);
        {
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            root.fill(&WHITE).map_err(word)?;
            let (head, body) = root.split_vertically(HEAD);
            let grey = RGBColor(90, 90, 90);
            let line = |words: &str, y, size: u32, colour: &RGBColor| {
                head.draw(&Text::new(
                    words.to_owned(),
                    (14, y),
                    (FONT, size).into_font().color(colour),
                ))
            };
            line(&self.title, 12, 19, &BLACK).map_err(word)?;
            line(below, 36, 12, &grey).map_err(word)?;
            let (left, right) = body.split_horizontally(PANEL.0 * wide(columns));
            self.legend(&right)?;
            for (panel, area) in self.panels.iter().zip(left.split_evenly((rows, columns))) {
                panel.draw(&area, &self.names())?;
            }
            root.present().map_err(word)?;
        }
        Ok(text)
    }

    /// Of all panels, each once.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.panels.iter().flat_map(|p| &p.series) {
            if !name.is_empty() && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    fn legend(&self, area: &Area<'_>) -> Done {
        let mut y = 30;
        let names = self.names();
        for (n, name) in names.iter().enumerate() {
            let swatch = Rectangle::new([(8, y), (22, y + 10)], colour(&names, n).filled());
            area.draw(&swatch).map_err(word)?;
            area.draw(&Text::new((*name).to_owned(), (28, y - 2), (FONT, 13))).map_err(word)?;
            y += 20;
        }
        Ok(())
    }
}

/// A technique has the same colour in all pictures; others come after those. Where there is none,
/// all colours are for the others.
fn colour(names: &[&str], n: usize) -> RGBColor {
    let technique = |name: &str| ALL.iter().position(|t| t.name == name);
    match technique(names[n]) {
        Some(known) => COLOURS[known % (COLOURS.len() - 2)],
        None if names.iter().any(|name| technique(name).is_some()) => {
            COLOURS[COLOURS.len() - 1 - n % 2]
        }
        None => COLOURS[n % COLOURS.len()],
    }
}

impl Panel {
    fn draw(&self, area: &Area<'_>, names: &[&str]) -> Done {
        let x = self.horizontal();
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let y = Scale::new(points().map(|p| p.1), self.log);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .caption(&self.title, (FONT, 15))
            .x_label_area_size(42)
            .y_label_area_size(62)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(word)?;
        self.mesh(&mut chart, &x, &y)?;
        let own: Vec<_> =
            self.series.iter().map(|s| &s.0).filter(|name| !name.is_empty()).collect();
        for (name, points) in &self.series {
            let at = names.iter().position(|n| n == name);
            let spots: Vec<_> = points
                .iter()
                .filter(|p| p.1 > 0.0 || !self.log)
                .map(|p| {
                    (if matches!(self.x, X::Groups(_)) { p.0 } else { x.place(p.0) }, y.place(p.1))
                })
                .collect();
            match (&self.x, at) {
                (X::Groups(_), Some(at)) => {
                    let place = own.iter().position(|n| *n == name).unwrap_or(0);
                    bars(&mut chart, &spots, (place, own.len()), (colour(names, at), y.low))?;
                }
                (X::Lines { .. }, Some(at)) => lines(&mut chart, &spots, colour(names, at), true)?,
                (_, None) => lines(&mut chart, &spots, RGBColor(170, 170, 170), false)?,
            }
        }
        Ok(())
    }

    fn horizontal(&self) -> Scale {
        match &self.x {
            X::Lines { marks, log, .. } => {
                let points = self.series.iter().flat_map(|(_, points)| points);
                Scale::marked(points.map(|p| p.0), marks, *log)
            }
            X::Groups(groups) => {
                let last = to_f64(groups.len() as u64);
                let marks = (0..groups.len()).map(|n| to_f64(n as u64)).collect();
                Scale { log: false, low: -0.5, high: last - 0.5, marks }
            }
        }
    }

    fn mesh(&self, chart: &mut Chart<'_, '_>, x: &Scale, y: &Scale) -> Done {
        let below = |at: &f64| match &self.x {
            X::Lines { .. } => x.label(*at),
            X::Groups(groups) => {
                let found =
                    groups.iter().enumerate().find(|(n, _)| (to_f64(*n as u64) - at).abs() < 0.01);
                found.map(|(_, name)| name.clone()).unwrap_or_default()
            }
        };
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(225, 225, 225))
            .x_labels(x.marks.len())
            .y_labels(y.marks.len())
            .label_style((FONT, 12))
            .axis_desc_style((FONT, 13))
            .x_label_formatter(&below)
            .y_desc(&self.y);
        let side = |at: &f64| y.label(*at);
        mesh.y_label_formatter(&side);
        match &self.x {
            X::Lines { label, .. } => mesh.x_desc(label),
            X::Groups(_) => mesh.disable_x_mesh(),
        };
        mesh.draw().map_err(word)
    }
}

fn lines(chart: &mut Chart<'_, '_>, spots: &[(f64, f64)], colour: RGBColor, dots: bool) -> Done {
    let path = PathElement::new(spots.to_vec(), colour.stroke_width(2));
    chart.draw_series([path]).map_err(word)?;
    let dot = |spot: &(f64, f64)| Circle::new(*spot, 3, colour.filled());
    if dots {
        chart.draw_series(spots.iter().map(dot)).map_err(word)?;
    }
    Ok(())
}

/// The bars of one series: that at `at` of `all` in each group.
fn bars(
    chart: &mut Chart<'_, '_>,
    spots: &[(f64, f64)],
    (at, all): (usize, usize),
    (colour, low): (RGBColor, f64),
) -> Done {
    const GROUP: f64 = 0.84;
    let [at64, all64] = [at, all.max(1)].map(|n| to_f64(n as u64));
    let width = GROUP / all64;
    let bar = |(x, y): &(f64, f64)| {
        let left = x - GROUP / 2.0 + width * at64;
        Rectangle::new([(left, low), (left + width * 0.9, *y)], colour.filled())
    };
    chart.draw_series(spots.iter().map(bar)).map_err(word)?;
    Ok(())
}

/// An axis: what is drawn is the value, or its logarithm.
#[derive(Clone)]
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

impl Scale {
    /// Round marks around `values`.
    fn new(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let values: Vec<_> = values.filter(|v| v.is_finite() && (*v > 0.0 || !log)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() || most <= 0.0 {
            return Self { log: false, low: 0.0, high: 1.0, marks: vec![0.0, 1.0] };
        }
        if log {
            let (low, high) = (least.log10().floor(), most.log10().ceil());
            let high = if high > low { high } else { low + 1.0 };
            let steps = (0..).map(|n: u32| low + f64::from(n));
            let marks = steps.take_while(|m| *m <= high + 0.01).collect();
            return Self { log, low, high, marks };
        }
        let step = round_step(most / 5.0);
        let steps = (0..).map(|n: u32| f64::from(n) * step);
        let marks: Vec<_> = steps.take_while(|m| *m < most + step).collect();
        Self { log, low: 0.0, high: marks.last().copied().unwrap_or(1.0), marks }
    }

    /// These marks, and a range that holds `values` and them.
    fn marked(values: impl Iterator<Item = f64>, marks: &[f64], log: bool) -> Self {
        let place = |v: f64| if log { v.max(f64::MIN_POSITIVE).log10() } else { v };
        let marks: Vec<_> = marks.iter().copied().map(place).collect();
        let all = || values.map(place).collect::<Vec<_>>();
        let all = [all(), marks.clone()].concat();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let margin = ((high - low) * 0.03).max(0.01);
        let low = if log { low - margin } else { low.min(0.0) };
        Self { log, low, high: high + margin, marks }
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    fn label(&self, at: f64) -> String {
        short(if self.log { 10f64.powf(at) } else { at })
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        // A pixel, or one not far off.
        #[allow(clippy::cast_possible_truncation)]
        let steps = (share.clamp(-1.0, 2.0) * f64::from(to - from)).round() as i32;
        from + steps
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// 1, 2 or 5 times a power of ten, at least `x`.
fn round_step(x: f64) -> f64 {
    let decade = 10f64.powf(x.max(f64::MIN_POSITIVE).log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|n| n * decade >= x * 0.999);
    step.unwrap_or(10.0) * decade
}

/// `1000000.0` as `1M`.
fn short(x: f64) -> String {
    let (scaled, unit) = match x {
        x if x >= 999_500_000.0 => (x / 1e9, "G"),
        x if x >= 999_500.0 => (x / 1e6, "M"),
        x if x >= 9_995.0 => (x / 1e3, "k"),
        x => (x, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests;
