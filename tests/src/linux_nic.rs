//! Emulated NICs as their stock Linux drivers have them: what the chapters of a boot test need to
//! know of each.

use crate::{Guest, HarnessError, LanHost, Result, connectivity, guest_tools};
use std::collections::BTreeSet;

/// Where a guest's count of something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// In the chip's statistics: `ethtool -S`.
    Chip(&'static str),
    /// The driver keeps it: `/sys/class/net/eth0/statistics`.
    Driver(&'static str),
}

impl Count {
    /// What it says now.
    ///
    /// # Errors
    /// As [`LanHost::sh`]; [`HarnessError::Garbled`] if there is none of that name.
    pub fn read(self, guest: &mut Guest) -> Result<u64> {
        match self {
            Count::Chip(name) => {
                let all = guest_tools::statistics(guest)?;
                let found = all.get(name).copied();
                let heard = || format!("{all:?}");
                found.ok_or_else(|| HarnessError::Garbled {
                    what: format!("no {name}"),
                    heard: heard(),
                })
            }
            Count::Driver(name) => {
                let heard = guest.sh(&format!("cat /sys/class/net/eth0/statistics/{name}"))?;
                heard.trim().parse().map_err(|_| HarnessError::Garbled { what: name.into(), heard })
            }
        }
    }
}

/// Which groups' frames a NIC lets through, apart from those that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// None, as far as these tests go: some addresses are compared, the rest has 4,096 bits.
    Wide,
    /// Those that share one of 4,096 bits with a joined one: twelve of the address's last two
    /// bytes.
    Bits4096,
    /// Those that share one of 64 bits with a joined one: the upper six of the address's CRC.
    Bits64,
}

/// A NIC, as its driver has it.
#[derive(Clone, Copy, Debug)]
pub struct LinuxNic {
    /// What reports call it.
    pub name: &'static str,
    /// Keys of its port.
    pub keys: &'static str,
    /// The driver's module.
    pub driver: &'static str,
    /// Options that it is loaded with in turn.
    pub options: &'static [&'static str],
    /// Frames received, frames sent, bytes received, bytes sent: as many of these as it counts
    /// well.
    pub sums: &'static [Count],
    /// The same by their names in the datasheet, as `vmlan stats` shows them, several added up by
    /// `+`; none if it counts nothing.
    pub registers: &'static [&'static str],
    /// Bytes that it counts and the switch never sees, with each frame.
    pub trailer: u64,
    /// Frames received.
    pub heard: Count,
    /// Frames to groups received.
    pub groups: Count,
    /// How it chooses among groups.
    pub filter: Filter,
    /// What can be switched, as `ethtool -k` calls it.
    pub offloads: &'static [&'static str],
    /// It sets and takes VLAN tags.
    pub tags: bool,
    /// It lets no VLANs in that the guest is not in.
    pub sorts_tags: bool,
    /// It cuts large segments.
    pub cuts: bool,
    /// The largest MTU that the driver takes and we try.
    pub mtu: u32,
    /// Mbit/s.
    pub speed: u32,
    /// What half a second may carry, as iperf3 has it.
    pub amount: &'static str,
    /// The guest's CPUs.
    pub cpus: u32,
    /// What is added to its kernel's command line.
    pub append: &'static str,
    /// Another has shown what filters and offloads do; here it is about something else.
    pub brief: bool,
}

impl LinuxNic {
    /// What the chip counted, as `vmlan stats` has it: [`LinuxNic::registers`], in bytes as the
    /// switch counts them.
    ///
    /// # Panics
    /// If one of them is missing.
    #[must_use]
    pub fn counted(&self, port: &serde_json::Value) -> Vec<u64> {
        let statistics = &port["device"]["statistics"];
        let read = |name: &str| statistics[name].as_u64().expect("a statistics register");
        let read = |names: &&str| names.split('+').map(read).sum();
        self.untrailed(self.registers.iter().map(read).collect())
    }

    /// Without what the switch never sees of each frame.
    #[must_use]
    pub fn untrailed(&self, mut sums: Vec<u64>) -> Vec<u64> {
        for at in 2..sums.len() {
            sums[at] = sums[at].wrapping_sub(self.trailer * sums[at - 2]);
        }
        sums
    }
}

const E1000_SUMS: &[Count] = &[
    Count::Chip("rx_packets"),
    Count::Chip("tx_packets"),
    Count::Chip("rx_bytes"),
    Count::Chip("tx_bytes"),
];

/// 82540EM.
pub const E1000: LinuxNic = LinuxNic {
    name: "e1000",
    keys: "model=e1000",
    driver: "e1000",
    options: &[""],
    sums: E1000_SUMS,
    registers: &["GPRC", "GPTC", "GORC", "GOTC"],
    trailer: 4,
    heard: Count::Chip("rx_packets"),
    groups: Count::Chip("rx_multicast"),
    filter: Filter::Wide,
    offloads: connectivity::ALL,
    tags: true,
    sorts_tags: true,
    cuts: true,
    mtu: 9000,
    speed: 1000,
    amount: "-n 4M",
    cpus: 1,
    append: "",
    brief: false,
};

/// 82574L and its driver e1000e, with MSI-X. Reloads try MSI and the pin, too.
pub const E1000E: LinuxNic = LinuxNic {
    name: "e1000e",
    keys: "model=e1000e",
    driver: "e1000e",
    options: &["", "IntMode=1", "IntMode=0"],
    // Its driver, unlike the e1000's, compares no group's address.
    filter: Filter::Bits4096,
    // It turns the filter on, and then writes back what RCTL was before that.
    sorts_tags: false,
    cpus: 2,
    ..E1000
};

/// The same with its ring registers in shared memory.
pub const E1000E_MAPPED: LinuxNic = LinuxNic {
    name: "e1000e, mapped",
    keys: "model=e1000e,doorbell=mapped",
    options: &[""],
    cpus: 1,
    brief: true,
    ..E1000E
};

/// The same with the module of `guest/linux`, which counts by itself, without the check sequence.
pub const MODULE: LinuxNic = LinuxNic {
    name: "vmlan_nic",
    keys: "model=e1000,csb=on",
    driver: "vmlan_nic",
    registers: &[],
    trailer: 0,
    ..E1000
};

/// QEMU 11.1's own reads 0 for all statistics but the packets, and cuts its frames itself.
pub const QEMU_E1000: LinuxNic = LinuxNic {
    sums: E1000_SUMS.split_at(2).0,
    registers: &[],
    groups: Count::Chip("rx_packets"),
    cuts: false,
    ..E1000
};

/// RTL8169SB and its driver r8169.
pub const R8169: LinuxNic = LinuxNic {
    name: "r8169",
    keys: "model=r8169",
    driver: "r8169",
    options: &[""],
    sums: &[Count::Chip("rx_packets"), Count::Chip("tx_packets")],
    registers: &["RxOk", "TxOk"],
    trailer: 0,
    heard: Count::Chip("rx_packets"),
    groups: Count::Chip("multicast"),
    filter: Filter::Bits64,
    offloads: connectivity::ALL,
    tags: true,
    sorts_tags: false,
    cuts: true,
    mtu: 7000,
    speed: 1000,
    amount: "-n 4M",
    cpus: 1,
    append: "",
    brief: false,
};

/// RTL8139C+ and its driver 8139cp.
pub const RTL8139_PLUS: LinuxNic = LinuxNic {
    name: "rtl8139, C+",
    // What drivers do that know nothing of a shared status block when there is one.
    keys: "model=rtl8139,csb=on",
    driver: "8139cp",
    sums: &[Count::Chip("rx_ok"), Count::Chip("tx_ok")],
    groups: Count::Chip("rx_ok_mcast"),
    heard: Count::Chip("rx_ok"),
    mtu: 4096,
    speed: 100,
    ..R8169
};

/// A plain RTL8139 and its driver 8139too, which does all by itself.
pub const RTL8139: LinuxNic = LinuxNic {
    name: "rtl8139, plain",
    keys: "model=rtl8139,plus=off",
    driver: "8139too",
    // Registers in memory, and in I/O space.
    options: &["", "use_io=1"],
    sums: &[Count::Driver("rx_packets"), Count::Driver("tx_packets")],
    groups: Count::Driver("rx_packets"),
    heard: Count::Driver("rx_packets"),
    offloads: &[],
    tags: false,
    cuts: false,
    mtu: 1770,
    speed: 100,
    // Five register accesses for each frame.
    amount: "-n 2M",
    ..R8169
};

/// QEMU's own rtl8139 is one with C+, and has no statistics worth the name.
pub const QEMU_RTL8139: LinuxNic = LinuxNic {
    sums: RTL8139.sums,
    registers: &[],
    groups: RTL8139.heard,
    heard: RTL8139.heard,
    cuts: false,
    ..RTL8139_PLUS
};

/// VMware's vmxnet3 and its driver, which shows the device's counters as its own; with two CPUs,
/// and so with as many pairs of queues, and MSI-X.
pub const VMXNET3: LinuxNic = LinuxNic {
    name: "vmxnet3",
    keys: "model=vmxnet3",
    driver: "vmxnet3",
    options: &[""],
    sums: &[
        Count::Driver("rx_packets"),
        Count::Driver("tx_packets"),
        Count::Driver("rx_bytes"),
        Count::Driver("tx_bytes"),
    ],
    registers: &[
        "ucast pkts rx+mcast pkts rx+bcast pkts rx",
        "ucast pkts tx+mcast pkts tx+bcast pkts tx",
        "ucast bytes rx+mcast bytes rx+bcast bytes rx",
        "ucast bytes tx+mcast bytes tx+bcast bytes tx",
    ],
    trailer: 0,
    heard: Count::Driver("rx_packets"),
    groups: Count::Driver("multicast"),
    filter: Filter::Wide,
    offloads: connectivity::ALL,
    tags: true,
    sorts_tags: true,
    cuts: true,
    mtu: 9000,
    speed: 10_000,
    amount: "-n 4M",
    cpus: 2,
    append: "",
    brief: false,
};

/// The same with four pairs of queues. Under TCG each CPU costs half a boot more.
pub const VMXNET3_FOUR: LinuxNic = LinuxNic { name: "vmxnet3, four queues", cpus: 4, ..VMXNET3 };

/// The same with one pair of queues and INTx.
pub const VMXNET3_INTX: LinuxNic =
    LinuxNic { name: "vmxnet3, INTx", cpus: 1, append: "pci=nomsi", brief: true, ..VMXNET3 };

/// The same with doorbells and interrupt masks in shared memory.
pub const VMXNET3_MAPPED: LinuxNic = LinuxNic {
    name: "vmxnet3, mapped",
    keys: "model=vmxnet3,doorbell=mapped",
    cpus: 1,
    brief: true,
    ..VMXNET3
};

/// Groups 239.2.2.N to try a filter with.
#[derive(Debug)]
pub struct Groups {
    /// To join.
    pub joined: Vec<u8>,
    /// Nobody joins it, and it does not get through.
    pub stray: u8,
}

impl Groups {
    /// Chosen so that the groups that the guest is in already let none of them through, and those
    /// to join not the stray.
    ///
    /// # Panics
    /// When nothing is left to choose from.
    pub fn choose(guest: &mut Guest, filter: Filter) -> Result<Groups> {
        if filter == Filter::Wide {
            return Ok(Groups { joined: (1..=20).collect(), stray: 99 });
        }
        let (bit, count): (fn(&str) -> Option<u32>, _) = match filter {
            Filter::Bits64 => (crc_bit, 12),
            _ => (last_bits, 20),
        };
        let own = guest.sh("/bin/ip maddr show dev eth0")?;
        let own: BTreeSet<u32> =
            own.lines().filter_map(|line| bit(line.trim().strip_prefix("link")?.trim())).collect();
        let of = |n: u8| bit(&mac(n)).expect("an address");
        let free = (1..=250).filter(|n| !own.contains(&of(*n)));
        let joined: Vec<u8> = free.clone().take(count).collect();
        let taken: BTreeSet<u32> = joined.iter().map(|n| of(*n)).collect();
        let stray = free.clone().find(|n| !taken.contains(&of(*n))).expect("a free bit");
        Ok(Groups { joined, stray })
    }
}

/// Where frames to 239.2.2.`n` go.
pub fn mac(n: u8) -> String {
    format!("01:00:5e:02:02:{n:02x}")
}

/// The bit of 64 that an address has: the upper six of its CRC, bits as they are sent.
fn crc_bit(mac: &str) -> Option<u32> {
    let mut crc = u32::MAX;
    for byte in mac.split(':') {
        let byte = u32::from_str_radix(byte.split_whitespace().next()?, 16).ok()?;
        for at in 0..8 {
            let carry = (crc >> 31) ^ (byte >> at & 1);
            crc = crc << 1 ^ if carry == 1 { 0x04c1_1db7 } else { 0 };
        }
    }
    Some(crc >> 26)
}

/// The bit of 4,096 that an address has: its last two bytes, the later one above, without the
/// lowest four bits.
fn last_bits(mac: &str) -> Option<u32> {
    let mac = mac.split_whitespace().next()?;
    let mut bytes = mac.rsplit(':').map(|byte| u32::from_str_radix(byte, 16).ok());
    let (last, before) = (bytes.next()??, bytes.next()??);
    Some((last << 8 | before) >> 4)
}
