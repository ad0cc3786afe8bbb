//! Those who watch a running switch: a port that is shown another's frames, and an sFlow collector,
//! whose datagrams tshark reads.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vmlan_tests::numbered::{STALL, settles};
use vmlan_tests::{HarnessError, Result, Switch, output_of};

/// A peer of a `stream:` port: each frame after its length.
struct TestGuest(UnixStream);

impl TestGuest {
    fn connect(path: &Path) -> TestGuest {
        let stream = UnixStream::connect(path).expect("the port listens");
        stream.set_read_timeout(Some(STALL)).expect("a time-out");
        TestGuest(stream)
    }

    /// Sends frames of 100 bytes that carry their numbers.
    fn send(&mut self, [to, from]: [u8; 2], numbers: impl Iterator<Item = u32>) {
        let mut bytes = Vec::new();
        for number in numbers {
            bytes.extend(100u32.to_be_bytes());
            bytes.extend([2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5]);
            bytes.extend(number.to_be_bytes());
            bytes.extend([from; 82]);
        }
        self.0.write_all(&bytes).expect("the switch reads");
    }

    /// Numbers and senders of the next `n` frames.
    fn receive(&mut self, n: usize) -> Vec<(u32, u8)> {
        let frame = |_| {
            let mut bytes = [0; 104];
            self.0.read_exact(&mut bytes).expect("a frame");
            assert_eq!(bytes[..4], 100u32.to_be_bytes());
            (u32::from_be_bytes(bytes[18..22].try_into().expect("four bytes")), bytes[15])
        };
        (0..n).map(frame).collect()
    }

    fn is_silent(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
        let silent = self.0.read(&mut [0; 1]).is_err();
        self.0.set_read_timeout(Some(STALL)).expect("a time-out");
        silent
    }
}

fn switch(dir: &Path, names: &[&str]) -> Result<(Switch, Vec<TestGuest>)> {
    let socket = |name: &str| dir.join(format!("{name}.sock"));
    let ports: Vec<_> =
        names.iter().map(|n| format!("{n}=stream:{}", socket(n).display())).collect();
    let switch = Switch::start(dir, None, &ports)?;
    let peers = names.iter().map(|n| TestGuest::connect(&socket(n))).collect();
    let end = Instant::now() + STALL;
    let is_up = |name: &&str| switch.port(name).is_ok_and(|p| p["up"] == true);
    while !names.iter().all(is_up) {
        assert!(Instant::now() < end, "the ports are up");
    }
    Ok((switch, peers))
}

#[test]
fn a_monitor_is_shown_what_passes_while_the_switch_runs() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (switch, mut peers) = switch(dir.path(), &["a", "b", "c", "ids"])?;
    let [a, b, c, ids] = &mut peers[..] else { unreachable!() };
    // Everybody is known; the monitor-to-be as well.
    for (i, peer) in [&mut *a, b, c, ids].into_iter().enumerate() {
        peer.send([99, u8::try_from(i).expect("four") + 1], 0..1);
    }
    [&mut *a, b, c, ids].into_iter().for_each(|p| drop(p.receive(3)));
    switch.ask(&["port", "set", "ids", "watch=a"])?;
    for round in 0..20 {
        a.send([2, 1], round * 32..round * 32 + 32);
        let sent: Vec<_> = (round * 32..round * 32 + 32).map(|n| (n, 1)).collect();
        assert_eq!((b.receive(32), ids.receive(32)), (sent.clone(), sent));
    }
    b.send([1, 2], 7..9);
    b.send([3, 2], 9..10);
    // Nobody has the monitor's own address any more; this goes to all.
    b.send([4, 2], 10..11);
    assert_eq!(a.receive(3), [(7, 2), (8, 2), (10, 2)]);
    assert_eq!(c.receive(2), [(9, 2), (10, 2)]);
    assert_eq!(ids.receive(3), [(7, 2), (8, 2), (10, 2)], "not what b sends to c");
    // What a monitor sends goes nowhere.
    ids.send([1, 4], 0..5);
    ids.send([255, 4], 0..5);
    let end = Instant::now() + STALL;
    while switch.port("ids")?["drops"]["isolated"] != 10 && Instant::now() < end {}
    assert_eq!(switch.port("ids")?["drops"]["isolated"], 10);
    assert!(a.is_silent() && ids.is_silent());
    let refused = switch.ask(&["port", "set", "c", "watch=ids"]);
    assert!(
        matches!(refused, Err(HarnessError::Failed { .. })),
        "a monitor has no frames of its own"
    );
    // And back: it is a port like the others.
    switch.ask(&["port", "set", "ids", "watch="])?;
    ids.send([1, 4], 77..78);
    assert_eq!(a.receive(1), [(77, 4)]);
    Ok(())
}

/// The datagrams as a capture that tshark reads: raw IPv4, without a link.
fn capture(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let word = |n: usize| u32::try_from(n).expect("short").to_ne_bytes();
    let half = |n: usize| u16::try_from(n).expect("short").to_be_bytes();
    let mut out = 0xa1b2_c3d4_u32.to_ne_bytes().to_vec();
    out.extend([2u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
    out.extend([word(0), word(0), word(65_535), word(101)].concat());
    for data in datagrams {
        let len = data.len() + 28;
        out.extend([word(0), word(0), word(len), word(len)].concat());
        out.extend([0x45, 0]);
        out.extend(half(len));
        out.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        out.extend([half(6343), half(6343), half(data.len() + 8), half(0)].concat());
        out.extend(data);
    }
    out
}

/// What tshark finds in them: all values of each field, in order.
fn dissect(dir: &Path, datagrams: &[Vec<u8>]) -> Result<BTreeMap<&'static str, Vec<String>>> {
    const FIELDS: [&str; 13] = [
        "sflow_245.version",
        "sflow_245.agent",
        "sflow_245.sequence_number",
        "sflow.flow_sample.sampling_rate",
        "sflow.flow_sample.sample_pool",
        "sflow.flow_sample.source_id_index",
        "sflow.flow_sample.dropped_packets",
        "sflow_245.header.frame_length",
        "sflow_245.header.payload_stripped",
        "sflow_245.ifindex",
        "sflow_245.ifinpkt",
        "sflow_245.ifoutpkt",
        "_ws.malformed",
    ];
    let file = dir.join("sflow.pcap");
    std::fs::write(&file, capture(datagrams)).expect("a file");
    let path = file.to_string_lossy();
    let mut args = vec!["-n", "-r", &*path, "-d", "udp.port==6343,sflow", "-T", "fields"];
    args.extend(["-E", "separator=;"]);
    FIELDS.iter().for_each(|f| args.extend(["-e", *f]));
    let mut found: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for line in output_of("tshark", &args)?.lines().filter(|l| l.contains(';')) {
        for (field, values) in FIELDS.iter().zip(line.split(';')) {
            let values = values.split(',').filter(|v| !v.is_empty()).map(str::to_owned);
            found.entry(*field).or_default().extend(values);
        }
    }
    Ok(found)
}

/// Voluntary sleeps of the switch's thread that exports.
fn sleeps(switch: &Switch) -> Option<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", switch.pid())).expect("a process");
    let read = |task: &Path, name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
    let mut tasks = tasks.flatten().map(|t| t.path());
    let task = tasks.find(|t| read(t, "comm").trim() == "sflow")?;
    let status = read(&task, "status");
    let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches"));
    Some(line.expect("a count").to_owned())
}

/// All datagrams up to the first that has counters. Taken as they come: a socket holds a few dozen.
fn until_counters(collector: &UdpSocket) -> Vec<Vec<u8>> {
    collector.set_read_timeout(Some(STALL)).expect("a time-out");
    let mut datagrams = Vec::new();
    loop {
        let mut bytes = vec![0; 2000];
        let n = collector.recv(&mut bytes).expect("a datagram");
        bytes.truncate(n);
        // The type of its first sample: 2 for counters.
        let counted = bytes[28..32] == [0, 0, 0, 2];
        datagrams.push(bytes);
        if counted {
            return datagrams;
        }
    }
}

#[test]
fn a_collector_gets_samples_and_counters_that_agree_with_the_switch() -> Result<()> {
    const FRAMES: u32 = 4000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (switch, mut peers) = switch(dir.path(), &["a", "b"])?;
    let [a, b] = &mut peers[..] else { unreachable!() };
    let collector = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = format!("collector={}", collector.local_addr().expect("bound"));
    switch.ask(&["sflow", "set", &address, "sampling=10", "polling=0", "agent=10.0.0.1"])?;
    // It gives itself its name, and falls asleep.
    let silent = settles(|| {
        let before = sleeps(&switch);
        std::thread::sleep(Duration::from_millis(250));
        before.is_some() && sleeps(&switch) == before
    });
    assert!(silent, "nothing to send: it does not even wake up");
    let datagrams = std::thread::spawn(move || until_counters(&collector));
    for round in 0..FRAMES / 40 {
        a.send([2, 1], round * 40..round * 40 + 40);
        b.receive(40);
    }
    // The counters come with the next period.
    switch.ask(&["sflow", "set", "polling=1"])?;
    let datagrams = datagrams.join().expect("datagrams");
    switch.ask(&["sflow", "off"])?;
    let found = dissect(dir.path(), &datagrams)?;
    let numbers = |field| -> Vec<u32> {
        found[field].iter().map(|n| n.parse().unwrap_or_else(|_| panic!("{field}: {n}"))).collect()
    };
    assert_eq!(found["_ws.malformed"], [""; 0]);
    assert!(found["sflow_245.version"].iter().all(|v| v == "5"));
    assert!(found["sflow_245.agent"].iter().all(|v| v == "10.0.0.1"));
    let samples = numbers("sflow.flow_sample.sample_pool");
    let n = u32::try_from(samples.len()).expect("few");
    assert!((320..=480).contains(&n), "{n} samples of {FRAMES} frames at one of 10");
    assert!(samples.is_sorted() && samples.iter().all(|pool| *pool <= FRAMES), "{samples:?}");
    assert!(samples.last().is_some_and(|pool| *pool > FRAMES - 20), "one of the last 19");
    assert!(numbers("sflow.flow_sample.sampling_rate").iter().all(|rate| *rate == 10));
    assert!(numbers("sflow.flow_sample.source_id_index").iter().all(|source| *source == 1));
    assert!(numbers("sflow.flow_sample.dropped_packets").iter().all(|drops| *drops == 0));
    assert!(numbers("sflow_245.header.frame_length").iter().all(|len| *len == 104));
    assert!(numbers("sflow_245.header.payload_stripped").iter().all(|n| *n == 4));
    assert_eq!(numbers("sflow_245.ifindex"), [1, 2]);
    assert_eq!(numbers("sflow_245.ifinpkt"), [FRAMES, 0]);
    assert_eq!(numbers("sflow_245.ifoutpkt"), [0, FRAMES]);
    assert!(switch.ask(&["sflow", "show"])?.contains("off"));
    Ok(())
}
