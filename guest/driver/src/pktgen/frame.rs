//! The frames pkt-gen sends: Ethernet, IPv4, UDP, and a payload that can be numbered and summed.
//!
//! ```text
//! 0            12    14         34        42     44       52      60
//! | dst | src  | type| IPv4     | UDP     | mark | number | sum   | pattern ...
//! ```
//! `mark` is one magic byte and the number of the queue. The sum covers everything from byte 12 on except itself and the
//! UDP checksum (which the way may fill in), so it tells a changed, cut or mixed-up body. MAC addresses are not covered.

use super::options::Options;
use crate::mac::Mac;
use std::net::Ipv4Addr;

const MAGIC: u8 = 0x76;
const IP: usize = 14;
const UDP: usize = 34;
const UDP_CHECKSUM: usize = 40;
const MARK: usize = 42;
const NUMBER: usize = 44;
const SUM: usize = 52;
const PATTERN: usize = 60;
const PROTOCOL_UDP: u8 = 17;

/// Internet checksum (RFC 1071) of `bytes`, starting from `sum`, folded but not inverted.
pub(super) fn internet_sum(bytes: &[u8], sum: u64) -> u16 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    let mut sum =
        pairs.fold(sum + odd, |sum, pair| sum + u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// The sum over the UDP pseudo header.
fn pseudo_sum(frame: &[u8]) -> u64 {
    let udp_len = (frame.len() - UDP) as u64;
    u64::from(internet_sum(&frame[IP + 12..UDP], u64::from(PROTOCOL_UDP) + udp_len))
}

fn nth<T: Copy>(first: T, last: T, n: u32) -> u32
where
    u32: From<T>,
{
    let (first, last) = (u32::from(first), u32::from(last));
    let span = u64::from(last - first) + 1;
    let step = u32::try_from(u64::from(n) % span).unwrap_or(0);
    first + step
}

fn short(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// The `n`th frame of a run, without number and sum.
pub(super) fn build(options: &Options, n: u32, offload: bool) -> Vec<u8> {
    let size = options.size as usize;
    let mut frame = vec![0; size];
    frame[..6].copy_from_slice(&options.dst_mac.0);
    frame[6..12].copy_from_slice(&options.src_mac.0);
    frame[12..IP].copy_from_slice(&[8, 0]);
    let src = Ipv4Addr::from(nth(*options.src_ip.start(), *options.src_ip.end(), n));
    let dst = Ipv4Addr::from(nth(*options.dst_ip.start(), *options.dst_ip.end(), n));
    let ip_len = short(options.size - 14).to_be_bytes();
    frame[IP..IP + 12].copy_from_slice(&[
        0x45,
        0,
        ip_len[0],
        ip_len[1],
        0,
        0,
        0x40,
        0,
        64,
        PROTOCOL_UDP,
        0,
        0,
    ]);
    frame[IP + 12..IP + 16].copy_from_slice(&src.octets());
    frame[IP + 16..UDP].copy_from_slice(&dst.octets());
    let ip_sum = !internet_sum(&frame[IP..UDP], 0);
    frame[IP + 10..IP + 12].copy_from_slice(&ip_sum.to_be_bytes());
    let src_port = nth(*options.src_port.start(), *options.src_port.end(), n);
    let dst_port = nth(*options.dst_port.start(), *options.dst_port.end(), n);
    let udp = [short(src_port), short(dst_port), short(options.size - 34), 0];
    for (to, word) in frame[UDP..MARK].chunks_exact_mut(2).zip(udp) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    for (byte, value) in frame[PATTERN..].iter_mut().zip((0..=250_u8).cycle()) {
        *byte = value;
    }
    if offload {
        let partial = internet_sum(&[], pseudo_sum(&frame));
        frame[UDP_CHECKSUM..MARK].copy_from_slice(&partial.to_be_bytes());
    }
    frame
}

/// A frame that tells a switch where `mac` is: RARP, as VMMs send it for a guest that has moved.
pub(super) fn announcement(mac: Mac) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac.0);
    frame[32..38].copy_from_slice(&mac.0);
    frame
}

/// Mixes `bytes` into `seed`; quick, and any single changed bit changes it.
fn mix(seed: u64, bytes: &[u8]) -> u64 {
    let step =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut chunks = bytes.chunks_exact(8);
    let sum = chunks.by_ref().fold(seed, |sum, chunk| {
        step(sum, chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
    });
    let rest = chunks.remainder().iter().fold(1, |word, byte| word << 8 | u64::from(*byte));
    step(sum, rest)
}

/// The part of the sum that does not change with the number.
pub(super) fn body_sum(frame: &[u8]) -> u64 {
    let head = mix(frame.len() as u64, &frame[12..UDP_CHECKSUM]);
    mix(head, &frame[PATTERN..])
}

/// Mark, number and sum: the 18 bytes at [`STAMP_AT`].
pub(super) fn stamp(body: u64, queue: u8, number: u64) -> [u8; 18] {
    let mut bytes = [0; 18];
    (bytes[0], bytes[1]) = (MAGIC, queue);
    bytes[2..10].copy_from_slice(&number.to_le_bytes());
    let sum = mix(body, &bytes[..10]);
    bytes[10..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Where [`stamp`] goes.
pub(super) const STAMP_AT: usize = MARK;

/// What a received frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// One of ours, whole.
    Good {
        /// The sender's queue.
        queue: u8,
        /// Its number.
        number: u64,
    },
    /// One of ours, but changed; or with a wrong UDP checksum.
    Corrupt,
    /// Something else.
    Other,
}

fn word(frame: &[u8], at: usize) -> u64 {
    frame[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Looks at a received frame. `checksum_pending`: the header says the UDP checksum is still to be completed.
pub(super) fn verify(frame: &[u8], checksum_pending: bool) -> Verdict {
    if frame.len() < PATTERN || frame[12..IP] != [8, 0] || frame[MARK] != MAGIC {
        return Verdict::Other;
    }
    let (queue, number) = (frame[MARK + 1], word(frame, NUMBER));
    let expected = stamp(body_sum(frame), queue, number);
    let udp_good = checksum_pending
        || frame[UDP_CHECKSUM..MARK] == [0, 0]
        || internet_sum(&frame[UDP..], pseudo_sum(frame)) == 0xffff;
    if expected[10..] == frame[SUM..PATTERN] && udp_good {
        Verdict::Good { queue, number }
    } else {
        Verdict::Corrupt
    }
}

/// Turns an IPv4 frame round: swaps MAC and IP addresses (the sum covers the latter, so it is made anew). A frame to a group is
/// answered from `own`. False when it is no frame to answer.
pub(super) fn turn_round(frame: &mut [u8], own: Mac) -> bool {
    if frame.len() < PATTERN || frame[12..IP] != [8, 0] {
        return false;
    }
    let marked = matches!(verify(frame, true), Verdict::Good { .. });
    let (dst, src) = frame[..12].split_at_mut(6);
    dst.swap_with_slice(src);
    if src[0] & 1 == 1 {
        src.copy_from_slice(&own.0);
    }
    let (src, dst) = frame[IP + 12..UDP].split_at_mut(4);
    src.swap_with_slice(dst);
    if marked {
        let fresh = stamp(body_sum(frame), frame[MARK + 1], word(frame, NUMBER));
        frame[STAMP_AT..PATTERN].copy_from_slice(&fresh);
        // The sum is payload, so a UDP checksum would no longer hold; zero says "none" (RFC 768).
        frame[UDP_CHECKSUM..MARK].fill(0);
    }
    true
}
