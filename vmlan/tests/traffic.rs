//! Frames pass, and everything that counts them agrees with its description.

mod common;

use common::{Guest, Switch, schema, until, vmlan};
use serde_json::Value;

const TWO: [&str; 3] =
    ["a=vhost-user:@/a.sock", "b=vhost-user:@/b.sock", "cap=pcap:@/c.pcapng,snaplen=64"];
const MAC_A: &str = "52:54:00:00:00:0a";
const MAC_B: &str = "52:54:00:00:00:0b";

fn port(stats: &Value, name: &str) -> Value {
    let ports = stats["ports"].as_array().unwrap();
    ports.iter().find(|p| p["name"] == name).unwrap().clone()
}

fn is_listed(fdb: &Value, mac: &str, port: &str) -> bool {
    let entries = fdb["entries"].as_array().unwrap();
    entries.iter().any(|e| e["mac"] == mac && e["port"] == port)
}

/// Sends 10,000 frames from `a` to `b`.
fn traffic(switch: &Switch) -> Guest {
    let b = switch.here("vhost-user:@/b.sock");
    let receiver = Guest::start(&["-i", &b, "-f", "rx", "-s", MAC_B]);
    until("the receiver", || port(&switch.json(&["stats"]), "b")["up"] == true);
    let a = switch.here("vhost-user:@/a.sock");
    let out = vmlan(&[
        "pkt-gen", "-i", &a, "-f", "tx", "-n", "10000", "-l", "100", "-s", MAC_A, "-d", MAC_B,
        "-R", "200k", "--json",
    ]);
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(out.status.success() && summary["frames"] == 10_000, "{summary}");
    receiver
}

#[test]
fn stats_and_api_are_as_described() {
    // Nothing is lost because the receiver gets too little of the machine.
    let switch = Switch::with(&["--full-wait", "10000000"], &TWO, &[]);
    let _receiver = traffic(&switch);
    until("all frames", || {
        port(&switch.json(&["stats"]), "b")["out"]["frames"].as_u64() >= Some(10_000)
    });
    let stats = switch.json(&["stats"]);
    let (a, b) = (port(&stats, "a"), port(&stats, "b"));
    assert_eq!(a["kind"], "vhost-user");
    assert_eq!(a["in"]["frames"], 10_000, "{stats}");
    assert_eq!(a["in"]["bytes"], 1_000_000);
    assert!(b["out"]["frames"].as_u64() >= Some(10_000), "{stats}");
    assert!(b["interrupts"].as_u64() > Some(0), "{stats}");
    let ports = switch.ask(&["port", "list"]);
    assert!(ports.contains("features ") && ports.contains(" MRG_RXBUF "), "{ports}");
    assert!(!ports.contains("0x"), "{ports}");
    let list = switch.json(&["port", "list"]);
    let hex = list["ports"][1]["details"]["features-hex"].as_str();
    assert!(hex.is_some_and(|h| h.starts_with("0x")), "{list}");
    let fdb = switch.json(&["fdb", "list"]);
    assert!(is_listed(&fdb, MAC_B, "b"), "{fdb}");
    until("the sender, which has left", || !is_listed(&switch.json(&["fdb", "list"]), MAC_A, "a"));
    switch.ask(&["fdb", "add", "52:54:00:00:00:99", "a"]);
    describes_itself(&switch);
    // Its writer gathers for a while.
    let capture = || std::fs::metadata(switch.path("c.pcapng")).unwrap().len();
    until("the capture file", || capture() > 64 * 10_000);
}

/// However a guest leaves its port, its learned addresses go with it and the pinned ones stay.
#[test]
fn a_guest_that_leaves_takes_its_addresses_with_it() {
    let ports = ["a=vhost-user:@/a.sock", "b=vfio-user:@/b.sock", "c=vfio-user:@/c.sock"];
    let switch = Switch::start(&ports);
    switch.ask(&["fdb", "add", "52:54:00:00:00:99", "a"]);
    let guest = |port: &str, kind: &str, mac: &str| {
        let address = switch.here(&format!("{kind}:@/{port}.sock"));
        let guest = Guest::start(&["-i", &address, "-f", "rx", "-s", mac]);
        // It announces itself.
        until("the guest", || is_listed(&switch.json(&["fdb", "list"]), mac, port));
        guest
    };
    let gone = |mac: &str, port: &str| {
        until(port, || !is_listed(&switch.json(&["fdb", "list"]), mac, port));
    };
    let (a, b) = (guest("a", "vhost-user", MAC_A), guest("b", "vfio-user", MAC_B));
    drop(a);
    gone(MAC_A, "a");
    drop(b);
    gone(MAC_B, "b");
    let _c = guest("c", "vfio-user", MAC_B);
    switch.ask(&["port", "set", "c", "link=down"]);
    gone(MAC_B, "c");
    assert!(is_listed(&switch.json(&["fdb", "list"]), "52:54:00:00:00:99", "a"), "pinned");
    switch.ask(&["port", "del", "a"]);
    assert!(!is_listed(&switch.json(&["fdb", "list"]), "52:54:00:00:00:99", "a"));
}

#[test]
fn an_emulated_nic_counts_its_registers_and_interrupts() {
    let switch = Switch::start(&["a=vfio-user:@/a.sock", "b=vfio-user:@/b.sock,doorbell=mapped"]);
    let (a, b) = (switch.here("vfio-user:@/a.sock"), switch.here("vfio-user:@/b.sock"));
    let _receiver = Guest::start(&["-i", &b, "-f", "rx", "-s", MAC_B]);
    until("the receiver", || port(&switch.json(&["stats"]), "b")["up"] == true);
    let sent = ["-f", "tx", "-n", "2000", "-l", "100", "-s", MAC_A, "-d", MAC_B, "-R", "10k"];
    let out = vmlan(&[&["pkt-gen", "-i", &a], &sent[..]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    until("the receiver to look", || {
        port(&switch.json(&["stats"]), "b")["device"]["registers"]["ICR"].is_object()
    });
    let stats = switch.json(&["stats"]);
    let (a, b) = (&port(&stats, "a")["device"], &port(&stats, "b")["device"]);
    assert!(a["registers"]["TDT"]["writes"].as_u64() >= Some(2000), "one for each frame: {a}");
    assert!(b["registers"]["RDT"]["writes"].as_u64() < Some(10), "they are mapped: {b}");
    assert_eq!(a["statistics"]["GPTC"], 2000, "{a}");
    assert!(b["delivered"].as_u64() > Some(0) && b["registers"]["ICR"].is_object(), "{b}");
    let near_one = a["frames_per_doorbell"].as_f64().unwrap();
    assert!((0.9..=1.1).contains(&near_one), "{near_one}");
    let root = serde_json::from_str(&http(&switch, "GET", "/v1/openapi.json", "").1).unwrap();
    let described = |path: &str, name: &str| {
        let (code, text) = http(&switch, "GET", path, "");
        assert_eq!(code, 200, "{path}: {text}");
        let schema = serde_json::json!({ "$ref": format!("#/components/schemas/{name}") });
        schema::check(&serde_json::from_str(&text).unwrap(), &schema, &root)
            .unwrap_or_else(|e| panic!("{path}: {e}: {text}"));
    };
    described("/v1/stats", "Stats");
    described("/v1/ports", "PortList");
    described("/v1/process", "Process");
    described("/v1/vm-args/a", "VmArgs");
    described("/v1/vm-args/b?vmm=libvirt&qemu=10.1.1", "VmArgs");
    assert_eq!(http(&switch, "GET", "/v1/vm-args/a?qemu=9.2", "").0, 400);
    let text = switch.ask(&["stats"]);
    assert!(text.contains("\nNIC ") && text.contains("TDT 2,00"), "{text}");
    let (_, metrics) = http(&switch, "GET", "/metrics", "");
    let line =
        "vmlan_port_nic_register_accesses_total{port=\"a\",kind=\"vfio-user\",register=\"TDT\"";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn the_log_tells_once_when_a_driver_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let log = std::fs::File::create(place("log")).unwrap();
    let address = format!("vhost-user:{}", place("a.sock"));
    let mut switch = std::process::Command::new(env!("CARGO_BIN_EXE_vmlan"))
        .args(["switch", "--api", &place("api.sock"), &format!("a={address}")])
        .env("VMLAN_LOG", "info")
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let guest = vmlan(&["pkt-gen", "-i", &address, "-f", "rx", "-T", "0.2"]);
    let read = || std::fs::read_to_string(place("log")).unwrap();
    until("its end to be logged", || read().contains("port a: the front end closed"));
    switch.kill().unwrap();
    switch.wait().unwrap();
    assert!(guest.status.success(), "{}", String::from_utf8_lossy(&guest.stderr));
    let told = read().matches("port a: a front end has connected and its driver is ready").count();
    assert_eq!(told, 1, "{}", read());
}

#[test]
fn gateways_and_what_others_need_are_as_described() {
    let ports = [
        "net=nat:10.77.0.0/24",
        "a=stream:@/a,macs=52:54:00:00:00:97,member=web",
        "b=stream:@/b,reach=web",
    ];
    let switch = Switch::start(&ports);
    let root = description(&switch);
    let stats = fits(&switch, &root, "GET", "/v1/stats", "/v1/stats", "", 200);
    assert!(port(&stats, "net")["gateway"].is_object(), "{stats}");
    let conflict = |method, template, path, body| {
        fits(&switch, &root, method, template, path, body, 409);
    };
    conflict("DELETE", "/v1/ports/{name}", "/v1/ports/a", "");
    conflict("PATCH", "/v1/ports/{name}", "/v1/ports/a", r#"{"member":null}"#);
    let mac = r#"{"mac":"52:54:00:00:00:97","port":"b"}"#;
    conflict("POST", "/v1/fdb", "/v1/fdb", mac);
    conflict("DELETE", "/v1/fdb/{mac}", "/v1/fdb/52:54:00:00:00:97", "");
}

fn description(switch: &Switch) -> Value {
    serde_json::from_str(&http(switch, "GET", "/v1/openapi.json", "").1).unwrap()
}

/// The answer, which has `status`, fits the schema that `root` gives for it.
fn fits(
    switch: &Switch,
    root: &Value,
    method: &str,
    template: &str,
    path: &str,
    body: &str,
    status: u16,
) -> Value {
    let (code, text) = http(switch, method, path, body);
    assert_eq!(code, status, "{method} {path}: {text}");
    let answers = &root["paths"][template][method.to_lowercase()]["responses"];
    let mut answer = &answers[status.to_string()];
    assert!(answer.is_object(), "{method} {template} does not describe {status}");
    if let Some(target) = answer["$ref"].as_str() {
        answer = root.pointer(target.trim_start_matches('#')).unwrap();
    }
    let schema = &answer["content"]["application/json"]["schema"];
    if schema.is_null() {
        assert!(text.is_empty(), "{method} {path}: {text}");
        return Value::Null;
    }
    let value: Value = serde_json::from_str(&text).unwrap();
    schema::check(&value, schema, root).unwrap_or_else(|e| panic!("{method} {path}: {e}: {text}"));
    value
}

/// Every answer of the running switch fits the schema that the description gives for it.
fn describes_itself(switch: &Switch) {
    let root = description(switch);
    let fits = |method: &str, template: &str, path: &str, body: &str, status: u16| {
        fits(switch, &root, method, template, path, body, status);
    };
    let new = format!(r#"{{"name":"n","address":"stream:{}"}}"#, switch.here("@/n.sock"));
    fits("GET", "/v1/ports", "/v1/ports", "", 200);
    fits("POST", "/v1/ports", "/v1/ports", &new, 201);
    fits("POST", "/v1/ports", "/v1/ports", &new, 409);
    fits("POST", "/v1/ports", "/v1/ports", "{}", 400);
    fits("GET", "/v1/ports/{name}", "/v1/ports/n", "", 200);
    fits("PATCH", "/v1/ports/{name}", "/v1/ports/n", r#"{"mode":"0660"}"#, 200);
    fits("PATCH", "/v1/ports/{name}", "/v1/ports/n", r#"{"mode":true}"#, 400);
    fits("DELETE", "/v1/ports/{name}", "/v1/ports/n", "", 204);
    fits("DELETE", "/v1/ports/{name}", "/v1/ports/n", "", 404);
    fits("GET", "/v1/fdb", "/v1/fdb", "", 200);
    fits("POST", "/v1/fdb", "/v1/fdb", r#"{"mac":"52:54:00:00:00:98","port":"a"}"#, 201);
    fits("POST", "/v1/fdb", "/v1/fdb", r#"{"mac":"52:54:00:00:00:98","port":"z"}"#, 404);
    fits("POST", "/v1/fdb", "/v1/fdb", r#"{"mac":"52:54:00:00:00:98","port":"a","vlan":1}"#, 400);
    fits("DELETE", "/v1/fdb/{mac}", "/v1/fdb/52:54:00:00:00:98?vlan=9", "", 404);
    fits("DELETE", "/v1/fdb/{mac}", "/v1/fdb/52:54:00:00:00:98?vlan=x", "", 400);
    fits("DELETE", "/v1/fdb/{mac}", "/v1/fdb/52:54:00:00:00:98", "", 204);
    fits("GET", "/v1/stats", "/v1/stats", "", 200);
    let explain = |body, status| fits("POST", "/v1/explain", "/v1/explain", body, status);
    explain(r#"{"port":"a","frame":"ffffffffffff52540000000a88b500"}"#, 200);
    explain(r#"{"port":"a","frame":"ffffffffffff01540000000a88b500"}"#, 200);
    explain(r#"{"port":"z","frame":"00"}"#, 404);
    explain(r#"{"port":"cap","frame":"00"}"#, 400);
    fits("GET", "/v1/vm-args/{name}", "/v1/vm-args/a?vmm=libvirt", "", 200);
    fits("GET", "/v1/vm-args/{name}", "/v1/vm-args/cap", "", 400);
    let (code, metrics) = http(switch, "GET", "/metrics", "");
    assert_eq!(code, 200);
    assert!(
        metrics.contains("vmlan_port_in_frames_total{port=\"a\",kind=\"vhost-user\"} 10000\n"),
        "{metrics}"
    );
}

/// One plain request, independent of our own client.
fn http(switch: &Switch, method: &str, path: &str, body: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(switch.api()).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: \
            {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[test]
fn ports_come_and_go_under_traffic() {
    let switch = Switch::start(&TWO);
    let (a, b) = (switch.here("vhost-user:@/a.sock"), switch.here("vhost-user:@/b.sock"));
    let _receiver = Guest::start(&["-i", &b, "-f", "rx", "-s", MAC_B]);
    until("the receiver", || port(&switch.json(&["stats"]), "b")["up"] == true);
    let _sender = Guest::start(&["-i", &a, "-f", "tx", "-s", MAC_A, "-d", MAC_B, "-R", "50k"]);
    let out = || port(&switch.json(&["stats"]), "b")["out"]["frames"].as_u64().unwrap();
    until("traffic", || out() > 1000);
    for i in 0..5 {
        let before = out();
        let new = switch.here(&format!("n{i}=vhost-user:@/n{i}.sock"));
        switch.ask(&["port", "add", &new]);
        switch.ask(&["port", "del", &format!("n{i}")]);
        until("traffic to go on", || out() > before + 1000);
    }
    // The sender's own port goes: it ends, or waits; the switch and the receiver stay.
    switch.ask(&["port", "del", "a"]);
    assert_eq!(port(&switch.json(&["stats"]), "b")["up"], true);
}

#[test]
fn addresses_age_and_then_nobody_wakes_up() {
    let switch = Switch::with(&["--ageing", "1"], &TWO, &[]);
    let receiver = traffic(&switch);
    drop(receiver);
    let entries = || switch.json(&["fdb", "list"])["entries"].as_array().unwrap().len();
    until("the addresses to be forgotten", || entries() == 0);
    // With no port up and no address learned, even ageing 30 times a second must stop.
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", switch.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
        line.rsplit('\t').next().unwrap().parse::<u64>().unwrap()
    };
    until("the control thread to sleep", || {
        let before = switches();
        std::thread::sleep(std::time::Duration::from_secs(1));
        switches() == before
    });
}

#[test]
fn stats_are_watched() {
    use std::io::BufRead;
    let switch = Switch::start(&TWO);
    let mut watch = std::process::Command::new(env!("CARGO_BIN_EXE_vmlan"))
        .args(["stats", "--watch", "--json", "--api", &switch.api()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(watch.stdout.take().unwrap()).lines();
    for line in lines.take(2) {
        let stats: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(stats["ports"].as_array().unwrap().len(), 3);
    }
    // It has nobody to write to any more, which ends it.
    let _ = watch.kill();
    watch.wait().unwrap();
}

#[test]
fn the_demo_writes_figures_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let figures = demo(dir.path());
    let rows = figures["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|r| r["technique"].as_str().unwrap()).collect();
    let trunk = ["plain", "posted", "burst", "ring-1024", "msi", "msi-unread", "csb", "virtio"];
    assert_eq!(names[..8], trunk);
    assert_eq!(rows.len(), 13);
    for row in rows {
        assert_eq!(row["guest"], "native");
        // How fast it is depends on the machine.
        assert!(row["frames_per_s"].as_f64() > Some(0.0), "{row}");
    }
    assert!(rows[12]["round_trip_us"]["p50"].as_f64() > Some(0.0), "{figures}");
    for (row, base) in rows[1..8].iter().zip(trunk) {
        assert_eq!(row["adds_to"], base);
        assert!(row["accesses_per_kframe"].is_number(), "{figures}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
}

/// What a run of it writes into a file in `dir`.
fn demo(dir: &std::path::Path) -> Value {
    let file = dir.join("demo.json");
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_vmlan"))
        .args(["demo", "--seconds", "1", "--json", file.to_str().unwrap()])
        .env("TMPDIR", dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("vmlan vm-args"));
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(figures["commit"].as_str().is_some_and(|c| !c.is_empty()));
    figures
}
