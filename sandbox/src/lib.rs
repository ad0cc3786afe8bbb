//! Rights that a switch gives up, so that whoever takes it over gains nothing.
//!
//! [`start`] restricts the whole process: no new privileges, no core dump, few capabilities, and by
//! Landlock only those files that the configuration and the API may still need. Each thread then
//! calls [`enter`] first of all: from there on, seccomp lets it make the system calls of its
//! [`Thread`] kind only. A call that is not among them ends the process with a line in the log that
//! names thread and call ([`EXIT_CODE`]).
//!
//! Without [`start`] (tests, programs that embed the crates) [`enter`] does nothing.
//! `docs/security.md` says what the sandbox stops and what it does not.

mod calls;
mod files;
mod filter;
mod rights;
mod trap;

use std::sync::OnceLock;

pub use calls::Thread;
pub use files::Places;

/// How a process ends that made a call it may not make: as if by SIGSYS.
pub const EXIT_CODE: i32 = 128 + libc::SIGSYS;

/// The sandbox of this process.
#[derive(Debug)]
struct Sandbox {
    filters: Option<filter::Filters>,
    files: files::Files,
    lacking: Vec<String>,
}

static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

/// Restricts this process. To be called once, before any other thread exists: threads inherit it.
///
/// What the kernel, or the container the switch runs in, does not offer is left out, and said in
/// one line of the log.
pub fn start(places: &Places) {
    let mut lacking = rights::give_up();
    let files = files::restrict(places).unwrap_or_else(|why| {
        lacking.push(why);
        files::Files::default()
    });
    let filters = filter::Filters::new().map_err(|why| lacking.push(why)).ok();
    if !lacking.is_empty() {
        log::warn!("the sandbox is incomplete: {}", lacking.join("; "));
    }
    let _ = SANDBOX.set(Sandbox { filters, files, lacking });
}

/// The calling thread is of this kind from now on, and may do what such threads do.
pub fn enter(kind: Thread) {
    let Some(sandbox) = SANDBOX.get() else { return };
    rights::keep_capabilities_of(kind);
    if let Some(filters) = &sandbox.filters {
        trap::name_thread(kind.name());
        if let Err(e) = filters.apply(kind) {
            log::error!("sandbox: a {} thread runs without its filter: {e}", kind.name());
        }
    }
    #[cfg(debug_assertions)]
    misbehave::as_told(kind);
}

/// `off`, `on`, or `on, without` and what the kernel does not offer.
#[must_use]
pub fn state() -> String {
    match SANDBOX.get() {
        None => "off".to_owned(),
        Some(sandbox) if sandbox.lacking.is_empty() => "on".to_owned(),
        Some(sandbox) => format!("on, incomplete: {}", sandbox.lacking.join("; ")),
    }
}

/// Why nothing can be made at `path`, if it is the sandbox that forbids it: one line that says what
/// to do.
#[must_use]
pub fn forbids(path: &std::path::Path) -> Option<String> {
    SANDBOX.get()?.files.forbids(path)
}

/// What tests have threads of the real program try. Release builds do not have it.
#[cfg(debug_assertions)]
mod misbehave {
    use std::os::unix::net::UnixStream;

    use super::Thread;

    /// `VMLAN_TEST_MISBEHAVE=worker:open` makes the first worker open a file.
    pub(super) fn as_told(kind: Thread) {
        let Ok(told) = std::env::var("VMLAN_TEST_MISBEHAVE") else { return };
        match told.split_once(':') {
            Some((who, what)) if who == kind.name() => misbehave(what),
            _ => {}
        }
    }

    pub(super) fn misbehave(what: &str) {
        let what_came_of_it = match what {
            "open" => format!("{:?}", std::fs::File::open("/etc/hostname")),
            "write" => format!("{:?}", std::fs::write("/etc/vmlan-was-here", "")),
            "connect" => format!("{:?}", UnixStream::connect("/run/systemd/notify")),
            "tcp" => format!("{:?}", std::net::TcpStream::connect("127.0.0.1:22")),
            "exec" => format!("{:?}", super::trap::try_to_exec()),
            "trace" => {
                format!("{:?}", super::trap::try_to_trace(1))
            }
            "read" => {
                format!("{:?}", super::trap::try_to_read(1))
            }
            "code" => format!("{:?}", super::trap::try_to_make_code()),
            _ => "unknown".to_owned(),
        };
        // Whoever is still here was not stopped.
        eprintln!("misbehaved: {what}: {what_came_of_it}");
    }
}
