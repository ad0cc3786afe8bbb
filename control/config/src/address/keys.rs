//! The words: which keys each kind of port has, and the tables of the configuration file.

use std::time::Duration;

use super::{Kind, Takes};

/// A key of an address, or of a table of the configuration file.
#[derive(Debug)]
pub struct Key {
    /// Its word.
    pub name: &'static str,
    /// What its value may be.
    pub takes: Takes,
    /// One line for `--help`.
    pub help: &'static str,
}

const fn key(name: &'static str, takes: Takes, help: &'static str) -> Key {
    Key { name, takes, help }
}

const CONNECT: Key =
    key("connect", Takes::OnOff, "connect to the socket (and keep trying); else listen");
const MODE: Key = key("mode", Takes::Mode, "permission bits of the socket file, e.g. 0660");
const GROUP: Key = key("group", Takes::Text, "group that owns the socket file");
const IRQ_RATE_MAX: Key = key(
    "irq_rate_max",
    Takes::Number(0, 1_000_000),
    "interrupts a second at most, whatever the guest asks for (default 0: no limit)",
);

const MEMORY: Key = key(
    "memory",
    Takes::Word(&["ram", "disk"]),
    "files that the VM's memory may be in: ram (default; memfd, /dev/shm, hugetlbfs), or also on a \
        disk (ext4, xfs, btrfs, f2fs), which other ports of its worker may have to wait for",
);

/// How long a worker may sleep without a look at doorbells that wake nobody.
const POLL_IDLE: Takes = Takes::Time(Duration::from_micros(50), Duration::from_secs(1));

const IP: Key =
    key("ip", Takes::Ipv4, "address that the gateway of a nat: port keeps for it, like 10.77.0.20");

const VHOST_USER: &[Key] = &[
    CONNECT,
    MODE,
    GROUP,
    key("queues", Takes::Short(1, 64), "queue pairs offered"),
    IRQ_RATE_MAX,
    key("mac", Takes::Mac, "MAC address to give the VM (in vm-args)"),
    key(
        "mtu",
        Takes::Short(68, 9216),
        "MTU of the guest (in vm-args; default: that of the narrowest link, if below 1500)",
    ),
    MEMORY,
    IP,
];

const VFIO_USER: &[Key] = &[
    key(
        "model",
        Takes::Word(&["e1000", "e1000e", "r8169", "rtl8139", "vmxnet3"]),
        "the NIC that the guest sees: e1000 (default, Intel 82540EM), e1000e (82574L), r8169 \
            (RTL8169SB), rtl8139 (RTL8139C+) or vmxnet3 (VMware's)",
    ),
    key(
        "plus",
        Takes::OnOff,
        "with model=rtl8139: off for a plain RTL8139, which Linux's 8139too and systems older than \
            the C+ want (default on)",
    ),
    key(
        "doorbell",
        Takes::Word(&["trapped", "mapped"]),
        "trapped: ringing leaves the guest (default); mapped: it is a store to shared memory",
    ),
    key(
        "csb",
        Takes::OnOff,
        "offer shared indexes to drivers that know them: no doorbell, no interrupt while both \
            sides look (default off)",
    ),
    key(
        "poll_idle",
        POLL_IDLE,
        "sleep at most this long between looks at mapped doorbells (default 1ms)",
    ),
    IRQ_RATE_MAX,
    key("mac", Takes::Mac, "MAC address in its EEPROM (default: derived from the port's name)"),
    key("link", Takes::Word(&["up", "down"]), "up (default) or down: the NIC's cable"),
    MEMORY,
    MODE,
    GROUP,
    IP,
];

const LINK_MTU: Key = key(
    "mtu",
    Takes::Short(68, 9216),
    "bytes of the longest packet that the link behind it carries; the senders of longer ones are \
        told (default for tap:, packet: and xdp: the device's MTU if that is below 1500, else any)",
);

const TAP: &[Key] = &[
    LINK_MTU,
    key("queues", Takes::Short(1, 256), "queues of the device"),
    key(
        "offload",
        Takes::OnOff,
        "take unfinished checksums and segments from the host (default on)",
    ),
];

const PACKET: &[Key] = &[LINK_MTU];

const XDP: &[Key] = &[
    LINK_MTU,
    key("queues", Takes::Short(1, 64), "queues of the interface, from the first on (default: all)"),
    key(
        "zerocopy",
        Takes::OnOff,
        "its device writes to the switch's memory: on, off, or (default) if it can",
    ),
];

const STREAM: &[Key] = &[
    CONNECT,
    MODE,
    key("mac", Takes::Mac, "MAC address to give the VM (in vm-args)"),
    LINK_MTU,
    IP,
];

const PCAP: &[Key] = &[
    key("ports", Takes::Ports, "ports to capture, joined by '+' (default: all)"),
    key("snaplen", Takes::Number(14, 262_144), "bytes kept of each frame (default: all)"),
];

const NAT: &[Key] = &[
    key("domain", Takes::Domain, "what names of ports end in (default lan)"),
    key(
        "dns",
        Takes::Servers,
        "whom names outside are asked of: host (default: the host's servers), off, or addresses \
            joined by '+'",
    ),
    key("dhcp", Takes::OnOff, "give addresses (default on)"),
    key(
        "lease",
        Takes::Time(Duration::from_secs(60), Duration::from_secs(604_800)),
        "how long an address is given for (default 3600s)",
    ),
    key(
        "ipv6",
        Takes::Ipv6,
        "IPv6: on (default: a prefix made of the port's name), off, or a prefix of 64 bits",
    ),
    key(
        "forward",
        Takes::Forwards,
        "ports of the host that lead to VMs, [tcp:|udp:][ADDRESS:]PORT:VM:PORT joined by '+'",
    ),
    key(
        "host",
        Takes::HostPorts,
        "ports of the host's loopback that VMs reach at the gateway's address, like tcp:5432, \
            joined by '+', or all (default none)",
    ),
    key("block", Takes::Prefixes, "where VMs may not go: prefixes joined by '+'"),
    key(
        "allow",
        Takes::AllowedPrefixes,
        "where VMs may go though it is closed by default: prefixes joined by '+'; none: nowhere \
            outside",
    ),
    key("flows", Takes::Number(1, 65_536), "connections of one VM (default 1024)"),
    key("flow_rate", Takes::Number(1, 100_000), "new ones of one VM in a second (default 200)"),
    key(
        "mtu",
        Takes::Short(576, 9000),
        "bytes of the longest packet (default 1500); a narrower link of the LAN makes it less",
    ),
    key("mac", Takes::Mac, "MAC address of the gateway (default: derived from the port's name)"),
];

/// How long an idle bucket gathers tokens.
const BURST: Takes = Takes::Time(Duration::from_micros(100), Duration::from_secs(1));
const VID: Takes = Takes::Short(1, 4094);

/// What a port may do: keys of all kinds but `pcap`, all changed without closing the port.
pub const POLICY: &[Key] = &[
    key(
        "macs",
        Takes::Macs,
        "source MACs it may use: any (default), first (the first one seen, until its peer \
            disconnects), or a list joined by '+', which is also pinned to it",
    ),
    key(
        "ips",
        Takes::Ips,
        "IP addresses it may claim: any (default), none, leased (those that a nat: port gave it), \
            or ADDR[/LEN] joined by '+'; ARP and neighbour discovery must agree",
    ),
    key("dhcp_guard", Takes::OnOff, "it may not answer as a DHCP server (default off)"),
    key("ra_guard", Takes::OnOff, "it may not advertise itself as a router (default off)"),
    key("member", Takes::Groups, "groups it belongs to, joined by '+'"),
    key(
        "reach",
        Takes::Reach,
        "whom it may send to: all (default), none, or members of groups joined by '+'",
    ),
    key(
        "uplink",
        Takes::Uplink,
        "the only uplink its traffic leaves by: a port, or any (default); that port's bandwidth is \
            shared by weight",
    ),
    key("vlan", VID, "the VLAN it is in; its frames carry no tag"),
    key("trunk", Takes::Vids, "VLANs whose frames carry tags here: all, or like 1+10-20"),
    key("native", VID, "of a trunk: the VLAN whose frames carry no tag"),
    key("qinq", VID, "the service VLAN (802.1ad) all its frames are in, whatever they carry"),
    key("qinq_trunk", Takes::Vids, "service VLANs whose frames carry outer tags here"),
    key("broadcast_frames", Takes::Count, "frames a second to everybody it may send"),
    key("multicast_frames", Takes::Count, "frames a second to groups it may send"),
    key("unknown_frames", Takes::Count, "frames a second to unknown addresses it may send"),
    key(
        "unknown",
        Takes::Word(&["flood", "drop"]),
        "what becomes of its frames to unknown addresses: flood (default): to all, or drop",
    ),
    key(
        "reserved",
        Takes::Word(&["drop", "pass"]),
        "what becomes of its frames to 01:80:c2:00:00:00 to 0f (LACP, STP, LLDP, pause): drop \
            (default), or pass: to all",
    ),
    key(
        "multicast",
        Takes::Word(&["all", "joined"]),
        "the multicast groups it gets: all (default), or those that it has joined (IGMP, MLD)",
    ),
    key(
        "team",
        Takes::Team,
        "the team it belongs to: ports that share addresses, or uplinks to one switch; what is for \
            the team goes to one of them",
    ),
    key(
        "steer",
        Takes::Steer,
        "of a team: which member gets a frame, by a hash over hash:src+dst+ports (default) in \
            proportion to weight, or by ip: the one whose ips= has the packet's destination",
    ),
    key(
        "announce",
        Takes::OnOff,
        "guests are announced to it when their drivers become ready (default: on for tap:, \
            packet: and xdp:, and for ports that others name as uplink)",
    ),
    key("from_rate", Takes::Rate, "bits a second it may send, 64kbit to 400Gbit, like 2.5Gbit"),
    key("from_frames", Takes::Count, "frames a second it may send"),
    key("from_burst", BURST, "time's worth of both that it may send at once (default 10ms)"),
    key("from_limit", Takes::Limit, "a limit shared with others, for what it sends"),
    key("to_rate", Takes::Rate, "bits a second that may be sent to it"),
    key("to_frames", Takes::Count, "frames a second that may be sent to it"),
    key("to_burst", BURST, "time's worth of both that may be sent at once (default 10ms)"),
    key("to_limit", Takes::Limit, "a limit shared with others, for what is sent to it"),
    key(
        "weight",
        Takes::Short(1, 1000),
        "its share of switch and uplink in relation to others' (default 1)",
    ),
    key(
        "watch",
        Takes::Watch,
        "it receives copies of these ports' frames (all, or names joined by '+') and takes no part \
            in switching",
    ),
    key(
        "watch_vlan",
        VID,
        "it receives copies of this VLAN's frames and takes no part in switching",
    ),
];

/// `[limit.NAME]`: a limit that ports share.
pub const LIMIT: &[Key] = &[
    key("rate", Takes::Rate, "bits a second, 64kbit to 400Gbit"),
    key("frames", Takes::Count, "frames a second"),
    key("burst", BURST, "time's worth of both that may come at once (default 10ms)"),
];

/// `[sflow]`: samples of frames and counters for a collector.
pub const SFLOW: &[Key] = &[
    key("collector", Takes::Socket, "IP:PORT that samples are sent to"),
    key("sampling", Takes::Number(1, 1 << 24), "one frame in N is sampled (default 1000)"),
    key("polling", Takes::Number(0, 86_400), "seconds between counters, 0 for none (default 20)"),
    key("agent", Takes::Ip, "this switch's address in the samples"),
    key("header", Takes::Short(14, 128), "bytes kept of each sampled frame (default 128)"),
];

impl Kind {
    /// The keys that only some kinds have.
    pub const fn keys(self) -> &'static [Key] {
        match self {
            Self::VhostUser => VHOST_USER,
            Self::VfioUser => VFIO_USER,
            Self::Tap => TAP,
            Self::Packet => PACKET,
            Self::Xdp => XDP,
            Self::Stream => STREAM,
            Self::Pcap => PCAP,
            Self::Nat => NAT,
        }
    }

    /// The keys that say what a port may do.
    pub const fn policy_keys(self) -> &'static [Key] {
        match self {
            Self::Pcap => &[],
            _ => POLICY,
        }
    }

    /// All its keys.
    pub fn all_keys(self) -> impl Iterator<Item = &'static Key> + Clone {
        self.keys().iter().chain(self.policy_keys())
    }

    /// True if a change of this key does not close the port.
    pub fn is_live(self, key: &str) -> bool {
        let own: &[&str] = match self {
            Self::VfioUser => &["mode", "link", "irq_rate_max", "ip"],
            Self::VhostUser => &["mode", "mac", "irq_rate_max", "ip"],
            Self::Tap | Self::Packet | Self::Xdp | Self::Stream | Self::Pcap => {
                &["mode", "mac", "ip", "mtu"]
            }
            Self::Nat => &[
                "domain",
                "dns",
                "dhcp",
                "lease",
                "forward",
                "host",
                "block",
                "allow",
                "flows",
                "flow_rate",
            ],
        };
        own.contains(&key) || self.policy_keys().iter().any(|k| k.name == key)
    }
}
