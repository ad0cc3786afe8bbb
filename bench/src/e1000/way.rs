//! The ways of ringing and of being interrupted.

use super::super::peers::Error;

/// One way: the same on both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// In tables and options.
    pub name: &'static str,
    /// What it is, below the table.
    pub note: &'static str,
    /// The kind of port.
    pub kind: &'static str,
    /// Keys for the switch.
    pub switch: &'static str,
    /// Keys for pkt-gen.
    pub guest: &'static str,
}

/// All of them, in the order of the table; the first is what the others are compared with.
pub const ALL: &[Way] = &[
    Way {
        name: "plain-waited",
        note: "each write to TDT is a message that is answered (QEMU 10, Cloud Hypervisor)",
        kind: "vfio-user",
        switch: ",model=e1000",
        guest: ",writes=waited",
    },
    Way {
        name: "plain-posted",
        note: "writes are sent and not waited for (QEMU 11)",
        kind: "vfio-user",
        switch: ",model=e1000",
        guest: ",writes=posted",
    },
    Way {
        name: "moderated",
        note: "as plain-waited, ITR=488: at most 8,000 interrupts/s",
        kind: "vfio-user",
        switch: ",model=e1000",
        guest: ",writes=waited,itr=488",
    },
    Way {
        name: "mapped",
        note: "TDT and RDT are words in shared memory; the same driver, one store for each frame",
        kind: "vfio-user",
        switch: ",model=e1000,doorbell=mapped",
        guest: ",doorbell=mapped",
    },
    Way {
        name: "mapped-4096",
        note: "as mapped, rings of 4,096 descriptors instead of 256, and interrupts only while there is nothing to do",
        kind: "vfio-user",
        switch: ",model=e1000,doorbell=mapped",
        guest: ",doorbell=mapped,size=4096,interrupts=idle",
    },
    Way {
        name: "virtio",
        note: "virtio-net over vhost-user, for comparison",
        kind: "vhost-user",
        switch: "",
        guest: "",
    },
];

/// The ways named, or all.
///
/// # Errors
/// [`Error::Failed`] for a name that is none, with those that are.
pub fn chosen(names: &[String]) -> Result<Vec<Way>, Error> {
    let find = |name: &String| {
        ALL.iter().find(|way| way.name == name).copied().ok_or_else(|| {
            let all: Vec<_> = ALL.iter().map(|way| way.name).collect();
            Error::Failed(format!("'{name}' is no way: {}", all.join(", ")))
        })
    };
    if names.is_empty() { Ok(ALL.to_vec()) } else { names.iter().map(find).collect() }
}
