//! Segments of every small payload.

use super::finish::run;
use super::packet::Packet;
use crate::{Offloads, Reason};

/// The smallest segment of TCP that is believed, and the most segments of UDP.
const LEAST_TCP: usize = 8;
const MOST_UDP: usize = 128;

/// Every payload of up to 260 bytes, cut into segments of every size: all of it comes out, once, in
/// order, each segment full but the last, and the headers as long as they were. Sizes that make
/// too many segments are refused, and no other ones.
#[test]
fn every_small_payload_and_segment_size() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        for len in 1..=260 {
            let payload: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            let packet = Packet { v6, tcp, payload: payload.clone(), ..Packet::default() };
            let (bytes, header) = (packet.unfinished(), packet.header_len());
            for size in 1..=len + 1 {
                let frames = run(&bytes, &[bytes.len()], packet.offload(size), Offloads::NONE);
                let good = if tcp { size >= LEAST_TCP } else { len.div_ceil(size) <= MOST_UDP };
                if !good {
                    assert_eq!(frames.err(), Some(Reason::BadOffload), "{v6} {tcp} {len} {size}");
                    continue;
                }
                let frames = frames.unwrap();
                let parts: Vec<&[u8]> = frames.iter().map(|(f, _)| &f[header..]).collect();
                assert_eq!(parts.concat(), payload, "{v6} {tcp} {len} {size}");
                assert_eq!(parts.len(), len.div_ceil(size));
                let (last, full) = parts.split_last().unwrap();
                assert!(full.iter().all(|part| part.len() == size));
                assert!((1..=size).contains(&last.len()));
            }
        }
    }
}
