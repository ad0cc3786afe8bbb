//! A running switch is made what a file says, while frames pass.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Guest, Switch, until};
use serde_json::{Value, json};

const MAC: [&str; 2] = ["52:54:00:00:00:0a", "52:54:00:00:00:0b"];

fn file(switch: &Switch, text: &str) -> String {
    let path = switch.path("new.toml");
    std::fs::write(&path, switch.here(text)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn apply(switch: &Switch, text: &str) -> Value {
    switch.json(&["apply", &file(switch, text)])
}

fn port(switch: &Switch, name: &str) -> Value {
    let stats = switch.json(&["stats"]);
    let ports = stats["ports"].as_array().unwrap();
    ports.iter().find(|p| p["name"] == name).unwrap().clone()
}

fn frames(switch: &Switch, name: &str) -> u64 {
    port(switch, name)["in"]["frames"].as_u64().unwrap()
}

const A: &str = "[port.a]\naddress = 'vhost-user:@/a.sock'\n";
const B: &str = "[port.b]\nkind = 'vhost-user'\nplace = '@/b.sock'\n";

/// `a` sends to `b`, 20,000 frames a second.
fn traffic(switch: &Switch) -> [Guest; 2] {
    let [a, b] = ["a", "b"].map(|name| switch.here(&format!("vhost-user:@/{name}.sock")));
    let receiver = Guest::start(&["-i", &b, "-f", "rx", "-s", MAC[1]]);
    until("the receiver", || port(switch, "b")["up"] == true);
    let words = ["-i", &a, "-f", "tx", "-R", "20k", "-s", MAC[0], "-d", MAC[1]];
    let sender = Guest::start(&words);
    until("frames", || frames(switch, "a") > 1000);
    [sender, receiver]
}

fn drops(switch: &Switch, name: &str) -> u64 {
    port(switch, name)["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

#[test]
fn a_file_changes_what_differs_while_frames_pass() {
    let switch = Switch::start(&["a=vhost-user:@/a.sock", "b=vhost-user:@/b.sock", "s=stream:@/s"]);
    let _guests = traffic(&switch);
    let text = format!(
        "{A}{B}macs = ['{}']\nfrom_limit = 'gold'\n[port.n]\naddress = \
            'stream:@/s'\n[limit.gold]\nrate = '1Gbit'\n",
        MAC[1]
    );
    let path = file(&switch, &text);
    let told = switch.ask(&["apply", &path, "--dry-run"]);
    let said = format!(
        "port n  would be added\nport b  would be changed: from_limit unset -> gold, macs unset -> \
            {}\nport s  would be removed\n",
        MAC[1]
    );
    assert!(told.contains(&said), "{told}");
    let done = apply(&switch, &text);
    let changes = json!({"b": [
        {"key": "from_limit", "old": null, "new": "gold"},
        {"key": "macs", "old": null, "new": MAC[1]},
    ]});
    let lists = json!({
        "dry_run": false, "added": ["n"], "changed": ["b"], "changes": changes,
        "reopened": [], "removed": ["s"],
        "unchanged": ["a"], "limits_set": ["gold"], "limits_removed": [], "sflow": false,
        "generation": done["generation"],
    });
    assert_eq!(done, lists);
    let fdb = switch.json(&["fdb", "list"]);
    let pinned = fdb["entries"].as_array().unwrap().iter().any(|e| e["static"] == true);
    assert!(pinned, "{fdb}");
    let before = (frames(&switch, "a"), drops(&switch, "a"));
    assert!(port(&switch, "a")["up"] == true && port(&switch, "b")["up"] == true);

    // A file with any error changes nothing.
    for (text, said) in [
        (format!("{A}kind = 'tap'\n"), "new.toml:3: port a: 'kind' stands in the address already"),
        (format!("{B}macs = 'frist'\n"), "new.toml:4: port b: macs=frist: any, first, or MAC"),
        (format!("{A}{B}reach = 'x'\n"), "new.toml:6: port b: reach=x: there is no such group"),
        (
            "[switch]\nworkers = 7\n".to_owned(),
            "new.toml:2: [switch] workers=7: the switch runs with 1",
        ),
        ("[port.a\n".to_owned(), "new.toml:1: "),
    ] {
        switch.fails(&["apply", &file(&switch, &text)], 2, &[said]);
    }
    let fails = format!("{A}[port.x]\naddress = 'stream:@/none/x'\n");
    switch.fails(
        &["apply", &file(&switch, &fails)],
        1,
        &["new.toml:4: port x:", "nothing was changed"],
    );
    assert_eq!(switch.json(&["port", "list"])["ports"].as_array().unwrap().len(), 3);
    until("more frames", || frames(&switch, "a") > before.0 + 2000);
    assert_eq!(drops(&switch, "a"), before.1, "frames were lost on a port that was not changed");

    let nothing = format!("{A}{B}");
    switch.fails(&["limit", "del", "gold"], 1, &["limit gold: b use it"]);
    assert_eq!(apply(&switch, &nothing)["limits_removed"], json!(["gold"]));
}

#[test]
fn the_first_address_counts_until_its_peer_is_gone() {
    let switch =
        Switch::start(&["a=vhost-user:@/a.sock,macs=first", "b=vhost-user:@/b.sock,macs=first"]);
    let a = switch.here("vhost-user:@/a.sock");
    let send = |mac: &str| {
        let words = ["pkt-gen", "-i", &a, "-f", "tx", "-n", "100", "-s", mac, "-d", MAC[1]];
        assert!(common::vmlan(&words).status.success());
    };
    let spoofed = || port(&switch, "a")["drops"]["spoofed-mac"].as_u64().unwrap_or(0);
    // Each time another VM: it is not held to what the last one used.
    for mac in [MAC[0], "52:54:00:00:00:0c", "52:54:00:00:00:0d"] {
        until("the last to go", || port(&switch, "a")["up"] == false);
        send(mac);
    }
    assert_eq!((spoofed(), frames(&switch, "a")), (0, 300));
    switch.ask(&["port", "set", "a", "macs=52:54:00:00:00:0e"]);
    until("the last to go", || port(&switch, "a")["up"] == false);
    send(MAC[0]);
    assert_eq!(spoofed(), 100);
}

/// One request on a connection that stays open; the body of the answer.
fn request(stream: &mut UnixStream, head: &str, body: &str) -> Value {
    let text = format!(
        "{head} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: \
            {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 65536];
    loop {
        let n = stream.read(&mut part).unwrap();
        assert!(n > 0, "hung up: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            assert!(head.starts_with("HTTP/1.1 200"), "{text}");
            return serde_json::from_str(body).unwrap();
        }
    }
}

#[test]
fn many_changes_lose_nothing_elsewhere() {
    let idle = (0..14).map(|i| format!("i{i}=stream:@/i{i}"));
    let ports: Vec<_> = ["a=vhost-user:@/a.sock".to_owned(), "b=vhost-user:@/b.sock".to_owned()]
        .into_iter()
        .chain(idle)
        .collect();
    let switch = Switch::start(&ports.iter().map(String::as_str).collect::<Vec<_>>());
    let _guests = traffic(&switch);
    let mut stream = UnixStream::connect(switch.path("api.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let lost = drops(&switch, "a");
    for i in 0..300 {
        let body = json!({ "to_rate": format!("{}Mbit", 1 + i % 7), "from_frames": null });
        let port = request(&mut stream, "PATCH /v1/ports/i3", &body.to_string());
        assert!(port["address"].as_str().unwrap().contains(&format!("to_rate={}Mbit", 1 + i % 7)));
        let limit =
            request(&mut stream, "PUT /v1/limits/gold", &format!("{{\"frames\":{}}}", i + 1));
        assert_eq!(limit["name"], "gold");
    }
    let text: String = (0..14)
        .map(|i| switch.here(&format!("[port.i{i}]\naddress = 'stream:@/i{i},weight={}'\n", i + 1)))
        .collect();
    for i in 0..50 {
        let gold =
            format!("{}{text}[limit.gold]\nframes = {}\n", switch.here(&format!("{A}{B}")), i + 1);
        let body = json!({ "text": gold, "path": "x" });
        let done = request(&mut stream, "POST /v1/apply", &body.to_string());
        assert!(done["unchanged"].as_array().unwrap().len() >= 2, "{done}");
    }
    assert_eq!(drops(&switch, "a"), lost);
    let before = frames(&switch, "a");
    until("more frames", || frames(&switch, "a") > before + 1000);
}

#[test]
fn what_changes_stands_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let here = |text: &str| text.replace('@', dir.path().to_str().unwrap());
    let log = std::fs::File::create(here("@/log")).unwrap();
    let mut switch = std::process::Command::new(env!("CARGO_BIN_EXE_vmlan"))
        .args(["switch", "--api", &here("@/api"), &here("a=stream:@/a"), &here("b=stream:@/b")])
        .env_remove("VMLAN_LOG")
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let text = here(
        "[port.a]\naddress = 'stream:@/a'\nweight = 3\n[port.b]\naddress = \
            'stream:@/b2'\n[limit.l]\nframes = 7\n",
    );
    std::fs::write(here("@/f"), text).unwrap();
    let api = here("@/api");
    until("the API", || common::vmlan(&["port", "list", "--api", &api]).status.success());
    for words in [
        &["port", "set", "a", "macs=first", "weight=2"][..],
        &["port", "set", "a", "weight=2"],
        &["limit", "set", "gold", "rate=1Mbit"],
        &["limit", "set", "gold", "rate=2Mbit"],
        &["limit", "set", "gold", "rate=2Mbit"],
        &["limit", "del", "gold"],
        &["apply", &here("@/f"), "--dry-run"],
        &["apply", &here("@/f")],
    ] {
        let out = common::vmlan(&[words, &["--api", &api]].concat());
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    switch.kill().unwrap();
    switch.wait().unwrap();
    let log = std::fs::read_to_string(here("@/log")).unwrap();
    let lines: Vec<_> = log.lines().filter(|l| l.contains(" -> ")).collect();
    let wanted = [
        "port a: macs unset -> first, weight unset -> 2",
        "limit gold: unset -> rate=1Mbit burst=10ms",
        "limit gold: rate=1Mbit burst=10ms -> rate=2Mbit burst=10ms",
        "limit gold: rate=2Mbit burst=10ms -> unset",
        "port a: macs first -> unset, weight 2 -> 3",
        &here("port b: place @/b -> @/b2"),
        "limit l: unset -> frames=7 burst=10ms",
    ];
    assert_eq!(lines.len(), wanted.len(), "{log}");
    for (line, wanted) in lines.into_iter().zip(wanted) {
        assert!(line.ends_with(wanted), "{line}: {wanted}");
    }
}
