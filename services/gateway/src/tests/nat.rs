use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{IpCidr, IpProtocol, TcpPacket};
use vmlan_config::gateway::Setup;

use super::guest::{FIRST, GATEWAY, Lan, nic, packet};
use crate::fuzz::{GUEST, OWN};
use crate::link;

/// A guest with a stack of its own.
struct Guest {
    interface: Interface,
    sockets: SocketSet<'static>,
}

struct Put<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Put<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut bytes = vec![0; len];
        let done = fill(&mut bytes);
        self.0.push(bytes);
        done
    }
}

struct Got(Vec<u8>);

impl RxToken for Got {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(&self.0)
    }
}

#[derive(Default)]
struct Port {
    to_guest: std::collections::VecDeque<Vec<u8>>,
    from_guest: Vec<Vec<u8>>,
}

impl smoltcp::phy::Device for Port {
    type RxToken<'a> = Got;
    type TxToken<'a> = Put<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Got, Put<'_>)> {
        Some((Got(self.to_guest.pop_front()?), Put(&mut self.from_guest)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Put<'_>> {
        Some(Put(&mut self.from_guest))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut own = DeviceCapabilities::default();
        own.medium = Medium::Ethernet;
        own.max_transmission_unit = 1514;
        // What it gets is unfinished, or has been cut by nobody.
        own.checksum.tcp = smoltcp::phy::Checksum::Tx;
        own
    }
}

impl Guest {
    fn new(port: &mut Port) -> Self {
        let mut config = Config::new(FIRST.into());
        config.random_seed = 7;
        let mut interface = Interface::new(config, port, Instant::ZERO);
        interface.update_ip_addrs(|list| list.push(IpCidr::new(GUEST.into(), 24)).unwrap());
        interface.routes_mut().add_default_ipv4_route(GATEWAY).unwrap();
        let sockets = SocketSet::new(Vec::new());
        Self { interface, sockets }
    }
}

/// Frames go between a guest and a gateway until both have nothing to say.
fn exchange(lan: &mut Lan, port: &mut Port, guest: &mut Guest) {
    for _ in 0..50 {
        lan.now += 1;
        guest.interface.poll(lan.time(), port, &mut guest.sockets);
        let out = std::mem::take(&mut port.from_guest);
        let silent = out.is_empty();
        out.iter().for_each(|frame| lan.put(frame));
        lan.turn();
        let got = lan.take();
        if silent && got.is_empty() {
            break;
        }
        port.to_guest.extend(got);
    }
}

fn socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; 65_536]);
    tcp::Socket::new(buffer(), buffer())
}

/// A guest's connection to a server on this host's loopback; the server's half.
fn connection() -> (Lan, Port, Guest, smoltcp::iface::SocketHandle, std::net::TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut lan, mut port) = (Lan::open(), Port::default());
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    let to = (Ipv4Addr::LOCALHOST, server.local_addr().unwrap().port());
    let wanted = guest.sockets.get_mut::<tcp::Socket>(handle);
    wanted.connect(guest.interface.context(), to, 40_000).unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    let (stream, _) = server.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(guest.sockets.get::<tcp::Socket>(handle).state(), tcp::State::Established);
    (lan, port, guest, handle, stream)
}

#[test]
fn bytes_pass_both_ways_and_each_end_by_itself() {
    let (mut lan, mut port, mut guest, handle, mut server) = connection();
    let wanted: Vec<u8> = (0..300_000u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    let (mut sent, mut got) = (0, Vec::<u8>::new());
    server.set_nonblocking(true).unwrap();
    while got.len() < wanted.len() {
        let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
        sent += socket.send_slice(&wanted[sent..]).unwrap();
        exchange(&mut lan, &mut port, &mut guest);
        let mut part = [0; 65_536];
        if let Ok(n) = server.read(&mut part) {
            got.extend(&part[..n]);
        }
    }
    assert!(got == wanted);
    // The guest has said all; the server answers only then.
    guest.sockets.get_mut::<tcp::Socket>(handle).close();
    exchange(&mut lan, &mut port, &mut guest);
    server.set_nonblocking(false).unwrap();
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0, "the end");
    server.write_all(&wanted).unwrap();
    drop(server);
    let mut back = Vec::<u8>::new();
    for _ in 0..200 {
        exchange(&mut lan, &mut port, &mut guest);
        let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), back.extend_from_slice(bytes))).unwrap();
        }
    }
    assert!(back == wanted, "{} bytes", back.len());
    assert_eq!(lan.counters().flows.get("tcp"), None, "nothing is left of it");
}

#[test]
fn a_reset_of_one_side_is_a_reset_for_the_other() {
    let (mut lan, mut port, mut guest, handle, mut server) = connection();
    guest.sockets.get_mut::<tcp::Socket>(handle).abort();
    exchange(&mut lan, &mut port, &mut guest);
    let end = server.read(&mut [0; 9]).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    let (mut lan, mut port, mut guest, handle, server) = connection();
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(guest.sockets.get::<tcp::Socket>(handle).state(), tcp::State::Closed);
    assert_eq!(lan.counters().flows.get("tcp"), None);
}

/// What a guest that asks for a connection gets: true for a reset.
fn is_reset(lan: &mut Lan, to: SocketAddrV4) -> bool {
    let (mut port, mut lan_frames) = (Port::default(), Vec::new());
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    let wanted = guest.sockets.get_mut::<tcp::Socket>(handle);
    wanted.connect(guest.interface.context(), to, 40_001).unwrap();
    for _ in 0..4 {
        guest.interface.poll(lan.time(), &mut port, &mut guest.sockets);
        std::mem::take(&mut port.from_guest).iter().for_each(|frame| lan.put(frame));
        lan.turn();
        let got = lan.take();
        lan_frames.extend(got.clone());
        port.to_guest.extend(got);
    }
    lan_frames
        .iter()
        .filter_map(|frame| packet(frame))
        .any(|ip| ip.protocol == IpProtocol::Tcp && TcpPacket::new_unchecked(ip.payload).rst())
}

#[test]
fn what_is_closed_is_refused_at_once_and_counted() {
    let mut lan = Lan::new(Setup::default());
    let host = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = [
        (Ipv4Addr::LOCALHOST, host, "host-closed"),
        (GATEWAY, host, "host-closed"),
        (Ipv4Addr::new(169, 254, 169, 254), 80, "blocked"),
        (Ipv4Addr::new(168, 63, 129, 16), 80, "blocked"),
    ];
    for (ip, port, reason) in refused {
        let before = lan.refused(reason);
        assert!(is_reset(&mut lan, SocketAddrV4::new(ip, port)), "{ip}");
        assert_eq!(lan.refused(reason), before + 1, "{ip}");
    }
    // Open, but nobody listens.
    let mut lan = Lan::open();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert!(is_reset(&mut lan, SocketAddrV4::new(Ipv4Addr::LOCALHOST, nobody)));
    assert_eq!(lan.refused("unreachable"), 1);
}

#[test]
fn a_flood_of_connections_costs_its_own_port_alone() {
    // Nobody accepts: all wait.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, server.local_addr().unwrap().port());
    let allow = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let mut lan = Lan::new(Setup { allow, flows: 8, ..Setup::default() });
    let syn = |mac: link::Mac, last: u8, port: u16| {
        let from = Ipv4Addr::new(10, 77, 0, last);
        let repr = smoltcp::wire::TcpRepr {
            src_port: port,
            dst_port: to.port(),
            control: smoltcp::wire::TcpControl::Syn,
            seq_number: smoltcp::wire::TcpSeqNumber(1),
            ack_number: None,
            window_len: 1000,
            window_scale: None,
            max_seg_size: Some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let ends = link::Packet { from: mac, to: OWN };
        link::ipv4(ends, (from, *to.ip()), IpProtocol::Tcp, repr.buffer_len(), |bytes| {
            let sums = smoltcp::phy::ChecksumCapabilities::default();
            let mut packet = TcpPacket::new_unchecked(bytes);
            repr.emit(&mut packet, &from.into(), &(*to.ip()).into(), &sums);
        })
    };
    for port in 0..50 {
        lan.put(&syn(nic(1), 50, 1000 + port));
    }
    assert_eq!(lan.refused("vm-flows"), 42);
    lan.put(&syn(nic(2), 51, 1000));
    assert_eq!(lan.counters().flows.get("tcp"), Some(&9), "the neighbour has its own");
}

#[test]
fn datagrams_pass_both_ways_and_a_flow_ends_by_its_time() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let SocketAddr::V4(to) = server.local_addr().unwrap() else { panic!("IPv4") };
    let mut lan = Lan::open();
    lan.udp(6000, to, b"question");
    let mut room = [0; 64];
    let (len, from) = server.recv_from(&mut room).unwrap();
    assert_eq!(&room[..len], b"question");
    server.send_to(b"answer", from).unwrap();
    lan.turn();
    assert_eq!(lan.datagrams(), [(to, 6000, b"answer".to_vec())]);
    server.send_to(&[0; 3000], from).unwrap();
    lan.turn();
    assert_eq!((lan.datagrams(), lan.refused("too-long")), (vec![], 1));
    lan.now += 119_000;
    lan.turn();
    assert_eq!(lan.counters().flows.get("udp"), Some(&1));
    lan.now += 2000;
    lan.turn();
    assert_eq!(lan.counters().flows.get("udp"), None);
    // Nobody there: the guest is told.
    drop(server);
    lan.udp(6001, to, b"anybody?");
    lan.turn();
    lan.udp(6001, to, b"anybody?");
    lan.turn();
    let told = lan.take();
    let icmp = |frame: &Vec<u8>| packet(frame).is_some_and(|ip| ip.protocol == IpProtocol::Icmp);
    assert!(told.iter().any(icmp));
}

#[test]
fn a_forward_leads_to_its_guest_once_that_has_an_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let forward = format!("{free}:10.77.0.100:22").parse().unwrap();
    let mut lan = Lan::new(Setup { forwards: vec![forward], ..Setup::default() });
    let mut port = Port::default();
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    guest.sockets.get_mut::<tcp::Socket>(handle).listen(22).unwrap();
    let mut client = std::net::TcpStream::connect(("127.0.0.1", free)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    lan.turn();
    assert!(!lan.frames.0.is_empty(), "it is asked for by ARP");
    port.to_guest.extend(lan.take());
    for _ in 0..5 {
        exchange(&mut lan, &mut port, &mut guest);
    }
    let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
    assert_eq!(socket.remote_endpoint().unwrap().addr, GATEWAY.into());
    socket.send_slice(b"hello").unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    let mut got = [0; 5];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("{}:vm1:22", taken.local_addr().unwrap().port()).parse().unwrap();
    let mut lan = Lan::new(Setup { forwards: vec![forward], ..Setup::default() });
    let said = format!("{:?}", lan.news());
    assert!(said.contains("taken by another program"), "{said}");
}

#[test]
fn the_gateway_answers_who_looks_for_it() {
    let mut lan = Lan::new(Setup::default());
    let ends = link::Packet { from: FIRST, to: link::Mac::BROADCAST };
    let request = smoltcp::wire::ArpOperation::Request;
    lan.put(&link::arp(ends, request, GUEST, link::Mac([0; 6]), GATEWAY));
    let other = Ipv4Addr::new(10, 77, 0, 9);
    lan.put(&link::arp(ends, request, GUEST, link::Mac([0; 6]), other));
    assert_eq!(lan.take().len(), 1, "for itself alone");
    let mut damaged = crate::fuzz::datagram(
        SocketAddrV4::new(GUEST, 1),
        SocketAddrV4::new(GATEWAY, 53),
        OWN,
        b"0123456789ab",
    );
    *damaged.last_mut().unwrap() ^= 1;
    damaged[50] ^= 1;
    lan.put(&damaged);
    assert_eq!(lan.refused("malformed"), 1, "a sum is looked at before anything else");
}
