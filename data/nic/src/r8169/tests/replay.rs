//! The inputs the fuzzer kept, and seeds for it.

use super::super::fuzz::r8169;
use crate::chip::fuzz::replay;
use crate::realtek::seeds;

/// PMCSR in configuration space.
const PMCSR: u8 = 0xe0;

fn seeds() -> Vec<Vec<u8>> {
    seeds::seeds([0x00, 0x06, 0xf8], PMCSR)
}

#[test]
fn seeds_move_frames() {
    seeds::assert_they_move(&seeds(), r8169);
}

#[test]
fn seeds_and_kept_inputs() {
    replay::seeds_and_kept_inputs("r8169", r8169, &seeds());
}

#[test]
fn every_step_after_every_seed() {
    replay::every_step_after_every_seed(r8169, &seeds());
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("r8169", &seeds());
}

#[test]
fn any_steps_around_a_csb() {
    let frames = [(0xb000_003c, 0, 0x2000), (0xb000_05ea, 0, 0x2000)];
    let memory = seeds::memory(&frames, &[(2048, 0x4000), (2048, 0x7c00)]);
    replay::any_steps_around_a_csb(r8169, |steps, random| {
        replay::input(random.below(16) & 0xfe, steps, &memory)
    });
}
