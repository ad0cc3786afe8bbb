//! The rules of [`SourceCheck`].
//!
//! Two things hold throughout. A packet is judged by its longest reading: if its length is left to
//! the device (segmentation), by all of the frame. Of fragments, the first is judged: its upper
//! layer's header must directly follow the IP header's end or the fragment header, and so lies in
//! the packet's first 8 bytes that fragments are counted in, which no other fragment can overwrite
//! (RFC 1858, RFC 5722, RFC 7112, RFC 7113). Later fragments need only an allowed source: without
//! the first one no packet comes of them.

use vmlan_frame::headers::{
    Arp, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_RARP,
    ETHERTYPE_VLAN, ICMPV6, Neighbour, UDP,
};
use vmlan_frame::{Headers, Mac, Network, Reason};

use super::{Macs, Prefix, SourceCheck, has_v4, has_v6, is_host, is_host_v6};

/// EtherTypes of VLAN tags that others use and we do not look behind.
const OTHER_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];

/// Protocols that hide another one: authentication header, Mobile IPv6, HIP, Shim6, and the two for
/// experiments (RFC 7045). RFC 7113 section 5 asks to drop packets whose upper layer cannot be
/// known.
const HIDING: [u8; 6] = [51, 135, 139, 140, 253, 254];

/// ICMPv6: multicast listener report, done, report of version 2 (RFC 2710, RFC 3810).
const LISTENER: [u8; 3] = [131, 132, 143];

/// Ports of DHCP (RFC 2131) and DHCPv6 (RFC 8415): client's and server's.
pub(super) const DHCP: (u16, u16) = (68, 67);
pub(super) const DHCPV6: (u16, u16) = (546, 547);

/// One frame before the judge.
struct Case<'a> {
    source_check: &'a SourceCheck,
    mac: Mac,
    head: &'a [u8],
    len: usize,
    h: Headers,
}

impl SourceCheck {
    /// Judges everything except whether the source address `mac` is allowed.
    pub(crate) fn judge(&self, mac: Mac, head: &[u8], len: usize) -> Result<(), Reason> {
        if self.is_any() {
            return Ok(());
        }
        let case = Case { source_check: self, mac, head, len, h: Headers::parse(head, len) };
        match case.h.ethertype {
            // Providers and their customers use two tags, but not to hosts that are held to
            // addresses.
            _ if self.ips.is_some() && case.h.tags > 1 => Err(Reason::NotParsed),
            ETHERTYPE_ARP | ETHERTYPE_RARP => case.arp(),
            ETHERTYPE_IPV4 => case.ipv4(),
            ETHERTYPE_IPV6 => case.ipv6(),
            _ if self.ips.is_some() || case.is_wrapped() => Err(Reason::NotParsed),
            _ => Ok(()),
        }
    }

    /// What the port claims to be in ARP and neighbour discovery is checked.
    fn names(&self) -> bool {
        self.ips.is_some() || !matches!(self.macs, Macs::Any)
    }

    /// True if `ips` allows it, or is not set.
    fn allows_v4(&self, ip: [u8; 4]) -> bool {
        let ip = u32::from_be_bytes(ip);
        self.ips.as_ref().is_none_or(|ips| is_host(ip) && has_v4(ips, ip))
    }
}

fn refuse_if(refused: bool, reason: Reason) -> Result<(), Reason> {
    if refused { Err(reason) } else { Ok(()) }
}

impl Case<'_> {
    /// A protocol that somebody decides on, in a form that some receivers understand and we do not:
    /// behind more tags, or in IEEE 802.2 SNAP (CVE-2021-27853, -27854, -27861, -27862).
    fn is_wrapped(&self) -> bool {
        let h = &self.h;
        let snap = || self.head.get(h.l3).is_none_or(|dsap| dsap & 0xfe == 0xaa);
        matches!(h.ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ)
            || OTHER_TAGS.contains(&h.ethertype)
            || (h.ethertype < 0x600 && snap())
    }

    /// RFC 826. Probes (RFC 5227) are judged by the address they are about, as IPv6's are.
    fn arp(&self) -> Result<(), Reason> {
        if !self.source_check.names() {
            return Ok(());
        }
        let arp = self.h.arp(self.head, self.len).ok_or(Reason::NotParsed)?;
        let Arp { operation, sender, target } = arp;
        let own = |ip| self.source_check.allows_v4(ip);
        let honest = match (self.h.ethertype, operation) {
            (ETHERTYPE_ARP, 1) if sender.1 == [0; 4] => own(target.1),
            (ETHERTYPE_ARP, 1 | 2) => own(sender.1),
            // Hypervisors announce a guest that has moved by a request for itself, without IP
            // addresses.
            (ETHERTYPE_RARP, 3 | 4) => {
                let own = |ip| ip == [0; 4] || own(ip);
                target.0 == self.mac && own(sender.1) && own(target.1)
            }
            _ => return Err(Reason::NotParsed),
        };
        refuse_if(!honest || sender.0 != self.mac, Reason::SpoofedArp)
    }

    fn ipv4(&self) -> Result<(), Reason> {
        if self.source_check.ips.is_none() && !self.source_check.dhcp_guard {
            return Ok(());
        }
        self.understood(Network::Ipv4)?;
        self.no_dhcp_server(DHCP)?;
        let Some(ips) = &self.source_check.ips else { return Ok(()) };
        refuse_if(self.h.detour, Reason::NotParsed)?;
        let addresses = self.h.addresses(self.head);
        let honest = addresses.is_some_and(|(source, destination)| match source.first_chunk() {
            Some([0, 0, 0, 0]) => self.is_dhcp_client(ips, destination),
            Some(ip) => self.source_check.allows_v4(*ip),
            None => false,
        });
        refuse_if(!honest, Reason::SpoofedIp)
    }

    fn understood(&self, network: Network) -> Result<(), Reason> {
        let h = &self.h;
        let whole = h.network == network && h.understood(self.len);
        refuse_if(!whole || h.split || HIDING.contains(&h.protocol), Reason::NotParsed)
    }

    /// By either port: clients accept what is sent to their port, whatever port it comes from.
    fn no_dhcp_server(&self, (client, server): (u16, u16)) -> Result<(), Reason> {
        if !self.source_check.dhcp_guard || self.h.protocol != UDP || self.h.later {
            return Ok(());
        }
        let ports = self.h.ports(self.head).ok_or(Reason::NotParsed)?;
        refuse_if(ports.0 == server || ports.1 == client, Reason::DhcpGuard)
    }

    /// A guest without an address may ask for one, if it is allowed any.
    fn is_dhcp_client(&self, ips: &[Prefix], destination: &[u8]) -> bool {
        let asks = self.h.protocol == UDP && self.h.ports(self.head) == Some(DHCP);
        asks && !self.h.fragment
            && destination == [255; 4]
            && ips.iter().any(|p| p.address.is_ipv4())
    }

    fn ipv6(&self) -> Result<(), Reason> {
        self.understood(Network::Ipv6)?;
        self.no_dhcp_server(DHCPV6)?;
        let mut kind = None;
        if self.h.protocol == ICMPV6 && !self.h.later {
            kind = Some(self.h.icmpv6(self.head).ok_or(Reason::NotParsed)?);
        }
        let router = matches!(kind, Some(Neighbour::RA | Neighbour::REDIRECT));
        refuse_if(self.source_check.ra_guard && router, Reason::RaGuard)?;
        let addresses = self.h.addresses(self.head).and_then(|(source, destination)| {
            Some((u128::from_be_bytes(*source.first_chunk()?), destination.first_chunk()?))
        });
        let (source, destination) = addresses.ok_or(Reason::NotParsed)?;
        if self.source_check.names() && kind.is_some_and(is_discovery) {
            self.neighbour(source, destination)?;
        }
        if self.source_check.ips.is_none() {
            return Ok(());
        }
        refuse_if(self.h.detour, Reason::NotParsed)?;
        let honest = match source {
            0 => self.is_joining(kind, destination),
            _ => self.own_v6(source),
        };
        refuse_if(!honest, Reason::SpoofedIp)
    }

    /// A guest without an address may find out whether one is free, and join groups.
    fn is_joining(&self, kind: Option<u8>, destination: &[u8; 16]) -> bool {
        let listener = |k| LISTENER.contains(&k) && destination[0] == 0xff;
        // A solicitation has been looked into.
        kind.is_some_and(|k| k == Neighbour::NS || listener(k)) && !self.h.fragment && self.has_v6()
    }

    /// RFC 4861. What it says about the sender's link-layer address must be true, and an
    /// advertisement, a redirect, or the solicitation of one that has no address yet (RFC 4862
    /// section 5.4.2), must be about the port itself.
    fn neighbour(&self, source: u128, destination: &[u8; 16]) -> Result<(), Reason> {
        let message = self.h.neighbour(self.head).ok_or(Reason::NotParsed)?;
        let target = message.target.map_or(0, u128::from_be_bytes);
        let about = match message.kind {
            Neighbour::NA | Neighbour::REDIRECT => self.own_v6(target),
            Neighbour::NS if source == 0 => {
                let asked = u128::from_be_bytes(*destination);
                let own = self.own_v6(target) || self.may_take(target);
                own && asked == SOLICITED | target & 0xff_ffff
            }
            _ => true,
        };
        // Nobody has no link-layer address.
        let mut macs = message.link_layers();
        let own = macs.all(|mac| source != 0 && self.own_mac(mac));
        let honest = message.hop_limit == 255 && about && own;
        refuse_if(!honest, Reason::SpoofedNd)
    }

    fn own_mac(&self, mac: Mac) -> bool {
        mac == self.mac
            || matches!(&self.source_check.macs, Macs::Listed(macs) if macs.contains(&mac))
    }

    fn has_v6(&self) -> bool {
        self.source_check.ips.as_ref().is_some_and(|ips| ips.iter().any(|p| p.address.is_ipv6()))
    }

    fn may_take(&self, ip: u128) -> bool {
        is_host_v6(ip) && self.source_check.free.as_ref().is_some_and(|free| has_v6(free, ip))
    }

    /// May be claimed. Where an IPv6 address may be, so may the link-local one made of the frame's
    /// own source MAC address. Those made otherwise (RFC 7217) must be listed.
    fn own_v6(&self, ip: u128) -> bool {
        let Some(ips) = &self.source_check.ips else { return true };
        let local = || ip == link_local(self.mac) && self.has_v6();
        is_host_v6(ip) && (has_v6(ips, ip) || local())
    }
}

/// ff02::1:ff00:0/104 (RFC 4291 section 2.7.1).
const SOLICITED: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;

fn is_discovery(kind: u8) -> bool {
    (Neighbour::RS..=Neighbour::REDIRECT).contains(&kind) || Neighbour::INVERSE.contains(&kind)
}

/// fe80::/64 with the modified EUI-64 of `mac` (RFC 4291 appendix A).
fn link_local(mac: Mac) -> u128 {
    let [a, b, c, d, e, f] = mac.octets();
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    0xfe80 << 112 | u128::from(id)
}
