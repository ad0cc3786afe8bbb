//! LANs of several hosts: `vmlan host-link` sets two namespaces up and takes all away again, and
//! what `vmlan demo --hosts` shows holds, whatever it took: what passes, what is answered, in which
//! order. With FRR, which wants root, or skipped with a word.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlan_tests::{LanHost as _, NetNs, Switch, vmlan_program};

/// The figures of a demonstration; `None`: it cannot be given here.
fn figures(fabric: &str) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("figures");
    let out = Command::new(vmlan_program())
        .args(["demo", "--hosts", fabric, "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    println!("{}{error}", String::from_utf8_lossy(&out.stdout));
    if error.starts_with("vmlan: no EVPN: ") {
        println!("skipped: {error}");
        return None;
    }
    assert!(out.status.success(), "{fabric}: {error}");
    Some(serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap())
}

/// What holds for any fabric.
fn holds(f: &Value) {
    let links = f["links"].as_array().unwrap();
    assert!(links.len() == 2 && links.iter().all(|l| l["transactions"].as_u64() > Some(0)), "{f}");
    assert_eq!((&f["mtu"]["passed"], &f["mtu"]["refused"]), (&1422.into(), &1423.into()));
    assert_eq!(f["mtu"]["told"], 1450);
    assert!(f["arp"]["answers"].as_u64() > Some(0), "{f}");
    assert!(f["arp"]["unknown_tunnelled"].as_u64() >= Some(10), "all are asked: {f}");
    let moves = f["moves"].as_array().unwrap();
    let guests: Vec<_> = moves.iter().map(|m| (m["guest"].as_str(), &m["to_host"])).collect();
    let [one, two] = [Value::from(1), Value::from(2)];
    let silent = [(Some("silent"), &one), (Some("silent"), &two)];
    assert_eq!(guests, [&silent[..], &[(Some("talker"), &one), (Some("talker"), &two)]].concat());
    assert!(moves.iter().all(|m| m["in_order"].as_u64() >= Some(20)), "{f}");
}

#[test]
fn guests_move_between_hosts_that_have_a_list_of_hosts() {
    let f = figures("static").unwrap();
    holds(&f);
    assert!(f["arp"]["tunnelled"].as_u64() >= Some(10), "nobody answers for the other host: {f}");
    assert!(f["told"] == 0 && f["seen"].as_u64() > Some(0), "{f}");
}

#[test]
fn guests_move_between_hosts_that_speak_bgp() {
    let Some(f) = figures("evpn") else { return };
    holds(&f);
    assert!(f["arp"]["tunnelled"].as_u64() < Some(10), "the bridge answers by itself: {f}");
    assert!(f["told"].as_u64() > Some(0) && f["seen"] == 0, "{f}");
}

/// Interfaces but the loopback's.
fn interfaces(host: &mut NetNs) -> Vec<String> {
    let said = host.sh("ip -o link show").unwrap();
    let name = |line: &str| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
    said.lines().filter_map(name).filter(|name| name != "lo").collect()
}

#[test]
fn all_that_is_set_up_is_taken_away_and_half_of_it_is_not_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = NetNs::new(dir.path(), "host", 1).unwrap();
    let link = |what: &str| {
        let vmlan: &Path = vmlan_program();
        let words = "host-link lan0 --vni 7 --local 192.0.2.1 --peer 192.0.2.2,192.0.2.3 --user 0";
        format!("{} {words} {what}", vmlan.display())
    };
    let before = interfaces(&mut host);
    let told = host.sh(&link("")).unwrap();
    assert_eq!(interfaces(&mut host), before, "it only tells: {told}");
    // Something is in its way: what it has made until then goes.
    host.sh("ip link add vx7 type bridge").unwrap();
    let failed = host.run(&link("--apply"), Duration::from_secs(60)).unwrap();
    assert!(failed.code == 1 && failed.text.contains("--remove"), "{failed:?}");
    assert_eq!(interfaces(&mut host), [&before[..], &["vx7".into(), "lan0".into()]].concat());
    host.sh("ip link del vx7").unwrap();

    let done = host.sh(&link("--apply")).unwrap();
    assert!(done.lines().all(|line| told.contains(line)), "what was told: {done}\n{told}");
    let there = interfaces(&mut host);
    assert!(["br7", "vx7", "lan0"].iter().all(|name| there.iter().any(|i| i == name)), "{there:?}");
    let hosts = host.sh("bridge fdb show dev vx7").unwrap();
    for peer in ["192.0.2.2", "192.0.2.3"] {
        assert!(hosts.contains(&format!("00:00:00:00:00:00 dst {peer}")), "{hosts}");
    }
    let lan0 = host.sh("ip link show lan0").unwrap();
    assert!(lan0.contains("mtu 1450") && lan0.contains("master br7"), "{lan0}");
    let twice = host.run(&link("--apply"), Duration::from_secs(60)).unwrap();
    assert_eq!((twice.code, interfaces(&mut host)), (1, there), "{twice:?}");
    for _ in 0..2 {
        host.sh(&link("--remove")).unwrap();
        assert_eq!(interfaces(&mut host), [&before[..], &["lan0".into()]].concat());
    }
    let lan0 = host.sh("ip link show lan0").unwrap();
    assert!(lan0.contains("mtu 1500") && !lan0.contains("master"), "{lan0}");
}

/// The kernel forgets what it was told when its bridge goes away, or down.
#[test]
fn what_the_kernel_has_forgotten_it_is_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = NetNs::new(dir.path(), "host", 1).unwrap();
    let socket = dir.path().join("vm1");
    let keys = "macs=52:54:00:00:00:01,ips=10.0.0.7+fd00::7";
    let ports = [format!("vm1=stream:{},{keys}", socket.display())];
    let switch = Switch::start(dir.path(), None, &ports).unwrap();
    let guest = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let bridge = "ip link add br7 type bridge && ip link set br7 addrgenmode none up";
    host.sh(bridge).unwrap();
    let words = "host-link lan0 --vni 7 --local 192.0.2.1 --peer 192.0.2.2 --evpn --follow --api";
    let api = switch.api_path().display();
    host.background(&format!("{} {words} {api}", vmlan_program().display())).unwrap();
    let knows = "ip neigh show dev br7 nud permanent";
    let is_told = |host: &mut NetNs| {
        let until = Instant::now() + Duration::from_secs(60);
        while host.sh(knows).unwrap().matches("lladdr 52:54:00:00:00:01").count() != 2 {
            assert!(Instant::now() < until, "the kernel is not told");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    is_told(&mut host);
    host.sh("ip link del br7").unwrap();
    // It looks in vain, at least once.
    std::thread::sleep(Duration::from_secs(3));
    host.sh(bridge).unwrap();
    is_told(&mut host);
    host.sh("ip link set br7 down && ip link set br7 up").unwrap();
    is_told(&mut host);
    // What it was not told by this one stays, and a guest that leaves is forgotten.
    host.sh("ip neigh add 10.0.0.9 lladdr 52:54:00:00:00:09 dev br7 nud permanent").unwrap();
    drop(guest);
    let until = Instant::now() + Duration::from_secs(60);
    while host.sh(knows).unwrap().contains("52:54:00:00:00:01") {
        assert!(Instant::now() < until, "the kernel has still what has gone");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(host.sh(knows).unwrap().contains("10.0.0.9"));
}
