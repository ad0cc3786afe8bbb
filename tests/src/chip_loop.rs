//! What a test with drivers, chips, a switch and real sockets in one process asks of any chip.
//! Every frame is compared byte for byte with what was sent; short ones arrive with zeros up to 60
//! bytes.

use std::path::{Path, PathBuf};

use vmlan_driver::chip::Chip;
use vmlan_frame::NicCounters;
use vmlan_transport::Model;
use vmlan_transport::vfio_user::VfioBus;

use crate::chip_guest::{ChipGuest, E1000Guest};
use crate::exchange::{TestGuest, exchange, one_way};
use crate::in_process_lan::{FULL_WAIT, Lan};
use crate::numbered::{Progress, Sizes, settles};
use crate::virtio_guest::VirtioGuest;

/// Every legal length.
pub const ALL: Sizes = Sizes { least: 14, most: 1514 };

/// A port for the chip, with CSB where there is one.
pub fn add<C: Chip>(lan: &mut Lan, name: &str) -> PathBuf {
    let has_none = matches!(C::MODEL, Model::E1000e | Model::Rtl8139Classic | Model::Vmxnet3);
    lan.add_chip(name, C::MODEL, |config| config.csb = !has_none)
}

/// A guest that switch-side padding reaches.
fn virtio(at: &Path, id: u8, keys: &str) -> VirtioGuest {
    let mut guest = VirtioGuest::connect(at, id, keys);
    guest.expect_padding();
    guest
}

/// A guest with the chip at a port.
pub fn wired<C: Chip>(at: &Path, id: u8, keys: &str) -> ChipGuest<C, VfioBus> {
    ChipGuest::connect(at, id, keys)
}

/// Two of a kind, and each with a guest of another: in all ways of driving the chip, as keys of the
/// driver's address.
///
/// # Panics
/// When a frame is lost or changed, here and below.
pub fn every_length<C: Chip>(ways: &[&str]) {
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

/// Frames of these sizes, with this MTU.
pub fn jumbo<C: Chip>(sizes: Sizes, mtu: u16, ways: [&str; 3]) {
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

/// Four fill one of the chips, whose ring or buffer is short.
pub fn crowd<C: Chip>(workers: usize, of_receiver: &str, of_senders: [&str; 2]) {
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

/// Both ways, and single frames, each of which interrupts. How many are held back depends on the
/// machine's speed, so it is only told: `steps_moderation` judges it, in simulated time.
pub fn moderated<C: Chip>(keys: &str, floor: u32, count: u64) {
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

/// One guest of two goes in the midst of traffic and comes back, again and again.
pub fn starts_anew<C: Chip>(keys: [&str; 2]) {
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
