//! From lists of calls to filters of seccomp.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::calls::{Call, Only};
use crate::thread::Thread;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Compiled filters.
#[derive(Debug)]
pub(crate) struct Filters(Vec<(Thread, BpfProgram)>);

impl Filters {
    /// Compiles those of `kinds`.
    ///
    /// # Errors
    /// Why there can be none, in words.
    pub(crate) fn new(kinds: impl Iterator<Item = Thread>) -> Result<Self, String> {
        if rustix::thread::secure_computing_mode().is_err() {
            return Err("seccomp (the kernel has none)".to_owned());
        }
        let compile = |kind: Thread| Ok((kind, compile(kind)?));
        let all: Result<_, seccompiler::BackendError> = kinds.map(compile).collect();
        Ok(Self(all.map_err(failed)?))
    }

    /// Puts the filter of `kind` over the calling thread, and those it starts.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn apply(&self, kind: Thread) -> Result<(), seccompiler::Error> {
        let mut own = self.0.iter().filter(|(of, _)| *of == kind);
        own.try_for_each(|(_, program)| apply_filter(program))
    }
}

/// Has glibc start threads by `clone`, whose flags a filter can see. Tells whether filters can be
/// had at all.
///
/// # Errors
/// Why there can be none, in words.
pub(crate) fn forbid_clone3() -> Result<(), String> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let filter = program(rules, SeccompAction::Allow, enosys()).map_err(failed)?;
    apply_filter(&filter).map_err(failed)
}

fn failed(e: impl std::fmt::Display) -> String {
    format!("seccomp ({e})")
}

fn enosys() -> SeccompAction {
    SeccompAction::Errno(libc::ENOSYS.unsigned_abs())
}

fn compile(kind: Thread) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = Rules::new();
    for call in kind.calls() {
        add(&mut rules, &call)?;
    }
    program(rules, SeccompAction::Trap, SeccompAction::Allow)
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, action, arch)?.try_into()
}

/// Adds what is allowed. A call without conditions goes before the same one with some.
fn add(rules: &mut Rules, call: &Call) -> Result<(), seccompiler::BackendError> {
    let conditions = conditions(call.only)?;
    let old = rules.get(&call.number);
    if old.is_some_and(Vec::is_empty) {
        return Ok(());
    }
    let list = rules.entry(call.number).or_default();
    if conditions.is_empty() {
        list.clear();
    }
    list.extend(conditions);
    Ok(())
}

/// One rule for each value that is allowed.
fn conditions(only: Only) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule =
        |arg, len, op, value| SeccompRule::new(vec![SeccompCondition::new(arg, len, op, value)?]);
    let (dword, qword) = (SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword);
    let rules: Result<Vec<_>, _> = match only {
        Only::Always => return Ok(Vec::new()),
        Only::Is(arg, values, _) => {
            values.iter().map(|value| rule(arg, dword.clone(), SeccompCmpOp::Eq, *value)).collect()
        }
        Only::OwnProcess(arg) => {
            Ok(vec![rule(arg, dword, SeccompCmpOp::Eq, std::process::id().into())?])
        }
        Only::Null(arg, _) => Ok(vec![rule(arg, qword, SeccompCmpOp::Eq, 0)?]),
        Only::Bits(arg, mask, bits, _) => {
            Ok(vec![rule(arg, qword, SeccompCmpOp::MaskedEq(mask), bits)?])
        }
    };
    rules
}
