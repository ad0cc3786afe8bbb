//! Driver, vmxnet3, switch, any NIC, driver: all in one process, over real sockets and shared
//! memory.

use std::path::PathBuf;
use std::time::Duration;

use vmlan_driver::chip::Offload;
use vmlan_driver::virtio::queues::NetHeader;
use vmlan_driver::vmxnet3::{Counters, Vmware};
use vmlan_driver::wait::Interest;
use vmlan_tests::chip_guest::{ChipGuest, Frame};
use vmlan_tests::chip_loop::{ALL, add, crowd, every_length, jumbo, moderated, starts_anew, wired};
use vmlan_tests::chip_offload::{self, TCP, check_segments, payload, send, sender, trim};
use vmlan_tests::exchange::{TestGuest, exchange, one_way};
use vmlan_tests::gso::{self, KINDS, Kind};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, STALL, Sizes, frame, mac};
use vmlan_tests::random::Random;
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::Wake;
use vmlan_transport::vfio_user::VfioBus;

/// How a VMM may treat it, and how it may be driven, as keys of the driver's address.
const WAYS: [&str; 8] = [
    "",
    ",fence=off,writes=posted",
    ",irq=msi,size=64",
    ",irq=intx,batch,interrupts=idle,size=32,refill=0",
    ",irq=intx,unmask=message,writes=posted,segment=200,size=128",
    ",interrupts=idle,size=32,segment=1600,refill=1,fence=off",
    ",batch,buffer=256,mtu=1501,segment=128,size=1024,promisc",
    ",combine,receive=adaptive",
];

fn port(lan: &mut Lan, name: &str) -> PathBuf {
    add::<Vmware>(lan, name)
}

#[test]
fn every_length_from_and_to_it() {
    every_length::<Vmware>(&WAYS);
}

#[test]
fn jumbo_frames_arrive_over_several_buffers() {
    let ways = ["buffer=2048,segment=1000", "buffer=1024,size=1024,segment=600", "buffer=8192"];
    jumbo::<Vmware>(Sizes { least: 8900, most: 9014 }, 9000, ways);
}

#[test]
fn several_senders_fill_one_receiver() {
    crowd::<Vmware>(1, ",size=32,writes=posted", [",batch,size=64", ",irq=msi,writes=posted"]);
    crowd::<Vmware>(2, ",size=32,fence=off", [",batch,fence=off", ",interrupts=idle,batch"]);
}

#[test]
fn moderation_never_stops_traffic() {
    for irq in ["intx", "msi", "msix"] {
        moderated::<Vmware>(&format!(",irq={irq},writes=posted"), 500, 1000);
    }
}

#[test]
fn the_driver_starts_anew_in_mid_traffic() {
    starts_anew::<Vmware>([",size=64", ",size=64,batch"]);
    starts_anew::<Vmware>([",irq=intx", ",size=32,fence=off,writes=posted"]);
}

/// One that does not know what the one before has left.
#[test]
fn a_driver_of_another_kind_of_interrupt_takes_over() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (port(&mut lan, "a"), port(&mut lan, "b"));
    let mut b = wired::<Vmware>(&at_b, 2, "");
    for irq in ["msix", "intx", "msi", "intx", "msix"] {
        let mut a = wired::<Vmware>(&at_a, 1, &format!(",irq={irq}"));
        exchange(&mut a, &mut b, 200, ALL);
    }
    assert_eq!(["a", "b"].map(|port| lan.drops(port)), [0; 2]);
}

/// A lone frame after each silence: it comes although nobody else rings, with the fence that
/// Linux's driver lacks and without.
#[test]
fn a_lone_frame_wakes_whoever_sleeps() {
    for keys in ["", ",fence=off", ",irq=intx,fence=off"] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = ["a", "b"].map(|name| port(&mut lan, name));
        let [mut a, mut b] = [0, 1].map(|n| wired::<Vmware>(&at[n], [1, 2][n], keys));
        one_way(&mut a, &mut b, 100, ALL);
        let mut random = Random(0x1234_5678);
        let bytes = frame(mac(2, 0), mac(1, 0), 0, 60);
        for n in 0..3000 {
            std::thread::sleep(Duration::from_micros(random.below(200)));
            send(&mut a, Offload::default(), &bytes);
            let mut got = 0;
            while got == 0 {
                let wake = b.wait(Interest { rx: true, tx: false }, STALL);
                assert_eq!(wake, Wake::Ready, "{keys}: frame {n} does not come");
                got = b.receive(|_, _| {});
            }
            // As a kernel's driver, which takes its completions as they come.
            a.receive(|_, _| {});
        }
        let stats = a.nic.tx_stats();
        println!("{keys}: {} doorbells, {} saved", stats.doorbells, stats.doorbells_saved);
        a.assert_sound();
        b.assert_sound();
    }
}

#[test]
fn what_it_shall_cut_reaches_everybody() {
    let ways = [("", "on,buffer=2048,size=256"), (",segment=2800,size=1024", "off,size=64")];
    chip_offload::tso_arrives_whole::<Vmware>(port, &ways);
    let keys = [",csum,size=256,writes=posted", ",csum,size=1024,buffer=512,irq=msi"];
    chip_offload::tso_arrives_in_segments::<Vmware>(port, port, &keys);
}

#[test]
fn virtio_s_large_packets_reach_it_in_segments() {
    let keys = [",csum,size=256", ",csum,size=1024,buffer=256,irq=intx,writes=posted"];
    chip_offload::large_packets_arrive_in_segments::<Vmware>(port, &keys);
}

/// To a driver that asks for that, from virtio and from its like.
#[test]
fn packets_reach_it_uncut() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_v, at_a, at_b) = (lan.add("v", 1), port(&mut lan, "a"), port(&mut lan, "b"));
    let mut v = VirtioGuest::connect(&at_v, 1, ",size=64,buffer=65600,tso=on");
    let mut b = wired::<Vmware>(&at_b, 2, ",csum,lro,buffer=4096,size=128");
    b.introduce();
    for kind in TCP {
        for len in [1449, 9001, 30_011, 65_000] {
            let load = payload(len);
            let (header, bytes) =
                gso::unfinished(kind, mac(2, 0), mac(1, 0), &load, chip_offload::MSS);
            assert!(v.send(0, header, &bytes));
            v.flush();
            let (said, got) = receive(&mut b, 1).remove(0);
            // Checksums are vouched for, whatever stands there.
            assert_eq!(said.checksum(), Some(true), "{kind:?} of {len}");
            assert_eq!(got.len(), bytes.len(), "{kind:?}");
            assert!(got[kind.header_len()..] == load, "{kind:?} of {len}");
            v.receive(|_, _| {});
        }
    }
    drop(v);
    let mut a = sender::<Vmware>(&at_a, "");
    for kind in TCP {
        let load = payload(30_011);
        let (offload, bytes, ..) = chip_offload::unfinished::<Vmware>(kind, &load, 1001);
        send(&mut a, offload, &bytes);
        let (said, got) = receive(&mut b, 1).remove(0);
        assert_eq!(said.checksum(), Some(true), "{kind:?}");
        assert!(got[kind.header_len()..] == load, "{kind:?}");
    }
    b.assert_sound();
    exchange(&mut a, &mut b, ALL.all(), ALL);
    assert_eq!(["v", "a", "b"].map(|port| lan.drops(port)), [0; 3]);
}

#[test]
fn checksums_are_finished_unless_the_receiver_takes_them() {
    chip_offload::checksums_are_finished::<Vmware>(port, ",csum,writes=posted");
}

/// Linux shows these as its interface's, and not what it has counted by itself.
#[test]
fn its_counters_are_those_of_the_driver() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at = ["a", "b"].map(|name| port(&mut lan, name));
    let mut a = sender::<Vmware>(&at[0], "");
    let mut b = wired::<Vmware>(&at[1], 2, "");
    one_way(&mut a, &mut b, 500, ALL);
    let (offload, bytes, ..) =
        chip_offload::unfinished::<Vmware>(Kind::Tcp4, &payload(10_000), 1000);
    send(&mut a, offload, &bytes);
    receive(&mut b, 10);
    a.receive(|_, _| {});
    let ([sent, _], [_, received]) = (a.nic.counters(), b.nic.counters());
    println!("{sent:?} {received:?}");
    let frames = |counters: Counters| counters.unicast[0] + counters.broadcast[0];
    // One packet became ten.
    assert_eq!(frames(sent), a.nic.tx_stats().frames + 9);
    assert_eq!((sent.large[0], sent.lost, received.lost), (10, [0; 2], [0; 2]));
    assert_eq!(frames(received), b.nic.rx_stats().frames);
    let bytes = received.unicast[1] + received.broadcast[1] + received.multicast[1];
    assert_eq!(bytes, b.nic.rx_stats().bytes);
}

type Guest = ChipGuest<Vmware, VfioBus>;

/// Frames, with what the chip says about them.
fn receive(guest: &mut Guest, count: usize) -> Vec<(Frame<Vmware>, Vec<u8>)> {
    let (mut got, mut progress) = (Vec::new(), Progress::default());
    while got.len() < count {
        let now = guest.receive(|said, bytes| got.push((said, bytes.to_vec())));
        progress.note(now, || format!("{} of {count} frames", got.len()));
    }
    assert_eq!(got.len(), count);
    got
}

#[test]
fn what_it_says_about_checksums_is_true() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (lan.add("a", 1), port(&mut lan, "b"));
    let mut a = VirtioGuest::connect(&at_a, 1, ",csum=on");
    let mut b = wired::<Vmware>(&at_b, 2, ",csum");
    b.introduce();
    for kind in KINDS {
        for len in [7, 8, 500, 1399] {
            let (header, bytes) = gso::unfinished(kind, mac(2, 0), mac(1, 0), &payload(len), 0);
            // Whose checksum we finish ourselves is right.
            assert!(a.send(0, header, &bytes));
            a.flush();
            let (said, got) = receive(&mut b, 1).remove(0);
            assert_eq!(trim(&got), gso::complete(&header, &bytes));
            assert_eq!(said.checksum(), Some(true), "{kind:?} of {len}");
            // For what came finished nobody vouches, be it right or wrong: the guest looks itself.
            for wrong in [0, 0x10] {
                let mut bytes = gso::complete(&header, &bytes);
                *bytes.last_mut().unwrap() ^= wrong;
                assert!(a.send(0, NetHeader::default(), &bytes));
                a.flush();
                let (said, got) = receive(&mut b, 1).remove(0);
                assert_eq!((trim(&got), said.checksum()), (bytes.as_slice(), None), "{kind:?}");
            }
        }
    }
}

fn tagged(bytes: &[u8], tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    [&bytes[..12], &[0x81, 0, high, low], &bytes[12..]].concat()
}

#[test]
fn tags_are_inserted_and_stripped() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at = ["a", "b"].map(|name| port(&mut lan, name));
    let mut a = sender::<Vmware>(&at[0], ",size=512");
    let mut b = wired::<Vmware>(&at[1], 2, ",csum");
    b.introduce();
    a.receive(|_, _| {});
    for strips in [false, true, false] {
        b.nic.strip_tags(strips);
        for (n, tag) in [(0, 5_u16), (1, 0xe064), (2, 0x0fff), (3, 0)] {
            for len in [60, 64, 300, 1514] {
                let bytes = frame(mac(2, 0), mac(1, 0), n, len);
                send(&mut a, Offload { vlan: Some(tag), ..Offload::default() }, &bytes);
                let (said, got) = receive(&mut b, 1).remove(0);
                let expected = if strips { bytes.clone() } else { tagged(&bytes, tag) };
                assert_eq!(said.vlan(), strips.then_some(tag), "{len} bytes");
                assert!(got == expected, "{len} bytes, tag {tag}: {} came", got.len());
            }
        }
    }
    // Segments carry the tag of their packet.
    b.nic.strip_tags(true);
    for kind in TCP {
        let load = payload(10_000);
        let (offload, bytes, ..) = chip_offload::unfinished::<Vmware>(kind, &load, 1300);
        send(&mut a, Offload { vlan: Some(77), ..offload }, &bytes);
        let got = receive(&mut b, 8);
        assert!(got.iter().all(|(said, _)| said.vlan() == Some(77)));
        assert!(got.iter().all(|(said, _)| said.checksum() == Some(true)), "{kind:?}");
        let got: Vec<_> = got.into_iter().map(|(_, f)| (NetHeader::default(), f)).collect();
        check_segments(kind, &load, 1300, &got);
    }
}

#[test]
fn packets_that_find_no_room_for_all_their_segments_wait() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (port(&mut lan, "a"), port(&mut lan, "b"));
    let mut b = chip_offload::To::<Vmware>::chip(&at_b, ",csum,size=64,writes=posted");
    let mut a = sender::<Vmware>(&at_a, ",size=1024,batch");
    b.introduce();
    // 21 segments each, and room for 63.
    let (load, count) = (payload(30_011), 20);
    let (offload, bytes, ..) =
        chip_offload::unfinished::<Vmware>(Kind::Tcp4, &load, chip_offload::MSS);
    for _ in 0..count {
        send(&mut a, offload, &bytes);
    }
    let got = b.collect(Kind::Tcp4, count * load.len());
    for packet in got.chunks(21) {
        check_segments(Kind::Tcp4, &load, chip_offload::MSS.into(), packet);
    }
    assert_eq!(["a", "b"].map(|port| lan.drops(port)), [0; 2], "{:?}", lan.dropped("b"));
}
