//! What a port is: the keys that only its kind has, typed.

use std::net::IpAddr;
use std::time::Duration;

use vmlan_frame::Mac;

use super::values::Values;
use super::{AddressError, Kind, PortName};
use crate::gateway::{Forward, HostPorts, Ipv6, Prefix};

/// What a port is, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Spec {
    /// A VM's virtio-net NIC.
    VhostUser(VhostUser),
    VfioUser(VfioUser),
    Tap(Tap),
    /// An interface, by a packet socket.
    Packet(Packet),
    /// An interface, by XDP sockets.
    Xdp(Xdp),
    /// QEMU's `-netdev stream` framing.
    Stream(Stream),
    Pcap(Pcap),
    /// A gateway.
    Nat(Box<Nat>),
}

/// Keys of a vhost-user port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUser {
    /// Connect to the socket, rather than listen.
    pub connect: bool,
    /// Permission bits of the socket file.
    pub mode: Option<u32>,
    /// Group that owns the socket file.
    pub group: Option<String>,
    /// Queue pairs offered.
    pub queues: u16,
    /// Interrupts a second at most; 0: no limit.
    pub irq_rate_max: u32,
    /// MAC address to give the VM.
    pub mac: Option<Mac>,
    /// MTU told to the guest.
    pub mtu: Option<u16>,
    /// Its memory may be in a file on a disk.
    pub disk_memory: bool,
}

/// Keys of a vfio-user port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VfioUser {
    pub model: Model,
    pub doorbell: Doorbell,
    /// Offer shared indexes to drivers that know them.
    pub csb: bool,
    /// Longest sleep between looks at mapped doorbells; `None`: the usual one.
    pub poll_idle: Option<Duration>,
    /// Interrupts a second at most; 0: no limit.
    pub irq_rate_max: u32,
    /// MAC address in its EEPROM; `None`: one derived from the port's name.
    pub mac: Option<Mac>,
    /// Its cable is plugged in.
    pub link: bool,
    /// Its VM's memory may be in a file on a disk.
    pub disk_memory: bool,
    /// Permission bits of the socket file.
    pub mode: Option<u32>,
    /// Group that owns the socket file.
    pub group: Option<String>,
}

/// The NICs that are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Intel 82540EM.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Realtek RTL8169SB.
    R8169,
    /// Realtek RTL8139C+, or without `plus` an RTL8139.
    Rtl8139 {
        /// It has the C+ mode.
        plus: bool,
    },
    /// VMware's vmxnet3.
    Vmxnet3,
}

/// How the guest rings an emulated NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Ringing leaves the guest.
    Trapped,
    /// Ringing is a store to shared memory.
    Mapped,
}

/// Keys of a TAP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Queues of the device.
    pub queues: u16,
    /// Take unfinished checksums and segments from the host.
    pub offload: bool,
    /// Bytes of the longest packet; `None`: the device's MTU.
    pub mtu: Option<u16>,
}

/// Keys of an interface by a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes of the longest packet; `None`: the interface's MTU.
    pub mtu: Option<u16>,
}

/// Keys of an interface by XDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// Queues of the interface, from the first on; `None`: all there are.
    pub queues: Option<u16>,
    /// Its device writes to our memory; `None`: if it can.
    pub zero_copy: Option<bool>,
    /// Bytes of the longest packet; `None`: the interface's MTU.
    pub mtu: Option<u16>,
}

/// Keys of a stream port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Connect to the socket, rather than listen.
    pub connect: bool,
    /// Permission bits of the socket file.
    pub mode: Option<u32>,
    /// MAC address to give the VM.
    pub mac: Option<Mac>,
    /// Bytes of the longest packet; `None`: any.
    pub mtu: Option<u16>,
}

/// Keys of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcap {
    /// The ports that are captured; `None`: all.
    pub ports: Option<Vec<PortName>>,
    /// Bytes kept of each frame; `None`: all.
    pub snaplen: Option<u32>,
}

/// Keys of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat {
    /// What names end in.
    pub domain: String,
    /// Whom names are asked of; `None`: nobody. Empty: the host's servers.
    pub dns: Option<Vec<IpAddr>>,
    /// It gives addresses.
    pub dhcp: bool,
    /// How long for.
    pub lease: Duration,
    /// It has IPv6.
    pub ipv6: Ipv6,
    /// Ports of the host that lead to VMs.
    pub forwards: Vec<Forward>,
    /// Ports of the host's loopback that VMs reach.
    pub host: HostPorts,
    /// Where they may not go.
    pub block: Vec<Prefix>,
    /// Where they may go all the same; `None`: nowhere outside.
    pub allow: Option<Vec<Prefix>>,
    /// Connections of one VM.
    pub flows: u32,
    /// New ones in a second.
    pub flow_rate: u32,
    /// Bytes of the longest packet.
    pub mtu: u16,
    /// Its MAC address; `None`: one derived from the port's name.
    pub mac: Option<Mac>,
}

impl Nat {
    fn new(values: &Values) -> Self {
        let usual = crate::gateway::Setup::default();
        let servers = values.servers("dns").unwrap_or(Some(&[]));
        let allow = values.prefixes("allow").unwrap_or(Some(&[]));
        Self {
            domain: values.text("domain").unwrap_or(usual.domain),
            dns: servers.map(<[_]>::to_vec),
            dhcp: values.on("dhcp").unwrap_or(usual.dhcp),
            lease: values.time("lease").unwrap_or(Duration::from_secs(usual.lease.into())),
            ipv6: values.ipv6("ipv6"),
            forwards: values.forwards("forward").to_vec(),
            host: values.host_ports("host"),
            block: values.prefixes("block").flatten().unwrap_or_default().to_vec(),
            allow: allow.map(<[_]>::to_vec),
            flows: values.number("flows").unwrap_or(usual.flows),
            flow_rate: values.number("flow_rate").unwrap_or(usual.flow_rate),
            mtu: values.short("mtu").unwrap_or(usual.mtu),
            mac: values.mac("mac"),
        }
    }
}

impl Model {
    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::R8169 => "r8169",
            Self::Rtl8139 { .. } => "rtl8139",
            Self::Vmxnet3 => "vmxnet3",
        }
    }

    /// What is in one page with its doorbells and must not be shared memory; `None`: nothing.
    const fn beside_doorbells(self) -> Option<&'static str> {
        match self {
            Self::E1000 | Self::E1000e | Self::Vmxnet3 => None,
            Self::R8169 | Self::Rtl8139 { .. } => Some("interrupt status and commands"),
        }
    }
}

impl Spec {
    /// From the values of a port of this kind.
    ///
    /// # Errors
    /// If values contradict each other.
    pub(super) fn new(kind: Kind, values: &Values) -> Result<Self, AddressError> {
        let (connect, mode, mac) =
            (values.is_on("connect"), values.number("mode"), values.mac("mac"));
        Ok(match kind {
            Kind::VhostUser => Self::VhostUser(VhostUser {
                connect,
                mode,
                group: values.text("group"),
                queues: values.short("queues").unwrap_or(1),
                irq_rate_max: values.number("irq_rate_max").unwrap_or(0),
                mac,
                mtu: values.short("mtu"),
                disk_memory: values.word("memory") == Some("disk"),
            }),
            Kind::VfioUser => Self::VfioUser(VfioUser::new(values)?),
            Kind::Tap => Self::Tap(Tap {
                queues: values.short("queues").unwrap_or(1),
                offload: values.on("offload").unwrap_or(true),
                mtu: values.short("mtu"),
            }),
            Kind::Packet => Self::Packet(Packet { mtu: values.short("mtu") }),
            Kind::Xdp => Self::Xdp(Xdp {
                queues: values.short("queues"),
                zero_copy: values.on("zerocopy"),
                mtu: values.short("mtu"),
            }),
            Kind::Stream => Self::Stream(Stream { connect, mode, mac, mtu: values.short("mtu") }),
            Kind::Nat => Self::Nat(Box::new(Nat::new(values))),
            Kind::Pcap => {
                let ports = values.names("ports").map(<[_]>::to_vec);
                Self::Pcap(Pcap { ports, snaplen: values.number("snaplen") })
            }
        })
    }

    /// The permission bits wanted for a socket file that the port makes.
    pub const fn mode(&self) -> Option<u32> {
        match self {
            Self::VhostUser(VhostUser { connect: false, mode, .. })
            | Self::VfioUser(VfioUser { mode, .. })
            | Self::Stream(Stream { connect: false, mode, .. }) => *mode,
            _ => None,
        }
    }

    /// Interrupts a second at most; 0: no limit, or nobody to interrupt.
    pub const fn irq_rate_max(&self) -> u32 {
        match self {
            Self::VhostUser(VhostUser { irq_rate_max, .. })
            | Self::VfioUser(VfioUser { irq_rate_max, .. }) => *irq_rate_max,
            _ => 0,
        }
    }

    /// False if the cable of an emulated NIC is to be unplugged.
    pub const fn link(&self) -> bool {
        match self {
            Self::VfioUser(VfioUser { link, .. }) => *link,
            _ => true,
        }
    }
}

impl VfioUser {
    fn new(values: &Values) -> Result<Self, AddressError> {
        let model = match values.word("model") {
            Some("e1000e") => Model::E1000e,
            Some("r8169") => Model::R8169,
            Some("rtl8139") => Model::Rtl8139 { plus: values.on("plus").unwrap_or(true) },
            Some("vmxnet3") => Model::Vmxnet3,
            _ => Model::E1000,
        };
        let doorbell = match values.word("doorbell") {
            Some("mapped") => Doorbell::Mapped,
            _ => Doorbell::Trapped,
        };
        let spec = Self {
            model,
            doorbell,
            csb: values.is_on("csb"),
            poll_idle: values.time("poll_idle"),
            irq_rate_max: values.number("irq_rate_max").unwrap_or(0),
            mac: values.mac("mac"),
            link: values.word("link") != Some("down"),
            disk_memory: values.word("memory") == Some("disk"),
            mode: values.number("mode"),
            group: values.text("group"),
        };
        spec.check(values)?;
        Ok(spec)
    }

    /// Which keys do not go together.
    fn check(&self, values: &Values) -> Result<(), AddressError> {
        let name = self.model.name();
        let mapped = self.doorbell == Doorbell::Mapped;
        if values.get("plus").is_some() && !matches!(self.model, Model::Rtl8139 { .. }) {
            let (given, wanted) = (values.say("plus"), "model=rtl8139");
            return Err(AddressError::Alone { key: "plus", given, wanted });
        }
        if let Some(beside) = self.model.beside_doorbells() {
            if mapped {
                return Err(AddressError::NoMapped(name, beside));
            }
            if let Some(time) = values.get("poll_idle") {
                return Err(AddressError::NotPolled(time.to_string(), name));
            }
        }
        match (self.csb, self.model) {
            (true, Model::Rtl8139 { plus: false }) => Err(AddressError::CsbPlain),
            (true, Model::E1000e) => {
                Err(AddressError::NoCsb(name, "whose vectors it has no word for"))
            }
            (true, Model::Vmxnet3) => {
                let why = "which has shared words of its own to the same end";
                Err(AddressError::NoCsb(name, why))
            }
            (true, _) if mapped => Err(AddressError::CsbMapped),
            _ => Ok(()),
        }
    }
}
