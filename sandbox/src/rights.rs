//! What the process as a whole may do no longer: privileges, core dumps, capabilities.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::thread::Thread;

/// What a switch that was started with capabilities keeps of them: TAP devices are made
/// (`NET_ADMIN`), packet sockets are opened (`NET_RAW`), XDP programs loaded (`BPF`) and the
/// memory of their sockets locked (`IPC_LOCK`), and sockets are made, replaced, connected to and
/// given to a group in directories that belong to others. Files are Landlock's matter all the same.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER);

/// Gives up what no thread of a switch needs. Returns what could not be given up.
pub(crate) fn give_up() -> Vec<String> {
    give_up_but(KEPT)
}

/// Gives up everything. What cannot be is no reason to stop; the switch tells of it.
pub(crate) fn give_up_all() {
    give_up_but(CapabilitySet::empty());
}

fn give_up_but(kept: CapabilitySet) -> Vec<String> {
    let mut lacking = Vec::new();
    let mut note = |what: &str, done: rustix::io::Result<()>| {
        if let Err(e) = done {
            lacking.push(format!("{what} ({e})"));
        }
    };
    note("no_new_privs", set_no_new_privs(true));
    // No core dump, which would hold every guest's memory, and no debugger of the same user.
    note("no core dumps", set_dumpable_behavior(DumpableBehavior::NotDumpable));
    note("fewer capabilities", drop_capabilities(kept));
    lacking
}

fn drop_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    let had = capabilities(None)?;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..u64::BITS {
            // EINVAL: the kernel knows no such capability.
            if let Some(one) = 1u64.checked_shl(bit).map(CapabilitySet::from_bits_retain) {
                let _ = remove_capability_from_bounding_set(one);
            }
        }
    }
    clear_ambient_capability_set()?;
    limit(had, kept)
}

fn limit(had: CapabilitySets, to: CapabilitySet) -> rustix::io::Result<()> {
    let sets = CapabilitySets {
        effective: had.effective & to,
        permitted: had.permitted & to,
        inheritable: CapabilitySet::empty(),
    };
    if sets == had { Ok(()) } else { set_capabilities(None, sets) }
}

/// The calling thread keeps of the capabilities what its kind needs: mostly none.
pub(crate) fn keep_capabilities_of(kind: Thread) {
    let needed = match kind {
        Thread::Control => KEPT,
        Thread::Tap => CapabilitySet::NET_ADMIN,
        // They open sockets of an interface that comes back, and attach the program to it: bpf(2)
        // wanted `BPF` for every command before Linux 5.19, where others may not use it.
        Thread::Xdp => {
            CapabilitySet::NET_RAW.union(CapabilitySet::IPC_LOCK).union(CapabilitySet::BPF)
        }
        // They connect to sockets of others.
        Thread::Port | Thread::Stream => CapabilitySet::DAC_OVERRIDE,
        _ => CapabilitySet::empty(),
    };
    let limited = capabilities(None).and_then(|had| limit(had, needed));
    if let Err(e) = limited {
        log::error!("sandbox: a {} thread keeps its capabilities: {e}", kind.name());
    }
}
