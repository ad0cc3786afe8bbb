//! What a fabric asks of the switch, over real sockets: nothing is flooded that need not be, guests
//! share an address, and who listens is told.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use common::{Guest, Switch, schema, until, vmlan};
use serde_json::Value;

const MAC_A: &str = "52:54:00:00:00:0a";
const SHARED: &str = "52:54:00:00:00:50";
const NOBODY: &str = "52:54:00:00:00:99";

fn port(switch: &Switch, name: &str) -> Value {
    let stats = switch.json(&["stats"]);
    stats["ports"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap().clone()
}

fn sent_to(switch: &Switch, name: &str) -> u64 {
    port(switch, name)["out"]["frames"].as_u64().unwrap()
}

/// Sends UDP of 200 flows from `a`.
fn send(switch: &Switch, to: &str) {
    let a = switch.here("vhost-user:@/a.sock");
    let out = vmlan(&[
        "pkt-gen",
        "-i",
        &a,
        "-f",
        "tx",
        "-n",
        "400",
        "-R",
        "20k",
        "-s",
        MAC_A,
        "-d",
        to,
        "--src-ip",
        "10.0.0.1-10.0.0.200",
        "--dst-ip",
        "10.0.0.50",
    ]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Events in order, each checked against the API's description.
struct Events(BufReader<UnixStream>, Value);

impl Events {
    fn listen(switch: &Switch) -> Self {
        let mut api = UnixStream::connect(switch.api()).unwrap();
        let ask = |api: &mut UnixStream, path: &str, more: &str| {
            write!(api, "GET {path} HTTP/1.1\r\nhost: vmlan\r\n{more}\r\n").unwrap();
        };
        let mut description = String::new();
        let mut once = UnixStream::connect(switch.api()).unwrap();
        ask(&mut once, "/v1/openapi.json", "connection: close\r\n");
        once.read_to_string(&mut description).unwrap();
        let at = description.find("\r\n\r\n").unwrap();
        let description = serde_json::from_str(&description[at..]).unwrap();
        ask(&mut api, "/v1/events", "");
        let mut all = Self(BufReader::new(api), description);
        assert_eq!(all.next("listening")["event"], "listening");
        all
    }

    /// The next event of this kind; others are passed by.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the events have ended");
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let event: Value = serde_json::from_str(data).unwrap();
            let told = self.1.pointer("/components/schemas/Event").unwrap();
            schema::check(&event, told, &self.1).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }
}

#[test]
fn nothing_is_flooded_that_need_not_be_and_it_is_told() {
    let switch = Switch::start(&[
        "a=vhost-user:@/a.sock,unknown=drop",
        "web1=vhost-user:@/1.sock,team=web,macs=52:54:00:00:00:50",
        "web2=vhost-user:@/2.sock,team=web,macs=52:54:00:00:00:50",
    ]);
    let mut events = Events::listen(&switch);
    let guest = |socket: &str| {
        let address = switch.here(&format!("vhost-user:@/{socket}.sock"));
        Guest::start(&["-i", &address, "-f", "rx", "-s", SHARED])
    };
    let one = guest("1");
    assert_eq!(events.next("port-up")["port"], "web1");
    let two = guest("2");
    assert_eq!(events.next("port-up")["port"], "web2");
    until("both to announce themselves", || {
        ["web1", "web2"].iter().all(|p| port(&switch, p)["in"]["frames"].as_u64() > Some(0))
    });
    let before = [sent_to(&switch, "web1"), sent_to(&switch, "web2")];

    send(&switch, NOBODY);
    assert_eq!(port(&switch, "a")["drops"]["unknown"], 400);
    assert_eq!([sent_to(&switch, "web1"), sent_to(&switch, "web2")], before, "no flood");
    // Guests that announce themselves to nobody have drops, too.
    while events.next("dropped")["reason"] != "unknown" {}

    send(&switch, SHARED);
    let got = || {
        let [b1, b2] = before;
        [sent_to(&switch, "web1") - b1, sent_to(&switch, "web2") - b2]
    };
    until("all frames", || got().iter().sum::<u64>() >= 400);
    let [first, second] = got();
    assert!(first > 100 && second > 100 && first + second == 400, "{first} and {second}");
    let told = switch.json(&[
        "explain",
        "--port",
        "a",
        "--src",
        MAC_A,
        "--dst",
        SHARED,
        "--ip-src",
        "10.0.0.1",
        "--ip-dst",
        "10.0.0.50",
        "--udp",
        "1:2",
    ]);
    let team = told["steps"].as_array().unwrap().iter().any(|s| s["check"] == "team");
    assert!(team && told["outcome"] == "delivered", "{told}");

    drop(two);
    // The sender has gone down, too.
    while events.next("port-down")["port"] != "web2" {}
    let before = sent_to(&switch, "web1");
    send(&switch, SHARED);
    until("all frames at the one that is left", || sent_to(&switch, "web1") - before == 400);
    let generation = switch.json(&["apply", &file(&switch), "--dry-run"])["generation"].clone();
    switch.ask(&["port", "set", "a", "weight=2"]);
    let changed = events.next("port-changed");
    let next = generation.as_u64().map(|n| n + 1);
    assert_eq!((&changed["port"], changed["generation"].as_u64()), (&"a".into(), next));
    let path = file(&switch);
    switch.fails(&["apply", &path, "--generation", "0"], 1, &["has generation", "somebody else"]);
    drop(one);
}

/// What goes round in a loop comes back by an uplink again and again.
#[test]
fn a_storm_is_limited_and_named() {
    let ports = ["a=vhost-user:@/a.sock,broadcast_frames=1", "b=stream:@/b.sock"];
    let switch = Switch::start(&ports);
    let mut events = Events::listen(&switch);
    send(&switch, "ff:ff:ff:ff:ff:ff");
    let told = loop {
        let event = events.next("dropped");
        if event["reason"] == "storm" {
            break event;
        }
    };
    assert_eq!(told["port"], "a");
    let storm = port(&switch, "a")["drops"]["storm"].as_u64();
    assert!(storm > Some(0) && told["count"].as_u64() <= storm, "{told} of {storm:?}");
}

#[test]
fn a_guest_that_is_wider_than_a_link_is_named() {
    let switch = Switch::start(&[
        "a=vhost-user:@/a.sock",
        "b=vhost-user:@/b.sock,mtu=1400",
        "up=stream:@/up.sock,mtu=1450",
    ]);
    let guest = |port: &str, keys: &str| {
        let address = switch.here(&format!("vhost-user:@/{port}.sock{keys}"));
        let guest = Guest::start(&["-i", &address, "-f", "rx"]);
        until("the guest", || port_info(&switch, port)["up"] == true);
        guest
    };
    let warning = |port: &str| port_info(&switch, port)["details"]["warning"].clone();
    let a = guest("a", "");
    let text =
        "its guest was not told an MTU and up carries 1450: see host_mtu in `vmlan vm-args a`";
    assert_eq!(warning("a"), text);
    drop(a);
    until("its end", || port_info(&switch, "a")["up"] == false);
    let _a = guest("a", ",mtu=1450");
    assert!(warning("a").is_null(), "{}", warning("a"));
    let _b = guest("b", ",mtu=1450");
    assert!(warning("b").as_str().unwrap().contains("an MTU of 1450 and b carries 1400"));
    let args = |port: &str| String::from_utf8(switch.run(&["vm-args", port]).stdout).unwrap();
    assert!(args("a").contains(",host_mtu=1450") && args("b").contains(",host_mtu=1400"));
}

fn port_info(switch: &Switch, name: &str) -> Value {
    let list = switch.json(&["port", "list"]);
    list["ports"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap().clone()
}

/// A file with none of the ports.
fn file(switch: &Switch) -> String {
    let path = switch.path("empty.toml");
    std::fs::write(&path, "").unwrap();
    path.to_str().unwrap().to_owned()
}
