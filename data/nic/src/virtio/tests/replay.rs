//! The inputs the fuzzer kept, and seeds for it.

use super::guest::{Guest, INDIRECT, NEXT, WRITE};
use crate::fuzz::{self, AVAIL, RECEIVE};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/virtqueue");

/// An input: these descriptors, posted in order in both rings.
fn input(config: u8, steps: &[u8], descriptors: &[(u64, u32, u16, u16)]) -> Vec<u8> {
    let mut memory = vec![0u8; 0x4000];
    for (i, (addr, len, flags, next)) in descriptors.iter().enumerate() {
        let bytes = Guest::descriptor(*addr, *len, *flags, *next);
        memory[16 * i..16 * i + 16].copy_from_slice(&bytes);
        if config & 8 != 0 {
            let at = usize::try_from(RECEIVE).unwrap() + 16 * i;
            memory[at..at + 16].copy_from_slice(&bytes);
        }
    }
    for avail in [AVAIL, AVAIL + 0x2000] {
        let at = usize::try_from(avail).unwrap() + 4;
        for i in 0..16u8 {
            memory[at + 2 * usize::from(i)] = i;
        }
    }
    let mut data = vec![config, u8::try_from(steps.len()).unwrap()];
    data.extend(steps);
    data.extend(memory);
    data
}

fn seeds() -> Vec<Vec<u8>> {
    let steps = [0xc4, 0x0f, 0x83, 0x24, 0xa2, 0x0f, 0xc2, 0x9f, 0x0f];
    let singles =
        [(0x5000, 72, 0, 0), (0x6000, 1526, 0, 0), (0x7fe0, 100, 0, 0), (0x5000, 10, 0, 0)];
    let buffers = singles.map(|(a, l, _, n)| (a, l * 8, WRITE, n));
    let chains = [(0x5000, 12, NEXT, 1), (0x6000, 60, NEXT, 2), (0x7ff0, 600, 0, 0)];
    let circle = [(0x5000, 12, NEXT, 1), (0x6000, 60, NEXT, 0)];
    let tables =
        [(0x20, 32, INDIRECT, 0), (0x30, 16, INDIRECT, 0), (0x5000, 12, NEXT, 1), (1, 0, 0, 0)];
    let over_rings =
        [(AVAIL, 0x1000, WRITE, 0), (AVAIL + 0x2000, 0x2000, WRITE, 0), (0, 64, WRITE, 0)];
    let tiny = [(0x5000, 1, WRITE, 0), (0x5000, 7, WRITE, 0), (0x5000, 3, WRITE | NEXT, 0)];
    let rings: [&[_]; 7] = [&singles, &buffers, &chains, &circle, &tables, &over_rings, &tiny];
    let configs = [0x43u8, 0xb2];
    let split = rings.iter().flat_map(|r| configs.map(|c| input(c, &steps, r)));
    // In a packed ring the id stands before the flags.
    let singles =
        [(0x5000, 72, 0, 0), (0x6000, 1526, 1, 0), (0x5000, 72, 2, 0), (0x5000, 72, 3, 0)];
    let buffers = singles.map(|(a, l, id, _)| (a, l * 8, id, WRITE));
    let lists = [(0x5000, 12, 0, NEXT), (0x6000, 60, 3, 0), (0x7ff0, 600, 9, NEXT), (1, 9, 2, 0)];
    let tables = [(0x1008, 16, 0, INDIRECT), (0x6000, 32, 1, INDIRECT), (0x5000, 72, 1, 0)];
    let rings: [&[_]; 4] = [&singles, &buffers, &lists, &tables];
    let configs = [0x4au8, 0x2b];
    let packed = rings.iter().flat_map(|r| configs.map(|c| input(c, &steps, r)));
    split.chain(packed).collect()
}

#[test]
fn seeds_and_kept_inputs() {
    seeds().iter().for_each(|s| fuzz::virtqueue(s));
    let files: Vec<_> = std::fs::read_dir(CORPUS).unwrap().collect();
    assert!(files.len() >= 22, "the seeds are gone from {CORPUS}");
    for file in files {
        fuzz::virtqueue(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

#[test]
fn every_short_program_and_configuration() {
    let rings = seeds();
    for (i, seed) in rings.iter().enumerate() {
        for step in 0..=255u8 {
            let mut data = seed.clone();
            data[0] = data[0].wrapping_add(step.rotate_left(3));
            data[2 + i % 9] = step;
            fuzz::virtqueue(&data);
        }
    }
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    std::fs::create_dir_all(CORPUS).unwrap();
    for (i, seed) in seeds().iter().enumerate() {
        let end = seed.iter().rposition(|b| *b != 0).unwrap() + 1;
        std::fs::write(format!("{CORPUS}/seed-{i:02}"), &seed[..end]).unwrap();
    }
}
