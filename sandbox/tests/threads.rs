//! A thread that does what its kind never does is stopped, and the log says which thread and what.
//! Each attempt is made by a process of its own: this program, started again.
#![cfg(debug_assertions)]

use std::process::{Command, Output};

use vmlan_sandbox::{EXIT_CODE, Places, Thread, enter, start, state};

const CHILD: &str = "VMLAN_SANDBOX_CHILD";

/// The process that misbehaves: [`enter`] does what the environment says.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let kind = Thread::ALL.into_iter().find(|k| k.name() == kind).unwrap();
    start(&Places::default());
    eprintln!("sandbox {}", state());
    std::thread::spawn(move || enter(kind)).join().unwrap();
}

fn misbehave(kind: Thread, what: &str) -> Output {
    let told = format!("{}:{what}", kind.name());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]);
    command.env(CHILD, kind.name()).env("VMLAN_TEST_MISBEHAVE", told);
    command.output().unwrap()
}

/// What must be said: the call that ends the process; `None`: Landlock refuses it.
fn expected(kind: Thread, what: &str) -> Option<&'static str> {
    use Thread::{Control, Port, Stream, Tap};
    match (what, kind) {
        ("open", Control | Port | Stream | Tap) | ("write" | "tcp", Control) => None,
        ("open" | "write", _) => Some("openat"),
        ("connect", Tap) => Some("connect"),
        ("tcp" | "connect", _) => Some("socket"),
        ("exec", _) => Some("execve"),
        ("trace", _) => Some("ptrace"),
        ("read", _) => Some("process_vm_readv"),
        ("code", _) => Some("mmap"),
        _ => panic!("{what}"),
    }
}

#[test]
fn what_a_thread_never_does_is_stopped_and_named() {
    for kind in Thread::ALL {
        for what in ["open", "write", "connect", "tcp", "exec", "trace", "read", "code"] {
            // Sockets of this host they may reach: it is what they are for.
            let serves = matches!(kind, Thread::Control | Thread::Port | Thread::Stream);
            if what == "connect" && serves {
                continue;
            }
            let out = misbehave(kind, what);
            let said = String::from_utf8_lossy(&out.stderr);
            if !said.contains("sandbox on\n") {
                return eprintln!("skipped: this kernel lacks something: {said}");
            }
            let name = kind.name();
            match expected(kind, what) {
                None => assert!(said.contains("PermissionDenied"), "{name} {what}: {said}"),
                Some(call) => {
                    assert_eq!(out.status.code(), Some(EXIT_CODE), "{name} {what}: {said}");
                    let line = format!("sandbox: a {name} thread called {call} (");
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
