//! The frames pkt-gen sends: Ethernet, IPv4, UDP, and a payload that can be numbered and summed.
//!
//! ```text
//! 0            12    14         34        42     44       52      60
//! | dst | src  | type| IPv4     | UDP     | mark | number | sum   | pattern ...
//! ```
//! `mark` is one magic byte and the number of the queue. The sum covers everything from byte 12 on
//! except itself and the UDP checksum (which a NIC on the way may fill in), so it shows a changed,
//! cut or mixed-up body. MAC addresses are not covered.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use super::options::Options;
use vmlan_transport::Mac;
use vmlan_transport::numbers::{narrow16, narrow32};

const MAGIC: u8 = 0x76;
/// Bytes before the payload.
pub(super) const HEAD: usize = 42;
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
    narrow16(sum)
}

/// The sum over the UDP pseudo header of a frame of `len` bytes.
fn pseudo_sum(frame: &[u8], len: usize) -> u64 {
    let udp_len = (len - UDP) as u64;
    u64::from(internet_sum(&frame[IP + 12..UDP], u64::from(PROTOCOL_UDP) + udp_len))
}

/// The `n`th of a range; a random one of the whole range if `random` is given.
fn nth(first: u32, last: u32, n: u64, random: Option<u64>) -> u32 {
    let span = u64::from(last - first) + 1;
    first.wrapping_add(narrow32(random.unwrap_or(n) % span))
}

/// A well mixed number for each `n` (splitmix64): randomness that needs no state and repeats from
/// run to run.
pub(super) fn chance(n: u64, kind: u64) -> u64 {
    let mut mixed = n.wrapping_add(kind << 56).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn short(value: u32) -> u16 {
    narrow16(value.into())
}

/// One end of the `n`th frame: an address and a port. If random, any, or any of the given range.
fn end(
    ips: &RangeInclusive<Ipv4Addr>,
    ports: &RangeInclusive<u16>,
    n: u64,
    kind: Option<u64>,
) -> (u32, u16) {
    let (mut ip, mut port) = (
        (u32::from(*ips.start()), u32::from(*ips.end())),
        (u32::from(*ports.start()), u32::from(*ports.end())),
    );
    let draw = kind.map(|kind| chance(n, kind));
    if draw.is_some() && ip.0 == ip.1 {
        ip = (0, u32::MAX);
    }
    if draw.is_some() && port.0 == port.1 {
        port = (0, u16::MAX.into());
    }
    (nth(ip.0, ip.1, n, draw.map(|draw| draw >> 32)), short(nth(port.0, port.1, n, draw)))
}

/// Everything before the payload of the `n`th frame.
pub(super) fn head(options: &Options, size: u32, n: u64, offload: bool) -> [u8; HEAD] {
    let mut frame = [0; HEAD];
    frame[..6].copy_from_slice(&options.dst_mac.0);
    frame[6..12].copy_from_slice(&options.src_mac.0);
    frame[12..IP].copy_from_slice(&[8, 0]);
    let src = end(&options.src_ip, &options.src_port, n, options.random_src.then_some(1));
    let dst = end(&options.dst_ip, &options.dst_port, n, options.random_dst.then_some(2));
    let [len, more] = short(size - 14).to_be_bytes();
    let fixed = [0x45, 0, len, more, 0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0];
    frame[IP..IP + 12].copy_from_slice(&fixed);
    frame[IP + 12..IP + 16].copy_from_slice(&src.0.to_be_bytes());
    frame[IP + 16..UDP].copy_from_slice(&dst.0.to_be_bytes());
    let ip_sum = !internet_sum(&frame[IP..UDP], 0);
    frame[IP + 10..IP + 12].copy_from_slice(&ip_sum.to_be_bytes());
    let udp = [src.1, dst.1, short(size - 34), 0];
    for (to, word) in frame[UDP..MARK].chunks_exact_mut(2).zip(udp) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    if offload {
        let partial = internet_sum(&[], pseudo_sum(&frame, size as usize));
        frame[UDP_CHECKSUM..MARK].copy_from_slice(&partial.to_be_bytes());
    }
    frame
}

/// The `n`th frame of a run, of `size` bytes, without number and sum.
pub(super) fn build(options: &Options, size: u32, n: u64, offload: bool) -> Vec<u8> {
    let mut frame = vec![0; size as usize];
    frame[..HEAD].copy_from_slice(&head(options, size, n, offload));
    for (byte, value) in frame[PATTERN..].iter_mut().zip((0..=250_u8).cycle()) {
        *byte = value;
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

/// The part of the sum over the headers, which begin the frame.
pub(super) fn head_sum(head: &[u8]) -> u64 {
    mix(PATTERN as u64, &head[12..UDP_CHECKSUM])
}

/// The part of the sum that changes neither with the number nor with the addresses.
pub(super) fn pattern_sum(frame: &[u8]) -> u64 {
    mix(frame.len() as u64, &frame[PATTERN..])
}

/// The part of the sum that does not change with the number.
pub(super) fn body_sum(frame: &[u8]) -> u64 {
    head_sum(frame) ^ pattern_sum(frame)
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

/// Looks at a received frame. `checksum_pending`: the header says the UDP checksum is still to be
/// completed.
pub(super) fn verify(frame: &[u8], checksum_pending: bool) -> Verdict {
    if frame.len() < PATTERN || frame[12..IP] != [8, 0] || frame[MARK] != MAGIC {
        return Verdict::Other;
    }
    let (queue, number) = (frame[MARK + 1], word(frame, NUMBER));
    let expected = stamp(body_sum(frame), queue, number);
    let udp_good = checksum_pending
        || frame[UDP_CHECKSUM..MARK] == [0, 0]
        || internet_sum(&frame[UDP..], pseudo_sum(frame, frame.len())) == 0xffff;
    if expected[10..] == frame[SUM..PATTERN] && udp_good {
        Verdict::Good { queue, number }
    } else {
        Verdict::Corrupt
    }
}

/// Turns an IPv4 frame round: swaps MAC and IP addresses (the sum covers the latter, so it is
/// computed again). A frame to a group is answered from `own`. False when it is not a frame to
/// answer.
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
