//! States of chips: one that is saved and restored into another chip after any step changes nothing
//! that anybody can see; one of any bytes does no harm.
//!
//! An input of the target `chip_state` is a byte that says which chip, a byte of configuration as
//! its own target has it, a byte that counts steps before the state is saved, and those steps; a
//! byte that counts changes of the state, three bytes each (a place, a value); then steps for the
//! chip that goes on from it. No changes: the state is in the input, in front of the steps.
//!
//! With bit 7 of the first byte the changes are made to what a chip leaves that dies
//! ([`crate::chip::held`]).

use crate::chip::state::{Tag, parts_of};
use crate::e1000::E1000;
use crate::e1000e::E1000e;
use crate::r8169::R8169;
use crate::rtl8139::Rtl8139;
use crate::vmxnet3::Vmxnet3;

use super::*;

/// What can be seen after a step.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// What the host was told.
    pub told: u64,
    /// What was read and sent.
    pub moved: u64,
    /// The guest's memory.
    pub memory: u64,
    /// The parts of the chip's state.
    pub state: Vec<(Tag, u64)>,
}

/// A digest of bytes, quick rather than good.
fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    words.chain(rest).fold(bytes.len() as u64, |sum, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl<C: Fuzzed> Run<'_, C> {
    /// Another chip, made alike, with the same memory.
    fn another(&self, byte: u8) -> C {
        let chip: C = make(self.world, byte, &self.host);
        drop(chip.set_map(self.map()));
        chip
    }

    /// Puts another chip in the place of this one, which goes on from its state.
    fn replace(&mut self, byte: u8) {
        let state = self.chip.save();
        let successor = self.another(byte);
        successor.restore(&state).expect("a chip's own state");
        for (was, is) in parts_of(&state).iter().zip(parts_of(&successor.save())) {
            assert_eq!(*was, is, "what was restored is not what was saved");
        }
        self.chip = successor;
    }

    /// The chip outlives its process from now on. All registers are noted.
    pub(super) fn hold(&self) {
        assert!(self.chip.hold(self.world.held()), "it is held");
        let state = self.chip.save();
        assert_eq!(self.chip.restore(&state), Ok(()));
    }

    fn seen(&mut self) -> Seen {
        let state = self.chip.save();
        Seen {
            told: self.host.told.lock().expect("notes").finish(),
            moved: self.seen.as_ref().map_or(0, Hasher::finish),
            memory: digest(self.world.memory()),
            state: parts_of(&state).iter().map(|(tag, _, part)| (*tag, digest(part))).collect(),
        }
    }
}

/// Runs an input of the chip's own target. `when`: the chip is replaced after this step.
pub fn trace<C: Fuzzed>(data: &[u8], when: impl Fn(usize) -> bool) -> Vec<Seen> {
    let [byte, low, high, rest @ ..] = data else { return Vec::new() };
    let count = usize::from(u16::from_le_bytes([*low, *high]));
    let (steps, memory) = rest.split_at(rest.len().min(count));
    WORLD.with_borrow_mut(|world| {
        world.load(memory);
        let mut run = start::<C>(world, *byte, steps);
        run.seen = Some(DefaultHasher::new());
        let mut all = Vec::new();
        while !run.steps.is_empty() {
            run.step();
            run.check();
            if when(all.len()) {
                run.replace(*byte);
            }
            all.push(run.seen());
        }
        all
    })
}

/// Runs one input of `chip_state`. Returns whether the state was taken.
///
/// # Panics
/// If something that must hold does not.
pub fn chip_state(data: &[u8]) -> bool {
    let Some((chip, rest)) = data.split_first() else { return false };
    match chip % 5 {
        0 if *chip >= 0x80 => left::<E1000>(rest),
        1 if *chip >= 0x80 => left::<R8169>(rest),
        2 if *chip >= 0x80 => left::<Rtl8139>(rest),
        _ if *chip >= 0x80 => left::<E1000e>(rest),
        0 => hostile::<E1000>(rest),
        1 => hostile::<R8169>(rest),
        2 => hostile::<Rtl8139>(rest),
        3 => hostile::<Vmxnet3>(rest),
        _ => hostile::<E1000e>(rest),
    }
}

fn counted(data: &[u8], size: usize) -> (&[u8], &[u8]) {
    let Some((count, rest)) = data.split_first() else { return (&[], &[]) };
    rest.split_at(rest.len().min(usize::from(*count) * size))
}

/// A state with some bytes changed, and the steps after it. Without any change: what is left of the
/// input, as long as it says itself, and what comes then.
fn changed<'d>(state: Vec<u8>, changes: &[u8], rest: &'d [u8]) -> (Vec<u8>, &'d [u8]) {
    if changes.is_empty() {
        let len = rest.get(12..16).and_then(|len| len.first_chunk());
        let len = len.map_or(0, |len| u32::from_le_bytes(*len) as usize);
        let (state, steps) = rest.split_at(rest.len().min(len));
        return (state.to_vec(), steps);
    }
    let change = |mut state: Vec<u8>, change: &[u8]| {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % state.len();
        state[at] = change[2];
        state
    };
    (changes.chunks_exact(3).fold(state, change), rest)
}

/// A chip goes on from what another one has left, some bytes of which are changed.
fn left<C: Fuzzed>(data: &[u8]) -> bool {
    let Some((byte, data)) = data.split_first() else { return false };
    let (before, rest) = counted(data, 1);
    let (changes, after) = counted(rest, 3);
    WORLD.with_borrow_mut(|world| {
        world.load(&[]);
        let mut run = start::<C>(world, *byte, before);
        run.hold();
        run.chip.set_link(true);
        run.chip.note();
        while !run.steps.is_empty() {
            run.step();
            run.chip.note();
        }
        let mut remains = run.world.remains();
        for change in changes.chunks_exact(3) {
            remains[usize::from(u16::from_le_bytes([change[0], change[1]]))] = change[2];
        }
        let successor = run.another(*byte);
        let taken = successor.revive(&remains, false).is_ok();
        (run.chip, run.steps) = (successor, after);
        run.check();
        while !run.steps.is_empty() {
            run.step();
            run.check();
        }
        run.start_anew();
        run.world.check_guards();
        taken
    })
}

fn hostile<C: Fuzzed>(data: &[u8]) -> bool {
    let Some((byte, data)) = data.split_first() else { return false };
    let (before, rest) = counted(data, 1);
    let (changes, after) = counted(rest, 3);
    WORLD.with_borrow_mut(|world| {
        world.load(&[]);
        let mut run = start::<C>(world, *byte, before);
        while !run.steps.is_empty() {
            run.step();
        }
        let (state, after) = changed(run.chip.save(), changes, after);
        let successor = run.another(*byte);
        let fresh = successor.save();
        let taken = successor.restore(&state);
        if taken.is_err() {
            assert!(successor.save() == fresh, "a state that was refused has left something");
        }
        (run.chip, run.steps) = (successor, after);
        run.check();
        while !run.steps.is_empty() {
            run.step();
            run.check();
        }
        let again = run.chip.save();
        let third = run.another(*byte);
        assert_eq!(third.restore(&again), Ok(()), "a chip's own state");
        run.start_anew();
        run.world.check_guards();
        taken.is_ok()
    })
}
