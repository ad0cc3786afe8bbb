use std::time::Duration;

use vmlan_frame::{Counters, Reason};

use super::*;

fn sample() -> Stats {
    let counters = Counters::default();
    counters.input.count(3, 180);
    counters.output.count(2, 120);
    counters.output.drop(Reason::ReceiverFull, 7);
    counters.input.notifications.add(4);
    counters.rx_doorbells.add(1);
    counters.tx_interrupts.add(2);
    Stats { ports: vec![PortStats::read("vm1", "vhost-user", true, &counters)] }
}

#[test]
fn the_json_is_the_contract() {
    let json = serde_json::to_value(sample()).unwrap();
    let port = &json["ports"][0];
    assert_eq!(port["name"], "vm1");
    assert_eq!(port["kind"], "vhost-user");
    assert_eq!(port["in"]["frames"], 3);
    assert_eq!(port["in"]["bytes"], 180);
    assert_eq!(port["out"]["frames"], 2);
    assert_eq!(port["drops"], serde_json::json!({"receiver-full": 7}));
    assert_eq!(port["doorbells"], 5);
    assert_eq!(port["interrupts"], 2);
}

#[test]
fn prometheus_text_has_a_type_for_each_metric_and_a_line_for_each_port() {
    let text = prometheus(&sample());
    assert!(text.contains("# TYPE vmlan_port_in_frames_total counter\nvmlan_port_in_frames_total{port=\"vm1\",kind=\"vhost-user\"} 3\n"));
    assert!(text.contains(
        "vmlan_port_drops_total{port=\"vm1\",kind=\"vhost-user\",reason=\"receiver-full\"} 7\n"
    ));
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        assert_eq!(line.split(' ').count(), 2, "{line}");
    }
}

#[test]
fn people_see_totals_and_rates() {
    let text = table(&sample());
    assert!(text.contains("receiver-full 7"), "{text}");
    let before = sample();
    let mut after = sample();
    after.ports[0].r#in.frames += 2_000_000;
    after.ports[0].r#in.bytes += 120_000_000;
    let text = rates(&before, &after, Duration::from_secs(2));
    assert!(text.contains("1.00 M") && text.contains("480.00 M"), "{text}");
    // The port was taken away and added again: its counters fell.
    after.ports[0].r#in.frames = 2;
    assert!(rates(&before, &after, Duration::from_millis(10)).contains(" 200 "));
}

#[test]
fn numbers_are_readable() {
    assert_eq!(table::count(0), "0");
    assert_eq!(table::count(1_234_567), "1,234,567");
    assert_eq!(table::si(999.6), "1000");
    assert_eq!(table::si(12_345.0), "12.35 k");
    assert_eq!(table::si(2.5e9), "2.50 G");
}
