//! Names by TCP.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use vmlan_config::gateway::{Dns, Lease, Setup};

use super::dns::{NOWHERE, query};
use super::guest::{GATEWAY, Lan};
use super::nat::{GATEWAY6, Guest, Port, exchange, from, socket};

/// A guest's connection to the gateway's server of names.
struct Asking {
    lan: Lan,
    port: Port,
    guest: Guest,
    handle: SocketHandle,
    got: Vec<u8>,
}

impl Asking {
    fn new(at: IpAddr, servers: Vec<SocketAddr>) -> Self {
        let dns = Dns::Ask(servers);
        // Two tokens at first, then one in a second.
        let mut lan = Lan::new(Setup { now: 1000, dns, flow_rate: 1, ..Setup::default() });
        let lease = Lease {
            ip: [10, 77, 0, 101].into(),
            mac: "02:00:00:00:02:01".into(),
            port: "vm1".into(),
            hostname: None,
            expires: 2000,
        };
        lan.gateway.restore(vec![lease]);
        let mut port = Port::default();
        let mut guest = Guest::new(&mut port);
        let handle = guest.sockets.add(socket());
        let wanted = guest.sockets.get_mut::<tcp::Socket>(handle);
        wanted.connect(guest.interface.context(), (at, 53), from(at, 40_000)).unwrap();
        let mut new = Self { lan, port, guest, handle, got: Vec::new() };
        new.exchange();
        assert_eq!(new.socket().state(), tcp::State::Established);
        new
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.guest.sockets.get_mut(self.handle)
    }

    fn exchange(&mut self) {
        exchange(&mut self.lan, &mut self.port, &mut self.guest);
        let socket = self.guest.sockets.get_mut::<tcp::Socket>(self.handle);
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), self.got.extend_from_slice(bytes))).unwrap();
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        assert_eq!(self.socket().send_slice(bytes).unwrap(), bytes.len());
        self.exchange();
    }

    /// The answers so far.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        self.exchange();
        let mut all = Vec::new();
        while let [high, low, rest @ ..] = self.got.as_slice() {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            if rest.len() < len {
                break;
            }
            all.push(rest[..len].to_vec());
            self.got.drain(..2 + len);
        }
        all
    }
}

fn long(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// What a server is asked, without its length.
fn heard(server: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    server.read_exact(&mut len).unwrap();
    let mut message = vec![0; u16::from_be_bytes(len).into()];
    server.read_exact(&mut message).unwrap();
    message
}

#[test]
fn names_of_the_lan_are_answered_in_order_however_questions_are_cut() {
    for at in [IpAddr::from(GATEWAY), GATEWAY6.into()] {
        let mut asking = Asking::new(at, Vec::new());
        let two = [long(&query(1, "vm1.lan", 1)), long(&query(2, "nobody.lan", 1))].concat();
        for byte in &two {
            asking.send(&[*byte]);
        }
        asking.send(&[two.clone(), two].concat());
        let answers = asking.answers();
        let ids: Vec<_> = answers.iter().map(|answer| answer[1]).collect();
        assert_eq!(ids, [1, 2, 1, 2, 1, 2]);
        assert!(answers[0].ends_with(&[10, 77, 0, 101]) && answers[1][3] & 15 == 3);
        // Nobody to ask for others.
        asking.send(&long(&query(3, "example.org", 1)));
        assert_eq!(asking.answers()[0][3] & 15, 2);
        asking.socket().close();
        asking.exchange();
        assert_eq!(asking.lan.counters().flows.get("dns"), None, "nothing is left of it");
    }
}

#[test]
fn other_questions_go_on_by_tcp_and_long_answers_come_back() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut asking = Asking::new(GATEWAY.into(), vec![server.local_addr().unwrap()]);
    let question = query(7, "example.org", 16);
    asking.send(&long(&question));
    let (mut outside, _) = server.accept().unwrap();
    outside.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    asking.exchange();
    let mut answer = heard(&mut outside);
    assert_eq!(answer[2..], question[2..], "all but the number");
    answer[2] |= 0x80;
    answer.resize(60_000, 5);
    outside.write_all(&long(&answer)).unwrap();
    // The guest's acknowledgements take their time.
    for _ in 0..200 {
        asking.exchange();
    }
    let got = asking.answers().pop().unwrap();
    assert_eq!((got.len(), &got[..2], got[2..] == answer[2..]), (60_000, &[0, 7][..], true));
    assert_eq!(asking.lan.counters().answered.get("dns-forwarded"), Some(&1));
}

#[test]
fn a_server_that_lies_or_leaves_is_not_believed() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let live = server.local_addr().unwrap();
    // Who cannot be asked is passed over.
    for servers in [vec![live], vec![NOWHERE, live], vec![live, NOWHERE]] {
        lies_or_leaves(&server, Asking::new(GATEWAY.into(), servers));
    }
}

fn lies_or_leaves(server: &TcpListener, mut asking: Asking) {
    asking.send(&long(&query(7, "example.org", 1)));
    let mut lie = heard(&mut server.accept().unwrap().0);
    // It has hung up, and another is asked.
    asking.exchange();
    let (mut outside, _) = server.accept().unwrap();
    asking.exchange();
    lie[2] |= 0x80;
    lie[14] ^= 1;
    outside.write_all(&long(&lie)).unwrap();
    let answer = asking.answers().pop().unwrap();
    assert_eq!((&answer[..2], answer[3] & 15), (&[0, 7][..], 2));
    let refused = ["dns-foreign-answer", "dns-unanswered"].map(|r| asking.lan.refused(r));
    assert_eq!(refused, [1, 1]);
}

#[test]
fn who_is_silent_or_talks_nonsense_is_hung_up_on() {
    let mut silent = Asking::new(GATEWAY.into(), Vec::new());
    silent.lan.now += 10_000;
    silent.lan.turn();
    assert_eq!(silent.lan.counters().flows.get("dns"), None);
    let mut mad = Asking::new(GATEWAY.into(), Vec::new());
    mad.send(&long(b"no question"));
    assert_eq!((mad.socket().state(), mad.lan.refused("dns-malformed")), (tcp::State::Closed, 1));
    let mut endless = Asking::new(GATEWAY.into(), Vec::new());
    for _ in 0..5 {
        endless.send(&[0xff; 1000]);
    }
    assert_eq!(endless.lan.refused("dns-malformed"), 1);
    assert_eq!(endless.socket().state(), tcp::State::Closed);
}

/// It asks for more than there is room for, and reads nothing.
#[test]
fn who_does_not_read_its_answers_is_hung_up_on() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut asking = Asking::new(GATEWAY.into(), vec![server.local_addr().unwrap()]);
    let question = long(&query(7, "example.org", 16));
    for _ in 0..2 {
        asking.lan.now += 2000;
        asking.socket().send_slice(&question).unwrap();
        exchange(&mut asking.lan, &mut asking.port, &mut asking.guest);
        let (mut outside, _) = server.accept().unwrap();
        outside.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        exchange(&mut asking.lan, &mut asking.port, &mut asking.guest);
        let mut answer = heard(&mut outside);
        answer[2] |= 0x80;
        answer.resize(60_000, 5);
        outside.write_all(&long(&answer)).unwrap();
        for _ in 0..100 {
            exchange(&mut asking.lan, &mut asking.port, &mut asking.guest);
        }
    }
    let lan = &mut asking.lan;
    assert_eq!(lan.counters().flows.get("dns"), Some(&1));
    assert!(lan.gateway.nat().due().unwrap() > lan.time(), "it waits");
    // The guest says that it is there, but that its window is closed.
    for _ in 0..11 {
        lan.now += 1000;
        exchange(lan, &mut asking.port, &mut asking.guest);
        assert!(lan.gateway.nat().due().is_none_or(|due| due > lan.time()), "it wants no turn");
    }
    assert_eq!(lan.counters().flows.get("dns"), None);
}

#[test]
fn a_guest_that_asks_all_the_time_is_told_to_wait() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut asking = Asking::new(GATEWAY.into(), vec![server.local_addr().unwrap()]);
    let question = long(&query(7, "example.org", 1));
    asking.send(&[question.clone(), question].concat());
    let (mut outside, _) = server.accept().unwrap();
    asking.exchange();
    let mut answer = heard(&mut outside);
    answer[2] |= 0x80;
    outside.write_all(&long(&answer)).unwrap();
    let codes: Vec<_> = asking.answers().iter().map(|answer| answer[3] & 15).collect();
    assert_eq!(codes, [0, 2]);
    assert_eq!(asking.lan.refused("dns-rate"), 1);
}
