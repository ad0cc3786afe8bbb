//! Two guests talk by their shared status blocks. A neighbour with two NICs does everything with
//! its blocks that is not done: places them anywhere, both at the same place, turns them on and
//! off, and has any indexes and wishes in them. The two lose nothing, and the next client of the
//! neighbour's ports finds good chips.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::e1000::E1000;
use vmlan_tests::chip_guest::{E1000Guest, e1000_address};
use vmlan_tests::exchange::{TestGuest, exchange, exchange_few, exchange_known};
use vmlan_tests::hostile_chip::hold_out;
use vmlan_tests::numbered::{STALL, Sizes, Stops};
use vmlan_tests::virtio_guest::VirtioGuest;
use vmlan_tests::{Result, Switch};
use vmlan_transport::Bus;
use vmlan_transport::memory::Ram;
use vmlan_transport::vfio_user::VfioBus;

const LENGTHS: Sizes = Sizes { least: 14, most: 1514 };
/// How long it goes on.
const SIEGE: Duration = Duration::from_secs(2);

/// CSBAL, CSBAH, TDT, RDT.
const CSBAL: u32 = 0x2830;
const CSBAH: u32 = 0x2834;
const TAILS: [u32; 2] = [0x3818, 0x2818];
/// The hostile driver's block, in memory for rings of 256 descriptors; those it makes have 64.
/// Buffers are in the high region.
const BLOCK: u32 = 0x1000;
const BUFFERS: u64 = 1 << 32;
const RING: u32 = 64;
/// The guest's words: indexes, wishes, on.
const INDEXES: [u32; 2] = [0x00, 0x10];
const WISHES: [u32; 2] = [0x04, 0x08];
const ON: u32 = 0x0c;

fn talk(a: &mut dyn TestGuest, b: &mut dyn TestGuest, stop: &AtomicBool, frames: &AtomicU64) {
    let _stops = Stops(stop);
    while !stop.load(Ordering::Relaxed) {
        exchange_known(a, b, 500, LENGTHS);
        frames.fetch_add(1000, Ordering::Relaxed);
    }
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 32).unwrap() % bound
    }

    fn pick(&mut self, of: &[u32]) -> u32 {
        of[self.below(u32::try_from(of.len()).unwrap()) as usize]
    }
}

/// One machine with two NICs.
struct Hostile {
    buses: Vec<VfioBus>,
    ram: Arc<Ram>,
    random: Random,
}

impl Hostile {
    /// A driver starts each chip, so that there is something to break.
    fn connect(paths: &[&Path], seed: u64) -> Self {
        let first = e1000_address(paths[0], ",size=256");
        let ram = vmlan_driver::nic::make_ram(&first.driver).unwrap();
        let mut buses = Vec::new();
        for path in paths {
            let address = e1000_address(path, ",size=256");
            let bus =
                VfioBus::connect(&address, &ram, STALL).expect("the port takes the next client");
            drop(E1000::new(address.driver.clone(), &ram, bus).expect("a chip that starts"));
            buses.push(VfioBus::connect(&address, &ram, STALL).expect("it does so again"));
        }
        let mut hostile = Self { buses, ram, random: Random(seed | 1) };
        for n in 0..hostile.buses.len() {
            hostile.start(n);
        }
        hostile
    }

    /// Rings at 0 and 0x400, full of frames and buffers; both chips on, both blocks in one place.
    fn start(&mut self, n: usize) {
        for i in 0..RING {
            self.ram.write(16 * i as usize, &BUFFERS.to_le_bytes());
            self.ram.write(16 * i as usize + 8, &(60_u64 | 0x0b << 24).to_le_bytes());
            self.ram.write(0x400 + 16 * i as usize, &(BUFFERS + 2048 * u64::from(i)).to_le_bytes());
        }
        let bus = &mut self.buses[n];
        bus.write_config(4, &7_u16.to_le_bytes()).unwrap();
        for (base, at) in [(0x3800, 0), (0x2800, 0x400)] {
            for (register, value) in [(0, at), (4, 0), (8, 16 * RING), (16, 0), (24, 0)] {
                bus.write32(base + register, value).unwrap();
            }
        }
        for (register, value) in [(0xd0, 0x9d), (0, 0x40), (0x100, 0x801e), (0x400, 0xa)] {
            bus.write32(register, value).unwrap();
        }
        bus.write32(CSBAH, 0).unwrap();
        bus.write32(CSBAL, BLOCK).unwrap();
    }

    fn put(&self, word: u32, value: u32) {
        self.ram.write((BLOCK + word) as usize, &value.to_le_bytes());
    }

    /// A register of either chip. It hangs up on nobody for any of this.
    fn write(&mut self, register: u32, value: u32) {
        let n = self.random.below(u32::try_from(self.buses.len()).unwrap());
        self.buses[n as usize].write32(register, value).expect("the connection lasts");
    }

    fn rampage(&mut self) {
        for n in 0..3000 {
            let any = self.random.below(u32::MAX);
            let index =
                self.random.pick(&[any, RING, any % RING, any % RING, any % RING, any % RING]);
            let (word, wish) = (self.random.pick(&INDEXES), self.random.pick(&WISHES));
            self.put(word, index);
            self.put(wish, any % 4);
            // On and off, tens of thousands of times a second.
            self.put(ON, u32::from(!any.is_multiple_of(3)));
            if n % 16 == 0 {
                let tail = self.random.pick(&TAILS);
                self.write(tail, any % RING);
            }
            if n % 256 == 0 {
                // Unaligned, outside, at the end, in the rings, released; then back.
                let places = [BLOCK + 4, any, 0x3000 - 64, 0, 64, 0x400, BLOCK];
                let place = self.random.pick(&places);
                self.write(CSBAH, any & 2);
                self.write(CSBAL, place);
                self.write(CSBAH, 0);
                self.write(CSBAL, BLOCK);
            }
        }
        // What a ring stopped for is mended by a reset, through which the block goes on.
        for n in 0..self.buses.len() {
            self.buses[n].write32(0, 1 << 26).expect("the connection lasts");
            self.start(n);
        }
    }
}

fn attack(paths: &[&Path], seed: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let _stops = Stops(stop);
    let mut seed = seed;
    while !stop.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut hostile = Hostile::connect(paths, seed);
        let end = Instant::now() + Duration::from_millis(150);
        while !stop.load(Ordering::Relaxed) && Instant::now() < end {
            hostile.rampage();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Less would show nothing.
fn enough(frames: &AtomicU64, rounds: &AtomicU64) -> bool {
    frames.load(Ordering::Relaxed) > 1000 && rounds.load(Ordering::Relaxed) > 3
}

fn siege(workers: &str, seed: u64) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let socket = |name: &str| dir.path().join(format!("{name}.sock"));
    let mut words = ["--full-wait", "10000000", "--workers", workers].map(str::to_owned).to_vec();
    for name in ["a", "b", "h1", "h2"] {
        words.push(format!("{name}=vfio-user:{},model=e1000,csb=on", socket(name).display()));
    }
    words.push(format!("v=vhost-user:{}", socket("v").display()));
    let mut switch = Switch::start(dir.path(), None, &words)?;
    let mut a = E1000Guest::connect(&socket("a"), 1, ",csb");
    let mut b = E1000Guest::connect(&socket("b"), 2, ",csb");
    let mut v = VirtioGuest::connect(&socket("v"), 3, "");
    v.expect_padding();
    exchange(&mut a, &mut b, 10, LENGTHS);
    exchange(&mut v, &mut b, 10, LENGTHS);
    let (stop, frames, rounds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let pair = scope.spawn(|| talk(&mut a, &mut b, &stop, &frames));
        let attacker =
            scope.spawn(|| attack(&[&socket("h1"), &socket("h2")], seed, &stop, &rounds));
        hold_out(SIEGE, &stop, || enough(&frames, &rounds));
        pair.join().expect("the pair loses nothing");
        attacker.join().expect("it is served to the end");
    });
    exchange_known(&mut v, &mut b, 500, LENGTHS);
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (moved, rampages) = (count(&frames), count(&rounds));
    println!("{workers} workers: {rampages} rampages, {moved} frames between a and b, none lost");
    assert!(enough(&frames, &rounds), "too little to show anything");
    for name in ["a", "b", "v"] {
        assert_eq!(switch.port(name)?["faults"], 0, "{name} did nothing wrong");
    }
    assert_eq!(switch.port("b")?["device"]["csb"]["on"], true);
    for name in ["h1", "h2"] {
        let port = switch.port(name)?;
        println!("{name}: in {}, faults {}, {}", port["in"], port["faults"], port["device"]["csb"]);
        assert!(port["faults"].as_u64() > Some(0), "misplaced blocks are counted");
        assert!(port["device"]["csb"]["host_asked"].as_u64() > Some(0), "the block was in use");
        let mut next = E1000Guest::connect(&socket(name), 9, ",csb");
        exchange_few(&mut next, &mut b, 30, LENGTHS);
    }
    switch.alive()
}

#[test]
fn any_block_of_a_neighbour_harms_nobody() -> Result<()> {
    siege("1", 5)?;
    siege("2", 55)
}
