//! The ways of driving a NIC that are compared, in one table: what the switch is told, what the
//! guest is told, and why.

use crate::failure::Failure;

/// A way of driving a NIC; the same on both ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Technique {
    /// In tables, options and files.
    pub(crate) name: &'static str,
    /// The technique that this one adds one thing to.
    pub(crate) from: Option<&'static str>,
    /// What it adds, or what it is, below the tables.
    pub(crate) note: &'static str,
    /// Kind of port.
    pub(crate) kind: &'static str,
    /// Keys of the port's address at the switch.
    pub(crate) switch: &'static str,
    /// Keys of the address in the guest.
    pub(crate) guest: &'static str,
}

/// All of them; what adds to another one comes after it.
pub(crate) const ALL: &[Technique] = &[
    Technique {
        name: "plain",
        from: None,
        note: "e1000 as it is: each register write waits for its answer (QEMU up to 10), one write \
            of TDT for each frame, 256 descriptors, INTx as it comes (the paper's BASE)",
        kind: "vfio-user",
        switch: "model=e1000",
        guest: "writes=waited",
    },
    e1000("posted", "plain", "writes are sent and not waited for (QEMU 11)", "writes=posted"),
    e1000(
        "burst",
        "posted",
        "one write of TDT for a burst of up to 256 frames (Linux' xmit_more)",
        "writes=posted,batch=on",
    ),
    e1000(
        "ring-1024",
        "burst",
        "1,024 descriptors instead of 256",
        "writes=posted,batch=on,size=1024",
    ),
    e1000(
        "msi",
        "ring-1024",
        "interrupts are messages, which need no unmasking; ICR is read for each",
        "writes=posted,batch=on,size=1024,irq=msi",
    ),
    e1000(
        "msi-unread",
        "msi",
        "ICR is not read after a message: a posted write clears it",
        "writes=posted,batch=on,size=1024,irq=msi,causes=unread",
    ),
    Technique {
        switch: "model=e1000,csb=on",
        ..e1000(
            "csb",
            "msi-unread",
            "indices in a block of shared memory, kicks and interrupts only for a side that \
                sleeps (the paper's CSB)",
            "writes=posted,batch=on,size=1024,irq=msi,causes=unread,csb=on",
        )
    },
    Technique {
        name: "virtio",
        from: Some("csb"),
        note: "virtio-net over vhost-user instead of e1000, rings of 1,024 descriptors",
        kind: "vhost-user",
        switch: "",
        guest: "",
    },
    Technique {
        switch: "model=e1000,doorbell=mapped",
        ..e1000(
            "mapped",
            "posted",
            "TDT and RDT are words in shared memory",
            "writes=posted,doorbell=mapped",
        )
    },
    Technique {
        switch: "model=e1000,doorbell=mapped",
        ..e1000(
            "msi-mapped",
            "msi-unread",
            "TDT and RDT are words in shared memory: all that csb has but the block",
            "writes=posted,batch=on,size=1024,irq=msi,causes=unread,doorbell=mapped",
        )
    },
    e1000(
        "moderated",
        "plain",
        "interrupts at least 62.5 us apart: ITR=244, in units of 256 ns (the paper's itr=250, of \
            250 ns)",
        "writes=waited,itr=244",
    ),
    e1000(
        "combined",
        "moderated",
        "one write of TDT under way: frames meanwhile wait for its interrupt (the paper's SC)",
        "writes=waited,itr=244,combine=on",
    ),
    e1000("combined-0", "plain", "send combining without moderation", "writes=waited,combine=on"),
    e1000(
        "msi-moderated",
        "msi",
        "interrupts at least 62.5 us apart: ITR=244",
        "writes=posted,batch=on,size=1024,irq=msi,itr=244",
    ),
    e1000(
        "lazy",
        "msi",
        "sent frames are reported now and then and do not interrupt",
        "writes=posted,batch=on,size=1024,irq=msi,completion=lazy",
    ),
    e1000(
        "lazy-polling",
        "lazy",
        "the receiver never waits for an interrupt",
        "writes=posted,batch=on,size=1024,irq=msi,completion=lazy,receive=poll",
    ),
    e1000(
        "polling",
        "plain",
        "the receiver never waits for an interrupt",
        "writes=waited,receive=poll",
    ),
    Technique {
        switch: "model=e1000,csb=on",
        ..e1000(
            "csb-moderated",
            "csb",
            "interrupts at least 62.5 us apart: ITR=244",
            "writes=posted,batch=on,size=1024,irq=msi,causes=unread,csb=on,itr=244",
        )
    },
    e1000(
        "moderated-100",
        "plain",
        "interrupts at least 25 us apart: ITR=98 (the paper's itr=100)",
        "writes=waited,itr=98",
    ),
    e1000("combined-100", "moderated-100", "send combining", "writes=waited,itr=98,combine=on"),
    Technique {
        switch: "model=e1000,csb=on",
        ..e1000(
            "csb-100",
            "csb",
            "interrupts at least 25 us apart: ITR=98",
            "writes=posted,batch=on,size=1024,irq=msi,causes=unread,csb=on,itr=98",
        )
    },
    Technique {
        switch: "model=e1000,csb=on",
        ..e1000(
            "csb-256",
            "csb",
            "rings of 256 descriptors",
            "writes=posted,batch=on,size=256,irq=msi,causes=unread,csb=on",
        )
    },
    Technique {
        switch: "model=e1000,csb=on",
        ..e1000(
            "csb-4096",
            "csb",
            "rings of 4,096 descriptors",
            "writes=posted,batch=on,size=4096,irq=msi,causes=unread,csb=on",
        )
    },
    Technique {
        switch: "model=e1000,doorbell=mapped",
        ..e1000(
            "mapped-4096",
            "mapped",
            "rings of 4,096 descriptors",
            "writes=posted,doorbell=mapped,size=4096",
        )
    },
    Technique {
        switch: "model=e1000e,doorbell=mapped",
        ..e1000(
            "e1000e-mapped",
            "mapped",
            "e1000e instead of e1000: MSI-X, extended receive descriptors",
            "writes=posted,doorbell=mapped,model=e1000e",
        )
    },
    Technique {
        switch: "model=vmxnet3",
        ..e1000(
            "vmxnet3-plain",
            "plain",
            "vmxnet3 instead of e1000: rings of 512 descriptors, MSI-X, doorbells only if it wants \
                them",
            "writes=waited,model=vmxnet3",
        )
    },
    Technique {
        switch: "model=vmxnet3",
        ..e1000(
            "vmxnet3-burst",
            "vmxnet3-plain",
            "it is asked whether it wants a doorbell once for a burst of up to 256 frames",
            "writes=waited,model=vmxnet3,batch=on",
        )
    },
    Technique {
        switch: "model=vmxnet3,doorbell=mapped",
        ..e1000(
            "vmxnet3-mapped",
            "vmxnet3-burst",
            "BAR0, doorbells and interrupt masks, is shared memory",
            "writes=waited,model=vmxnet3,batch=on,doorbell=mapped",
        )
    },
    Technique {
        switch: "model=vmxnet3,doorbell=mapped",
        ..e1000(
            "vmxnet3-4096",
            "vmxnet3-mapped",
            "rings of 4,096 descriptors",
            "writes=waited,model=vmxnet3,batch=on,doorbell=mapped,size=4096",
        )
    },
    Technique {
        name: "virtio-4096",
        from: Some("virtio"),
        note: "rings of 4,096 descriptors instead of 1,024",
        kind: "vhost-user",
        switch: "",
        guest: "size=4096",
    },
];

const fn e1000(
    name: &'static str,
    from: &'static str,
    note: &'static str,
    guest: &'static str,
) -> Technique {
    Technique { name, from: Some(from), note, kind: "vfio-user", switch: "model=e1000", guest }
}

impl Technique {
    /// The technique it adds to, and what it adds.
    pub(crate) fn words(&self) -> String {
        match self.from {
            Some(from) => format!("{from}, and: {}", self.note),
            None => self.note.into(),
        }
    }

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
    use std::collections::BTreeSet;

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

    /// What differs between two lists of keys.
    fn differing(one: &str, other: &str) -> BTreeSet<String> {
        let keys = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
        let (one, other) = (keys(one), keys(other));
        let key = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
        one.symmetric_difference(&other).map(key).filter(|key| !key.is_empty()).collect()
    }

    #[test]
    fn each_adds_one_thing_to_one_that_stands_before_it() {
        for (n, t) in ALL.iter().enumerate().skip(1) {
            let from = ALL[..n].iter().find(|base| Some(base.name) == t.from);
            let from = from.unwrap_or_else(|| panic!("{} adds to nothing before it", t.name));
            if t.kind != from.kind {
                continue;
            }
            let mut keys = differing(from.switch, t.switch);
            keys.extend(differing(from.guest, t.guest));
            assert_eq!(keys.len(), 1, "{} differs from {} in {keys:?}", t.name, from.name);
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
