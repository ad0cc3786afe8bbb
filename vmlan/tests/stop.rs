//! `vmlan stop` ends a switch and waits for it; `vmlan upgrade` puts another in its place, or
//! leaves it as it is.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use common::{Switch, pid, until};

const HELD: [&str; 2] = ["--hold-for", "60"];
const NIC: &str = "vm1=vfio-user:@/vm1.sock";

/// Ends whatever switch is there in the end: one that took over is nobody's child.
struct Last<'s>(&'s Switch);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["stop", "--for-good"]);
    }
}

#[test]
fn it_ends_and_is_waited_for() {
    let mut switch = Switch::start(&["s=stream:@/s.sock"]);
    let pid = u64::from(switch.pid());
    let said = switch.json(&["stop"]);
    assert_eq!(said, serde_json::json!({ "pid": pid, "held_for": null }));
    // A zombie, at most.
    assert_eq!(switch.wait(), Some(0));
    assert_eq!(switch.files(), [""; 0]);
    switch.fails(&["stop"], 1, &["no switch answers there"]);
}

#[test]
fn what_is_held_stays_unless_it_is_for_good() {
    let mut switch = Switch::with(&HELD, &[NIC], &[]);
    assert!(switch.ask(&["stop"]).contains("are held for 60 s"));
    assert_eq!(switch.wait(), Some(0));
    assert_eq!(switch.files(), ["api.sock.hold", "vm1.sock"]);
    let dir = switch.into_dir();
    let vmlan = env!("CARGO_BIN_EXE_vmlan");
    let mut again = Switch::within(dir, &[vmlan], &HELD, &[NIC]);
    let said = again.ask(&["stop", "--for-good"]);
    assert!(!said.contains("held"), "{said}");
    assert_eq!(again.wait(), Some(0));
    until("the holder's end", || again.files() == ["log"]);
}

#[test]
fn another_takes_its_place() {
    let mut switch = Switch::with(&HELD, &[NIC, "s=stream:@/s.sock"], &[]);
    {
        let last = Last(&switch);
        let mut before = pid(last.0);
        for _ in 0..3 {
            let said = last.0.json(&["upgrade"]);
            assert_eq!(said["from"]["pid"].as_u64(), Some(before), "{said}");
            before = pid(last.0);
            assert_eq!(said["to"]["pid"].as_u64(), Some(before), "{said}");
        }
        assert_ne!(before, u64::from(last.0.pid()));
        assert_eq!(last.0.files(), ["api.log", "api.sock", "api.sock.hold", "s.sock", "vm1.sock"]);
    }
    assert_eq!(switch.wait(), Some(0));
    until("the end of the last", || switch.files() == ["api.log"]);
}

/// Asks for an upgrade that is refused with these words, and looks that nothing has happened.
fn refused(switch: &Switch, binary: &Path, said: &[&str]) {
    let before = pid(switch);
    let out = switch.run(&["upgrade", "--binary", binary.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(said.iter().all(|word| error.contains(word)), "{error}");
    assert_eq!(pid(switch), before);
}

/// The next switch would not get what the holder has.
#[test]
fn a_switch_of_another_user_is_not_touched() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let own = env!("CARGO_BIN_EXE_vmlan");
    let nobody = ["setpriv", "--reuid=65534", "--clear-groups", own];
    let mut switch = Switch::within(dir, &nobody, &HELD, &[NIC]);
    refused(&switch, Path::new(own), &["was not touched", "as user 65534", "sudo -u '#65534'"]);
    switch.ask(&["stop", "--for-good"]);
    assert_eq!(switch.wait(), Some(0));
}

fn script(switch: &Switch, text: &str) -> PathBuf {
    let path = switch.path("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn whatever_is_wrong_leaves_the_running_one() {
    let own = Path::new(env!("CARGO_BIN_EXE_vmlan"));
    let plain = Switch::start(&[NIC]);
    refused(&plain, own, &["it runs without --hold-for"]);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("vmlan.toml");
    let write = |text: &str| {
        std::fs::write(&config, format!("[switch]\nhold-for = 60\n{text}")).unwrap();
    };
    write("");
    let file = ["--config", config.to_str().unwrap()];
    let mut switch = Switch::with(&file, &[NIC], &[]);
    let untouched = "the running switch was not touched";
    refused(&switch, &switch.path("nothing"), &["cannot run", "nothing"]);
    refused(
        &switch,
        Path::new("/bin/false"),
        &["/bin/false: it does not start: it ended", untouched],
    );
    let silent = script(&switch, "exec sleep 0.1");
    refused(&switch, &silent, &["script: it does not start", untouched]);
    let other = script(&switch, r#"echo '{"api":"/elsewhere","holds":true}' >&0; exec cat"#);
    refused(&switch, &other, &["its API would be at /elsewhere", untouched]);
    // The file has changed meanwhile.
    write("workers = 0\n");
    refused(&switch, own, &["it does not start: ", "workers=0", untouched]);
    std::fs::write(&config, "").unwrap();
    refused(&switch, own, &["without hold-for", untouched]);
    write("");
    switch.ask(&["port", "add", &switch.here("more=stream:@/more.sock")]);
    // A release that does not go on with what was added.
    let api = switch.api();
    let intent = format!(r#"{{"api":"{api}","holds":true,"ports":["vm1"]}}"#);
    let older = script(&switch, &format!("echo '{intent}' >&0; exec cat"));
    refused(&switch, &older, &["without these ports", "more", untouched]);
    switch.ask(&["port", "del", "more"]);
    // It is the switch that was started still.
    assert_eq!(pid(&switch), u64::from(switch.pid()));
    switch.ask(&["stop", "--for-good"]);
    assert_eq!(switch.wait(), Some(0));
}

#[test]
fn one_that_does_not_come_up_is_replaced_by_the_old_program() {
    let switch = Switch::with(&HELD, &[NIC], &[]);
    let last = Last(&switch);
    let intent = format!(r#"{{"api":"{}","holds":true,"ports":["vm1"]}}"#, switch.api());
    // Nor does Ctrl-C leave nobody, or the end of a terminal.
    for end in ["exit 1", "kill -9 $$", "kill -INT $PPID; kill -HUP $PPID; exit 1"] {
        let before = pid(last.0);
        let next = script(last.0, &format!("echo '{intent}' >&0; read begin <&0; {end}"));
        let out = last.0.run(&["upgrade", "--binary", next.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{error}");
        let now = pid(last.0);
        let said = format!("the old program serves again (process {now})");
        assert!(error.lines().count() == 1 && error.contains(&said), "{error}");
        assert_ne!(now, before);
    }
}
