//! The Internet checksum (RFC 1071), over memory that lies in pieces.

use vmlan_ram::Slice;

use crate::Headers;

/// Bytes copied out of guest memory at a time: small enough to stay in the first-level cache and to
/// cost little to set up, large enough that the copy is a bulk one.
const CHUNK: usize = 512;

/// A running one's complement sum. Runs may have any length: the byte order of a run that starts at
/// an odd place is put right (RFC 1071 section 2 (B)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    /// In the machine's byte order, unfolded: grows by less than 2^32 for each 4 bytes.
    sum: u64,
    odd: bool,
}

impl Checksum {
    /// The empty sum.
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Adds a run of our own bytes.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let part = fold(sum(bytes));
        self.sum += u64::from(if self.odd { part.swap_bytes() } else { part });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds a run of memory that may change meanwhile: each byte is read once.
    pub fn add_slice(&mut self, run: Slice<'_>) {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < run.len() {
            let n = run.sub(at, CHUNK).read(&mut chunk);
            self.add(chunk.get(..n).unwrap_or_default());
            at += n.max(1);
        }
    }

    /// Adds a number, as if its two bytes in network order followed. Only at even places.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.sum += u64::from(value.to_be());
    }

    /// The sum folded to 16 bits, not complemented: what an unfinished checksum field holds for the
    /// pseudo-header (virtio 1.2 section 5.1.6.2).
    #[inline]
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// The checksum to store. Never 0, which in UDP means "none" (RFC 768); in one's complement
    /// 0xffff says the same, so every other protocol takes it as well.
    #[inline]
    pub fn finish(self) -> u16 {
        match !self.folded() {
            0 => 0xffff,
            sum => sum,
        }
    }

    /// The pseudo-header of an IP packet (RFC 9293 section 3.1, RFC 8200 section 8.1) whose upper
    /// layer has `len` bytes, as in `head`. `None` if there is no IP header.
    pub fn pseudo_header(head: &[u8], headers: &Headers, len: usize) -> Option<Self> {
        let (source, destination) = headers.addresses(head)?;
        let len = u32::try_from(len).ok()?;
        let mut sum = Self::new();
        sum.add(source);
        sum.add(destination);
        sum.add(&len.to_be_bytes());
        sum.add_u16(u16::from(headers.protocol));
        Some(sum)
    }
}

/// Sums native 32-bit words in 64 bits: the compiler makes vector code of it.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    total += u64::from(u32::from_ne_bytes(last));
    total
}

/// Adds the carries back until 16 bits are left.
#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [a, b, ..] = sum.to_le_bytes();
    u16::from_le_bytes([a, b])
}
