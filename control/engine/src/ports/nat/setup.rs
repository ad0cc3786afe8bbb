//! What a gateway is told, from what the user wrote and what this host is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use vmlan_config::address::{Nat, PortName};
use vmlan_config::gateway::{Dns, Network, Setup};
use vmlan_config::vm_args::nic_mac_of;

use crate::resolvers;

/// Bytes of the longest packet that every link must carry for IPv6 (RFC 8200, 5).
const IPV6_MTU: u16 = 1280;

/// What the user wrote.
pub(in crate::ports) struct Wanted<'a> {
    pub(in crate::ports) network: Network,
    pub(in crate::ports) spec: &'a Nat,
    /// Addresses kept for ports.
    pub(in crate::ports) reserved: BTreeMap<String, Ipv4Addr>,
    /// Bytes of the longest packet that the LAN's narrowest link carries; `None`: any.
    pub(in crate::ports) narrowest: Option<u16>,
}

/// Seconds since 1970.
pub(in crate::ports) fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// All that a gateway needs.
pub(super) fn of(name: &PortName, socket: &Path, wanted: &Wanted<'_>) -> Setup {
    let spec = wanted.spec;
    let dns = match &spec.dns {
        None => Dns::Off,
        Some(list) if list.is_empty() => Dns::Ask(resolvers::read()),
        Some(list) => Dns::Ask(list.iter().map(|ip| (*ip, 53).into()).collect()),
    };
    let inside = wanted.reserved.iter().filter(|(_, ip)| wanted.network.is_for_hosts(**ip));
    Setup {
        socket: socket.to_string_lossy().into_owned(),
        network6: spec.ipv6.network(name).filter(|_| spec.mtu >= IPV6_MTU),
        mac: spec.mac.unwrap_or_else(|| nic_mac_of(name)).to_string(),
        network: wanted.network,
        // Below IPv6's least, senders of what is too long are told one by one.
        mtu: wanted.narrowest.map_or(spec.mtu, |n| spec.mtu.min(n.max(IPV6_MTU))),
        domain: spec.domain.clone(),
        dhcp: spec.dhcp,
        lease: u32::try_from(spec.lease.as_secs()).unwrap_or(u32::MAX),
        dns,
        host: spec.host.clone(),
        block: spec.block.clone(),
        allow: spec.allow.clone(),
        flows: spec.flows,
        flow_rate: spec.flow_rate,
        forwards: spec.forwards.clone(),
        reserved: inside.map(|(name, ip)| (name.clone(), *ip)).collect(),
        now: 0,
    }
}

/// Why `network` cannot be a LAN of this host: it has a way there already, which guests would not
/// find. A host that does not tell its ways (`/proc/self/net/route`) is not asked.
pub(super) fn overlap(network: Network) -> Option<String> {
    let routes = std::fs::read_to_string("/proc/self/net/route").ok()?;
    overlaps(network, &routes)
}

fn overlaps(network: Network, routes: &str) -> Option<String> {
    let (to, bits, device) = way_there(network, routes)?;
    let others = ["10.77.0.0/24", "192.168.211.0/24", "172.29.77.0/24"];
    let free = others
        .into_iter()
        .find(|other| other.parse().is_ok_and(|other| way_there(other, routes).is_none()));
    let advice = free.map(|free| format!(", e.g. nat:{free}")).unwrap_or_default();
    let text = format!("{network} overlaps {to}/{bits} dev {device} of this host");
    Some(format!("{text}: choose another{advice}"))
}

/// The first route to addresses of `network`, but for the default one.
fn way_there(network: Network, routes: &str) -> Option<(Ipv4Addr, u32, &str)> {
    routes.lines().skip(1).find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |n: usize| u32::from_str_radix(words.get(n)?, 16).ok().map(u32::from_be);
        let (to, mask) = (number(1)?, number(7)?);
        let both = mask & network.mask().to_bits();
        let same = mask != 0 && (to ^ network.first.to_bits()) & both == 0;
        same.then_some((Ipv4Addr::from_bits(to), mask.count_ones(), *words.first()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlan_config::address::{Address, Spec};

    #[test]
    fn the_narrowest_link_decides_down_to_what_ipv6_needs() {
        let mtu = |address: &str, narrowest| {
            let address: Address = address.parse().unwrap();
            let Spec::Nat(spec) = address.spec() else { panic!("{address}") };
            let network = address.place().parse().unwrap();
            let wanted = Wanted { network, spec, reserved: BTreeMap::new(), narrowest };
            let setup = of(&"net".parse().unwrap(), Path::new("/s"), &wanted);
            assert_eq!(setup.network6.is_some(), setup.mtu >= IPV6_MTU, "{address}");
            setup.mtu
        };
        let usual = "nat:10.77.0.0/24";
        assert_eq!([None, Some(1450), Some(68)].map(|n| mtu(usual, n)), [1500, 1450, 1280]);
        let wide = "nat:10.77.0.0/24,mtu=9000";
        assert_eq!([None, Some(1450)].map(|n| mtu(wide, n)), [9000, 1450]);
        assert_eq!(mtu("nat:10.77.0.0/24,mtu=576", Some(1450)), 576);
    }

    #[test]
    fn a_network_that_the_host_has_is_refused_with_one_that_it_has_not() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
                      eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                      wg0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        let text = overlaps("10.77.0.0/24".parse().unwrap(), routes).unwrap();
        let want = "10.77.0.0/24 overlaps 10.0.0.0/8 dev wg0 of this host: choose another, e.g. \
                    nat:192.168.211.0/24";
        assert_eq!(text, want);
        assert_eq!(overlaps("192.168.211.0/24".parse().unwrap(), routes), None);
    }
}
