//! Payload that must arrive, with offloads on and off: two hosts' kernels, each in its namespace,
//! with their devices joined by our two ports.
use std::any::Any;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use vmlan_frame::Gso;

use super::*;

/// The port on a host's device, and what keeps it open; none if this may not be had.
pub(crate) type Host = Option<(Arc<dyn Port>, Box<dyn Any + Send>)>;

type Opened = (usize, (Arc<dyn Port>, Box<dyn Any + Send>));

/// Hands every frame to the other port, and notes what work it carried.
struct Wire<'a> {
    to: &'a dyn Port,
    gso: usize,
    csum: usize,
}

impl Sink for Wire<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let mut list: Vec<u16> = (0..u16::try_from(batch.len()).unwrap()).collect();
        for i in 0..batch.len() {
            let o = batch.frame(i).unwrap().offload;
            self.gso += usize::from(o.gso != Gso::None);
            self.csum += usize::from(o.needs_csum);
        }
        assert_eq!(self.to.push(batch, &mut list), list.len());
    }
}

const BYTES: usize = 4 * 1024 * 1024;

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| u8::try_from((i * 31 + i / 977) % 256).unwrap()).collect()
}

/// The host that asks: sends everything, and gets it back.
fn client(ports: &Sender<Opened>, go: &Receiver<()>, host: impl FnOnce(&str) -> Host) {
    let Some(host) = own_namespace().then(|| host("10.9.8.1")).flatten() else { return };
    ports.send((0, host)).unwrap();
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
fn server(ports: &Sender<Opened>, host: impl FnOnce(&str) -> Host) {
    let Some(host) = own_namespace().then(|| host("10.9.8.2")).flatten() else { return };
    let listener = TcpListener::bind("10.9.8.2:7000").unwrap();
    ports.send((1, host)).unwrap();
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

/// Joins two hosts, which `a` and `b` give an address to and open a port on; returns how many
/// frames of each were to be segmented and to be summed.
pub(crate) fn transfer(
    a: impl FnOnce(&str) -> Host + Send,
    b: impl FnOnce(&str) -> Host + Send,
) -> Option<[(usize, usize); 2]> {
    let (ports, opened) = channel();
    let (go, wait_for_go) = channel();
    thread::scope(|s| {
        let from_server = ports.clone();
        let asks = s.spawn(move || client(&ports, &wait_for_go, a));
        let answers = s.spawn(move || server(&from_server, b));
        let mut hosts: Vec<Opened> = opened.iter().take(2).collect();
        hosts.sort_by_key(|(i, _)| *i);
        let [(_, (a, _)), (_, (b, _))] = &hosts[..] else { return None };
        go.send(()).unwrap();
        let mut from_a = Wire { to: &**b, gso: 0, csum: 0 };
        let mut from_b = Wire { to: &**a, gso: 0, csum: 0 };
        let mut batch = Batch::new();
        while !asks.is_finished() || !answers.is_finished() {
            let n =
                a.pull(0, &mut batch, 256, &mut from_a) + b.pull(0, &mut batch, 256, &mut from_b);
            if n == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
        asks.join().unwrap();
        answers.join().unwrap();
        Some([(from_a.gso, from_a.csum), (from_b.gso, from_b.csum)])
    })
}

/// The Internet checksum (RFC 1071) of `bytes`, not inverted.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | c.get(1).map_or(0, |b| u64::from(*b)));
    let mut n: u64 = words.sum();
    while n > 0xffff {
        n = (n & 0xffff) + (n >> 16);
    }
    u16::try_from(n).unwrap()
}
