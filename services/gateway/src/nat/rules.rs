//! Where guests may go. It is decided by the numeric address when a flow begins, so a name that
//! was harmless when it was asked for proves nothing, and need not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use vmlan_config::gateway::{Dns, Protocol, Setup};

use super::sockets;
use crate::counters::Reason;

/// Always closed, but for what `allow` names: this network and nobody, metadata services of cloud
/// hosts, link-local addresses, groups, what is not given to anybody.
const CLOSED: [(Ipv4Addr, u32); 6] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The same of IPv6, and forms that hide an IPv4 address in ways that differ from host to host:
/// compatible (RFC 4291), 6to4, Teredo, local NAT64 (RFC 8215).
const CLOSED6: [(Ipv6Addr, u32); 8] = [
    (Ipv6Addr::UNSPECIFIED, 96),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// Where a flow goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To this address, as the host's own processes do.
    Out(SocketAddr),
    /// Not at all: the gateway answers questions about names.
    Names,
}

/// Where a flow of a guest to `to` goes on.
///
/// # Errors
/// Why it may not be.
pub(crate) fn way(setup: &Setup, protocol: Protocol, to: SocketAddr) -> Result<Way, Reason> {
    let address = plain(to.ip());
    if is_gateway(setup, address) {
        return own(setup, protocol, to);
    }
    may_reach(setup, address)?;
    Ok(Way::Out(SocketAddr::new(address, to.port())))
}

/// May a guest reach this address of the outside?
pub(crate) fn may_reach(setup: &Setup, address: IpAddr) -> Result<(), Reason> {
    let address = plain(address);
    let allowed = setup.allow.iter().flatten().any(|prefix| prefix.contains(address));
    if allowed {
        return Ok(());
    }
    let in_lan = match address {
        IpAddr::V4(a) => setup.network.contains(a),
        IpAddr::V6(a) => setup.network6.is_some_and(|network| network.contains(a)),
    };
    let blocked = setup.block.iter().any(|prefix| prefix.contains(address));
    if address.is_loopback() {
        Err(Reason::Host)
    } else if setup.allow.is_none() || in_lan || blocked || closed(address) {
        Err(Reason::Blocked)
    } else if sockets::is_own(address) {
        Err(Reason::Host)
    } else {
        Ok(())
    }
}

/// The gateway's own address: names, and the host's loopback as far as it is open.
fn own(setup: &Setup, protocol: Protocol, to: SocketAddr) -> Result<Way, Reason> {
    let port = to.port();
    if setup.dns != Dns::Off && port == crate::services::dns::PORT {
        return Ok(Way::Names);
    }
    let open = setup.host.allows(protocol, port);
    let loopback: IpAddr = match plain(to.ip()) {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    open.then(|| Way::Out((loopback, port).into())).ok_or(Reason::Host)
}

fn is_gateway(setup: &Setup, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a == setup.network.gateway(),
        IpAddr::V6(a) => setup.network6.is_some_and(|network| a == network.gateway()),
    }
}

/// An IPv4 address that is written as one of IPv6 is that address: mapped (RFC 4291) and NAT64
/// (RFC 6052) forms.
pub(crate) fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(long) = address else { return address };
    let [.., y, z] = long.segments();
    let is_nat64 = long.to_bits() >> 32 == 0x64_ff9b << 64;
    let embedded = || Ipv4Addr::from_bits(u32::from(y) << 16 | u32::from(z));
    match long.to_ipv4_mapped() {
        Some(short) => short.into(),
        None if is_nat64 => embedded().into(),
        None => address,
    }
}

fn closed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => CLOSED
            .iter()
            .any(|(first, bits)| (first.to_bits() ^ a.to_bits()).leading_zeros() >= *bits),
        IpAddr::V6(a) => CLOSED6
            .iter()
            .any(|(first, bits)| (first.to_bits() ^ a.to_bits()).leading_zeros() >= *bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(setup: &Setup, to: &str) -> Option<Reason> {
        way(setup, Protocol::Tcp, to.parse().unwrap()).err()
    }

    #[test]
    fn what_must_be_refused_is() {
        let setup = Setup::default();
        let host = [
            "127.0.0.1:22",
            "127.9.9.9:1",
            "[::1]:22",
            "[::ffff:127.0.0.1]:22",
            "[64:ff9b::7f00:1]:22",
            "10.77.0.1:22",
            "[fd00:77::1]:22",
            "[::ffff:10.77.0.1]:22",
        ];
        for to in host {
            assert_eq!(refused(&setup, to), Some(Reason::Host), "{to}");
        }
        let blocked = [
            "169.254.169.254:80",
            "168.63.129.16:80",
            "100.100.100.200:80",
            "0.0.0.0:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "10.77.0.50:80",
            "[fe80::1]:80",
            "[fd00:ec2::254]:80",
            "[ff02::1]:80",
            "[fd00:77::9]:80",
            "[::127.0.0.1]:80",
            "[::]:80",
            "[2002:7f00:1::1]:80",
            "[2001::1]:80",
            "[64:ff9b:1::7f00:1]:80",
            "[::ffff:169.254.169.254]:80",
            "[64:ff9b::a9fe:a9fe]:80",
        ];
        for to in blocked {
            assert_eq!(refused(&setup, to), Some(Reason::Blocked), "{to}");
        }
        assert_eq!(refused(&setup, "192.0.2.1:80"), None);
    }

    #[test]
    fn keys_open_and_close() {
        let prefixes = |text: &str| vec![text.parse().unwrap()];
        let open = Setup { allow: Some(prefixes("169.254.0.0/16")), ..Setup::default() };
        assert_eq!(refused(&open, "169.254.169.254:80"), None);
        assert_eq!(refused(&open, "192.0.2.1:80"), None);
        let closed = Setup { block: prefixes("192.0.2.0/24"), ..Setup::default() };
        assert_eq!(refused(&closed, "192.0.2.1:80"), Some(Reason::Blocked));
        let nowhere = Setup { allow: None, ..Setup::default() };
        assert_eq!(refused(&nowhere, "192.0.2.1:80"), Some(Reason::Blocked));
        let host = Setup { host: "tcp:5432".parse().unwrap(), ..Setup::default() };
        let gate = |port| way(&host, Protocol::Tcp, SocketAddr::from(([10, 77, 0, 1], port)));
        assert_eq!(gate(5432), Ok(Way::Out("127.0.0.1:5432".parse().unwrap())));
        assert_eq!(gate(22), Err(Reason::Host));
        let long = way(&host, Protocol::Tcp, "[fd00:77::1]:5432".parse().unwrap());
        assert_eq!(long, Ok(Way::Out("[::1]:5432".parse().unwrap())));
        assert_eq!(refused(&host, "127.0.0.1:5432"), Some(Reason::Host), "by its own name only");
    }
}
