//! Policies against a Linux guest with its stock drivers, once with virtio-net and once with the
//! e1000: what it may say passes, and nothing else, whatever address it gives itself; the counters
//! name why.

use serde_json::Value;
use std::time::{Duration, Instant};
use vmlan_tests::numbered::STALL;
use vmlan_tests::{
    Boot, Guest, HarnessError, Image, LanHost, NetNs, Result, Switch, connectivity, guest_tools,
};

const HOST: &str = "10.77.0.101";

/// A guest, and the port it is on.
struct Guarded {
    port: &'static str,
    number: u8,
    guest: Guest,
}

impl Guarded {
    fn mac(&self) -> String {
        Boot::mac(self.number)
    }

    /// Gives the NIC another MAC address.
    fn call_itself(&mut self, mac: &str) -> Result<()> {
        let set = format!("ip link set eth0 down && ip link set eth0 address {mac}");
        self.guest.sh(&format!("{set} && ip link set eth0 up"))?;
        guest_tools::carrier(&mut self.guest, true).map(drop)
    }
}

/// Frames of a port that were dropped for one of these reasons.
fn drops(switch: &Switch, port: &str, reasons: &[&str]) -> Result<u64> {
    let stats = switch.port(port)?;
    let count = |reason: &&str| stats["drops"][*reason].as_u64().unwrap_or(0);
    Ok(reasons.iter().map(count).sum())
}

const SPOOFED: [&str; 5] = ["spoofed-mac", "spoofed-ip", "spoofed-arp", "spoofed-nd", "not-parsed"];

/// Of ten echo requests none passes, and the counters of these reasons say so.
fn cut_off(switch: &Switch, who: &mut Guarded, to: &str, reasons: &[&str]) -> Result<()> {
    let before = drops(switch, who.port, reasons)?;
    let answered = guest_tools::pings(&mut who.guest, to, 10)?;
    let refused = drops(switch, who.port, reasons)? - before;
    println!("  {}: ping {to}: {answered} answered, {refused} refused: {reasons:?}", who.port);
    assert!(answered == 0 && refused > 0, "{answered} of 10 answered, {refused} {reasons:?}");
    Ok(())
}

/// Echoes of all sizes and checksummed files pass, and nothing is refused.
fn honest(switch: &Switch, who: &mut Guarded) -> Result<()> {
    connectivity::reaches(&mut who.guest, HOST)?;
    let before = drops(switch, who.port, &SPOOFED)?;
    connectivity::ping_sizes(&mut who.guest, HOST)?;
    connectivity::fetch(&mut who.guest, HOST)?;
    assert_eq!(drops(switch, who.port, &SPOOFED)?, before, "{}: refused", who.port);
    Ok(())
}

fn another_mac(switch: &Switch, who: &mut Guarded) -> Result<()> {
    who.call_itself("02:00:00:00:00:66")?;
    cut_off(switch, who, HOST, &["spoofed-mac"])?;
    let known = switch.ask(&["fdb", "list"])?;
    assert!(!known.contains("02:00:00:00:00:66"), "{known}");
    who.call_itself(&who.mac())?;
    connectivity::reaches(&mut who.guest, HOST)
}

fn another_ip(switch: &Switch, who: &mut Guarded) -> Result<()> {
    let other = format!("10.77.0.{}", 50 + who.number);
    who.guest.sh(&format!("ip addr add {other}/24 dev eth0"))?;
    connectivity::reaches(&mut who.guest, HOST)?;
    let as_other = format!("-I {other} {HOST}");
    cut_off(switch, who, &as_other, &["spoofed-ip"])?;
    // It asks for the host's MAC in the name of the address that it is about to use.
    who.guest.sh("/bin/ip neigh flush dev eth0")?;
    cut_off(switch, who, &as_other, &["spoofed-arp"])?;
    who.guest.sh(&format!("ip addr del {other}/24 dev eth0"))?;
    connectivity::reaches(&mut who.guest, HOST)
}

/// What is more than the limit waits in the guest's ring, and passes when its turn comes. Few
/// enough that none waits for 100 ms: the guest's own fq_codel drops one then, of several. A guest
/// that has little of the machine may not reach the first limits.
fn limited(switch: &Switch, who: &mut Guarded) -> Result<()> {
    let (mut limit, mut held) = (Value::Null, 0);
    for (frames, pings) in [(250, 30), (250, 30), (100, 10), (50, 5), (20, 2), (5, 2), (1, 2)] {
        switch.ask(&[
            "port",
            "set",
            who.port,
            &format!("from_frames={frames}"),
            "from_burst=10ms",
        ])?;
        let answered = guest_tools::all_pings(&mut who.guest, &format!("-i 0.002 {HOST}"), pings)?;
        limit = switch.port(who.port)?["limits"]["from"].clone();
        println!("  {}: {answered} of {pings} answered, limit {limit}", who.port);
        assert_eq!((answered, &limit["dropped"]), (pings, &0.into()), "nothing is lost: {limit}");
        held = limit["held"].as_u64().unwrap_or(0);
        if held > 0 {
            break;
        }
    }
    assert!(held > 0, "{limit}");
    switch.ask(&["port", "set", who.port, "from_frames=", "from_burst="]).map(drop)
}

/// No more interrupts than frames need, and none is lost, with the limit set and taken away under a
/// flood. Of a guest that has little of the machine the flood overruns the ring: then a slower one
/// is to be answered.
fn interrupted(switch: &Switch, who: &mut Guarded, host: &mut NetNs) -> Result<()> {
    let ip = who.guest.ip().to_owned();
    for rate in ["irq_rate_max=100", "irq_rate_max=0"] {
        switch.ask(&["port", "set", who.port, rate])?;
        let mut answered = Vec::new();
        for pace in ["0.002", "0.02", "0.1"] {
            answered.push(guest_tools::all_pings(host, &format!("-i {pace} {ip}"), 200)?);
            if answered.contains(&200) {
                break;
            }
        }
        assert!(answered.contains(&200), "{rate}: {answered:?} of 200 answered");
    }
    let device = switch.port(who.port)?["device"].clone();
    println!("  {}: raised {}, held {}", who.port, device["raised"], device["held"]);
    assert!(device["held"].as_u64() > Some(0), "{device}");
    Ok(())
}

/// IPv6 addresses count as the others do: neighbour discovery says nothing that `ips` does not.
fn ipv6(switch: &Switch, one: &mut Guarded, two: &mut Guarded) -> Result<()> {
    for (who, n) in [(&mut *one, 1), (&mut *two, 2)] {
        who.guest.sh("echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
        who.guest.sh(&format!("/bin/ip addr add fd00:77::{n}/64 dev eth0 nodad"))?;
    }
    cut_off(switch, one, "fd00:77::2", &["spoofed-ip", "spoofed-nd"])?;
    for (port, n) in [(one.port, 1), (two.port, 2)] {
        switch.ask(&["port", "set", port, &format!("ips=10.77.0.{n}+fd00:77::{n}+fe80::/10")])?;
    }
    connectivity::reaches(&mut one.guest, "fd00:77::2")?;
    connectivity::reaches(&mut two.guest, "fd00:77::1")?;
    one.guest.sh("/bin/ip addr add fd00:77::66/64 dev eth0 nodad")?;
    cut_off(switch, one, "-I fd00:77::66 fd00:77::2", &["spoofed-ip", "spoofed-nd"])
}

/// A guest's DHCP server is heard only without the guard; a client may ask though it has no address
/// yet.
fn dhcp(switch: &Switch, server: &mut Guarded, client: &mut Guarded) -> Result<()> {
    let lines =
        ["start 10.77.0.200", "end 10.77.0.210", "interface eth0", "lease_file /tmp/leases"];
    server.guest.sh(&format!("printf '{}\\n' > /tmp/dhcp", lines.join("\\n")))?;
    server.guest.sh("touch /tmp/leases")?;
    server.guest.background("busybox udhcpd -f /tmp/dhcp")?;
    let listens = "busybox netstat -lun | grep -q ':67 '";
    server.guest.sh(&format!("until {listens}; do sleep 0.1; done"))?;
    // The server takes two seconds to see whether an address is in use before it offers it.
    for (guard, tries) in [("on", 4), ("off", 20)] {
        switch.ask(&["port", "set", server.port, &format!("dhcp_guard={guard}")])?;
        let ask = format!("busybox udhcpc -f -n -q -t {tries} -T 1 -A 1 -i eth0 -s /bin/true");
        let said = client.guest.run(&ask, Duration::from_secs(60))?;
        assert_eq!(said.code == 0, guard == "off", "{}", said.text);
        let end = Instant::now() + STALL;
        let refused = loop {
            let refused = drops(switch, server.port, &["dhcp-guard"])?;
            if refused > 0 || Instant::now() > end {
                break refused;
            }
        };
        println!("  dhcp_guard={guard}: exit code {}, {refused} refused", said.code);
        assert!(refused > 0);
    }
    Ok(())
}

#[test]
fn a_linux_guest_says_what_it_may_and_nothing_else() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("vmlan-policy.").tempdir();
    let temporary = temporary.expect("a temporary directory");
    let dir = temporary.path();
    let image = Image::build(dir)?;
    let mut host = NetNs::new(dir, "host", 101)?;
    let place = |name: &str| dir.join(name).display().to_string();
    let keys = |n: u8| format!("macs={},ips=10.77.0.{n}", Boot::mac(n));
    let ports = [
        format!("vm1=vhost-user:{},{}", place("vm1"), keys(1)),
        format!("e1=vfio-user:{},model=e1000,mac={},{}", place("e1"), Boot::mac(2), keys(2)),
        "host=tap:vmlan0".into(),
    ];
    let mut switch = Switch::start(dir, Some(&host), &ports)?;
    host.adopt("vmlan0")?;
    let boots = [
        Boot::new("vm1", 1).vhost_user(&dir.join("vm1")),
        Boot::new("e1", 2).vfio_user(&dir.join("e1")),
    ];
    let [virtio, e1000] = Guest::boot(&image, dir, boots)?;
    let mut one = Guarded { port: "vm1", number: 1, guest: virtio };
    let mut two = Guarded { port: "e1", number: 2, guest: e1000 };
    connectivity::serve(&mut host)?;
    for who in [&mut one, &mut two] {
        who.guest.sh("echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
        honest(&switch, who)?;
        another_mac(&switch, who)?;
        another_ip(&switch, who)?;
        limited(&switch, who)?;
        interrupted(&switch, who, &mut host)?;
        honest(&switch, who)?;
    }
    ipv6(&switch, &mut one, &mut two)?;
    dhcp(&switch, &mut one, &mut two)?;
    // Two ports cannot list one MAC: refused, and nothing changes.
    let stolen = switch.ask(&["port", "set", "e1", &format!("macs={}", Boot::mac(1))]);
    assert!(matches!(stolen, Err(HarnessError::Failed { .. })), "{stolen:?}");
    honest(&switch, &mut two)?;
    assert_eq!(switch.terminate()?, Some(0), "{}", switch.log());
    Ok(())
}
