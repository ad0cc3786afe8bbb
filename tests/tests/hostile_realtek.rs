//! Two guests talk, by r8169 and rtl8139. Neighbours with the same chips, in both modes, write
//! garbage over their rings, their descriptors, their receive buffer and all registers, in all
//! widths. The two lose nothing, and the next client of a hostile one's port finds a good chip.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vmlan_driver::chip::Chip;
use vmlan_driver::realtek::{Gigabit, Plus, Rings};
use vmlan_driver::rtl8139::Classic;
use vmlan_tests::chip_guest::ChipGuest;
use vmlan_tests::exchange::{TestGuest, exchange, exchange_few, exchange_known};
use vmlan_tests::hostile_chip::{Hostile, LENGTHS, Random, attack, hold_out, talk};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Bus, Width};

/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(4);

type R8169 = Rings<Gigabit>;
type Rtl8139 = Rings<Plus>;

/// Normal and high priority rings, and the receive ring, when they are good.
const PLACES: [(u32, u32); 3] = [(0x20, 0x100), (0x28, 0x500), (0xe4, 0x900)];
/// Where descriptors are scribbled.
const SCRIBBLED: u32 = 0x1000;

/// Where the chips differ.
struct Kind {
    /// TPPoll.
    poll: u32,
    /// CPCR.
    command: u32,
}

/// Registers with their widths: CR, TPPoll of both, IMR, ISR, TCR, RCR, TCTR, TimerInt of both,
/// 9346CR, PHYAR, BMCR, RMS, CPCR, IntrMitigate, DTCCR, CSBAL, CSBAH, RBSTART, CAPR, TSD0, TSAD0.
const OTHERS: [(u32, Width); 23] = [
    (0x37, Width::One),
    (0x38, Width::One),
    (0xd9, Width::One),
    (0x3c, Width::Two),
    (0x3e, Width::Two),
    (0x40, Width::Four),
    (0x44, Width::Four),
    (0x48, Width::Four),
    (0x54, Width::Four),
    (0x58, Width::Four),
    (0x50, Width::One),
    (0x60, Width::Four),
    (0x62, Width::Two),
    (0xda, Width::Two),
    (0xe0, Width::Two),
    (0xe2, Width::Two),
    (0x10, Width::Four),
    (0xf0, Width::Four),
    (0xf4, Width::Four),
    (0x30, Width::Four),
    (0x38, Width::Two),
    (0x14, Width::Four),
    (0x24, Width::Four),
];

/// Half a descriptor, most of them such as may be served: flags and length, or an address in one of
/// both regions.
fn quadword(random: &mut Random) -> u64 {
    const OWN_FS_LS: u64 = 0xb000_0000;
    match random.below(7) {
        0 => random.any(),
        1 => 1 << 32 | u64::from(random.below(0x4_0000)),
        2 => u64::from(random.below(0x2000)),
        3 => OWN_FS_LS | u64::from(random.below(0x4000)),
        // Checksums, tags; large send; EOR, or segments.
        4 => OWN_FS_LS | random.any() & 0x0002_ffff_0007_ffff,
        5 => OWN_FS_LS | random.any() & 0x0000_0000_0fff_ffff,
        _ => random.any() & 0xffff_ffff | 1 << 31,
    }
}

/// A write of any width, and a read, of any register.
fn anything(guest: &mut Hostile) {
    let any = guest.random.below(0x100);
    let (register, width) = match guest.random.below(3) {
        0 => (any.min(0xfc), guest.random.of(&[Width::One, Width::Two, Width::Four])),
        _ => guest.random.of(&OTHERS),
    };
    let value = guest.random.value();
    // Not a reset each time, or there is nothing to break.
    let value = if register == 0x37 { value & !0x10 | 0x0c } else { value };
    guest.write(register, width, value);
    guest.read(register, width);
    guest.alive = guest.alive && guest.bus.unmask().is_ok();
}

/// Good rings again, with what lies there as descriptors: the chip moves on to the next garbage.
fn restore_rings(guest: &mut Hostile, kind: &Kind) {
    guest.write(0xe0, Width::Two, kind.command);
    for (register, place) in PLACES {
        guest.write(register + 4, Width::Four, 0);
        guest.write(register, Width::Four, place);
    }
    guest.write(0x37, Width::One, 0x0c);
    guest.write(0x44, Width::Four, 0x0000_e73f);
    guest.write(0x3c, Width::Two, 0xffff);
}

fn rings(guest: &mut Hostile, kind: &Kind) {
    for n in 0..500 {
        if n % 64 == 0 {
            restore_rings(guest, kind);
        }
        for _ in 0..8 {
            let word = quadword(&mut guest.random);
            guest.scribble(SCRIBBLED, word);
        }
        let queues = guest.random.of(&[0x40, 0x80, 0xc0, 0]);
        guest.write(kind.poll, Width::One, queues);
        if n % 4 == 0 {
            anything(guest);
        }
    }
}

fn r8169(guest: &mut Hostile) {
    rings(guest, &Kind { poll: 0x38, command: 0x60 });
}

fn rtl8139(guest: &mut Hostile) {
    rings(guest, &Kind { poll: 0xd9, command: 0x63 });
}

/// Frames of any length from anywhere, a buffer of any length anywhere, and a driver that has read
/// any of it.
fn classic(guest: &mut Hostile) {
    for n in 0..500 {
        if n % 64 == 0 {
            guest.write(0xe0, Width::Two, 0);
            guest.write(0x30, Width::Four, 0x1000);
            guest.write(0x37, Width::One, 0x0c);
            guest.write(0x3c, Width::Two, 0xffff);
        }
        let pair = 4 * guest.random.below(4);
        let from = guest.random.below(0x8000);
        guest.write(0x20 + pair, Width::Four, from);
        let len = guest.random.below(0x800);
        guest.write(0x10 + pair, Width::Four, len);
        // RBLEN, WRAP, all that accepts.
        let shape = guest.random.below(0x40) << 7;
        guest.write(0x44, Width::Four, shape | 0x3f);
        let read = guest.random.value();
        guest.write(0x38, Width::Two, read);
        if n % 4 == 0 {
            let word = guest.random.any();
            guest.scribble(0x8000, word);
            anything(guest);
        }
    }
}

/// The port's client after a hostile one.
fn next<C: Chip>(path: &Path, b: &mut ChipGuest<Rtl8139, VfioBus>) {
    let mut next = ChipGuest::<C, _>::connect(path, 9, "");
    exchange_few(&mut next, b, 30, LENGTHS);
}

/// Less would show nothing.
fn enough(frames: &AtomicU64, rounds: &AtomicU64) -> bool {
    frames.load(Ordering::Relaxed) > 1000 && rounds.load(Ordering::Relaxed) > 15
}

fn siege(workers: &str, seed: u64) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned).to_vec();
    for (name, kind, keys) in [
        ("a", "vfio-user", ",model=r8169"),
        ("b", "vfio-user", ",model=rtl8139,csb=on"),
        ("v", "vhost-user", ""),
        ("gigabit", "vfio-user", ",model=r8169,csb=on"),
        ("plus", "vfio-user", ",model=rtl8139,csb=on"),
        ("classic", "vfio-user", ",model=rtl8139,plus=off"),
    ] {
        words.push(format!("{name}={kind}:{}{keys}", socket(name).display()));
    }
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = ChipGuest::<R8169, _>::connect(&socket("a"), 1, ",writes=posted");
    let mut b = ChipGuest::<Rtl8139, _>::connect(&socket("b"), 2, ",csb");
    let mut v = VirtioGuest::connect(&socket("v"), 3, "");
    v.expect_padding();
    exchange(&mut a, &mut b, 10, LENGTHS);
    exchange(&mut v, &mut b, 10, LENGTHS);
    let (stop, frames, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let [gigabit, plus, old] = &["gigabit", "plus", "classic"].map(socket);
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        let ends = (&stop, &rounds);
        scope.spawn(move || {
            attack::<R8169>(gigabit, ",size=64,writes=posted", seed, r8169, ends);
        });
        scope.spawn(move || attack::<Rtl8139>(plus, ",writes=posted", seed + 1, rtl8139, ends));
        scope.spawn(move || attack::<Classic>(old, "", seed + 2, classic, ends));
        hold_out(SIEGE, &stop, || enough(&frames, &rounds));
        pair.join().expect("the pair loses nothing");
    });
    exchange_known(&mut v, &mut b, 500, LENGTHS);
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (moved, attackers) = (count(&frames), count(&rounds));
    println!("{workers} workers: {attackers} attackers, {moved} frames between a and b, none lost");
    assert!(enough(&frames, &rounds), "too little to show anything");
    for name in ["a", "b", "v"] {
        assert_eq!(switch.port(name)?["faults"], 0, "{name} did nothing wrong");
    }
    for name in ["gigabit", "plus", "classic"] {
        // Garbage was served: frames came of it, or were dropped.
        let port = switch.port(name)?;
        println!("{name}: in {}, drops {}, faults {}", port["in"], port["drops"], port["faults"]);
    }
    next::<R8169>(&socket("gigabit"), &mut b);
    next::<Rtl8139>(&socket("plus"), &mut b);
    next::<Classic>(&socket("classic"), &mut b);
    switch.alive()
}

#[test]
fn garbage_in_rings_buffers_and_registers_harms_nobody() -> Result<()> {
    siege("1", 7)?;
    siege("2", 77)
}
