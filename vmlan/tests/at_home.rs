//! What a host gives the program and gets from it: the service manager's socket, and shells that
//! complete command lines.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod common;

use common::{Switch, vmlan};

/// Starts a switch as systemd does: the socket is descriptor 3.
fn activate(listener: &UnixListener, api: &Path) -> Child {
    let socket: OwnedFd = listener.try_clone().unwrap().into();
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let words = ["-c", script, "sh", env!("CARGO_BIN_EXE_vmlan"), "switch", "--api"];
    let mut command = Command::new("sh");
    command.args(words).arg(api).env_remove("NOTIFY_SOCKET");
    command.stdin(socket).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_socket_of_the_service_manager_outlives_the_switch() {
    let dir = tempfile::tempdir().unwrap();
    let api = dir.path().join("api.sock");
    let listener = UnixListener::bind(&api).unwrap();
    for round in 0..2 {
        // Whoever asks first, waits.
        let asked = Command::new(env!("CARGO_BIN_EXE_vmlan"))
            .args(["port", "list", "--json", "--api", api.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut switch = activate(&listener, &api);
        let said = asked.wait_with_output().unwrap();
        assert!(said.status.success(), "round {round}: {said:?}");
        let pid = rustix::process::Pid::from_child(&switch);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(switch.wait().unwrap().success());
        assert!(api.exists(), "it is not the switch's to remove");
    }
}

#[test]
fn a_socket_with_another_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("one.sock")).unwrap();
    let ended = activate(&listener, &dir.path().join("other.sock")).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("other.sock") && said.contains("one.sock"), "{said}");
    assert!(said.contains("ListenStream="), "{said}");
}

/// systemd lets NICs of VMs go if a service fails too often in too short a time.
#[test]
fn a_start_that_fails_takes_its_time_while_something_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.toml");
    std::fs::write(&wrong, "[switch]\nworkers = 0\n").unwrap();
    let (drawer, _end) = std::os::unix::net::UnixStream::pair().unwrap();
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_FDNAMES=vmlan-held-1 LISTEN_PID=$$ \
        exec \"$@\"";
    let words = ["-c", script, "sh", env!("CARGO_BIN_EXE_vmlan"), "switch", "--config"];
    let mut command = Command::new("sh");
    command.args(words).arg(&wrong).stdin(OwnedFd::from(drawer));
    let start = Instant::now();
    assert_eq!(command.output().unwrap().status.code(), Some(2));
    // So it is not started five times in 10 seconds.
    assert!(start.elapsed() > Duration::from_secs(2));
}

#[test]
fn shells_complete_commands_and_names_of_ports() {
    let switch = Switch::start(&["vm1=vhost-user:@/vm1", "vm2=stream:@/s", "cap=pcap:@/c"]);
    let complete = |words: &[&str]| {
        let last = (words.len() - 1).to_string();
        let out = Command::new(env!("CARGO_BIN_EXE_vmlan"))
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", last)
            .env("_CLAP_IFS", "\n")
            .arg("--")
            .args(words)
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let api = switch.api();
    let names = complete(&["vmlan", "--api", &api, "port", "del", "v"]);
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["vm1", "vm2"]);
    assert!(complete(&["vmlan", "po"]).contains("port"));
    assert_eq!(complete(&["vmlan", "--api", "/nowhere", "port", "del", "v"]), "");
    let script = Command::new(env!("CARGO_BIN_EXE_vmlan")).env("COMPLETE", "bash").output();
    assert!(String::from_utf8(script.unwrap().stdout).unwrap().contains("complete "));
    assert!(vmlan(&["man"]).status.code() == Some(2), "a directory is wanted");
}
