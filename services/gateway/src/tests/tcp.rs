//! Connections of guests that are slow, silent or mad.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use smoltcp::socket::tcp;
use smoltcp::wire::{IpProtocol, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::guest::{Lan, nic, packet};
use super::nat::{connection, exchange, segment};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A guest that is nothing but segments, each of which it makes as it likes.
struct Raw {
    lan: Lan,
    to: SocketAddr,
    /// Of its own next byte, and of the gateway's.
    next: (usize, TcpSeqNumber),
    /// What it may still send, as the gateway last said.
    window: usize,
}

impl Raw {
    const SHIFT: usize = 2;

    /// It has begun, and the gateway has answered.
    fn new() -> (Self, TcpStream) {
        let server = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let (lan, next) = (Lan::open(), (1, TcpSeqNumber(0)));
        let mut new = Self { lan, to, next, window: 0 };
        new.put(|repr| {
            (repr.control, repr.window_scale) = (TcpControl::Syn, Some(0));
            repr.ack_number = None;
        });
        let (stream, _) = server.accept().unwrap();
        new.lan.turn();
        new.hear();
        new.next.0 += 1;
        (new, stream)
    }

    fn put<'a>(&mut self, change: impl FnOnce(&mut TcpRepr<'a>)) {
        let (own, other) = self.next;
        let frame = segment(self.to, nic(1), (50, 1000), |repr| {
            repr.seq_number = TcpSeqNumber(i32::try_from(own).unwrap());
            repr.ack_number = Some(other);
            change(repr);
        });
        self.lan.put(&frame);
    }

    /// What the gateway has said since the last call.
    fn hear(&mut self) {
        for frame in self.lan.take() {
            let Some(ip) = packet(&frame).filter(|ip| ip.protocol == IpProtocol::Tcp) else {
                continue;
            };
            let tcp = TcpPacket::new_checked(ip.payload).unwrap();
            let begins = usize::from(tcp.syn());
            self.window = usize::from(tcp.window_len()) << (Self::SHIFT * (1 - begins));
            self.next.1 = tcp.seq_number() + tcp.segment_len();
        }
    }

    fn flows(&mut self) -> u64 {
        self.lan.counters().flows.get("tcp").copied().unwrap_or_default()
    }
}

#[test]
fn a_segment_beyond_what_has_room_is_cut() {
    let (mut raw, mut server) = Raw::new();
    let far = raw.next.0 + 262_100;
    raw.put(|repr| {
        repr.seq_number = TcpSeqNumber(i32::try_from(far).unwrap());
        repr.payload = &[7; 60_000];
    });
    raw.put(|repr| repr.payload = b"hello");
    let mut got = [0; 5];
    server.read_exact(&mut got).unwrap();
    assert_eq!((&got, raw.flows()), (b"hello", 1));
}

#[test]
fn who_answers_by_a_reset_or_begins_with_its_end_leaves_nothing() {
    let (mut raw, _server) = Raw::new();
    raw.put(|repr| (repr.control, repr.ack_number) = (TcpControl::Rst, None));
    assert_eq!((raw.flows(), raw.lan.gateway.nat().buffers()), (0, 0));
    // smoltcp makes no segment that is both.
    let server = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let to = server.local_addr().unwrap();
    let mut frame = segment(to, nic(1), (50, 1001), |repr| repr.control = TcpControl::Syn);
    let (from, tcp) = (Ipv4Addr::new(10, 77, 0, 50), &mut frame[34..54]);
    let mut both = TcpPacket::new_unchecked(tcp);
    both.set_fin(true);
    both.fill_checksum(&from.into(), &to.ip().into());
    raw.lan.put(&frame);
    assert_eq!((raw.flows(), raw.lan.refused("no-flow")), (0, 1));
}

/// Nothing is to be answered, so nothing is unanswered.
#[test]
fn a_silent_connection_lasts_for_two_hours_and_a_guest_that_has_gone_for_two_minutes() {
    let (mut lan, mut port, mut guest, handle, mut server) = connection(LOOPBACK);
    for _ in 0..12 {
        lan.now += 600_000;
        exchange(&mut lan, &mut port, &mut guest);
        assert_eq!(guest.sockets.get::<tcp::Socket>(handle).state(), tcp::State::Established);
        let due = lan.gateway.nat().due().unwrap();
        assert!(due.total_millis() > lan.now + 60_000, "nobody wakes for it");
    }
    server.write_all(b"still there?").unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    let mut got = Vec::new();
    let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
    socket.recv(|bytes| (bytes.len(), got.extend_from_slice(bytes))).unwrap();
    assert_eq!(got, b"still there?");
    socket.send_slice(b"yes").unwrap();
    exchange(&mut lan, &mut port, &mut guest);
    server.read_exact(&mut got[..3]).unwrap();
    assert_eq!(&got[..3], b"yes");
    // An hour later the guest answers no more: what counts is how long something waits for it.
    lan.now += 3_600_000;
    server.write_all(b"and now?").unwrap();
    lan.turn();
    for (step, flows) in [(1, Some(&1)), (118_000, Some(&1)), (2000, None)] {
        lan.now += step;
        lan.turn();
        assert_eq!(lan.counters().flows.get("tcp"), flows);
    }
    assert_eq!(server.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_that_nobody_uses_ends() {
    let (mut lan, mut port, mut guest, _, mut server) = connection(LOOPBACK);
    lan.now += 2 * 3_600_000 + 239_000;
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(lan.counters().flows.get("tcp"), Some(&1));
    lan.now += 2000;
    exchange(&mut lan, &mut port, &mut guest);
    assert_eq!(lan.counters().flows.get("tcp"), None);
    assert_eq!(server.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// A guest's program that never closes what the server has ended holds nothing for hours.
#[test]
fn a_connection_that_only_the_server_has_ended_lasts_for_four_silent_minutes() {
    let (mut raw, server) = Raw::new();
    server.shutdown(Shutdown::Write).unwrap();
    for _ in 0..3 {
        raw.put(|repr| repr.payload = b"and this");
        raw.next.0 += 8;
        raw.lan.turn();
        raw.hear();
        raw.put(|_| {});
        raw.lan.now += 239_000;
        raw.lan.turn();
        assert_eq!(raw.flows(), 1, "it goes on");
    }
    raw.lan.now += 2000;
    raw.lan.turn();
    assert_eq!(raw.flows(), 0);
}

/// Both have said all, and the server has no room for what the guest said last.
fn left(server_first: bool) -> (Raw, TcpStream, Vec<u8>) {
    static PIECE: [u8; 59_999] = {
        let mut piece = [0; 59_999];
        let mut n = 0;
        while n < piece.len() {
            piece[n] = n.to_le_bytes()[n % 2];
            n += 1;
        }
        piece
    };
    let (mut raw, server) = Raw::new();
    if server_first {
        server.shutdown(Shutdown::Write).unwrap();
    }
    let mut sent = Vec::new();
    loop {
        raw.put(|repr| repr.payload = &PIECE);
        raw.hear();
        raw.next.0 += PIECE.len();
        sent.extend_from_slice(&PIECE);
        if raw.window < 150_000 {
            break;
        }
    }
    raw.put(|repr| repr.control = TcpControl::Fin);
    raw.next.0 += 1;
    if !server_first {
        server.shutdown(Shutdown::Write).unwrap();
    }
    raw.lan.turn();
    raw.hear();
    raw.put(|_| {});
    assert_eq!(raw.flows(), 1, "there are bytes left");
    let buffers = raw.lan.gateway.nat().buffers();
    assert!(buffers > 0 && buffers <= 262_144, "{buffers} bytes wait: no more than the guest said");
    (raw, server, sent)
}

/// The host's socket is full when the guest ends, and the server reads later.
#[test]
fn what_a_guest_said_last_arrives_whoever_ended_first() {
    for server_first in [true, false] {
        let (mut raw, mut server, sent) = left(server_first);
        // Longer than an end of TCP is remembered.
        raw.lan.now += 60_000;
        raw.put(|_| {});
        let mut got = Vec::new();
        server.set_nonblocking(true).unwrap();
        let mut room = vec![0; 65_536];
        for _ in 0..10_000 {
            match server.read(&mut room) {
                Ok(0) => break,
                Ok(len) => got.extend_from_slice(&room[..len]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => raw.lan.turn(),
                Err(e) => panic!("after {} of {} bytes: {e}", got.len(), sent.len()),
            }
        }
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        raw.lan.turn();
        assert_eq!(raw.flows(), 0, "nothing is left of it");
    }
}

/// A server that takes nothing for hours is not told that it has had all.
#[test]
fn what_is_never_taken_ends_by_a_reset() {
    let (mut raw, mut server, sent) = left(true);
    for _ in 0..20 {
        // The guest knocks again, which lengthens nothing.
        raw.lan.now += 600_000;
        raw.put(|_| {});
        raw.lan.turn();
    }
    assert_eq!((raw.flows(), raw.lan.gateway.nat().buffers()), (0, 0), "it ends");
    let mut got = Vec::new();
    let error = server.read_to_end(&mut got).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(got.len() < sent.len());
}

/// A server that refuses what a guest is about to send says why, and resets the connection.
#[test]
fn what_a_server_said_before_its_reset_arrives() {
    for guest_speaks in [false, true] {
        let (mut lan, mut port, mut guest, handle, mut server) = connection(LOOPBACK);
        let said: Vec<u8> = (0..40_000u32).map(|n| n.to_le_bytes()[n as usize % 2]).collect();
        server.write_all(&said).unwrap();
        rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
        if guest_speaks {
            socket.send_slice(b"more").unwrap();
        }
        let mut got = Vec::new();
        // Its acknowledgements take their time.
        for _ in 0..1000 {
            exchange(&mut lan, &mut port, &mut guest);
            let socket = guest.sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), got.extend_from_slice(bytes))).unwrap();
            }
            if !socket.is_open() {
                break;
            }
        }
        assert!(got == said, "{} bytes, {guest_speaks}", got.len());
        let state = guest.sockets.get::<tcp::Socket>(handle).state();
        assert_eq!(state, tcp::State::Closed, "a reset, and no end");
        assert_eq!((lan.counters().flows.get("tcp"), lan.gateway.nat().buffers()), (None, 0));
    }
}

/// It holds nothing for a guest that has gone.
#[test]
fn a_reset_waits_for_a_silent_guest_for_two_minutes() {
    let (mut raw, mut server) = Raw::new();
    server.write_all(&[7; 9]).unwrap();
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    for (step, flows) in [(0, 1), (119_000, 1), (2000, 0)] {
        raw.lan.now += step;
        raw.lan.turn();
        assert_eq!(raw.flows(), flows);
    }
}

/// It reads nothing, and goes on speaking to a server that has gone.
#[test]
fn a_reset_waits_for_a_guest_that_hears_something_every_two_minutes() {
    let (mut raw, mut server) = Raw::new();
    raw.put(|repr| repr.window_len = 0);
    server.write_all(b"why").unwrap();
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    let speak = |raw: &mut Raw, window: u16| {
        raw.put(|repr| (repr.window_len, repr.payload) = (window, b"more"));
        raw.next.0 += 4;
        raw.hear();
    };
    for _ in 0..2 {
        speak(&mut raw, 1);
        // It acknowledges the byte that it had room for.
        speak(&mut raw, 0);
        raw.lan.now += 100_000;
        raw.lan.turn();
        assert_eq!(raw.flows(), 1, "it hears the rest, slowly");
    }
    for flows in [1, 0] {
        speak(&mut raw, 0);
        raw.lan.now += 15_000;
        raw.lan.turn();
        assert_eq!(raw.flows(), flows);
    }
    let is_reset = |frame: &Vec<u8>| {
        let tcp = packet(frame).filter(|ip| ip.protocol == IpProtocol::Tcp);
        tcp.is_some_and(|ip| TcpPacket::new_checked(ip.payload).unwrap().rst())
    };
    assert!(raw.lan.take().iter().any(is_reset), "it is told");
}
