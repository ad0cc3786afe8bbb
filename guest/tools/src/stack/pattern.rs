//! What our senders write: a byte follows from its place in the stream.

/// A prime, so that no power of two hides a shift.
const PERIOD: usize = 251;

/// The byte at a place.
pub(super) fn byte(at: usize) -> u8 {
    u8::try_from(at % PERIOD).unwrap_or(0)
}

/// The bytes from any place on, without building them anew.
#[derive(Debug)]
pub(super) struct Pattern(Box<[u8]>);

impl Pattern {
    /// For runs of up to so many bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self((0..longest + PERIOD).map(byte).collect())
    }

    /// `len` bytes from `place` on.
    pub(super) fn at(&self, place: u64, len: usize) -> &[u8] {
        let from = usize::try_from(place % PERIOD as u64).unwrap_or(0);
        &self.0[from..from + len]
    }
}
