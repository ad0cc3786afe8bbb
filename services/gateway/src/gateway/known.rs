//! Where guests are, and what they are called.

use std::net::IpAddr;

use smoltcp::wire::ArpOperation;
use vmlan_config::gateway::{HostPorts, Lease, Network6, Setup, Target};

use crate::lan::{Addresses, Neighbours, PortNo, Whose};
use crate::link::{self, Mac, ndisc};
use crate::nat::{Guests, Io};
use crate::services::{Leases, dns};

/// Where guests are.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) leases: Leases,
    pub(super) neighbours: Neighbours,
    pub(super) addresses: Addresses,
    pub(super) network6: Option<Network6>,
    /// Since 1970.
    pub(super) seconds: u64,
}

impl Known {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            leases: Leases::new(setup.network, setup.reserved.clone()),
            neighbours: Neighbours::default(),
            addresses: Addresses::default(),
            network6: setup.network6,
            seconds: setup.now,
        }
    }

    /// Takes over what a gateway before this one knew.
    pub(super) fn restore(&mut self, leases: Vec<Lease>) {
        for lease in leases {
            match self.network6 {
                Some(network) if lease.ip.is_ipv6() => self.addresses.restore(network, &lease),
                _ => self.leases.restore(lease),
            }
        }
    }

    /// Whoever has `ip` has it no longer.
    pub(super) fn forget(&mut self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.leases.forget(ip),
            IpAddr::V6(ip) => self.addresses.forget(ip),
        }
    }

    fn mac_of(&self, ip: IpAddr) -> Option<Mac> {
        match ip {
            IpAddr::V4(ip) => self.leases.mac_of(ip).or_else(|| self.neighbours.find(ip)),
            IpAddr::V6(ip) => self.addresses.mac_of(ip),
        }
    }

    /// The addresses of a port, by its name in small letters.
    fn by_name(&self, name: &str) -> Vec<IpAddr> {
        let short = self.leases.by_name(name, self.seconds).map(IpAddr::V4);
        let long = self.network6.map(|net| self.addresses.by_name(name, net, self.seconds));
        short.into_iter().chain(long.into_iter().flatten().map(IpAddr::V6)).collect()
    }
}

impl Known {
    /// The address of a forward's target.
    fn address(&self, target: &Target) -> Option<IpAddr> {
        match target {
            Target::Address(ip) => Some(*ip),
            Target::Port(name) => self.by_name(name.as_str()).first().copied(),
        }
    }
}

impl Guests for Known {
    fn find(&self, target: &Target, io: &mut Io<'_>) -> Option<(IpAddr, (Mac, PortNo))> {
        let ip = self.address(target)?;
        let mac = self.mac_of(ip)?;
        let port = match io.stations.whose(mac, io.now) {
            Whose::Port(port) => port,
            Whose::Wait => io.stations.last_known(mac)?,
            Whose::Refused(_) => return None,
        };
        // Who has a NIC's address, or says that it has its IP address, is not the port that is
        // meant.
        let meant = match target {
            Target::Address(_) => true,
            Target::Port(name) => io.stations.name(port).eq_ignore_ascii_case(name.as_str()),
        };
        meant.then_some((ip, (mac, port)))
    }

    fn ask(&self, target: &Target, io: &mut Io<'_>) {
        let frame = match self.address(target) {
            Some(IpAddr::V4(ip)) => {
                let own = io.setup.network.gateway();
                link::arp(io.ends(Mac::BROADCAST), ArpOperation::Request, own, Mac([0; 6]), ip)
            }
            Some(IpAddr::V6(ip)) if self.network6.is_some_and(|net| net.is_for_hosts(ip)) => {
                ndisc::solicitation(io.mac, Network6::local().of_mac(io.mac.0), ip)
            }
            _ => return,
        };
        io.send(&frame);
    }
}

/// The names of the LAN, the gateway's own among them.
pub(super) struct AllNames<'a> {
    pub(super) known: &'a Known,
    pub(super) setup: &'a Setup,
}

impl AllNames<'_> {
    fn own(&self) -> Vec<IpAddr> {
        let long = self.setup.network6.map(|network| network.gateway().into());
        [self.setup.network.gateway().into()].into_iter().chain(long).collect()
    }
}

impl dns::Names for AllNames<'_> {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        match host {
            "gateway" => self.own(),
            "host" if self.setup.host != HostPorts::default() => self.own(),
            _ => self.known.by_name(host),
        }
    }

    fn name(&self, address: IpAddr) -> Option<Option<String>> {
        let (known, seconds) = (self.known, self.known.seconds);
        let name = match address {
            IpAddr::V4(ip) if self.setup.network.contains(ip) => {
                known.leases.by_address(ip, seconds)
            }
            IpAddr::V6(ip) if self.setup.network6.is_some_and(|net| net.contains(ip)) => {
                known.addresses.by_address(ip, seconds)
            }
            _ => return None,
        };
        if self.own().contains(&address) {
            return Some(Some("gateway".to_owned()));
        }
        Some(name.map(str::to_ascii_lowercase))
    }
}
