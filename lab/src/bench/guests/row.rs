//! The rows: which NIC, which driver, and how it is driven.

use vmlan_harness::linux_module::MODULE;

use super::super::linux_guest::From;
use super::super::paper::Way;

/// What guests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hardware {
    /// Our e1000 over vfio-user, with the status block.
    E1000,
    /// Our e1000e, each register access trapped.
    E1000e,
    /// The same with its ring registers in shared memory.
    E1000eMapped,
    /// Our vmxnet3.
    Vmxnet3,
    /// The same with doorbells and interrupt masks in shared memory.
    Vmxnet3Mapped,
    /// virtio-net over vhost-user.
    Virtio,
    /// QEMU's own e1000 on a TAP device.
    QemuE1000,
    /// QEMU's own e1000e on a TAP device.
    QemuE1000e,
    /// QEMU's own vmxnet3 on a TAP device.
    QemuVmxnet3,
    /// QEMU's own virtio-net on a TAP device (no vhost-net: the work is QEMU's).
    QemuVirtio,
}

impl Hardware {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::E1000 => "our e1000",
            Self::E1000e => "our e1000e",
            Self::E1000eMapped => "our e1000e, mapped",
            Self::Vmxnet3 => "our vmxnet3",
            Self::Vmxnet3Mapped => "our vmxnet3, mapped",
            Self::Virtio => "virtio-net",
            Self::QemuE1000 => "QEMU's e1000",
            Self::QemuE1000e => "QEMU's e1000e",
            Self::QemuVmxnet3 => "QEMU's vmxnet3",
            Self::QemuVirtio => "QEMU's virtio-net",
        }
    }

    pub(super) fn from(self) -> From {
        match self {
            Self::E1000 => From::Ours("model=e1000,csb=on"),
            Self::E1000e => From::Ours("model=e1000e"),
            Self::E1000eMapped => From::Ours("model=e1000e,doorbell=mapped"),
            Self::Vmxnet3 => From::Ours("model=vmxnet3"),
            Self::Vmxnet3Mapped => From::Ours("model=vmxnet3,doorbell=mapped"),
            Self::Virtio => From::Virtio,
            Self::QemuE1000 => From::Qemu("e1000"),
            Self::QemuE1000e => From::Qemu("e1000e"),
            Self::QemuVmxnet3 => From::Qemu("vmxnet3"),
            Self::QemuVirtio => From::Qemu("virtio-net-pci"),
        }
    }

    /// It is on our switch.
    pub(super) fn is_ours(self) -> bool {
        !matches!(self.from(), From::Qemu(_))
    }
}

/// The module of devices that take every frame and do nothing with it.
const NOTHING: &str = "dummy";

/// A row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) hardware: Hardware,
    /// Module and its parameters; nothing: the driver that is there.
    pub(super) driver: Option<(&'static str, &'static str)>,
    /// Segments are cut by the NIC, and joined by the kernel.
    pub(super) offloads: bool,
    /// Its name in the tables of the paper's numbers.
    pub(super) paper: Option<&'static str>,
    /// The same in the slides' tables.
    pub(super) slides: Option<&'static str>,
    /// The host sends to it (the paper's rows RX).
    pub(super) receives: bool,
    /// It sends (rows TX).
    pub(super) sends: bool,
    /// In a short run too.
    pub(super) short: bool,
    pub(super) note: &'static str,
}

impl Row {
    pub(super) fn needs_module(&self) -> bool {
        self.driver.is_some_and(|(module, _)| module == MODULE)
    }

    /// What it sends goes through a NIC.
    pub(super) fn has_nic(&self) -> bool {
        self.driver.is_none_or(|(module, _)| module != NOTHING)
    }

    /// Who talks to whom.
    pub(super) fn ways(&self) -> Vec<Way> {
        if !self.has_nic() {
            return vec![Way::Host];
        }
        let mut ways = Vec::new();
        if self.sends {
            ways.push(Way::Host);
            if self.hardware.is_ours() {
                ways.push(Way::Switch);
            }
        }
        if self.receives {
            ways.push(Way::FromHost);
        }
        ways
    }
}

const fn module(name: &'static str, options: &'static str, note: &'static str) -> Row {
    Row {
        name,
        hardware: Hardware::E1000,
        driver: Some((MODULE, options)),
        offloads: false,
        paper: None,
        slides: None,
        receives: false,
        sends: true,
        short: false,
        note,
    }
}

const fn there(name: &'static str, hardware: Hardware, note: &'static str) -> Row {
    Row { hardware, driver: None, receives: true, ..module(name, "", note) }
}

const fn receiving(row: Row) -> Row {
    Row { receives: true, sends: false, ..row }
}

/// The stock driver as slow as it gets.
const SLOW: &str =
    "InterruptThrottleRate=0 TxIntDelay=0 TxAbsIntDelay=0 RxIntDelay=0 RxAbsIntDelay=0";

/// All of them, in the order of the tables.
pub(super) const ROWS: &[Row] = &[
    Row {
        driver: Some((NOTHING, "")),
        short: true,
        ..module(
            "no NIC",
            "",
            "a device of the guest's kernel that takes frames and does nothing: what guest and \
            program can send at most, as they count it",
        )
    },
    Row {
        driver: Some(("e1000", "")),
        offloads: true,
        receives: true,
        short: true,
        ..module(
            "stock",
            "",
            "the kernel's own e1000 as it is shipped, with its moderation and TSO",
        )
    },
    Row {
        driver: Some(("e1000", SLOW)),
        ..module(
            "stock-slow",
            "",
            "the same without moderation, delays and offloads: the control \
            of BASE",
        )
    },
    Row {
        paper: Some("plain"),
        slides: Some("plain"),
        receives: true,
        short: true,
        ..module(
            "BASE",
            "csb=0 msi=0",
            "our module with everything off, as the paper's BASE: no \
            moderation, no TSO",
        )
    },
    Row {
        paper: Some("moderated"),
        ..module("itr=250", "csb=0 msi=0 moderated=1 itr_us=62", "interrupts at least 62 us apart")
    },
    Row {
        paper: Some("combined"),
        short: true,
        ..module(
            "SC",
            "csb=0 msi=0 moderated=1 itr_us=62 send_combining=1",
            "send combining, with itr=250",
        )
    },
    module(
        "itr=2ms",
        "csb=0 msi=0 moderated=1 itr_us=2000",
        "interrupts at least 2 ms apart: under TCG a frame alone may take 62 us",
    ),
    Row {
        short: true,
        ..module(
            "SC itr=2ms",
            "csb=0 msi=0 moderated=1 itr_us=2000 send_combining=1 sc_us=4000",
            "send combining with that, for 4 ms at most",
        )
    },
    module(
        "SC-0",
        "csb=0 msi=0 send_combining=1",
        "send combining without moderation (the paper's figure 10)",
    ),
    Row {
        paper: Some("csb"),
        receives: true,
        short: true,
        ..module("CSB", "", "indexes and wishes in shared memory, interrupts by MSI")
    },
    Row {
        paper: Some("csb-moderated"),
        ..module("CSB+itr", "moderated=1 itr_us=62", "CSB with itr=250")
    },
    Row { offloads: true, receives: true, ..module("BASE+TSO", "csb=0 msi=0", "BASE with TSO") },
    Row {
        offloads: true,
        receives: true,
        slides: Some("csb"),
        short: true,
        ..module("CSB+TSO", "", "CSB with TSO")
    },
    receiving(Row {
        paper: Some("moderated-100"),
        ..module("itr=100", "csb=0 msi=0 moderated=1 itr_us=25", "interrupts 25 us apart")
    }),
    receiving(Row {
        paper: Some("combined-100"),
        ..module(
            "SC itr=100",
            "csb=0 msi=0 moderated=1 itr_us=25 send_combining=1",
            "send combining with itr=100",
        )
    }),
    receiving(Row {
        paper: Some("csb-100"),
        ..module("CSB itr=100", "moderated=1 itr_us=25", "CSB with itr=100")
    }),
    Row {
        paper: Some("virtio"),
        short: true,
        ..there("virtio", Hardware::Virtio, "virtio-net over vhost-user, without TSO")
    },
    Row {
        offloads: true,
        slides: Some("virtio"),
        ..there("virtio+TSO", Hardware::Virtio, "virtio-net over vhost-user as it is")
    },
    there("vmxnet3", Hardware::Vmxnet3, "the kernel's vmxnet3 on ours, without TSO"),
    Row {
        offloads: true,
        ..there("vmxnet3+TSO", Hardware::Vmxnet3, "the same as it is shipped, with TSO")
    },
    there(
        "vmxnet3 mapped",
        Hardware::Vmxnet3Mapped,
        "the kernel's vmxnet3 on ours with BAR0 in shared memory, without TSO",
    ),
    Row {
        offloads: true,
        ..there(
            "vmxnet3+TSO mapped",
            Hardware::Vmxnet3Mapped,
            "the same as it is shipped, with TSO",
        )
    },
    Row {
        offloads: true,
        ..there("e1000e", Hardware::E1000e, "the kernel's e1000e on ours, as it is shipped: MSI-X")
    },
    Row {
        offloads: true,
        ..there(
            "e1000e mapped",
            Hardware::E1000eMapped,
            "the same with its ring registers in shared memory",
        )
    },
    Row {
        offloads: true,
        short: true,
        ..there(
            "QEMU's e1000",
            Hardware::QemuE1000,
            "stock e1000 on QEMU's own model, on a TAP device without the switch",
        )
    },
    Row {
        offloads: true,
        ..there(
            "QEMU's e1000e",
            Hardware::QemuE1000e,
            "stock e1000e on QEMU's own model, on a TAP device without the switch",
        )
    },
    Row {
        offloads: true,
        ..there(
            "QEMU's vmxnet3",
            Hardware::QemuVmxnet3,
            "stock vmxnet3 on QEMU's own model, on a TAP device without the switch",
        )
    },
    Row {
        offloads: true,
        short: true,
        ..there(
            "QEMU's virtio",
            Hardware::QemuVirtio,
            "virtio-net of QEMU itself, on a TAP device without the switch",
        )
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_something_to_do() {
        for (n, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..n].iter().all(|other| other.name != row.name), "{}", row.name);
            assert!(!row.ways().is_empty() && !row.note.is_empty(), "{}", row.name);
            assert!(row.hardware.is_ours() || !row.ways().contains(&Way::Switch), "{}", row.name);
            assert!(!row.name.contains(','), "{}: --only takes a list", row.name);
            assert!(row.driver.is_none() || row.hardware == Hardware::E1000, "{}", row.name);
        }
        assert!(ROWS.iter().any(|row| row.name == "BASE" && row.short), "what ratios are over");
    }
}
