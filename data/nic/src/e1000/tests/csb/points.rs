//! Points that a driver relies on.

use super::super::data::guest::*;

const BLOCK: u64 = 0x8000;

#[test]
fn smoke() {
    let mut guest = Guest::with(true);
    guest.set(0x2834, 0);
    guest.set(0x2830, BLOCK as u32);
    let put = |g: &Guest, at: u64, v: u32| g.write(BLOCK + at, &v.to_le_bytes());
    let get = |g: &Guest, at: u64| u32::from_le_bytes(g.read(BLOCK + at, 4).try_into().unwrap());
    put(&guest, 0x10, SIZE - 1);
    put(&guest, 0xc, 1);
    assert_eq!(get(&guest, 0x44), 1);
    assert!(guest.pull().is_empty());
    assert_eq!(get(&guest, 0x44), 0);
    let at = guest.fill(0, &frame(MAC, 60));
    guest.tx_desc(0, at, 60 | LAST);
    put(&guest, 0, 1);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!((get(&guest, 0x40), guest.get(TD + TAIL), guest.get(TD + HEAD)), (1, 1, 1));
    assert!(!guest.chip.arm());
    assert_eq!(get(&guest, 0x44), 1);
}
