//! The ways of driving a NIC that are compared, in one table: what the switch is told, what the
//! guest is told, and why.

use crate::failure::Failure;

/// A way of driving a NIC; the same on both ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Technique {
    /// In tables, options and files.
    pub(crate) name: &'static str,
    /// What it is, below the tables.
    pub(crate) note: &'static str,
    /// Kind of port.
    pub(crate) kind: &'static str,
    /// Keys of the port's address at the switch.
    pub(crate) switch: &'static str,
    /// Keys of the address in the guest.
    pub(crate) guest: &'static str,
}

/// All of them. The first is what the others are compared with.
pub(crate) const ALL: &[Technique] = &[
    Technique {
        name: "plain",
        note: "e1000 as it is: one write of TDT for each frame, one RS, interrupts as they come \
            (the paper's BASE)",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=waited",
    },
    Technique {
        name: "moderated",
        note: "interrupts at least 62.5 us apart: ITR=244, in units of 256 ns (the paper's itr=250, of 250 ns)",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=waited,itr=244",
    },
    Technique {
        name: "combined",
        note: "as moderated, and one write of TDT under way: frames meanwhile wait for its \
            interrupt (the paper's SC)",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=waited,itr=244,combine=on",
    },
    Technique {
        name: "csb",
        note: "indices in a block of shared memory, kicks and interrupts only for a side that \
            sleeps (the paper's CSB); MSI; 1,024 descriptors, as virtio here (the paper's driver: \
            2,048)",
        kind: "vfio-user",
        switch: "model=e1000,csb=on",
        guest: "writes=waited,csb=on,irq=msi,size=1024",
    },
    Technique {
        name: "mapped",
        note: "TDT and RDT are words in shared memory; the driver is that of plain",
        kind: "vfio-user",
        switch: "model=e1000,doorbell=mapped",
        guest: "writes=waited,doorbell=mapped",
    },
    Technique {
        name: "polling",
        note: "plain, but the receiver never waits for an interrupt",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=waited,receive=poll",
    },
    Technique {
        name: "virtio",
        note: "virtio-net over vhost-user, rings of 1,024 descriptors",
        kind: "vhost-user",
        switch: "",
        guest: "",
    },
    Technique {
        name: "csb-256",
        note: "csb with rings of 256 descriptors, as many as plain has",
        kind: "vfio-user",
        switch: "model=e1000,csb=on",
        guest: "writes=waited,csb=on,irq=msi",
    },
    Technique {
        name: "csb-4096",
        note: "csb with rings of 4,096 descriptors",
        kind: "vfio-user",
        switch: "model=e1000,csb=on",
        guest: "writes=waited,csb=on,irq=msi,size=4096",
    },
    Technique {
        name: "mapped-4096",
        note: "mapped with rings of 4,096 descriptors, interrupts only while there is nothing to \
            do",
        kind: "vfio-user",
        switch: "model=e1000,doorbell=mapped",
        guest: "writes=waited,doorbell=mapped,size=4096,interrupts=idle",
    },
    Technique {
        name: "virtio-4096",
        note: "virtio with rings of 4,096 descriptors instead of 1,024",
        kind: "vhost-user",
        switch: "",
        guest: "size=4096",
    },
    Technique {
        name: "posted",
        note: "plain, but register writes are sent and not waited for (QEMU 11)",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=posted",
    },
];

impl Technique {
    /// `KIND:PATH,KEYS` as the switch takes it.
    pub(crate) fn at_switch(&self, path: &str) -> String {
        self.address(path, &[self.switch])
    }

    /// The same socket as the guest takes it, with `more` keys.
    pub(crate) fn at_guest(&self, path: &str, more: &str) -> String {
        self.address(path, &[self.guest, more])
    }

    fn address(&self, path: &str, keys: &[&str]) -> String {
        let mut text = format!("{}:{path}", self.kind);
        for keys in keys.iter().filter(|keys| !keys.is_empty()) {
            text = format!("{text},{keys}");
        }
        text
    }
}

/// The techniques with these names, in the order of the table; a name that is none is refused with
/// those that are.
pub(crate) fn named(names: &[impl AsRef<str>]) -> Result<Vec<&'static Technique>, Failure> {
    let is = |t: &Technique, name: &str| t.name == name;
    if let Some(odd) = names.iter().find(|n| !ALL.iter().any(|t| is(t, n.as_ref()))) {
        let all: Vec<_> = ALL.iter().map(|t| t.name).collect();
        let text = format!("'{}' is not a technique: there are {}", odd.as_ref(), all.join(", "));
        return Err(Failure::Usage(text));
    }
    Ok(ALL.iter().filter(|t| names.iter().any(|n| is(t, n.as_ref()))).collect())
}

/// The technique with this name.
pub(crate) fn one(name: &str) -> Result<&'static Technique, Failure> {
    named(&[name]).map(|found| found[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_an_address_that_the_switch_and_the_driver_take() {
        for t in ALL {
            let at_switch = format!("a={}", t.at_switch("/tmp/a"));
            at_switch
                .parse::<vmlan_config::address::NamedAddress>()
                .unwrap_or_else(|e| panic!("{at_switch}: {e}"));
            let at_guest = t.at_guest("/tmp/a", "");
            at_guest
                .parse::<vmlan_transport::Address>()
                .unwrap_or_else(|e| panic!("{at_guest}: {e}"));
        }
    }

    #[test]
    fn names_are_looked_up_in_the_order_of_the_table() {
        let found = named(&["virtio", "plain"]).unwrap();
        assert_eq!(found.iter().map(|t| t.name).collect::<Vec<_>>(), ["plain", "virtio"]);
        assert_eq!(found[0].at_guest("/x", "size=64"), "vfio-user:/x,writes=waited,size=64");
        assert_eq!(found[1].at_switch("/x"), "vhost-user:/x");
        let Err(Failure::Usage(text)) = named(&["magic"]) else { panic!("magic is a technique") };
        assert!(text.contains("magic") && text.contains("csb-4096"), "{text}");
    }
}
