//! Servers and routers on ports that are none.
use core::net::Ipv4Addr;

use vmlan_frame::Reason::*;

use super::frames::*;
use super::*;
use crate::fuzz::{LINK_LOCAL, MAC};

const GUARDED: [u8; 4] = [DHCP, DHCP | RA, DHCP | IPS, DHCP | IPS | LISTED];
const NO_ROUTER: [u8; 4] = [RA, DHCP | RA, RA | IPS, RA | LISTED];

#[test]
fn no_dhcp_server() {
    let offer = V4 { to: Ipv4Addr::BROADCAST, payload: udp(67, 68), ..V4::default() };
    for packet in [
        offer.clone(),
        V4 { to: YOU, ..offer.clone() },
        V4 { options: vec![1; 4], ..offer.clone() },
        V4 { options: vec![1; 40], ..offer.clone() },
        V4 { fragment: 0x2000, ..offer.clone() },
        // Clients do not ask where it comes from; relays are servers, too.
        V4 { payload: udp(1067, 68), ..offer.clone() },
        V4 { payload: udp(67, 67), ..offer.clone() },
    ] {
        refused(&GUARDED, &packet.frame(), DhcpGuard);
        refused(&GUARDED, &tagged(&packet.frame(), &[0x8100]), DhcpGuard);
        refused(&[DHCP], &tagged(&packet.frame(), &[0x88a8, 0x8100]), DhcpGuard);
        passes(&[ANY, RA, LISTED, IPS | RA], &packet.frame());
    }
    passes(&GUARDED, &dhcp_discover().frame());
    passes(&GUARDED, &V4 { payload: udp(68, 67), ..V4::default() }.frame());
    passes(
        &GUARDED,
        &V4 {
            protocol: TCP,
            payload: [&udp(67, 68)[..12], &tcp(0)[12..]].concat(),
            ..V4::default()
        }
        .frame(),
    );
}

#[test]
fn no_dhcpv6_server() {
    let reply = V6 { from: LINK_LOCAL, payload: udp(547, 546), ..V6::default() };
    for chain in [
        vec![],
        vec![(HOP_BY_HOP, padding()), (DESTINATION, padding())],
        vec![(ROUTING, vec![0, 4, 0, 0, 0, 0, 0])],
        vec![fragment(0, false)],
        vec![(DESTINATION, padding()), fragment(0, true)],
    ] {
        for payload in [udp(547, 546), udp(547, 547), udp(9999, 546)] {
            let frame = V6 { chain: chain.clone(), payload, ..reply.clone() }.frame();
            refused(&GUARDED, &frame, DhcpGuard);
            passes(&[RA, IPS | RA], &frame);
        }
    }
    passes(&GUARDED, &V6 { payload: udp(546, 547), ..reply.clone() }.frame());
    passes(&GUARDED, &V6 { payload: udp(67, 68), ..reply }.frame());
}

#[test]
fn a_server_that_is_not_understood_is_none() {
    let offer = V4 { payload: udp(67, 68), ..V4::default() };
    for size in 0..8 {
        let payload = offer.payload[..size].to_vec();
        refused(
            &GUARDED,
            &V4 { payload: payload.clone(), fragment: 0x2000, ..offer.clone() }.frame(),
            NotParsed,
        );
        refused(&GUARDED, &V4 { payload, ..offer.clone() }.frame(), NotParsed);
    }
    let frame = offer.frame();
    for (at, value) in [(14, 0x44), (14, 0x65), (17, 10), (17, 200), (39, 7), (39, 0xff)] {
        let mut odd = frame.clone();
        odd[at] = value;
        refused(&GUARDED, &odd, NotParsed);
    }
    refused(&GUARDED, &V4 { protocol: 51, ..offer }.frame(), NotParsed);
    let long = [&[9, 1, 76][..], &[0; 76]].concat();
    refused(
        &GUARDED,
        &V6 { chain: vec![(DESTINATION, long)], payload: udp(547, 546), ..V6::default() }.frame(),
        NotParsed,
    );
}

/// What is not in the first fragment cannot become a server's: it has the ports.
#[test]
fn later_fragments_pass_the_guards() {
    for bytes in [udp(67, 68), vec![134; 24]] {
        passes(
            &[DHCP, RA, DHCP | RA | IPS],
            &V4 { fragment: 3, payload: bytes.clone(), ..V4::default() }.frame(),
        );
        let later = V6 { chain: vec![fragment(3, false)], ..V6::icmp(bytes) };
        passes(&[DHCP, RA, DHCP | RA | IPS], &later.frame());
    }
}

#[test]
fn no_router() {
    let own = link_layer(1, MAC);
    for message in [ra(&own), ra(&[]), redirect(ME6, &[]), redirect(YOU6, &own)] {
        for chain in [
            vec![],
            vec![(HOP_BY_HOP, padding())],
            vec![(DESTINATION, padding()); 3],
            vec![fragment(0, false)],
            vec![fragment(0, true)],
        ] {
            for hops in [255, 64] {
                let frame = V6 { chain: chain.clone(), hops, ..V6::icmp(message.clone()) }.frame();
                refused(&NO_ROUTER, &frame, RaGuard);
                refused(&NO_ROUTER, &tagged(&frame, &[0x8100]), RaGuard);
                passes(&[ANY, DHCP], &frame);
            }
        }
    }
    // A router is who has no guard.
    passes(&[LISTED | IPS, DHCP], &V6 { from: LINK_LOCAL, ..V6::icmp(ra(&own)) }.frame());
    passes(&NO_ROUTER, &V6::icmp(rs(&own)).frame());
    passes(&NO_ROUTER, &V4 { protocol: ICMPV6, payload: ra(&own), ..V4::default() }.frame());
}

/// RFC 7113: what cannot be told from a router's.
#[test]
fn a_router_that_is_not_understood_is_none() {
    let advertisement = V6::icmp(ra(&[]));
    let long = [&[9, 1, 76][..], &[0; 76]].concat();
    for chain in [
        vec![(DESTINATION, long)],
        vec![(DESTINATION, padding()); 9],
        vec![(DESTINATION, padding()), (HOP_BY_HOP, padding())],
        vec![fragment(0, true), (DESTINATION, padding())],
        vec![(51, vec![4, 0, 0, 0, 0, 0, 1])],
        vec![(135, padding())],
        vec![(253, padding())],
    ] {
        refused(&NO_ROUTER, &V6 { chain, ..advertisement.clone() }.frame(), NotParsed);
    }
    for size in 0..4 {
        let payload = vec![134; size];
        let first = V6 { chain: vec![fragment(0, true)], ..V6::icmp(payload) };
        refused(&NO_ROUTER, &first.frame(), NotParsed);
    }
    // The rest of the chain in another fragment.
    let first = V6 {
        chain: vec![fragment(0, true)],
        protocol: DESTINATION,
        payload: vec![58, 1, 0, 0, 0, 0, 0, 0],
        ..advertisement
    };
    refused(&NO_ROUTER, &first.frame(), NotParsed);
}
