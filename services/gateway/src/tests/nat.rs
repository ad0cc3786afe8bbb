use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{IpCidr, IpProtocol, TcpPacket, TcpRepr};
use vmlan_config::gateway::Setup;

use super::guest::{FIRST, GATEWAY, Lan, nic, packet};
use crate::fuzz::{GUEST, GUEST6, OWN};
use crate::link;

pub(super) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);

/// A guest with a stack of its own.
pub(super) struct Guest {
    pub(super) interface: Interface,
    pub(super) sockets: SocketSet<'static>,
}

pub(super) struct Put<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Put<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut bytes = vec![0; len];
        let done = fill(&mut bytes);
        self.0.push(bytes);
        done
    }
}

pub(super) struct Got(Vec<u8>);

impl RxToken for Got {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(&self.0)
    }
}

#[derive(Default)]
pub(super) struct Port {
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
    pub(super) fn new(port: &mut Port) -> Self {
        let mut config = Config::new(FIRST.into());
        config.random_seed = 7;
        let mut interface = Interface::new(config, port, Instant::ZERO);
        interface.update_ip_addrs(|list| {
            list.push(IpCidr::new(GUEST.into(), 24)).unwrap();
            list.push(IpCidr::new(GUEST6.into(), 64)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY).unwrap();
        interface.routes_mut().add_default_ipv6_route(GATEWAY6).unwrap();
        let sockets = SocketSet::new(Vec::new());
        Self { interface, sockets }
    }
}

/// Frames go between a guest and a gateway until both have nothing to say.
pub(super) fn exchange(lan: &mut Lan, port: &mut Port, guest: &mut Guest) {
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

pub(super) fn socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; 65_536]);
    tcp::Socket::new(buffer(), buffer())
}

/// The guest's end of a connection to `at`: smoltcp would take ::1 to get to ::1.
pub(super) fn from(at: IpAddr, port: u16) -> SocketAddr {
    let own: IpAddr = if at.is_ipv4() { GUEST.into() } else { GUEST6.into() };
    SocketAddr::new(own, port)
}

/// A guest's connection to a server on this host's loopback; the server's half.
pub(super) fn connection(
    at: IpAddr,
) -> (Lan, Port, Guest, smoltcp::iface::SocketHandle, std::net::TcpStream) {
    let server = TcpListener::bind((at, 0)).unwrap();
    let (mut lan, mut port) = (Lan::open(), Port::default());
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    let to = (at, server.local_addr().unwrap().port());
    let wanted = guest.sockets.get_mut::<tcp::Socket>(handle);
    wanted.connect(guest.interface.context(), to, from(at, 40_000)).unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    let (stream, _) = server.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(guest.sockets.get::<tcp::Socket>(handle).state(), tcp::State::Established);
    (lan, port, guest, handle, stream)
}

const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

#[test]
fn bytes_pass_both_ways_and_each_end_by_itself() {
    LOOPBACKS.into_iter().for_each(bytes_pass_both_ways);
}

fn bytes_pass_both_ways(at: IpAddr) {
    let (mut lan, mut port, mut guest, handle, mut server) = connection(at);
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
    // The host's kernel may take its time to hand all over.
    for _ in 0..10_000 {
        exchange(&mut lan, &mut port, &mut guest);
        let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), back.extend_from_slice(bytes))).unwrap();
        }
        if lan.counters().flows.is_empty() {
            break;
        }
    }
    assert!(back == wanted, "{} bytes", back.len());
    assert_eq!(lan.counters().flows.get("tcp"), None, "nothing is left of it");
}

#[test]
fn a_reset_of_one_side_is_a_reset_for_the_other() {
    LOOPBACKS.into_iter().for_each(resets_pass);
}

fn resets_pass(at: IpAddr) {
    let (mut lan, mut port, mut guest, handle, mut server) = connection(at);
    guest.sockets.get_mut::<tcp::Socket>(handle).abort();
    exchange(&mut lan, &mut port, &mut guest);
    let end = server.read(&mut [0; 9]).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    let (mut lan, mut port, mut guest, handle, server) = connection(at);
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(guest.sockets.get::<tcp::Socket>(handle).state(), tcp::State::Closed);
    assert_eq!(lan.counters().flows.get("tcp"), None);
}

/// What a guest that asks for a connection gets: true for a reset.
fn is_reset(lan: &mut Lan, to: SocketAddr) -> bool {
    let (mut port, mut lan_frames) = (Port::default(), Vec::new());
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    let wanted = guest.sockets.get_mut::<tcp::Socket>(handle);
    let own = from(to.ip(), 40_001);
    wanted.connect(guest.interface.context(), (to.ip(), to.port()), own).unwrap();
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
        ("127.0.0.1", host, "host-closed"),
        ("10.77.0.1", host, "host-closed"),
        ("169.254.169.254", 80, "blocked"),
        ("168.63.129.16", 80, "blocked"),
        ("fd00:77::1", host, "host-closed"),
        ("::ffff:127.0.0.1", host, "host-closed"),
        ("64:ff9b::7f00:1", host, "host-closed"),
        ("fd00:ec2::254", 80, "blocked"),
        ("2002:7f00:1::1", 80, "blocked"),
    ];
    for (ip, port, reason) in refused {
        let before = lan.refused(reason);
        assert!(is_reset(&mut lan, SocketAddr::new(ip.parse().unwrap(), port)), "{ip}");
        assert_eq!(lan.refused(reason), before + 1, "{ip}");
    }
    // Open, but nobody listens.
    let mut lan = Lan::open();
    for at in LOOPBACKS {
        let nobody = TcpListener::bind((at, 0)).unwrap().local_addr().unwrap();
        assert!(is_reset(&mut lan, nobody));
    }
    assert_eq!(lan.refused("unreachable"), 2);
}

#[test]
fn a_flood_of_connections_costs_its_own_port_alone() {
    // Nobody accepts: all wait.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let allow = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let mut lan = Lan::new(Setup { allow, flows: 8, ..Setup::default() });
    for port in 0..50 {
        lan.put(&syn(to, nic(1), 50, 1000 + port));
    }
    assert_eq!(lan.refused("vm-flows"), 42);
    lan.put(&syn(to, nic(2), 51, 1000));
    assert_eq!(lan.counters().flows.get("tcp"), Some(&9), "the neighbour has its own");
}

/// What one port may have in memory is bounded, and its neighbour has large buffers all the same.
#[test]
fn many_connections_have_small_buffers() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let allow = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let mut lan = Lan::new(Setup { allow, flow_rate: 100_000, ..Setup::default() });
    let mut open = Vec::new();
    let mut buffers = Vec::new();
    for port in 0..300 {
        lan.put(&syn(to, nic(1), 50, 1000 + port));
        open.push(server.accept().unwrap());
        lan.turn();
        buffers.push(lan.gateway.nat().buffers());
    }
    let (usual, small) = ((512 << 10) - 1, 32 << 10);
    assert_eq!(lan.counters().flows.get("tcp"), Some(&300));
    assert_eq!(buffers[63], 64 * usual);
    assert_eq!(buffers[299], 64 * usual + 236 * small);
    lan.put(&syn(to, nic(2), 51, 1000));
    assert_eq!(lan.gateway.nat().buffers() - buffers[299], usual);
    // With them goes what they had.
    drop(open);
    for _ in 0..10 {
        lan.now += 121_000;
        lan.turn();
    }
    assert_eq!(lan.gateway.nat().buffers(), 0);
}

/// The first segment of a guest that wants a connection.
fn syn(to: SocketAddr, mac: link::Mac, last: u8, port: u16) -> Vec<u8> {
    segment(to, mac, (last, port), |repr| {
        repr.control = smoltcp::wire::TcpControl::Syn;
        repr.max_seg_size = Some(1460);
    })
}

/// A segment of the guest with that last byte in its address and that port, but for `change`.
pub(super) fn segment<'a>(
    to: SocketAddr,
    mac: link::Mac,
    (last, port): (u8, u16),
    change: impl FnOnce(&mut TcpRepr<'a>),
) -> Vec<u8> {
    let from = Ipv4Addr::new(10, 77, 0, last);
    let mut repr = TcpRepr {
        src_port: port,
        dst_port: to.port(),
        control: smoltcp::wire::TcpControl::None,
        seq_number: smoltcp::wire::TcpSeqNumber(1),
        ack_number: None,
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    change(&mut repr);
    let ends = link::Packet { from: mac, to: OWN };
    link::ip(ends, (from.into(), to.ip()), IpProtocol::Tcp, repr.buffer_len(), |bytes| {
        let sums = smoltcp::phy::ChecksumCapabilities::default();
        let mut packet = TcpPacket::new_unchecked(bytes);
        repr.emit(&mut packet, &from.into(), &to.ip().into(), &sums);
    })
}

#[test]
fn datagrams_pass_both_ways_and_a_flow_ends_by_its_time() {
    LOOPBACKS.into_iter().for_each(datagrams_pass);
}

fn datagrams_pass(at: IpAddr) {
    let server = UdpSocket::bind((at, 0)).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = server.local_addr().unwrap();
    let mut lan = Lan::open();
    lan.udp(6000, to, b"question");
    let mut room = [0; 64];
    let (len, from) = server.recv_from(&mut room).unwrap();
    assert_eq!(&room[..len], b"question");
    server.send_to(b"answer", from).unwrap();
    lan.turn();
    assert_eq!(lan.datagrams(), [(to, 6000, b"answer".to_vec())]);
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
    let kinds = [IpProtocol::Icmp, IpProtocol::Icmpv6];
    let icmp = |frame: &Vec<u8>| packet(frame).is_some_and(|ip| kinds.contains(&ip.protocol));
    assert!(told.iter().any(icmp));
}

/// What became of one datagram is told by the host when the next one is sent, which is not.
#[test]
fn a_datagram_is_not_lost_for_the_sake_of_the_one_before() {
    let mut lan = Lan::open();
    for at in LOOPBACKS {
        let to = UdpSocket::bind((at, 0)).unwrap().local_addr().unwrap();
        let own = SocketAddr::new(from(at, 0).ip(), 6000);
        let frame = |lan: &mut Lan, data: &[u8]| {
            let frame = crate::fuzz::datagram(own, to, OWN, data);
            let now = lan.time();
            lan.gateway.frame(&frame, link::Arrived::default(), &mut lan.frames, now);
        };
        frame(&mut lan, b"anybody?");
        let server = UdpSocket::bind(to).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        frame(&mut lan, b"and now?");
        let mut room = [0; 64];
        let (len, gateway) = server.recv_from(&mut room).unwrap();
        assert_eq!(&room[..len], b"and now?");
        server.send_to(b"answer", gateway).unwrap();
        let kinds = [IpProtocol::Icmp, IpProtocol::Icmpv6];
        let icmp = |frame: &Vec<u8>| packet(frame).is_some_and(|ip| kinds.contains(&ip.protocol));
        assert_eq!(lan.take().iter().filter(|frame| icmp(frame)).count(), 1, "it is told of one");
        lan.turn();
        assert_eq!(lan.datagrams(), [(to, 6000, b"answer".to_vec())]);
    }
}

/// A router outside says that it takes less at a time. Needs root, to speak for the router.
#[test]
fn a_narrower_way_outside_is_no_end_of_a_flow() {
    use rustix::net::{AddressFamily, SocketType, ipproto};
    let raw = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP));
    let raw = match raw {
        Ok(raw) => raw,
        Err(e) => {
            let required = std::env::var("VMLAN_REQUIRE_ROOT").is_ok_and(|v| v == "1");
            assert!(!required, "raw sockets need root: {e}");
            return println!("skipped: raw sockets need root: {e}");
        }
    };
    let server = UdpSocket::bind("127.0.0.9:0").unwrap();
    let to = server.local_addr().unwrap();
    let mut lan = Lan::open();
    lan.udp(6000, to, b"question");
    let (_, gateway) = server.recv_from(&mut [0; 9]).unwrap();
    // The longest that it can say, which is no less than the loopback device takes in fact.
    let mut told = vec![3, 4, 0, 0, 0, 0, 0xff, 0xff];
    told.extend(&crate::fuzz::datagram(gateway, to, OWN, b"question")[link::ETHERNET..]);
    let sum =
        told.chunks(2).map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |b| (*b).into()));
    let sum: u32 = sum.sum();
    let sum = !u16::try_from((sum >> 16) + (sum & 0xffff)).unwrap();
    told[2..4].copy_from_slice(&sum.to_be_bytes());
    let host = SocketAddr::from((gateway.ip(), 0));
    rustix::net::sendto(&raw, &told, rustix::net::SendFlags::empty(), &host).unwrap();
    lan.turn();
    server.send_to(b"answer", gateway).unwrap();
    lan.turn();
    assert_eq!(lan.datagrams(), [(to, 6000, b"answer".to_vec())]);
    assert_eq!(lan.refused("unreachable"), 0);
}

/// The same for addresses of both families, at the host and of the guest.
#[test]
fn a_forward_leads_to_its_guest_once_that_has_an_address() {
    forward_leads("127.0.0.1", "10.77.0.100", GATEWAY.into());
    forward_leads("[::1]", &format!("[{GUEST6}]"), GATEWAY6.into());
    forward_leads("127.0.0.1", &format!("[{GUEST6}]"), GATEWAY6.into());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = format!("{}:vm1:22", taken.local_addr().unwrap().port()).parse().unwrap();
    let mut lan = Lan::new(Setup { forwards: vec![forward], ..Setup::default() });
    let said = format!("{:?}", lan.news());
    assert!(said.contains("taken by another program"), "{said}");
}

fn forward_leads(at: &str, to: &str, seen: IpAddr) {
    let free = TcpListener::bind(format!("{at}:0")).unwrap().local_addr().unwrap();
    let forward = format!("{at}:{}:{to}:22", free.port()).parse().unwrap();
    let mut lan = Lan::new(Setup { forwards: vec![forward], ..Setup::default() });
    let mut port = Port::default();
    let mut guest = Guest::new(&mut port);
    let handle = guest.sockets.add(socket());
    guest.sockets.get_mut::<tcp::Socket>(handle).listen(22).unwrap();
    let mut client = std::net::TcpStream::connect(free).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    lan.turn();
    assert!(!lan.frames.0.is_empty(), "it is asked for");
    port.to_guest.extend(lan.take());
    for _ in 0..5 {
        exchange(&mut lan, &mut port, &mut guest);
    }
    let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
    assert_eq!(socket.remote_endpoint().unwrap().addr, seen.into());
    socket.send_slice(b"hello").unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    let mut got = [0; 5];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    // It may say its last, and wait for an answer that takes the guest an hour.
    client.shutdown(std::net::Shutdown::Write).unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    lan.now += 3_600_000;
    exchange(&mut lan, &mut port, &mut guest);
    guest.sockets.get_mut::<tcp::Socket>(handle).send_slice(b"there").unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
}

/// However much comes for one guest, its neighbour waits for one turn of one flow of it at most.
#[test]
fn a_flood_from_outside_holds_a_neighbour_up_for_one_turn() {
    const TURN: usize = 32;
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let allow = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let mut lan = Lan::new(Setup { allow, flow_rate: 100_000, ..Setup::default() });
    let from = |last: u8, port: u16| SocketAddr::from(([10, 77, 0, last], port));
    let mut hosts = Vec::new();
    let begin = |lan: &mut Lan, mac: link::Mac, own: SocketAddr| {
        lan.put(&link::udp(link::Packet { from: mac, to: OWN }, own, to, b"begin"));
        let (_, host) = server.recv_from(&mut [0; 9]).unwrap();
        host
    };
    for port in 0..50 {
        hosts.push(begin(&mut lan, nic(1), from(50, 1000 + port)));
    }
    let neighbour = begin(&mut lan, nic(2), from(51, 1000));
    for host in hosts.iter().flat_map(|host| std::iter::repeat_n(host, 2 * TURN)) {
        server.send_to(b"flood", host).unwrap();
    }
    server.send_to(b"answer", neighbour).unwrap();
    lan.turn();
    let got = lan.datagrams();
    assert!(got.len() > 20 * TURN, "{} came", got.len());
    let place = got.iter().position(|(_, _, data)| data == b"answer").unwrap();
    assert!(place <= TURN, "{place} were first");
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
        SocketAddr::from((GUEST, 1)),
        SocketAddr::from((GATEWAY, 53)),
        OWN,
        b"0123456789ab",
    );
    *damaged.last_mut().unwrap() ^= 1;
    damaged[50] ^= 1;
    lan.put(&damaged);
    assert_eq!(lan.refused("malformed"), 1, "a sum is looked at before anything else");
}
