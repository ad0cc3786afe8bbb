//! Driver, e1000, switch, e1000 or virtio, driver: all in one process, over real sockets and shared
//! memory, and on a bus without a socket. Every frame is compared byte for byte with what was sent;
//! short ones arrive with zeros up to 60 bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vmlan_attach::vfio_user::Doorbell;
use vmlan_driver::e1000::registers::Register;
use vmlan_frame::NicCounters;
use vmlan_tests::chip_guest::E1000Guest;
use vmlan_tests::exchange::{TestGuest, exchange, one_way};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, STALL, Sizes, frame, mac, settles};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::Bus;

/// Every legal length.
const ALL: Sizes = Sizes { least: 14, most: 1514 };

/// How often a ring register was stored to, and how often written by a message.
fn doorbells<B: Bus>(guest: &E1000Guest<B>) -> (u64, u64) {
    let counts = guest.nic.registers().counts();
    let tails = counts.iter().filter(|c| ["TDT", "RDT"].contains(&c.register));
    tails.fold((0, 0), |sum, c| (sum.0 + c.mapped, sum.1 + c.writes))
}

/// A guest that switch-side padding reaches.
fn virtio(at: &std::path::Path, id: u8, keys: &str) -> VirtioGuest {
    let mut guest = VirtioGuest::connect(at, id, keys);
    guest.expect_padding();
    guest
}

/// How a VMM may treat the chip, as keys of the driver's address.
const WAYS: [&str; 8] = [
    "",
    ",writes=posted",
    ",irq=msi,size=64",
    ",irq=msi,writes=posted,batch,interrupts=idle,size=32,refill=0",
    ",unmask=message,writes=posted,segment=200,size=128",
    ",unmask=access,mmap_timeout=0,batch,flush=off",
    ",interrupts=idle,size=8,segment=1600,refill=1,secrc",
    ",batch,buffer=256,mtu=1501,segment=64,size=1024,promisc",
];

#[test]
fn every_length_between_two_e1000() {
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (at_a, at_b) = (lan.add_e1000_with("a", doorbell), lan.add_e1000_with("b", doorbell));
        for (n, of_a) in WAYS.iter().enumerate() {
            // Each meets another one, so that what one end does cannot hide behind the other's.
            let of_b = WAYS[(n * 3 + 1) % WAYS.len()];
            let mut a = E1000Guest::connect(&at_a, 1, of_a);
            let mut b = E1000Guest::connect(&at_b, 2, of_b);
            exchange(&mut a, &mut b, ALL.all(), ALL);
            let (stores, messages) = doorbells(&a);
            let mapped = doorbell == Doorbell::Mapped;
            assert_eq!((stores > 0, messages > 0), (mapped, !mapped), "{of_a}: {doorbell:?}");
        }
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

#[test]
fn every_length_between_an_e1000_and_virtio() {
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (at_a, at_b) = (lan.add_e1000_with("a", doorbell), lan.add("b", 1));
        for (of_a, of_b) in
            WAYS.iter().zip(["", ",mrg=off", ",event_idx=off", ",size=64"].repeat(2))
        {
            let mut a = E1000Guest::connect(&at_a, 1, of_a);
            let mut b = virtio(&at_b, 2, of_b);
            exchange(&mut a, &mut b, ALL.all(), ALL);
        }
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

#[test]
fn every_length_without_a_socket() {
    for mapped in [false, true] {
        for (n, of_a) in WAYS.iter().enumerate() {
            let mut lan = Lan::new(1, FULL_WAIT);
            let at_c = lan.add("c", 1);
            let mut a = E1000Guest::in_process(&mut lan, "a", 1, mapped, of_a);
            let mut b =
                E1000Guest::in_process(&mut lan, "b", 2, mapped, WAYS[(n * 3 + 1) % WAYS.len()]);
            exchange(&mut a, &mut b, ALL.all(), ALL);
            let mut c = virtio(&at_c, 3, ",size=64");
            exchange(&mut a, &mut c, ALL.all(), ALL);
            assert_eq!((lan.drops("a"), lan.drops("b"), lan.drops("c")), (0, 0, 0));
            assert_eq!(doorbells(&a).0 > 0, mapped);
        }
    }
}

#[test]
fn jumbo_frames_arrive_over_several_descriptors() {
    let sizes = Sizes { least: 9000, most: 9230 };
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) =
        (lan.add_e1000_with("a", Doorbell::Trapped), lan.add_e1000_with("b", Doorbell::Mapped));
    let at_v = lan.add("v", 1);
    for keys in ["buffer=2048,segment=1000", "buffer=256,segment=4096,size=1024", "buffer=16384"] {
        let keys = format!(",mtu=9216,batch,{keys}");
        let mut a = E1000Guest::connect(&at_a, 1, &keys);
        let mut b = E1000Guest::connect(&at_b, 2, ",mtu=9216,buffer=4096,segment=3000,size=512");
        exchange(&mut a, &mut b, 3 * sizes.all(), sizes);
        let mut v = virtio(&at_v, 3, ",size=64,mtu=9216,buffer=9300");
        exchange(&mut a, &mut v, 3 * sizes.all(), sizes);
    }
    assert_eq!((lan.drops("a"), lan.drops("b"), lan.drops("v")), (0, 0, 0));
}

#[test]
fn several_senders_fill_one_receiver() {
    for (workers, doorbell) in [(1, Doorbell::Trapped), (2, Doorbell::Mapped)] {
        let mut lan = Lan::new(workers, FULL_WAIT);
        let at_r = lan.add_e1000_with("r", doorbell);
        let at_v = lan.add("v", 1);
        let at: Vec<_> = (0..3).map(|n| lan.add_e1000_with(&format!("s{n}"), doorbell)).collect();
        let mut receiver = E1000Guest::connect(&at_r, 9, ",size=32,writes=posted");
        let keys = [",batch,size=64", ",irq=msi,writes=posted", ",interrupts=idle,batch"];
        let intel = |n: u8| E1000Guest::connect(&at[usize::from(n)], n + 1, keys[usize::from(n)]);
        let mut senders: Vec<Box<dyn TestGuest>> =
            (0..3).map(|n| Box::new(intel(n)) as _).collect();
        senders.push(Box::new(VirtioGuest::connect(&at_v, 4, "")));
        receiver.introduce();
        let (count, mut got, mut progress) = (2 * ALL.all(), 0, Progress::default());
        while got < 4 * count {
            let sent = senders.iter_mut().map(|s| s.send_next(9, count, ALL)).sum::<u64>();
            let now = receiver.receive_next(9, ALL);
            got += now;
            progress.note(sent + now, || format!("{got} of {}", 4 * count));
        }
        receiver.assert_sound();
        senders.iter().for_each(|s| s.assert_sound());
        assert_eq!(lan.drops("r"), 0);
    }
}

/// ITR in 256 ns, the others in 1.024 us; the host's floor in interrupts per second; how many
/// frames.
const MODERATIONS: [(&str, u32, u64); 8] = [
    (",itr=7000", 0, 3000),
    (",tidv=10000,tadv=20000", 0, 3000),
    (",rdtr=10000,radv=20000", 0, 3000),
    (",itr=500,tidv=2000,tadv=3000,rdtr=2000,radv=4000", 0, 3000),
    // Delays that only the other one ends: an absolute limit without end, and none at all.
    (",tidv=65535,tadv=2000,rdtr=65535,radv=2000", 0, 3000),
    ("", 500, 3000),
    (",itr=65535", 0, 1500),
    (",tidv=65535,rdtr=20000,size=16", 20_000, 300),
];

#[test]
fn moderation_never_stops_traffic() {
    for (keys, floor, count) in MODERATIONS {
        for irq in ["intx", "msi"] {
            let mut lan = Lan::new(1, FULL_WAIT);
            let at = ["a", "b"].map(|n| lan.add_e1000(n, |config| config.irq_rate_max = floor));
            let keys = format!("{keys},irq={irq},writes=posted");
            let mut a = E1000Guest::connect(&at[0], 1, &keys);
            let mut b = E1000Guest::connect(&at[1], 2, &keys);
            exchange(&mut a, &mut b, count, ALL);
            // Single frames, each of which interrupts. How many are held back depends on the
            // machine's speed: `steps_e1000` judges it, in simulated time.
            for _ in 0..10 {
                one_way(&mut a, &mut b, 1, ALL);
                one_way(&mut b, &mut a, 1, ALL);
            }
            for port in ["a", "b"] {
                let NicCounters { raised, held, delivered, .. } = lan.device(port);
                let counts = format!("{raised} raised, {held} held, {delivered} delivered");
                println!("{port}{keys}, {floor}/s: {counts}");
                assert!(held <= raised && delivered <= raised, "{keys}: {counts}");
                assert_eq!(lan.drops(port), 0, "{:?}", lan.dropped(port));
            }
        }
    }
}

#[test]
fn interrupts_keep_their_distance() {
    // 976 * 256 ns: 4,002 in a second; the host's floor says 1,000.
    for (keys, floor, most) in [(",itr=976", 0, 4002), (",itr=976", 1000, 1000), ("", 1000, 1000)] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = ["a", "b"].map(|n| lan.add_e1000(n, |config| config.irq_rate_max = floor));
        let mut a = E1000Guest::connect(&at[0], 1, &format!("{keys},batch,writes=posted"));
        let mut b = E1000Guest::connect(&at[1], 2, &format!("{keys},size=1024,writes=posted"));
        exchange(&mut a, &mut b, 10, ALL);
        let begin = Instant::now();
        let before = b.nic.interrupt_stats().sent;
        // A driver that is busy enough never asks for one: until there were some, with pauses.
        let mut sent = 0;
        while sent < 10 && begin.elapsed() < STALL {
            one_way(&mut a, &mut b, 20_000, Sizes { least: 60, most: 60 });
            std::thread::sleep(Duration::from_millis(3));
            sent = b.nic.interrupt_stats().sent - before;
        }
        let time = begin.elapsed();
        println!("{keys:10} floor {floor:4}: {sent} interrupts in {time:.1?}");
        // One at each end more than the time has room for.
        let bound = time.as_secs_f64() * f64::from(most) + 2.0;
        let sent = f64::from(u32::try_from(sent).unwrap());
        assert!(
            sent <= bound,
            "{keys}, floor {floor}: {sent} interrupts in {time:?}, {bound} at most"
        );
        assert!(sent >= 10.0, "{sent} interrupts show nothing");
    }
}

#[test]
fn a_mapped_port_loses_and_regains_its_mapping() {
    // As QEMU without KVM: mapped registers go away with each interrupt, for a time.
    // Its writes are waited for: a posted one could overtake a later store, which no server can
    // tell.
    for keys in ["mmap_timeout=1", "mmap_timeout=0", "mmap_timeout=3,batch,size=64"] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = ["a", "b"].map(|n| lan.add_e1000_with(n, Doorbell::Mapped));
        let keys = format!(",unmask=access,{keys}");
        let mut a = E1000Guest::connect(&at[0], 1, &keys);
        let mut b = E1000Guest::connect(&at[1], 2, &keys);
        let (mut round, begin) = (0, Instant::now());
        // On a busy machine it may take more rounds until there was enough of both.
        let (stores, messages) = loop {
            exchange(&mut a, &mut b, 200, ALL);
            std::thread::sleep(Duration::from_millis(round % 5));
            round += 1;
            let (stores, messages) = doorbells(&b);
            let enough = stores > 50 && (messages > 50 || keys.contains("timeout=0"));
            if round >= 20 && enough || begin.elapsed() > STALL {
                assert!(enough, "{keys}: {stores} stores, {messages} messages");
                break (stores, messages);
            }
        };
        println!("{keys}: {stores} stores, {messages} messages");
        // And for good.
        a.nic.registers_mut().bus_mut().unmap();
        let before = doorbells(&a);
        exchange(&mut a, &mut b, ALL.all(), ALL);
        let after = doorbells(&a);
        assert_eq!(after.0, before.0, "no stores where nothing is mapped");
        assert!(after.1 > before.1);
        assert_eq!((lan.drops("a"), lan.drops("b")), (0, 0));
    }
}

#[test]
fn the_driver_starts_anew_in_mid_traffic() {
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let (at_a, at_b) = (lan.add_e1000_with("a", doorbell), lan.add_e1000_with("b", doorbell));
        let at_c = lan.add("c", 1);
        let mut b = E1000Guest::connect(&at_b, 2, ",size=64");
        for round in 0..20 {
            let mut a = E1000Guest::connect(&at_a, 1, ",size=64,batch");
            exchange(&mut a, &mut b, 60, ALL);
            // It goes with frames under way, both ways.
            a.start_over();
            b.start_over();
            a.send_next(2, 40 + round, ALL);
            b.send_next(1, 40, ALL);
            drop(a);
            // What it had sent before comes, or not; nothing comes changed.
            lan.wait_gone("a");
            // The interrupt for the last of it may be on its way still.
            let came = lan.counters("b", |c| c.output.frames.get());
            let all = || b.receive_next(2, ALL) == 0 && b.nic.rx_stats().frames == came;
            assert!(settles(all), "{came}: {:?}", b.nic.rx_stats());
            let mut c = virtio(&at_c, 3, "");
            exchange(&mut b, &mut c, 60, ALL);
        }
        assert!(lan.counters("a", |c| c.input.frames.get()) > 20 * 60);
        let rdt = b.nic.registers().counts()[Register::RDT as usize];
        assert_eq!(rdt.mapped > 0, doorbell == Doorbell::Mapped);
    }
}

/// QEMU's stream framing at the other end: four bytes of length, then the frame.
#[test]
fn an_e1000_and_a_stream_peer_exchange_every_length() {
    for doorbell in [Doorbell::Trapped, Doorbell::Mapped] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = lan.add_e1000_with("a", doorbell);
        let mut a = E1000Guest::connect(&at, 1, ",writes=posted");
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
        a.introduce();
        let mut hello = [0; 64];
        peer.read_exact(&mut hello).unwrap();
        for n in 0..ALL.all() {
            let len = ALL.of(n);
            let bytes = frame(mac(1, 0), mac(2, 0), n, len);
            peer.write_all(&u32::try_from(len).unwrap().to_be_bytes()).unwrap();
            peer.write_all(&bytes).unwrap();
            let mut progress = Progress::default();
            while a.receive_next(1, ALL) == 0 {
                progress.note(0, || format!("frame {n} from the stream"));
            }
            assert_eq!(a.send_next(2, n + 1, ALL), 1);
            let mut framed = vec![0; 4 + len.max(60)];
            peer.read_exact(&mut framed).unwrap();
            let mut good = frame(mac(2, 0), mac(1, 0), n, len);
            good.resize(len.max(60), 0);
            assert_eq!(framed[..4], u32::try_from(good.len()).unwrap().to_be_bytes());
            assert!(framed[4..] == good, "frame {n} to the stream");
        }
        lan.part(id);
        door.close();
    }
}
