//! `vmlan switch --supervise`: another switch in the place of one that dies, and an end for both.

mod common;

use std::process::Command;

use common::{Switch, fails, next, pid, until};

const VMLAN: &str = env!("CARGO_BIN_EXE_vmlan");
const HELD: [&str; 3] = ["--supervise", "--hold-for", "60"];
const NIC: &str = "vm1=vfio-user:@/vm1.sock";

/// A supervised switch, whose log is a file.
fn start(args: &[&str], ports: &[&str]) -> Switch {
    Switch::within(tempfile::tempdir().unwrap(), &[VMLAN], args, ports)
}

fn log(switch: &Switch) -> String {
    std::fs::read_to_string(switch.path("log")).unwrap()
}

fn kill(signal: &str, pid: u64) {
    let words = ["-s", signal, &pid.to_string()];
    assert!(Command::new("kill").args(words).status().unwrap().success());
}

/// It has not ended: what nobody has reaped yet has.
fn is_there(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn another_takes_the_place_of_one_that_dies() {
    let mut switch = start(&HELD, &[NIC, "s=stream:@/s.sock"]);
    let first = pid(&switch);
    assert_ne!(first, u64::from(switch.pid()), "it is a child");
    let mut now = first;
    let waits = ["0", "100", "200"];
    for (signal, wait) in ["KILL", "ABRT", "KILL"].iter().zip(waits) {
        kill(signal, now);
        let before = now;
        now = next(&switch, before);
        let said = log(&switch);
        let line = format!("the switch (process {before}) was killed by SIG{signal}, after ");
        let lines: Vec<_> = said.lines().filter(|l| l.contains(&line)).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].ends_with(&format!(": another is started in {wait} ms")), "{said}");
        assert!(!is_there(before));
        assert_eq!(switch.json(&["port", "list"])["ports"].as_array().unwrap().len(), 2);
    }
    assert_eq!(log(&switch).matches("another is started").count(), 3);
    switch.signal("TERM");
    assert_eq!(switch.wait(), Some(0), "{}", log(&switch));
    assert!(!is_there(now), "both have ended");
    assert_eq!(switch.files(), ["api.sock.hold", "log", "vm1.sock"], "they are held still");
}

#[test]
fn whoever_ends_it_ends_both() {
    // By a signal to the supervisor, or to the switch; by the API.
    let ways: [&dyn Fn(&Switch); 3] =
        [&|switch| switch.signal("INT"), &|switch| kill("INT", pid(switch)), &|switch| {
            drop(switch.ask(&["stop", "--for-good"]))
        }];
    for end in ways {
        let mut switch = start(&HELD, &[NIC]);
        let server = pid(&switch);
        end(&switch);
        assert_eq!(switch.wait(), Some(0));
        assert!(!is_there(server));
        until("the holder's end", || switch.files() == ["log"]);
        assert!(!log(&switch).contains("another"), "{}", log(&switch));
    }
}

/// So a service manager, or whoever else started it, may start another: there are never two.
#[test]
fn a_switch_does_not_outlive_its_supervisor() {
    let mut switch = start(&HELD, &[NIC]);
    let server = pid(&switch);
    switch.signal("KILL");
    assert_eq!(switch.wait(), None);
    until("the end of the switch", || !is_there(server));
    assert_eq!(switch.files(), ["api.sock.hold", "log", "vm1.sock"], "it was told to end");
    let again = Switch::within(switch.into_dir(), &[VMLAN], &HELD, &[NIC]);
    assert_ne!(pid(&again), server);
    again.ask(&["stop", "--for-good"]);
}

#[test]
fn what_is_wrong_at_the_first_start_is_said_once() {
    let here = |name: &str| std::env::temp_dir().join(name).to_str().unwrap().to_owned();
    let api = here("vmlan-supervise-none");
    let switch = ["switch", "--supervise", "--api", &api];
    fails(&[&switch[..], &["vm1=vhost-user:/tmp/a,colour=red"]].concat(), 2, &["colour"]);
    let none = [&switch[..], &["vm1=vhost-user:/tmp/none/here/a.sock"]].concat();
    fails(&none, 1, &["port vm1: "]);
    fails(&["switch", "--api", &api, "--supervised"], 1, &["only `vmlan", "switch --supervise`"]);
    fails(&[&switch[..], &["--while-held"]].concat(), 2, &["cannot be used with"]);
    let service = Command::new(VMLAN).args(switch).env("NOTIFY_SOCKET", "/nowhere").output();
    let service = service.unwrap();
    let error = String::from_utf8_lossy(&service.stderr);
    assert_eq!(service.status.code(), Some(2), "{error}");
    assert!(error.contains("Restart="), "{error}");
}

/// A port may begin like an option.
#[test]
fn ports_may_stand_behind_two_dashes() {
    let mut switch = start(&[&HELD[..], &["--"]].concat(), &[NIC]);
    let before = pid(&switch);
    kill("KILL", before);
    let before = next(&switch, before);
    let said = switch.json(&["upgrade"]);
    assert_eq!(said["from"]["pid"].as_u64(), Some(before), "{said}");
    assert_eq!(said["to"]["pid"].as_u64(), Some(pid(&switch)), "{said}");
    assert_eq!(switch.wait(), Some(0));
    switch.ask(&["stop", "--for-good"]);
    until("the end of the last", || switch.files() == ["api.log", "log"]);
}

/// The first switch is killed while it reads its configuration, which has no end.
#[test]
fn a_first_switch_that_is_killed_is_the_end_and_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let config = here("vmlan.toml");
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let words = ["switch", "--supervise", "--api", &here("api.sock"), "--config", &config, NIC];
    let mut command = Command::new(VMLAN);
    let log = std::fs::File::create(here("log")).unwrap();
    let mut supervisor =
        command.args(words).env_remove("NOTIFY_SOCKET").stderr(log).spawn().unwrap();
    // The supervisor's own look at it ends here.
    std::fs::write(&config, "").unwrap();
    let children = format!("/proc/{0}/task/{0}/children", supervisor.id());
    let child = || std::fs::read_to_string(&children).unwrap().trim().parse::<u64>().ok();
    until("a child", || child().is_some());
    kill("KILL", child().unwrap());
    assert_eq!(supervisor.wait().unwrap().code(), Some(137));
    let said = std::fs::read_to_string(here("log")).unwrap();
    assert!(said.contains("was killed by SIGKILL"), "{said}");
    assert_eq!(said.matches("no other is started").count(), 1, "{said}");
}

/// The holder that a switch has forked. What it has open only root may see.
fn holder_of(switch: u64) -> Option<u64> {
    let is = |pid: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.split_once("(vmlan-holder) ").map(|(_, rest)| rest);
        // Its state, and its parent.
        rest.and_then(|rest| rest.split(' ').nth(1)) == Some(&switch.to_string())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is)
}

#[test]
fn what_a_dead_holder_had_is_not_called_held() {
    let switch = start(&HELD, &[NIC]);
    let held = || switch.json(&["port", "list"])["ports"][0]["details"]["held"].clone();
    assert_eq!(held(), "yes");
    kill("KILL", holder_of(pid(&switch)).expect("a holder"));
    until("the news", || held() == "no: the holder has gone");
    assert_eq!(log(&switch).matches("the holder has gone").count(), 1, "{}", log(&switch));
    // The next switch has another one.
    let before = pid(&switch);
    kill("KILL", before);
    next(&switch, before);
    assert_eq!(held(), "yes");
}

#[test]
fn one_death_after_the_other_is_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("vmlan.toml");
    std::fs::write(&config, "").unwrap();
    let file = ["--supervise", "--config", config.to_str().unwrap()];
    let mut switch = start(&file, &[NIC]);
    // What kills it is there at each start.
    std::fs::write(&config, "[switch]\nworkers = 0\n").unwrap();
    kill("KILL", pid(&switch));
    assert_eq!(switch.wait(), Some(2), "as the last one has ended: {}", log(&switch));
    let said = log(&switch);
    assert_eq!(said.matches("another is started").count(), 7, "{said}");
    assert_eq!(said.matches("ended with exit code 2, after 0.0 s").count(), 7, "{said}");
    assert_eq!(said.matches("no other is started").count(), 1, "{said}");
    assert_eq!(said.matches("workers=0").count(), 7, "{said}");
}

/// Between two starts as well, when no switch is there to have the signal.
#[test]
fn a_signal_ends_it_while_it_waits() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("vmlan.toml");
    std::fs::write(&config, "").unwrap();
    let file = ["--supervise", "--config", config.to_str().unwrap()];
    let mut switch = start(&file, &[NIC]);
    std::fs::write(&config, "[switch]\nworkers = 0\n").unwrap();
    kill("KILL", pid(&switch));
    until("a long wait", || log(&switch).contains("started in 800 ms"));
    switch.signal("TERM");
    let code = switch.wait();
    // It may have been told in the midst of a start.
    assert!([Some(0), Some(2), Some(143)].contains(&code), "{code:?}");
    assert!(!log(&switch).contains("no other"), "{}", log(&switch));
}

#[test]
fn an_upgrade_leaves_a_supervised_switch() {
    let mut switch = start(&HELD, &[NIC]);
    let mut now = pid(&switch);
    for _ in 0..2 {
        let said = switch.json(&["upgrade"]);
        assert_eq!(said["from"]["pid"].as_u64(), Some(now), "{said}");
        now = pid(&switch);
        assert_eq!(said["to"]["pid"].as_u64(), Some(now), "{said}");
    }
    assert_eq!(switch.wait(), Some(0), "the first supervisor has nothing to do any more");
    kill("KILL", now);
    let after = next(&switch, now);
    // The old program is put back as it was, too.
    let out = switch.run(&["upgrade", "--binary", "/bin/false"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(pid(&switch), after);
    switch.ask(&["stop", "--for-good"]);
    until("the end of the last", || switch.files() == ["api.log", "log"]);
    let said = std::fs::read_to_string(switch.path("api.log")).unwrap();
    assert_eq!(said.matches("another is started").count(), 1, "{said}");
}
