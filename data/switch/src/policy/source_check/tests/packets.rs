//! IPv4 and IPv6 packets: sources, lengths, options, fragments, tags.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vmlan_frame::Reason::*;

use super::frames::*;
use super::*;
use crate::fuzz::LINK_LOCAL;
use crate::policy::{Prefix, SourceCheck};

const CHECKED: [u8; 3] = [IPS, LISTED | IPS, FIRST | IPS | DHCP | RA];

fn lists(prefixes: &[(&str, u8)]) -> SourceCheck {
    let parse = |(ip, bits): &(&str, u8)| Prefix { address: ip.parse().unwrap(), bits: *bits };
    SourceCheck { ips: Some(prefixes.iter().map(parse).collect()), ..SourceCheck::default() }
}

#[test]
fn sources_are_the_listed_ones() {
    passes(&CHECKED, &V4::default().frame());
    passes(&CHECKED, &V6::default().frame());
    for ip in
        [YOU, Ipv4Addr::new(10, 1, 1, 0), Ipv4Addr::new(9, 255, 255, 255), Ipv4Addr::LOCALHOST]
    {
        refused(&CHECKED, &V4 { from: ip, ..V4::default() }.frame(), SpoofedIp);
        passes(&[LISTED, DHCP, RA], &V4 { from: ip, ..V4::default() }.frame());
    }
    let mapped = ME.to_ipv6_mapped();
    for ip in [YOU6, mapped, Ipv6Addr::LOCALHOST, "2001:db8:1:1::1".parse().unwrap()] {
        refused(&CHECKED, &V6 { from: ip, ..V6::default() }.frame(), SpoofedIp);
        passes(&[LISTED, DHCP, RA], &V6 { from: ip, ..V6::default() }.frame());
    }
    passes(&CHECKED, &V4 { from: Ipv4Addr::new(10, 1, 0, 255), ..V4::default() }.frame());
    passes(&CHECKED, &V6 { from: "2001:db8:1::77".parse().unwrap(), ..V6::default() }.frame());
}

#[test]
fn prefixes_of_every_length() {
    for bits in 0..=32u8 {
        let source_check = lists(&[("10.85.170.255", bits)]);
        for flip in 0..32u8 {
            let ip = Ipv4Addr::from_bits(0x0a55_aaff ^ 1 << (31 - flip));
            let frame = V4 { from: ip, ..V4::default() }.frame();
            let group = ip.octets()[0] >= 224;
            assert_eq!(
                source_check.check(&frame, frame.len()).is_ok(),
                flip >= bits && !group,
                "{ip}/{bits}"
            );
        }
    }
    for bits in 0..=128u8 {
        let source_check = lists(&[("2001:db8:55:aa::1", bits)]);
        for flip in 0..128u8 {
            let IpAddr::V6(ip) = source_check.ips.as_ref().unwrap()[0].address else {
                unreachable!()
            };
            let ip = Ipv6Addr::from_bits(ip.to_bits() ^ 1 << (127 - flip));
            let frame = V6 { from: ip, ..V6::default() }.frame();
            assert_eq!(
                source_check.check(&frame, frame.len()).is_ok(),
                flip >= bits,
                "{ip}/{bits}"
            );
        }
    }
}

#[test]
fn nobody_is_a_group_and_no_prefix_lists_the_unspecified() {
    let source_check = lists(&[("0.0.0.0", 0), ("::", 0)]);
    let check = |frame: Vec<u8>| source_check.check(&frame, frame.len());
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        assert_eq!(check(V4 { from: ip, ..V4::default() }.frame()), Err(SpoofedIp), "{ip}");
    }
    for ip in [Ipv6Addr::UNSPECIFIED, ALL_NODES] {
        assert_eq!(check(V6 { from: ip, ..V6::default() }.frame()), Err(SpoofedIp), "{ip}");
    }
    assert_eq!(check(V4 { from: YOU, ..V4::default() }.frame()), Ok(()));
    assert_eq!(check(V6 { from: YOU6, ..V6::default() }.frame()), Ok(()));
}

#[test]
fn a_family_without_addresses_is_silent() {
    let (four, six, none) =
        (lists(&[("10.0.0.1", 32)]), lists(&[("2001:db8::1", 128)]), lists(&[]));
    let check = |source_check: &SourceCheck, frame: &[u8]| source_check.check(frame, frame.len());
    let local = V6 { from: LINK_LOCAL, ..V6::default() };
    for frame in [local.frame(), listener_report(Ipv6Addr::UNSPECIFIED).frame()] {
        assert_eq!(check(&six, &frame), Ok(()));
        assert_eq!(check(&four, &frame), Err(SpoofedIp));
        assert_eq!(check(&none, &frame), Err(SpoofedIp));
    }
    let frame = dhcp_discover().frame();
    assert_eq!(check(&four, &frame), Ok(()));
    assert_eq!(check(&six, &frame), Err(SpoofedIp));
    assert_eq!(check(&none, &frame), Err(SpoofedIp));
    for frame in honest().iter().filter(|f| f[12..14] != [0x80, 0x35]) {
        assert!(check(&none, frame).is_err(), "{frame:02x?}");
    }
}

#[test]
fn the_unspecified_address_asks_for_one_and_nothing_else() {
    let ask = dhcp_discover();
    passes(&CHECKED, &ask.frame());
    passes(&CHECKED, &tagged(&ask.frame(), &[0x8100]));
    for lie in [
        V4 { to: YOU, ..ask.clone() },
        V4 { payload: udp(68, 68), ..ask.clone() },
        V4 { payload: udp(69, 67), ..ask.clone() },
        V4 { protocol: TCP, payload: tcp(0), ..ask.clone() },
        V4 { fragment: 0x2000, ..ask.clone() },
        V4 { fragment: 5, ..ask.clone() },
    ] {
        refused(&[IPS, LISTED | IPS], &lie.frame(), SpoofedIp);
    }
    let report = listener_report(Ipv6Addr::UNSPECIFIED);
    passes(&CHECKED, &report.frame());
    refused(&CHECKED, &V6 { to: YOU6, ..report.clone() }.frame(), SpoofedIp);
    let mut chain = report.chain.clone();
    chain.push(fragment(0, true));
    refused(&CHECKED, &V6 { chain, ..report.clone() }.frame(), SpoofedIp);
    for kind in [1, 128, 129, 130, 138, 200] {
        let mut query = report.clone();
        query.payload[0] = kind;
        refused(&CHECKED, &query.frame(), SpoofedIp);
    }
}

#[test]
fn link_local_addresses_are_made_of_the_frames_own() {
    let frame = V6 { from: LINK_LOCAL, ..V6::default() }.frame();
    passes(&CHECKED, &frame);
    for at in 22..38 {
        let mut other = frame.clone();
        other[at] ^= 4;
        refused(&CHECKED, &other, SpoofedIp);
    }
    let mut second = frame.clone();
    second[11] = 2;
    refused(&[IPS, TWO | IPS], &second, SpoofedIp);
    second[37] = 2;
    passes(&[IPS, TWO | IPS], &second);
}

/// CVE-2016-10377: the IP length is less than the header's.
#[test]
fn lengths_that_are_too_short_or_too_long() {
    for (protocol, payload) in [(UDP, udp(1, 2)), (TCP, tcp(16)), (1, vec![8; 16])] {
        let good = V4 { protocol, payload, ..V4::default() };
        let frame = good.frame();
        let whole = frame.len() - 14;
        passes(&CHECKED, &frame);
        let least = 20 + if protocol == TCP { 20 } else { 0 };
        for len in (1..least).chain(whole + 1..whole + 40) {
            let mut odd = frame.clone();
            odd[17] = len as u8;
            refused(&CHECKED, &odd, NotParsed);
        }
        for ihl in (0..5).chain(6..16) {
            let mut odd = frame.clone();
            odd[14] = 0x40 | ihl;
            assert!(judge(IPS, &odd).is_err() || ihl > 5, "{ihl}");
        }
    }
    let mut odd = V6::default().frame();
    for len in (0..24u8).chain(25..40) {
        odd[19] = len;
        let left_out = len == 0;
        assert_eq!(judge(IPS, &odd), if left_out { Ok(()) } else { Err(NotParsed) }, "{len}");
    }
}

/// CVE-2020-35498: padding behind the packet.
#[test]
fn extra_padding_changes_nothing() {
    let honest = [V4::default().frame(), V6::default().frame(), dad(ME6).frame(), arp(1, ME, YOU)];
    let lies = [
        (V4 { from: YOU, ..V4::default() }.frame(), SpoofedIp),
        (V6 { from: YOU6, ..V6::default() }.frame(), SpoofedIp),
        (dad(YOU6).frame(), SpoofedNd),
        (arp(1, YOU, ME), SpoofedArp),
    ];
    for padding in [1, 2, 9, 46, 255, 256, 9000] {
        for fill in [0, 1, 0x45, 0xff] {
            let padding = vec![fill; padding];
            honest.iter().for_each(|f| passes(&CHECKED, &[&f[..], &padding].concat()));
            lies.iter().for_each(|(f, r)| refused(&CHECKED, &[&f[..], &padding].concat(), *r));
        }
    }
}

/// CVE-2023-1668: protocol 0 made the rest of the header count for nothing.
#[test]
fn protocol_zero_does_not_bypass_the_rules() {
    passes(&CHECKED, &V4 { protocol: 0, ..V4::default() }.frame());
    refused(&CHECKED, &V4 { protocol: 0, from: YOU, ..V4::default() }.frame(), SpoofedIp);
    // In IPv6 it announces hop-by-hop options.
    let frame = |from| V6 { from, protocol: 0, ..V6::default() }.frame();
    refused(&CHECKED, &frame(ME6), NotParsed);
    refused(&CHECKED, &frame(YOU6), NotParsed);
}

#[test]
fn tags_in_tags() {
    for frame in honest() {
        passes(&[IPS, LISTED | IPS], &tagged(&frame, &[0x8100]));
        passes(&[IPS], &tagged(&frame, &[0x88a8]));
        for types in [
            &[0x8100, 0x8100][..],
            &[0x88a8, 0x8100],
            &[0x9100],
            &[0x9200],
            &[0x8100; 3],
            &[0x8100, 0x9100],
        ] {
            refused(&[IPS, LISTED | IPS], &tagged(&frame, types), NotParsed);
        }
    }
    let spoofed = V4 { from: YOU, ..V4::default() }.frame();
    refused(&CHECKED, &tagged(&spoofed, &[0x8100]), SpoofedIp);
    refused(&CHECKED, &tagged(&spoofed, &[0x8100, 0x8100]), NotParsed);
    refused(&CHECKED, &tagged(&spoofed, &[0x8100])[..16], NotParsed);
}

#[test]
fn fragments_come_from_listed_sources() {
    for fragment in [0x2000, 0x2001, 1, 0x1fff, 0x4000] {
        let payload = udp(4000, 53);
        let frame = |from| V4 { from, fragment, payload: payload.clone(), ..V4::default() }.frame();
        passes(&CHECKED, &frame(ME));
        refused(&CHECKED, &frame(YOU), SpoofedIp);
        refused(&CHECKED, &frame(Ipv4Addr::UNSPECIFIED), SpoofedIp);
    }
    for (offset, more) in [(0, false), (0, true), (1, true), (0x1fff, false)] {
        let chain = vec![(DESTINATION, padding()), fragment(offset, more)];
        let frame = |from| V6 { from, chain: chain.clone(), ..V6::default() }.frame();
        passes(&CHECKED, &frame(ME6));
        refused(&CHECKED, &frame(YOU6), SpoofedIp);
        refused(&CHECKED, &frame(Ipv6Addr::UNSPECIFIED), SpoofedIp);
    }
}

#[test]
fn first_fragments_show_what_is_in_them() {
    // Too small for the upper layer's header (RFC 1858, RFC 7112).
    for size in 0..8 {
        let payload = udp(4000, 53)[..size].to_vec();
        let small = V4 { fragment: 0x2000, payload: payload.clone(), ..V4::default() };
        refused(&CHECKED, &small.frame(), NotParsed);
        refused(
            &CHECKED,
            &V6 { chain: vec![fragment(0, true)], payload, ..V6::default() }.frame(),
            NotParsed,
        );
        let payload = vec![128; size];
        let echo = V6 { chain: vec![fragment(0, true)], ..V6::icmp(payload) };
        assert_eq!(judge(IPS, &echo.frame()).is_ok(), size >= 4);
    }
    for size in [0, 8, 19] {
        let payload = tcp(0)[..size].to_vec();
        refused(
            &CHECKED,
            &V4 { fragment: 0x2000, protocol: TCP, payload, ..V4::default() }.frame(),
            NotParsed,
        );
    }
    // More of the chain in what is fragmented: another fragment may replace what follows it (RFC
    // 5722).
    for chain in [
        vec![fragment(0, true), (DESTINATION, padding())],
        vec![fragment(0, true), (ROUTING, vec![0, 4, 0, 0, 0, 0, 0])],
        vec![fragment(0, true), fragment(0, true)],
        vec![fragment(0, true), fragment(3, true)],
        vec![fragment(0, false), (DESTINATION, padding())],
    ] {
        refused(&CHECKED, &V6 { chain, ..V6::default() }.frame(), NotParsed);
    }
    // Their lengths hold, too.
    let mut later = V4 { fragment: 5, ..V4::default() }.frame();
    later[17] += 1;
    refused(&CHECKED, &later, NotParsed);
    let mut later = V6 { chain: vec![fragment(5, true)], ..V6::default() }.frame();
    later[19] += 1;
    refused(&CHECKED, &later, NotParsed);
}

#[test]
fn options_that_send_packets_elsewhere() {
    for kind in [131, 137] {
        for options in [vec![kind, 7, 4, 10, 0, 0, 9, 0], vec![1, 1, 1, kind, 3, 4, 0, 0]] {
            refused(&CHECKED, &V4 { options: options.clone(), ..V4::default() }.frame(), NotParsed);
            refused(&CHECKED, &V4 { options, fragment: 5, ..V4::default() }.frame(), NotParsed);
        }
    }
    refused(&CHECKED, &V4 { options: vec![7, 200, 0, 0], ..V4::default() }.frame(), NotParsed);
    for options in [vec![1; 40], vec![148, 4, 0, 0], vec![7, 7, 4, 0, 0, 0, 0, 0]] {
        passes(&CHECKED, &V4 { options: options.clone(), ..V4::default() }.frame());
        refused(&CHECKED, &V4 { from: YOU, options, ..V4::default() }.frame(), SpoofedIp);
    }
    let frame = |kind, body: Vec<u8>| V6 { chain: vec![(kind, body)], ..V6::default() }.frame();
    refused(&CHECKED, &frame(ROUTING, vec![0, 0, 0, 0, 0, 0, 0]), NotParsed);
    passes(&CHECKED, &frame(ROUTING, vec![0, 4, 0, 0, 0, 0, 0]));
    let home = [&[2, 1, 0, 201, 16][..], &YOU6.octets(), &[1, 0]].concat();
    refused(&CHECKED, &frame(DESTINATION, home), NotParsed);
}

#[test]
fn extension_headers_hide_nothing() {
    let frame =
        |from, chain: &[(u8, Vec<u8>)]| V6 { from, chain: chain.to_vec(), ..V6::default() }.frame();
    let options = (DESTINATION, padding());
    for chain in [
        vec![(HOP_BY_HOP, padding())],
        vec![(HOP_BY_HOP, padding()), options.clone(), fragment(0, false)],
        vec![options.clone(); 8],
    ] {
        passes(&CHECKED[..2], &frame(ME6, &chain));
        refused(&CHECKED[..2], &frame(YOU6, &chain), SpoofedIp);
    }
    refused(&CHECKED, &frame(ME6, &vec![options.clone(); 9]), NotParsed);
    refused(&CHECKED, &frame(ME6, &[options, (HOP_BY_HOP, padding())]), NotParsed);
    // One that is longer than the snapshot.
    let long = [&[9, 1, 76][..], &[0; 76]].concat();
    refused(&CHECKED, &frame(ME6, &[(DESTINATION, long)]), NotParsed);
    // Those that we do not look behind.
    for protocol in [51, 135, 139, 140, 253, 254] {
        refused(&CHECKED, &V6 { protocol, ..V6::default() }.frame(), NotParsed);
        refused(&CHECKED, &V4 { protocol, ..V4::default() }.frame(), NotParsed);
    }
    // What tunnels carry is for who takes it out of them.
    for protocol in [4, 41, 47, 50, 59, 132] {
        passes(&CHECKED, &V6 { protocol, ..V6::default() }.frame());
        passes(&CHECKED, &V4 { protocol, ..V4::default() }.frame());
        refused(&CHECKED, &V4 { protocol, from: YOU, ..V4::default() }.frame(), SpoofedIp);
    }
}

#[test]
fn segmentation_is_judged_by_its_one_header() {
    // As drivers hand it over: up to 64 KiB with its length, or none at all.
    let four = V4 { protocol: TCP, payload: tcp(60_000), ..V4::default() };
    let six = V6 { protocol: TCP, payload: tcp(60_000), ..V6::default() };
    passes(&CHECKED, &four.frame());
    passes(&CHECKED, &six.frame());
    let without = |mut frame: Vec<u8>, at: usize| {
        frame[at..at + 2].fill(0);
        frame
    };
    passes(&CHECKED, &without(four.frame(), 16));
    passes(&CHECKED, &without(six.frame(), 18));
    refused(&CHECKED, &without(V4 { from: YOU, ..four.clone() }.frame(), 16), SpoofedIp);
    refused(&CHECKED, &without(V6 { from: YOU6, ..six.clone() }.frame(), 18), SpoofedIp);
    refused(&CHECKED, &without(V4 { fragment: 0x2000, ..four }.frame(), 16), NotParsed);
    // Nothing but TCP and UDP is segmented.
    refused(&CHECKED, &without(V4 { protocol: 1, ..V4::default() }.frame(), 16), NotParsed);
    refused(&CHECKED, &without(dad(ME6).frame(), 18), NotParsed);
}

#[test]
fn versions_and_ethertypes_agree() {
    let (four, six) = (V4::default().frame(), V6::default().frame());
    for version in (0..16).filter(|v| *v != 4) {
        let mut odd = four.clone();
        odd[14] = version << 4 | 5;
        refused(&CHECKED, &odd, NotParsed);
    }
    let swapped = |frame: &[u8], kind: [u8; 2]| [&frame[..12], &kind, &frame[14..]].concat();
    refused(&CHECKED, &swapped(&four, [0x86, 0xdd]), NotParsed);
    refused(&CHECKED, &swapped(&six, [8, 0]), NotParsed);
    for frame in [four, six] {
        (14..frame.len()).for_each(|len| refused(&CHECKED, &frame[..len], NotParsed));
    }
}
