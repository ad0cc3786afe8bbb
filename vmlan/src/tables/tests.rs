use std::sync::Arc;
use std::time::Duration;

use vmlan_frame::{Counters, NicCounters, Reason, RegisterCount};
use vmlan_switch::policy::{Limiter, Limits, Policy};

use vmlan_engine::stats::{DeviceStats, FdbStats, LimitStats, PortStats, SharedLimit, Stats};

use super::{rates, table};

const WIDE: usize = usize::MAX;

fn sample() -> Stats {
    let counters = Counters::default();
    counters.input.count(3, 180);
    counters.output.count(2, 120);
    counters.output.drop(Reason::ReceiverFull, 7);
    counters.input.notifications.add(4);
    counters.rx_doorbells.add(1);
    counters.tx_interrupts.add(2);
    Stats { ports: vec![PortStats::of("vm1", "vhost-user", true, &counters)], ..Stats::default() }
}

/// A limiter that has seen so many frames.
fn limiter(passed: u64, held: u64, dropped: u64) -> Arc<Limiter> {
    let limiter = Limiter::default();
    let c = &limiter.counters;
    c.passed.add(passed);
    c.held.add(held);
    c.dropped.add(dropped);
    Arc::new(limiter)
}

/// Two ports with limits, one of them of its own, and one without.
fn limited() -> Stats {
    let counters = Counters::default();
    counters.work_ns.add(1_500_000_000);
    let port = |name| PortStats::of(name, "vhost-user", true, &counters);
    let own = |own| Limits { own, shared: None };
    let policy = Policy {
        from: own(Some(limiter(1000, 20, 0))),
        to: own(Some(limiter(2000, 0, 300))),
        ..Policy::default()
    };
    let counts = LimitStats::read(&limiter(5_000_000, 7, 9));
    let ports = ["vm1", "vm2"].map(str::to_owned).to_vec();
    Stats {
        ports: vec![
            port("vm1").limited(&policy),
            port("vm2").limited(&Policy::default()),
            sample().ports.remove(0),
        ],
        limits: vec![SharedLimit { name: "tenant-a".into(), ports, counts }],
        fdb: FdbStats { unlearned: 1234 },
        sandbox: "off".into(),
    }
}

/// An e1000 that sent 1,000 frames by 100 doorbells.
fn nic() -> PortStats {
    let counters = Counters::default();
    counters.input.count(1000, 60_000);
    counters.input.notifications.add(100);
    let access = |register, reads, writes| RegisterCount { register, reads, writes };
    let device = NicCounters {
        registers: vec![
            access("CTRL", 1, 2),
            access("ICR", 200, 0),
            access("IMS", 0, 150),
            access("IMC", 0, 40),
            access("RDT", 0, 7),
            access("TDT", 0, 100),
        ],
        raised: 20,
        held: 15,
        delivered: 5,
        statistics: vec![("GPTC", 1000), ("GOTCL", 64_000)],
        csb: Some(vmlan_frame::CsbCounters {
            on: true,
            suppressed: 300,
            guest_asked: 3,
            host_asked: 4,
        }),
    };
    let port = PortStats::of("vm2", "vfio-user", true, &counters);
    let device = DeviceStats::new(device, port.frames(), port.doorbells);
    PortStats { device: Some(device), ..port }
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
fn an_emulated_nic_tells_its_registers_interrupts_and_statistics() {
    let stats = Stats { ports: vec![sample().ports.remove(0), nic()], ..Stats::default() };
    let json = serde_json::to_value(&stats).unwrap();
    assert!(json["ports"][0].get("device").is_none(), "{json}");
    let device = &json["ports"][1]["device"];
    assert_eq!(device["registers"]["ICR"], serde_json::json!({"reads": 200, "writes": 0}));
    assert_eq!(
        (&device["raised"], &device["held"], &device["delivered"]),
        (&20.into(), &15.into(), &5.into())
    );
    assert_eq!(device["statistics"]["GPTC"], 1000);
    let csb = serde_json::json!({"on": true, "suppressed": 300, "guest_asked": 3, "host_asked": 4});
    assert_eq!(device["csb"], csb);
    assert_eq!(device["accesses_per_1000_frames"], 500.0);
    assert_eq!(device["frames_per_doorbell"], 10.0);
    assert_eq!(device["frames_per_interrupt"], 200.0);
    let idle = serde_json::to_value(DeviceStats::new(NicCounters::default(), 0, 0)).unwrap();
    assert!(idle["frames_per_interrupt"].is_null(), "there was none: {idle}");
    let read: Stats = serde_json::from_value(json).unwrap();
    assert_eq!(read.ports[1].device, stats.ports[1].device);
}

#[test]
fn people_see_which_registers_cost_most() {
    let stats = Stats { ports: vec![sample().ports.remove(0), nic()], ..Stats::default() };
    let text = table(&stats, WIDE);
    let (ports, nics) = text.split_once("\n\n").expect("a second table");
    assert!(ports.contains("vm1") && ports.contains("vm2"));
    assert!(!nics.contains("vm1"), "{nics}");
    let line = nics.lines().nth(1).unwrap();
    let words: Vec<_> = line.split_whitespace().take(9).collect();
    assert_eq!(words, ["vm2", "201", "299", "20", "15", "5", "500.0", "10.0", "200.0"]);
    let csb = "; csb on: 300 causes kept in, 3 interrupts asked for, 4 kicks asked for";
    assert!(line.ends_with(&format!("  ICR 200 r, IMS 150 w, TDT 100 w, IMC 40 w{csb}")), "{line}");
    assert!(!table(&sample(), WIDE).contains("NIC"));
    // Of the last second alone.
    let mut after = stats.clone();
    let device = after.ports[1].device.as_mut().unwrap();
    device.registers.get_mut("TDT").unwrap().writes += 4000;
    device.raised += 30;
    device.delivered += 20;
    device.csb.as_mut().unwrap().suppressed += 600;
    after.ports[1].r#in.frames += 8000;
    let text = rates(&stats, &after, Duration::from_secs(2), WIDE);
    let line = text.lines().last().unwrap();
    let words: Vec<_> = line.split_whitespace().take(9).collect();
    assert_eq!(words, ["vm2", "0", "2000", "15", "0", "10", "500.0", "-", "400.0"]);
    let csb = "; csb on: 300 causes kept in, 0 interrupts asked for, 0 kicks asked for";
    assert!(line.ends_with(&format!("  TDT 2000 w{csb}")), "{line}");
    // The port was taken away and added again: its counters fell.
    let text = rates(&after, &stats, Duration::from_secs(1), WIDE);
    assert!(text.lines().last().unwrap().contains("TDT 100 w"), "{text}");
}

#[test]
fn limits_are_told_in_json_where_there_are_any() {
    let json = serde_json::to_value(limited()).unwrap();
    let (one, two) = (&json["ports"][0], &json["ports"][1]);
    let from = serde_json::json!({"offered": 1000, "passed": 1000, "held": 20, "dropped": 0});
    let to = serde_json::json!({"offered": 2300, "passed": 2000, "held": 0, "dropped": 300});
    assert_eq!(one["limits"], serde_json::json!({"from": from, "to": to}));
    assert_eq!(one["work_ns"], 1_500_000_000);
    assert!(two.get("limits").is_none(), "{two}");
    let shared = serde_json::json!([{
        "name": "tenant-a", "ports": ["vm1", "vm2"],
        "offered": 5_000_009, "passed": 5_000_000, "held": 7, "dropped": 9,
    }]);
    assert_eq!(json["limits"], shared);
    assert_eq!(json["fdb"]["unlearned"], 1234);
    let read: Stats = serde_json::from_value(json).unwrap();
    assert_eq!((read.limits, read.ports[0].limits), (limited().limits, limited().ports[0].limits));
    // What a switch from before there were limits says is still read.
    let old: Stats = serde_json::from_str(r#"{"ports": []}"#).unwrap();
    assert!(old.limits.is_empty());
}

#[test]
fn people_see_limits_under_the_ports() {
    let text = table(&limited(), WIDE);
    let (_, limits) = text.split_once("\n\n").expect("a second table");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = limits.lines().map(words).collect();
    assert_eq!(lines[0], ["LIMITS", "OFFERED", "PASSED", "HELD", "DROPPED", "PORTS"]);
    assert_eq!(lines[1], ["from", "vm1", "1,000", "1,000", "20", "0"]);
    assert_eq!(lines[2], ["to", "vm1", "2,300", "2,000", "0", "300"]);
    assert_eq!(lines[3][..3], ["tenant-a", "5,000,009", "5,000,000"]);
    assert!(limits.lines().nth(3).unwrap().ends_with("  vm1, vm2"), "{limits}");
    assert!(text.contains("1.5 s") && text.contains("1,234 times an address"), "{text}");
    assert!(text.contains("\nsandbox off\n"), "{text}");
    assert!(
        !table(&sample(), WIDE).contains("LIMITS")
            && !table(&sample(), WIDE).contains("not learned")
    );
    let (before, mut after) = (limited(), limited());
    let to = after.ports[0].limits.as_mut().unwrap().to.as_mut().unwrap();
    (to.offered, to.dropped) = (to.offered + 4000, to.dropped + 3000);
    after.ports[0].work_ns += 500_000_000;
    let text = rates(&before, &after, Duration::from_secs(2), WIDE);
    let line = text.lines().find(|l| l.starts_with("to vm1")).unwrap();
    assert_eq!(words(line), ["to", "vm1", "2000", "0", "0", "1500"]);
    assert!(text.contains(" 25.0 %"), "{text}");
    // A limit that is new counts from 0.
    let text = rates(&Stats::default(), &after, Duration::from_secs(1), WIDE);
    let line = text.lines().find(|l| l.starts_with("tenant-a")).unwrap();
    assert_eq!(words(line)[1..3], ["5.00", "M"], "{text}");
}

#[test]
fn people_see_why_most_frames_were_dropped() {
    let counters = Counters::default();
    for (reason, n) in [
        (Reason::Runt, 1),
        (Reason::SpoofedIp, 20),
        (Reason::OverLimit, 3_000),
        (Reason::Storm, 400),
        (Reason::Vlan, 2),
    ] {
        counters.output.drop(reason, n);
    }
    let port = || PortStats::of("vm1", "tap", true, &counters);
    let stats = Stats { ports: vec![port()], ..Stats::default() };
    let text = table(&stats, WIDE);
    let line = text.lines().nth(1).unwrap();
    assert!(
        line.ends_with("  3,423  over-limit 3,000, storm 400, spoofed-ip 20, others 3"),
        "{line}"
    );
    counters.output.drop(Reason::SpoofedIp, 50);
    let after = Stats { ports: vec![port()], ..Stats::default() };
    let text = rates(&stats, &after, Duration::from_secs(2), WIDE);
    assert!(text.lines().nth(1).unwrap().ends_with("  25  spoofed-ip 25"), "{text}");
}

#[test]
fn people_see_totals_and_rates() {
    let text = table(&sample(), WIDE);
    assert!(text.contains("receiver-full 7"), "{text}");
    let before = sample();
    let mut after = sample();
    after.ports[0].r#in.frames += 2_000_000;
    after.ports[0].r#in.bytes += 120_000_000;
    let text = rates(&before, &after, Duration::from_secs(2), WIDE);
    assert!(text.contains("1.00 M") && text.contains("480.00 M"), "{text}");
    // The port was taken away and added again: its counters fell.
    after.ports[0].r#in.frames = 2;
    assert!(rates(&before, &after, Duration::from_millis(10), WIDE).contains(" 200 "));
}
