use super::*;
use crate::native::Window;

fn seen(frames_per_s: f64) -> Measured {
    let window = Window {
        frames_per_s,
        gbit_per_s: 0.96,
        cpu_switch: 0.5,
        cpu_guests: vec![0.25, 0.75],
        accesses_per_kframe: 1.5,
        interrupts_per_kframe: 0.5,
        mean_batch: 100.0,
        seconds: 1.0,
        ..Window::default()
    };
    let sender = serde_json::json!({ "latency": { "p50_ns": 12_500, "p99_ns": 90_000 } });
    Measured { window, said: vec![sender] }
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<_> = PLANS
        .iter()
        .enumerate()
        .map(|(n, plan)| {
            let class = Some(if n == 3 { Class::Far } else { Class::Near });
            Row::new(*plan, &seen(if n == 0 { 1e6 } else { 2e6 }), class)
        })
        .collect();
    compare(&mut rows);
    rows
}

#[test]
fn the_figures_have_the_fields_of_the_contract() {
    let figures = Figures {
        commit: crate::COMMIT,
        machine: Machine::read(crate::COMMIT),
        guest: "native",
        cores: Cores::compared().to_string(),
        rows: rows(),
    };
    let json = serde_json::to_value(figures).unwrap();
    assert!(!json["commit"].as_str().unwrap().is_empty());
    for field in [
        "name",
        "guest",
        "frame_bytes",
        "frames_per_s",
        "gbit_per_s",
        "cpu_switch",
        "cpu_guests",
        "doorbells_per_kframe",
        "interrupts_per_kframe",
        "mean_batch",
        "drops",
        "technique",
        "accesses_per_kframe",
        "adds_to",
        "times",
        "class",
    ] {
        assert!(!json["rows"][1][field].is_null(), "{field}");
    }
}

#[test]
fn people_get_a_table_and_bars() {
    let rows = rows();
    let text = table(&rows) + &bars(&rows) + &words();
    assert!(text.contains("2.00 M") && text.contains("100 %"), "{text}");
    assert!(text.contains("12.5 us (median)"), "{text}");
    assert!(
        text.contains(&"█".repeat(48)) && text.contains(&format!(" {} ", "█".repeat(24))),
        "{text}"
    );
    assert!(text.contains("csb: msi-unread, and: indices in a block"), "{text}");
}

#[test]
fn rows_are_compared_with_what_they_add_to_where_the_cores_were_as_near() {
    let rows = rows();
    let times: Vec<_> = rows.iter().map(|r| r.times).collect();
    // The fourth was measured in another class: neither it nor what adds to it is compared.
    assert_eq!(times[..6], [None, Some(2.0), Some(1.0), None, None, Some(1.0)]);
    assert_eq!(times[11..], [None, None]);
    let totals = totals(&rows);
    assert!(totals.contains("csb over plain") && totals.contains("2.0 times"), "{totals}");
}

#[test]
fn every_plan_names_a_technique() {
    for plan in PLANS {
        technique::one(plan.technique).unwrap();
    }
    assert!(round_trip(&serde_json::json!({})).is_none());
}
