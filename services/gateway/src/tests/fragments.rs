//! Packets in parts, from guests and to them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use smoltcp::wire::UdpPacket;
use vmlan_config::gateway::Setup;

use super::guest::{FIRST, Lan, nic};
use super::nat::GATEWAY6;
use crate::fuzz::{GUEST, GUEST6, OWN, datagram};
use crate::link::{self, ETHERNET, Fragment, Inner, Mac};

const LOOPBACKS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn guest(to: SocketAddr) -> SocketAddr {
    let own: IpAddr = if to.is_ipv4() { GUEST.into() } else { GUEST6.into() };
    SocketAddr::new(own, 6000)
}

/// A datagram of a guest's in frames of 1500 bytes, as our own half cuts it.
fn pieces(to: SocketAddr, data: &[u8], id: u32) -> Vec<Vec<u8>> {
    link::cut(&datagram(guest(to), to, OWN, data), 1500, id)
}

fn part(frame: &[u8]) -> Fragment<'_> {
    match link::parse(frame).unwrap().inner {
        Inner::Part(part) => part,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_long_datagram_passes_both_ways_in_any_order() {
    for at in LOOPBACKS {
        let server = UdpSocket::bind(at).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to = server.local_addr().unwrap();
        let mut lan = Lan::open();
        let long: Vec<u8> = (0..60_000u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
        let mut frames = pieces(to, &long, 7);
        assert!(frames.iter().all(|frame| frame.len() <= ETHERNET + 1500));
        frames.reverse();
        for frame in frames {
            lan.put(&frame);
        }
        let mut room = vec![0; 65_536];
        let (len, from) = server.recv_from(&mut room).unwrap();
        assert!(room[..len] == long, "{len} bytes");
        server.send_to(&long, from).unwrap();
        lan.turn();
        let got = lan.take();
        assert!(got.len() > 40 && got.iter().all(|frame| frame.len() <= ETHERNET + 1500));
        // They lie behind each other without a gap, and are one datagram.
        let mut whole = Vec::new();
        for (n, frame) in got.iter().enumerate() {
            let part = part(frame);
            assert_eq!((part.at, part.is_last), (whole.len(), n + 1 == got.len()));
            assert_eq!(SocketAddr::new(part.from, to.port()), to);
            whole.extend(part.data);
        }
        let udp = UdpPacket::new_checked(whole.as_slice()).unwrap();
        let own = guest(to);
        assert!(udp.verify_checksum(&to.ip().into(), &own.ip().into()));
        assert!(udp.dst_port() == own.port() && udp.payload() == long);
        assert_eq!(lan.gateway.waiting_parts(), 0);
    }
}

#[test]
fn parts_that_overlap_or_lie_behind_the_end_are_no_packet() {
    for at in LOOPBACKS {
        let server = UdpSocket::bind(at).unwrap();
        let to = server.local_addr().unwrap();
        let mut lan = Lan::open();
        let frames = pieces(to, &[1; 4000], 7);
        lan.put(&frames[0]);
        lan.put(&frames[0]);
        assert_eq!((lan.refused("fragment"), lan.gateway.waiting_parts()), (1, 0), "twice");
        // Parts of one packet as long as another's: its end comes first.
        let short = pieces(to, &[1; 2000], 8);
        let long = pieces(to, &[1; 4000], 8);
        lan.put(&short[1]);
        lan.put(&long[2]);
        assert_eq!((lan.refused("fragment"), lan.gateway.waiting_parts()), (2, 0), "behind");
        lan.put(&long[2]);
        lan.put(&short[1]);
        assert_eq!((lan.refused("fragment"), lan.gateway.waiting_parts()), (3, 0), "two ends");
        assert_eq!(lan.counters().flows.get("udp"), None);
        // A sum that is wrong is seen when the packet is whole.
        let mut damaged = pieces(to, &[1; 4000], 9);
        *damaged[1].last_mut().unwrap() ^= 1;
        damaged.iter().for_each(|frame| lan.put(frame));
        assert_eq!(lan.refused("malformed"), 1);
    }
}

#[test]
fn what_waits_is_bounded_for_each_port_and_ends_by_its_time() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let mut lan = Lan::open();
    let from = |mac: Mac, id: u32, n: usize| {
        let mut frame = pieces(to, &[1; 60_000], id).swap_remove(n);
        frame[6..12].copy_from_slice(&mac.0);
        frame
    };
    lan.put(&from(nic(1), 1, 0));
    for id in 0..1000 {
        lan.put(&from(FIRST, id, 40));
    }
    let most = 9 * 65_535;
    assert!(lan.gateway.waiting_parts() <= most, "{}", lan.gateway.waiting_parts());
    // The neighbour's packet is still there.
    for n in 1..41 {
        lan.put(&from(nic(1), 1, n));
    }
    assert_eq!(lan.counters().flows.get("udp"), Some(&1));
    lan.now = 15_001;
    lan.put(&from(FIRST, 2000, 0));
    assert_eq!(lan.gateway.waiting_parts(), 1480, "the others have waited for too long");
}

#[test]
fn a_long_echo_request_is_answered_whole_and_discovery_in_parts_is_none() {
    let mut lan = Lan::new(Setup::default());
    let mut request = link::echo_reply(
        link::Packet { from: FIRST, to: OWN },
        (GUEST6.into(), GATEWAY6.into()),
        1,
        2,
        &[5; 4000],
    );
    // A reply is made a request; the sum follows.
    request[54] = 128;
    let sum = u16::from_be_bytes([request[56], request[57]]) + 0x100;
    request[56..58].copy_from_slice(&sum.to_be_bytes());
    link::cut(&request, 1500, 1).iter().for_each(|frame| lan.put(frame));
    let answer: usize = lan.take().iter().map(|frame| part(frame).data.len()).sum();
    assert_eq!(answer, 4008);
    let ask = super::ipv6::asks_at(GATEWAY6, FIRST, GUEST6, GATEWAY6);
    lan.put(&ask);
    assert_eq!(lan.take().len(), 1);
    // Whole, but behind the header of a fragment (RFC 6946).
    let header = [58, 0, 0, 0, 0, 0, 0, 9];
    let mut hidden = [&ask[..54], &header, &ask[54..]].concat();
    let len = u16::from_be_bytes([hidden[18], hidden[19]]) + 8;
    hidden[18..20].copy_from_slice(&len.to_be_bytes());
    hidden[20] = 44;
    lan.put(&hidden);
    assert_eq!((lan.take().len(), lan.refused("malformed")), (0, 1));
}
