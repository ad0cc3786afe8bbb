//! Datagrams that come by forwards.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use smoltcp::time::Instant;
use smoltcp::wire::{ArpOperation, IpProtocol};
use vmlan_config::gateway::{Forward, Setup};

use super::guest::{FIRST, GATEWAY, Lan, packet};
use crate::fuzz::GUEST;
use crate::link::{self, Mac};

const GUESTS: u16 = 53;

/// A forward from a free port of the host's to the guest's.
fn forward() -> Forward {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("udp:{free}:{GUEST}:{GUESTS}").parse().unwrap()
}

/// A gateway that knows its guest.
fn lan(forwards: &[Forward]) -> Lan {
    let mut lan = Lan::new(Setup { forwards: forwards.to_vec(), ..Setup::default() });
    let ends = link::Packet { from: FIRST, to: Mac::BROADCAST };
    lan.put(&link::arp(ends, ArpOperation::Request, GUEST, Mac([0; 6]), GATEWAY));
    lan.take();
    lan
}

fn client() -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client
}

/// What somebody asks by a forward, as the guest sees it.
fn asked(lan: &mut Lan, client: &UdpSocket, forward: &Forward) -> SocketAddr {
    client.send_to(b"question", forward.listen).unwrap();
    lan.turn();
    let got = lan.datagrams();
    let [(from, GUESTS, data)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(data, b"question");
    *from
}

#[test]
fn a_forward_that_is_taken_back_gives_its_port_back() {
    let forward = forward();
    let mut lan = lan(std::slice::from_ref(&forward));
    let client = client();
    let seen = asked(&mut lan, &client, &forward);
    lan.udp(GUESTS, seen, b"answer");
    assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (6, forward.listen));
    lan.gateway.follow(Setup::default(), Instant::from_millis(lan.now));
    let other = UdpSocket::bind(forward.listen).unwrap();
    // The guest is told that nobody hears it.
    lan.udp(GUESTS, seen, b"more");
    let told = |frame: &Vec<u8>| packet(frame).is_some_and(|ip| ip.protocol == IpProtocol::Icmp);
    assert!(lan.take().iter().any(told));
    assert_eq!(lan.counters().flows.get("udp"), None);
    // Once it is there again, the same client has a flow again.
    drop(other);
    let setup = Setup { forwards: vec![forward.clone()], ..Setup::default() };
    lan.gateway.follow(setup.clone(), Instant::from_millis(lan.now));
    let seen = asked(&mut lan, &client, &forward);
    lan.gateway.follow(Setup::default(), Instant::from_millis(lan.now));
    lan.gateway.follow(setup, Instant::from_millis(lan.now));
    let again = asked(&mut lan, &client, &forward);
    assert_ne!(again, seen, "one that cannot answer is not used again");
    lan.udp(GUESTS, again, b"answer");
    assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (6, forward.listen));
}

#[test]
fn who_asks_by_two_forwards_is_answered_by_each() {
    let both = [forward(), forward()];
    let mut lan = lan(&both);
    let client = client();
    let seen = both.each_ref().map(|forward| asked(&mut lan, &client, forward));
    assert_eq!(seen.map(|seen| seen.ip()), [GATEWAY; 2]);
    for (seen, forward) in seen.into_iter().zip(&both) {
        lan.udp(GUESTS, seen, b"answer");
        assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (6, forward.listen));
    }
}
