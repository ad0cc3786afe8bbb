use std::time::Duration;

use vmlan_frame::{Access, Counters, Device, Reason};

use super::*;

fn sample() -> Stats {
    let counters = Counters::default();
    counters.input.count(3, 180);
    counters.output.count(2, 120);
    counters.output.drop(Reason::ReceiverFull, 7);
    counters.input.notifications.add(4);
    counters.rx_doorbells.add(1);
    counters.tx_interrupts.add(2);
    Stats { ports: vec![PortStats::of("vm1", "vhost-user", true, &counters)] }
}

/// An e1000 that sent 1,000 frames by 100 doorbells.
fn nic() -> PortStats {
    let counters = Counters::default();
    counters.input.count(1000, 60_000);
    counters.input.notifications.add(100);
    let access = |register, reads, writes| Access { register, reads, writes };
    let device = Device {
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
        csb: Some(vmlan_frame::Csb { on: true, suppressed: 300, guest_asked: 3, host_asked: 4 }),
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
    let stats = Stats { ports: vec![sample().ports.remove(0), nic()] };
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
    let idle = serde_json::to_value(DeviceStats::new(Device::default(), 0, 0)).unwrap();
    assert!(idle["frames_per_interrupt"].is_null(), "there was none: {idle}");
    let read: Stats = serde_json::from_value(json).unwrap();
    assert_eq!(read.ports[1].device, stats.ports[1].device);
}

#[test]
fn people_see_which_registers_cost_most() {
    let stats = Stats { ports: vec![sample().ports.remove(0), nic()] };
    let text = table(&stats);
    let (ports, nics) = text.split_once("\n\n").expect("a second table");
    assert!(ports.contains("vm1") && ports.contains("vm2"));
    assert!(!nics.contains("vm1"), "{nics}");
    let line = nics.lines().nth(1).unwrap();
    let words: Vec<_> = line.split_whitespace().take(9).collect();
    assert_eq!(words, ["vm2", "201", "299", "20", "15", "5", "500.0", "10.0", "200.0"]);
    let csb = "; csb on: 300 causes kept in, 3 interrupts asked for, 4 kicks asked for";
    assert!(line.ends_with(&format!("  ICR 200 r, IMS 150 w, TDT 100 w, IMC 40 w{csb}")), "{line}");
    assert!(!table(&sample()).contains("NIC"));
    // Of the last second alone.
    let mut after = stats.clone();
    let device = after.ports[1].device.as_mut().unwrap();
    device.registers.get_mut("TDT").unwrap().writes += 4000;
    device.raised += 30;
    device.delivered += 20;
    device.csb.as_mut().unwrap().suppressed += 600;
    after.ports[1].r#in.frames += 8000;
    let text = rates(&stats, &after, Duration::from_secs(2));
    let line = text.lines().last().unwrap();
    let words: Vec<_> = line.split_whitespace().take(9).collect();
    assert_eq!(words, ["vm2", "0", "2000", "15", "0", "10", "500.0", "-", "400.0"]);
    let csb = "; csb on: 300 causes kept in, 0 interrupts asked for, 0 kicks asked for";
    assert!(line.ends_with(&format!("  TDT 2000 w{csb}")), "{line}");
    // The port was taken away and added again: its counters fell.
    let text = rates(&after, &stats, Duration::from_secs(1));
    assert!(text.lines().last().unwrap().contains("TDT 100 w"), "{text}");
}

#[test]
fn prometheus_tells_what_is_counted_by_register() {
    assert!(!prometheus(&sample()).contains("_nic_"), "no NIC, no metrics of NICs");
    let text = prometheus(&Stats { ports: vec![nic(), sample().ports.remove(0)] });
    for line in [
        "vmlan_port_nic_register_accesses_total{port=\"vm2\",kind=\"vfio-user\",register=\"ICR\",access=\"read\"} 200",
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
        let name = line.split('{').next().unwrap();
        assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
    }
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
