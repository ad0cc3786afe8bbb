//! What is changed while a switch runs outlives it, if that has `--hold-for`.

mod common;

use common::{Switch, until};
use serde_json::Value;

const HELD: [&str; 2] = ["--hold-for", "60"];
const PORTS: [&str; 3] = ["a=vhost-user:@/a.sock", "b=stream:@/b.sock", "c=stream:@/c.sock"];

/// Another switch in its place, once that has ended: with these ports.
fn again(switch: Switch, signal: &str, ports: &[&str]) -> Switch {
    switch.signal(signal);
    Switch::within(switch.into_dir(), &[env!("CARGO_BIN_EXE_vmlan")], &HELD, ports)
}

/// All that can be changed.
fn seen(switch: &Switch) -> [Value; 4] {
    let mut sflow = switch.json(&["sflow", "show"]);
    for count in ["samples", "lost", "datagrams", "failed"] {
        sflow[count].take();
    }
    let port = |port: &Value| format!("{}={}", port["name"], port["address"]);
    let list = switch.json(&["port", "list"]);
    let ports: Vec<_> = list["ports"].as_array().unwrap().iter().map(port).collect();
    let [limits, fdb] = [["limit", "list"], ["fdb", "list"]].map(|words| switch.json(&words));
    [ports.into(), limits, fdb, sflow]
}

fn log(switch: &Switch) -> String {
    std::fs::read_to_string(switch.path("log")).unwrap_or_default()
}

#[test]
fn changes_outlive_a_kill_and_a_restart() {
    let mut switch = Switch::with(&HELD, &PORTS, &[]);
    let first = seen(&switch);
    for words in [
        &["limit", "set", "tenant", "rate=1Gbit"][..],
        &["port", "set", "a", "from_rate=5Mbit", "to_limit=tenant"],
        &["port", "set", "b", "mode=0660"],
        &["port", "del", "c"],
        &["port", "add", "x=vhost-user:@/x.sock,queues=2"],
        &["fdb", "add", "52:54:00:00:00:07", "x"],
        &["sflow", "set", "collector=127.0.0.1:6343"],
    ] {
        let words: Vec<_> = words.iter().map(|word| switch.here(word)).collect();
        switch.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let changed = seen(&switch);
    assert!(changed.iter().zip(&first).all(|(now, then)| now != then), "{changed:?}");
    for signal in ["KILL", "TERM", "KILL"] {
        switch = again(switch, signal, &PORTS);
        assert_eq!(seen(&switch), changed, "{}", log(&switch));
    }
    // What is taken back does not come again.
    switch.ask(&["fdb", "del", "52:54:00:00:00:07"]);
    switch.ask(&["port", "del", "x"]);
    switch = again(switch, "KILL", &PORTS);
    assert!(!switch.ask(&["port", "list"]).contains("x.sock"));
    // Nor does anything behind an end for good.
    switch.ask(&["stop", "--for-good"]);
    until("the holder's end", || !switch.path("api.sock.hold").exists());
    let dir = switch.into_dir();
    let switch = Switch::within(dir, &[env!("CARGO_BIN_EXE_vmlan")], &HELD, &PORTS);
    assert_eq!(seen(&switch), first);
    switch.ask(&["stop", "--for-good"]);
}

#[test]
fn what_is_configured_anew_counts() {
    let mut switch = Switch::with(&HELD, &PORTS, &[]);
    switch.ask(&["port", "set", "a", "from_rate=5Mbit"]);
    switch.ask(&["port", "set", "b", "from_rate=5Mbit"]);
    switch.ask(&["port", "add", &switch.here("x=stream:@/x.sock")]);
    let anew = ["a=vhost-user:@/a.sock,from_rate=7Mbit", "b=stream:@/b.sock", "n=stream:@/n.sock"];
    switch = again(switch, "KILL", &anew);
    let list = switch.json(&["port", "list"]);
    let address = |n: usize| list["ports"][n]["address"].as_str().unwrap().to_owned();
    let places = ["a.sock,from_rate=7Mbit", "b.sock,from_rate=5Mbit", "n.sock", "x.sock"];
    assert!((0..4).all(|n| address(n).ends_with(places[n])), "{list}");
    // Its place is another port's now.
    switch = again(switch, "KILL", &["a=vhost-user:@/a.sock", "y=stream:@/x.sock"]);
    let list = switch.json(&["port", "list"]);
    assert_eq!(list["ports"].as_array().unwrap().len(), 2, "{list}");
    assert!(log(&switch).contains("what it was told while the last switch ran is left out"));
    switch.ask(&["stop", "--for-good"]);
}

/// Something that has gone was referred to: that costs who did at most, and nothing else.
#[test]
fn what_does_not_go_together_any_more_costs_nothing_else() {
    let mut switch = Switch::with(&HELD, &PORTS, &[]);
    for words in [
        &["port", "add", "x=stream:@/x.sock"][..],
        &["port", "add", "cap=pcap:@/cap.pcapng,ports=x"],
        &["port", "del", "x"],
        &["port", "add", "y=stream:@/y.sock,macs=52:54:00:00:00:07"],
        &["port", "set", "a", "from_rate=5Mbit"],
    ] {
        let words: Vec<_> = words.iter().map(|word| switch.here(word)).collect();
        switch.ask(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    switch = again(switch, "KILL", &PORTS);
    let list = switch.ask(&["port", "list"]);
    assert!(["cap.pcapng", "y.sock", "5Mbit"].iter().all(|it| list.contains(it)), "{list}");
    // The configuration gives to another what one had that was added.
    let other = [PORTS[0], "b=stream:@/b.sock,macs=52:54:00:00:00:07"];
    switch = again(switch, "KILL", &other);
    let list = switch.ask(&["port", "list"]);
    assert!(list.contains("cap.pcapng") && list.contains("5Mbit"), "{list}");
    assert!(!list.contains("y.sock"), "{list}");
    assert!(log(&switch).contains("port y: "), "{}", log(&switch));
    switch.ask(&["stop", "--for-good"]);
}

/// A port that was added cannot be opened any more, one that was changed only as it is configured.
#[test]
fn what_cannot_be_opened_is_left_out() {
    let mut switch = Switch::with(&HELD, &PORTS, &[]);
    std::fs::create_dir(switch.path("sub")).unwrap();
    let allowed = [&HELD[..], &["--sandbox", "off"]].concat();
    switch.signal("TERM");
    let vmlan = env!("CARGO_BIN_EXE_vmlan");
    switch = Switch::within(switch.into_dir(), &[vmlan], &allowed, &PORTS);
    switch.ask(&["port", "add", &switch.here("x=stream:@/sub/x.sock")]);
    switch.ask(&["port", "set", "a", "from_rate=5Mbit"]);
    switch.signal("KILL");
    let dir = switch.into_dir();
    let sub = dir.path().join("sub");
    std::fs::remove_dir_all(&sub).unwrap();
    let mut switch = Switch::within(dir, &[vmlan], &allowed, &PORTS);
    let list = switch.ask(&["port", "list"]);
    assert!(list.contains("5Mbit") && !list.contains("x.sock"), "{list}");
    let said = log(&switch);
    assert!(said.contains("port x: ") && said.contains("is left out"), "{said}");
    // It comes back with its place, unless it is taken away meanwhile.
    std::fs::create_dir(&sub).unwrap();
    for wanted in [true, false] {
        switch.signal("KILL");
        switch = Switch::within(switch.into_dir(), &[vmlan], &allowed, &PORTS);
        assert_eq!(switch.ask(&["port", "list"]).contains("x.sock"), wanted, "{}", log(&switch));
        let _ = switch.run(&["port", "del", "x"]);
    }
    switch.ask(&["stop", "--for-good"]);
}

/// What the file says is the newer word, though it was said before.
#[test]
fn a_file_that_is_taken_back_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("vmlan.toml");
    let write = |key: &str| {
        let text = format!("[port.a]\nkind = \"stream\"\nplace = \"@/a.sock\"\n{key}");
        std::fs::write(&config, text.replace('@', dir.path().to_str().unwrap())).unwrap();
    };
    let words = [&HELD[..], &["--config", config.to_str().unwrap()]].concat();
    let vmlan = env!("CARGO_BIN_EXE_vmlan");
    write("from_rate = \"5Mbit\"\n");
    let mut switch = Switch::with(&words, &[], &[]);
    write("");
    switch.ask(&["apply", config.to_str().unwrap()]);
    switch.ask(&["port", "add", &switch.here("x=stream:@/x.sock")]);
    write("from_rate = \"5Mbit\"\n");
    switch.signal("KILL");
    switch = Switch::within(switch.into_dir(), &[vmlan], &words, &[]);
    let list = switch.ask(&["port", "list"]);
    assert!(list.contains("5Mbit") && list.contains("x.sock"), "{list}");
    // Another file is one change among others.
    let other = dir.path().join("other.toml");
    write("");
    std::fs::rename(&config, &other).unwrap();
    write("from_rate = \"5Mbit\"\n");
    switch.ask(&["apply", other.to_str().unwrap()]);
    switch.signal("KILL");
    switch = Switch::within(switch.into_dir(), &[vmlan], &words, &[]);
    assert!(!switch.ask(&["port", "list"]).contains("5Mbit"));
    switch.ask(&["stop", "--for-good"]);
}

#[test]
fn without_a_holder_all_is_as_configured() {
    let mut switch = Switch::with(&[], &PORTS, &[]);
    let first = seen(&switch);
    switch.ask(&["port", "set", "a", "from_rate=5Mbit"]);
    switch.ask(&["port", "add", &switch.here("x=stream:@/x.sock")]);
    switch.signal("KILL");
    let vmlan = env!("CARGO_BIN_EXE_vmlan");
    switch = Switch::within(switch.into_dir(), &[vmlan], &[], &PORTS);
    assert_eq!(seen(&switch), first);
}
