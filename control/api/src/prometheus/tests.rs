use serde_json::{Value, json};

use super::*;

fn port(name: &str, kind: &str, more: Value) -> Value {
    let none = json!({"frames": 0, "bytes": 0, "batches": 0});
    let mut port = json!({
        "name": name, "kind": kind, "in": none, "out": none, "drops": {},
        "doorbells": 0, "interrupts": 0, "up": true, "faults": 0,
    });
    let Value::Object(more) = more else { panic!("an object is wanted") };
    port.as_object_mut().unwrap().extend(more);
    port
}

fn stats(value: Value) -> Stats {
    serde_json::from_value(value).unwrap()
}

fn virtio() -> Value {
    let flow = json!({"frames": 3, "bytes": 180, "batches": 1});
    port("vm1", "vhost-user", json!({"in": flow, "drops": {"receiver-full": 7}}))
}

fn sample() -> Stats {
    stats(json!({"ports": [virtio()]}))
}

/// An e1000 with a CSB.
fn nic() -> Value {
    let device = json!({
        "registers": {"ICR": {"reads": 200, "writes": 0}},
        "raised": 20, "held": 15, "delivered": 5,
        "statistics": {"GPTC": 1000},
        "csb": {"on": true, "suppressed": 300, "guest_asked": 3, "host_asked": 4},
        "accesses_per_1000_frames": null, "frames_per_doorbell": null, "frames_per_interrupt": null,
    });
    port("vm2", "vfio-user", json!({"device": device}))
}

/// Two ports, one of them with limits of its own, and a limit that both share.
fn limited() -> Stats {
    let from = json!({"offered": 1000, "passed": 1000, "held": 20, "dropped": 0});
    let to = json!({"offered": 2300, "passed": 2000, "held": 0, "dropped": 300});
    let limits = json!({"work_ns": 1_500_000_000, "limits": {"from": from, "to": to}});
    stats(json!({
        "ports": [port("vm1", "vhost-user", limits), port("vm2", "vhost-user", json!({}))],
        "limits": [{
            "name": "tenant-a", "ports": ["vm1", "vm2"],
            "offered": 5_000_009, "passed": 5_000_000, "held": 7, "dropped": 9,
        }],
        "fdb": {"unlearned": 1234},
    }))
}

#[test]
fn prometheus_tells_what_is_counted_by_register() {
    assert!(!prometheus(&sample()).contains("_nic_"), "no NIC, no metrics of NICs");
    let text = prometheus(&stats(json!({"ports": [nic(), virtio()]})));
    for line in [
        "vmlan_port_nic_register_accesses_total{port=\"vm2\",kind=\"vfio-user\",\
         register=\"ICR\",access=\"read\"} 200",
        "vmlan_port_nic_interrupts_raised_total{port=\"vm2\",kind=\"vfio-user\"} 20",
        "vmlan_port_nic_interrupts_held_total{port=\"vm2\",kind=\"vfio-user\"} 15",
        "vmlan_port_nic_interrupts_delivered_total{port=\"vm2\",kind=\"vfio-user\"} 5",
        "vmlan_port_nic_csb_on{port=\"vm2\",kind=\"vfio-user\"} 1",
        "vmlan_port_nic_csb_interrupts_suppressed_total{port=\"vm2\",kind=\"vfio-user\"} 300",
        "vmlan_port_nic_statistics_total{port=\"vm2\",kind=\"vfio-user\",register=\"GPTC\"} 1000",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
    }
}

#[test]
fn prometheus_text_has_a_type_for_each_metric_and_a_line_for_each_port() {
    let text = prometheus(&sample());
    assert!(text.contains(
        "# TYPE vmlan_port_in_frames_total \
        counter\nvmlan_port_in_frames_total{port=\"vm1\",kind=\"vhost-user\"} 3\n"
    ));
    assert!(text.contains(
        "vmlan_port_drops_total{port=\"vm1\",kind=\"vhost-user\",reason=\"receiver-full\"} 7\n"
    ));
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        assert_eq!(line.split(' ').count(), 2, "{line}");
    }
}

#[test]
fn prometheus_tells_what_limits_did() {
    let text = prometheus(&limited());
    for line in [
        "vmlan_port_limit_held_total{port=\"vm1\",kind=\"vhost-user\",direction=\"from\"} 20",
        "vmlan_limit_held_total{limit=\"tenant-a\"} 7",
        "vmlan_port_limit_frames_total{port=\"vm1\",kind=\"vhost-user\",\
         direction=\"from\",outcome=\"passed\"} 1000",
        "vmlan_port_limit_frames_total{port=\"vm1\",kind=\"vhost-user\",\
         direction=\"to\",outcome=\"dropped\"} 300",
        "vmlan_limit_frames_total{limit=\"tenant-a\",outcome=\"passed\"} 5000000",
        "vmlan_port_work_seconds_total{port=\"vm1\",kind=\"vhost-user\"} 1.500000000",
        "vmlan_fdb_unlearned_total 1234",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    let mut types = std::collections::BTreeSet::new();
    for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(types.insert(name), "{name} twice");
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
    }
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        assert!(types.contains(line.split(['{', ' ']).next().unwrap()), "{line}");
    }
    assert!(!prometheus(&sample()).contains("limit_"));
    let outcome =
        |l: &&str| l.contains("outcome=") && !l.contains("passed") && !l.contains("dropped");
    assert_eq!(text.lines().find(outcome), None);
}

/// What the dashboard in `packaging/grafana` asks for is there.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard = include_str!("../../../../packaging/grafana/vmlan.json");
    let gateway = json!({
        "gateway": {"flows": {"tcp": 1}, "opened": {}, "refused": {"port": 1}, "answered": {}},
    });
    let mut stats = stats(json!({"ports": [nic(), port("net", "nat", gateway)]}));
    stats.ports.extend(limited().ports);
    let text = prometheus(&stats);
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    let asked = dashboard.match_indices("vmlan_").map(|(at, _)| {
        let rest = &dashboard[at..];
        &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())]
    });
    let asked: Vec<_> = asked.collect();
    assert!(asked.len() > 15, "{asked:?}");
    for name in asked {
        assert!(text.contains(&format!("# TYPE {name} ")), "no {name}");
    }
}
