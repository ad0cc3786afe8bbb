//! The body of the fuzz target `config`: whatever a user writes is refused in one message, or means
//! the same when it is written down and read again. Kept inputs are replayed as a plain test.
//!
//! The first byte of an input says what the rest is:
//!
//! | remainder by 4 | meaning |
//! | --- | --- |
//! | 0 | an address; behind the first newline, lines `KEY=VALUE` that change it |
//! | 1 | a configuration file |
//! | 2 | lines `KEY=VALUE` of a limit, and of sFlow |
//! | 3 | a version of QEMU and an amount of memory in a line each, then `NAME=ADDRESS` |
#![allow(clippy::panic)]

use std::fmt::Display;
use std::path::Path;

use crate::address::{Address, LimitTable, NamedAddress, Pair, SflowTable};
use crate::address_change::say_changes;
use crate::file::Config;
use crate::nearest_word::hint;
use crate::settings::Plan;
use crate::vm_args::{Vmm, Wanted, vm_args};

/// Reads one input.
///
/// # Panics
/// If something that was taken is another thing when it is read again, or a refusal says nothing.
pub fn config(data: &[u8]) {
    let Some((kind, Ok(text))) = data.split_first().map(|(k, t)| (k, std::str::from_utf8(t)))
    else {
        return;
    };
    match kind % 4 {
        0 => address(text),
        1 => file(text),
        2 => tables(text),
        _ => options(text),
    }
}

/// What was asked for, if it was not refused.
fn taken<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.map_err(|e| assert!(!e.to_string().is_empty(), "a refusal without a word")).ok()
}

fn pairs(text: &str) -> Vec<Pair> {
    let pair = |line: &str| line.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    text.lines().filter_map(pair).collect()
}

fn again(address: &Address) {
    let text = address.to_string();
    assert_eq!(text.parse().as_ref(), Ok(address), "{text}");
}

fn address(text: &str) {
    let (first, changes) = text.split_once('\n').unwrap_or((text, ""));
    let Some(address) = taken(first.parse::<Address>()) else { return };
    again(&address);
    let mut draft = address.draft();
    for (key, value) in pairs(changes) {
        taken(draft.replace(&key, &value));
        let _ = hint(&key, &["queues", "mode"]);
    }
    let Some(changed) = taken(draft.check()) else { return };
    again(&changed);
    let changes = changed.changes(&address);
    assert_eq!(changes.is_empty(), changed == address, "{}", say_changes(&changes));
    assert!(!changes.is_empty() || changed.differs_only_live(&address));
}

fn file(text: &str) {
    let Some(mut config) = taken(Config::parse(text, Path::new("f"))) else { return };
    let plan = Plan::new(&mut config, Vec::new());
    plan.ports.iter().for_each(|port| again(&port.address));
    let order = |p: &&NamedAddress| config.line_of_port(&p.name);
    if let Err(wrong) = plan.check(order) {
        assert!(!wrong.placed(&config).is_empty());
    }
}

fn tables(text: &str) {
    let pairs = pairs(text);
    let owned =
        |l: Vec<(&str, String)>| l.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Vec<_>>();
    if let Some(limit) = taken(LimitTable::new(&pairs)) {
        assert_eq!(LimitTable::new(&owned(limit.pairs())), Ok(limit));
    }
    if let Some(sflow) = taken(SflowTable::new(&pairs)) {
        assert_eq!(SflowTable::new(&owned(sflow.pairs())), Ok(sflow));
    }
}

fn options(text: &str) {
    let mut lines = text.splitn(3, '\n');
    let [Some(version), Some(memory), Some(named)] = [lines.next(), lines.next(), lines.next()]
    else {
        return;
    };
    let (Some(qemu), Some(port)) = (taken(version.parse()), taken(named.parse::<NamedAddress>()))
    else {
        return;
    };
    for vmm in [Vmm::Qemu, Vmm::CloudHypervisor, Vmm::Libvirt, Vmm::Crosvm, Vmm::Krunkit] {
        let mtu = text.len().try_into().ok();
        let wanted = Wanted { vmm, memory: memory.to_owned(), qemu, mtu };
        let Some(args) = taken(vm_args(&port.name, &port.address, &wanted)) else { continue };
        let words = args.substituted().unwrap_or_default();
        assert_eq!(words.lines().count(), words.len().min(1), "one line: {words}");
        assert!(args.args.is_empty() || !args.text.is_empty());
        let _ = (args.note(qemu), args.for_tcg());
    }
}

#[cfg(test)]
#[test]
fn kept_inputs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/config");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() >= 16, "the seeds are gone from {corpus}");
    for file in files {
        config(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
