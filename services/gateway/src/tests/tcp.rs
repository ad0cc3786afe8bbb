//! Connections of guests that are slow, silent or mad.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use smoltcp::wire::{IpProtocol, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::guest::{Lan, nic, packet};
use super::nat::segment;

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
