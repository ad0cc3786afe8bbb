//! The inputs the fuzzer kept, and the odd values it should not need to find.
use super::packet::Packet;
use crate::{Offload, fuzz};

/// An input of the fuzz target `frame`.
pub fn input(bytes: &[u8], offload: &Offload, takes: u8, piece: u8) -> Vec<u8> {
    let kind = offload.gso as u8;
    let flags = u8::from(offload.needs_csum) | kind << 2 | u8::from(offload.ecn) << 4;
    let mut data = vec![flags, takes, piece, 0];
    for word in [offload.gso_size, offload.hdr_len, offload.csum_start, offload.csum_offset] {
        data.extend(word.to_be_bytes());
    }
    data.extend(bytes);
    data
}

#[test]
fn kept_inputs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/frame");
    let files: Vec<_> = std::fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() >= 16, "the seeds are gone from {corpus}");
    for file in files {
        fuzz::frame(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

#[test]
fn odd_values_of_every_field() {
    const ODD: [u16; 17] = [0, 1, 2, 6, 11, 12, 13, 14, 16, 33, 34, 47, 48, 127, 128, 129, 0xffff];
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let packet = Packet { v6, tcp, payload: vec![3; 700], ..Packet::default() };
        let bytes = packet.unfinished();
        for (gso_size, takes) in [(0, 0), (100, 0), (100, 1)] {
            let good = packet.offload(gso_size);
            for (a, b) in ODD.iter().flat_map(|a| ODD.iter().map(move |b| (*a, *b))) {
                for odd in [
                    Offload { csum_start: a, csum_offset: b, ..good },
                    Offload { gso_size: a, hdr_len: b, ..good },
                    Offload { gso_size: a, csum_start: b, ..good },
                    Offload { gso_size: a, csum_offset: b, ..good },
                ] {
                    fuzz::frame(&input(&bytes, &odd, takes, 99));
                    fuzz::frame(&input(&bytes[..usize::from(a).min(bytes.len())], &odd, takes, 0));
                }
            }
        }
    }
}

#[test]
fn every_byte_of_the_headers_at_odd_values() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let packet =
            Packet { v6, tcp, tags: 1, ip_options: 1, payload: vec![3; 300], ..Packet::default() };
        let bytes = packet.unfinished();
        for at in 0..packet.header_len() {
            for value in [0, 1, 4, 5, 15, 0x45, 0x4f, 0x60, 0x7f, 0x80, 0xfe, 0xff, 43, 44, 60] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                for gso_size in [0, 100] {
                    fuzz::frame(&input(&bytes, &packet.offload(gso_size), 0, 50));
                }
            }
        }
    }
}

/// Writes the seeds: `cargo test -p vmlan-frame write_seeds -- --ignored`.
#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/frame");
    for bits in 0..16usize {
        let (v6, tcp, tags) = (bits & 1 != 0, bits & 2 != 0, bits >> 2 & 1);
        let packet =
            Packet { v6, tcp, tags, ip_options: tags, payload: vec![9; 80], ..Packet::default() };
        let gso_size = if bits & 8 != 0 { 50 } else { 0 };
        let data = input(&packet.unfinished(), &packet.offload(gso_size), 0, 40);
        std::fs::write(format!("{corpus}/seed-{bits:02}"), data).unwrap();
    }
}
