//! A switch that is killed at any store finds its place again, whatever the driver does meanwhile.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::virtio::Features;

/// Where a new device begins.
fn found(guest: &PackedGuest) -> u32 {
    let mut net = NetTx::new();
    net.set_map(guest.raw().map);
    net.set_features(Features(PACKED));
    // Of no use: a VMM does not know it.
    let rings = Rings { base: At(0, true).word(), ..guest.rings };
    net.start(0, rings).unwrap();
    net.stop(0)
}

/// Posts lists of these lengths while there is room for them.
fn post(guest: &mut PackedGuest, lengths: &[u16]) {
    for length in lengths {
        let id = (0..guest.rings.size).find(|id| guest.counts[usize::from(*id)] == 0);
        let (Some(id), true) = (id, *length <= guest.free()) else { return };
        let mut list = vec![(place(id % 16), 12, 0)];
        list.resize(usize::from(*length), (place(id % 16) + 12, 60, 0));
        guest.post(id, &list);
    }
}

/// The stores by which lists from `at` on are used, in their order: offset in the ring, bytes; and
/// where the device stands after each.
fn stores(guest: &PackedGuest, mut at: At, used: &[(u32, u32)]) -> Vec<(u64, Vec<u8>, At)> {
    let (size, mut all) = (guest.rings.size, Vec::new());
    let count = |id: u32| guest.counts[usize::try_from(id).unwrap()];
    for (id, _) in used {
        for k in (1..count(*id)).rev() {
            let off = 16 * u64::from(at.plus(k, size).0) + 14;
            all.push((off, guest.read(off, 2), at));
        }
        let off = 16 * u64::from(at.0) + 8;
        let after = at.plus(count(*id), size);
        all.push((off, guest.read(off, 8), after));
        at = after;
    }
    all
}

/// Goes through all states between `before` and what the ring holds now.
fn killed_at_each_store(
    guest: &PackedGuest,
    before: &[u8],
    all: &[(u64, Vec<u8>, At)],
    begin: At,
    more: &[u16],
) {
    let after = guest.read(0, before.len());
    for stored in 0..=all.len() {
        guest.write(0, before);
        all[..stored].iter().for_each(|(off, bytes, _)| guest.write(*off, bytes));
        let at = all[..stored].last().map_or(begin, |s| s.2);
        assert_eq!(found(guest), at.base(), "after {stored} of {} stores", all.len());
        // The driver goes on while there is no device.
        let mut driver = guest.clone();
        driver.used();
        for list in more {
            post(&mut driver, &[*list]);
            assert_eq!(found(&driver), at.base(), "and a list of {list}");
        }
    }
    guest.write(0, &after);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_says_where_its_device_stood(
        size in 2u16..20,
        steps in vec((vec(1u16..6, 0..8), 1usize..6, vec(1u16..6, 1..5)), 1..12),
    ) {
        let mut b = tx(size, 0);
        prop_assert_eq!(found(&b.guest), At(0, true).base());
        for (lists, limit, more) in &steps {
            // A list as long as the ring leaves no trace of where it began while it is marked.
            let lists: Vec<_> = lists.iter().map(|n| *n.min(&(size - 1))).collect();
            let more: Vec<_> = more.iter().map(|n| *n.min(&(size - 1))).collect();
            post(&mut b.guest, &lists);
            let (before, begin) = (b.guest.read(0, 16 * usize::from(size)), b.guest.seen);
            b.net.pull(&mut b.batch, *limit, &mut Bin::default(), &b.counters);
            let used = b.guest.clone().used();
            let all = stores(&b.guest, begin, &used);
            killed_at_each_store(&b.guest, &before, &all, begin, &more);
            b.guest.used();
            prop_assert_eq!(found(&b.guest), b.guest.seen.base());
        }
        prop_assert_eq!(b.net.stop(0), b.guest.seen.base());
        prop_assert_eq!(b.counters.faults.get(), 0);
    }
}

#[test]
fn a_killed_switch_goes_on_and_tells_the_guest() {
    let mut b = tx(5, 0);
    for round in 0..4 {
        for id in 0..3 {
            b.guest.send(id, &frame(1, 60));
        }
        assert_eq!(b.pulled().len(), 3);
        b.guest.used();
        b.guest.send(3, &frame(3, 60));
        let rings = b.guest.rings;
        let guest = std::mem::replace(&mut b.guest, PackedGuest::new(&memory(None), 1));
        // The one before is gone without a word.
        b = Bench::<NetTx, _>::with(&guest.raw().map, guest, rings, PACKED);
        assert_eq!(b.rings(), 1, "told in case it was not ({round})");
        assert_eq!(b.pulled(), [frame(3, 60)]);
        assert_eq!(b.guest.used(), [(3, 0)]);
    }
}
