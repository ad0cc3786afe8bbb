//! Two guests talk. Two neighbours with e1000s, or with e1000es, write garbage over their rings,
//! their descriptors, and all registers, by messages and through the mapped page, as fast as they
//! can. The two lose nothing, and the next client of a hostile one's port finds a good chip.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vmlan_driver::chip::Chip;
use vmlan_driver::e1000::{Intel, Intel82574};
use vmlan_tests::chip_guest::{ChipGuest, E1000Guest};
use vmlan_tests::exchange::{TestGuest, exchange, exchange_few, exchange_known};
use vmlan_tests::hostile_chip::{Hostile, LENGTHS, Random, attack, hold_out, talk};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};
use vmlan_transport::{Bus, Model, Width};

/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(5);

/// Ring registers: receive, then transmit: base, length, head, tail, and the delays.
const RINGS: [u32; 14] = [
    0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x282c, 0x3800, 0x3804, 0x3808, 0x3810, 0x3818,
    0x3820, 0x382c,
];
/// CTRL, EERD, MDIC, VET, ICR, ITR, ICS, IMS, IMC, RCTL, TCTL, RXCSUM.
const OTHERS: [u32; 12] = [0, 0x14, 0x20, 0x38, 0xc0, 0xc4, 0xc8, 0xd0, 0xd8, 0x100, 0x400, 0x5000];
/// Those of an e1000e: EIAC, IAM, IVAR, EITR, CTRL_EXT, PSRCTL, RFCTL, MRQC, RETA, RSSRK, and rings
/// of the second queues.
const NEWER: [u32; 12] =
    [0xdc, 0xe0, 0xe4, 0xe8, 0x18, 0x2170, 0x5008, 0x5818, 0x5c00, 0x5c80, 0x2918, 0x3918];

/// A descriptor's quadword that may be served: a buffer in one of both regions, or length and
/// commands.
fn quadword(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.any(),
        1 => 1 << 32 | u64::from(random.below(0x4_0000)),
        2 => u64::from(random.below(0x2000)),
        3 => u64::from(random.below(0x1_0000)) | 0x0b00_0000,
        4 => random.any() & 0xffff_00ff_fff0_ffff | 0x2010_0000,
        _ => random.any() & 0x0000_ffff_2000_ffff | 0x2000_0000,
    }
}

/// By a store where that can be; by a message now and then where not, for that takes a thousand
/// times as long.
fn store(guest: &mut Hostile, offset: u32, value: u32) {
    if let Some(word) = guest.bus.mapped(offset) {
        word.store(value, Ordering::Relaxed);
    } else if guest.random.below(8) == 0 {
        // A server that hung up is noticed elsewhere.
        let _ = guest.bus.write32(offset, value);
    }
}

/// Good rings again, with what lies there as descriptors: the chip moves on to the next garbage.
fn restore_rings(guest: &mut Hostile) {
    let tail = guest.random.below(64);
    let (transmit, receive) = ([0, 0, 1024, 0, tail], [1024, 0, 1024, 0, tail]);
    for (registers, values) in [(&RINGS[7..12], transmit), (&RINGS[..5], receive)] {
        for (register, value) in registers.iter().zip(values) {
            let _ = guest.bus.write32(*register, value);
        }
    }
}

fn rampage(guest: &mut Hostile) {
    for (register, value) in [(0, 0x40), (0x100, 0x801e), (0x400, 0xa)] {
        guest.write(register, Width::Four, value);
    }
    for n in 0..2000 {
        if n % 64 == 0 {
            restore_rings(guest);
        }
        // Mostly tails, by which garbage is reached.
        let ring = guest.random.of(&RINGS);
        let ring = if n % 64 < 48 { ring & 0x3000 | 0x818 } else { ring };
        let any = guest.random.value();
        store(guest, ring, if n % 64 < 48 { any % 64 } else { any });
        if n % 64 == 63 {
            let page = 0x2000 + 4 * guest.random.below(0x800);
            store(guest, page, any);
        }
        let word = quadword(&mut guest.random);
        guest.scribble(0x800, word);
        if guest.random.below(16) == 0 && guest.alive {
            let register = match guest.random.below(3) {
                0 if guest.random.below(2) == 0 => guest.random.of(&NEWER),
                0 => guest.random.of(&OTHERS),
                1 => ring,
                _ => 4 * guest.random.below(0x8000),
            };
            let value = guest.random.value();
            // Not a reset each time, or there is nothing to break.
            let value = if register == 0 { value & !(1 << 26) | 0x40 } else { value };
            guest.write(register, Width::Four, value);
            guest.read(register, Width::Four);
            guest.alive = guest.alive && guest.bus.unmask().is_ok();
        }
    }
}

fn mad<C: Chip>(path: &Path, seed: u64, ends: (&AtomicBool, &AtomicU64)) {
    attack::<C>(path, ",size=64", seed, rampage, ends);
}

fn mapped_or_trapped(name: &str) -> bool {
    ["mapped", "trapped"].contains(&name)
}

/// Less would show nothing.
fn enough(frames: &AtomicU64, rounds: &AtomicU64) -> bool {
    frames.load(Ordering::Relaxed) > 2000 && rounds.load(Ordering::Relaxed) > 20
}

fn siege<C: Chip>(workers: &str, seed: u64) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned).to_vec();
    for (name, kind) in [
        ("a", "vfio-user"),
        ("b", "vfio-user"),
        ("v", "vhost-user"),
        ("trapped", "vfio-user"),
        ("mapped", "vfio-user"),
    ] {
        let mapped = if name == "b" || name == "mapped" { ",doorbell=mapped" } else { "" };
        let hostile = if mapped_or_trapped(name) { C::MODEL } else { Model::E1000 };
        let model = if kind == "vfio-user" { format!(",model={hostile}") } else { String::new() };
        words.push(format!("{name}={kind}:{}{mapped}{model}", socket(name).display()));
    }
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = E1000Guest::connect(&socket("a"), 1, ",writes=posted");
    let mut b = E1000Guest::connect(&socket("b"), 2, "");
    let mut v = VirtioGuest::connect(&socket("v"), 3, "");
    v.expect_padding();
    exchange(&mut a, &mut b, 10, LENGTHS);
    exchange(&mut v, &mut b, 10, LENGTHS);
    let (stop, frames, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        for (name, seed) in [("trapped", seed), ("mapped", seed + 1)] {
            let (path, ends) = (socket(name), (&stop, &rounds));
            scope.spawn(move || mad::<C>(&path, seed, ends));
        }
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
    for name in ["trapped", "mapped"] {
        // Garbage was served: frames came of it, or were dropped.
        let port = switch.port(name)?;
        println!("{name}: in {}, drops {}, faults {}", port["in"], port["drops"], port["faults"]);
        let mut next = ChipGuest::<C, _>::connect(&socket(name), 9, "");
        exchange_few(&mut next, &mut b, 30, LENGTHS);
    }
    switch.alive()
}

#[test]
fn garbage_in_rings_and_registers_harms_nobody() -> Result<()> {
    siege::<Intel>("1", 7)?;
    siege::<Intel>("2", 77)
}

#[test]
fn garbage_in_an_e1000e_harms_nobody() -> Result<()> {
    siege::<Intel82574>("1", 5)?;
    siege::<Intel82574>("2", 55)
}
