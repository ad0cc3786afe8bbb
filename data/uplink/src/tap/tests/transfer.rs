//! Payload that must arrive, with offloads on and off: two hosts' kernels, each in its namespace,
//! with their TAP devices joined by our two ports.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender};

use super::*;

/// Hands every frame to the other port, and notes what work it carried.
struct Wire<'a> {
    to: &'a dyn Port,
    gso: usize,
    csum: usize,
}

impl Sink for Wire<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let list: Vec<u16> = (0..u16::try_from(batch.len()).unwrap()).collect();
        for i in 0..batch.len() {
            let o = batch.frame(i).unwrap().offload;
            self.gso += usize::from(o.gso != Gso::None);
            self.csum += usize::from(o.needs_csum);
        }
        assert_eq!(self.to.push(batch, &list), list.len());
    }
}

const BYTES: usize = 4 * 1024 * 1024;

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| u8::try_from((i * 31 + i / 977) % 256).unwrap()).collect()
}

/// The host that asks: sends everything, and gets it back.
fn client(ports: &Sender<(usize, Tap)>, go: &Receiver<()>, queues: u16, offload: bool) {
    if !allowed() {
        return;
    }
    ports.send((0, host("10.9.8.1", queues, offload))).unwrap();
    go.recv().unwrap();
    let mut s =
        TcpStream::connect_timeout(&"10.9.8.2:7000".parse().unwrap(), Duration::from_secs(20))
            .unwrap();
    s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    s.write_all(&pattern()).unwrap();
    let mut back = vec![0; BYTES];
    s.read_exact(&mut back).unwrap();
    assert!(back == pattern(), "what came back is what was sent");
}

/// The host that answers.
fn server(ports: &Sender<(usize, Tap)>, queues: u16, offload: bool) {
    if !allowed() {
        return;
    }
    let tap = host("10.9.8.2", queues, offload);
    let listener = TcpListener::bind("10.9.8.2:7000").unwrap();
    ports.send((1, tap)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut s = None;
    wait("the client", || {
        s = listener.accept().ok();
        s.is_some()
    });
    let mut s = s.unwrap().0;
    s.set_nonblocking(false).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut all = vec![0; BYTES];
    s.read_exact(&mut all).unwrap();
    assert!(all == pattern(), "what arrived is what was sent");
    s.write_all(&all).unwrap();
    let _ = s.read(&mut [0]);
}

/// Joins two hosts; returns (gso, csum) seen from each.
fn transfer(queues: u16, offloads: [bool; 2]) -> Option<[(usize, usize); 2]> {
    let (ports, opened) = channel();
    let (go, wait_for_go) = channel();
    thread::scope(|s| {
        let from_server = ports.clone();
        let asks = s.spawn(move || client(&ports, &wait_for_go, queues, offloads[0]));
        let answers = s.spawn(move || server(&from_server, queues, offloads[1]));
        let mut taps: Vec<(usize, Tap)> = opened.iter().take(2).collect();
        taps.sort_by_key(|(i, _)| *i);
        let [(_, a), (_, b)] = &taps[..] else { return None };
        go.send(()).unwrap();
        let (a, b) = (a.port(), b.port());
        let mut from_a = Wire { to: &*b, gso: 0, csum: 0 };
        let mut from_b = Wire { to: &*a, gso: 0, csum: 0 };
        let mut batch = Batch::new();
        while !asks.is_finished() || !answers.is_finished() {
            let n = a.pull(&mut batch, 256, &mut from_a) + b.pull(&mut batch, 256, &mut from_b);
            if n == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
        asks.join().unwrap();
        answers.join().unwrap();
        Some([(from_a.gso, from_a.csum), (from_b.gso, from_b.csum)])
    })
}

#[test]
fn tcp_with_offloads_on_and_off() {
    for (queues, offloads) in
        [(1, [true, true]), (1, [false, false]), (1, [true, false]), (4, [false, true])]
    {
        let Some(seen) = transfer(queues, offloads) else { return };
        for (on, (gso, csum)) in offloads.iter().zip(seen) {
            assert_eq!(*on, gso > 0, "segmentation left to us: {gso} frames, {offloads:?}");
            assert_eq!(*on, csum > 0, "checksums left to us: {csum} frames, {offloads:?}");
        }
    }
}

/// The Internet checksum (RFC 1071) of `bytes`, not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |b| u64::from(*b)));
    let mut n: u64 = words.sum();
    while n > 0xffff {
        n = (n & 0xffff) + (n >> 16);
    }
    u16::try_from(n).unwrap()
}

/// A UDP datagram from 10.9.8.2 to port 7001 of 10.9.8.1; the checksum field holds `csum` of the
/// pseudo-header's sum and the datagram's.
fn udp(payload: &[u8], csum: impl Fn(u16, u16) -> u16) -> Vec<u8> {
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut f = [[0xff; 6], [0x52, 0x54, 0, 0, 0, 2]].concat();
    f.extend([8, 0, 0x45, 0]);
    f.extend((20 + udp_len).to_be_bytes());
    f.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
    let header = !sum(&f[14..34]);
    f[24..26].copy_from_slice(&header.to_be_bytes());
    let pseudo = [&f[26..34], &[0, 17], &udp_len.to_be_bytes()].concat();
    f.extend([0x1b, 0x58, 0x1b, 0x59]);
    f.extend(udp_len.to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    let field = csum(sum(&pseudo), sum(&[&pseudo[..], &f[34..]].concat()));
    f[40..42].copy_from_slice(&field.to_be_bytes());
    f
}

#[test]
fn the_kernel_finishes_our_checksums_and_checks_the_others() {
    namespace(|| {
        let tap = host("10.9.8.1", 1, true);
        let port = tap.port();
        let socket = UdpSocket::bind("10.9.8.1:7001").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let partial = Offload { needs_csum: true, csum_start: 34, csum_offset: 6, ..Offload::NONE };
        let wrong = udp(b"wrong", |_, full| !full ^ 1);
        let full = udp(b"full", |_, full| !full);
        let unfinished = udp(b"partial", |pseudo, _| pseudo);
        push(&*port, &[(&wrong, Offload::NONE), (&full, Offload::NONE), (&unfinished, partial)]);
        let mut buf = [0; 100];
        for expected in [&b"full"[..], b"partial"] {
            let n = socket.recv(&mut buf).unwrap();
            assert_eq!(&buf[..n], expected);
        }
    });
}

#[test]
fn the_host_leaves_udp_checksums_to_us_only_if_asked() {
    for offload in [true, false] {
        namespace(move || {
            let tap = host("10.9.8.1", 1, offload);
            ip("neighbor add 10.9.8.2 lladdr 52:54:00:00:00:02 dev vmlan0");
            let socket = UdpSocket::bind("10.9.8.1:7001").unwrap();
            socket.send_to(b"hello", "10.9.8.2:7000").unwrap();
            let ours = |f: &[u8]| f.len() == 47 && f[12..14] == [8, 0];
            let port = tap.port();
            let (mut batch, mut keep) = (Batch::new(), Keep::default());
            wait("the datagram", || {
                port.pull(&mut batch, 256, &mut keep);
                keep.frames.iter().any(|(f, _)| ours(f))
            });
            let (f, o) = keep.frames.iter().find(|(f, _)| ours(f)).unwrap();
            assert_eq!(o.needs_csum, offload);
            let pseudo = [&f[26..34], &[0, 17, 0, 13]].concat();
            if offload {
                assert_eq!((o.csum_start, o.csum_offset), (34, 6));
                assert_eq!(f[40..42], sum(&pseudo).to_be_bytes());
            } else {
                assert_eq!(sum(&[&pseudo[..], &f[34..]].concat()), 0xffff);
            }
        });
    }
}
