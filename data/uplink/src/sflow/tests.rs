//! What reaches a collector, read by a second implementation of XDR, and what happens without one.
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use vmlan_frame::{Counters, Fate, Reason};

use super::*;
use crate::pcap;
use crate::tests::{ip, namespace, veth, wait};

/// Reads big-endian words.
struct Xdr<'b>(&'b [u8]);

impl<'b> Xdr<'b> {
    fn word(&mut self) -> u32 {
        let (word, rest) = self.0.split_first_chunk().expect("four more bytes");
        self.0 = rest;
        u32::from_be_bytes(*word)
    }

    fn words<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| self.word())
    }

    fn bytes(&mut self, n: usize) -> &'b [u8] {
        let (bytes, rest) = self.0.split_at(n);
        self.0 = rest;
        bytes
    }

    fn opaque(&mut self) -> &'b [u8] {
        let n = self.word() as usize;
        let bytes = self.bytes(n);
        assert!(self.bytes(n.next_multiple_of(4) - n).iter().all(|b| *b == 0), "padding");
        bytes
    }

    /// Type and content.
    fn sized(&mut self) -> (u32, Xdr<'b>) {
        let format = self.word();
        let n = self.word() as usize;
        (format, Xdr(self.bytes(n)))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Flow {
    sequence: u32,
    source: u32,
    rate: u32,
    pool: u32,
    drops: u32,
    output: u32,
    frame_len: u32,
    head: Vec<u8>,
    vlan: (u32, u32),
}

#[derive(Debug, PartialEq, Eq)]
struct Count {
    sequence: u32,
    source: u32,
    up: bool,
    name: String,
    /// Octets, frames, discards.
    input: (u64, u32, u32),
    output: (u64, u32, u32),
}

#[derive(Debug)]
struct Read {
    agent: IpAddr,
    sequence: u32,
    flows: Vec<Flow>,
    counts: Vec<Count>,
}

fn read(bytes: &[u8]) -> Read {
    assert!(bytes.len() <= 1400, "{} bytes", bytes.len());
    let mut x = Xdr(bytes);
    assert_eq!(x.word(), 5);
    let agent = match x.word() {
        1 => IpAddr::from(<[u8; 4]>::try_from(x.bytes(4)).unwrap()),
        2 => IpAddr::from(<[u8; 16]>::try_from(x.bytes(16)).unwrap()),
        other => panic!("address type {other}"),
    };
    let [sub_agent, sequence, _uptime, samples] = x.words();
    assert_eq!(sub_agent, 0);
    let mut read = Read { agent, sequence, flows: Vec::new(), counts: Vec::new() };
    for _ in 0..samples {
        match x.sized() {
            (1, body) => read.flows.push(flow(body)),
            (2, body) => read.counts.push(count(body)),
            (other, _) => panic!("sample type {other}"),
        }
    }
    assert!(x.0.is_empty(), "nothing behind the last sample");
    read
}

fn flow(mut x: Xdr<'_>) -> Flow {
    let [sequence, source, rate, pool, drops, input, output, records] = x.words();
    assert_eq!((input, records), (source, 2));
    let (format, mut raw) = x.sized();
    let [protocol, frame_len, stripped] = raw.words();
    assert_eq!((format, protocol, stripped), (1, 1, 4));
    let head = raw.opaque().to_vec();
    let (format, mut switch) = x.sized();
    let [vlan, priority, vlan_out, priority_out] = switch.words();
    assert_eq!((format, vlan_out, priority_out), (1001, vlan, priority));
    assert!(x.0.is_empty() && raw.0.is_empty() && switch.0.is_empty());
    let vlan = (vlan, priority);
    Flow { sequence, source, rate, pool, drops, output, frame_len, head, vlan }
}

fn count(mut x: Xdr<'_>) -> Count {
    let [sequence, source, records] = x.words();
    let (format, mut c) = x.sized();
    assert_eq!((records, format, c.0.len()), (2, 1, 88), "generic counters are 88 bytes");
    let [index, kind, _, _, direction, status] = c.words();
    assert_eq!((index, kind, direction), (source, 6, 1));
    let octets = |c: &mut Xdr<'_>| u64::from(c.word()) << 32 | u64::from(c.word());
    let input = octets(&mut c);
    let [in_frames, _, _, in_discards, _, _] = c.words();
    let output = octets(&mut c);
    let [out_frames, _, _, out_discards, _, _] = c.words();
    let (format, mut name) = x.sized();
    assert_eq!(format, 1005);
    let name = String::from_utf8(name.opaque().to_vec()).unwrap();
    let (input, output) = ((input, in_frames, in_discards), (output, out_frames, out_discards));
    Count { sequence, source, up: status == 3, name, input, output }
}

fn collector() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn config(collector: SocketAddr) -> Config {
    Config { collector, agent: None, sampling: 1, polling: None, header: HEAD }
}

fn receive(socket: &UdpSocket) -> Read {
    let mut bytes = [0; 2000];
    let n = socket.recv(&mut bytes).unwrap();
    read(&bytes[..n])
}

/// A port that only has counters.
fn port() -> (tempfile::TempDir, pcap::Pcap) {
    let dir = tempfile::tempdir().unwrap();
    let port = pcap::open(pcap::Config::new(dir.path().join("x"))).unwrap();
    (dir, port)
}

fn sample(sampling: &Sampling, head: &[u8], number: u64, fate: Fate) {
    let sample = Sample { head, len: 1514, number, vid: 0, fate };
    sampling.sampler().sample(&sample);
}

#[test]
fn a_sample_says_all_that_is_known_of_a_frame() {
    let (socket, address) = collector();
    let agent = IpAddr::from([10, 0, 0, 1]);
    let sflow =
        start(Config { agent: Some(agent), sampling: 400, header: 21, ..config(address) }).unwrap();
    let (_dir, port) = port();
    let sampling = sflow.add(4, "vm1", port.port(), 1);
    let mut head: Vec<u8> = (0..128).collect();
    let over = 1 << 32 | 7;
    sample(&sampling, &head, over, Fate::Port(2));
    head[12..16].copy_from_slice(&[0x81, 0, 0x60, 0x2a]);
    sample(&sampling, &head, 8, Fate::Many);
    let own = Sample { head: &head, len: 60, number: 9, vid: 10, fate: Fate::Many };
    sampling.sampler().sample(&own);
    for reason in [Reason::ReceiverFull, Reason::SpoofedIp, Reason::Storm, Reason::NoReceiver] {
        sample(&sampling, &head[..16], 10, Fate::Dropped(reason));
    }
    let mut got = receive(&socket);
    assert_eq!((got.agent, got.sequence), (agent, 1));
    while got.flows.len() < 7 {
        got.flows.append(&mut receive(&socket).flows);
    }
    let first = &got.flows[0];
    let numbers = [first.sequence, first.source, first.rate, first.pool, first.drops, first.output];
    assert_eq!(numbers, [1, 5, 400, 7, 0, 3]);
    assert_eq!((first.frame_len, first.vlan), (1518, (0, 0)), "with the check sequence");
    assert_eq!(first.head, (0..21).collect::<Vec<u8>>());
    assert_eq!((got.flows[1].output, got.flows[1].vlan), (0x8000_0000, (42, 3)));
    assert_eq!((got.flows[2].vlan, got.flows[2].frame_len), ((10, 3), 64));
    let fates: Vec<_> = got.flows[3..].iter().map(|f| f.output & 0xfff).collect();
    assert_eq!(fates, [259, 258, 261, 256]);
    assert!(got.flows[3..].iter().all(|f| f.output >> 30 == 1 && f.head.len() == 16));
}

#[test]
fn many_samples_take_many_datagrams_and_none_is_lost_silently() {
    let (socket, address) = collector();
    let mut sflow = start(config(address)).unwrap();
    let (_dir, port) = port();
    let one = sflow.add(0, "a", port.port(), 1);
    let other = sflow.add(1, "b", port.port(), 2);
    // A lock that stays taken is not waited for.
    let waiting = lock(&sflow.shared.queue.waiting);
    sample(&one, &[0; 64], 1, Fate::Many);
    drop(waiting);
    for number in 2..=300 {
        sample(if number % 3 == 0 { &other } else { &one }, &[0; 127], number, Fate::Many);
    }
    sflow.close();
    sample(&one, &[0; 64], 9, Fate::Many);
    let (mut last, mut seen) = (BTreeMap::new(), 0);
    let mut datagrams = 0;
    while seen < 299 {
        let got = receive(&socket);
        datagrams += 1;
        assert_eq!(got.sequence, datagrams);
        for flow in got.flows {
            seen += 1;
            let before = last.insert(flow.source, flow.sequence).unwrap_or(0);
            assert_eq!(flow.sequence, before + 1);
            assert_eq!(flow.drops, u32::from(flow.source == 1));
        }
    }
    let counts = Counts { samples: 299, lost: 2, datagrams: datagrams.into(), failed: 0 };
    assert_eq!(sflow.counts(), counts);
}

#[test]
fn a_full_queue_loses_the_newest() {
    let queue = Arc::new(Queue {
        waiting: Mutex::new(Waiting { records: Vec::with_capacity(QUEUE), stop: false }),
        ready: Condvar::new(),
        header: HEAD,
        sampled: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    });
    let (samples, lost) = Default::default();
    let source = Source { queue: queue.clone(), interface: 1, rate: 1, samples, lost };
    let capacity = lock(&queue.waiting).records.capacity();
    for number in 1..=QUEUE as u64 + 5 {
        source.sample(&Sample { head: &[0; 60], len: 60, number, vid: 0, fate: Fate::Many });
    }
    let waiting = lock(&queue.waiting);
    assert_eq!((waiting.records.len(), waiting.records.capacity()), (QUEUE, capacity));
    assert_eq!(waiting.records.last().unwrap().pool, u32::try_from(QUEUE).unwrap());
    assert_eq!(queue.lost.load(Ordering::Relaxed), 5);
}

struct Idle(Counters);

impl Port for Idle {
    fn pull(
        &self,
        _: usize,
        _: &mut vmlan_frame::Batch<'static>,
        _: usize,
        _: &mut dyn vmlan_frame::Sink,
    ) -> usize {
        0
    }
    fn push(&self, _: &vmlan_frame::Batch<'_>, list: &mut [u16]) -> usize {
        list.len()
    }
    fn offloads(&self) -> vmlan_frame::Offloads {
        vmlan_frame::Offloads::NONE
    }
    fn is_up(&self) -> bool {
        true
    }
    fn arm(&self, _: usize) -> bool {
        false
    }
    fn disarm(&self, _: usize) {}
    fn counters(&self) -> &Counters {
        &self.0
    }
}

#[test]
fn counters_come_by_themselves() {
    let (socket, address) = collector();
    let polling = Some(Duration::from_millis(20));
    let agent = Some(Ipv6Addr::LOCALHOST.into());
    let sflow = start(Config { agent, polling, ..config(address) }).unwrap();
    let port = Arc::new(Idle(Counters::default()));
    port.0.input.count(3, 1 << 33);
    port.0.output.count(4, 500);
    port.0.input.drop(Reason::Runt, 1);
    port.0.input.drop(Reason::Vlan, 1);
    port.0.output.drop(Reason::ReceiverFull, 7);
    let _ = sflow.add(6, "web-1", port.clone(), 1);
    let got = receive(&socket);
    assert_eq!(got.agent, IpAddr::from(Ipv6Addr::LOCALHOST));
    let want = Count {
        sequence: 1,
        source: 7,
        up: true,
        name: "web-1".into(),
        input: (1 << 33, 3, 2),
        output: (500, 4, 7),
    };
    assert_eq!(got.counts, [want]);
    assert_eq!(receive(&socket).counts[0].sequence, 2);
    let _ = sflow.add(6, "web-2", port.clone(), 1);
    while receive(&socket).counts[0].name != "web-2" {}
    sflow.keep(&[5, 7]);
    assert_eq!(Arc::strong_count(&port), 1, "and the port is let go");
}

#[test]
fn nobody_there_is_counted_and_survived() {
    let (socket, address) = collector();
    drop(socket);
    let sflow = start(config(address)).unwrap();
    let (_dir, port) = port();
    let sampling = sflow.add(0, "a", port.port(), 1);
    let failed = || sflow.shared.failed.load(Ordering::Relaxed);
    let end = Instant::now() + Duration::from_secs(10);
    while failed() == 0 && Instant::now() < end {
        sample(&sampling, &[0; 64], 1, Fate::Many);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(failed() > 0);
    assert_eq!(sflow.trouble().as_deref(), Some("connection refused"));
    // It comes, and gets what is sampled from now on.
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    sample(&sampling, &[0; 64], 2, Fate::Many);
    while receive(&socket).flows.iter().all(|f| f.pool != 2) {}
}

#[test]
fn a_network_that_is_not_there_is_counted_and_survived() {
    // 255.255.255.255 wants SO_BROADCAST, which the socket has not: it cannot be reached.
    let sflow = start(config(SocketAddr::from(([255; 4], 6343)))).unwrap();
    let (_dir, port) = port();
    let sampling = sflow.add(0, "a", port.port(), 1);
    sample(&sampling, &[0; 64], 1, Fate::Many);
    let end = Instant::now() + Duration::from_secs(10);
    while sflow.shared.failed.load(Ordering::Relaxed) == 0 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!((sflow.counts().failed, sflow.counts().datagrams), (1, 0));
    assert!(sflow.trouble().is_some());
}

#[test]
fn samples_go_on_when_the_hosts_address_changes() {
    namespace(|| {
        veth::pair();
        ip("address add 10.9.7.1/32 dev near");
        ip("route add 10.9.8.9 dev near");
        ip("neighbor add 10.9.8.9 lladdr 02:00:00:00:00:09 dev near");
        let far = veth::far();
        let sflow = start(config(SocketAddr::from(([10, 9, 8, 9], 6343)))).unwrap();
        let (_dir, port) = port();
        let sampling = sflow.add(0, "a", port.port(), 1);
        let mut frame = [0; 2000];
        for address in [[10, 9, 7, 1], [10, 9, 6, 1]] {
            wait("a datagram from there", || {
                sample(&sampling, &[0; 64], 1, Fate::Many);
                let n = rustix::io::read(&far, &mut frame).unwrap_or(0);
                // Behind headers of Ethernet, IPv4 and UDP.
                n > 42
                    && frame[26..30] == address
                    && read(&frame[42..n]).agent == IpAddr::from(address)
            });
            if address[2] == 7 {
                ip("address add 10.9.6.1/32 dev near");
                ip("address delete 10.9.7.1/32 dev near");
            }
        }
        assert!(sflow.counts().failed > 0, "some found the old address gone");
    });
}

#[test]
fn without_samples_the_thread_sleeps_for_good() {
    let (_socket, address) = collector();
    let mut sflow = start(config(address)).unwrap();
    // It is woken to end: else this waits for good as well.
    sflow.close();
}
