//! A thread that does what its kind never does is stopped, and the log says which thread and what.
//! Each attempt is made by a process of its own: this program, started again.
#![cfg(debug_assertions)]

use std::io::{IoSlice, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use vmlan_sandbox::{Confinement, EXIT_CODE, Places, Thread, enter, name_of, start, state};

const CHILD: &str = "VMLAN_SANDBOX_CHILD";

const ATTEMPTS: [&str; 14] = [
    "open", "write", "memory", "connect", "tcp", "exec", "fork", "trace", "read", "kill", "own",
    "pidfd", "ring", "code",
];

/// To standard error, a socket, by the one call that a keeper has for it.
fn say(call: i32) {
    let parts = ["sandbox: a process called ", name_of(call), " (\n"];
    let parts = parts.map(|part| IoSlice::new(part.as_bytes()));
    let mut none = SendAncillaryBuffer::default();
    let _ = sendmsg(rustix::stdio::stderr(), &parts, &mut none, SendFlags::empty());
}

/// The process that misbehaves: [`enter`] does what the environment says.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let kind = Thread::ALL.into_iter().find(|k| k.name() == kind).unwrap();
    if !kind.is_process() {
        start(&Places::default());
        eprintln!("sandbox {}", state());
        return std::thread::spawn(move || enter(kind)).join().unwrap();
    }
    let confine = move || {
        let mut confinement = Confinement::new();
        confinement.begin(say);
        eprintln!("sandbox on");
        // A keeper is a spawner's child.
        if kind == Thread::Keeper {
            confinement.enter(Thread::Spawner);
        }
        confinement.enter(kind);
    };
    std::thread::spawn(confine).join().unwrap();
}

/// How it ended, and what it said.
fn misbehave(kind: Thread, what: &str) -> (Option<i32>, String) {
    let told = format!("{}:{what}", kind.name());
    let (theirs, mut ours) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).stderr(OwnedFd::from(theirs));
    command.env(CHILD, kind.name()).env("VMLAN_TEST_MISBEHAVE", told);
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    drop(command);
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// What must be said: the call that ends the process; `None`: Landlock refuses it.
fn expected(kind: Thread, what: &str) -> Option<&'static str> {
    use Thread::{Control, Port, Stream, Tap};
    match (what, kind) {
        ("open" | "memory", Control | Port | Stream | Tap) | ("write" | "tcp", Control) => None,
        ("open" | "write" | "memory", _) => Some("openat"),
        ("connect", Tap) => Some("connect"),
        ("tcp" | "connect", _) => Some("socket"),
        ("exec", _) => Some("execve"),
        ("fork", _) => Some("clone"),
        ("trace", _) => Some("ptrace"),
        ("read", _) => Some("process_vm_readv"),
        ("kill", _) => Some("kill"),
        ("own", _) => Some("fcntl"),
        ("pidfd", _) => Some("pidfd_open"),
        ("ring", _) => Some("io_uring_setup"),
        ("code", _) => Some("mmap"),
        _ => panic!("{what}"),
    }
}

/// What they are for.
fn is_allowed(kind: Thread, what: &str) -> bool {
    match what {
        "connect" => matches!(kind, Thread::Control | Thread::Port | Thread::Stream),
        "fork" => kind == Thread::Spawner,
        "tcp" => kind == Thread::Gateway,
        _ => false,
    }
}

#[test]
fn what_a_thread_never_does_is_stopped_and_named() {
    for kind in Thread::ALL {
        for what in ATTEMPTS.into_iter().filter(|what| !is_allowed(kind, what)) {
            let (code, said) = misbehave(kind, what);
            if !said.contains("sandbox on\n") {
                return println!("skipped: this kernel lacks something: {said}");
            }
            let thread = || format!("{} thread", kind.name());
            let name = if kind.is_process() { "process".to_owned() } else { thread() };
            match expected(kind, what) {
                None => assert!(said.contains("PermissionDenied"), "{name} {what}: {said}"),
                Some(call) => {
                    assert_eq!(code, Some(EXIT_CODE), "{name} {what}: {said}");
                    let line = format!("sandbox: a {name} called {call} (");
                    assert!(said.contains(&line), "{name} {what}: {said}");
                    assert!(!said.contains("misbehaved"), "{name} {what}: {said}");
                }
            }
        }
    }
}

#[test]
fn threads_of_programs_without_a_sandbox_are_left_alone() {
    std::thread::spawn(|| {
        enter(Thread::Worker);
        std::fs::read("/proc/self/status").unwrap();
    })
    .join()
    .unwrap();
}
