//! Parts of numbers, and numbers that are small by construction.

/// The lower half of `n`.
#[inline]
pub const fn low32(n: u64) -> u32 {
    let [a, b, c, d, ..] = n.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A count or an index in a list whose capacity is far below 2^16: frames of a batch, pieces of
/// memory. Were that broken, the result would name nothing: every look-up is checked, so a frame
/// would be lost and not mistaken for another.
#[inline]
pub fn small(n: usize) -> u16 {
    debug_assert!(n < usize::from(u16::MAX), "a list of more than its capacity: {n}");
    u16::try_from(n).unwrap_or(u16::MAX)
}
