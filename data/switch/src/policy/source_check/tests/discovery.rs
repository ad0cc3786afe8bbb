//! Neighbour discovery (RFC 4861) and duplicate address detection (RFC 4862).
use core::net::Ipv6Addr;

use vmlan_frame::Reason::*;

use super::frames::*;
use super::*;
use crate::fuzz::{LINK_LOCAL, MAC, MAC2};
use crate::policy::{Prefix, SourceCheck};

const NAMES: [u8; 3] = [LISTED, FIRST, TWO];
const ADDRESSES: [u8; 3] = [IPS, LISTED | IPS, FIRST | IPS | DHCP];

fn icmp(message: Vec<u8>) -> Vec<u8> {
    V6::icmp(message).frame()
}

/// Messages that name a link-layer address, all honest if it is.
fn messages(mac: [u8; 6]) -> Vec<Vec<u8>> {
    let (source, target) = (link_layer(1, mac), link_layer(2, mac));
    vec![
        rs(&source),
        ra(&source),
        neighbour(135, YOU6, &source),
        neighbour(136, ME6, &target),
        redirect(ME6, &target),
        // The wrong kind for the message, for whoever does not look.
        neighbour(135, YOU6, &target),
        neighbour(136, ME6, &source),
    ]
}

#[test]
fn link_layer_addresses_are_the_senders() {
    for message in messages(MAC) {
        passes(&NAMES, &icmp(message.clone()));
        passes(&ADDRESSES, &icmp(message.clone()));
    }
    for message in messages(OTHER) {
        refused(&NAMES, &icmp(message.clone()), SpoofedNd);
        refused(&ADDRESSES, &icmp(message.clone()), SpoofedNd);
        passes(&[ANY, DHCP], &icmp(message));
    }
    for message in messages(MAC2) {
        passes(&[TWO, TWO | IPS], &icmp(message.clone()));
        refused(&[LISTED, IPS], &icmp(message), SpoofedNd);
    }
}

#[test]
fn advertisements_and_redirects_are_about_the_port() {
    for options in [vec![], link_layer(2, MAC)] {
        for target in [ME6, LINK_LOCAL, "2001:db8:1::abcd".parse().unwrap()] {
            passes(&ADDRESSES, &icmp(neighbour(136, target, &options)));
            passes(&ADDRESSES, &icmp(redirect(target, &options)));
        }
        for target in [YOU6, ALL_NODES, Ipv6Addr::UNSPECIFIED, "fe80::9".parse().unwrap()] {
            refused(&ADDRESSES, &icmp(neighbour(136, target, &options)), SpoofedNd);
            refused(&ADDRESSES, &icmp(redirect(target, &options)), SpoofedNd);
            passes(&[LISTED], &icmp(neighbour(136, target, &options)));
        }
    }
    // Who asks about others is who it says it is.
    passes(&ADDRESSES, &icmp(neighbour(135, YOU6, &link_layer(1, MAC))));
    for message in messages(MAC) {
        refused(&ADDRESSES, &V6 { from: YOU6, ..V6::icmp(message) }.frame(), SpoofedIp);
    }
}

/// CVE-2023-5366: the target was not looked at if options followed it.
#[test]
fn the_target_counts_whatever_options_follow() {
    let nonce = vec![14, 1, 1, 2, 3, 4, 5, 6];
    let own = link_layer(2, MAC);
    let large = [&[200, 2][..], &[1; 14]].concat();
    for options in [
        vec![],
        own.clone(),
        nonce.clone(),
        [own.clone(), nonce.clone()].concat(),
        [nonce.clone(), own.clone()].concat(),
        [large.clone(), own.clone(), own.clone()].concat(),
        large.clone(),
    ] {
        passes(&ADDRESSES, &icmp(neighbour(136, ME6, &options)));
        refused(&ADDRESSES, &icmp(neighbour(136, YOU6, &options)), SpoofedNd);
        // A lie behind the truth.
        let lie = [&options[..], &link_layer(2, OTHER)].concat();
        refused(&ADDRESSES, &icmp(neighbour(136, ME6, &lie)), SpoofedNd);
        let lie = [&link_layer(1, OTHER)[..], &options].concat();
        refused(&ADDRESSES, &icmp(neighbour(136, ME6, &lie)), SpoofedNd);
    }
}

#[test]
fn options_end_where_the_message_does() {
    let own = link_layer(2, MAC);
    for bad in [
        &[1, 0][..],
        &[1],
        &[2, 1, 2, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[9, 2, 0, 0, 0, 0, 0, 0],
    ] {
        for options in [bad.to_vec(), [&own[..], bad].concat()] {
            refused(&NAMES, &icmp(neighbour(136, ME6, &options)), NotParsed);
            refused(&ADDRESSES, &icmp(neighbour(136, ME6, &options)), NotParsed);
        }
    }
    // A longer link-layer address than Ethernet's begins like one.
    let long = [&[2, 2][..], &MAC, &[0; 8]].concat();
    refused(&ADDRESSES, &icmp(neighbour(136, ME6, &long)), NotParsed);
    // One that lies beyond the snapshot.
    let many = [own.repeat(6), link_layer(2, OTHER)].concat();
    refused(&ADDRESSES, &icmp(neighbour(136, ME6, &many)), NotParsed);
    // One that lies beyond the packet.
    let mut frame = icmp(neighbour(136, ME6, &[]));
    frame.extend(link_layer(2, OTHER));
    passes(&ADDRESSES, &frame);
}

#[test]
fn messages_are_valid() {
    for message in messages(MAC) {
        for hops in [0, 1, 64, 254] {
            refused(&ADDRESSES, &V6 { hops, ..V6::icmp(message.clone()) }.frame(), SpoofedNd);
        }
        let mut code = message.clone();
        code[1] = 1;
        refused(&ADDRESSES, &icmp(code), NotParsed);
        let fixed = match message[0] {
            133 => 8,
            134 => 16,
            137 => 40,
            _ => 24,
        };
        (4..fixed).for_each(|n| refused(&ADDRESSES, &icmp(message[..n].to_vec()), NotParsed));
        // RFC 6980: in no fragment.
        for more in [false, true] {
            let chain = vec![fragment(0, more)];
            refused(&ADDRESSES, &V6 { chain, ..V6::icmp(message.clone()) }.frame(), NotParsed);
        }
        // Behind options it is the same message.
        let chain = vec![(HOP_BY_HOP, padding()), (DESTINATION, padding())];
        passes(&ADDRESSES, &V6 { chain: chain.clone(), ..V6::icmp(message) }.frame());
        let lie = neighbour(136, YOU6, &[]);
        refused(&ADDRESSES, &V6 { chain, ..V6::icmp(lie) }.frame(), SpoofedNd);
        refused(&ADDRESSES, &tagged(&icmp(neighbour(136, YOU6, &[])), &[0x8100]), SpoofedNd);
    }
    for kind in [141, 142] {
        refused(&ADDRESSES, &icmp(neighbour(kind, ME6, &link_layer(1, MAC))), NotParsed);
    }
}

#[test]
fn duplicate_address_detection_is_for_addresses_to_be_had() {
    for target in [ME6, LINK_LOCAL, "2001:db8:1::77".parse().unwrap()] {
        passes(&ADDRESSES, &dad(target).frame());
        let mut nonce = dad(target);
        nonce.payload.extend([14, 1, 1, 2, 3, 4, 5, 6]);
        passes(&ADDRESSES, &nonce.frame());
        let mut named = dad(target);
        named.payload.extend(link_layer(1, MAC));
        refused(&ADDRESSES, &named.frame(), SpoofedNd);
        refused(&[LISTED], &named.frame(), SpoofedNd);
        refused(&ADDRESSES, &V6 { to: ALL_NODES, ..dad(target) }.frame(), SpoofedNd);
    }
    refused(&ADDRESSES, &dad(YOU6).frame(), SpoofedNd);
    refused(&ADDRESSES, &dad("fe80::9".parse().unwrap()).frame(), SpoofedNd);
    passes(&[LISTED], &dad(YOU6).frame());
    let from = Ipv6Addr::UNSPECIFIED;
    for message in [rs(&[]), neighbour(136, ME6, &[]), ra(&[])] {
        refused(&ADDRESSES, &V6 { from, ..V6::icmp(message) }.frame(), SpoofedIp);
    }
}

#[test]
fn whether_an_address_is_free_may_be_asked_where_it_may_be_taken() {
    let network = Prefix { address: "fd00:77::".parse().unwrap(), bits: 64 };
    let nobody = Prefix { address: Ipv6Addr::UNSPECIFIED.into(), bits: 128 };
    let check = SourceCheck {
        ips: Some([nobody].into()),
        free: Some([network].into()),
        ..SourceCheck::default()
    };
    let judge = |frame: Vec<u8>| check.check(&frame[..frame.len().min(HEAD)], frame.len());
    let new: Ipv6Addr = "fd00:77::9".parse().unwrap();
    assert_eq!(judge(dad(new).frame()), Ok(()));
    assert_eq!(judge(dad(LINK_LOCAL).frame()), Ok(()));
    assert_eq!(judge(dad("fd00:78::9".parse().unwrap()).frame()), Err(SpoofedNd));
    // To ask is not to have: it may neither be used nor be said to be one's own.
    assert_eq!(judge(V6 { from: new, ..V6::default() }.frame()), Err(SpoofedIp));
    let advert = V6 { from: LINK_LOCAL, ..V6::icmp(neighbour(136, new, &link_layer(2, MAC))) };
    assert_eq!(judge(advert.frame()), Err(SpoofedNd));
    let taken = Prefix { address: new.into(), bits: 128 };
    let check = SourceCheck { ips: Some([nobody, taken].into()), ..check };
    let judge = |frame: Vec<u8>| check.check(&frame[..frame.len().min(HEAD)], frame.len());
    assert_eq!(judge(V6 { from: new, ..V6::default() }.frame()), Ok(()));
    assert_eq!(judge(V6 { from: Ipv6Addr::UNSPECIFIED, ..V6::default() }.frame()), Err(SpoofedIp));
}
