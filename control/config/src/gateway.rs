//! What a `nat:` port's gateway is told and what it tells: the messages between the switch and the
//! gateway's process, as JSON, one in each packet of their line.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::address::{IpRange, PortName};

mod ipv6;

pub use ipv6::{Ipv6, Network6};

/// Longest message, in bytes: what one packet of a line carries at most.
pub const MAX_MESSAGE: usize = 160 << 10;

/// Queue pairs of a gateway's NIC. The switch puts all frames of one port into one of them, so that
/// the gateway can tell ports apart before it has asked who somebody is.
pub const LANES: u16 = 8;

/// The IPv4 network of a LAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// Its first address.
    pub first: Ipv4Addr,
    /// Leading bits that all its addresses share, 16 to 29.
    pub bits: u8,
}

impl Network {
    /// The mask of its leading bits.
    #[must_use]
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0))
    }

    /// Its last address, to which all of it listens.
    #[must_use]
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first.to_bits() | !self.mask().to_bits())
    }

    /// True if `address` is one of its addresses.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask().to_bits() == self.first.to_bits()
    }

    /// The gateway's own address.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first.to_bits() + 1)
    }

    /// First and last address that is given to whoever asks.
    #[must_use]
    pub fn pool(self) -> (Ipv4Addr, Ipv4Addr) {
        let (first, last) = (self.first.to_bits(), self.broadcast().to_bits());
        let (from, to) = if self.bits <= 24 { (100, first + 199) } else { (2, last - 1) };
        (Ipv4Addr::from_bits(first + from), Ipv4Addr::from_bits(to))
    }

    /// First and last address that a host of this network may have.
    #[must_use]
    pub fn hosts(self) -> (Ipv4Addr, Ipv4Addr) {
        let (first, last) = (self.first.to_bits() + 2, self.broadcast().to_bits() - 1);
        (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(last))
    }

    /// True if a host of this network may have `address`: it is neither the network's, nor the
    /// gateway's, nor everybody's.
    #[must_use]
    pub fn is_for_hosts(self, address: Ipv4Addr) -> bool {
        let taken = [self.first, self.gateway(), self.broadcast()];
        self.contains(address) && !taken.contains(&address)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("'{s}' is not a network: an IPv4 prefix of 16 to 29 bits is wanted");
        let range: IpRange = s.parse().map_err(|_| wrong())?;
        match range {
            IpRange { address: IpAddr::V4(first), bits: bits @ 16..=29 } => {
                Ok(Self { first, bits })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// serde by way of text, for types that are read and shown.
macro_rules! by_text {
    ($($kind:ty),*) => {$(
        impl TryFrom<String> for $kind {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )*};
}
by_text!(Network, Network6, Prefix, Forward, HostPorts);

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(pub IpRange);

impl Prefix {
    /// True if `address` is one of them.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let bits = u32::from(self.0.bits);
        match (self.0.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= bits
            }
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        s.parse().map(Self).map_err(|_| format!("'{s}' is not an address or prefix"))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp].into_iter().find(|protocol| protocol.name() == text)
    }
}

/// Whom a forward leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Whoever has this port's lease when somebody connects.
    Port(PortName),
    /// This address.
    Address(IpAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(name) => name.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A port of this host that leads to a VM: `[PROTO:][ADDR:]PORT:VM:PORT`, addresses of IPv6 in
/// brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Forward {
    /// TCP unless said.
    pub protocol: Protocol,
    /// Where this host listens.
    pub listen: SocketAddr,
    /// Whom it leads to.
    pub target: Target,
    /// The VM's port.
    pub port: u16,
}

/// What colons divide, but for those in brackets.
fn parts(text: &str) -> Vec<&str> {
    let mut inside = false;
    let divides = |c: char| {
        inside = c == '[' || inside && c != ']';
        c == ':' && !inside
    };
    text.split(divides).collect()
}

/// An address as it stands between colons.
fn host(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{s}' is not a forward: [tcp:|udp:][ADDRESS:]PORT:VM:PORT is wanted, like \
                 2222:vm1:22"
            )
        };
        let parts = parts(s);
        let protocol = parts.first().and_then(|word| Protocol::parse(word));
        let rest = parts.get(usize::from(protocol.is_some())..).unwrap_or_default();
        let (address, port, target, to) = match rest {
            [port, target, to] => (Ipv4Addr::LOCALHOST.into(), port, target, to),
            [address, port, target, to] => (host(address).ok_or_else(wrong)?, port, target, to),
            _ => return Err(wrong()),
        };
        let number = |text: &str| text.parse::<u16>().ok().filter(|n| *n != 0).ok_or_else(wrong);
        let target = match host(target) {
            Some(address) => Target::Address(address),
            None => Target::Port(target.parse().map_err(|_| wrong())?),
        };
        let listen = SocketAddr::new(address, number(port)?);
        let protocol = protocol.unwrap_or(Protocol::Tcp);
        Ok(Self { protocol, listen, target, port: number(to)? })
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, listen, target, port } = self;
        write!(f, "{}:{listen}:{target}:{port}", protocol.name())
    }
}

/// What of this host's loopback guests reach at the gateway's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPorts {
    /// All ports.
    All,
    /// These.
    Listed(Vec<(Protocol, u16)>),
}

impl Default for HostPorts {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl HostPorts {
    /// True if guests may reach this port.
    #[must_use]
    pub fn allows(&self, protocol: Protocol, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Listed(list) => list.contains(&(protocol, port)),
        }
    }
}

impl FromStr for HostPorts {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s == "all" {
            return Ok(Self::All);
        }
        let one = |text: &str| {
            let (protocol, port) = text.split_once(':').unwrap_or(("tcp", text));
            let port = port.parse::<u16>().ok().filter(|n| *n != 0);
            let wrong = || format!("'{text}' is not a port of the host: like tcp:5432");
            Protocol::parse(protocol).zip(port).ok_or_else(wrong)
        };
        s.split('+')
            .filter(|text| !text.is_empty())
            .map(one)
            .collect::<Result<_, _>>()
            .map(Self::Listed)
    }
}

impl fmt::Display for HostPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Listed(list) => {
                for (n, (protocol, port)) in list.iter().enumerate() {
                    let plus = if n > 0 { "+" } else { "" };
                    write!(f, "{plus}{}:{port}", protocol.name())?;
                }
                Ok(())
            }
        }
    }
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The address. One of IPv6 is not given by the gateway: the NIC took it.
    pub ip: IpAddr,
    /// The NIC that has it.
    pub mac: String,
    /// The port that the NIC is behind.
    pub port: String,
    /// What the guest calls itself; shown only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

/// Whom guests ask for names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dns {
    /// Nobody here.
    Off,
    /// The gateway, which asks these in turn.
    Ask(Vec<SocketAddr>),
}

/// What a gateway is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
    /// The socket of the port that it drives a NIC on.
    pub socket: String,
    /// Its own MAC address.
    pub mac: String,
    /// The LAN's addresses.
    pub network: Network,
    /// Those of IPv6; `None`: it has none.
    pub network6: Option<Network6>,
    /// Bytes of the longest packet.
    pub mtu: u16,
    /// What names end in.
    pub domain: String,
    /// It gives addresses.
    pub dhcp: bool,
    /// Seconds that an address is given for.
    pub lease: u32,
    /// Names.
    pub dns: Dns,
    /// What guests reach of this host.
    pub host: HostPorts,
    /// Where guests may not go, beside what is always refused.
    pub block: Vec<Prefix>,
    /// Where they may go all the same; `None`: nowhere outside.
    pub allow: Option<Vec<Prefix>>,
    /// Connections of one VM.
    pub flows: u32,
    /// New ones in a second.
    pub flow_rate: u32,
    /// Ports of this host that lead to VMs.
    pub forwards: Vec<Forward>,
    /// Addresses kept for ports, by their names.
    pub reserved: BTreeMap<String, Ipv4Addr>,
    /// Seconds since 1970.
    pub now: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            socket: String::new(),
            mac: "52:54:00:00:00:fe".to_owned(),
            network: Network { first: Ipv4Addr::new(10, 77, 0, 0), bits: 24 },
            network6: Some(Network6 { first: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0) }),
            mtu: 1500,
            domain: "lan".to_owned(),
            dhcp: true,
            lease: 3600,
            dns: Dns::Ask(Vec::new()),
            host: HostPorts::default(),
            block: Vec::new(),
            allow: Some(Vec::new()),
            flows: 1024,
            flow_rate: 200,
            forwards: Vec::new(),
            reserved: BTreeMap::new(),
            now: 0,
        }
    }
}

/// From the switch to its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// Begin, or go on like this.
    Setup(Box<Setup>),
    /// The answer to [`FromGateway::Whose`].
    Whose {
        /// The NIC that was asked about.
        mac: String,
        /// The port that it is behind; `None`: nobody knows it.
        port: Option<String>,
    },
    /// Who had which address when the gateway before this one ended: in several parts, before the
    /// first setup.
    Leases(Vec<Lease>),
    /// Whoever has this address loses it.
    Forget(IpAddr),
}

/// From a gateway to its switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGateway {
    /// It has connected and serves.
    Ready,
    /// Which port is this NIC behind?
    Whose(String),
    /// Somebody has this address from now on.
    Lease(Lease),
    /// Nobody has it any more.
    Released(IpAddr),
    /// How its forwards stand: the forward, and what is wrong with it.
    Forwards(Vec<(Forward, Option<String>)>),
    /// What it has counted since its start.
    Counters(GatewayCounters),
    /// A line for the log.
    Log {
        /// A warning, rather than news.
        warn: bool,
        /// The line.
        text: String,
    },
}

/// What a gateway counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayCounters {
    /// Flows at this moment, by protocol: tcp, udp, icmp.
    pub flows: BTreeMap<String, u64>,
    /// Flows since the start, by protocol.
    pub opened: BTreeMap<String, u64>,
    /// What was refused or dropped, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Messages answered, by kind: dhcp, dhcpv6, dns, forwarded questions, arp, neighbours and
    /// routers that were looked for.
    pub answered: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_read_in_the_order_that_everybody_knows() {
        let read = |text: &str| text.parse::<Forward>().map(|forward| forward.to_string());
        assert_eq!(read("2222:vm1:22").unwrap(), "tcp:127.0.0.1:2222:vm1:22");
        assert_eq!(read("udp:0.0.0.0:53:vm1:53").unwrap(), "udp:0.0.0.0:53:vm1:53");
        assert_eq!(read("10.0.0.1:80:10.77.0.9:8080").unwrap(), "tcp:10.0.0.1:80:10.77.0.9:8080");
        assert_eq!(read("[::1]:80:[fd00::9]:81").unwrap(), "tcp:[::1]:80:[fd00::9]:81");
        assert_eq!(read("udp:[::]:53:vm1:53").unwrap(), "udp:[::]:53:vm1:53");
        for wrong in [
            "",
            "22",
            "vm1:22",
            "0:vm1:22",
            "2222:vm1:0",
            "x:1:vm1:2",
            "1:vm 1:2",
            "::1:2:vm1:3",
            "[::1:2:vm1:3",
            "[127.0.0.1]:2:vm1:3",
            "[]:2:vm1:3",
        ] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains("like 2222:vm1:22"), "{said}");
        }
    }

    #[test]
    fn a_network_knows_its_addresses() {
        let network: Network = "10.77.0.0/24".parse().unwrap();
        assert_eq!(network.gateway(), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(network.broadcast(), Ipv4Addr::new(10, 77, 0, 255));
        let pool = (Ipv4Addr::new(10, 77, 0, 100), Ipv4Addr::new(10, 77, 0, 199));
        assert_eq!(network.pool(), pool);
        let small: Network = "10.0.0.8/29".parse().unwrap();
        assert_eq!(small.pool(), (Ipv4Addr::new(10, 0, 0, 10), Ipv4Addr::new(10, 0, 0, 14)));
        assert!(!small.is_for_hosts(small.gateway()) && small.is_for_hosts(small.pool().0));
        for wrong in ["10.77.0.1/24", "10.0.0.0/8", "10.0.0.0/30", "fd00::/64", "x"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let setup = Setup {
            forwards: vec!["2222:vm1:22".parse().unwrap()],
            host: "tcp:5432+udp:53".parse().unwrap(),
            block: vec!["10.0.0.0/8".parse().unwrap()],
            ..Setup::default()
        };
        let message = ToGateway::Setup(Box::new(setup));
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<ToGateway>(&text).unwrap(), message);
    }
}
