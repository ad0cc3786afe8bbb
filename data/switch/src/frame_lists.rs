//! The numbers of the frames of a batch, as ports take them in lists.

use std::ops::Range;

use vmlan_frame::{BATCH, JOINT};

/// 0, 1, 2, ...: the list that names all frames of a batch.
#[allow(clippy::indexing_slicing)] // evaluated by the compiler
static ALL: [u16; BATCH] = {
    let mut all = [0; BATCH];
    let mut i = 0;
    let mut number = 0;
    while i < BATCH {
        all[i] = number;
        number += 1;
        i += 1;
    }
    all
};

/// 0, 1, 2, ...: for who puts a list in another order.
#[inline]
pub(crate) fn numbers() -> [u16; BATCH] {
    ALL
}

/// The list that names the first `n` frames of a batch.
#[inline]
pub(crate) fn first(n: usize) -> &'static [u16] {
    ALL.get(..n).unwrap_or_default()
}

/// The number of frame `i`.
#[inline]
#[allow(clippy::cast_possible_truncation)] // a batch has no more than JOINT frames
pub(crate) fn number(i: usize) -> u16 {
    debug_assert!(i < JOINT, "no batch has a frame {i}");
    i as u16
}

/// The numbers of the frames of `run`.
#[inline]
#[allow(clippy::cast_possible_truncation)] // a batch has no more than JOINT frames
pub(crate) fn range(run: &Range<usize>) -> Range<u16> {
    const { assert!(JOINT <= u16::MAX as usize) };
    debug_assert!(run.end <= JOINT, "no batch has {} frames", run.end);
    run.start as u16..run.end as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_places() {
        assert!(first(BATCH).iter().enumerate().all(|(i, n)| usize::from(*n) == i));
        assert_eq!((range(&(3..5)), first(0)), (3..5, &[][..]));
    }
}
