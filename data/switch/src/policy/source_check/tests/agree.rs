//! The short cut agrees with the full way, and all that passes with etherparse.
use core::net::Ipv6Addr;

use vmlan_frame::HEAD;

use super::frames::*;
use crate::fuzz::{self, LINK_LOCAL, MAC2, settings};

/// xorshift64*, seeded: the same cases each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Bytes that mean something somewhere.
const ODD: [u8; 34] = [
    0, 1, 2, 4, 5, 6, 8, 9, 14, 17, 0x20, 0x2f, 0x35, 40, 41, 43, 44, 0x45, 0x46, 50, 51, 58, 60,
    0x60, 67, 68, 0x81, 131, 134, 135, 136, 137, 143, 0xff,
];

/// Addresses that are written over others.
fn addresses() -> Vec<Vec<u8>> {
    let mut all = vec![MAC2.to_vec(), OTHER.to_vec()];
    all.extend([[10, 0, 0, 1], [10, 0, 0, 9], [10, 1, 0, 9], [0; 4], [255; 4]].map(Vec::from));
    all.extend([ME6, YOU6, LINK_LOCAL, Ipv6Addr::UNSPECIFIED].map(|ip| ip.octets().to_vec()));
    all
}

fn mutate(frame: &mut Vec<u8>, addresses: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.below(frame.len().min(130));
    match chance.below(12) {
        0 => frame.truncate(at.max(14)),
        1 => frame.extend([0; 9]),
        2 => {
            let address = chance.one(addresses);
            let at = *chance.one(&[6, 22, 26, 28, 30, 38, 62, 70, 78, 80, 86, 88]);
            if let Some(place) = frame.get_mut(at..at + address.len()) {
                place.copy_from_slice(address);
            }
        }
        3 => *frame = tagged(frame, &[*chance.one(&[0x8100, 0x88a8, 0x9100])]),
        4 => {
            let options: [[u8; 8]; 3] =
                [[0; 8], [60, 0, 1, 4, 0, 0, 0, 0], [1, 1, 9, 9, 9, 9, 9, 9]];
            let bytes = chance.one(&options);
            let at = (*chance.one(&[34, 54, 62, 70, 78])).min(frame.len());
            frame.splice(at..at, bytes.iter().copied());
        }
        5 => frame[at] ^= 1 << chance.below(8),
        6 => frame[at] = chance.below(256) as u8,
        // Lengths follow, or nearly, what was put in.
        7 if frame.len() > 20 => frame[17] = (frame.len() - 14 - chance.below(2)) as u8,
        8 if frame.len() > 54 => frame[19] = (frame.len() - 54 - chance.below(2)) as u8,
        _ => frame[at] = *chance.one(&ODD),
    }
}

/// `cases` frames, each an honest one with up to four changes; how many passed under some setting.
fn run(seed: u64, cases: usize) -> usize {
    let (mut chance, pool, addresses) = (Chance(seed), honest(), addresses());
    let mut frame = Vec::new();
    let mut passed = 0;
    for _ in 0..cases {
        frame.clear();
        frame.push(chance.below(64) as u8);
        let mut bytes = chance.one(&pool).clone();
        for _ in 0..chance.below(5) {
            mutate(&mut bytes, &addresses, &mut chance);
        }
        frame.extend(&bytes);
        passed += usize::from(frame[0] & 31 != 0 && fuzz::claims(&frame));
    }
    passed
}

#[test]
fn what_passes_is_honest_to_another_parser() {
    let passed = run(0x9e37_79b9_7f4a_7c15, 200_000);
    assert!((40_000..160_000).contains(&passed), "{passed} of 200,000: too easy or too hard");
}

#[test]
fn honest_frames_pass_and_are_seen_by_the_short_cut() {
    for frame in honest() {
        for bits in 0..32 {
            let router =
                bits & 16 != 0 && matches!(frame.get(54), Some(134 | 137)) && frame[12] == 0x86;
            assert_eq!(
                fuzz::claims(&[&[bits], &frame[..]].concat()),
                !router,
                "{bits} {frame:02x?}"
            );
        }
    }
    // Those that nearly all frames are go no other way.
    let plain = [
        V4::default().frame(),
        V4 { protocol: TCP, payload: tcp(1460), ..V4::default() }.frame(),
        V6::default().frame(),
        V6 { protocol: TCP, payload: tcp(1440), ..V6::default() }.frame(),
    ];
    for mut frame in plain.iter().flat_map(|f| [f.clone(), tagged(f, &[0x8100])]) {
        frame.resize(frame.len().max(60), 0);
        let head = &frame[..frame.len().min(HEAD)];
        assert!((0..32).all(|bits| settings(bits).is_plain(head, frame.len())), "{frame:02x?}");
    }
}

#[test]
fn any_bytes() {
    let mut chance = Chance(7);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..chance.below(160)).map(|_| chance.below(256) as u8).collect();
        if let Some(kind) = bytes.get_mut(13..15) {
            let known: [[u8; 2]; 4] = [[0, 0x45], [0, 0x46], [6, 0], [0xdd, 0x60]];
            kind.copy_from_slice(&chance.one(&known)[..]);
        }
        fuzz::claims(&bytes);
    }
}

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/claims");

#[test]
fn kept_inputs() {
    let files: Vec<_> = std::fs::read_dir(CORPUS).unwrap().collect();
    assert!(files.len() >= 30, "the seeds are gone from {CORPUS}");
    for file in files {
        fuzz::claims(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

/// Writes the seeds: `cargo test -p vmlan-switch write_seeds -- --ignored`.
#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    for (i, frame) in honest().iter().enumerate() {
        let bits = [4, 6, 2, 12, 20, 1, 31][i % 7];
        std::fs::write(format!("{CORPUS}/seed-{i:02}"), [&[bits], &frame[..]].concat()).unwrap();
    }
}
