//! The inputs the fuzzer kept, and seeds for it.

use super::super::fuzz::vmxnet3;
use crate::chip::fuzz::{self, RX_RING, replay};

/// A transmit descriptor: length and what is to be done, words 2 and 3.
type Tx = (u32, u32, u32);

fn input(config: u8, steps: &[u8], tx: &[Tx], buffers: &[(u32, u32)]) -> Vec<u8> {
    let mut memory = vec![0u8; usize::try_from(fuzz::MEMORY).unwrap()];
    let mut put = |at: usize, value: u32| memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
    for (i, (address, word2, word3)) in tx.iter().cycle().take(32).enumerate() {
        put(16 * i, *address);
        put(16 * i + 8, word2 | 1 << 14);
        put(16 * i + 12, *word3);
    }
    for (i, (address, word)) in buffers.iter().cycle().take(32).enumerate() {
        put(RX_RING as usize + 16 * i, *address);
        put(RX_RING as usize + 16 * i + 8, word | 1 << 31);
    }
    // Frames at 0x2000: IPv4 and TCP.
    memory[0x2000..0x2006].fill(0xff);
    memory[0x200c..0x2018].copy_from_slice(&[8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6]);
    memory[0x202e] = 0x50;
    replay::input(config, steps, &memory)
}

fn seeds() -> Vec<Vec<u8>> {
    const END: u32 = 3 << 12;
    let steps = [
        0x0f, 0x28, 0x11, 0x62, 0x34, 0x0f, 0x67, 0xbf, 0x71, 1, 0x72, 1, 0xd3, 0x28, 0xd1, 0x4c,
        9, 0, 0, 0, 0, 0, 0x70, 0, 0x0f, 0x28, 0xe0, 0, 0xd7, 0x62, 0xb3, 0x0f, 0x71, 0, 0x0f,
        0x28,
    ];
    let plain = [(0x2000, 60, END), (0x2000, 1514, END)];
    let scattered = [(0x2000, 40, 0), (0x7fe0, 100, 0), (0x9000, 500, END)];
    let sums = [(0x2000, 74 | 50 << 18, END | 34 | 2 << 10), (0x2000, 60, END | 1 << 15 | 5 << 16)];
    let segments = [(0x2000, 54 | 1000 << 18, 54 | 3 << 10), (0x3000, 3000, END)];
    let wrong = [
        (0x2000, 0, END | 1 << 10),
        (0xfff0, 0x3fff, END | 0x3ff | 3 << 10),
        (u32::MAX, 60, 0),
        (0x2000, 60 | 1 << 16, END),
    ];
    let all: [&[Tx]; 5] = [&plain, &scattered, &sums, &segments, &wrong];
    let heads = [(0x4000, 2048), (0x7c00, 2048)];
    let bodies = [(0x4000, 1024), (0x5000, 512 | 1 << 14), (0xfff0, 2048), (0x6000, 1 << 14)];
    let buffers: [&[(u32, u32)]; 2] = [&heads, &bodies];
    let configs = [0x00, 0x72, 0xb0];
    let all = all.iter().zip(buffers.iter().cycle());
    let with = |config| all.clone().map(move |(tx, rx)| input(config, &steps, tx, rx));
    configs.into_iter().flat_map(with).collect()
}

#[test]
fn seeds_move_frames() {
    let moved =
        seeds().iter().map(|seed| vmxnet3(seed)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert!(moved.0 > 100 && moved.1 > 100, "{moved:?}");
}

#[test]
fn seeds_and_kept_inputs() {
    replay::seeds_and_kept_inputs("vmxnet3", vmxnet3, &seeds());
}

#[test]
fn every_step_after_every_seed() {
    replay::every_step_after_every_seed(vmxnet3, &seeds());
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("vmxnet3", &seeds());
}

/// What the fuzzer would take long to find: many steps on an active device. `INPUTS=1000000` for a
/// long run.
#[test]
fn any_steps_on_an_active_device() {
    let inputs = std::env::var("INPUTS").map_or(1500, |n| n.parse().unwrap());
    let mut random = replay::Random(0x9e37_79b9_7f4a_7c15);
    let seeds = seeds();
    let mut frames = (0, 0);
    for i in 0..inputs {
        let mut steps = vec![0x0f, 0x28];
        for _ in 0..120 {
            let step = match random.below(8) {
                // Frames either way, and descriptors for them.
                0..=2 => [0x0f, 0x28, 0x34, 0x13][usize::from(random.below(4))],
                3 | 4 => 0x60 + random.below(12),
                // ACTIVATE, or another command.
                5 => 0x70 + random.below(i % 12 + 1),
                _ => random.below(256),
            };
            steps.push(step);
        }
        let seed = &seeds[i as usize % seeds.len()];
        let memory = &seed[3 + usize::from(u16::from_le_bytes([seed[1], seed[2]]))..];
        let (come, gone) = vmxnet3(&replay::input(seed[0], &steps, memory));
        frames = (frames.0 + come, frames.1 + gone);
    }
    assert!(frames.0 > inputs && frames.1 > inputs, "{frames:?}");
}
