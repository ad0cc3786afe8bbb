//! The probe's findings for people, for programs, and as a picture.

use std::fmt::Write as _;

use serde::Serialize;

use super::advice::{Advice, PARAGRAPH, Row, short};
use super::cores::Cores;
use super::figure::{Figure, Found, Missing};
use super::kvm::State;
use crate::native::Machine;
use vmlan_config::human_text::folded;
use vmlan_config::human_text::{columns, count, si};

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    /// The cores that were measured between: the guest's, then the worker's; one if there is one.
    pinned: Vec<u16>,
    /// For each figure.
    seconds: f64,
    kvm: State,
    pub(super) figures: Vec<Figure>,
    missing: Vec<Missing>,
    techniques: Vec<Row>,
    gains_most: Option<super::advice::Technique>,
    advice: String,
}

impl Report {
    /// `advice`: or the parts it lacks figures of.
    pub(super) fn new(
        machine: Machine,
        cores: Cores,
        seconds: f64,
        kvm: State,
        found: Found,
        advice: Result<Advice, String>,
    ) -> Self {
        let (techniques, gains_most, text) = match advice {
            Ok(advice) => (advice.techniques, Some(advice.gains_most), advice.text),
            Err(parts) => (
                Vec::new(),
                None,
                format!(
                    "Which technique this host gains most from cannot be said: that takes the \
                        parts vfio-user, wake and copy, and figures are lacking of {parts}."
                ),
            ),
        };
        let lines = [kvm.sentence.as_str(), &text];
        let lines: Vec<_> = lines.into_iter().filter(|text| !text.is_empty()).collect();
        Self {
            machine,
            pinned: [Some(cores.here), cores.there].into_iter().flatten().collect(),
            seconds,
            advice: lines.join(PARAGRAPH),
            kvm,
            figures: found.figures,
            missing: found.missing,
            techniques,
            gains_most,
        }
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        let pinned: Vec<_> = self.pinned.iter().map(u16::to_string).collect();
        let mut text = format!(
            "Case leaving the guest costs on this host\n{}\n{} s for each figure, pinned to core \
                {}\n\n",
            self.machine,
            self.seconds,
            pinned.join(" and ")
        );
        text += &self.table();
        if self.figures.iter().any(Figure::is_of_kvm) {
            text += "(the analysis of 2007, table 2: hypercall to the kernel 3,930 ns, to user \
                space 6,760 ns)\n";
        }
        for missing in &self.missing {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "not measured: {}: {}", missing.what, missing.why);
        }
        if !self.techniques.is_empty() {
            text += &format!("\n{}", self.sums());
        }
        for paragraph in self.advice.split(PARAGRAPH) {
            let _ = writeln!(text, "\n{}", folded(paragraph, 0));
        }
        text
    }

    fn table(&self) -> String {
        let heads = ["", "median ns", "p99 ns", "times"].map(str::to_owned).to_vec();
        let row = |f: &Figure| {
            let row = if f.batch > 1 { format!(" in rows of {}", f.batch) } else { String::new() };
            vec![self.words(f), number(f.median_ns), number(f.p99_ns), count(f.times) + &row]
        };
        let rows: Vec<_> = [heads].into_iter().chain(self.figures.iter().map(row)).collect();
        let mut text = columns(&rows, 1);
        if self.figures.iter().any(|f| self.is_emulated(f)) {
            text += "* of the emulator behind ";
            text += &self.kvm.path;
            text += ", not of a processor\n";
        }
        text
    }

    fn is_emulated(&self, figure: &Figure) -> bool {
        figure.is_of_kvm() && self.kvm.hardware == Some(false)
    }

    /// A figure's, marked if no processor is behind it.
    fn words(&self, figure: &Figure) -> String {
        let mark = if self.is_emulated(figure) { " *" } else { "" };
        format!("{}{mark}", figure.what)
    }

    fn sums(&self) -> String {
        let heads = ["frames of 60 bytes in bursts of 32", "ns a frame", "frames/s", "times plain"];
        let row = |row: &Row| {
            let times = format!("{:.1}", row.gain);
            let ns = number(row.ns_per_frame);
            vec![row.technique.words().to_owned(), ns, si(row.frames_per_s), times]
        };
        let rows = self.techniques.iter().map(row);
        let rows: Vec<_> = [heads.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
        columns(&rows, 1)
    }

    /// A bar for each median and a mark for each p99, on one logarithmic scale.
    pub(super) fn svg(&self) -> String {
        const LINE: usize = 20;
        let height = 90 + LINE * self.figures.len();
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
                font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"14\" y=\"24\" font-size=\"17\">vmlan probe: what leaving the guest costs on \
             this host</text>\n\
             <text x=\"14\" y=\"44\" fill=\"#5a5a5a\">{}; bar: median, mark: p99; *: of an \
             emulator</text>\n",
            escaped(&self.machine.to_string())
        );
        let bottom = height - 24;
        for decade in DECADES {
            let (x, ns) = (place(10f64.powi(decade)), short(10f64.powi(decade)));
            let _ = writeln!(
                text,
                "<path d=\"M{x:.1} 56V{bottom}\" stroke=\"#e1e1e1\"/><text x=\"{x:.1}\" y=\"{}\" \
                    text-anchor=\"middle\">{ns}</text>",
                height - 8
            );
        }
        for (at, figure) in self.figures.iter().enumerate() {
            let y = 60 + LINE * at;
            let (median, p99) = (place(figure.median_ns), place(figure.p99_ns));
            let _ = writeln!(
                text,
                "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LEFT:.0}\" y=\"{y}\" width=\"{:.1}\" height=\"13\" fill=\"#0072b2\"/>\
                 <path d=\"M{p99:.1} {y}v13\" stroke=\"#d55e00\" stroke-width=\"2\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{}</text>",
                LEFT - 8.0,
                y + 11,
                escaped(&self.words(figure)),
                median - LEFT,
                p99.max(median) + 6.0,
                y + 11,
                short(figure.median_ns)
            );
        }
        text + "</svg>\n"
    }
}

const WIDTH: usize = 1000;
/// Where bars begin.
const LEFT: f64 = 440.0;
/// Powers of ten nanoseconds that the scale holds; a decade's width.
const DECADES: std::ops::RangeInclusive<i32> = -1..=6;
const DECADE: f64 = 68.0;

/// Where so many nanoseconds stand.
fn place(ns: f64) -> f64 {
    let (low, high) = (f64::from(*DECADES.start()), f64::from(*DECADES.end()));
    LEFT + (ns.max(f64::MIN_POSITIVE).log10().clamp(low, high) - low) * DECADE
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// With a digit where that matters.
fn number(ns: f64) -> String {
    match ns {
        // A figure of 100 ns or more has no digit after the point that could be believed.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        x if x >= 99.95 => count(x.round() as u64),
        x if x >= 9.995 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(advice: Result<Advice, String>) -> Report {
        let figure = |name: &str, ns, batch| Figure {
            name: name.into(),
            what: format!("what {name} is"),
            median_ns: ns,
            p99_ns: ns * 10.0,
            times: 64_000,
            batch,
            class: None,
        };
        let mut found = Found {
            figures: vec![figure("exit-user-port", 1234.5, 1), figure("store", 0.94, 32)],
            ..Found::default()
        };
        found.miss("the rest", "no time");
        let kvm = State { sentence: "KVM is & does.".into(), ..State::default() };
        let cores = Cores { here: 0, there: Some(3) };
        Report::new(Machine::read(crate::COMMIT), cores, 0.5, kvm, found, advice)
    }

    #[test]
    fn people_get_a_table_and_what_is_lacking() {
        let text = report(Err("copy".into())).text();
        for part in ["core 0 and 3", "1,235", "12,345", "0.94", "64,000 in rows of 32", "3,930 ns"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("not measured: the rest: no time"), "{text}");
        assert!(text.contains("KVM is & does.\n\nWhich technique"), "{text}");
        assert!(text.lines().last().is_some_and(|l| l.ends_with("copy.")), "{text}");
        assert!(!text.contains('*'), "{text}");
    }

    #[test]
    fn an_emulators_figures_are_marked() {
        let mut report = report(Err("copy".into()));
        report.kvm.hardware = Some(false);
        let text = report.text();
        assert!(
            text.contains("what exit-user-port is *") && !text.contains("store is *"),
            "{text}"
        );
        assert!(text.contains("* of the emulator behind"), "{text}");
    }

    #[test]
    fn programs_get_the_same() {
        let json = serde_json::to_value(report(Err("copy".into()))).unwrap();
        assert_eq!(json["pinned"], serde_json::json!([0, 3]));
        assert_eq!(json["figures"][1]["batch"], 32);
        assert!(json["gains_most"].is_null() && json["advice"].is_string());
    }

    #[test]
    fn the_picture_has_a_bar_for_each_figure_on_its_scale() {
        let svg = report(Err("copy".into())).svg();
        assert_eq!(svg.matches("fill=\"#0072b2\"").count(), 2);
        assert!(svg.contains("what store is") && svg.ends_with("</svg>\n"));
        assert!((place(1.0) - LEFT - DECADE).abs() < 1e-9 && (place(0.0) - LEFT).abs() < 1e-9);
        assert!((place(1e9) - LEFT - 7.0 * DECADE).abs() < 1e-9);
        assert_eq!(escaped("a<b&c>"), "a&lt;b&amp;c&gt;");
    }
}
