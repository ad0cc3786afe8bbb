//! What our senders write: each byte follows from its place in the stream.

const PERIOD: u8 = 251; // A prime, so that no power of two hides a shift; one byte has room for it.

/// The byte at a place.
pub(crate) fn byte(at: usize) -> u8 {
    (at % usize::from(PERIOD)).to_le_bytes()[0]
}

/// The bytes from any place on, without building them anew.
#[derive(Debug)]
pub(crate) struct Pattern(Box<[u8]>);

impl Pattern {
    /// For runs of up to so many bytes.
    pub(crate) fn new(longest: usize) -> Self {
        Self((0..longest + usize::from(PERIOD)).map(byte).collect())
    }

    /// `len` bytes from `place` on.
    pub(crate) fn at(&self, place: u64, len: usize) -> &[u8] {
        let from = usize::from((place % u64::from(PERIOD)).to_le_bytes()[0]);
        &self.0[from..from + len]
    }
}
