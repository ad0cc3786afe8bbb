use super::*;

fn figure() -> Figure {
    let series = |name: &str, factor: f64| {
        (name.to_owned(), [60.0, 256.0, 1514.0].map(|x| (x, x * factor)).to_vec())
    };
    let lines = Panel {
        title: "by size".into(),
        x: X::Lines { label: "bytes".into(), marks: vec![60.0, 256.0, 1514.0], log: true },
        y: "frames/s".into(),
        log: true,
        series: vec![series("plain", 1e3), series("csb", 1e5), series("", 1e4)],
    };
    let groups = vec!["first".into(), "second".into()];
    let bars = Panel {
        title: "by group".into(),
        x: X::Groups(groups),
        y: "us".into(),
        log: false,
        series: vec![
            ("virtio".into(), vec![(0.0, 3.0), (1.0, 40.0)]),
            ("csb".into(), vec![(1.0, 0.0)]),
        ],
    };
    Figure { title: "All of it".into(), columns: 2, panels: vec![lines, bars] }
}

#[test]
fn a_picture_shows_every_series_axis_and_mark() {
    let svg = figure().svg("somewhere, commit 1").unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in [
        "All of it",
        "commit 1",
        "by size",
        "plain",
        "csb",
        "virtio",
        "bytes",
        "1514",
        "first",
        "us",
        "100k",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    // Two lines of three dots, and one that only guides the eye.
    assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
}

#[test]
fn pictures_of_nothing_can_be_drawn() {
    let mut empty = figure();
    empty.panels.iter_mut().for_each(|p| p.series.iter_mut().for_each(|s| s.1.clear()));
    empty.svg("").unwrap();
    empty.panels.clear();
    empty.svg("").unwrap();
}

#[test]
fn axes_have_round_marks() {
    let near = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
    };
    let log = Scale::new([50_000.0, 2e7].into_iter(), true);
    assert!(near(&log.marks, &[4.0, 5.0, 6.0, 7.0, 8.0]), "{:?}", log.marks);
    assert_eq!(log.label(4.0) + &log.label(6.0), "10k1M");
    let linear = Scale::new([0.3, 43.0].into_iter(), false);
    assert!(near(&linear.marks, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0]), "{:?}", linear.marks);
    assert!(near(&[round_step(0.013), round_step(8.6)], &[0.02, 10.0]));
    assert_eq!([1000.0, 1514.0, 0.5, 2.5e6].map(short), ["1000", "1514", "0.5", "2.5M"]);
}
