//! The inputs the fuzzer kept, and seeds for it.

use crate::chip::fuzz::replay;
use crate::e1000e::fuzz::e1000e;
use crate::intel::guest::{DATA, EOP, IFCS, RS};

/// An input with these receive addresses.
fn input(config: u8, steps: &[u8], buffers: &[u64]) -> Vec<u8> {
    let mut memory = vec![0u8; usize::try_from(crate::chip::fuzz::MEMORY).unwrap()];
    let words = [(0x2000u64, 60 | EOP | IFCS | RS), (0x2000, 1514 | DATA | EOP | IFCS | RS)];
    for (i, (address, word)) in words.iter().cycle().take(32).enumerate() {
        memory[16 * i..16 * i + 8].copy_from_slice(&address.to_le_bytes());
        memory[16 * i + 8..16 * i + 16].copy_from_slice(&word.to_le_bytes());
    }
    for (i, address) in buffers.iter().cycle().take(64).enumerate() {
        let at = 0x1000 + 8 * i;
        memory[at..at + 8].copy_from_slice(&address.to_le_bytes());
    }
    memory[0x2000..0x2006].fill(0xff);
    memory[0x200c..0x2018].copy_from_slice(&[8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6]);
    memory[0x202e] = 0x50;
    replay::input(config, steps, &memory)
}

fn seeds() -> Vec<Vec<u8>> {
    let traffic = [0x0f, 0x28, 0x11, 0x6f, 0x34, 0x0f, 0x67, 0x0f, 0x28, 0x0f, 0xd2, 0x28];
    // Packet split by RFCTL, PSRCTL and RCTL; then RSS, vectors, windows.
    let split =
        [0xf0, 0, 0x80, 0, 0, 0xf1, 1, 4, 4, 4, 0x72, 0x2a, 0x84, 0, 0, 0x11, 0x6f, 0x34, 0x28];
    let spread = [
        0x78, 0, 0x23, 0, 0, 0xf2, 1, 0, 0x37, 0, 0xf3, 0, 0x80, 0, 0x80, 0x11, 0x28, 0xf5, 0xff,
        0xdc, 0xba, 0x98, 0xf8, 0x40, 0, 0, 0, 0x28, 0x34, 0x0f, 0xf9, 1, 0, 0, 0,
    ];
    let buffers: [&[u64]; 3] = [&[0x4000, 0x7c00], &[0, 0x4000], &[0, 0x1000, 0xfff0, u64::MAX]];
    let configs = [0x00, 0x06, 0x80, 0x86];
    let all = [&traffic[..], &split, &spread].into_iter().zip(buffers);
    let all = all.flat_map(|(steps, rx)| configs.map(|config| input(config, steps, rx)));
    let steps = [&traffic[..], &split, &traffic, &spread].concat();
    all.chain([input(0x80, &steps, buffers[0]), input(0x01, &steps, buffers[0])]).collect()
}

#[test]
fn seeds_move_frames() {
    let moved = |i: usize| e1000e(&seeds()[i]);
    assert!(moved(0).0 > 20 && moved(0).1 >= 8, "{:?}", moved(0));
    assert!(moved(2).1 >= 8, "{:?}", moved(2));
}

#[test]
fn seeds_and_kept_inputs() {
    replay::seeds_and_kept_inputs("e1000e", e1000e, &seeds());
}

#[test]
fn every_step_after_every_seed() {
    replay::every_step_after_every_seed(e1000e, &seeds());
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("e1000e", &seeds());
}
