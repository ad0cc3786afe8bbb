//! Keepers and spawners that do what they never do. Each attempt is made by a process of its own:
//! this program, started again.
#![cfg(debug_assertions)]

use std::process::Command;

use vmlan_keeper::Keeper;

const CHILD: &str = "VMLAN_KEEPER_CHILD";

/// The process whose keepers, or spawners, misbehave as the environment says.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let started = vmlan_keeper::start(true);
    let made = started.and_then(|()| Keeper::new(None));
    eprintln!("made: {:?}", made.map_err(|e| e.to_string()));
}

#[test]
fn what_they_never_do_is_stopped_and_named() {
    let attempts = [
        ("open", "openat"),
        ("memory", "openat"),
        ("connect", "socket"),
        ("exec", "execve"),
        ("read", "process_vm_readv"),
        ("kill", "kill"),
    ];
    for (who, said) in [("keeper", "the port's keeper made"), ("spawner", "(vmlan-spawner) made")] {
        for (what, call) in attempts {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--nocapture"]).env(CHILD, "");
            command.env("VMLAN_TEST_MISBEHAVE", format!("{who}:{what}"));
            let heard = String::from_utf8(command.output().unwrap().stderr).unwrap();
            let line = format!("{said} the system call {call}, which none needs");
            assert!(heard.contains(&line), "{who} {what}: {heard}");
        }
    }
}
