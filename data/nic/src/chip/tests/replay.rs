//! Inputs that the fuzzer kept, and seeds for it, as plain tests.

use std::path::PathBuf;

/// The body of a target.
pub type Body = fn(&[u8]) -> (u64, u64);

/// An input: the byte of configuration, steps, and the guest's memory.
pub fn input(config: u8, steps: &[u8], memory: &[u8]) -> Vec<u8> {
    let count = u16::try_from(steps.len()).unwrap();
    let mut data = vec![config];
    data.extend(count.to_le_bytes());
    data.extend(steps);
    data.extend(memory);
    data
}

/// Pseudo-random numbers (xorshift64), the same in each run.
pub struct Random(pub u64);

impl Random {
    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u8::try_from((self.0 >> 33) % n).unwrap()
    }
}

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

/// What is in the corpus.
pub fn kept_inputs(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(corpus(target)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Runs the seeds and what is in the corpus.
pub fn seeds_and_kept_inputs(target: &str, body: Body, seeds: &[Vec<u8>]) {
    for seed in seeds {
        body(seed);
    }
    let kept = kept_inputs(target);
    assert!(kept.len() >= seeds.len().min(15), "the seeds are gone from {target}'s corpus");
    for input in kept {
        body(&input);
    }
}

/// Puts each step somewhere into each seed.
pub fn every_step_after_every_seed(body: Body, seeds: &[Vec<u8>]) {
    for seed in seeds {
        for step in 0..=255u8 {
            let mut data = seed.clone();
            let at = 3 + usize::from(step) % 24;
            data[0] = data[0].wrapping_add(step & 0xf6);
            data[at] = step;
            body(&data);
        }
    }
}

/// Writes the seeds into the corpus.
pub fn write_seeds(target: &str, seeds: &[Vec<u8>]) {
    let place = corpus(target);
    std::fs::create_dir_all(&place).unwrap();
    for (i, seed) in seeds.iter().enumerate() {
        let end = seed.iter().rposition(|b| *b != 0).unwrap() + 1;
        std::fs::write(place.join(format!("seed-{i:02}")), &seed[..end]).unwrap();
    }
}

/// What the fuzzer would take long to find: sequences that are mostly about the CSB. `build` makes
/// an input of steps. `CSB_INPUTS=1000000` for a long run.
pub fn any_steps_around_a_csb(body: Body, mut build: impl FnMut(&[u8], &mut Random) -> Vec<u8>) {
    let inputs = std::env::var("CSB_INPUTS").map_or(1500, |n| n.parse().unwrap());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut frames = (0, 0);
    for i in 0..inputs {
        let mut steps = vec![0xd9, 0xda];
        for _ in 0..120 {
            let step = match random.below(8) {
                0..=2 => 0xd9 + random.below(7),
                3 => random.below(0x40),
                4 => 0xd0 + random.below(9),
                5 => 0x60 + random.below(16),
                6 => [0x0f, 0x2f, 0xd6, 0xd7][usize::from(random.below(4))],
                _ => random.below(256),
            };
            steps.push(step);
            // Operands: often indexes that exist.
            if matches!(step, 0xdb..=0xde) {
                steps.push(random.below(if i % 3 == 0 { 256 } else { 32 }));
            }
        }
        let (come, gone) = body(&build(&steps, &mut random));
        frames = (frames.0 + come, frames.1 + gone);
    }
    assert!(frames.0 > inputs && frames.1 > inputs, "{frames:?}");
}
