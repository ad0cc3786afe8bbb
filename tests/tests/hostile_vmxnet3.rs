//! Two guests talk, by vmxnet3s. Two neighbours with the same chip write garbage over its shared
//! area, its queues, their descriptors and all registers, and give commands in any order. The two
//! lose nothing, and the next client of a hostile one's port finds a good chip.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vmlan_driver::vmxnet3::Vmware;
use vmlan_tests::chip_guest::ChipGuest;
use vmlan_tests::exchange::{TestGuest, exchange, exchange_few, exchange_known};
use vmlan_tests::hostile_chip::{Hostile, LENGTHS, Random, attack, hold_out, talk};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Bus, Width};

/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(4);

/// Where things are when they are good: the shared area, the descriptions of a transmit and a
/// receive queue, the rings of buffers and of reports.
const AREA: usize = 0x1000;
const QUEUES: usize = 0x1400;
const RINGS: [u64; 5] = [0x2000, 0x3000, 0x4000, 0x5000, 0x6000];
/// Where most garbage goes: all of that.
const SCRIBBLED: u32 = 0x7000;
/// Descriptors of a ring.
const SIZE: u32 = 128;

/// IMR, doorbells, VRRS, UVRS, DSAL, DSAH, CMD, MACL, MACH, ICR, ECR.
const REGISTERS: [u32; 16] = [
    0x000, 0x008, 0x0c0, 0x600, 0x608, 0x800, 0xa00, 0x1000, 0x1008, 0x1010, 0x1018, 0x1020,
    0x1028, 0x1030, 0x1038, 0x1040,
];
const CMD: u32 = 0x1020;
const ACTIVATE: u32 = 0xcafe_0000;

/// Half a descriptor, most of them such as may be served: an address in one of both regions, or
/// lengths and flags.
fn quadword(random: &mut Random) -> u64 {
    let length = |random: &mut Random| random.any() & 0x3fff;
    match random.below(8) {
        0 => random.any(),
        1 => 1 << 32 | u64::from(random.below(0x4_0000)),
        2 => u64::from(random.below(0x8000)),
        // Transmit: whole frames; those that want something; chains.
        3 => 3 << 44 | random.any() & 1 << 14 | length(random),
        4 => 3 << 44 | random.any() & 0xffff_8fff_ffff_ffff,
        5 => random.any() & 0x0c3f_ffff_ffff,
        // Receive: heads and bodies.
        6 => random.any() & 0x8000_4000 | length(random),
        // Sizes, numbers and flags.
        _ => u64::from(random.value()) | random.any() & 0xff << 32,
    }
}

/// A good area with good queues, but for a field now and then; the chip begins anew with it.
fn activate(guest: &mut Hostile) {
    let put = |at: usize, value: u64| guest.ram.write(at, &value.to_le_bytes());
    put(AREA, 0xbabe_fee1);
    put(AREA + 0x10, 1 << 32 | 1);
    put(AREA + 0x18, 5);
    put(AREA + 0x28, QUEUES as u64);
    put(AREA + 0x30, 512 << 32);
    put(AREA + 0x38, 0x0101_0000_0000_05dc);
    put(AREA + 0x50, 0x0808_0808_0800_0101);
    put(AREA + 0x78, 0x1f);
    let [tx, sent, heads, bodies, received] = RINGS;
    for (queue, rings, sizes) in [
        (QUEUES, [tx, 0, sent], [SIZE, 0, SIZE]),
        (QUEUES + 0x100, [heads, bodies, received], [SIZE, SIZE, 2 * SIZE]),
    ] {
        (0..3).for_each(|n| put(queue + 0x10 + 8 * n, rings[n]));
        put(queue + 0x38, u64::from(sizes[1]) << 32 | u64::from(sizes[0]));
        put(queue + 0x40, sizes[2].into());
        put(queue + 0x48, 0);
    }
    if guest.random.below(3) == 0 {
        let at = AREA + 4 * guest.random.below(0x180) as usize;
        let value = guest.random.value();
        guest.ram.write(at, &value.to_le_bytes());
    }
    guest.write(0x1010, Width::Four, 0x1000);
    guest.write(0x1018, Width::Four, 0);
    guest.write(CMD, Width::Four, ACTIVATE);
    guest.write(0, Width::Four, 0);
}

/// A frame, or a part of one, that the chip will look at next, and a buffer: half of them good.
fn describe(guest: &mut Hostile, n: usize) {
    let random = &mut guest.random;
    let address = random.of(&[0x2000, 0x8000, 1 << 32]) + u64::from(random.below(0x2000));
    let good = (3 << 44) | (60 + random.any() % 1500);
    let sent = if random.below(2) == 0 { good } else { quadword(random) };
    let buffer = if random.below(2) == 0 { 2048 } else { quadword(random) };
    let [tx, _, heads, ..] = RINGS.map(|ring| usize::try_from(ring).expect("low") + 16 * n);
    for (at, word) in [
        (tx, address),
        (tx + 8, sent | 1 << 14),
        (heads, address ^ 0x800),
        (heads + 8, buffer | 1 << 31),
    ] {
        guest.ram.write(at, &word.to_le_bytes());
    }
}

/// A write of any width, and a read, of any register; or a command.
fn anything(guest: &mut Hostile) {
    let any = guest.random.below(0x2000);
    let (register, width) = match guest.random.below(4) {
        0 => (any & !3, guest.random.of(&[Width::One, Width::Two, Width::Four])),
        1 => (CMD, Width::Four),
        _ => (guest.random.of(&REGISTERS), Width::Four),
    };
    let value = match register {
        CMD => guest.random.of(&[0xcafe_0000, 0xf00d_0000]) + guest.random.below(24),
        _ => guest.random.value(),
    };
    guest.write(register, width, value);
    guest.read(register, width);
    guest.alive = guest.alive && guest.bus.unmask().is_ok();
}

fn rampage(guest: &mut Hostile) {
    for n in 0..500 {
        if n % 32 == 0 {
            activate(guest);
        }
        for _ in 0..2 {
            let word = quadword(&mut guest.random);
            guest.scribble(SCRIBBLED, word);
        }
        describe(guest, n % 32);
        let doorbell = guest.random.of(&[0x600, 0x800, 0xa00]);
        let value = guest.random.below(SIZE);
        guest.write(doorbell, Width::Four, value);
        guest.write(0, Width::Four, 0);
        if n % 4 == 0 {
            anything(guest);
        }
    }
}

/// The port's client after a hostile one.
fn next(path: &Path, b: &mut ChipGuest<Vmware, VfioBus>) {
    let mut next = ChipGuest::<Vmware, _>::connect(path, 9, "");
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
    words.push(format!("v=vhost-user:{}", socket("v").display()));
    for name in ["a", "b", "one", "two"] {
        words.push(format!("{name}=vfio-user:{},model=vmxnet3", socket(name).display()));
    }
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = ChipGuest::<Vmware, _>::connect(&socket("a"), 1, ",writes=posted,fence=off");
    let mut b = ChipGuest::<Vmware, _>::connect(&socket("b"), 2, "");
    let mut v = VirtioGuest::connect(&socket("v"), 3, "");
    v.expect_padding();
    exchange(&mut a, &mut b, 10, LENGTHS);
    exchange(&mut v, &mut b, 10, LENGTHS);
    let (stop, frames, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let [one, two] = &["one", "two"].map(socket);
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        let ends = (&stop, &rounds);
        scope.spawn(move || attack::<Vmware>(one, ",size=256", seed, rampage, ends));
        let keys = ",size=256,irq=intx,writes=posted";
        scope.spawn(move || attack::<Vmware>(two, keys, seed + 1, rampage, ends));
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
    for name in ["one", "two"] {
        // Garbage was served: frames came of it, or were dropped.
        let port = switch.port(name)?;
        println!("{name}: in {}, drops {}, faults {}", port["in"], port["drops"], port["faults"]);
        next(&socket(name), &mut b);
    }
    switch.alive()
}

#[test]
fn garbage_in_its_area_queues_and_registers_harms_nobody() -> Result<()> {
    siege("1", 7)?;
    siege("2", 77)
}
