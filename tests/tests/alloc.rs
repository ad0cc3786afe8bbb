//! No allocation for a frame: the global allocator counts, for the whole process, and after the
//! first round of each kind of traffic it must not be called again: not by the workers, not by the
//! ports, and not by the drivers.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_frame::Mac;
use vmlan_switch::policy::{Bucket, Domain, Limiter, Limits, Policy, Rate};
use vmlan_switch::{Entry, Forwarder, Options, PortSet, Source, Switch, Table, Watch};
use vmlan_tests::counting_allocator::{Counting, assert_no_allocation};
use vmlan_tests::gso::{self, KINDS};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, frame, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Frame = (NetHeader, Vec<u8>);

/// `a` sends all of `frames`, `rounds` times, and `b` takes as many bytes as `expected` for each
/// round.
fn rounds(a: &mut VirtioGuest, b: &mut VirtioGuest, frames: &[Frame], rounds: u64, expected: u64) {
    for round in 0..rounds {
        let (mut next, mut got, mut progress) = (0, 0, Progress::default());
        while got < expected {
            let begin = next;
            while frames.get(next).is_some_and(|(header, bytes)| a.send(0, *header, bytes)) {
                next += 1;
            }
            a.flush();
            a.receive(|_, _| {});
            let now = b.receive(|_, _| got += 1);
            progress.note(now + (next - begin) as u64, || format!("{got} of {expected}, {round}"));
        }
        assert_eq!(got, expected, "frames of round {round}");
    }
}

fn plain(len: usize, count: u64) -> Vec<Frame> {
    (0..count).map(|n| (NetHeader::default(), frame(mac(2, 0), mac(1, 0), n, len))).collect()
}

/// One test for all, since the count is for the whole process.
#[test]
fn no_frame_costs_an_allocation() {
    let mut lan = Lan::new(2, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), lan.add("b", 1));
    for keys in [
        "",
        ",event_idx=off,indirect=on,segments=4,in_order=off,mrg=off",
        ",packed=on",
        ",packed=on,event_idx=off,segments=4,mrg=off",
    ] {
        let mut a = VirtioGuest::connect(&at_a, 1, keys);
        let mut b = VirtioGuest::connect(&at_b, 2, keys);
        introduce(&mut b, &mut a);
        for len in [60, 300, 1514] {
            let frames = plain(len, 700);
            assert_no_allocation("frames move", |n| rounds(&mut a, &mut b, &frames, n, 700));
        }
    }
    segmentation(&mut lan);
    floods(&mut lan);
    watched(&mut lan);
    stream(&mut lan);
    joint();
}

/// Guests that all send to all have their breaths together, without threads; what the first gets is
/// limited, so it is handed to it by source.
fn joint() {
    const GUESTS: u8 = 5;
    let dir = tempfile::tempdir().unwrap();
    let path = |n: u8| dir.path().join(format!("{n}"));
    let doors: Vec<_> = (0..GUESTS)
        .map(|n| {
            let config = Config { path: path(n), ..Config::default() };
            attach(config, Arc::new(|| ())).unwrap()
        })
        .collect();
    let limited = || {
        let rate = Rate { per_second: 1_000_000_000, burst: FULL_WAIT };
        let limiter = Limiter { frames: Some(Bucket::new(rate, 0)), ..Limiter::default() };
        let to = Limits { own: Some(Arc::new(limiter)), shared: None };
        Policy { to, ..Policy::default() }
    };
    let entry = |(n, door): (usize, &VhostUser)| {
        let policy = if n == 0 { limited() } else { Policy::default() };
        let (name, port) = ("port".into(), door.port());
        Some(Entry { name, port, mirror: None, policy: Arc::new(policy) })
    };
    let table = Table::new(doors.iter().enumerate().map(entry).collect());
    let switch = Switch::new(Options { full_wait: FULL_WAIT, ..Options::default() });
    let mut forwarder = Forwarder::new(Arc::clone(&switch));
    forwarder.grow(&table);
    let mut guests: Vec<_> =
        (0..GUESTS).map(|n| VirtioGuest::connect(&path(n), n + 1, "")).collect();
    assert!(settles(|| doors.iter().all(|door| door.port().is_up())), "all are up");
    let ports: Vec<_> = table.members().to_vec();
    for (port, n) in ports.iter().zip(0..) {
        switch.fdb().add_static(Mac::new(mac(n + 1, 0)), Domain::OPEN, *port).unwrap();
    }
    let frames: Vec<Vec<_>> = (0..GUESTS)
        .map(|from| {
            let others = (0..GUESTS).filter(|to| *to != from);
            let two = others.flat_map(|to| [300, 60].map(|len| (to, len)));
            two.map(|(to, len)| frame(mac(to + 1, 0), mac(from + 1, 0), 0, len)).collect()
        })
        .collect();
    let mut sources: Vec<_> = ports.iter().map(|port| Source::new(*port)).collect();
    let mut now = 0;
    assert_no_allocation("breaths are joint", |n| {
        for _ in 0..n {
            for (guest, frames) in guests.iter_mut().zip(&frames) {
                assert!(frames.iter().all(|f| guest.send(0, NetHeader::default(), f)));
                guest.flush();
            }
            now += 1_000_000;
            sources.iter_mut().for_each(|source| source.breath = None);
            forwarder.joint_breath(&table, &mut sources, now);
            for (source, guest) in sources.iter().zip(&mut guests) {
                let count = 2 * (u64::from(GUESTS) - 1);
                assert_eq!(source.breath.unwrap().frames as u64, count);
                assert_eq!(guest.receive(|_, _| ()), count);
            }
        }
    });
    drop(guests);
}

fn introduce(b: &mut VirtioGuest, a: &mut VirtioGuest) {
    let hello = [(NetHeader::default(), frame([0xff; 6], mac(2, 0), 0, 60))];
    rounds(b, a, &hello, 1, 1);
}

fn segmentation(lan: &mut Lan) {
    let (at_a, at_b) = (lan.add("c", 1), lan.add("d", 1));
    for (takes, each) in [("", 21), (",guest_tso=on,guest_uso=on", 1)] {
        let mut a = VirtioGuest::connect(&at_a, 1, ",size=64,buffer=65600,tso=on,uso=on");
        let mut b = VirtioGuest::connect(&at_b, 2, takes);
        introduce(&mut b, &mut a);
        let load = vec![7; 30_000];
        let frames: Vec<_> = (0..20)
            .map(|n| gso::unfinished(KINDS[n % 4], mac(2, 0), mac(1, 0), &load, 1440))
            .collect();
        assert_no_allocation("segments are made", |n| {
            rounds(&mut a, &mut b, &frames, n, 20 * each)
        });
    }
    lan.remove("c");
    lan.remove("d");
}

fn floods(lan: &mut Lan) {
    let (at_a, at_b) = (lan.add("c", 1), lan.add("d", 1));
    let mut a = VirtioGuest::connect(&at_a, 1, "");
    let mut b = VirtioGuest::connect(&at_b, 2, "");
    let frames: Vec<_> =
        (0..200).map(|n| (NetHeader::default(), frame([0xff; 6], mac(1, 0), n, 600))).collect();
    assert_no_allocation("frames are flooded", |n| rounds(&mut a, &mut b, &frames, n, 200));
    lan.remove("c");
    lan.remove("d");
}

/// A monitor, which is full most of the time, and samples, which are sent.
fn watched(lan: &mut Lan) {
    let (at_a, at_b, at_m) = (lan.add("c", 1), lan.add("d", 1), lan.add("m", 1));
    let mut a = VirtioGuest::connect(&at_a, 1, "");
    let mut b = VirtioGuest::connect(&at_b, 2, "");
    let _monitor = VirtioGuest::connect(&at_m, 3, "");
    introduce(&mut b, &mut a);
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sflow = vmlan_uplink::sflow::start(vmlan_uplink::sflow::Config {
        collector: collector.local_addr().unwrap(),
        agent: None,
        sampling: 7,
        polling: None,
        header: 128,
    })
    .unwrap();
    let (number, port) = lan.port("c");
    let sampling = Some(sflow.add(number.index(), "c", port, 1));
    lan.set_policy("c", Policy { sampling, ..Policy::default() });
    let watch = Some(Arc::new(Watch { ports: PortSet::ALL, domain: None }));
    lan.set_policy("m", Policy { monitor: true, watch, ..Policy::default() });
    let frames = plain(300, 700);
    assert_no_allocation("frames are watched", |n| rounds(&mut a, &mut b, &frames, n, 700));
    assert!(sflow.counts().samples > 1000, "{:?}", sflow.counts());
    assert!(lan.drops("m") > 1000, "the monitor was full");
    ["c", "d", "m"].into_iter().for_each(|name| lan.remove(name));
}

/// A guest and a peer with QEMU's stream framing, both ways.
fn stream(lan: &mut Lan) {
    let at_a = lan.add("c", 1);
    let mut a = VirtioGuest::connect(&at_a, 1, "");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream.sock");
    let config = vmlan_uplink::stream::Config::new(path.clone());
    let mut door = vmlan_uplink::stream::open(config, lan.changed()).unwrap();
    let id = lan.join("s", door.port());
    let mut peer = UnixStream::connect(&path).unwrap();
    let mut progress = Progress::default();
    while !door.port().is_up() {
        progress.note(0, || "the stream port does not come up".into());
    }
    let mut hello = 60_u32.to_be_bytes().to_vec();
    hello.extend(frame(mac(1, 0), mac(2, 0), 0, 60));
    let out = plain(1000, 50);
    let mut buffer = vec![0; 50 * 1004];
    assert_no_allocation("a stream port works", |n| {
        for _ in 0..n {
            (0..50).for_each(|_| peer.write_all(&hello).unwrap());
            let (mut got, mut progress) = (0, Progress::default());
            while got < 50 {
                let now = a.receive(|_, _| got += 1);
                progress.note(now, || format!("{got} of 50 from the stream"));
            }
            for (header, bytes) in &out {
                assert!(a.send(0, *header, bytes));
            }
            a.flush();
            peer.read_exact(&mut buffer).unwrap();
            assert_eq!(buffer[4..64], out[0].1[..60], "frames after their length");
        }
    });
    lan.part(id);
    door.close();
}
