//! Guests that break every rule of the CSB. They may lose their own frames. The chip goes on, says
//! what is wrong, and is as good as new for a driver that resets it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use vmlan_ram::{Mapping, Region};

use super::generations::traffic;
use super::*;
use crate::chip::{CsbFault, Fault};

/// A driver that finds the chip in any state starts it, and moves frames.
fn recovers(guest: &Guest) {
    for kind in [Kind::G4, Kind::New] {
        let mut driver = Driver::new(guest, kind);
        driver.turn_well(true);
        traffic(guest, &mut driver, &mut Wire::default(), 200);
        assert_eq!(driver.chip.fault(), None);
        driver.release();
    }
}

/// Takes everything.
struct Everything;

impl Sink for Everything {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

/// Moves whatever there is, as a worker with nothing against anybody. Returns what came.
fn serve(chip: &E1000, spare: &mut Batch<'static>) -> usize {
    let pulled = chip.pull(spare, 64, &mut Everything);
    assert!(pulled <= 64 + 4096, "a pass without bound");
    let mut batch = Batch::new();
    let bytes = [0xff; 60];
    for _ in 0..20 {
        batch.add_parts(&bytes, [], Offload::NONE).unwrap();
    }
    let list: Vec<u16> = (0..20).collect();
    if chip.push(&batch, &list) < 20 {
        let _ = chip.want_room();
    }
    let _ = (chip.arm(), chip.room(), chip.fault(), chip.device());
    pulled
}

#[test]
fn where_a_csb_cannot_be() {
    let guest = Guest::with(true);
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(MEMORY).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, MEMORY).unwrap());
    let region = |gpa, len| Region::new(gpa, len, gpa, gpa, mapping.clone()).unwrap();
    let regions = vec![region(0, 0x9000), region(0x9000, MEMORY - 0x9000)];
    drop(guest.chip.set_map(Arc::new(Map::new(regions, None).unwrap())));
    let end = u32::try_from(MEMORY).unwrap();
    for (low, high, fault) in [
        (0x9000 - 64, 0, CsbFault::Outside),
        (end - 64, 0, CsbFault::Outside),
        (end, 0, CsbFault::Outside),
        (0, 0xffff_fffe, CsbFault::Outside),
        (u32::MAX - 63, 0xffff_fffe, CsbFault::Outside),
        (0x8001, 0, CsbFault::Unaligned),
        (0x8020, 0, CsbFault::Unaligned),
        (u32::MAX, 0x7fff_ffff, CsbFault::Unaligned),
    ] {
        let faults = guest.chip.counters().faults.get();
        guest.set(CSBAH, high);
        guest.set(CSBAL, low);
        let address = u64::from(high) << 32 | u64::from(low);
        assert_eq!(guest.chip.fault(), Some(Fault::BadCsb { address, fault }));
        assert_eq!(guest.chip.counters().faults.get(), faults + 1);
        guest.set(CSBAH, 0);
        guest.set(CSBAL, 0);
        assert_eq!(guest.chip.fault(), None);
    }
    // At the very end there is room.
    guest.set(CSBAL, end - 128);
    assert_eq!(guest.chip.fault(), None);
}

#[test]
fn the_csbs_memory_goes_away_and_comes_back() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    traffic(&guest, &mut driver, &mut wire, 100);
    while wire.pull(driver.chip) > 0 {}
    // Its rings stay: only the page of the CSB is taken away.
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(0x1000).unwrap();
    let rest = Arc::new(Mapping::new(file.as_fd(), 0, 0x1000).unwrap());
    let poor = Map::new(vec![Region::new(0x40_0000, 0x1000, 0, 0, rest).unwrap()], None).unwrap();
    for published in [0, 3] {
        let old = driver.chip.set_map(Arc::new(Map::default()));
        // Published while the worker is awake and has nothing to look at.
        for _ in 0..published {
            assert!(driver.send());
        }
        assert_eq!(wire.pull(driver.chip), 0);
        let address = CSB.into();
        let said = driver.chip.fault();
        let csb = Fault::BadCsb { address, fault: CsbFault::Outside };
        assert!(said == Some(csb) || matches!(said, Some(Fault::BadRing { .. })), "{said:?}");
        drop(driver.chip.set_map(old));
        let mut come = 0;
        while wire.pull(driver.chip) > 0 {
            come += 1;
        }
        assert_eq!((wire.come, come > 0), (driver.sent, published > 0));
        traffic(&guest, &mut driver, &mut wire, 100);
        assert_eq!(driver.chip.fault(), None);
    }
    // An old map is nobody's after it was replaced: no copy of the CSB keeps it.
    let old = driver.chip.set_map(Arc::new(poor));
    let ours = Arc::strong_count(&guest.map);
    drop(old);
    assert!(Arc::strong_count(&guest.map) == ours - 1 && !driver.chip.device().csb.unwrap().on);
}

#[test]
fn the_csb_lies_in_a_ring() {
    let guest = Guest::with(true);
    let mut spare = Batch::new();
    for at in [TX_RING, TX_RING + 64, RX_RING, RX_RING + 16 * u64::from(SIZE) - 128, TX_BUFFERS] {
        let mut driver = Driver::new(&guest, Kind::New);
        driver.set(CSBAL, u32::try_from(at).unwrap());
        for n in 0..200u32 {
            guest.write(at + 0xc, &(n % 3).to_le_bytes());
            driver.send();
            driver.set(TD + TAIL, driver.next);
            serve(driver.chip, &mut spare);
        }
        recovers(&guest);
    }
}

#[test]
fn indexes_out_of_range_and_backwards() {
    let guest = Guest::with(true);
    let mut spare = Batch::new();
    let mut driver = Driver::new(&guest, Kind::New);
    driver.turn_well(true);
    serve(driver.chip, &mut spare);
    for n in [SIZE, SIZE + 1, 0xffff, 0x1_0000, 0x1_0000 | 5, u32::MAX] {
        let before = driver.reg(TD + TAIL);
        driver.put(GUEST_TDT, n);
        assert_eq!(serve(driver.chip, &mut spare), 0);
        let (ring, size, index) = ("transmit", SIZE, n);
        assert_eq!(driver.chip.fault(), Some(Fault::BadIndex { ring, size, index }));
        assert_eq!(driver.reg(TD + TAIL), before, "no register is made wrong by it");
        driver.put(GUEST_TDT, before);
        driver.put(GUEST_RDT, n);
        serve(driver.chip, &mut spare);
        let (ring, size, index) = ("receive", SIZE, n);
        assert_eq!(driver.chip.fault(), Some(Fault::BadIndex { ring, size, index }));
        driver.put(GUEST_RDT, (driver.reg(RD + HEAD) + SIZE - 1) % SIZE);
        serve(driver.chip, &mut spare);
        assert_eq!(driver.chip.fault(), None, "corrected, it goes on");
    }
    // Backwards: as if nearly the whole ring was posted. It is what the same register values would
    // do.
    for n in (0..500u32).rev() {
        driver.put(GUEST_TDT, n % SIZE);
        driver.put(GUEST_RDT, n * 7 % SIZE);
        serve(driver.chip, &mut spare);
    }
    recovers(&guest);
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 33).unwrap() % n
    }
}

/// Does `evil` to the CSB as fast as it can while the chips are served, then looks whether they
/// recover.
fn torment(guests: &[&Guest], evil: impl Fn(&Driver<'_>, &mut Random) + Sync) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for guest in guests {
            let driver = Driver::new(guest, Kind::New);
            let (stop, evil) = (&stop, &evil);
            scope.spawn(move || {
                let mut random = Random(7);
                while !stop.load(Ordering::Relaxed) {
                    evil(&driver, &mut random);
                }
            });
        }
        let begin = Instant::now();
        let mut spare = Batch::new();
        while begin.elapsed() < Duration::from_millis(300) {
            for guest in guests {
                serve(&guest.chip, &mut spare);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for guest in guests {
        recovers(guest);
    }
}

#[test]
fn kick_flags_flip_at_random() {
    torment(&[&Guest::with(true)], |driver, random| {
        let words = [GUEST_NEED_TXKICK, GUEST_NEED_RXKICK, HOST_NEED_TXKICK, HOST_RXKICK_AT];
        driver.put(CSB_ON, 1);
        driver.put(words[random.below(4) as usize], random.below(70));
        driver.put(GUEST_TDT, random.below(SIZE));
        driver.put(GUEST_RDT, random.below(SIZE));
    });
}

#[test]
fn turned_on_and_off_with_any_indexes() {
    torment(&[&Guest::with(true)], |driver, random| {
        driver.put(CSB_ON, random.below(2));
        driver.put([GUEST_TDT, GUEST_RDT][random.below(2) as usize], random.below(SIZE + 1));
        if random.below(50) == 0 {
            driver.set([TD, RD][random.below(2) as usize] + TAIL, random.below(SIZE));
        }
        if random.below(100) == 0 {
            driver.set(CSBAL, [CSB, 0, 0x1000][random.below(3) as usize]);
            driver.set(CSBAL, CSB);
        }
    });
}

#[test]
fn one_csb_for_two_chips() {
    // Two ports of one VM: the same memory.
    let (one, mut two) = (Guest::with(true), Guest::with(true));
    two.map = one.map.clone();
    drop(two.chip.set_map(one.map.clone()));
    torment(&[&one, &two], |driver, random| {
        driver.put(CSB_ON, 1);
        driver.put(GUEST_TDT, random.below(SIZE));
        driver.put(GUEST_RDT, random.below(SIZE));
        if random.below(20) == 0 {
            driver.set(TD + TAIL, 0);
        }
    });
    // Only one of them leaves it alone again.
    one.set(CSBAL, 0);
    recovers(&two);
}
