//! Death between any two machine instructions.
//!
//! Tests of death die at points in the source, one before each store to memory that outlives the
//! process. What death at an instruction leaves is what was stored until then. So it leaves what
//! death at some point leaves, if between two stores there is always a point: in the machine's
//! code, whatever the compiler made of the source. Here a process is run one instruction at a time,
//! and after each of them what it shares is looked at.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU32;

use vmlan_stepped::{Stopped, Watcher};

use super::held::fuse::POINTS;

/// What is looked at of each piece of shared memory: frames lie behind it.
const LOOKED_AT: usize = 0xa000;

/// From now on what this thread does in [`vmlan_stepped::watched`] is looked at.
pub fn watch_me() {
    vmlan_stepped::watch_me(&std::ptr::from_ref::<AtomicU32>(&POINTS).addr().to_string());
}

/// What a process shares, and what was seen of it.
#[derive(Debug)]
struct Shared {
    /// Where the points are counted, and how many there were at the last store.
    points: (u64, u32),
    places: Vec<(u64, Vec<u8>)>,
    stores: u64,
    /// Stores with no point since the one before.
    faults: String,
}

impl Shared {
    /// Looks again; which addresses hold something else than before.
    fn changes(&mut self, process: &Stopped) -> Vec<u64> {
        let mut changes = Vec::new();
        for (from, old) in &mut self.places {
            let mut new = vec![0; old.len()];
            process.read(*from, &mut new);
            if new != *old {
                let at = (*from..).zip(old.iter().zip(&new)).filter(|(_, (a, b))| a != b);
                changes.extend(at.map(|(at, _)| at));
                *old = new;
            }
        }
        changes
    }

    fn points(&self, process: &Stopped) -> u32 {
        let mut bytes = [0; 4];
        process.read(self.points.0, &mut bytes);
        u32::from_ne_bytes(bytes)
    }
}

impl Watcher for Shared {
    fn begins(&mut self, process: &Stopped) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid()));
        let maps = maps.expect("its mappings");
        let shared = maps.lines().filter(|l| l.contains(" rw-s ") && l.contains("/dev/shm/"));
        let places = shared.map(|line| {
            let (range, _) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("two ends");
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).expect("an address"));
            let len = usize::try_from(to - from).expect("a length").min(LOOKED_AT);
            (from, vec![0; len])
        });
        self.places = places.collect();
        self.changes(process);
        self.points.1 = self.points(process);
    }

    fn stepped(&mut self, process: &Stopped) {
        let changes = self.changes(process);
        if changes.is_empty() {
            return;
        }
        self.stores += 1;
        let now = self.points(process);
        if now == self.points.1 {
            let at = process.registers().rip;
            let line = format!("before {at:#x}: a second store to {changes:x?}");
            writeln!(self.faults, "{line}").expect("a string");
        }
        self.points.1 = now;
    }
}

/// Runs the test of this name, which does `what` and calls [`watch_me`], and looks at it.
///
/// # Panics
/// If there is no point between two of its stores.
pub fn has_a_point_before_each_store(test: &str, what: &str) {
    let (seen, instructions) = vmlan_stepped::watch(test, what, |says| Shared {
        points: (says.parse().expect("an address"), 0),
        places: Vec::new(),
        stores: 0,
        faults: String::new(),
    });
    println!("{what}: {instructions} instructions, {} stores", seen.stores);
    assert!(seen.stores > 25, "{seen:?}");
    assert!(seen.faults.is_empty(), "{what}: {}", seen.faults);
}
