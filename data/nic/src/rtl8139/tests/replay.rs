//! The inputs the fuzzer kept, and seeds for it.

use super::super::fuzz::rtl8139;
use crate::chip::fuzz::replay;
use crate::realtek::seeds;

/// PMCSR in configuration space.
const PMCSR: u8 = 0x54;

/// Classic mode: frames both ways, the buffer read, or not, or wrongly; it moves, is cut, and
/// wraps; modes change.
const CLASSIC: [u8; 87] = [
    0x0f, 0x28, 0x68, 0x2f, 0x68, 0x3f, 0x67, 0x11, 0x63, 0x12, 0x0f, // both ways, held
    0x2f, 0x2f, 0x2f, 0x2f, 0x69, 0x2f, 0x6b, 0x2f, 0x68, // the buffer fills up
    0xe0, 0xf0, 0x1f, 0x2f, 0xe0, 3, 0, 0x2f, 0xe0, 0xff, 0xff, 0x2f, 0x68, // CAPR
    0xe4, 0x19, 0x2f, 0x2f, 0xe4, 0, 0x2f, 0x68, 0x2f, // RBLEN and WRAP
    0xea, 0, 0xf0, 0x2f, 0xea, 0, 0, 0x2f, 0xea, 0, 0x40, 0xe8, 0xe9, 0x2f, // RBSTART, RE
    0x51, 0xff, 0x1f, 0x52, 0, 0, 0x41, 0xff, 0xff, 0, 0, 0x61, 0x0f, // TSD, TSAD
    0xec, 3, 0x2f, 0x0f, 0xec, 0, 0x63, 0x0f, // modes
    0xee, 3, 0x94, 0x37, 0, 0xee, 0, 0xd3, 0xd2, 0x28,
];

fn seeds() -> Vec<Vec<u8>> {
    let memory = seeds::memory(&[(60, 0, 0x2000)], &[(0, 0)]);
    let classic = [0x10, 0x14, 0x12, 0x52, 0x90, 0xd8, 0x30];
    let classic = classic.map(|config| replay::input(config, &CLASSIC, &memory));
    let plus = seeds::seeds([0x00, 0x06, 0x0a], PMCSR);
    plus.into_iter().chain(classic).collect()
}

#[test]
fn seeds_move_frames() {
    let seeds = seeds();
    seeds::assert_they_move(&seeds, rtl8139);
    for seed in &seeds[17..] {
        let (come, gone) = rtl8139(seed);
        let full = seed[0] >> 6 == 3;
        assert!(come > 8 && (gone > 8 || full), "{:#x}: {come}, {gone}", seed[0]);
    }
}

#[test]
fn seeds_and_kept_inputs() {
    replay::seeds_and_kept_inputs("rtl8139", rtl8139, &seeds());
}

#[test]
fn every_step_after_every_seed() {
    replay::every_step_after_every_seed(rtl8139, &seeds());
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("rtl8139", &seeds());
}

#[test]
fn any_steps_around_a_csb() {
    let frames = [(0xb000_003c, 0, 0x2000), (0xb000_05ea, 0, 0x2000)];
    let memory = seeds::memory(&frames, &[(2048, 0x4000), (2048, 0x7c00)]);
    replay::any_steps_around_a_csb(rtl8139, |steps, random| {
        replay::input(random.below(16) & 0xfe, steps, &memory)
    });
}
