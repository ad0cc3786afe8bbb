use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};
use vmlan_config::gateway::{FromGateway, Setup};

use super::guest::{FIRST, GATEWAY, Lan, nic};
use crate::link::{self, Mac, Packet};

/// What a client says.
fn message(mac: Mac, kind: DhcpMessageType, wanted: Option<Ipv4Addr>) -> DhcpRepr<'static> {
    DhcpRepr {
        message_type: kind,
        transaction_id: 0x1234_5678,
        secs: 0,
        client_hardware_address: mac,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: Ipv4Addr::UNSPECIFIED,
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: false,
        requested_ip: wanted,
        client_identifier: Some(mac),
        server_identifier: None,
        parameter_request_list: Some(&[1, 3, 6, 15, 26]),
        dns_servers: None,
        max_size: None,
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    }
}

/// Sends it from `mac`; the answer's kind, address and length.
fn ask(lan: &mut Lan, mac: Mac, repr: &DhcpRepr<'_>) -> Option<(DhcpMessageType, Ipv4Addr, usize)> {
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut DhcpPacket::new_unchecked(bytes.as_mut_slice())).unwrap();
    let from = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 68));
    let to = SocketAddr::from((Ipv4Addr::BROADCAST, 67));
    lan.put(&link::udp(Packet { from: mac, to: Mac::BROADCAST }, from, to, &bytes));
    let (server, port, answer) = lan.datagrams().pop()?;
    assert_eq!((server, port), ((GATEWAY, 67).into(), 68));
    let packet = DhcpPacket::new_checked(answer.as_slice()).unwrap();
    let repr = DhcpRepr::parse(&packet).unwrap();
    assert_eq!(repr.transaction_id, 0x1234_5678);
    if repr.message_type != DhcpMessageType::Nak {
        assert_eq!(repr.router, Some(GATEWAY));
        assert_eq!(repr.subnet_mask, Some(Ipv4Addr::new(255, 255, 255, 0)));
        let option = |kind| packet.options().find(|o| o.kind == kind).map(|o| o.data.to_vec());
        assert_eq!(option(15).unwrap(), b"lan");
        assert_eq!(option(26).unwrap(), 1500u16.to_be_bytes());
        assert_eq!(option(119).unwrap(), b"\x03lan\0");
        assert_eq!(option(6).unwrap(), GATEWAY.octets());
    }
    Some((repr.message_type, repr.your_ip, answer.len()))
}

/// An address as clients get one.
fn lease(lan: &mut Lan, mac: Mac) -> Option<Ipv4Addr> {
    use DhcpMessageType::{Ack, Discover, Offer, Request};
    let (kind, ip, len) = ask(lan, mac, &message(mac, Discover, None))?;
    assert_eq!(kind, Offer);
    assert!(len >= 300, "some clients drop shorter ones");
    let mut request = message(mac, Request, Some(ip));
    request.server_identifier = Some(GATEWAY);
    let (kind, got, _) = ask(lan, mac, &request)?;
    assert_eq!((kind, got), (Ack, ip));
    Some(ip)
}

#[test]
fn a_client_gets_the_same_address_again_without_any_memory() {
    let first = lease(&mut Lan::new(Setup::default()), FIRST).unwrap();
    let again = lease(&mut Lan::new(Setup::default()), FIRST).unwrap();
    assert_eq!(first, again);
    let octets = first.octets();
    assert!(octets[..3] == [10, 77, 0] && (100..200).contains(&octets[3]), "{first}");
}

#[test]
fn the_switch_is_told_of_a_lease_and_a_next_gateway_keeps_it() {
    let mut lan = Lan::new(Setup::default());
    let ip = lease(&mut lan, FIRST).unwrap();
    let told = lan.news().into_iter().find_map(|news| match news {
        FromGateway::Lease(lease) => Some(lease),
        _ => None,
    });
    let told = told.unwrap();
    assert_eq!((told.ip, told.mac.as_str()), (ip.into(), "02:00:00:00:00:01"));
    let mut next = Lan::new(Setup::default());
    next.gateway.restore(vec![told]);
    let other = lease(&mut next, nic(1)).unwrap();
    assert_ne!(other, ip, "somebody has it");
    let renewed = DhcpRepr { client_ip: ip, ..message(FIRST, DhcpMessageType::Request, None) };
    assert_eq!(ask(&mut next, FIRST, &renewed).unwrap().1, ip);
}

#[test]
fn who_asks_for_an_old_address_gets_it_or_a_no() {
    let mut lan = Lan::new(Setup::default());
    let taken = lease(&mut lan, nic(1)).unwrap();
    let init = |ip| message(FIRST, DhcpMessageType::Request, Some(ip));
    let free = Ipv4Addr::new(10, 77, 0, 42);
    assert_eq!(ask(&mut lan, FIRST, &init(free)).unwrap().0, DhcpMessageType::Ack);
    for no in [taken, Ipv4Addr::new(192, 168, 1, 5), GATEWAY, Ipv4Addr::new(10, 77, 0, 255)] {
        assert_eq!(ask(&mut lan, FIRST, &init(no)).unwrap().0, DhcpMessageType::Nak, "{no}");
    }
}

#[test]
fn three_hundred_clients_for_a_hundred_addresses() {
    let mut lan = Lan::new(Setup { flow_rate: 100_000, ..Setup::default() });
    let all: Vec<_> = (0..150).filter_map(|n| lease(&mut lan, nic(n))).collect();
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (100, 100));
    assert_eq!(lan.refused("dhcp-exhausted"), 50);
    let text = "no address left in 10.77.0.100-10.77.0.199: 100 leases; lease list";
    let said = |news: &FromGateway| matches!(news, FromGateway::Log { text: t, .. } if t == text);
    assert_eq!(lan.news().iter().filter(|news| said(news)).count(), 1, "it is said once");
    // An hour later nobody has renewed.
    lan.now = 3_601_000;
    assert!(lease(&mut lan, nic(149)).is_some());
}

/// Sixteen at a time, as one port may have, and renewed in turn.
#[test]
fn a_port_with_many_nics_does_not_have_all_addresses() {
    let mut lan = Lan::of_a_switch(Setup::default());
    let mut told = std::collections::BTreeMap::new();
    for n in 0..128 {
        lan.now += 61_000 * i64::from(n % 16 == 0);
        lan.ports.insert(nic(n), "vm1");
        assert!(lease(&mut lan, nic(n)).is_some(), "{n}");
        for news in lan.news() {
            match news {
                FromGateway::Lease(lease) => _ = told.insert(lease.ip, lease.mac),
                FromGateway::Released(ip) => assert!(told.remove(&ip).is_some(), "{ip}"),
                _ => {}
            }
        }
        assert!(told.len() <= 16, "{}", told.len());
    }
    lan.ports.insert(nic(200), "vm2");
    assert!(lease(&mut lan, nic(200)).is_some());
    // The newest ones are left, and each is renewed.
    lan.now += 1000;
    for mac in (112..128).map(nic) {
        let own = told.iter().find(|(_, of)| **of == link::mac_text(mac));
        let IpAddr::V4(ip) = *own.unwrap().0 else { panic!("of IPv4") };
        let renewed = DhcpRepr { client_ip: ip, ..message(mac, DhcpMessageType::Request, None) };
        assert_eq!(ask(&mut lan, mac, &renewed).unwrap().1, ip);
    }
}

/// The NIC that asked longest ago may be at work still, and goes on with its address.
#[test]
fn a_lease_that_made_room_is_given_to_others_last() {
    let mut lan = Lan::of_a_switch(Setup::default());
    let mut leases = Vec::new();
    for n in 0..20 {
        lan.now += if n % 16 == 0 { 61_000 } else { 1000 };
        lan.ports.insert(nic(n), "vm1");
        leases.push(lease(&mut lan, nic(n)).unwrap());
    }
    let mut different = leases.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 20, "nobody has what another may use");
    // Nor may a NIC of another port take it, which knows what it wants.
    lan.ports.insert(nic(100), "vm2");
    let theft = message(nic(100), DhcpMessageType::Request, Some(leases[0]));
    assert_eq!(ask(&mut lan, nic(100), &theft).unwrap().0, DhcpMessageType::Nak);
    lan.now += 61_000;
    let renewed =
        DhcpRepr { client_ip: leases[0], ..message(nic(0), DhcpMessageType::Request, None) };
    assert_eq!(ask(&mut lan, nic(0), &renewed).unwrap().0, DhcpMessageType::Ack);
    assert_eq!(lease(&mut lan, nic(1)), Some(leases[1]), "who forgot it gets it again, too");
    // After its time anybody may have it.
    lan.now += 3_600_000;
    assert_eq!(ask(&mut lan, nic(100), &theft).unwrap().0, DhcpMessageType::Ack);
}

#[test]
fn a_reserved_address_makes_room_for_nobody() {
    let ip = Ipv4Addr::new(10, 77, 0, 20);
    let reserved = [("vm1".to_owned(), ip)].into();
    let mut lan = Lan::of_a_switch(Setup { reserved, ..Setup::default() });
    for n in 0..40 {
        lan.now += if n % 16 == 0 { 61_000 } else { 1000 };
        lan.ports.insert(nic(n), "vm1");
        assert_eq!(lease(&mut lan, nic(n)).unwrap() == ip, n == 0);
    }
    let told = lan.news();
    assert!(!told.contains(&FromGateway::Released(ip.into())));
    let released = told.iter().filter(|news| matches!(news, FromGateway::Released(_))).count();
    assert_eq!(released, 24, "others make room");
}

/// Each lease that the switch is told of costs those something who serve everybody.
#[test]
fn a_guest_that_renews_all_the_time_is_answered_now_and_then() {
    let mut lan = Lan::new(Setup::default());
    let ip = lease(&mut lan, FIRST).unwrap();
    let renewed = DhcpRepr { client_ip: ip, ..message(FIRST, DhcpMessageType::Request, None) };
    lan.news();
    let answered = (0..1000).filter(|_| ask(&mut lan, FIRST, &renewed).is_some()).count();
    let told = lan.news().into_iter().filter(|news| matches!(news, FromGateway::Lease(_))).count();
    assert_eq!((answered, told), (38, 38));
    assert_eq!(lan.refused("dhcp-rate"), 962);
    assert!(lease(&mut lan, nic(1)).is_some(), "others are served");
    lan.now = 100;
    assert!(lease(&mut lan, FIRST).is_some(), "a moment later it is, too");
}

#[test]
fn a_liar_gets_nothing() {
    let mut lan = Lan::new(Setup::default());
    let other = message(nic(9), DhcpMessageType::Discover, None);
    assert_eq!(ask(&mut lan, FIRST, &other), None);
    let relay = GATEWAY;
    let relayed =
        DhcpRepr { relay_agent_ip: relay, ..message(FIRST, DhcpMessageType::Discover, None) };
    assert_eq!(ask(&mut lan, FIRST, &relayed), None);
    assert_eq!(lan.refused("dhcp-refused"), 2);
    let ip = lease(&mut lan, nic(1)).unwrap();
    let theft = DhcpRepr { client_ip: ip, ..message(FIRST, DhcpMessageType::Release, None) };
    assert_eq!(ask(&mut lan, FIRST, &theft), None);
    assert_eq!(lan.gateway.holder(ip), Some(nic(1)), "nobody gives back what is another's");
}

#[test]
fn a_declined_address_is_not_given_at_once_and_costs_the_pool_one_only() {
    let mut lan = Lan::new(Setup::default());
    let mut seen = Vec::new();
    for _ in 0..5 {
        let ip = lease(&mut lan, FIRST).unwrap();
        assert_ne!(seen.last(), Some(&ip));
        seen.push(ip);
        let decline = message(FIRST, DhcpMessageType::Decline, Some(ip));
        assert_eq!(ask(&mut lan, FIRST, &decline), None);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 2, "the one before is free again");
}

#[test]
fn a_reservation_goes_by_the_port() {
    let ip = Ipv4Addr::new(10, 77, 0, 20);
    let port = crate::link::mac_text(FIRST);
    let reserved = [(port, ip)].into();
    let mut lan = Lan::new(Setup { reserved, ..Setup::default() });
    let wanted = message(nic(1), DhcpMessageType::Request, Some(ip));
    assert_eq!(ask(&mut lan, nic(1), &wanted).unwrap().0, DhcpMessageType::Nak);
    assert_eq!(lease(&mut lan, FIRST), Some(ip));
}
