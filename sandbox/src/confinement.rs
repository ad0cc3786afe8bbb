//! Processes that are forked from this one, and need hardly anything.

use landlock::RulesetCreated;

use crate::filter::Filters;
use crate::thread::Thread;
use crate::{files, rights, trap};

/// What confines a process that is to be forked. It is made before the fork, since it allocates;
/// what comes afterwards does not. A kernel without Landlock or seccomp confines it less, which
/// [`start`](crate::start) tells for all.
#[derive(Debug)]
pub struct Confinement {
    filters: Option<Filters>,
    ruleset: Option<RulesetCreated>,
}

impl Confinement {
    /// Compiles the filters of processes.
    pub fn new() -> Self {
        let kinds = Thread::ALL.into_iter().filter(|kind| kind.is_process());
        Self { filters: Filters::new(kinds).ok(), ruleset: files::nothing() }
    }

    /// In the new process: gives up all capabilities and, where there is Landlock, all files. Has
    /// `report` told of the call that ends it or its children. To be called before any descriptor
    /// is closed.
    pub fn begin(&mut self, report: fn(i32)) {
        rights::give_up_all();
        if let Some(ruleset) = self.ruleset.take() {
            let _ = ruleset.restrict_self();
        }
        trap::report_to(report);
        // Where it fails, the kernel ends the process all the same, and nobody is told why.
        let _ = trap::install();
    }

    /// From now on only the system calls of `kind`.
    pub fn enter(&self, kind: Thread) {
        if let Some(filters) = &self.filters {
            trap::name_thread(kind.name());
            let _ = filters.apply(kind);
        }
        #[cfg(debug_assertions)]
        crate::misbehave::as_told(kind);
    }
}

/// This process, which has one thread, is a gateway from now on: it has no capability and no file,
/// and makes the system calls of one. Returns what the kernel does not offer.
pub fn confine_gateway() -> Vec<String> {
    let mut lacking = Vec::new();
    rights::give_up_all();
    if let Err(e) = files::no_files() {
        lacking.push(format!("Landlock ({e})"));
    }
    let kind = Thread::Gateway;
    let filters = trap::install().map_err(|e| format!("seccomp ({e})"));
    match filters.and_then(|()| Filters::new([kind].into_iter())) {
        Ok(filters) => {
            trap::name_thread(kind.name());
            let applied = filters.apply(kind).map_err(|e| format!("seccomp ({e})"));
            lacking.extend(applied.err());
        }
        Err(why) => lacking.push(why),
    }
    lacking
}

impl Default for Confinement {
    fn default() -> Self {
        Self::new()
    }
}
