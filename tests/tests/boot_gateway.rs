//! Two Linux guests with stock drivers and busybox' DHCP client on a LAN with a gateway: each gets
//! an address and names, fetches files from a server outside (a namespace that stands for the
//! Internet), reaches the other by name, and a forward of the host reaches it. So it goes on after
//! the gateway's process was killed, and for a guest that `vmlan run` plugs in. The same by IPv6,
//! where the guests' kernels make addresses of what the router says. What a narrower link carries
//! is told by DHCP, by router advertisements, and by virtio.

use std::time::{Duration, Instant};

use serde_json::Value;
use vmlan_tests::{Boot, Guest, Image, LanHost, NetNs, Result, Switch, connectivity, guest_tools};

const OUTSIDE: &str = "203.0.113.2";
const OUTSIDE6: &str = "2001:db8::2";

/// What busybox' client calls: takes the address, the way out and the server of names.
const SCRIPT: &str = "[ $1 = bound ] || exit 0; \
    /bin/ip addr add $ip/$mask dev $interface; /bin/ip route replace default via $router; \
    echo search $domain > /etc/resolv.conf; echo nameserver $dns >> /etc/resolv.conf; \
    echo $ip $mask $router $dns $domain $mtu > /tmp/told";

/// Asks for an address as a stock client does; what it was told.
fn lease(guest: &mut Guest) -> Result<String> {
    guest.sh("/bin/ip -4 addr flush dev eth0")?;
    guest.sh("mkdir -p /etc")?;
    guest.sh(&format!("printf '%s\\n' '#!/bin/busybox sh' '{SCRIPT}' > /tmp/bound"))?;
    guest.sh("chmod +x /tmp/bound")?;
    let ask = "busybox udhcpc -f -n -q -t 8 -T 2 -i eth0 -s /tmp/bound";
    guest.run(ask, Duration::from_secs(60))?;
    Ok(guest.sh("cat /tmp/told")?.trim().to_owned())
}

/// True if a name stands for this address, as the guest hears it of the gateway's address `at`.
fn is_called(guest: &mut Guest, address: &str, name: &str, at: &str) -> Result<bool> {
    let said = guest.sh(&format!("busybox nslookup {name} {at} | grep Address"))?;
    println!("  {name}: {said}");
    Ok(said.lines().any(|line| line.trim().ends_with(&format!(" {address}"))))
}

/// The address that the guest's kernel made of the router's prefix, once nobody else has it.
fn address6(guest: &mut Guest) -> Result<String> {
    let own = "/bin/ip -6 -o addr show dev eth0 scope global -tentative | grep -o 'fd00:77::[^/]*'";
    let way_out = "/bin/ip -6 route show default | grep -q eth0";
    let both = format!("for i in $(seq 300); do {way_out} && {own} && exit 0; sleep 0.1; done");
    Ok(guest.sh(&format!("{both}; exit 1"))?.lines().next().unwrap_or_default().to_owned())
}

/// The same by IPv6.
fn meet_by_ipv6(one: &mut Guest, two: &mut Guest) -> Result<()> {
    let (own, other) = (address6(one)?, address6(two)?);
    connectivity::fetch(one, OUTSIDE6)?;
    connectivity::reaches(one, OUTSIDE6)?;
    connectivity::reaches(one, &other)?;
    let name = format!("busybox nslookup {own} fd00:77::1 | grep -c 'name = vm1.lan'");
    assert_eq!(one.sh(&name)?.trim(), "1");
    assert!(is_called(one, &other, "vm2.lan", "fd00:77::1")?, "{other}");
    Ok(())
}

/// What guests and the host do on such a LAN.
fn meet(switch: &Switch, inside: &mut NetNs, one: &mut Guest, two: &mut Guest) -> Result<()> {
    connectivity::fetch(one, OUTSIDE)?;
    connectivity::reaches(one, OUTSIDE)?;
    let leases: Value = serde_json::from_str(&switch.ask(&["lease", "list", "--json"])?).unwrap();
    let of = |port: &str| {
        let mut all = leases["leases"].as_array().unwrap().iter();
        all.find(|lease| lease["port"] == port).unwrap()["ip"].as_str().unwrap().to_owned()
    };
    for (guest, name) in [(&mut *one, "vm2"), (&mut *two, "vm1")] {
        assert!(is_called(guest, &of(name), &format!("{name}.lan"), "10.77.0.1")?, "{leases}");
        connectivity::reaches(guest, &of(name))?;
    }
    assert_eq!(of("vm2"), "10.77.0.20", "it is kept for this port");
    // From the host, and once only: busybox' server ends with its client.
    one.background("sh -c 'echo hello from vm1 | busybox nc -l -p 22'")?;
    let call = "for i in $(seq 20); do busybox nc -w 5 127.0.0.1 2222 < /dev/null | grep hello \
                && exit 0; sleep 0.2; done; exit 1";
    let said = inside.run(call, Duration::from_secs(60))?;
    assert_eq!(said.text.trim(), "hello from vm1");
    meet_by_ipv6(one, two)
}

/// The process of the gateway: a child of the switch's starter. None: it is being started.
fn gateway(switch: &Switch) -> Option<u32> {
    let children = |of: u32| {
        let out = std::process::Command::new("pgrep").args(["-P", &of.to_string()]).output();
        let text = String::from_utf8(out.unwrap().stdout).unwrap();
        text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    let is_starter = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "vmlan-starter")
    };
    let starter = children(switch.pid()).into_iter().find(is_starter).expect("a starter");
    children(starter).first().copied()
}

/// With `ips=leased` a guest is nobody but whom the gateway made it: neither before, nor beside,
/// nor after its lease.
fn keeps_to_its_lease(switch: &Switch, guest: &mut Guest) -> Result<()> {
    let refused = || -> Result<u64> {
        let drops = switch.port("vm1")?["drops"].clone();
        let count = |reason| drops[reason].as_u64().unwrap_or(0);
        Ok(["spoofed-ip", "spoofed-arp"].into_iter().map(count).sum())
    };
    let is_cut_off = |guest: &mut Guest, from: &str| -> Result<()> {
        let before = refused()?;
        let answered = guest_tools::pings(guest, &format!("-I {from} 10.77.0.20"), 5)?;
        assert!(answered == 0 && refused()? > before, "{from}: {answered} answered");
        Ok(())
    };
    connectivity::reaches(guest, "10.77.0.20")?;
    guest.sh("/bin/ip addr add 10.77.0.66/24 dev eth0")?;
    is_cut_off(guest, "10.77.0.66")?;
    connectivity::reaches(guest, "10.77.0.20")?;
    switch.ask(&["lease", "remove", "vm1"])?;
    let told = guest.sh("cat /tmp/told")?;
    is_cut_off(guest, told.split(' ').next().unwrap_or_default())?;
    lease(guest)?;
    connectivity::reaches(guest, "10.77.0.20")?;
    // Of IPv6 addresses the guest takes those that it has asked about first, and nobody has.
    guest.sh("/bin/ip addr add fd00:77::55/64 dev eth0")?;
    let taken = "/bin/ip -6 -o addr show dev eth0 -tentative | grep -q fd00:77::55/";
    guest.sh(&format!("for i in $(seq 300); do {taken} && exit 0; sleep 0.1; done; exit 1"))?;
    connectivity::reaches(guest, &format!("-I fd00:77::55 {OUTSIDE6}"))?;
    guest.sh("/bin/ip addr add fd00:77::56/64 dev eth0 nodad")?;
    let before = refused()?;
    let answered = guest_tools::pings(guest, &format!("-I fd00:77::56 {OUTSIDE6}"), 5)?;
    assert!(answered == 0 && refused()? > before, "{answered} answered");
    guest.sh("/bin/ip addr del fd00:77::55/64 dev eth0")?;
    guest.sh("/bin/ip addr del fd00:77::56/64 dev eth0").map(drop)
}

/// From now on there is a narrower link: who asks is told, and by IPv6 all are.
fn narrow(switch: &Switch, link: &str, one: &mut Guest, two: &mut Guest) -> Result<()> {
    switch.ask(&["port", "add", &format!("up=stream:{link},mtu=1400")])?;
    assert!(lease(one)?.ends_with("lan 1400"));
    let has = "[ $(cat /proc/sys/net/ipv6/conf/eth0/mtu) = 1400 ]";
    two.sh(&format!("for i in $(seq 300); do {has} && exit 0; sleep 0.1; done; exit 1")).map(drop)
}

#[test]
fn guests_get_addresses_names_and_a_way_out() -> Result<()> {
    let temporary = tempfile::Builder::new().prefix("vmlan-gateway.").tempdir();
    let temporary = temporary.expect("a temporary directory");
    let dir = temporary.path();
    let image = Image::build(dir)?;
    let mut inside = NetNs::new(dir, "inside", 201)?;
    let mut outside = inside.sibling(dir, "outside", 202)?;
    inside.sh("ip link add up0 type veth peer name up1")?;
    inside.give("up1", &outside)?;
    inside.sh("ip addr add 203.0.113.1/24 dev up0 && ip link set up0 up")?;
    outside.sh(&format!("ip addr add {OUTSIDE}/24 dev up1 && ip link set up1 up"))?;
    inside.sh("ip addr add 2001:db8::1/64 dev up0 nodad")?;
    inside.sh(&format!("ip -6 route add default via {OUTSIDE6}"))?;
    outside.sh(&format!("ip addr add {OUTSIDE6}/64 dev up1 nodad"))?;
    // For pings of the gateway. Of groups an ordinary user's namespace has the first alone.
    inside.sh("echo 0 0 > /proc/sys/net/ipv4/ping_group_range")?;
    connectivity::serve(&mut outside)?;
    let place = |name: &str| dir.join(name).display().to_string();
    let ports = [
        format!("vm1=vhost-user:{},ips=leased", place("vm1")),
        format!("vm2=vhost-user:{},ip=10.77.0.20", place("vm2")),
        "net=nat:10.77.0.0/24,ipv6=fd00:77::/64,forward=2222:vm1:22,dns=203.0.113.2".into(),
    ];
    let mut switch = Switch::start(dir, Some(&inside), &ports)?;
    let boots = [
        Boot::new("vm1", 11).vhost_user(&dir.join("vm1")),
        Boot::new("vm2", 12).vhost_user(&dir.join("vm2")),
    ];
    let [mut one, mut two] = Guest::boot(&image, dir, boots)?;
    let told = lease(&mut one)?;
    println!("  vm1 was told {told}");
    assert!(told.ends_with("24 10.77.0.1 10.77.0.1 lan 1500"), "{told}");
    assert!(lease(&mut two)?.starts_with("10.77.0.20 "));
    meet(&switch, &mut inside, &mut one, &mut two)?;
    keeps_to_its_lease(&switch, &mut one)?;
    // The next gateway knows the leases, and is where the last one was.
    let old = gateway(&switch).expect("a gateway");
    let killed = std::process::Command::new("kill").args(["-9", &old.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    let end = Instant::now() + Duration::from_secs(30);
    while switch.port("net")?["up"] != true || gateway(&switch) == Some(old) {
        assert!(Instant::now() < end, "{}", switch.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    meet(&switch, &mut inside, &mut one, &mut two)?;
    narrow(&switch, &place("up"), &mut one, &mut two)?;
    let [mut three] =
        Guest::boot(&image, dir, [Boot::new("vm3", 13).run_by_vmlan(&dir.join("api.sock"))])?;
    assert_eq!(three.sh("cat /sys/class/net/eth0/mtu")?.trim(), "1400", "by its NIC");
    assert!(lease(&mut three)?.ends_with("24 10.77.0.1 10.77.0.1 lan 1400"));
    connectivity::fetch(&mut three, OUTSIDE)?;
    connectivity::reaches(&mut three, "10.77.0.20")?;
    assert_eq!(switch.port("vm3")?["up"], true);
    three.kill9();
    let end = Instant::now() + Duration::from_secs(60);
    while switch.ask(&["port", "list"])?.contains("vm3") {
        assert!(Instant::now() < end, "the port outlives its VM: {}", switch.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(switch.terminate()?, Some(0), "{}", switch.log());
    Ok(())
}
