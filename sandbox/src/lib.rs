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
mod confinement;
mod files;
mod filter;
#[cfg(debug_assertions)]
mod misbehave;
mod rights;
mod thread;
mod trap;

use std::sync::OnceLock;

pub use calls::name_of;
pub use confinement::{Confinement, confine_gateway};
pub use files::Places;
pub use thread::Thread;

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
/// one line of the log each.
pub fn start(places: &Places) {
    look_at_clocks();
    // A backtrace would need files that no thread may open.
    std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    let mut lacking = rights::give_up();
    let files = files::restrict(places).unwrap_or_else(|why| {
        lacking.push(why);
        files::Files::default()
    });
    let filters = filters().map_err(|why| lacking.push(why)).ok();
    for what in &lacking {
        log::warn!("the sandbox does without {what}");
    }
    let _ = SANDBOX.set(Sandbox { filters, files, lacking });
}

/// The filters of all kinds of threads, made ready for what they catch.
fn filters() -> Result<filter::Filters, String> {
    let threads = Thread::ALL.into_iter().filter(|kind| !kind.is_process());
    let filters = filter::Filters::new(threads)?;
    trap::install().map_err(|e| format!("seccomp ({e})"))?;
    filter::forbid_clone3()?;
    Ok(filters)
}

/// Rustix looks up once what the kernel told the process at its start (the page size, where the
/// clocks are), before Linux 6.4 in a file that no thread may open later.
fn look_at_clocks() {
    let _ = rustix::param::page_size();
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
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

/// `off`, `on`, or `on, without` what the kernel does not offer.
pub fn state() -> String {
    match SANDBOX.get() {
        None => "off".to_owned(),
        Some(sandbox) if sandbox.lacking.is_empty() => "on".to_owned(),
        Some(sandbox) => format!("on, without {}", sandbox.lacking.join("; ")),
    }
}

/// Why nothing can be made at `path`, if it is the sandbox that forbids it: one line that says what
/// to do.
pub fn forbids(path: &std::path::Path) -> Option<String> {
    SANDBOX.get()?.files.forbids(path)
}
