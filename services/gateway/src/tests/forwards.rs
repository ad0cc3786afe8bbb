//! Datagrams and connections that come by forwards.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smoltcp::time::Instant;
use smoltcp::wire::{ArpOperation, IpProtocol};
use vmlan_config::gateway::{Forward, FromGateway, Lease, Setup};

use super::guest::{FIRST, GATEWAY, Lan, packet};
use crate::fuzz::{GUEST, OWN};
use crate::link::{self, Inner, Mac};

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

/// As the switch is told: what is wrong with each forward.
fn reasons(lan: &mut Lan) -> Option<Vec<Option<String>>> {
    let mut told = lan.news().into_iter().filter_map(|news| match news {
        FromGateway::Forwards(list) => Some(list.into_iter().map(|(_, e)| e).collect()),
        _ => None,
    });
    told.next_back()
}

/// Whether something is wrong with each.
fn stands(lan: &mut Lan) -> Option<Vec<bool>> {
    reasons(lan).map(|all| all.iter().map(Option::is_some).collect())
}

#[test]
fn a_port_of_the_host_that_is_taken_is_had_when_it_is_free() {
    let forward = forward();
    let other = UdpSocket::bind(forward.listen).unwrap();
    let mut lan = lan(std::slice::from_ref(&forward));
    assert_eq!(stands(&mut lan), Some(vec![true]));
    for second in 1..=10 {
        lan.now = second * 1000;
        lan.turn();
    }
    assert_eq!(stands(&mut lan), None, "nothing new");
    assert!(lan.gateway.due().unwrap() > lan.time(), "it sleeps");
    drop(other);
    lan.now = 15_000;
    assert!(lan.gateway.due().unwrap() <= lan.time());
    lan.turn();
    assert_eq!(stands(&mut lan), Some(vec![false]));
    asked(&mut lan, &client(), &forward);
}

/// In a process of its own: nobody in it gets a descriptor for a while.
#[test]
fn what_keeps_a_forward_from_listening_now_is_told() {
    const ALONE: &str = "VMLAN_TEST_ALONE";
    let name = "tests::forwards::what_keeps_a_forward_from_listening_now_is_told";
    if std::env::var_os(ALONE).is_none() {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let out = test.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let forward = forward();
    let _other = UdpSocket::bind(forward.listen).unwrap();
    let mut lan = lan(std::slice::from_ref(&forward));
    let taken = reasons(&mut lan).unwrap();
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
    lan.now = 5_000;
    lan.turn();
    let none = reasons(&mut lan).unwrap();
    assert_ne!(none, taken);
    lan.now = 10_000;
    lan.turn();
    assert_eq!(reasons(&mut lan), None, "it is said once");
    setrlimit(Resource::Nofile, limits).unwrap();
    lan.now = 15_000;
    lan.turn();
    assert_eq!(reasons(&mut lan), Some(taken));
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

/// A forward of connections from a free port of the host's.
fn of_connections(target: &str) -> Forward {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("{free}:{target}:22").parse().unwrap()
}

fn connect(forward: &Forward) -> TcpStream {
    let client = TcpStream::connect(forward.listen).unwrap();
    client.set_nonblocking(true).unwrap();
    client
}

/// What was sent since the last call: how many asked for a guest, and how many called one.
fn sent(lan: &mut Lan) -> (usize, usize) {
    let frames = lan.take();
    let arps = frames.iter().filter(|frame| {
        link::parse(frame).is_ok_and(|parsed| matches!(parsed.inner, Inner::Arp(_)))
    });
    let is_tcp = |frame: &&Vec<u8>| packet(frame).is_some_and(|ip| ip.protocol == IpProtocol::Tcp);
    (arps.count(), frames.iter().filter(is_tcp).count())
}

#[test]
fn a_guest_is_asked_for_once_a_second_and_its_forward_leaves_room_for_others() {
    let nobody = of_connections("10.77.0.99");
    let datagrams: Forward = {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        format!("udp:{free}:10.77.0.99:53").parse().unwrap()
    };
    let guests = of_connections(&GUEST.to_string());
    let mut lan = lan(&[nobody.clone(), datagrams.clone(), guests.clone()]);
    let mut all: Vec<_> = (0..40).map(|_| connect(&nobody)).collect();
    for _ in 0..5 {
        lan.turn();
    }
    assert_eq!(sent(&mut lan), (1, 0), "however many wait, and however often it is looked at");
    let waiting = |all: &mut Vec<TcpStream>| {
        all.retain_mut(|client| client.read(&mut [0]).unwrap_err().kind() == ErrorKind::WouldBlock);
        all.len()
    };
    assert_eq!(waiting(&mut all), 32);
    let client = client();
    for _ in 0..40 {
        client.send_to(b"question", datagrams.listen).unwrap();
    }
    lan.turn();
    assert_eq!(sent(&mut lan), (1, 0));
    let _call = connect(&guests);
    lan.turn();
    assert_eq!(sent(&mut lan), (0, 1), "whoever is there is called at once");
    for second in 1..10 {
        lan.now = second * 1000;
        assert!(lan.gateway.due().unwrap() <= lan.time());
        lan.turn();
        assert!(lan.gateway.due().unwrap() > lan.time(), "it sleeps");
        assert_eq!(sent(&mut lan).0, 1);
    }
    lan.now = 10_000;
    lan.turn();
    assert_eq!(waiting(&mut all), 0, "the guest was not found");
}

/// Nothing can be accepted, as without descriptors: those who came before wait for their guest.
#[test]
fn a_guest_is_asked_for_though_nobody_else_can_be_accepted() {
    let forward = of_connections("10.77.0.99");
    let mut lan = lan(std::slice::from_ref(&forward));
    let _waits = connect(&forward);
    lan.turn();
    assert_eq!(sent(&mut lan), (1, 0));
    let socket = lan.gateway.forwards().socket(&forward).unwrap();
    rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both).unwrap();
    lan.now = 500;
    lan.turn();
    assert_eq!(sent(&mut lan), (0, 0));
    for second in 1..5 {
        lan.now = second * 1000;
        lan.turn();
        assert_eq!(sent(&mut lan), (1, 0));
        lan.now += 500;
        lan.turn();
        assert!(lan.gateway.due().unwrap() > lan.time(), "it does not try without end");
    }
}

/// A gateway of a switch that has the lease of a NIC at a port.
fn with_lease(forward: &Forward) -> Lan {
    let forwards = vec![forward.clone()];
    let mut lan = Lan::of_a_switch(Setup { now: 1000, forwards, ..Setup::default() });
    lan.gateway.restore(vec![Lease {
        ip: GUEST.into(),
        mac: link::mac_text(FIRST),
        port: "vm1".into(),
        hostname: None,
        expires: 2000,
    }]);
    lan
}

#[test]
fn a_guest_that_was_silent_for_long_is_asked_for_and_found() {
    let forward = of_connections("vm1");
    let mut lan = with_lease(&forward);
    // The switch has forgotten where its NIC is.
    let _client = connect(&forward);
    lan.turn();
    assert_eq!(sent(&mut lan), (1, 0));
    lan.ports.insert(FIRST, "vm1");
    let ends = link::Packet { from: FIRST, to: OWN };
    lan.put(&link::arp(ends, ArpOperation::Reply, GUEST, OWN, GATEWAY));
    lan.now += 1000;
    lan.turn();
    assert_eq!(sent(&mut lan).1, 1, "it is called");
}

#[test]
fn a_forward_to_a_port_leads_to_no_other() {
    let forward = of_connections("vm1");
    let mut lan = with_lease(&forward);
    lan.ports.insert(FIRST, "vm2");
    let mut client = connect(&forward);
    for second in 0..=10 {
        lan.now = second * 1000;
        lan.turn();
        assert_eq!(sent(&mut lan).1, 0, "another port has its NIC's address");
    }
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    // That of the name, however it is written.
    lan.ports.insert(FIRST, "VM1");
    let _client = connect(&forward);
    lan.turn();
    lan.now += 1000;
    lan.turn();
    assert_eq!(sent(&mut lan).1, 1);
}
