//! What is explained of a frame is what becomes of it, and what limits did is told.

mod common;

use common::{Guest, Switch, fails, until, vmlan};
use serde_json::{Value, json};

const MAC_A: &str = "52:54:00:00:00:0a";
const MAC_B: &str = "52:54:00:00:00:0b";
const FRAMES: u64 = 100;

struct Rig {
    switch: Switch,
    _receiver: Guest,
}

impl Rig {
    fn new() -> Self {
        let switch = Switch::start(&["a=vhost-user:@/a.sock", "b=vhost-user:@/b.sock"]);
        let b = switch.here("vhost-user:@/b.sock");
        let receiver = Guest::start(&["-i", &b, "-f", "rx", "-s", MAC_B]);
        let rig = Self { switch, _receiver: receiver };
        // It announces itself.
        until("the receiver", || rig.switch.ask(&["fdb", "list"]).contains(MAC_B));
        rig
    }

    fn port(&self, name: &str) -> Value {
        let stats = self.switch.json(&["stats"]);
        let ports = stats["ports"].as_array().unwrap();
        ports.iter().find(|p| p["name"] == name).unwrap().clone()
    }

    fn set(&self, words: &[&str]) {
        self.switch.ask(words);
    }

    /// What would become of a frame of `a`, as a guest with this address sends it.
    fn explain(&self, ip: &str) -> Value {
        self.switch.json(&[
            "explain",
            "--port",
            "a",
            "--src",
            MAC_A,
            "--dst",
            MAC_B,
            "--ip-src",
            ip,
            "--ip-dst",
            "10.0.0.2",
            "--udp",
            "1234:1234",
        ])
    }

    /// Sends frames like that.
    fn send(&self, ip: &str) {
        let a = self.switch.here("vhost-user:@/a.sock");
        let n = FRAMES.to_string();
        let out = vmlan(&[
            "pkt-gen", "-i", &a, "-f", "tx", "-n", &n, "-s", MAC_A, "-d", MAC_B, "--src-ip", ip,
            "--dst-ip", "10.0.0.2",
        ]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_refusal_is_foretold_with_its_key() {
    let rig = Rig::new();
    let told = rig.explain("10.0.0.9");
    assert_eq!(told["outcome"], "delivered", "{told}");
    assert_eq!(told["to"], json!([{"port": "b", "form": "untagged"}]));
    rig.set(&["port", "set", "a", "ips=10.0.0.1"]);
    let told = rig.explain("10.0.0.9");
    let deciding = [&told["outcome"], &told["reason"], &told["by"], &told["key"]];
    assert_eq!(deciding, ["refused", "spoofed-ip", "a", "ips=10.0.0.1"], "{told}");
    assert!(told["fix"].as_str().unwrap().contains("ips=10.0.0.1+10.0.0.9"), "{told}");
    assert_eq!(rig.port("a")["drops"], json!({}), "asking counts nothing");
    rig.send("10.0.0.9");
    assert_eq!(rig.port("a")["drops"]["spoofed-ip"], FRAMES);
    assert_eq!(rig.explain("10.0.0.1")["outcome"], "delivered");
    rig.send("10.0.0.1");
    until("the rest", || rig.port("b")["out"]["frames"] == FRAMES);
    assert_eq!(rig.port("a")["drops"]["spoofed-ip"], FRAMES);
    let text = rig.switch.ask(&["explain", "--port", "a", "ffffffffffff 52540000000a 88b5 00"]);
    assert!(text.contains("not understood to its end"), "{text}");
    let text = rig.switch.ask(&["explain", "--port", "a", "--src", MAC_A, "--dst", MAC_B]);
    let fix = format!("`vmlan --api {} port set a ips=`", rig.switch.api());
    assert!(text.contains(&fix) && text.contains("--ip-src"), "{text}");
    rig.set(&["port", "set", "a", "ips=", "from_frames=1", "from_burst=1s"]);
    let a = rig.switch.here("vhost-user:@/a.sock");
    let _sender = Guest::start(&["-i", &a, "-f", "tx", "-s", MAC_A, "-d", MAC_B]);
    // It takes each token; one may just have come.
    until("a limit that is used up", || {
        let told = rig.explain("10.0.0.1");
        [&told["outcome"], &told["then"]] == ["held", "delivered"]
    });
    rig.set(&["port", "set", "a", "reach=none"]);
    assert_eq!(rig.explain("10.0.0.1")["reason"], "isolated", "though it has no tokens");
    rig.switch.fails(&["explain", "--port", "z", "00"], 1, &["port z: there is none"]);
    fails(&["explain", "--port", "a", "xy"], 2, &["'x' is not a hex digit"]);
    fails(&["explain", "--port", "a", "--src", MAC_A], 2, &["--dst"]);
}

#[test]
fn limits_tell_what_they_did() {
    let rig = Rig::new();
    rig.set(&["limit", "set", "tenant", "frames=1M"]);
    rig.set(&["port", "set", "b", "to_frames=10", "to_burst=100ms", "to_limit=tenant"]);
    rig.send("10.0.0.1");
    let to = || rig.port("b")["limits"]["to"].clone();
    until("all frames", || to()["offered"] == FRAMES);
    let (to, b) = (to(), rig.port("b"));
    let dropped = to["dropped"].as_u64().unwrap();
    assert!(dropped > FRAMES / 2 && to["passed"] == FRAMES - dropped, "{to}");
    assert_eq!(b["drops"]["over-limit"], dropped);
    assert!(rig.port("a")["work_ns"].as_u64() > Some(0));
    let shared = rig.switch.json(&["stats"])["limits"].clone();
    assert_eq!(shared[0]["name"], "tenant");
    assert_eq!(shared[0]["ports"], json!(["b"]));
    assert_eq!((&shared[0]["passed"], &shared[0]["dropped"]), (&to["passed"], &json!(0)));
    let text = rig.switch.ask(&["stats"]);
    assert!(text.contains("\nLIMITS ") && text.contains("\ntenant "), "{text}");
    assert!(text.contains(&format!("over-limit {dropped}")), "{text}");
}
