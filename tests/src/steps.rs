//! Drivers, chips and a worker in steps: each is a thread, but only one runs at a time, and which
//! one goes on is drawn by lot wherever they meet (register accesses, interrupts, doorbells,
//! falling asleep). Time is drawn as well. So a run is what its seed says, pauses are as long as
//! those of a machine that has other things to do, and a wake-up that was lost shows at once:
//! everybody sleeps.
//!
//! What a port's thread and a worker do is done here as it is done there, in short. Drivers and
//! chips are the real ones; between two stores to the guest's memory nobody else has a turn.

mod host;
mod turns;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use vmlan_driver::chip::{Chip as DriverChip, Offload};
use vmlan_frame::NicCounters;
use vmlan_nic::chip::{Host, Nic};
use vmlan_transport::Bars;

use crate::chip_guest::{self, ChipGuest};
use crate::chip_loop::ALL;
use crate::exchange::TestGuest;
use crate::in_process_chip::map_of;
use crate::numbered::{Sizes, frame, mac};
use host::{StepBus, StepHost};
use turns::Turns;

/// The guests' thread: both are one program.
const GUESTS: usize = 0;
/// The worker.
const WORKER: usize = 1;
/// The threads of the two ports.
const PORTS: [usize; 2] = [2, 3];

/// Rounds without a frame until the guests wait for all others, and until all is at an end.
const IDLE: (u32, u32) = (10, 20);

/// Two guests, their chips, and a worker between.
pub struct Steps<C: DriverChip> {
    // It ends before they go: a driver that turned its chip off would wait for a side that somebody
    // holds whose turn it is not.
    world: World,
    guests: [ChipGuest<C, StepBus>; 2],
}

/// All but the guests.
struct World {
    turns: Arc<Turns>,
    host: [Arc<StepHost>; 2],
    chips: [Arc<dyn Nic>; 2],
    threads: Vec<JoinHandle<()>>,
}

/// A chip behind these host.
pub type Make = fn(Arc<dyn Host>) -> Arc<dyn Nic>;

impl World {
    fn new(seed: u64, bars: Bars, make: Make, looks: bool) -> Self {
        let turns = Turns::new(seed, PORTS.len() + 2);
        let bell = Arc::new(AtomicBool::new(false));
        let host = PORTS.map(|who| StepHost::new(&turns, who, bars, &bell));
        let chips = [0, 1].map(|n| make(Arc::clone(&host[n]) as _));
        chips.iter().for_each(|chip| chip.set_link(true));
        turns.begin(host.to_vec());
        let mut threads = Vec::new();
        for (host, chip) in host.iter().cloned().zip(chips.iter().cloned()) {
            let turns = Arc::clone(&turns);
            let work = move || turns.take_part(host.who, || host::attach(&host, &*chip));
            threads.push(std::thread::spawn(work));
        }
        let (table, its) = (worker::table(&chips), Arc::clone(&turns));
        let work = move || its.take_part(WORKER, || worker::work(&its, &table, &bell, looks));
        threads.push(std::thread::spawn(work));
        Self { turns, host, chips, threads }
    }

    fn explain(&self, n: usize) -> String {
        let d = self.chips[n].device();
        let counts = (d.raised, d.held, d.delivered);
        format!(
            "chip {n}: interrupts raised, held, delivered {counts:?}, {:?}; {}",
            d.statistics,
            self.host[n].explain()
        )
    }
}

/// The guests' drivers find nobody there any more.
impl Drop for World {
    fn drop(&mut self) {
        self.turns.end();
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

impl<C: DriverChip> Steps<C> {
    /// Two guests with these keys of an address, on chips made by `make`; everything else follows
    /// from the seed.
    ///
    /// # Panics
    /// When a chip does not start.
    pub fn new(seed: u64, keys: [&str; 2], make: Make) -> Self {
        Self::with(seed, keys, make, true)
    }

    /// The same with a worker that waits for a doorbell when a receiver has no room, though that
    /// posts buffers without one.
    ///
    /// # Panics
    /// When a chip does not start.
    pub fn with_a_worker_that_never_looks(seed: u64, keys: [&str; 2], make: Make) -> Self {
        Self::with(seed, keys, make, false)
    }

    fn with(seed: u64, keys: [&str; 2], make: Make, looks: bool) -> Self {
        let world = World::new(seed, C::MODEL.bars(), make, looks);
        let guest = |n: usize, id| {
            let address = chip_guest::address(C::MODEL, Path::new("nowhere"), keys[n]);
            let (host, chip) = (Arc::clone(&world.host[n]), Arc::clone(&world.chips[n]));
            ChipGuest::<C, StepBus>::build(address.driver, id, |ram| {
                drop(chip.set_map(map_of(ram)));
                StepBus { host, chip, posted: address.posted }
            })
        };
        let guests = [guest(0, 1), guest(1, 2)];
        Self { world, guests }
    }

    /// See [`crate::exchange::exchange`].
    fn introduce(&mut self) {
        self.guests.iter_mut().for_each(TestGuest::settle);
        for guest in &mut self.guests {
            let hello = frame([0xff; 6], mac(guest.id, 0), 0, 60);
            guest.send(Offload::default(), &hello);
            guest.flush();
            while guest.nic.under_way() > 0 && self.world.turns.step() {
                guest.nic.reap();
            }
        }
    }

    /// Sends what there is room for, or less; returns how many.
    fn send(&mut self, me: usize, sent: u64, count: u64, sizes: Sizes) -> u64 {
        let turns = &self.world.turns;
        let (to, lazy) = (self.guests[1 - me].id, turns.below(3) == 0);
        let guest = &mut self.guests[me];
        let mut n = sent;
        while n < count {
            let bytes = frame(mac(to, 0), mac(guest.id, 0), n, sizes.of(n));
            if !guest.send(Offload::default(), &bytes) {
                break;
            }
            n += 1;
            match turns.below(8) {
                0 if lazy => break,
                0 => _ = turns.step(),
                _ => {}
            }
        }
        turns.step();
        guest.flush();
        turns.step();
        n - sent
    }

    /// Each guest sends so many frames to the other, as fast as they are taken; all arrive.
    ///
    /// # Errors
    /// They do not, and nobody does anything about it: what it looks like.
    pub fn exchange(&mut self, counts: [u64; 2], sizes: Sizes) -> Result<(), String> {
        self.guests.iter_mut().for_each(TestGuest::start_over);
        self.introduce();
        let (mut sent, mut got, mut idle) = ([0; 2], [0; 2], 0);
        while got != [counts[1], counts[0]] {
            let before = (sent, got);
            for me in [0, 1] {
                sent[me] += self.send(me, sent[me], counts[me], sizes);
            }
            for (got, guest) in got.iter_mut().zip(&mut self.guests) {
                *got += guest.receive_next(guest.id, sizes);
                self.world.turns.step();
            }
            idle = if (sent, got) == before { idle + 1 } else { 0 };
            if idle > IDLE.0 {
                self.world.turns.idle();
            }
            if idle > IDLE.1 || self.world.turns.is_over() {
                return Err(self.explain(&format!("sent {sent:?}, received {got:?} of {counts:?}")));
            }
        }
        Ok(())
    }

    /// The guests.
    pub fn guests(&self) -> &[ChipGuest<C, StepBus>; 2] {
        &self.guests
    }

    /// What both chips have counted so far.
    pub fn devices(&self) -> [NicCounters; 2] {
        [0, 1].map(|n| self.world.chips[n].device())
    }

    fn explain(&mut self, what: &str) -> String {
        let mut lines = vec![what.to_owned()];
        for n in [0, 1] {
            lines.push(format!("guest {n}: {}", self.guests[n].nic.explain()));
            lines.push(self.world.explain(n));
        }
        lines.push(format!("worker asleep: {}", self.world.turns.is_asleep(WORKER)));
        lines.join("\n  ")
    }
}

/// Guests with these keys exchange frames; one of them, or both, for longer. The environment's
/// `SEEDS=FIRST..LAST` tries others than the first `seeds`.
///
/// # Panics
/// When somebody waits for ever.
pub fn exchange<C: DriverChip>(make: Make, keys: [&str; 2], seeds: u64) {
    let given = std::env::var("SEEDS").ok();
    let seeds = given.map_or(1..seeds, |range| {
        let (first, last) = range.split_once("..").expect("FIRST..LAST");
        first.parse().expect("a number")..last.parse().expect("a number")
    });
    for seed in seeds {
        let counts = [[60, 400], [300, 40], [150, 150]][usize::try_from(seed % 3).expect("small")];
        let mut steps = Steps::<C>::new(seed, keys, make);
        if let Err(state) = steps.exchange(counts, ALL) {
            panic!("{keys:?}, seed {seed}: {state}");
        }
    }
}
