//! From lists of calls to filters of seccomp.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::calls::{Call, Only, Thread};
use crate::trap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The compiled filters of all kinds of threads.
#[derive(Debug)]
pub(crate) struct Filters {
    of: Vec<(Thread, BpfProgram)>,
    /// glibc falls back to `clone`, whose flags a filter can see.
    no_clone3: BpfProgram,
}

impl Filters {
    /// Compiles all of them, and makes ready for what they catch.
    ///
    /// # Errors
    /// Why there can be none, in words.
    pub(crate) fn new() -> Result<Self, String> {
        let failed = |e: &dyn std::fmt::Display| format!("seccomp ({e})");
        if rustix::thread::secure_computing_mode().is_err() {
            return Err("seccomp (the kernel has none)".to_owned());
        }
        trap::install().map_err(|e| failed(&e))?;
        let compile = |kind: Thread| Ok((kind, compile(kind)?));
        let of: Result<_, seccompiler::BackendError> =
            Thread::ALL.into_iter().map(compile).collect();
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let no_clone3 = program(rules, SeccompAction::Allow, enosys());
        Ok(Self { of: of.map_err(|e| failed(&e))?, no_clone3: no_clone3.map_err(|e| failed(&e))? })
    }

    /// Puts the filter of `kind` over the calling thread, and those it starts.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn apply(&self, kind: Thread) -> Result<(), seccompiler::Error> {
        if matches!(kind, Thread::Control | Thread::Port | Thread::Stream) {
            apply_filter(&self.no_clone3)?;
        }
        self.of
            .iter()
            .filter(|(of, _)| *of == kind)
            .try_for_each(|(_, program)| apply_filter(program))
    }
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
        Only::Is(arg, values) => {
            values.iter().map(|value| rule(arg, dword.clone(), SeccompCmpOp::Eq, *value)).collect()
        }
        Only::OwnProcess(arg) => {
            Ok(vec![rule(arg, dword, SeccompCmpOp::Eq, std::process::id().into())?])
        }
        Only::Null(arg) => Ok(vec![rule(arg, qword, SeccompCmpOp::Eq, 0)?]),
        Only::Bits(arg, mask, bits) => {
            Ok(vec![rule(arg, qword, SeccompCmpOp::MaskedEq(mask), bits)?])
        }
    };
    rules
}
