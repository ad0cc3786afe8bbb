//! Linux guests in stock QEMU on the switch: the referee of everything else.

use std::path::Path;
use vmlan_tests::{Boot, Guest, Image, LanHost, NetNs, Result, Switch, connectivity};

/// What each TCP flow carries, as iperf3 has it.
const AMOUNT: &str = "-n 4M";

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("vmlan-boot.").tempdir().expect("a temporary directory")
}

fn port(name: &str, kind: &str, dir: &Path) -> String {
    format!("{name}={kind}:{}", dir.join(name).display())
}

/// Every host serves, every pair in both directions reaches, echoes and transfers.
fn every_pair(hosts: &mut [&mut dyn LanHost]) -> Result<()> {
    for host in hosts.iter_mut() {
        connectivity::serve(*host)?;
    }
    for to in 0..hosts.len() {
        let ip = hosts[to].ip().to_owned();
        for from in (0..hosts.len()).filter(|&from| from != to) {
            println!("  {} <- {}", hosts[to].name(), hosts[from].name());
            connectivity::reaches(hosts[from], &ip)?;
            connectivity::ping_sizes(hosts[from], &ip)?;
            connectivity::fetch(hosts[from], &ip)?;
        }
    }
    hosts.iter_mut().try_for_each(|host| connectivity::no_checksum_errors(*host))
}

#[test]
fn two_virtio_guests() -> Result<()> {
    let dir = temporary();
    let dir = dir.path();
    let image = Image::build(dir)?;
    let ports = [port("vm1", "vhost-user", dir), port("vm2", "vhost-user", dir)];
    let mut switch = Switch::start(dir, None, &ports)?;
    let boots = [("vm1", 1), ("vm2", 2)]
        .map(|(name, number)| Boot::new(name, number).vhost_user(&dir.join(name)));
    let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
    every_pair(&mut [&mut one, &mut two])?;
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        connectivity::offloads(&mut one, first)?;
        connectivity::offloads(&mut two, second)?;
        let offloads = format!("offloads {first}/{second}");
        connectivity::flows(&format!("{offloads}, there"), &mut one, "10.77.0.2", AMOUNT)?;
        connectivity::flows(&format!("{offloads}, back"), &mut two, "10.77.0.1", AMOUNT)?;
        connectivity::fetch(&mut one, "10.77.0.2")?;
        connectivity::fetch(&mut two, "10.77.0.1")?;
    }
    connectivity::no_checksum_errors(&mut one)?;
    connectivity::no_checksum_errors(&mut two)?;
    counters_add_up(&switch)?;
    assert_eq!(switch.terminate()?, Some(0), "{}", switch.log());
    one.sh("true")?;
    two.sh("true").map(drop)
}

/// With two ports, what the one sent the other got or a counter names why not. Both are asked when
/// nothing moves.
fn counters_add_up(switch: &Switch) -> Result<()> {
    // At once, or a frame of the time between would be in one of them only.
    let stats = switch.stats()?;
    let [one, two] = [&stats["ports"][0], &stats["ports"][1]];
    let frames = |port: &serde_json::Value, way: &str| {
        port[way]["frames"].as_u64().expect("a frame counter")
    };
    let drops = |port: &serde_json::Value| -> u64 {
        port["drops"]
            .as_object()
            .expect("drops by reason")
            .values()
            .filter_map(serde_json::Value::as_u64)
            .sum()
    };
    let sent = frames(one, "in") + frames(two, "in");
    let arrived = frames(one, "out") + frames(two, "out");
    let dropped = drops(one) + drops(two);
    println!("  sent {sent}, arrived {arrived}, dropped {dropped}");
    assert!(sent > 1000, "the counters saw too little: {one} {two}");
    // One frame with GSO may leave as several, so more may arrive than was sent, never less without
    // a reason.
    assert!(arrived + dropped >= sent, "frames vanished: {one} {two}");
    Ok(())
}

#[test]
fn every_pair_of_port_kinds() -> Result<()> {
    let dir = temporary();
    let dir = dir.path();
    let image = Image::build(dir)?;
    let mut host = NetNs::new(dir, "host", 101)?;
    let mut other = host.sibling(dir, "other", 102)?;
    let ports = [
        port("vm1", "vhost-user", dir),
        port("e1000", "stream", dir),
        port("rtl8139", "stream", dir),
        "tap0=tap:vmlan0".into(),
        "tap1=tap:vmlan1".into(),
    ];
    let _switch = Switch::start(dir, Some(&host), &ports)?;
    host.give("vmlan1", &other)?;
    host.adopt("vmlan0")?;
    other.adopt("vmlan1")?;
    let boots = [
        Boot::new("vm1", 1).vhost_user(&dir.join("vm1")),
        Boot::new("e1000", 2).stream(&dir.join("e1000"), "e1000"),
        Boot::new("rtl8139", 3).stream(&dir.join("rtl8139"), "rtl8139"),
    ];
    let [mut virtio, mut e1000, mut rtl8139] = Guest::boot(&image, dir, boots)?;
    every_pair(&mut [&mut virtio, &mut e1000, &mut rtl8139, &mut host, &mut other])?;
    for on in [true, false] {
        connectivity::offloads(&mut virtio, on)?;
        let offloads = format!("offloads {on}");
        for (name, ip) in [("tap", "10.77.0.101"), ("stream", "10.77.0.2")] {
            let what = format!("virtio -> {name}, {offloads}");
            connectivity::flows(&what, &mut virtio, ip, AMOUNT)?;
        }
        let what = format!("tap -> virtio, {offloads}");
        connectivity::flows(&what, &mut host, "10.77.0.1", AMOUNT)?;
        let what = format!("stream -> virtio, {offloads}");
        connectivity::flows(&what, &mut e1000, "10.77.0.1", AMOUNT)?;
    }
    connectivity::flows("tap -> tap", &mut host, "10.77.0.102", AMOUNT)?;
    connectivity::no_checksum_errors(&mut virtio)?;
    connectivity::no_checksum_errors(&mut host)
}
