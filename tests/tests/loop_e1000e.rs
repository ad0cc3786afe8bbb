//! Driver, e1000e, switch, any NIC, driver: all in one process, over real sockets and shared
//! memory.

use std::path::PathBuf;
use std::time::Duration;

use vmlan_driver::chip::Offload;
use vmlan_driver::e1000::Intel82574;
use vmlan_driver::wait::Interest;
use vmlan_tests::chip_loop::{ALL, add, crowd, every_length, jumbo, moderated, starts_anew, wired};
use vmlan_tests::chip_offload::{self, send};
use vmlan_tests::exchange::{TestGuest, exchange, one_way};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{STALL, Sizes, frame, mac};
use vmlan_tests::random::Random;
use vmlan_transport::Wake;

/// How a VMM may treat it, and how it may be driven, as keys of the driver's address.
const WAYS: [&str; 8] = [
    "",
    ",writes=posted,secrc",
    ",irq=msi,size=64",
    ",irq=msi,causes=read,writes=posted,size=128",
    ",irq=intx,batch,interrupts=idle,size=32,refill=0",
    ",irq=intx,unmask=message,writes=posted,segment=200,size=128,completion=lazy",
    ",batch,buffer=256,mtu=1501,segment=128,size=1024,promisc,itr=50,rdtr=10,tidv=10",
    ",combine,receive=adaptive",
];

fn port(lan: &mut Lan, name: &str) -> PathBuf {
    add::<Intel82574>(lan, name)
}

#[test]
fn every_length_from_and_to_it() {
    every_length::<Intel82574>(&WAYS);
}

#[test]
fn jumbo_frames_arrive_over_several_buffers() {
    let ways = ["buffer=2048,segment=1000", "buffer=1024,size=1024,segment=600", "buffer=16384"];
    jumbo::<Intel82574>(Sizes { least: 8900, most: 9014 }, 9000, ways);
}

#[test]
fn several_senders_fill_one_receiver() {
    crowd::<Intel82574>(1, ",size=32,writes=posted", [",batch,size=64", ",irq=msi,writes=posted"]);
    crowd::<Intel82574>(2, ",size=32,irq=intx", [",batch", ",interrupts=idle,batch"]);
}

#[test]
fn moderation_never_stops_traffic() {
    for irq in ["intx", "msi", "msix"] {
        moderated::<Intel82574>(&format!(",irq={irq},writes=posted"), 500, 1000);
    }
}

#[test]
fn the_driver_starts_anew_in_mid_traffic() {
    starts_anew::<Intel82574>([",size=64", ",size=64,batch"]);
    starts_anew::<Intel82574>([",irq=intx", ",size=32,writes=posted"]);
}

/// One that does not know what the one before has left.
#[test]
fn a_driver_of_another_kind_of_interrupt_takes_over() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (port(&mut lan, "a"), port(&mut lan, "b"));
    let mut b = wired::<Intel82574>(&at_b, 2, "");
    for irq in ["msix", "intx", "msi", "intx", "msix"] {
        let mut a = wired::<Intel82574>(&at_a, 1, &format!(",irq={irq}"));
        exchange(&mut a, &mut b, 200, ALL);
    }
    assert_eq!(["a", "b"].map(|port| lan.drops(port)), [0; 2]);
}

/// A lone frame after each silence costs no read of a register, and one write for the interrupt.
#[test]
fn a_lone_frame_wakes_whoever_sleeps() {
    for keys in ["", ",irq=msi", ",irq=intx"] {
        let mut lan = Lan::new(1, FULL_WAIT);
        let at = ["a", "b"].map(|name| port(&mut lan, name));
        let [mut a, mut b] = [0, 1].map(|n| wired::<Intel82574>(&at[n], [1, 2][n], keys));
        one_way(&mut a, &mut b, 100, ALL);
        let reads = |nic: &vmlan_driver::e1000::E1000e<_>| -> u64 {
            nic.registers().counts().iter().map(|access| access.reads).sum()
        };
        let before = reads(&b.nic);
        let mut random = Random(0x1234_5678);
        let bytes = frame(mac(2, 0), mac(1, 0), 0, 60);
        for n in 0..1000 {
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
        let reads = reads(&b.nic) - before;
        assert!(!keys.is_empty() || reads == 0, "{reads} registers were read");
        a.assert_sound();
        b.assert_sound();
    }
}

/// Doorbells are stores, and nobody hears them: the worker looks. Both pages stay mapped.
#[test]
fn mapped_doorbells_are_stores() {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at = ["a", "b"].map(|name| {
        lan.add_chip(name, vmlan_transport::Model::E1000e, |config| {
            config.doorbell = vmlan_attach::vfio_user::Doorbell::Mapped;
        })
    });
    let mut a = wired::<Intel82574>(&at[0], 1, ",doorbell=mapped");
    let mut b = wired::<Intel82574>(&at[1], 2, ",doorbell=mapped");
    let tails = |nic: &vmlan_driver::e1000::E1000e<_>| -> u64 {
        let counts = nic.registers().counts().iter();
        counts.filter(|a| ["TDT", "RDT"].contains(&a.register)).map(|a| a.writes).sum()
    };
    let before = tails(&a.nic);
    exchange(&mut a, &mut b, 2000, ALL);
    assert_eq!(tails(&a.nic), before, "no trip for a doorbell");
    assert_eq!(["a", "b"].map(|port| lan.drops(port)), [0; 2]);
    a.assert_sound();
    b.assert_sound();
}

#[test]
fn what_it_shall_cut_reaches_everybody() {
    let ways = [("", "on,buffer=2048,size=256"), (",segment=2800,size=1024", "off,size=64")];
    chip_offload::tso_arrives_whole::<Intel82574>(port, &ways);
    let keys = [",csum,size=256,writes=posted", ",csum,size=1024,buffer=512,irq=msi"];
    chip_offload::tso_arrives_in_segments::<Intel82574>(port, port, &keys);
}

#[test]
fn virtio_s_large_packets_reach_it_in_segments() {
    let keys = [",csum,size=256", ",csum,size=1024,buffer=256,irq=intx,writes=posted"];
    chip_offload::large_packets_arrive_in_segments::<Intel82574>(port, &keys);
}

#[test]
fn checksums_are_finished_unless_the_receiver_takes_them() {
    chip_offload::checksums_are_finished::<Intel82574>(port, ",csum,writes=posted");
}
