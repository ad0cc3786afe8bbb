//! Driver, r8169 or rtl8139, switch, any NIC, driver: all in one process, over real sockets and
//! shared memory. Every frame is compared byte for byte with what was sent; short ones arrive with
//! zeros up to 60 bytes.

use std::path::{Path, PathBuf};

use vmlan_driver::chip::Chip;
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_frame::NicCounters;
use vmlan_tests::chip_guest::{ChipGuest, E1000Guest};
use vmlan_tests::exchange::{TestGuest, exchange, one_way};
use vmlan_tests::in_process_lan::{FULL_WAIT, Lan};
use vmlan_tests::numbered::{Progress, Sizes, settles};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_transport::Model;
use vmlan_transport::vfio_user::VfioBus;

type R8169 = Rings<Gigabit>;
type Rtl8139 = Rings<Plus>;

/// Every legal length.
const ALL: Sizes = Sizes { least: 14, most: 1514 };

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

/// A port for the chip, with CSB where there is one.
fn add<C: Chip>(lan: &mut Lan, name: &str) -> PathBuf {
    lan.add_chip(name, C::MODEL, |config| config.csb = C::MODEL != Model::Rtl8139Classic)
}

/// A guest that switch-side padding reaches.
fn virtio(at: &Path, id: u8, keys: &str) -> VirtioGuest {
    let mut guest = VirtioGuest::connect(at, id, keys);
    guest.expect_padding();
    guest
}

fn wired<C: Chip>(at: &Path, id: u8, keys: &str) -> ChipGuest<C, VfioBus> {
    ChipGuest::connect(at, id, keys)
}

/// Two of a kind, and each with a guest of another: in all ways.
fn every_length<C: Chip>(ways: &[&str]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add::<C>(&mut lan, "a"), add::<C>(&mut lan, "b"));
    let (at_v, at_e) = (lan.add("v", 1), lan.add_e1000("e", |_| {}));
    for (n, of_a) in ways.iter().enumerate() {
        // Each meets another one, so that what one end does cannot hide behind the other's.
        let of_b = ways[(n * 3 + 1) % ways.len()];
        let (mut a, mut b) = (wired::<C>(&at_a, 1, of_a), wired::<C>(&at_b, 2, of_b));
        println!("{:?}: {of_a} and {of_b}", C::MODEL);
        exchange(&mut a, &mut b, ALL.all(), ALL);
        drop(b);
        let of_v = ["", ",mrg=off", ",event_idx=off", ",size=64"][n % 4];
        let mut v = virtio(&at_v, 3, of_v);
        exchange(&mut a, &mut v, ALL.all(), ALL);
        drop(v);
        let mut e = E1000Guest::connect(&at_e, 4, "");
        exchange(&mut a, &mut e, ALL.all(), ALL);
    }
    let drops = ["a", "b", "v", "e"].map(|port| lan.dropped(port));
    assert_eq!(drops, [const { Vec::new() }; 4]);
}

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

fn jumbo<C: Chip>(sizes: Sizes, mtu: u16, ways: [&str; 3]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add::<C>(&mut lan, "a"), add::<C>(&mut lan, "b"));
    let at_v = lan.add("v", 1);
    for keys in ways {
        let keys = format!(",mtu={mtu},batch,{keys}");
        let mut a = wired::<C>(&at_a, 1, &keys);
        let mut b = wired::<C>(&at_b, 2, &format!(",mtu={mtu},buffer=4096,segment=3000,size=64"));
        exchange(&mut a, &mut b, 3 * sizes.all(), sizes);
        let mut v = virtio(&at_v, 3, &format!(",size=64,mtu={mtu},buffer=9300"));
        exchange(&mut a, &mut v, 3 * sizes.all(), sizes);
    }
    assert_eq!(["a", "b", "v"].map(|port| lan.drops(port)), [0; 3]);
}

#[test]
fn jumbo_frames_arrive_over_several_descriptors() {
    let gigabit = ["buffer=2048,segment=1000", "buffer=256,size=1024", "buffer=8192,csb"];
    jumbo::<R8169>(Sizes { least: 7000, most: 7186 }, 7172, gigabit);
    let plus = ["buffer=2048,segment=1000", "buffer=512,size=64", "buffer=4096,csb"];
    jumbo::<Rtl8139>(Sizes { least: 4000, most: 4110 }, 4096, plus);
}

/// Four fill one of the chips, whose ring or buffer is short.
fn crowd<C: Chip>(workers: usize, of_receiver: &str, of_senders: [&str; 2]) {
    let mut lan = Lan::new(workers, FULL_WAIT);
    let at_r = add::<C>(&mut lan, "r");
    let at_v = lan.add("v", 1);
    let at = ["s0", "s1"].map(|name| add::<C>(&mut lan, name));
    let at_e = lan.add_e1000("e", |_| {});
    let mut receiver = wired::<C>(&at_r, 9, of_receiver);
    let mut senders: Vec<Box<dyn TestGuest>> = vec![
        Box::new(wired::<C>(&at[0], 1, of_senders[0])),
        Box::new(wired::<C>(&at[1], 2, of_senders[1])),
        Box::new(E1000Guest::connect(&at_e, 3, ",batch")),
        Box::new(VirtioGuest::connect(&at_v, 4, "")),
    ];
    receiver.introduce();
    let (count, mut got, mut progress) = (ALL.all(), 0, Progress::default());
    while got < 4 * count {
        let sent = senders.iter_mut().map(|s| s.send_next(9, count, ALL)).sum::<u64>();
        let now = receiver.receive_next(9, ALL);
        got += now;
        progress.note(sent + now, || format!("{got} of {}", 4 * count));
    }
    receiver.assert_sound();
    senders.iter().for_each(|s| s.assert_sound());
    assert_eq!(lan.dropped("r"), Vec::new());
}

#[test]
fn several_senders_fill_one_receiver() {
    crowd::<R8169>(1, ",size=32,writes=posted", [",batch,size=64", ",irq=msi,writes=posted"]);
    crowd::<R8169>(2, ",size=16,csb", [",batch,csb", ",interrupts=idle,batch"]);
    crowd::<Rtl8139>(2, ",size=16,writes=posted", [",batch", ",csb"]);
    crowd::<Classic>(1, ",buffer=8192,writes=posted", ["", ",writes=posted"]);
    crowd::<Classic>(2, ",buffer=8192", ["", ",batch,writes=posted"]);
}

/// Both ways, and single frames, each of which interrupts. How many are held back depends on the
/// machine's speed, so it is only told: `steps_realtek` judges it, in simulated time.
fn moderated<C: Chip>(keys: &str, floor: u32, count: u64) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let at = ["a", "b"].map(|n| lan.add_chip(n, C::MODEL, |config| config.irq_rate_max = floor));
    let mut a = wired::<C>(&at[0], 1, keys);
    let mut b = wired::<C>(&at[1], 2, keys);
    exchange(&mut a, &mut b, count, ALL);
    for _ in 0..10 {
        one_way(&mut a, &mut b, 1, ALL);
        one_way(&mut b, &mut a, 1, ALL);
    }
    for port in ["a", "b"] {
        let NicCounters { raised, held, delivered, .. } = lan.device(port);
        let counts = format!("{raised} raised, {held} held, {delivered} delivered");
        println!("{:?} {port}{keys}, {floor}/s: {counts}", C::MODEL);
        assert!(held <= raised && delivered <= raised, "{keys}: {counts}");
        assert_eq!(lan.dropped(port), Vec::new());
    }
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

fn starts_anew<C: Chip>(keys: [&str; 2]) {
    let mut lan = Lan::new(1, FULL_WAIT);
    let (at_a, at_b) = (add::<C>(&mut lan, "a"), add::<C>(&mut lan, "b"));
    let at_c = lan.add("c", 1);
    let mut b = wired::<C>(&at_b, 2, keys[0]);
    for round in 0..10 {
        let mut a = wired::<C>(&at_a, 1, keys[1]);
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
    assert!(lan.counters("a", |c| c.input.frames.get()) > 10 * 60);
}

#[test]
fn the_driver_starts_anew_in_mid_traffic() {
    starts_anew::<R8169>([",size=64", ",size=64,batch"]);
    starts_anew::<Rtl8139>([",csb", ",size=32,csb"]);
    starts_anew::<Classic>(["", ",writes=posted"]);
}
