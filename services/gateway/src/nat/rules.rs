//! Where guests may go. It is decided by the numeric address when a flow begins, so a name that
//! was harmless when it was asked for proves nothing, and need not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use vmlan_config::gateway::{Protocol, Setup};

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

/// The same of IPv6.
const CLOSED6: [(Ipv6Addr, u32); 5] = [
    (Ipv6Addr::UNSPECIFIED, 128),
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
    /// To the host's servers of names, which it may reach wherever they are.
    Names(SocketAddr),
}

impl Way {
    pub(crate) fn to(self) -> SocketAddr {
        match self {
            Self::Out(to) | Self::Names(to) => to,
        }
    }
}

/// Where a flow of a guest to `to` goes on.
///
/// # Errors
/// Why it may not be.
pub(crate) fn way(setup: &Setup, protocol: Protocol, to: SocketAddr) -> Result<Way, Reason> {
    let address = plain(to.ip());
    if address == IpAddr::V4(setup.network.gateway()) {
        return own(setup, protocol, to.port());
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
    let in_lan = matches!(address, IpAddr::V4(a) if setup.network.contains(a));
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

/// The gateway's own address: the host's loopback as far as it is open, and names by TCP.
fn own(setup: &Setup, protocol: Protocol, port: u16) -> Result<Way, Reason> {
    if let (vmlan_config::gateway::Dns::Ask(servers), crate::services::dns::PORT) =
        (&setup.dns, port)
    {
        return servers.first().map(|server| Way::Names(*server)).ok_or(Reason::Host);
    }
    let open = setup.host.allows(protocol, port);
    open.then(|| Way::Out((Ipv4Addr::LOCALHOST, port).into())).ok_or(Reason::Host)
}

/// An IPv4 address that is written as one of IPv6 is that address: mapped (RFC 4291) and NAT64
/// (RFC 6052) forms.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(long) = address else { return address };
    let [a, b, .., y, z] = long.segments();
    let is_nat64 = (a, b) == (0x64, 0xff9b);
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
        assert_eq!(refused(&host, "127.0.0.1:5432"), Some(Reason::Host), "by its own name only");
    }
}
