//! Guests that talk while their neighbours go mad: what the tests with hostile chips share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vmlan_driver::chip::{Chip, ChipDriver};
use vmlan_transport::memory::Ram;
use vmlan_transport::vfio_user::VfioBus;
use vmlan_transport::{Bus, Width};

use crate::chip_guest::address;
use crate::exchange::{TestGuest, exchange_known};
use crate::numbered::{STALL, Sizes, Stops};

/// What the honest send.
pub const LENGTHS: Sizes = Sizes { least: 14, most: 1514 };

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}

/// Pseudo-random numbers (xorshift64).
pub struct Random(pub u64);

impl Random {
    /// Any.
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One below `bound`.
    ///
    /// # Panics
    /// When that is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.any() >> 32).expect("32 bits") % bound
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(u32::try_from(all.len()).expect("a few")) as usize]
    }

    /// A register's value: often one that looks right, sometimes anything.
    pub fn value(&mut self) -> u32 {
        match self.below(8) {
            0 => self.below(u32::MAX),
            1 => 1 << self.below(32),
            2 => 0,
            3 => u32::MAX,
            4 => 128 * self.below(40),
            _ => self.below(256),
        }
    }
}

/// A hostile guest.
pub struct Hostile {
    /// Its way to the chip.
    pub bus: VfioBus,
    /// Its memory, which the chip reaches.
    pub ram: Arc<Ram>,
    /// Its dice.
    pub random: Random,
    /// The server has not hung up, which is its right.
    pub alive: bool,
}

impl Hostile {
    /// A driver starts the chip, so that its rings work; then it goes mad.
    fn connect<C: Chip>(path: &Path, keys: &str, seed: u64) -> Option<Self> {
        let address = address(C::MODEL, path, keys);
        let ram = vmlan_driver::nic::make_ram(&address.driver).ok()?;
        // The port may be busy for a moment with the end of the one before.
        let bus = VfioBus::connect(&address, &ram, STALL).ok()?;
        drop(ChipDriver::<C, _>::new(address.driver.clone(), &ram, bus).ok()?);
        let bus = VfioBus::connect(&address, &ram, STALL).ok()?;
        Some(Self { bus, ram, random: Random(seed | 1), alive: true })
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u32, width: Width, value: u32) {
        self.alive = self.alive && self.bus.write(offset, width, value).is_ok();
    }

    /// Reads one.
    pub fn read(&mut self, offset: u32, width: Width) {
        self.alive = self.alive && self.bus.read(offset, width).is_ok();
    }

    /// Puts a quadword into memory, mostly below `often`.
    ///
    /// # Panics
    /// When there is too little memory.
    pub fn scribble(&mut self, often: u32, word: u64) {
        let size = u32::try_from(self.ram.size() / 8).expect("little memory");
        let at = 8 * self.random.below(size);
        let at = if self.random.below(4) > 0 { at % often } else { at };
        self.ram.write(at as usize, &word.to_le_bytes());
    }
}

/// What a hostile guest does in one round.
pub type Rampage = fn(&mut Hostile);

/// Goes on until `stop`; a new client takes the place of the old every 100 ms.
///
/// # Panics
/// When the port does not take the next client.
pub fn attack<C: Chip>(
    path: &Path,
    keys: &str,
    seed: u64,
    rampage: Rampage,
    (stop, rounds): (&AtomicBool, &AtomicU64),
) {
    let _stops = Stops(stop);
    let mut seed = seed;
    while !stopped(stop) {
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut hostile =
            Hostile::connect::<C>(path, keys, seed).expect("the port takes the next client");
        let end = Instant::now() + Duration::from_millis(100);
        while !stopped(stop) && Instant::now() < end && hostile.alive {
            // Memory, I/O, bus master.
            hostile.alive = hostile.bus.write_config(4, &7_u16.to_le_bytes()).is_ok();
            rampage(&mut hostile);
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Two honest guests, until `stop`; every frame is compared with what was sent, none may be
/// missing.
pub fn talk(a: &mut dyn TestGuest, b: &mut dyn TestGuest, stop: &AtomicBool, frames: &AtomicU64) {
    let _stops = Stops(stop);
    while !stopped(stop) {
        exchange_known(a, b, 500, LENGTHS);
        frames.fetch_add(1000, Ordering::Relaxed);
    }
}

/// How long a busy machine may take for what it would do in less.
const LONGEST: Duration = Duration::from_secs(600);

/// Sleeps until `time` is over and there was `enough` to show something, or somebody failed; then
/// all stop.
pub fn hold_out(time: Duration, stop: &AtomicBool, enough: impl Fn() -> bool) {
    let begin = Instant::now();
    let over = || begin.elapsed() > LONGEST || begin.elapsed() > time && enough();
    while !over() && !stopped(stop) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(Stops(stop));
}
