//! Configuration space, and accesses of any shape.

use super::guest::*;

#[test]
fn configuration_space_is_that_of_the_device() {
    let guest = Guest::cold(0);
    assert_eq!(guest.config(0, 4), 0x07b0_15ad);
    assert_eq!(guest.config(8, 4), 0x0200_0001);
    assert_eq!(guest.config(0x2c, 4), 0x07b0_15ad);
    assert_eq!(guest.config(0x3d, 1), 1, "INTA#");
    let (mut at, mut found) = (guest.config(0x34, 1), Vec::new());
    while at != 0 {
        found.push((at, guest.config(at.into(), 1)));
        at = guest.config(u64::from(at) + 1, 1);
    }
    assert_eq!(found, [(0x40, 1), (0x84, 5), (0x9c, 0x11)]);
    assert_eq!(guest.config(0x9e, 2), 24, "25 vectors");
    assert_eq!((guest.config(0xa0, 4), guest.config(0xa4, 4)), (2, 0x1002));
    // Sizes of the BARs.
    for (at, size) in [(0x10, 4096u32), (0x14, 4096), (0x18, 16_384), (0x1c, 0)] {
        guest.config_write(at, &[0xff; 4]);
        assert_eq!(guest.config(at, 4), size.wrapping_neg());
    }
}

#[test]
fn masks_read_back() {
    let guest = Guest::cold(0);
    for vector in [0, 7, 24] {
        guest.mask(vector, false);
        assert!(!guest.is_masked(vector));
        guest.mask(vector, true);
        assert!(guest.is_masked(vector));
    }
    guest.set(0, 8 * 25, 0);
    assert_eq!(guest.get(0, 8 * 25), 0, "there is none");
}

/// Accesses of any width at any place: parts of registers are not written, and nothing panics.
#[test]
fn accesses_have_any_shape() {
    let guest = Guest::new();
    let bars = guest.chip.layout().bars;
    for bar in 0..6u8 {
        for at in (0..bars[usize::from(bar)] + 16).chain([u64::MAX, u64::MAX - 3, 1 << 32]) {
            for len in [1, 2, 3, 4, 8, 16] {
                let mut bytes = [0; 16];
                guest.chip.read(Space::Bar(bar), at, &mut bytes[..len]);
            }
            // Commands are for other tests.
            if bar != 1 || at > 0x50 {
                guest.chip.write(Space::Bar(bar), at, &[0xff; 16]);
                guest.chip.write(Space::Bar(bar), at, &[0xff; 3]);
            }
        }
    }
    let before = guest.get(1, 0x10);
    guest.chip.write(Space::Bar(1), 0x10, &[9, 9]);
    guest.chip.write(Space::Bar(1), 0x12, &[9, 9]);
    assert_eq!(guest.get(1, 0x10), before);
}

#[test]
fn the_table_of_vectors_is_storage() {
    let guest = Guest::cold(0);
    guest.set(2, 0x18c, 0x1234_5678);
    assert_eq!(guest.get(2, 0x18c), 0x1234_5678);
    guest.set(2, 0x190, 1);
    guest.set(2, 0x1000, 1);
    guest.set(2, 0x2000, 1);
    assert_eq!([0x190, 0x1000, 0x2000].map(|at| guest.get(2, at)), [0; 3]);
}
