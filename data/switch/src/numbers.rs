//! The numbers of the frames of a batch, as ports take them in lists.

use std::ops::Range;

use vmlan_frame::BATCH;

/// 0, 1, 2, ...: the list that names all frames of a batch.
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

/// The list that names the first `n` frames of a batch.
#[inline]
pub(crate) fn first(n: usize) -> &'static [u16] {
    numbers(0..n)
}

/// The list that names the frames of `run`.
#[inline]
pub(crate) fn numbers(run: Range<usize>) -> &'static [u16] {
    ALL.get(run).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_places() {
        assert!(first(BATCH).iter().enumerate().all(|(i, n)| usize::from(*n) == i));
        assert_eq!((numbers(3..5), first(0)), (&[3, 4][..], &[][..]));
    }
}
