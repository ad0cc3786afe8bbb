//! The IPv6 side of a LAN: its prefix, and addresses made of it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::address::{IpRange, PortName};
use crate::vm_args::hash;

/// Where link-local addresses begin (RFC 4291, 2.5.6).
const LOCAL: Network6 = Network6 { first: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0) };

/// The IPv6 network of a LAN: all its addresses share 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network6 {
    /// Its first address.
    pub first: Ipv6Addr,
}

impl Network6 {
    /// A unique local one (RFC 4193), the same for the same name of the gateway's port: addresses
    /// outlive everything.
    #[must_use]
    pub fn named(name: &PortName) -> Self {
        let id = hash(name) >> 24;
        Self { first: Ipv6Addr::from_bits((0xfd << 120) | u128::from(id) << 80) }
    }

    /// That of link-local addresses.
    #[must_use]
    pub const fn local() -> Self {
        LOCAL
    }

    /// True if `address` is one of its addresses.
    #[must_use]
    pub fn contains(self, address: Ipv6Addr) -> bool {
        (address.to_bits() ^ self.first.to_bits()) >> 64 == 0
    }

    /// The address with these last 64 bits.
    #[must_use]
    pub fn with(self, id: u64) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.first.to_bits() | u128::from(id))
    }

    /// The gateway's own address.
    #[must_use]
    pub fn gateway(self) -> Ipv6Addr {
        self.with(1)
    }

    /// The address that a NIC makes of its MAC address (RFC 4291, appendix A).
    #[must_use]
    pub fn of_mac(self, mac: [u8; 6]) -> Ipv6Addr {
        let [a, b, c, d, e, f] = mac;
        self.with(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
    }

    /// True if a guest may have `address`: it is neither the gateway's, nor that of any router
    /// (RFC 4291, 2.6.1).
    #[must_use]
    pub fn is_for_hosts(self, address: Ipv6Addr) -> bool {
        self.contains(address) && ![self.first, self.gateway()].contains(&address)
    }
}

impl FromStr for Network6 {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let wrong = || format!("'{s}' is not a prefix of 64 bits, like fd00:77::/64");
        let range: IpRange = s.parse().map_err(|_| wrong())?;
        match range {
            IpRange { address: std::net::IpAddr::V6(first), bits: 64 }
                if first.segments()[0] & 0xe000 == 0x2000 || first.segments()[0] >> 9 == 0x7e =>
            {
                Ok(Self { first })
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Network6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/64", self.first)
    }
}

/// Does a LAN have IPv6, and which?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    /// A network made of the gateway's name.
    #[default]
    On,
    /// None.
    Off,
    /// This one.
    Given(Network6),
}

impl Ipv6 {
    /// The network of the gateway at this port.
    #[must_use]
    pub fn network(self, name: &PortName) -> Option<Network6> {
        match self {
            Self::On => Some(Network6::named(name)),
            Self::Off => None,
            Self::Given(network) => Some(network),
        }
    }
}

impl FromStr for Ipv6 {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => s.parse().map(Self::Given),
        }
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::Given(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lan_has_the_same_prefix_whenever_it_has_the_same_name() {
        let name: PortName = "net".parse().unwrap();
        let network = Network6::named(&name);
        assert_eq!(network, Network6::named(&name));
        assert_ne!(network, Network6::named(&"net2".parse().unwrap()));
        assert!(network.first.is_unique_local() && network.first.segments()[3..] == [0; 5]);
        assert_eq!(network.to_string().parse::<Network6>().unwrap(), network);
        assert_eq!(Ipv6::On.network(&name), Some(network));
    }

    #[test]
    fn a_network_knows_its_addresses() {
        let network: Network6 = "fd00:77::/64".parse().unwrap();
        let own: Ipv6Addr = "fd00:77::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(network.of_mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]), own);
        assert!(network.is_for_hosts(own) && !network.is_for_hosts(network.gateway()));
        assert!(!network.is_for_hosts(network.first));
        assert!(!network.contains("fd00:77:0:1::1".parse().unwrap()));
        let wrong = ["fe80::/64", "ff02::/64", "::/64", "fd00:77::/48", "fd00:77::1/64", "x"];
        for text in wrong {
            assert!(text.parse::<Ipv6>().is_err(), "{text}");
        }
        assert_eq!("2001:db8::/64".parse::<Ipv6>().unwrap().to_string(), "2001:db8::/64");
    }
}
