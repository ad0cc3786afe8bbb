//! `vmlan run`, with shell scripts for VMMs: the process is the VMM, and the port lasts as long.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::{Switch, fails, next, pid, until};

const NET: &str = "net=nat:10.77.0.0/24";

/// A QEMU: says its version, and what it was given into the file `said` beside it. Then it does
/// what its last words say, or waits.
const QEMU: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "QEMU emulator version VERSION (fake)"; exit 0; }
printf '%s\n' "$@" > "$(dirname "$0")/said.$2"
case "$1" in
    exit) exit "$3" ;;
    die) kill -s "$3" $$ ;;
    cat) cat ;;
    *) exec sleep 1000 ;;
esac
"#;

/// Writes a program.
fn script(dir: &Path, name: &str, text: &str) -> String {
    let place = dir.join(name);
    std::fs::write(&place, text).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.to_str().unwrap().to_owned()
}

fn qemu(dir: &Path, version: &str) -> String {
    script(dir, "qemu-system-x86_64", &QEMU.replace("VERSION", version))
}

/// `vmlan run` at the API `api`.
fn command(api: &str, args: &[&str], vmm: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmlan"));
    command.args(["run", "--api", api]).args(args).arg("--").args(vmm);
    command.env("VMLAN_LOG", "warn").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// One that waits; killed if it is left.
struct Vm(Child);

impl Vm {
    fn start(api: &str, args: &[&str], vmm: &[&str]) -> Self {
        Self(command(api, args, vmm).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(switch: &Switch, args: &[&str], vmm: &[&str]) -> Output {
    command(&switch.api(), args, vmm).output().unwrap()
}

fn names(switch: &Switch) -> Vec<String> {
    let list = switch.json(&["port", "list"]);
    let ports = list["ports"].as_array().unwrap();
    ports.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
}

fn said(dir: &Path, what: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(format!("said.{what}"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_vmm_gets_the_options_and_its_exit_code_is_ours() {
    let switch = Switch::start(&["s=stream:@/s.sock"]);
    let dir = switch.dir.path();
    let qemu = qemu(dir, "9.2.0");
    let out = run(&switch, &[], &[&qemu, "exit", "a", "7", "-m", "2G"]);
    assert_eq!(out.status.code(), Some(7), "{}", String::from_utf8_lossy(&out.stderr));
    let words = said(dir, "a");
    assert_eq!(words[..5], ["exit", "a", "7", "-m", "2G"]);
    assert_eq!(words[6], "memory-backend-memfd,id=vmlan-mem,size=2048M,share=on");
    let socket =
        format!("socket,id=chr-vm1,path={},reconnect-ms=1000", switch.here("@/api-vm1.sock"));
    assert!(words.contains(&socket), "{words:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("vmlan: port vm1 is at vhost-user:"));
    let out = run(&switch, &[], &[&qemu, "die", "b", "SEGV"]);
    assert_eq!(out.status.signal(), Some(11), "a death is a death");
    // Its standard input and output are the VMM's.
    let mut vm = command(&switch.api(), &[], &[&qemu, "cat", "c"]);
    let mut vm = vm.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut vm.stdin.take().unwrap(), b"typed").unwrap();
    let out = vm.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(0), &b"typed"[..]));
    until("the ports to go", || names(&switch) == ["s"]);
    assert!(!switch.files().iter().any(|name| name.contains("vm1")), "{:?}", switch.files());
}

#[test]
fn the_port_lasts_as_long_as_the_vmm_however_it_ends() {
    let switch = Switch::start(&[]);
    let qemu = qemu(switch.dir.path(), "9.2.0");
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("USR1", 10)] {
        let mut vm = Vm::start(&switch.api(), &[], &[&qemu, "wait", signal]);
        until("the port", || names(&switch) == ["vm1"]);
        until("the VMM", || !said(switch.dir.path(), signal).is_empty());
        vm.signal(signal);
        assert_eq!(vm.0.wait().unwrap().signal(), Some(number));
        until("the port to go", || names(&switch).is_empty());
    }
    // Held up, as by a key of the terminal, it keeps its port.
    let vm = Vm::start(&switch.api(), &[], &[&qemu, "wait", "stop"]);
    until("the VMM", || !said(switch.dir.path(), "stop").is_empty());
    vm.signal("STOP");
    assert_eq!(names(&switch), ["vm1"]);
    vm.signal("CONT");
    // A port that is removed under it is gone, and stays so.
    switch.ask(&["port", "del", "vm1"]);
    switch.ask(&["port", "add", &switch.here("vm1=vhost-user:@/other.sock")]);
    drop(vm);
    assert_eq!(names(&switch), ["vm1"], "that is not its port");
}

#[test]
fn names_networks_and_keys_are_as_asked() {
    let switch = Switch::start(&[&format!("{NET},vlan=10"), "vm1=vhost-user:@/v.sock"]);
    let qemu = qemu(switch.dir.path(), "9.2.0");
    let start = |args: &[&str], tag| Vm::start(&switch.api(), args, &[&qemu, "wait", tag]);
    let _first = start(&[], "a");
    until("vm2", || names(&switch).contains(&"vm2".to_owned()));
    let _second = start(&["--net", "net", "--key", "ip=10.77.0.20"], "b");
    until("vm3", || names(&switch).contains(&"vm3".to_owned()));
    let list = switch.json(&["port", "list"]);
    let address = list["ports"][3]["address"].as_str().unwrap();
    assert!(address.contains(",ip=10.77.0.20") && address.contains(",vlan=10"), "{address}");
    let api = switch.api();
    let run = |args: &[&str], said: &[&str], code| {
        // Before `--`: what follows is the VMM's.
        let words = [&["run", "--api", &api], args, &["--", &qemu, "wait", "d"]].concat();
        fails(&words, code, said);
    };
    run(&["--name", "vm1"], &["port vm1: that name is taken"], 1);
    run(&["--net", "lan"], &["--net lan", "it has net"], 2);
    run(&["--nic", "e1001"], &["--nic e1001", "did you mean 'e1000'"], 2);
    run(&["--nic", "e1000"], &["--nic: QEMU 9.2 has no", "use QEMU 10.1.1 or later"], 2);
    run(&["--key", "colour=red"], &["'colour' is not a key of vhost-user"], 2);
    assert!(said(switch.dir.path(), "d").is_empty(), "it was not started");
    let words = ["run", "--api", &switch.api(), "--", "firecracker"];
    fails(&words, 2, &["firecracker: not a VMM", "--vmm"]);
    assert_eq!(names(&switch), ["net", "vm1", "vm2", "vm3"]);
}

#[test]
fn a_switch_that_is_started_ends_with_the_last_of_its_vms() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (api, qemu) = (place("lan.sock"), qemu(dir.path(), "9.2.0"));
    let list = || {
        let out = common::vmlan(&["port", "list", "--api", &api]);
        String::from_utf8(out.stdout).unwrap()
    };
    let first = Vm::start(&api, &[], &[&qemu, "wait", "a"]);
    until("the first VM", || !said(dir.path(), "a").is_empty());
    assert!(list().contains("nat:10.77.0.0/24"), "{}", list());
    let second = Vm::start(&api, &[], &[&qemu, "wait", "b"]);
    until("the second VM", || list().contains("vm2"));
    drop(first);
    until("the first port to go", || !list().contains("vm1"));
    assert!(list().contains("vm2"), "the switch stays for the other");
    drop(second);
    until("the switch to end", || !dir.path().join("lan.sock").exists());
    until("its sockets to go", || {
        let all = std::fs::read_dir(dir.path()).unwrap();
        let names = all.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sock")).count() == 0
    });
    // One that cannot start says why.
    let out = command(&api, &["--net", "nat:10.77.0.0/33"], &[&qemu, "exit", "c", "0"]).output();
    let out = out.unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("10.77.0.0/33"), "{error}");
    for (net, wanted) in [("10.78.0.0/24", "or its address, like nat:"), ("a b", "the name of")] {
        let out = command(&api, &["--net", net], &[&qemu, "exit", "c", "0"]).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr);
        let named = format!("--net {net}: ");
        assert!(error.contains(&named) && error.contains(wanted), "{error}");
        assert_eq!(out.status.code(), Some(2));
    }
    assert!(said(dir.path(), "c").is_empty());
}

/// A VM joins a supervised switch like any other. What it asked for by the API the next switch does
/// not know.
#[test]
fn a_port_of_a_supervised_switch_ends_with_the_switch() {
    let switch = Switch::with(&["--supervise"], &["s=stream:@/s.sock"], &[]);
    let qemu = qemu(switch.dir.path(), "9.2.0");
    let vm = Vm::start(&switch.api(), &[], &[&qemu, "wait", "a"]);
    until("its port", || names(&switch) == ["s", "vm1"]);
    let before = pid(&switch);
    assert_ne!(before, u64::from(switch.pid()));
    let kill = ["-s", "KILL", &before.to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    next(&switch, before);
    assert_eq!(names(&switch), ["s"]);
    // Another may have its name, and the end of the first changes nothing for that.
    let _other = Vm::start(&switch.api(), &[], &[&qemu, "wait", "b"]);
    until("the other", || names(&switch) == ["s", "vm1"]);
    drop(vm);
    assert_eq!(names(&switch), ["s", "vm1"]);
}
