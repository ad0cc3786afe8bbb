//! What policy asks the parser for: ARP, neighbour discovery, fragments, options, ports.
#![allow(clippy::cast_possible_truncation)]

use super::*;
use crate::Mac;

fn parse(bytes: &[u8]) -> Headers {
    Headers::parse(&bytes[..bytes.len().min(HEAD)], bytes.len())
}

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(packet);
    bytes
}

fn v4(options: &[u8], fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = 20 + options.len() + payload.len();
    let mut ip = vec![0x40 | (5 + options.len() / 4) as u8, 0];
    ip.extend((total as u16).to_be_bytes());
    ip.extend([0, 7]);
    ip.extend(fragment.to_be_bytes());
    ip.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    ip.extend(options);
    ip.extend(payload);
    ethernet(ETHERTYPE_IPV4, &ip)
}

fn v6(chain: &[(u8, &[u8])], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut rest = Vec::new();
    for (i, (_, body)) in chain.iter().enumerate() {
        rest.push(chain.get(i + 1).map_or(last, |next| next.0));
        rest.extend(*body);
    }
    rest.extend(payload);
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((rest.len() as u16).to_be_bytes());
    ip.extend([chain.first().map_or(last, |first| first.0), 255]);
    ip.extend([0x20; 32]);
    ip.extend(rest);
    ethernet(ETHERTYPE_IPV6, &ip)
}

/// A neighbour advertisement about 2020::..20 with these options.
fn advertisement(options: &[u8]) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend([0x20; 16]);
    message.extend(options);
    message
}

fn link_layers(bytes: &[u8]) -> Option<Vec<Mac>> {
    let h = parse(bytes);
    h.neighbour(bytes).map(|n| n.link_layers().collect())
}

#[test]
fn arp_is_taken_whole_or_not_at_all() {
    let packet = [
        &[0, 1, 8, 0, 6, 4, 0, 2][..],
        &[2, 0, 0, 0, 0, 1, 10, 0, 0, 1],
        &[2, 0, 0, 0, 0, 9, 10, 0, 0, 2],
    ]
    .concat();
    for ethertype in [ETHERTYPE_ARP, ETHERTYPE_RARP] {
        let bytes = ethernet(ethertype, &packet);
        let arp = parse(&bytes).arp(&bytes, bytes.len()).unwrap();
        assert_eq!(arp.operation, 2);
        assert_eq!(arp.sender, (Mac::new([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1]));
        assert_eq!(arp.target, (Mac::new([2, 0, 0, 0, 0, 9]), [10, 0, 0, 2]));
        for len in 14..bytes.len() {
            assert_eq!(parse(&bytes[..len]).arp(&bytes[..len], len), None);
            assert_eq!(parse(&bytes).arp(&bytes, len), None, "bytes behind the frame's end");
        }
        for at in 14..20 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes).arp(&bytes, bytes.len()), None, "{at}");
        }
    }
    let bytes = ethernet(ETHERTYPE_IPV4, &packet);
    assert_eq!(parse(&bytes).arp(&bytes, bytes.len()), None);
}

#[test]
fn link_layer_addresses_are_found_wherever_they_stand() {
    let a = [2, 1, 2, 0, 0, 0, 0, 0xa];
    let b = [1, 1, 2, 0, 0, 0, 0, 0xb];
    let other = [14, 2, 1, 1, 9, 9, 9, 9, 9, 9, 2, 1, 8, 8, 8, 8];
    let macs = [0xa, 0xb].map(|last| Mac::new([2, 0, 0, 0, 0, last]));
    let options = [&a[..], &other, &b].concat();
    let bytes = v6(&[(DESTINATION, &[0; 7])], ICMPV6, &advertisement(&options));
    assert_eq!(link_layers(&bytes), Some(macs.to_vec()));
    let n = parse(&bytes).neighbour(&bytes).unwrap();
    assert_eq!((n.kind, n.hop_limit, n.target), (136, 255, Some([0x20; 16])));
    assert_eq!(link_layers(&v6(&[], ICMPV6, &advertisement(&[]))), Some(vec![]));
    // Padding behind the packet is no option.
    let padded = [&v6(&[], ICMPV6, &advertisement(&a))[..], &b].concat();
    assert_eq!(link_layers(&padded), Some(macs[..1].to_vec()));
}

#[test]
fn row_144_options_that_do_not_end_where_the_message_does() {
    let good = [2, 1, 2, 0, 0, 0, 0, 0xa];
    for bad in [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 0, 0, 0, 0, 0, 0], &[1], &[1, 1, 0], &[5]] {
        for options in [[&good[..], bad].concat(), bad.to_vec()] {
            assert_eq!(link_layers(&v6(&[], ICMPV6, &advertisement(&options))), None, "{bad:?}");
        }
    }
    // An address of another size than Ethernet's, for whoever reads its first 6 bytes.
    assert_eq!(link_layers(&v6(&[], ICMPV6, &advertisement(&[[2; 8], [2; 8]].concat()))), None);
    // Behind the snapshot.
    let options = good.repeat(7);
    assert_eq!(link_layers(&v6(&[], ICMPV6, &advertisement(&options))), None);
    let options = good.repeat(6);
    assert_eq!(link_layers(&v6(&[], ICMPV6, &advertisement(&options))).unwrap().len(), 6);
}

#[test]
fn discovery_in_fragments_is_none() {
    let message = advertisement(&[]);
    for flags in [0u8, 1] {
        let bytes = v6(&[(FRAGMENT, &[0, 0, flags, 0, 0, 0, 1])], ICMPV6, &message);
        assert_eq!((parse(&bytes).parsed, parse(&bytes).icmpv6(&bytes)), (true, Some(136)));
        assert_eq!(link_layers(&bytes), None, "RFC 6980");
    }
    for (at, kind) in [(54, 132), (54, 138), (55, 1)] {
        let mut bytes = v6(&[], ICMPV6, &message);
        bytes[at] = kind;
        assert_eq!(link_layers(&bytes), None);
    }
    assert_eq!(parse(&v6(&[], ICMPV6, &message[..3])).icmpv6(&v6(&[], ICMPV6, &message)), None);
}

#[test]
fn an_ipv4_header_ends_behind_its_options_in_any_fragment() {
    for (options, fragment) in [(0, 0), (0, 0x2001), (8, 0x2000), (8, 0x2001), (40, 1)] {
        let bytes = v4(&vec![1; options], fragment, UDP, &[1; 16]);
        assert_eq!(parse(&bytes).ipv4_end(&bytes), Some(34 + options));
        assert_eq!(parse(&bytes[..33 + options]).ipv4_end(&bytes), None, "not whole");
    }
    let bytes = v6(&[], UDP, &[1; 16]);
    assert_eq!(parse(&bytes).ipv4_end(&bytes), None);
}

#[test]
fn later_fragments_are_understood_if_their_lengths_are() {
    for bytes in
        [v4(&[], 0x2001, UDP, &[1; 16]), v6(&[(FRAGMENT, &[0, 0, 9, 0, 0, 0, 1])], UDP, &[1; 16])]
    {
        let h = parse(&bytes);
        assert_eq!((h.later, h.parsed, h.l4), (true, false, 0));
        assert!(h.understood(bytes.len()) && !h.understood(bytes.len() - 1));
    }
    let mut bytes = v4(&[1; 8], 1, UDP, &[]);
    assert!(parse(&bytes).later);
    bytes[17] -= 1;
    assert!(!parse(&bytes).later && !parse(&bytes).understood(bytes.len()));
    let mut bytes = v6(&[(FRAGMENT, &[0, 0, 9, 0, 0, 0, 1])], UDP, &[]);
    assert!(parse(&bytes).later);
    bytes[19] -= 1;
    assert!(!parse(&bytes).later && !parse(&bytes).understood(bytes.len()));
}

#[test]
fn headers_behind_the_fragment_header_are_told() {
    let fragment = (FRAGMENT, &[0u8, 0, 1, 0, 0, 0, 1][..]);
    let options = (DESTINATION, &[0u8; 7][..]);
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    assert!(!parse(&v6(&[options, fragment], UDP, &udp)).split);
    assert!(parse(&v6(&[fragment, options], UDP, &udp)).split);
    let again = (FRAGMENT, &[0u8, 0, 9, 0, 0, 0, 1][..]);
    assert!(parse(&v6(&[fragment, again], UDP, &udp)).split);
}

#[test]
fn detours() {
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    let odd = |options: &[u8]| parse(&v4(options, 0, UDP, &udp)).detour;
    for kind in [131, 137] {
        assert!(odd(&[kind, 7, 4, 10, 0, 0, 9, 0]));
        assert!(odd(&[1, kind, 7, 4, 10, 0, 0, 9]));
        assert!(odd(&[148, 4, 0, 0, kind, 3, 4, 0]));
        assert!(!odd(&[0, kind, 7, 4, 10, 0, 0, 9]), "behind the end");
        assert!(!odd(&[148, 8, 0, 0, kind, 3, 4, 0]), "inside another");
        assert!(parse(&v4(&[kind, 7, 4, 10, 0, 0, 9, 0], 5, UDP, &udp)).detour, "of a fragment");
    }
    for bad in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 0, 0], [1, 1, 1, 7]] {
        assert!(odd(&bad), "{bad:?}");
    }
    assert!(!odd(&[1, 1, 1, 1]) && !odd(&[148, 4, 0, 0]) && !odd(&[]));

    let odd = |kind: u8, body: &[u8]| parse(&v6(&[(kind, body)], UDP, &udp)).detour;
    assert!(odd(ROUTING, &[0, 0, 0, 0, 0, 0, 0]));
    assert!(!odd(ROUTING, &[0, 4, 0, 0, 0, 0, 0]));
    let home = |first: &[u8]| [&[2][..], first, &[201, 16], &[0x20; 16], &[1, 0]].concat();
    assert!(odd(DESTINATION, &home(&[1, 0])) && odd(DESTINATION, &home(&[0, 0])));
    assert!(!odd(HOP_BY_HOP, &home(&[1, 0])), "destination options only");
    assert!(!odd(DESTINATION, &[0, 1, 4, 0, 0, 0, 0]) && !odd(DESTINATION, &[0; 7]));
    assert!(odd(DESTINATION, &[0, 1, 5, 0, 0, 0, 0]) && odd(DESTINATION, &[0, 0, 0, 0, 0, 0, 7]));
}

#[test]
fn lengths_left_to_the_device() {
    let tcp: Vec<u8> = [&[0, 1, 0, 2][..], &[0; 8], &[0x50], &[0; 3000]].concat();
    for (bytes, at) in [(v4(&[], 0, TCP, &tcp), 16), (v6(&[], TCP, &tcp), 18)] {
        let mut bytes = bytes;
        assert!(parse(&bytes).parsed);
        bytes[at..at + 2].fill(0);
        let h = parse(&bytes);
        assert!(!h.parsed && h.length_left_out() && h.understood(bytes.len()));
        assert_eq!(h.ports(&bytes), Some((1, 2)));
        bytes.truncate(h.l4 + 19);
        assert!(!parse(&bytes).understood(bytes.len()), "its header is not whole");
    }
    let mut icmp = v4(&[], 0, 1, &[8; 64]);
    icmp[16..18].fill(0);
    assert!(!parse(&icmp).understood(icmp.len()), "nothing segments that");
}

/// What is answered to a frame that is too long for a link of 1,400 bytes.
fn told(frame: &[u8]) -> Option<Vec<u8>> {
    let mut out = [0; TOO_BIG];
    let size = too_big(&frame[..frame.len().min(HEAD)], frame.len(), 1400, &mut out)?;
    Some(out[..size].to_vec())
}

#[test]
fn who_sends_too_much_is_told() {
    let udp = [&[4, 0, 0, 53, 5, 180, 0, 0][..], &[0; 1452]].concat();
    let long = v4(&[], 0x4000, UDP, &udp);
    let answer = told(&long).unwrap();
    assert_eq!((&answer[..6], &answer[6..12]), (&long[6..12], &long[..6]));
    let h = parse(&answer);
    assert!(h.parsed && h.protocol == 1 && h.ip_len == answer.len() - 14);
    let (from, to) = h.addresses(&answer).unwrap();
    assert_eq!((from, to), (&[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
    assert_eq!(&answer[34..36], [3, 4]);
    assert_eq!(&answer[40..42], 1400u16.to_be_bytes());
    assert_eq!(answer[42..], long[14..HEAD], "what was seen of the packet");
    let sum = |bytes: &[u8]| {
        let mut sum = crate::Checksum::new();
        sum.add(bytes);
        sum.finish()
    };
    assert_eq!((sum(&answer[14..34]), sum(&answer[34..])), (0xffff, 0xffff));

    let long = v6(&[], UDP, &udp);
    let answer = told(&long).unwrap();
    let h = parse(&answer);
    assert!(h.parsed && h.protocol == ICMPV6);
    assert_eq!((&answer[54..56], &answer[58..62]), (&[2, 0][..], &[0, 0, 5, 120][..]));
    let size = u16::try_from(answer.len() - 54).unwrap().to_be_bytes();
    let pseudo = [&answer[22..54], &size, &[0, ICMPV6], &answer[54..]].concat();
    assert_eq!(sum(&pseudo), 0xffff);

    let tagged = [&long[..12], &[0x81, 0, 0, 5], &long[12..]].concat();
    let answer = told(&tagged).unwrap();
    assert_eq!(answer[12..18], tagged[12..18], "in the sender's VLAN");
}

#[test]
fn who_must_not_be_told_is_not() {
    let udp = [&[4, 0, 0, 53, 5, 180, 0, 0][..], &[0; 1452]].concat();
    let long = || v4(&[], 0x4000, UDP, &udp);
    assert!(told(&long()).is_some());
    let changed = |at: usize, to: u8| {
        let mut frame = long();
        frame[at] = to;
        told(&frame)
    };
    assert_eq!(changed(0, 1), None, "to many cards");
    assert_eq!(changed(6, 1), None);
    assert_eq!(changed(30, 224), None, "to many hosts");
    assert_eq!(changed(26, 0), None, "from nobody");
    assert_eq!(changed(26, 255), None);
    assert_eq!(changed(14, 0x44), None, "not understood");
    assert_eq!(changed(21, 1), None, "a later fragment");
    let icmp = |kind| told(&v4(&[], 0x4000, 1, &[&[kind, 0, 0, 0][..], &[0; 1450]].concat()));
    assert!(icmp(8).is_some() && icmp(3).is_none() && icmp(11).is_none());
    let icmp = |kind| told(&v6(&[], ICMPV6, &[&[kind, 0, 0, 0][..], &[0; 1450]].concat()));
    assert!(icmp(128).is_some() && icmp(1).is_none() && icmp(2).is_none());
    assert_eq!(told(&ethernet(0x88b5, &[0; 1500])), None, "no IP");
    assert_eq!(told(&long()[..14]), None);
}

/// IGMP and MLD, cut short at every length, and records of all lengths: read without a panic.
#[test]
fn membership_that_is_cut_short_is_unclear_or_something_else() {
    let report = [&[0x22, 0, 0, 0, 0, 0, 0, 3][..], &[4, 255, 255, 255, 239, 1, 1, 1], &[0; 40]];
    let whole = v4(&[], 0, IGMP, &report.concat());
    let h = parse(&whole);
    let Some(Membership::Report(records)) = h.membership(&whole, whole.len()) else {
        panic!("{h:?}")
    };
    let got: Vec<_> = records.collect();
    assert_eq!(got, [Some((&[239, 1, 1, 1][..], true)), None], "sources beyond the end");
    for len in 0..whole.len() {
        let h = parse(&whole[..len]);
        assert!(
            matches!(h.membership(&whole[..len], len), None | Some(Membership::Unclear)),
            "{len}"
        );
    }
    let later = v4(&[], 0x2001, IGMP, &[0; 30]);
    assert_eq!(parse(&later).membership(&later, later.len()), Some(Membership::Unclear));
    let query = v4(&[], 0, IGMP, &[0x11, 0x9a, 0, 0, 0, 0, 0, 0]);
    let tenths = core::time::Duration::from_millis(100 * (0x1a << 4));
    let said = Membership::Query { delay: tenths, general: false };
    assert_eq!(
        parse(&query).membership(&query, query.len()),
        Some(said),
        "with the checksums wrong"
    );
}

/// Hop-by-hop or destination options of `size` bytes, then `next`.
fn padded(next: u8, size: usize) -> Vec<u8> {
    let mut options = vec![0; size];
    options[..2].copy_from_slice(&[next, u8::try_from(size / 8 - 1).unwrap()]);
    options
}

/// A query of MLD that headers push towards the end of the snapshot, beyond it, or into another
/// fragment: whoever receives it hears it all the same.
#[test]
fn a_query_of_mld_is_not_hidden_by_what_stands_before_it() {
    let query = [&[130, 0, 0, 0, 0x27, 0x10, 0, 0][..], &[0; 16]].concat();
    let of = |first: u8, payload: &[u8], hops: u8| {
        let mut frame = v6(&[], first, payload);
        frame[21] = hops;
        let snapshot = &frame[..frame.len().min(HEAD)];
        let h = Headers::parse(snapshot, frame.len());
        h.membership(snapshot, frame.len()).map(|said| matches!(said, Membership::Unclear))
    };
    for size in (8..=256).step_by(8) {
        let hidden = [&padded(ICMPV6, size)[..], &query].concat();
        assert_eq!(of(0, &hidden, 1), Some(size > 64), "{size}");
        assert_eq!(of(0, &hidden, 64), None, "{size}: from beyond a router");
        let behind = [&padded(60, size)[..], &padded(ICMPV6, 8), &query].concat();
        assert_eq!(of(0, &behind, 1), Some(size > 56), "{size}");
        let first = [&[60, 0, 0, 1, 0, 0, 0, 1][..], &padded(ICMPV6, size), &query].concat();
        assert_eq!(of(44, &first, 64), Some(true), "{size}: fragments are anybody's guess");
        let later = [&[60, 0, 5, 1, 0, 0, 0, 1][..], &padded(ICMPV6, size), &query].concat();
        assert_eq!(of(44, &later, 1), None, "{size}: nothing without the first one");
    }
    // The first fragment has half of the options; padding behind it pretends to be the rest.
    let half = [&[60, 0, 0, 1, 0, 0, 0, 1][..], &[60, 1, 1, 4, 0, 0, 0, 0]].concat();
    let mut frame = v6(&[], 44, &half);
    frame.extend([&[0; 8][..], &[UDP, 0, 1, 4, 0, 0, 0, 0], &[0, 1, 0, 1, 0, 8, 0, 0]].concat());
    assert_eq!(parse(&frame).membership(&frame, frame.len()), Some(Membership::Unclear));
    assert_eq!(of(0, &[&padded(UDP, 8)[..], &[0, 1, 0, 1, 0, 8, 0, 0]].concat(), 1), None);
    assert_eq!(of(UDP, &[0, 1, 0, 1, 0, 8, 0, 0], 1), None);
    assert_eq!(of(ICMPV6, &[135, 0, 0, 0, 0, 0, 0, 0], 1), None, "another message");
}
