use super::*;
use crate::probe::figure::Figure;

/// A host where everything but the frame costs next to nothing.
const CALM: Costs = Costs {
    copy: 200.0,
    line: 50.0,
    write: 10.0,
    read: 10.0,
    kick: 10.0,
    interrupt: 10.0,
    store: 1.0,
    exit: Some(5.0),
};

fn chosen(costs: Costs) -> (Technique, String) {
    let advice = Advice::of(costs);
    (advice.gains_most, advice.text)
}

#[test]
fn nothing_helps_where_nothing_costs() {
    let (technique, text) = chosen(CALM);
    assert_eq!(technique, Technique::Plain);
    assert!(text.contains("gains little from any technique"), "{text}");
}

#[test]
fn dear_interrupts_call_for_moderation() {
    let (technique, text) = chosen(Costs { interrupt: 5000.0, ..CALM });
    assert_eq!(technique, Technique::Moderation);
    assert!(text.contains("gains most from interrupt moderation"), "{text}");
    assert!(text.contains("5.03 us") && text.contains("503 times a doorbell"), "{text}");
}

#[test]
fn dear_doorbells_call_for_a_shared_page() {
    let dear = Costs { write: 3000.0, read: 3000.0, interrupt: 1000.0, ..CALM };
    let (technique, text) = chosen(Costs { line: 60.0, copy: 1000.0, ..dear });
    assert_eq!(technique, Technique::Mapped, "{text}");
    assert!(text.contains("a message of 3.00 us") && text.contains("61 ns"), "{text}");
}

#[test]
fn slow_cache_lines_call_for_combining() {
    let (technique, text) = chosen(Costs { line: 2000.0, write: 6000.0, ..CALM });
    assert_eq!(technique, Technique::Combining, "{text}");
    assert!(text.contains("a cache line of 2.00 us"), "{text}");
}

#[test]
fn handlers_that_cost_even_once_a_burst_call_for_the_csb() {
    let (technique, text) = chosen(Costs { read: 60_000.0, write: 1000.0, ..CALM });
    assert_eq!(technique, Technique::Csb, "{text}");
}

#[test]
fn exits_to_user_space_that_cost_even_once_a_burst_call_for_virtio() {
    let (technique, text) = chosen(Costs { read: 90_000.0, write: 80_000.0, ..CALM });
    assert_eq!(technique, Technique::Virtio, "{text}");
    assert!(text.contains("10 ns against 80.0 us"), "{text}");
}

#[test]
fn rates_and_gains_are_of_the_same_sum() {
    let advice = Advice::of(Costs { interrupt: 5000.0, ..CALM });
    let plain = advice.techniques[0];
    // 200 + 2 x 50, 10, 5000 + 3 x 10
    assert!((plain.ns_per_frame - 5340.0).abs() < 1e-6 && (plain.gain - 1.0).abs() < 1e-9);
    for row in &advice.techniques {
        assert!((row.frames_per_s * row.ns_per_frame - 1e9).abs() < 1.0, "{row:?}");
        assert!((row.gain - plain.ns_per_frame / row.ns_per_frame).abs() < 1e-9, "{row:?}");
    }
}

#[test]
fn stock_drivers_are_told_what_they_can_have() {
    let advice = Advice::of(Costs { interrupt: 5000.0, ..CALM });
    for technique in [Technique::Moderation, Technique::Mapped, Technique::Virtio] {
        let row = advice.techniques.iter().find(|row| row.technique == technique).unwrap();
        let rate = format!("({} frames/s, {:.1} times", si(row.frames_per_s), row.gain);
        assert!(advice.text.contains(&rate), "{rate}: {}", advice.text);
    }
    assert!(advice.text.contains("need no change for `irq_rate_max=`"), "{}", advice.text);
}

fn found(names: &[(&str, f64)]) -> Found {
    let figure = |(name, ns): &(&str, f64)| Figure {
        name: (*name).into(),
        what: String::new(),
        median_ns: *ns,
        p99_ns: *ns,
        times: 1,
        batch: 1,
        class: None,
    };
    Found { figures: names.iter().map(figure).collect(), ..Found::default() }
}

const MEASURED: [(&str, f64); 12] = [
    ("copy-64-cold", 100.0),
    ("line", 60.0),
    ("write", 2000.0),
    ("write-row", 1500.0),
    ("read", 9000.0),
    ("store", 1.0),
    ("ring", 3000.0),
    ("wake", 8000.0),
    ("exit-user-write", 1400.0),
    ("exit-user-read", 1500.0),
    ("exit-kernel-memory", 700.0),
    ("interrupt-halted", 4000.0),
];

#[test]
fn exits_count_only_where_a_processor_runs_the_guest() {
    let real = State { hardware: Some(true), ..State::default() };
    let costs = Costs::of(&found(&MEASURED), &real).unwrap();
    let sums = (costs.write, costs.read, costs.kick, costs.interrupt, costs.exit);
    assert_eq!(sums, (3400.0, 10_500.0, 700.0, 4000.0, Some(1400.0)));
    assert!(Advice::of(costs).text.contains("an exit to user space 1.40 us (14)"));

    for hardware in [Some(false), None] {
        let fake = State { hardware, ..State::default() };
        let costs = Costs::of(&found(&MEASURED), &fake).unwrap();
        let sums = (costs.write, costs.read, costs.kick, costs.interrupt, costs.exit);
        assert_eq!(sums, (2000.0, 9000.0, 3000.0, 8000.0, None));
        let text = Advice::of(costs).text;
        assert!(text.contains("No exit that a processor makes could be measured"), "{text}");
    }
}

#[test]
fn a_slow_server_holds_posted_writes_up() {
    let mut figures = found(&MEASURED);
    figures.figures[3].median_ns = 5000.0;
    let costs = Costs::of(&figures, &State::default()).unwrap();
    assert!((costs.write - 5000.0).abs() < 1e-9);
}

#[test]
fn without_a_figure_there_is_no_sum_and_one_core_is_told() {
    let none = Costs::of(&found(&MEASURED[1..]), &State::default());
    assert_eq!(none, Err("copy".into()));
    let mut one_core = found(&MEASURED);
    one_core.figures.retain(|f| !["line", "wake", "ring"].contains(&f.name.as_str()));
    assert_eq!(Costs::of(&one_core, &State::default()), Err("wake".into()));
    let few = found(&[("copy-64-cold", 100.0), ("wake", 8000.0)]);
    assert_eq!(Costs::of(&few, &State::default()), Err("vfio-user, wake".into()));
    for name in ["wake-one-core", "ring-one-core"] {
        one_core.append(found(&[(name, 500.0)]));
    }
    let text = Advice::of(Costs::of(&one_core, &State::default()).unwrap()).text;
    assert!(text.contains("no second core"), "{text}");
}

#[test]
fn times_are_short() {
    let all = [1.04, 12.3, 999.4, 999.6, 4567.0, 12_345.0].map(short);
    assert_eq!(all, ["1.0 ns", "12 ns", "999 ns", "1.00 us", "4.57 us", "12.3 us"]);
}
