//! Death before each store: the process that serves the chip dies there, the next one goes on from
//! what it has left, and no driver can tell: the same registers as without, and frames come as they
//! must.
#![allow(clippy::cast_possible_truncation)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::{Batch, Offload};
use vmlan_ram::{Map, Slice, Window};
use vmlan_stepped::watched;

use self::words::*;
use super::fixture::{FakeHost, frame, memory};
use super::held::fuse::{self, Died};
use super::held::{HELD, point};
use super::stepped::watch_me;
use super::{Nic, PciFunction as _, Space};

/// Words of a CSB.
pub mod words {
    pub const GUEST_TDT: u64 = 0x00;
    pub const NEED_TXKICK: u64 = 0x04;
    pub const NEED_RXKICK: u64 = 0x08;
    pub const CSB_ON: u64 = 0x0c;
    pub const GUEST_RDT: u64 = 0x10;
    pub const USE_MSIX: u64 = 0x18;
    pub const HOST_TDH: u64 = 0x40;
    pub const HOST_NEED_TXKICK: u64 = 0x44;
    pub const HOST_RDH: u64 = 0x50;
    pub const HOST_RXKICK_AT: u64 = 0x5c;
}

/// Frames of one batch: no more are repeated.
const BATCH: usize = 256;

/// Numbers by lot, always the same ones.
pub struct Random(pub u64);

impl Random {
    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Frames must come in order, by number, each once; a death allows one step back.
#[derive(Default)]
pub struct Judge {
    /// The next in order.
    pub next: u32,
    /// One more than the highest so far.
    pub high: u32,
    /// Steps back that are allowed.
    pub credit: u32,
    /// Steps back so far.
    pub repeats: usize,
    /// How each came when nobody died.
    pub first: HashMap<u32, (Vec<u8>, Offload)>,
}

impl Judge {
    /// Frame `n` has come. Those in `void` need not.
    pub fn came(&mut self, n: u32, bytes: &[u8], offload: Offload, void: &[u32]) {
        let new = (bytes.to_vec(), offload);
        while self.next < n && void.contains(&self.next) {
            self.next += 1;
        }
        assert!(n <= self.next, "{n} comes before {}", self.next);
        if n < self.next {
            assert!(self.credit > 0, "{n} comes again, not {}", self.next);
            assert!((self.next - n) as usize <= BATCH);
            self.credit -= 1;
            self.repeats += 1;
        }
        self.next = n + 1;
        self.high = self.high.max(self.next);
        let first = self.first.entry(n).or_insert_with(|| new.clone());
        assert_eq!(*first, new, "frame {n}");
    }
}

/// Takes frames, holds every n-th.
pub struct Wire<'j> {
    /// Who looks at them.
    pub judge: &'j mut Judge,
    /// 0: none.
    pub every: usize,
    /// Frames that need not come.
    pub void: &'j [u32],
}

impl vmlan_frame::Sink for Wire<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let frame = batch.frame(i).unwrap();
            if self.every > 0 && i % self.every == self.every - 1 {
                // What is behind one that is held comes again with it, if somebody dies.
                batch.hold(i);
                for later in i + 1..batch.len() {
                    batch.hold(later);
                }
                return;
            }
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            let n = u32::from_le_bytes(bytes[60..64].try_into().unwrap());
            self.judge.came(n, &bytes, frame.offload, self.void);
        }
    }
}

/// All of `map`.
pub fn window(map: &Arc<Map>, len: usize) -> Window {
    map.window(0, len, 4096).unwrap()
}

/// A copy.
pub fn all(map: &Map, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    map.slice(0, len).unwrap().read(&mut bytes);
    bytes
}

/// Where a driver has its CSB: at one of two places, or nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    moves: u32,
}

impl Block {
    /// It goes to the next place. Returns where that is; 0: nowhere.
    pub fn go(&mut self) -> u32 {
        self.moves += 1;
        self.at()
    }

    fn at(self) -> u32 {
        [0, 0x8000, 0x9000][self.moves as usize % 3]
    }

    /// It is somewhere.
    pub fn is_placed(self) -> bool {
        self.at() != 0
    }

    /// It is somewhere, and on.
    pub fn is_on(self, life: &Life) -> bool {
        self.is_placed() && self.get(life, CSB_ON) != 0
    }

    /// A word of it.
    pub fn get(self, life: &Life, at: u64) -> u32 {
        life.word(u64::from(self.at()) + at) as u32
    }

    /// See [`Self::get`].
    pub fn put(self, life: &Life, at: u64, value: u32) {
        if self.is_placed() {
            life.put(u64::from(self.at()) + at, &value.to_le_bytes());
        }
    }

    /// It is turned on, with the tails of what is sent and received.
    pub fn turn_on(self, life: &Life, (sent, received): (u32, u32)) {
        self.put(life, GUEST_TDT, sent);
        self.put(life, GUEST_RDT, received);
        self.put(life, CSB_ON, 1);
    }

    /// What was sent is published. True: the device wishes for a kick.
    pub fn sends(self, life: &Life, tail: u32) -> bool {
        self.put(life, GUEST_TDT, tail);
        self.get(life, HOST_NEED_TXKICK) & 1 != 0
    }

    /// Its driver looks if it has said that it does, or if it is `interrupted`, which it then
    /// acknowledges. `round` reaps, takes, and gives back or not.
    pub fn look<M: Mortal>(
        self,
        machine: &mut M,
        (interrupted, gives_back): (bool, bool),
        acknowledge: fn(&mut M),
        round: fn(&mut M, bool),
    ) {
        if !interrupted && self.get(machine.life(), NEED_RXKICK) == 1 {
            return;
        }
        if interrupted {
            acknowledge(machine);
        }
        // If nothing is given back, it looks again soon.
        for sleeps in 0..=u32::from(gives_back) {
            self.put(machine.life(), NEED_TXKICK, sleeps);
            self.put(machine.life(), NEED_RXKICK, sleeps);
            round(machine, gives_back);
        }
    }
}

/// What of a machine does not depend on its chip.
#[derive(Default)]
pub struct Life {
    pub map: Arc<Map>,
    pub held: Arc<Map>,
    pub host: Arc<FakeHost>,
    /// Interrupts seen.
    seen: u32,
    /// The driver masks interrupts while it looks.
    pub masks: bool,
    /// It waits for an access.
    waits: bool,
    pub deaths: u32,
    /// After the first death: another one after so many stores.
    again: Option<u32>,
    /// Frames that the driver has sent, and what has become of them. Those in `void` need not come.
    pub sent: u32,
    pub delivered: Judge,
    pub void: Vec<u32>,
    /// Frames that have arrived at the chip, and those that the driver has had.
    pub arriving: u32,
    pub received: Judge,
}

impl Life {
    /// With so much memory.
    pub fn new(bytes: u64) -> Self {
        Self { map: memory(bytes), ..Self::default() }
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.slice(at, len).unwrap().read(&mut bytes);
        bytes
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.map.slice_mut(at, bytes.len()).unwrap().write(0, bytes);
    }

    /// There was an interrupt since the last call.
    pub fn interrupted(&mut self) -> bool {
        let told = self.host.raises() + self.host.sent.lock().unwrap().len() as u32;
        std::mem::replace(&mut self.seen, told) != told
    }
}

/// A machine whose switch dies. Its driver does as Linux' does: it looks at its rings only when it
/// is interrupted, masks interrupts while it looks (others do not), clears what it takes of a
/// descriptor before it gives that back.
pub trait Mortal: Sized {
    type Chip: Nic;
    /// Bytes of its longest frames, for which buffers of 1 KiB are not enough.
    const LONG: usize = 2400;
    /// Steps of a run.
    const STEPS: u32 = 60;
    /// In more than one of so many deaths frames come again.
    const SELDOM: usize = 50;

    fn life(&mut self) -> &mut Life;
    fn chip(&self) -> &Self::Chip;
    /// A chip like the one that has died, held; and whether the guest has mapped its registers.
    fn another(&mut self) -> (Self::Chip, bool);
    fn replace(&mut self, chip: Self::Chip);
    /// The driver or the switch does something.
    fn step(&mut self, random: &mut Random);
    /// The driver looks, if it was interrupted.
    fn look(&mut self, gives_back: bool);
    /// The driver sends some frames.
    fn send_some(&mut self);
    /// Something that the driver is to look at, and has not.
    fn unseen(&self) -> Option<&'static str>;
    /// What is in memory and in the registers that a driver knows, when all is at rest.
    fn end(&mut self) -> Vec<u32>;

    /// Has `chip` outlive its process.
    fn hold(&mut self, chip: &Self::Chip) {
        let held = memory(HELD as u64);
        assert!(chip.hold(window(&held, HELD)));
        chip.renew();
        drop(chip.set_map(self.life().map.clone()));
        self.life().held = held;
    }

    /// Something that the switch does. `None`: it died of it.
    fn device<T>(&mut self, does: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| watched(|| does(self)))) {
            Ok(done) => Some(done),
            Err(why) if why.is::<Died>() => {
                self.die();
                None
            }
            Err(why) => resume_unwind(why),
        }
    }

    /// The driver goes on while nobody serves. Returns a register that it wrote, and the value.
    fn meanwhile(&mut self) -> Option<(u64, u32)> {
        None
    }

    fn die(&mut self) {
        fuse::set(None);
        let posted = if self.life().waits { None } else { self.meanwhile() };
        let remains = all(&self.life().held, HELD);
        let (chip, mapped) = self.another();
        assert_eq!(chip.revive(&remains, mapped), Ok(()));
        chip.set_link(true);
        chip.note();
        self.replace(chip);
        let life = self.life();
        life.host.raised.fetch_add(1, Ordering::Relaxed);
        life.delivered.credit += 1;
        life.received.credit += 1;
        life.deaths += 1;
        let again = life.again;
        if let Some((at, value)) = posted {
            self.chip().write(Space::Bar(0), at, &value.to_le_bytes());
            self.chip().note();
        }
        fuse::set(again);
    }

    /// An access, which is repeated if the switch died before it noted that it was done.
    fn access<T>(&mut self, does: impl Fn(&Self::Chip) -> T) -> T {
        self.life().waits = true;
        let done = self.device(|machine| {
            let value = does(machine.chip());
            machine.chip().note();
            point();
            value
        });
        self.life().waits = false;
        done.unwrap_or_else(|| {
            // Some are more stores than there are between two deaths.
            let left = fuse::set(None);
            let value = does(self.chip());
            self.chip().note();
            fuse::set(left);
            value
        })
    }

    fn configure(&mut self, at: u64, bytes: &[u8]) {
        self.access(|chip| chip.write(Space::Config, at, bytes));
    }

    fn pull(&mut self, limit: usize, every: usize) {
        self.device(|machine| {
            let life = machine.life();
            let mut judge = std::mem::take(&mut life.delivered);
            let void = life.void.clone();
            let chip = machine.chip();
            let done = catch_unwind(AssertUnwindSafe(|| {
                let mut wire = Wire { judge: &mut judge, every, void: &void };
                chip.pull(&mut Batch::new(), limit, &mut wire);
            }));
            machine.life().delivered = judge;
            done.unwrap_or_else(|why| resume_unwind(why));
        });
    }

    /// Frames arrive until there is no room; their sender has those that were not dealt with.
    fn push(&mut self, count: u32) {
        let (mut batch, arriving) = (Batch::new(), self.life().arriving);
        let frames: Vec<_> = (arriving..arriving + count)
            .map(|n| {
                let len = if n.is_multiple_of(5) { Self::LONG } else { 60 + n as usize % 300 };
                let mut bytes = frame([0xff; 6], len);
                bytes[20..24].copy_from_slice(&n.to_le_bytes());
                bytes
            })
            .collect();
        for frame in &frames {
            let head = &frame[..frame.len().min(128)];
            let rest = Slice::from_bytes(&frame[head.len()..]);
            let rest = (!rest.is_empty()).then_some(rest);
            batch.add_parts(head, rest, Offload::NONE).unwrap();
        }
        let list: Vec<u16> = (0..count as u16).collect();
        let done = self.device(|machine| {
            let dealt = machine.chip().push(&batch, &list);
            // Its sender waits, or tries again.
            let _room = dealt < list.len() && machine.chip().want_room();
            dealt
        });
        self.life().arriving += done.unwrap_or(0) as u32;
    }

    /// The driver has had a frame.
    fn has(&mut self, frame: &[u8]) {
        let n = u32::from_le_bytes(frame[20..24].try_into().unwrap());
        self.life().received.came(n, frame, Offload::NONE, &[]);
    }

    /// Frames arrive last, or are sent last.
    fn ends_by(&mut self, arriving: bool) {
        self.send_some();
        if arriving {
            self.push(6);
        } else {
            self.pull(256, 0);
        }
    }

    /// Nothing happens any more, but for interrupts: they were enough for the driver to see all.
    fn assert_told(&mut self) {
        (0..4).for_each(|_| self.look(true));
        assert_eq!(self.unseen(), None, "nobody told the driver");
    }

    /// All that is under way ends.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.pull(256, 0);
            self.look(true);
            self.push(4);
            self.look(true);
        }
        let life = self.life();
        while life.void.contains(&life.delivered.next) {
            life.delivered.next += 1;
        }
        assert_eq!(life.delivered.next, life.sent, "frames that were never sent");
        assert_eq!(life.received.next, life.arriving, "frames that were never received");
    }
}

/// Runs the same steps. The switch dies before store `dies`, and from then on each `again` stores.
fn run<M: Mortal>(
    new: impl Fn() -> M,
    seed: u64,
    (dies, again): (Option<u32>, Option<u32>),
    clean: Option<&mut M>,
) -> (M, u32, Vec<u32>) {
    let mut random = Random(seed);
    let mut machine = new();
    let life = machine.life();
    if let Some(clean) = clean {
        life.delivered.first.clone_from(&clean.life().delivered.first);
        life.received.first.clone_from(&clean.life().received.first);
    }
    life.again = again;
    life.masks = seed & 1 == 0;
    fuse::set(Some(dies.unwrap_or(u32::MAX)));
    for _ in 0..M::STEPS {
        machine.step(&mut random);
    }
    machine.ends_by(seed & 2 == 0);
    let left = fuse::set(None).unwrap_or(0);
    machine.assert_told();
    machine.settle();
    let end = machine.end();
    (machine, u32::MAX - left, end)
}

/// A part of a run, watched from outside: see [`super::stepped`].
pub fn lives_watched<M: Mortal>(new: impl Fn() -> M) {
    let mut random = Random(0x9e37_79b9);
    let mut machine = new();
    watch_me();
    for _ in 0..M::STEPS / 6 {
        machine.step(&mut random);
    }
}

/// Death at each `stride`-th store of a run.
///
/// # Panics
/// If anybody could tell.
pub fn dies_everywhere<M: Mortal>(new: impl Fn() -> M, seed: u64, stride: usize) {
    let (mut clean, stores, end) = run(&new, seed, (None, None), None);
    let life = clean.life();
    let (sent, arrived) = (life.sent, life.arriving);
    assert!(stores > 300 && sent > 25 && arrived > 25, "{stores} {sent} {arrived}");
    let (mut repeats, mut all) = (0, 0);
    for dies in (0..stores).step_by(stride) {
        let context = format!("seed {seed}, store {dies} of {stores}");
        let (mut machine, _, as_before) =
            with_context(&context, || run(&new, seed, (Some(dies), None), Some(&mut clean)));
        let life = machine.life();
        assert_eq!(life.deaths, 1, "{context}");
        assert_eq!(end, as_before, "{context}");
        repeats += life.delivered.repeats + life.received.repeats;
        all += 1;
    }
    let few = all >= M::SELDOM && repeats <= all / M::SELDOM;
    assert!(!few, "{repeats} frames came again in {all} runs");
    for again in [17, 97, 211].into_iter().filter(|again| 3 * again < stores) {
        let context = format!("seed {seed}, each {again} stores");
        let (mut machine, ..) = with_context(&context, || {
            run(&new, seed, (Some(again), Some(again)), Some(&mut clean))
        });
        assert!(machine.life().deaths > 1, "{context}");
    }
}

/// Says where a run was that fails.
fn with_context<T>(context: &str, run: impl FnOnce() -> T) -> T {
    struct Said<'c>(&'c str, AtomicBool);
    impl Drop for Said<'_> {
        fn drop(&mut self) {
            if !self.1.load(Ordering::Relaxed) {
                eprintln!("failed: {}", self.0);
            }
        }
    }
    let said = Said(context, AtomicBool::new(false));
    let done = run();
    said.1.store(true, Ordering::Relaxed);
    done
}
