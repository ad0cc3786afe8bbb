//! Routers and neighbours that guests look for, addresses that they take, and lies about them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv6Packet, Icmpv6Repr, IpProtocol, NdiscNeighborFlags, NdiscPrefixInfoFlags, NdiscRepr,
    RawHardwareAddress,
};
use vmlan_config::gateway::{Dns, FromGateway, Network6, Setup};

use super::guest::{FIRST, Lan, nic, packet};
use crate::fuzz::{GUEST6, OWN, datagram};
use crate::link::{self, Arrived, Mac, Packet, ndisc};

const LAN: Network6 = Network6 { first: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0) };
const NOBODY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

/// A guest's message of ICMPv6, as smoltcp writes it; never routed, unless `hops` say so.
fn message(mac: Mac, (from, to): (Ipv6Addr, Ipv6Addr), hops: u8, repr: Icmpv6Repr<'_>) -> Vec<u8> {
    let ends = Packet { from: mac, to: if to.is_multicast() { ndisc::group(to) } else { OWN } };
    let (way, len) = ((from.into(), to.into()), repr.buffer_len());
    let mut frame = link::ip(ends, way, IpProtocol::Icmpv6, len, |bytes| {
        let sums = ChecksumCapabilities::default();
        repr.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(bytes), &sums);
    });
    frame[21] = hops;
    frame
}

fn lladdr(mac: Mac) -> Option<RawHardwareAddress> {
    Some(RawHardwareAddress::from(mac))
}

/// A guest finds out whether `ip` is free, as each does before it takes an address.
fn takes(mac: Mac, ip: Ipv6Addr) -> Vec<u8> {
    let repr = NdiscRepr::NeighborSolicit { target_addr: ip, lladdr: None };
    message(mac, (NOBODY, ndisc::solicited(ip)), 255, Icmpv6Repr::Ndisc(repr))
}

fn asks(mac: Mac, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    asks_at(ndisc::solicited(target), mac, from, target)
}

/// The same, of whoever listens to `to`.
pub(super) fn asks_at(to: Ipv6Addr, mac: Mac, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: lladdr(mac) };
    message(mac, (from, to), 255, Icmpv6Repr::Ndisc(repr))
}

/// What the gateway said of neighbour discovery since the last call, as smoltcp reads it, and to
/// which NIC.
fn said(lan: &mut Lan) -> Vec<(Mac, Icmpv6Repr<'static>)> {
    let read = |frame: Vec<u8>| {
        let frame: &'static [u8] = frame.leak();
        let ip = packet(frame).filter(|ip| ip.protocol == IpProtocol::Icmpv6)?;
        let (IpAddr::V6(from), IpAddr::V6(to)) = (ip.from, ip.to) else { return None };
        let message = Icmpv6Packet::new_checked(ip.payload).unwrap();
        assert!(ip.is_intact());
        let sums = ChecksumCapabilities::default();
        let repr = Icmpv6Repr::parse(&from, &to, &message, &sums).unwrap();
        Some((link::parse(frame).unwrap().to, repr))
    };
    lan.take().into_iter().filter_map(read).collect()
}

#[test]
fn a_guest_is_told_how_to_make_an_address_and_whom_to_ask() {
    let mut lan = Lan::new(Setup { allow: None, ..Setup::default() });
    let local = Network6::local().of_mac(FIRST.0);
    let ask = NdiscRepr::RouterSolicit { lladdr: lladdr(FIRST) };
    let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    lan.put(&message(FIRST, (local, all_routers), 255, Icmpv6Repr::Ndisc(ask)));
    let frames = lan.take();
    let [frame] = frames.as_slice() else { panic!("one answer, for it alone") };
    assert_eq!(link::parse(frame).unwrap().to, FIRST);
    let names = [&[25, 3, 0, 0, 0, 0, 7, 8][..], &LAN.gateway().octets()].concat();
    assert!(frame.windows(names.len()).any(|part| part == names), "the server of names");
    let search = b"\x1f\x02\0\0\0\0\x07\x08\x03lan\0\0\0\0";
    assert!(frame.windows(search.len()).any(|part| part == search), "what names end in");
    lan.frames.0.extend(frames.into_iter().map(|frame| (frame, link::Offload::default())));
    let said = said(&mut lan);
    let (_, Icmpv6Repr::Ndisc(NdiscRepr::RouterAdvert { router_lifetime, mtu, prefix_info, .. })) =
        said[0]
    else {
        panic!("{said:?}")
    };
    assert_eq!(router_lifetime.total_millis(), 0, "allow=none: no way out");
    assert_eq!(mtu, Some(1500));
    let prefix = prefix_info.unwrap();
    assert_eq!((prefix.prefix, prefix.prefix_len), (LAN.first, 64));
    assert_eq!(prefix.flags, NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF);
    // Who has no address yet is told with all others, and not more often than every 3 seconds.
    let ask = NdiscRepr::RouterSolicit { lladdr: None };
    for _ in 0..100 {
        lan.put(&message(nic(1), (NOBODY, all_routers), 255, Icmpv6Repr::Ndisc(ask)));
    }
    assert_eq!(lan.take().len(), 0);
    lan.now += 3000;
    lan.turn();
    assert_eq!(super::ipv6::said(&mut lan).len(), 1);
    assert_eq!(lan.gateway.due().unwrap().total_millis(), 603_000, "then it sleeps");
}

#[test]
fn the_gateway_is_found_and_nobody_else_answers_in_its_name() {
    let mut lan = Lan::new(Setup::default());
    for target in [LAN.gateway(), Network6::local().of_mac(OWN.0)] {
        lan.put(&asks(FIRST, GUEST6, target));
        let said = said(&mut lan);
        let (to, Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })) =
            said[0]
        else {
            panic!("{said:?}")
        };
        assert_eq!((to, target_addr, lladdr), (FIRST, target, Some(RawHardwareAddress::from(OWN))));
        assert!(flags.contains(NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::ROUTER));
        // A guest that would take it is told as well.
        lan.put(&takes(FIRST, target));
        assert_eq!(super::ipv6::said(&mut lan)[0].0, FIRST);
    }
    lan.put(&asks(FIRST, GUEST6, GUEST6));
    lan.put(&asks(FIRST, GUEST6, LAN.with(9)));
    assert_eq!(lan.take().len(), 0, "for itself alone");
    let refused = |lan: &mut Lan, frame: &[u8], reason: &str| {
        let before = lan.refused(reason);
        lan.put(frame);
        assert_eq!((lan.refused(reason), lan.take().len()), (before + 1, 0), "{reason}");
    };
    let solicit = |lladdr| {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: LAN.gateway(), lladdr })
    };
    let to = ndisc::solicited(LAN.gateway());
    let routed = message(FIRST, (GUEST6, to), 64, solicit(lladdr(FIRST)));
    refused(&mut lan, &routed, "malformed");
    let lie = message(FIRST, (GUEST6, to), 255, solicit(lladdr(nic(7))));
    refused(&mut lan, &lie, "malformed");
    let nobody = message(FIRST, (NOBODY, to), 255, solicit(lladdr(FIRST)));
    refused(&mut lan, &nobody, "malformed");
    let advert = NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::OVERRIDE,
        target_addr: LAN.gateway(),
        lladdr: lladdr(FIRST),
    };
    let theft = message(FIRST, (GUEST6, ndisc::ALL_NODES), 255, Icmpv6Repr::Ndisc(advert));
    refused(&mut lan, &theft, "address-taken");
    refused(&mut lan, &asks(FIRST, LAN.gateway(), LAN.with(9)), "address-taken");
    let own = Network6::local().of_mac(OWN.0);
    let name = datagram((own, 9).into(), (LAN.gateway(), 53).into(), OWN, b"anybody?");
    refused(&mut lan, &name, "foreign-source");
    let mut empty = asks(FIRST, GUEST6, LAN.gateway());
    empty[79] = 0;
    let arrived = Arrived { trusted: true, ..Arrived::default() };
    lan.gateway.frame(&empty, arrived, &mut lan.frames, smoltcp::time::Instant::ZERO);
    assert_eq!(lan.take().len(), 0, "an option of no length does not hang it");
}

/// Addresses that the switch is told of: given, and released.
fn told(lan: &mut Lan) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let (mut given, mut released) = (Vec::new(), Vec::new());
    for news in lan.news() {
        match news {
            FromGateway::Lease(lease) => given.push(lease.ip),
            FromGateway::Released(ip) => released.push(ip),
            _ => {}
        }
    }
    (given, released)
}

#[test]
fn the_switch_is_told_what_guests_take_and_a_flood_of_it_is_bounded() {
    let mut lan = Lan::new(Setup { now: 1_000_000, ..Setup::default() });
    told(&mut lan);
    lan.put(&takes(FIRST, GUEST6));
    assert_eq!(told(&mut lan), (vec![GUEST6.into()], vec![]));
    lan.put(&asks(FIRST, GUEST6, LAN.gateway()));
    assert_eq!(told(&mut lan), (vec![], vec![]), "it is known");
    lan.put(&takes(nic(1), GUEST6));
    assert_eq!((told(&mut lan), lan.refused("address-taken")), ((vec![], vec![]), 1));
    for n in 0..1000 {
        lan.put(&takes(FIRST, LAN.with(1 << 32 | n)));
    }
    let (given, released) = told(&mut lan);
    assert_eq!((given.len(), released.len(), lan.refused("vm-addresses")), (15, 0, 985));
    lan.put(&takes(nic(1), LAN.with(77)));
    assert_eq!(told(&mut lan).0.len(), 1, "the neighbour has its own");
    // A minute later those are forgotten that were not seen.
    lan.now = 61_000;
    lan.put(&asks(FIRST, GUEST6, LAN.gateway()));
    lan.put(&takes(FIRST, LAN.with(78)));
    let (given, released) = told(&mut lan);
    assert_eq!((given.len(), released.len()), (1, 1));
    assert_ne!(released[0], IpAddr::from(GUEST6));
}

#[test]
fn who_uses_a_neighbours_address_reaches_neither_its_flows_nor_anything_else() {
    let server = UdpSocket::bind("[::1]:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = server.local_addr().unwrap();
    let mut lan = Lan::open();
    lan.udp(6000, to, b"first");
    let from = SocketAddr::from((GUEST6, 6000));
    let spoofed = link::udp(Packet { from: nic(1), to: OWN }, from, to, b"second");
    lan.put(&spoofed);
    assert_eq!(lan.refused("address-taken"), 1);
    let foreign = SocketAddr::new("2001:db8::9".parse().unwrap(), 6000);
    lan.put(&datagram(foreign, to, OWN, b"third"));
    assert_eq!(lan.refused("foreign-source"), 1);
    // By IPv4 nobody knows whose an address is: it is a flow of its own.
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let short = other.local_addr().unwrap();
    lan.udp(6000, short, b"fourth");
    let own = SocketAddr::from((crate::fuzz::GUEST, 6000));
    lan.put(&link::udp(Packet { from: nic(1), to: OWN }, own, short, b"fifth"));
    assert_eq!(lan.counters().flows.get("udp"), Some(&3));
    let mut room = [0; 64];
    assert_eq!(server.recv(&mut room).unwrap(), 5);
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut room).is_err(), "one datagram has arrived");
}

#[test]
fn a_sum_of_zero_is_none_over_ipv6() {
    let mut lan = Lan::open();
    let mut frame = datagram((GUEST6, 1).into(), "[::1]:9".parse().unwrap(), OWN, b"0123456789");
    frame[60..62].copy_from_slice(&[0, 0]);
    lan.put(&frame);
    assert_eq!(lan.refused("malformed"), 1);
}

#[test]
fn information_is_given_and_addresses_are_not() {
    let mut lan = Lan::new(Setup::default());
    let local = Network6::local().of_mac(FIRST.0);
    let servers: SocketAddr = "[ff02::1:2]:547".parse().unwrap();
    let ask = |lan: &mut Lan, message: &[u8]| {
        let group = ndisc::group("ff02::1:2".parse().unwrap());
        let ends = Packet { from: FIRST, to: group };
        lan.put(&link::udp(ends, (local, 546).into(), servers, message));
        lan.datagrams()
    };
    let request = b"\x0b\x01\x02\x03\0\x01\0\x04\0\x03\0\x01\0\x06\0\x02\0\x17";
    let answers = ask(&mut lan, request);
    let [(from, 546, answer)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(*from, SocketAddr::from((Network6::local().of_mac(OWN.0), 547)));
    assert_eq!(answer[..12], *b"\x07\x01\x02\x03\0\x01\0\x04\0\x03\0\x01");
    let names = [&[0, 23, 0, 16][..], &LAN.gateway().octets()].concat();
    assert!(answer.windows(names.len()).any(|part| part == names));
    assert!(answer.windows(9).any(|part| part == b"\0\x18\0\x05\x03lan\0"));
    // A wish for addresses, another server's client, options that end too late.
    assert_eq!(ask(&mut lan, b"\x0b\x01\x02\x03\0\x03\0\0"), []);
    assert_eq!(ask(&mut lan, b"\x0b\x01\x02\x03\0\x02\0\x01x"), []);
    assert_eq!(ask(&mut lan, b"\x0b\x01\x02\x03\0\x01\0\x09x"), []);
    assert_eq!(ask(&mut lan, b"\x01\x01\x02\x03"), [], "a solicitation");
    assert_eq!((lan.refused("dhcp-refused"), lan.refused("malformed")), (1, 1));
    let mut off = Lan::new(Setup { dhcp: false, dns: Dns::Off, ..Setup::default() });
    assert_eq!(ask(&mut off, request), []);
}

#[test]
fn without_ipv6_nothing_of_it_is_answered() {
    let mut lan = Lan::new(Setup { network6: None, ..Setup::default() });
    lan.put(&asks(FIRST, GUEST6, LAN.gateway()));
    lan.udp(5353, (LAN.gateway(), 53).into(), b"anybody?");
    lan.now = 10_000_000;
    lan.turn();
    assert_eq!((lan.take().len(), lan.gateway.due()), (0, None));
}
