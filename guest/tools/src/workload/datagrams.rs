//! The numbers that datagrams of a stream begin with, if they are long enough.

use super::Tally;

/// The number at a payload's start.
pub(crate) fn number(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Finds what is missing among them.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    expected: u64,
}

impl Gaps {
    /// Looks for gaps in the numbers. A sender that starts over is not a gap.
    pub(crate) fn note(&mut self, number: u64, tally: &mut Tally) {
        if number == 0 {
            self.expected = 0;
        }
        if number < self.expected {
            tally.out_of_order += 1;
            return;
        }
        // The first number seen of a running stream shows no gap, nor does a payload that has no
        // number.
        let gap = number - self.expected;
        if self.expected > 0 && gap < 1 << 32 {
            tally.lost += gap;
        }
        self.expected = number.saturating_add(1);
    }
}
