//! `vmlan load`, the program, over the loopback of a namespace: the responder serves all clients
//! at once, and both ends count the same.

use std::time::Duration;

use serde_json::Value;
use vmlan_tests::{LanHost, NetNs, vmlan_program};

fn json(host: &mut NetNs, command: &str) -> Value {
    let text = host.sh(command).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn one_responder_serves_all_clients() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = NetNs::new(dir.path(), "host", 1).unwrap();
    let load = format!("{} load", vmlan_program().display());
    let place = dir.path().display();
    // What the responder says comes to files; it is there when its first line is.
    let serve = format!("{load} -f responder --json > {place}/out 2> {place}/err");
    host.sh(&format!("{serve} & echo $! > {place}/pid")).unwrap();
    let ready = format!("until grep -q ready {place}/err; do sleep 0.05; done");
    assert_eq!(host.run(&ready, Duration::from_secs(60)).unwrap().code, 0);
    let to = "--to 127.0.0.1 --json -T 60 2> /dev/null";
    for (workload, options, messages) in [
        ("udp-rr", "-n 100", 100),
        ("udp-rr", "-n 10 -l 1400", 10),
        ("tcp-rr", "-n 100", 100),
        ("tcp-rr", "-n 10 -R 1k", 10),
        ("udp-stream", "-n 32 -b 16", 32),
        ("udp-stream", "-n 32 -b 16 --gso", 32),
        ("tcp-stream", "-n 20 -l 16384", 20),
    ] {
        let client = json(&mut host, &format!("{load} -f {workload} {options} {to}"));
        assert_eq!(client["workload"], workload);
        assert_eq!(client["messages"], messages, "{workload} {options}: {client}");
        assert_eq!(client["lost"], 0, "{client}");
        if workload.ends_with("-rr") {
            assert_eq!(client["latency"]["samples"], messages, "{client}");
        }
    }
    // It has read what it was sent: a stream's end waits for that, and so do answers.
    let gone = "while kill -0 $pid 2> /dev/null; do sleep 0.05; done";
    host.sh(&format!("pid=$(cat {place}/pid); kill -INT $pid; {gone}")).unwrap();
    let served = std::fs::read_to_string(dir.path().join("out")).unwrap();
    let served: Value = serde_json::from_str(&served).unwrap();
    let requests: u64 = 101 + 11 * 1400 + 101 + 11;
    assert_eq!(served["bytes"], requests + 2 * 32 * 8 + 20 * 16_384, "{served}");
    assert_eq!((&served["connections"], &served["lost"]), (&3.into(), &0.into()), "{served}");
}

#[test]
fn what_cannot_be_done_is_wrong_usage() {
    for (options, hint) in [
        ("-f udp", "is not a workload"),
        ("-f udp-stream", "--to"),
        ("-f livelock-sink", "vmlan stack"),
        ("-f udp-stream --to 127.0.0.1 --gso", "-b"),
        ("-f udp-stream --to 127.0.0.1 -l 65508", "65507"),
        ("-f udp-sink -T 1 --warmup 1", "use a longer run (-T)"),
    ] {
        let out = std::process::Command::new(vmlan_program())
            .arg("load")
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains(hint), "{options}: {said}");
    }
}
