//! Two guests talk. Two neighbours with e1000s write garbage over their rings, their descriptors, and all registers, by
//! messages and through the mapped page, as fast as they can. The two lose nothing, and the next client of a hostile one's
//! port finds a good chip.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::e1000::{Bus, E1000};
use vmlan_driver::mem::Ram;
use vmlan_driver::vfio_user::bus::VfioBus;
use vmlan_tests::e1000::{Intel, address};
use vmlan_tests::native::{Native, STALL, Sizes, Stops};
use vmlan_tests::peer::{Peer, exchange, exchange_known};
use vmlan_tests::{Result, Switch};

const LENGTHS: Sizes = Sizes { least: 14, most: 1514 };
/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(5);

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Two honest guests; every frame is compared with what was sent, none may be missing.
fn talk(a: &mut dyn Peer, b: &mut dyn Peer, stop: &AtomicBool, frames: &AtomicU64) {
    let _stops = Stops(stop);
    while !stopped(stop) {
        exchange_known(a, b, 500, LENGTHS);
        frames.fetch_add(1000, Ordering::Relaxed);
    }
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() >> 32).unwrap() % bound
    }
}

/// Ring registers: receive, then transmit: base, length, head, tail, and the delays.
const RINGS: [u32; 14] = [
    0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x282c, 0x3800, 0x3804, 0x3808, 0x3810, 0x3818,
    0x3820, 0x382c,
];
/// CTRL, EERD, MDIC, VET, ICR, ITR, ICS, IMS, IMC, RCTL, TCTL, RXCSUM.
const OTHERS: [u32; 12] = [0, 0x14, 0x20, 0x38, 0xc0, 0xc4, 0xc8, 0xd0, 0xd8, 0x100, 0x400, 0x5000];

/// A register's value: often one that looks right, sometimes anything.
fn value(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => random.below(u32::MAX),
        1 => 1 << random.below(32),
        2 => 0,
        3 => u32::MAX,
        4 => 128 * random.below(40),
        _ => random.below(256),
    }
}

/// A descriptor's quadword that may be served: a buffer in one of both regions, or length and commands.
fn quadword(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.next(),
        1 => 1 << 32 | u64::from(random.below(0x4_0000)),
        2 => u64::from(random.below(0x2000)),
        3 => u64::from(random.below(0x1_0000)) | 0x0b00_0000,
        4 => random.next() & 0xffff_00ff_fff0_ffff | 0x2010_0000,
        _ => random.next() & 0x0000_ffff_2000_ffff | 0x2000_0000,
    }
}

struct Hostile {
    bus: VfioBus,
    ram: Arc<Ram>,
    random: Random,
}

impl Hostile {
    /// A driver starts the chip, so that its rings work; then it goes mad.
    fn connect(path: &std::path::Path, seed: u64) -> Option<Self> {
        let address = address(path, ",size=64");
        let ram = address.driver.make_ram().unwrap();
        // The port may be busy for a moment with the end of the one before.
        let bus = VfioBus::connect(&address, &ram, STALL).ok()?;
        drop(E1000::new(address.driver.clone(), &ram, bus).ok()?);
        let bus = VfioBus::connect(&address, &ram, STALL).ok()?;
        Some(Self { bus, ram, random: Random(seed | 1) })
    }

    /// By a store where that can be; by a message now and then where not, for that takes a thousand times as long.
    fn store(&mut self, offset: u32, value: u32) {
        if let Some(word) = self.bus.mapped(offset) {
            word.store(value, Ordering::Relaxed);
        } else if self.random.below(8) == 0 {
            // A server that hung up is noticed elsewhere.
            let _ = self.bus.write32(offset, value);
        }
    }

    /// Good rings again, with what lies there as descriptors: the chip moves on to the next garbage.
    fn mend(&mut self) {
        let tail = self.random.below(64);
        let (transmit, receive) = ([0, 0, 1024, 0, tail], [1024, 0, 1024, 0, tail]);
        for (registers, values) in [(&RINGS[7..12], transmit), (&RINGS[..5], receive)] {
            for (register, value) in registers.iter().zip(values) {
                let _ = self.bus.write32(*register, value);
            }
        }
    }

    /// False once the server has hung up, which is its right.
    fn rampage(&mut self, most: u32) -> bool {
        // Memory, I/O, bus master.
        let mut alive = self.bus.write_config(4, &7_u16.to_le_bytes()).is_ok();
        for (register, value) in [(0, 0x40), (0x100, 0x801e), (0x400, 0xa)] {
            alive &= self.bus.write32(register, value).is_ok();
        }
        for n in 0..most {
            if n % 64 == 0 {
                self.mend();
            }
            // Mostly tails, by which garbage is reached.
            let ring = RINGS[self.random.below(14) as usize];
            let ring = if n % 64 < 48 { ring & 0x3000 | 0x818 } else { ring };
            let any = value(&mut self.random);
            self.store(ring, if n % 64 < 48 { any % 64 } else { any });
            if n % 64 == 63 {
                let page = 0x2000 + 4 * self.random.below(0x800);
                self.store(page, any);
            }
            let at = 8 * self.random.below(u32::try_from(self.ram.size() / 8).unwrap());
            let at = if self.random.below(4) > 0 { at % 0x800 } else { at };
            let word = quadword(&mut self.random).to_le_bytes();
            self.ram.write(at as usize, &word);
            if self.random.below(16) == 0 && alive {
                let register = match self.random.below(3) {
                    0 => OTHERS[self.random.below(12) as usize],
                    1 => ring,
                    _ => 4 * self.random.below(0x8000),
                };
                let value = value(&mut self.random);
                // Not a reset each time, or there is nothing to break.
                let value = if register == 0 { value & !(1 << 26) | 0x40 } else { value };
                alive = self.bus.write32(register, value).is_ok()
                    && self.bus.read32(register).is_ok()
                    && self.bus.unmask().is_ok();
            }
        }
        alive
    }
}

fn attack(path: &std::path::Path, seed: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let _stops = Stops(stop);
    let mut seed = seed;
    while !stopped(stop) {
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut hostile = Hostile::connect(path, seed).expect("the port takes the next client");
        let end = Instant::now() + Duration::from_millis(100);
        while !stopped(stop) && Instant::now() < end && hostile.rampage(2000) {}
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn siege(workers: &str, seed: u64) -> Result<()> {
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
        words.push(format!("{name}={kind}:{}{mapped}", socket(name).display()));
    }
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = Intel::connect(&socket("a"), 1, ",writes=posted");
    let mut b = Intel::connect(&socket("b"), 2, "");
    let mut v = Native::connect(&socket("v"), 3, "");
    v.expect_padding();
    exchange(&mut a, &mut b, 10, LENGTHS);
    exchange(&mut v, &mut b, 10, LENGTHS);
    let (stop, frames, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        for (name, seed) in [("trapped", seed), ("mapped", seed + 1)] {
            let (path, stop, rounds) = (socket(name), &stop, &rounds);
            scope.spawn(move || attack(&path, seed, stop, rounds));
        }
        let begin = Instant::now();
        while begin.elapsed() < SIEGE && !stopped(&stop) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(Stops(&stop));
        pair.join().expect("the pair loses nothing");
    });
    exchange_known(&mut v, &mut b, 500, LENGTHS);
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (moved, rounds) = (count(&frames), count(&rounds));
    println!("{workers} workers: {rounds} attackers, {moved} frames between a and b, none lost");
    assert!(moved > 2000 && rounds > 20);
    for name in ["a", "b", "v"] {
        assert_eq!(switch.port(name)?["faults"], 0, "{name} did nothing wrong");
    }
    for name in ["trapped", "mapped"] {
        // Garbage was served: frames came of it, or were dropped.
        let port = switch.port(name)?;
        println!("{name}: in {}, drops {}, faults {}", port["in"], port["drops"], port["faults"]);
        let mut next = Intel::connect(&socket(name), 9, "");
        exchange(&mut next, &mut b, 300, LENGTHS);
    }
    switch.alive()
}

#[test]
fn garbage_in_rings_and_registers_harms_nobody() -> Result<()> {
    siege("1", 7)?;
    siege("2", 77)
}
