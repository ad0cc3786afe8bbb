//! Seeds for the fuzz targets of both chips in C+ mode.

use super::desc::{EOR, FS, LS, OWN, tx};
use super::fuzz::{HIGH_RING, NORMAL_RING};
use crate::chip::fuzz::{FRAME, MEMORY, RX_RING, replay};

/// opts1, opts2, address.
type Desc = (u32, u32, u64);

const ALL: u32 = OWN | FS | LS;

/// The guest's memory: transmit descriptors for both rings, and receive buffers of 2 KiB (or as
/// long as `buffers` says).
pub fn memory(sent: &[Desc], buffers: &[(u32, u64)]) -> Vec<u8> {
    let mut memory = vec![0u8; usize::try_from(MEMORY).unwrap()];
    let mut put = |ring: u32, i: usize, (opts1, opts2, address): Desc| {
        let at = ring as usize + 16 * i;
        let eor = if i == 31 { EOR } else { 0 };
        let words = [u64::from(opts1 | eor) | u64::from(opts2) << 32, address];
        for (at, word) in (at..).step_by(8).zip(words) {
            memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    };
    for i in 0..32 {
        put(NORMAL_RING, i, sent[i % sent.len()]);
        let (opts1, opts2, address) = sent[(i + 1) % sent.len()];
        put(HIGH_RING, i, (opts1 & !OWN, opts2, address));
        let (len, address) = buffers[i % buffers.len()];
        put(RX_RING, i, (OWN | len, 0, address));
    }
    // Frames: IPv4 and TCP.
    let frame = FRAME as usize;
    memory[frame..frame + 6].fill(0xff);
    let headers = [8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6];
    memory[frame + 12..frame + 24].copy_from_slice(&headers);
    memory[frame + 0x2e] = 0x50;
    memory
}

/// Both rings, held frames, rings that move, EOR that comes and goes, a map that goes and comes, D3
/// (PMCSR at `pmcsr`), a reset.
fn steps(pmcsr: u8) -> Vec<u8> {
    vec![
        0x0f, 0x28, 0x11, 0x63, 0x34, 0x0f, 0x6b, 0x67, 0x0f, 0x28, // held, given, again
        0x50, 7, 0x40, 0x63, 0x0f, 0x50, 7, 0x40, 0x5c, 3, 0x40, 0x6a, 0x28, // EOR
        0x54, 1, 0xc0, 0x52, 9, 0x80, 0x0f, // OWN taken away
        0x12, 0x40, 0, 3, 0, 0, 0x0f, 0x63, 0x0f, 0x44, 0, 2, 0, 0, 0x28, // rings move
        0xd4, 0x0f, 0x28, 0xd5, 0x0f, 0x28, // no memory
        0xa3, pmcsr, 0, 0x0f, 0x94, 0x37, 0, 0xa0, pmcsr, 0, 0x0f, // asleep
        0xbf, 0xd0, 0xd1, 0xd7, 0xd6, 0xd3, 0x0f, 0x28, 0xd2, 0x28,
    ]
}

/// The CSB is on, indexes move, wishes, off, elsewhere, on again, reset, timer.
const CSB: [u8; 47] = [
    0xd9, 0xda, 0xdc, 31, 0xdd, 31, 0x0f, 0x28, 0xd7, 0xde, 5, 0x28, 0xdc, 9, 0xdd, 9, 0x63, 0x0f,
    0xd6, 0xdd, 20, 0x6b, 0x28, 0xdb, 0, 0x0f, 0xda, 0xdc, 3, 0xd4, 0x0f, 0xd5, 0x0f, 0xde, 0,
    0x28, 0xd3, 0x0f, 0x7e, 0, 4, 0, 0, 0xda, 0x0f, 0xd2, 0xdf,
];

/// Inputs with these bytes of configuration; the last two are about the CSB.
pub fn seeds(configs: [u8; 3], pmcsr: u8) -> Vec<Vec<u8>> {
    let frame = u64::from(FRAME);
    let plain = [(ALL | 60, 0, frame), (ALL | 1514, tx::TAGC | 0x0520, frame)];
    let sums = tx::IPCS | tx::TCPCS;
    let scattered = [
        (OWN | FS | sums | 40, 0, frame),
        (OWN | 100, 0, 0x7fe0),
        (OWN | LS | 500, 0, 0x9000),
        (ALL | tx::UDPCS | 42, 0, frame),
    ];
    let large = tx::LGSEN | 1000 << tx::MSS_SHIFT;
    let tso = [(OWN | FS | large | 54, 0, frame), (OWN | LS | large | 3000, 0, 0x3000)];
    let impossible = [
        (OWN | 60, 0, frame),
        (OWN | FS | tx::LGSEN | 0xffff, u32::MAX, frame),
        (ALL | tx::LGSEN | 1 << tx::MSS_SHIFT | 0xffff, 0, 0x100),
        (OWN | FS, 0, 0),
        (OWN | LS | 20, 0, u64::MAX),
    ];
    let nowhere =
        [(ALL | 60, 0, 1 << 40), (ALL | 60, 0, 0xffff), (ALL, 0, 0), (u32::MAX, 0, frame)];
    let sent: [&[Desc]; 5] = [&plain, &scattered, &tso, &impossible, &nowhere];
    let buffers: [&[(u32, u64)]; 3] = [
        &[(2048, 0x4000), (2048, 0x7c00)],
        &[(60, 0x4000), (0, 0x4100), (256, 0x7ff0)],
        &[(0x3fff, 0x4000), (2048, 0x1000), (2048, 0xfff0), (2048, u64::MAX)],
    ];
    let steps = steps(pmcsr);
    let all = sent.iter().zip(buffers.iter().cycle());
    let inputs = all.flat_map(|(sent, at)| {
        configs.map(|config| replay::input(config, &steps, &memory(sent, at)))
    });
    let csbs = [configs[0], configs[1]]
        .map(|config| replay::input(config, &CSB, &memory(&plain, buffers[0])));
    inputs.chain(csbs).collect()
}

/// Frames move in those of them in which they should.
pub fn assert_they_move(seeds: &[Vec<u8>], body: replay::Body) {
    let moved = |i: usize| body(&seeds[i]);
    assert!(moved(0).0 > 60 && moved(0).1 >= 16, "{:?}", moved(0));
    let tso = moved(6);
    assert!(tso.0 > 30, "{tso:?}");
    let csb = moved(15);
    assert!(csb.0 > 30 && csb.1 > 8, "{csb:?}");
    let looped = moved(1);
    assert!(looped.1 > 30, "{looped:?}");
}
