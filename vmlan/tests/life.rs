//! A switch starts, changes while it runs, and goes without a trace.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Guest, Switch, sleeps, until};

const TWO: [&str; 2] = ["vm1=vhost-user:@/vm1.sock", "s=stream:@/s.sock"];

fn mode(path: PathBuf) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(switch: &Switch) -> Vec<String> {
    let list = switch.json(&["port", "list"]);
    let ports = list["ports"].as_array().unwrap();
    ports.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn it_says_how_to_attach_and_leaves_nothing_behind() {
    for signal in ["TERM", "INT"] {
        let mut switch = Switch::start(&TWO);
        let hint = format!("vmlan --api {} vm-args vm1", switch.api());
        assert!(switch.said[0].contains(&hint), "{:?}", switch.said);
        assert_eq!(switch.files(), ["api.sock", "s.sock", "vm1.sock"]);
        assert_eq!(mode(switch.path("api.sock")), 0o600);
        switch.signal(signal);
        assert_eq!(switch.wait(), Some(0));
        assert_eq!(switch.files(), [""; 0]);
    }
}

#[test]
fn a_signal_that_comes_twice_at_once_is_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let port = format!("vm1=vhost-user:{}", place("vm1.sock"));
    // timeout(1) signals its child, and then the group the child is in; the child is long there.
    let words = ["4", env!("CARGO_BIN_EXE_vmlan"), "switch", "--api", &place("api.sock"), &port];
    let out = std::process::Command::new("timeout").args(words).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(124), "timeout(1) had to end it: {error}");
    assert!(!error.contains("asked to stop again"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
}

#[test]
fn without_ports_it_says_how_to_add_one() {
    let switch = Switch::start(&[]);
    let hint = format!("vmlan --api {} port add vm1=vhost-user:", switch.api());
    assert!(switch.said[0].contains(&hint), "{:?}", switch.said);
}

#[test]
fn after_kill_9_a_new_one_takes_over_the_stale_sockets() {
    let mut switch = Switch::start(&TWO);
    switch.signal("KILL");
    switch.wait();
    assert_eq!(switch.files(), ["api.sock", "s.sock", "vm1.sock"]);
    let ports = TWO.map(|p| switch.here(p));
    let (first, second) = (ports[0].as_str(), ports[1].as_str());
    // The API's place is given twice: the later one counts for clap only if allowed, so use a file.
    let config = switch.path("vmlan.toml");
    let text = format!(
        "[switch]\napi-mode = '0660'\n[port.vm1]\naddress = '{}'\n[port.s]\naddress = '{}'\n",
        first.split_once('=').unwrap().1,
        second.split_once('=').unwrap().1
    );
    std::fs::write(&config, text).unwrap();
    let again = Switch::with(&["--config", config.to_str().unwrap()], &[], &[]);
    assert_eq!(mode(again.path("api.sock")), 0o660);
    assert_eq!(names(&again), ["s", "vm1"]);
    drop(UnixStream::connect(switch.path("s.sock")).expect("the socket is served again"));
}

#[test]
fn ports_come_and_go_while_it_runs() {
    // In its sandbox nobody but root may look at its descriptors.
    let switch = Switch::with(&["--sandbox", "off"], &TWO, &[]);
    for round in 0..5 {
        for i in 0..4 {
            let port = switch.here(&format!("n{i}=vhost-user:@/n{i}.sock,mode=0660"));
            switch.ask(&["port", "add", &port]);
            assert_eq!(mode(switch.path(&format!("n{i}.sock"))), 0o660);
        }
        assert_eq!(names(&switch), ["vm1", "s", "n0", "n1", "n2", "n3"], "round {round}");
        for i in 0..4 {
            switch.ask(&["port", "del", &format!("n{i}")]);
        }
        assert_eq!(switch.files(), ["api.sock", "s.sock", "vm1.sock"]);
    }
    let count = |what| std::fs::read_dir(format!("/proc/{}/{what}", switch.pid())).unwrap().count();
    // A thread or a connection of before may still be on its way out: then they are fewer
    // afterwards.
    let before = ["task", "fd"].map(count);
    for _ in 0..5 {
        let port = switch.here("n=vhost-user:@/n.sock");
        switch.ask(&["port", "add", &port]);
        switch.ask(&["port", "del", "n"]);
    }
    until("threads to end", || count("task") <= before[0]);
    until("descriptors to be closed", || count("fd") <= before[1]);
}

#[test]
fn wrong_changes_are_refused_and_change_nothing() {
    let switch = Switch::start(&TWO);
    let add = |port: &str| ["port".to_owned(), "add".to_owned(), switch.here(port)];
    let refused = |port: &str, code, said: &str| {
        let words = add(port);
        switch.fails(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, &[said]);
    };
    refused("vm1=vhost-user:@/x.sock", 1, "port vm1: that name is taken");
    refused("vm2=vhost-user:@/vm1.sock", 1, "port vm2: port vm1 is at ");
    refused("vm2=vhost-user:@/none/x.sock", 1, "port vm2: ");
    refused(
        "c=pcap:@/c,ports=vm1+nope",
        2,
        "port c: ports=nope: there is no such port: the ports are s, vm1",
    );
    switch.fails(&["port", "del", "vm9"], 1, &["port vm9: there is none"]);
    switch.fails(&["port", "set", "vm9", "mode=0600"], 1, &["port vm9: there is none"]);
    switch.fails(
        &["port", "set", "vm1", "colour=red"],
        2,
        &["'colour' is not a key of vhost-user"],
    );
    switch.fails(&["port", "set", "vm1", "queues=999"], 2, &["port vm1: queues=999"]);
    switch.fails(&["port", "set", "vm1", "group=no-such-group-here"], 1, &["no-such-group-here"]);
    switch.fails(&["fdb", "add", "52:54:00:00:00:01", "vm9"], 1, &["port vm9: there is none"]);
    switch.fails(&["fdb", "add", "01:00:5e:00:00:01", "vm1"], 2, &["not a unicast address"]);
    switch.fails(&["fdb", "del", "52:54:00:00:00:01"], 1, &["is not known"]);
    switch.fails(&["vm-args", "vm9"], 1, &["port vm9: there is none"]);
    assert_eq!(names(&switch), ["vm1", "s"]);
    assert_eq!(switch.files(), ["api.sock", "s.sock", "vm1.sock"]);
}

#[test]
fn a_capture_file_keeps_what_it_watches_while_ports_come_and_go() {
    let switch = Switch::start(&["c=pcap:@/c,ports=vm1", TWO[0], TWO[1]]);
    switch.fails(&["port", "set", "c", "ports=vm1+c"], 2, &["ports=c: there is no such port"]);
    switch.ask(&["port", "set", "c", "ports=vm1+s"]);
    switch.ask(&["port", "del", "vm1"]);
    switch.ask(&["port", "set", "c", "snaplen=100"]);
    let port = switch.json(&["port", "list"])["ports"][0].clone();
    assert!(port["address"].as_str().unwrap().ends_with(",ports=vm1+s,snaplen=100"), "{port}");
}

#[test]
fn a_relative_place_means_the_directory_of_who_types_it() {
    let switch = Switch::start(&[]);
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_vmlan"))
        .args(["port", "add", "--api", &switch.api(), "vm1=vhost-user:vm1.sock"])
        .current_dir(switch.dir.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(switch.files(), ["api.sock", "vm1.sock"]);
}

#[test]
fn keys_change_at_once_or_by_opening_again() {
    let switch = Switch::start(&TWO);
    let before = std::fs::metadata(switch.path("vm1.sock")).unwrap();
    let port = switch.json(&["port", "set", "vm1", "mode=0666"]);
    assert_eq!(mode(switch.path("vm1.sock")), 0o666);
    assert!(port["address"].as_str().unwrap().ends_with(",mode=0666"));
    let ino = std::os::unix::fs::MetadataExt::ino;
    assert_eq!(ino(&before), ino(&std::fs::metadata(switch.path("vm1.sock")).unwrap()));
    switch.ask(&["port", "set", "vm1", "queues=4", "mac=52:54:00:00:00:07"]);
    assert_eq!(names(&switch), ["vm1", "s"], "its place in the list is kept");
    let args = switch.ask(&["vm-args", "vm1"]);
    assert!(args.contains("queues=4") && args.contains("52:54:00:00:00:07"), "{args}");
    assert_eq!(mode(switch.path("vm1.sock")), 0o666, "the mode is kept");
}

#[test]
fn an_emulated_nic_keeps_its_address_and_its_cable_is_pulled_live() {
    let switch = Switch::start(&["n=vfio-user:@/n.sock,link=down,mode=0660", "v=vhost-user:@/v"]);
    let list = || switch.json(&["port", "list"])["ports"][0].clone();
    let mac = list()["details"]["mac"].as_str().unwrap().to_owned();
    assert!(mac.starts_with("02:"), "{mac}");
    let ino = || std::os::unix::fs::MetadataExt::ino(&switch.path("n.sock").metadata().unwrap());
    let before = ino();
    let address = switch.here("vfio-user:@/n.sock");
    let _guest = Guest::start(&["-i", &address, "-f", "rx"]);
    let link = |word: &str| switch.json(&["port", "set", "n", &format!("link={word}")]);
    until("the guest", || list()["details"].get("memory").is_some());
    assert_eq!(list()["up"], false, "its cable is pulled: {}", list());
    for _ in 0..3 {
        let set = link("up");
        assert!(set["address"].as_str().unwrap().ends_with(",link=up,mode=0660"), "{set}");
        until("the link to come", || list()["up"] == true);
        assert!(link("down")["address"].as_str().unwrap().contains(",link=down"));
        until("the link to go", || list()["up"] == false);
    }
    assert_eq!((ino(), list()["details"]["mac"].as_str()), (before, Some(mac.as_str())));
    assert!(list()["details"].get("memory").is_some(), "the guest was not disturbed");
    switch.fails(&["port", "set", "n", "link=off"], 2, &["link=off: up or down is wanted"]);
    switch.fails(&["port", "set", "v", "link=up"], 2, &["'link' is not a key of vhost-user"]);
    switch.ask(&["port", "set", "n", "mac=02:00:00:00:00:07", "irq_rate_max=8000"]);
    assert_eq!(list()["details"]["mac"], "02:00:00:00:00:07");
}

#[test]
fn addresses_are_pinned_and_forgotten() {
    let switch = Switch::start(&TWO);
    let made = switch.json(&["fdb", "add", "52:54:00:00:00:01", "vm1"]);
    assert_eq!(made["static"], true);
    switch.ask(&["fdb", "add", "52:54:00:00:00:02", "s"]);
    let list = switch.json(&["fdb", "list"]);
    assert_eq!(list["entries"].as_array().unwrap().len(), 2);
    assert_eq!(list["entries"][1]["port"], "s");
    switch.ask(&["fdb", "del", "52:54:00:00:00:02"]);
    switch.ask(&["port", "del", "vm1"]);
    let list = switch.json(&["fdb", "list"]);
    assert_eq!(
        list["entries"].as_array().unwrap().len(),
        0,
        "what was pinned to a port goes with it"
    );
}

#[test]
fn an_address_is_pinned_in_a_vlan() {
    const MAC: &str = "52:54:00:00:00:01";
    let switch = Switch::start(&[
        "vm=vhost-user:@/vm.sock,vlan=10",
        "up=vhost-user:@/up.sock,trunk=10+20",
        "isp=stream:@/isp.sock,qinq=10",
        "open=stream:@/open.sock",
    ]);
    switch.ask(&["fdb", "add", MAC, "vm"]);
    switch.fails(&["fdb", "add", MAC, "up"], 2, &["port up: it is in several VLANs (trunk=10+20)"]);
    switch.fails(&["fdb", "add", MAC, "up", "--vlan", "30"], 2, &["it is not in VLAN 30"]);
    switch.fails(&["fdb", "add", MAC, "open", "--vlan", "10"], 2, &["it has no VLAN settings"]);
    let made = switch.json(&["fdb", "add", MAC, "up", "--vlan", "20"]);
    assert_eq!((made["vlan"].as_u64(), made["qinq"].as_u64()), (Some(20), None));
    let made = switch.json(&["fdb", "add", MAC, "isp"]);
    assert_eq!((made["vlan"].as_u64(), made["qinq"].as_u64()), (None, Some(10)));
    let table = switch.ask(&["fdb", "list"]);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = table.lines().map(words).collect();
    assert_eq!(lines[0], ["MAC", "VLAN", "PORT", "AGE"]);
    assert_eq!(lines[1], [MAC, "10", "vm", "pinned"], "{table}");
    assert_eq!(lines[2], [MAC, "20", "up", "pinned"]);
    assert_eq!(lines[3], [MAC, "qinq", "10", "isp", "pinned"]);
    let count = || switch.json(&["fdb", "list"])["entries"].as_array().unwrap().len();
    switch.fails(&["fdb", "del", MAC, "--vlan", "30"], 1, &["is not known in VLAN 30"]);
    switch.fails(&["fdb", "del", MAC, "--vlan", "0"], 2, &["VLAN 0: say one from 1 to 4094"]);
    switch.ask(&["fdb", "del", MAC, "--vlan", "20"]);
    assert_eq!(count(), 2);
    switch.ask(&["fdb", "del", MAC]);
    assert_eq!(count(), 0, "in every VLAN");
}

#[test]
fn the_service_manager_hears_of_start_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("notify");
    let manager = UnixDatagram::bind(&place).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let hear = || {
        let mut buffer = [0; 512];
        let n = manager.recv(&mut buffer).expect("the service manager hears nothing");
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    let mut switch = Switch::with(&[], &TWO, &[("NOTIFY_SOCKET", &place)]);
    let said = hear();
    assert!(said.contains("READY=1"), "{said}");
    switch.signal("TERM");
    assert!(hear().contains("STOPPING=1"));
    assert_eq!(switch.wait(), Some(0));
}

#[test]
fn an_idle_switch_uses_no_time() {
    let switch = Switch::start(&TWO);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", switch.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // What is still under way at first is not in all of them.
    let idle = (0..3).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        let before = ticks();
        std::thread::sleep(Duration::from_secs(3));
        ticks() == before
    });
    assert!(idle);
}

/// How often the worker woke in each second while a guest sat idle at `address`, at least and at
/// most.
fn wakes(address: &str) -> (f64, f64) {
    let switch = Switch::start(&[&format!("n={address}"), "q=vfio-user:@/q.sock,doorbell=mapped"]);
    let _guest = Guest::start(&["-i", &switch.here("vfio-user:@/n.sock"), "-f", "rx"]);
    until("the guest", || switch.json(&["port", "list"])["ports"][0]["up"] == true);
    let mut rates: Vec<_> = Vec::new();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        let (before, since) = (sleeps(switch.pid(), "worker0"), Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        let woken = u32::try_from(sleeps(switch.pid(), "worker0") - before).unwrap();
        rates.push(f64::from(woken) / since.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    (rates[0], rates[2])
}

#[test]
fn an_idle_nic_wakes_nobody_unless_its_doorbells_are_mapped() {
    // The guest may still be settling down at first.
    assert!(wakes("vfio-user:@/n.sock").0 < 0.5);
    let (least, most) = wakes("vfio-user:@/n.sock,doorbell=mapped,poll_idle=20ms");
    assert!(least <= 55.0 && most > 0.0, "about 50 looks: {least} to {most}");
}

/// Whether descriptors are passed on the kernel decides by the limit of who sends them.
#[test]
fn keepers_may_have_as_many_files_open_as_their_switch() {
    let low = ["sh", "-c", "ulimit -Sn 256; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vmlan")];
    let switch = Switch::within(tempfile::tempdir().unwrap(), &low, &[], &TWO);
    let read = |path: String| std::fs::read_to_string(path).unwrap();
    let (mut all, mut seen) = (vec![switch.pid()], 0);
    while seen < all.len() {
        let pid = all[seen];
        let limits = read(format!("/proc/{pid}/limits"));
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let both: Vec<_> = files.split_whitespace().take(2).collect();
        assert_eq!(both[0], both[1], "{}", read(format!("/proc/{pid}/comm")));
        let children = read(format!("/proc/{pid}/task/{pid}/children"));
        all.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        seen += 1;
    }
    assert!(seen >= 6, "two keepers, two spawners, a starter");
}
