//! The checksum against the plainest one.
use proptest::prelude::*;
use vmlan_ram::Slice;

use super::finish::pieces;
use crate::Checksum;

fn plain(bytes: &[u8]) -> u16 {
    let sum: u64 =
        bytes.chunks(2).map(|b| u64::from(b[0]) * 256 + u64::from(*b.get(1).unwrap_or(&0))).sum();
    if sum == 0 { 0 } else { ((sum - 1) % 0xffff + 1) as u16 }
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_sum(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        sizes in prop::collection::vec(1..600usize, 1..6),
    ) {
        let (mut a, mut b) = (Checksum::new(), Checksum::new());
        for piece in pieces(&bytes, &sizes) {
            a.add_slice(piece);
        }
        b.add(&bytes);
        prop_assert_eq!(a.folded(), plain(&bytes));
        prop_assert_eq!(b.folded(), plain(&bytes));
    }
}

#[test]
fn the_example_of_rfc_1071() {
    let mut sum = Checksum::new();
    sum.add(&[0x00, 0x01, 0xf2, 0x03]);
    sum.add_u16(0xf4f5);
    sum.add_slice(Slice::from_bytes(&[0xf6, 0xf7]));
    assert_eq!(sum.folded(), 0xddf2);
    assert_eq!(sum.finish(), !0xddf2);
}

#[test]
fn all_ones_and_all_zeros() {
    let mut sum = Checksum::new();
    assert_eq!((sum.folded(), sum.finish()), (0, 0xffff));
    sum.add(&[0xff; 65_536]);
    assert_eq!(sum.folded(), 0xffff);
    assert_eq!(sum.finish(), 0xffff, "0 would mean: no checksum");
}
