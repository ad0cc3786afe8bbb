//! Conversions of numbers, each of which says why it loses nothing or what it does when it would.

use std::time::Duration;

/// A number that is known to fit 16 bits: the caller has bounded it. (Of one that does not, the low
/// bits.)
#[inline]
pub fn narrow16(n: u64) -> u16 {
    debug_assert!(n <= u64::from(u16::MAX), "{n} has more than 16 bits");
    let [a, b, ..] = n.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// A number that is known to fit 32 bits: a remainder, or the length of a frame, a message or a
/// buffer. (Of one that does not, the low bits.)
#[inline]
pub fn narrow32(n: u64) -> u32 {
    debug_assert!(n <= u64::from(u32::MAX), "{n} has more than 32 bits");
    let [a, b, c, d, ..] = n.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A limit in 32 bits. A larger one limits no value of 32 bits.
#[inline]
pub fn limit32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A limit in 64 bits. A larger one limits no value of 64 bits.
#[inline]
pub fn limit64(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A time in nanoseconds; what is more than 584 years is 584 years.
#[inline]
pub fn nanos(time: Duration) -> u64 {
    limit64(time.as_nanos())
}
