//! Driver, r8169 or rtl8139, switch, any NIC, driver: all in one process, over real sockets and
//! shared memory.

use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_tests::chip_loop::{ALL, add, crowd, every_length, jumbo, moderated, starts_anew, wired};
use vmlan_tests::exchange::exchange;
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::Sizes;

type R8169 = Rings<Gigabit>;
type Rtl8139 = Rings<Plus>;

/// How a VMM may treat a chip, and how it may be driven, as keys of the driver's address.
const OF_R8169: [&str; 8] = [
    "",
    ",writes=posted,flush",
    ",irq=msi,size=64,csb",
    ",irq=msi,writes=posted,batch,interrupts=idle,size=32,refill=0",
    ",unmask=message,writes=posted,segment=200,size=128",
    ",csb,interrupts=idle,size=8,segment=1600,refill=1",
    ",batch,buffer=256,mtu=1501,segment=64,size=1024,promisc",
    ",combine,receive=adaptive,mitigate=0x1111",
];
const OF_RTL8139: [&str; 8] = [
    "",
    ",writes=posted",
    ",csb",
    ",writes=posted,batch,interrupts=idle,size=32,refill=0",
    ",unmask=access,segment=200,size=48",
    ",csb,interrupts=idle,size=8,segment=1600,refill=1",
    ",batch,buffer=256,mtu=1501,segment=64,promisc",
    ",combine,receive=adaptive",
];
const OF_CLASSIC: [&str; 4] = [
    "",
    ",writes=posted,buffer=8192",
    ",buffer=16384,interrupts=idle,unmask=message",
    ",batch,receive=poll,promisc",
];

#[test]
fn every_length_from_and_to_r8169() {
    every_length::<R8169>(&OF_R8169);
}

#[test]
fn every_length_from_and_to_rtl8139() {
    every_length::<Rtl8139>(&OF_RTL8139);
}

#[test]
fn every_length_from_and_to_rtl8139_in_classic_mode() {
    every_length::<Classic>(&OF_CLASSIC);
}

#[test]
fn the_two_chips_and_both_modes_understand_each_other() {
    let mut lan = Lan::new(2, FULL_WAIT);
    let at_g = add::<R8169>(&mut lan, "g");
    let at_p = add::<Rtl8139>(&mut lan, "p");
    let at_c = add::<Classic>(&mut lan, "c");
    let mut g = wired::<R8169>(&at_g, 1, ",csb,batch");
    let mut p = wired::<Rtl8139>(&at_p, 2, ",csb,batch");
    let mut c = wired::<Classic>(&at_c, 3, ",writes=posted");
    exchange(&mut g, &mut p, ALL.all(), ALL);
    exchange(&mut p, &mut c, ALL.all(), ALL);
    exchange(&mut c, &mut g, ALL.all(), ALL);
    // The port of an 8139C+ takes a driver that knows nothing of C+ mode, too.
    drop(p);
    let mut old = wired::<Classic>(&at_p, 2, "");
    exchange(&mut old, &mut g, ALL.all(), ALL);
    assert_eq!(["g", "p", "c"].map(|port| lan.drops(port)), [0; 3]);
}

#[test]
fn jumbo_frames_arrive_over_several_descriptors() {
    let gigabit = ["buffer=2048,segment=1000", "buffer=256,size=1024", "buffer=8192,csb"];
    jumbo::<R8169>(Sizes { least: 7000, most: 7186 }, 7172, gigabit);
    let plus = ["buffer=2048,segment=1000", "buffer=512,size=64", "buffer=4096,csb"];
    jumbo::<Rtl8139>(Sizes { least: 4000, most: 4110 }, 4096, plus);
}

#[test]
fn several_senders_fill_one_receiver() {
    crowd::<R8169>(1, ",size=32,writes=posted", [",batch,size=64", ",irq=msi,writes=posted"]);
    crowd::<R8169>(2, ",size=16,csb", [",batch,csb", ",interrupts=idle,batch"]);
    crowd::<Rtl8139>(2, ",size=16,writes=posted", [",batch", ",csb"]);
    crowd::<Classic>(1, ",buffer=8192,writes=posted", ["", ",writes=posted"]);
    crowd::<Classic>(2, ",buffer=8192", ["", ",batch,writes=posted"]);
}

#[test]
fn moderation_never_stops_traffic() {
    for irq in ["intx", "msi"] {
        // IntrMitigate: timers of up to 15 * 320 ns * 32, frames in fours.
        for mitigate in ["0xf0f0", "0xffff", "0x00f0", "0x5151"] {
            let keys = format!(",mitigate={mitigate},mitigate_unit=3,irq={irq},writes=posted");
            moderated::<R8169>(&keys, 0, 1000);
        }
        moderated::<R8169>(&format!(",irq={irq},writes=posted"), 500, 1000);
    }
    moderated::<Rtl8139>(",writes=posted", 500, 1000);
    moderated::<Classic>(",writes=posted", 2000, 300);
}

#[test]
fn the_driver_starts_anew_in_mid_traffic() {
    starts_anew::<R8169>([",size=64", ",size=64,batch"]);
    starts_anew::<Rtl8139>([",csb", ",size=32,csb"]);
    starts_anew::<Classic>(["", ",writes=posted"]);
}
