//! The inputs the fuzzer kept, and seeds for it.

use super::super::fuzz::e1000;
use crate::chip::fuzz::{self, RX_RING, replay};

/// A transmit descriptor, legacy or extended.
type Tx = (u64, u64);

/// An input: these transmit descriptors, and receive buffers of 2 KiB (or where `buffers` says).
fn input(config: u8, steps: &[u8], tx: &[Tx], buffers: &[u64]) -> Vec<u8> {
    let mut memory = vec![0u8; usize::try_from(fuzz::MEMORY).unwrap()];
    for (i, (address, word)) in tx.iter().cycle().take(32).enumerate() {
        memory[16 * i..16 * i + 8].copy_from_slice(&address.to_le_bytes());
        memory[16 * i + 8..16 * i + 16].copy_from_slice(&word.to_le_bytes());
    }
    for (i, address) in buffers.iter().cycle().take(32).enumerate() {
        let at = RX_RING as usize + 16 * i;
        memory[at..at + 8].copy_from_slice(&address.to_le_bytes());
    }
    // Frames at 0x2000: IPv4 and TCP.
    memory[0x2000..0x2006].fill(0xff);
    memory[0x200c..0x2018].copy_from_slice(&[8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6]);
    memory[0x202e] = 0x50;
    replay::input(config, steps, &memory)
}

fn seeds() -> Vec<Vec<u8>> {
    /// And IFCS.
    const EOP: u64 = 3 << 24;
    const RS: u64 = 8 << 24;
    const DEXT: u64 = 0x20 << 24;
    const IDE: u64 = 0x80 << 24;
    let steps = [
        0x0f, 0x28, 0x11, 0x6f, 0x34, 0x0f, 0x67, 0xbf, 0x71, 0, 0, 0, 0, 0xd3, 0x0f, 0x28, 0xd1,
        0x4c, 9, 0, 0, 0, 0x0f, 0xd2, 0x28,
    ];
    let legacy = [(0x2000, 60 | EOP | RS), (0x2000, 1514 | EOP | RS | IDE)];
    let scattered = [(0x2000, 40 | RS), (0x7fe0, 100), (0x9000, 500 | EOP | RS)];
    // A TCP context (header 54, MSS 1000, 3,000 bytes of payload), then the data.
    let context = (0x0000_3222_0021_180e, DEXT | 7 << 24 | 3000 | 54 << 40 | 1000 << 48);
    let data = 1 << 20 | DEXT | 6 << 24 | 3 << 40;
    let tso = [context, (0x2000, data | 54), (0x3000, data | 3000 | EOP | RS)];
    let impossible = [
        (u64::MAX, DEXT | 7 << 24 | 0xf_ffff | 255 << 40),
        (0x2000, data | 10),
        (0xfff0, data | EOP | 0xf_ffff),
        (0, EOP | RS),
    ];
    let nowhere = [(1 << 40, 60 | EOP | RS), (0xffff, 60 | EOP), (u64::MAX, 60 | EOP | RS), (0, 0)];
    // CSB on, indexes: 31 frames and buffers; both sides sleep, wishes, off, elsewhere, on again,
    // reset, timer.
    let csb = [
        0xd9, 0xda, 0xdc, 31, 0xdd, 31, 0x0f, 0x28, 0xd7, 0xde, 5, 0x28, 0xdc, 9, 0xdd, 9, 0x0f,
        0x2f, 0xd6, 0xdd, 20, 0x28, 0xdb, 0, 0x0f, 0xda, 0xdc, 3, 0xd4, 0x0f, 0xd5, 0x0f, 0xde, 0,
        0x28, 0xd3, 0x0f, 0x77, 0, 4, 0, 0, 0xda, 0x0f, 0xd2, 0x0f, 0xdf,
    ];
    let descriptors: [&[Tx]; 5] = [&legacy, &scattered, &tso, &impossible, &nowhere];
    let buffers: [&[u64]; 3] = [&[0x4000, 0x7c00], &[0, 0x4000], &[0, 0x1000, 0xfff0, u64::MAX]];
    let configs = [0x00, 0x06, 0x38];
    let all = descriptors.iter().zip(buffers.iter().cycle());
    let plain = all.flat_map(|(tx, rx)| configs.map(|config| input(config, &steps, tx, rx)));
    let csbs = [0x00, 0x06].map(|config| input(config, &csb, &legacy, buffers[0]));
    plain.chain(csbs).collect()
}

#[test]
fn seeds_move_frames() {
    let moved = |i: usize| e1000(&seeds()[i]);
    assert!(moved(0).0 > 30 && moved(0).1 >= 8, "{:?}", moved(0));
    let tso = moved(6);
    assert!(tso.0 > 4, "{tso:?}");
    let csb = moved(15);
    assert!(csb.0 > 30 && csb.1 > 30, "{csb:?}");
    let looped = moved(1);
    assert!(looped.1 > 30, "{looped:?}");
}

#[test]
fn seeds_and_kept_inputs() {
    replay::seeds_and_kept_inputs("e1000", e1000, &seeds());
}

#[test]
fn every_step_after_every_seed() {
    replay::every_step_after_every_seed(e1000, &seeds());
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("e1000", &seeds());
}

#[test]
fn any_steps_around_a_csb() {
    replay::any_steps_around_a_csb(e1000, |steps, random| {
        let config = random.below(16) & 0xfe;
        let at = 0x2000 + u64::from(random.below(255));
        let tx = [(0x2000, 60 | 0x0b << 24), (at, 1514 | 0x8b << 24)];
        input(config, steps, &tx, &[0x4000, 0x7c00])
    });
}
