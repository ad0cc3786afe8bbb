//! The map and the dirty log in all the states that small ones can be in.

use super::*;

/// Whether two regions may be in one map, and every slice of them, against a list of bytes: the
/// regions touch, overlap, cover each other, or lie at the end of all addresses.
#[test]
fn every_slice_of_two_small_regions() {
    let file = memfd(4096, MemfdFlags::CLOEXEC);
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, 4096).unwrap());
    for base in [0, u64::MAX - 7] {
        let region = |gpa: u64, size: u64, offset| {
            Region::new(base.checked_add(gpa)?, size, base + gpa, offset, mapping.clone()).ok()
        };
        let places = || (0..8).flat_map(|gpa| (0..5).map(move |size| (gpa, size)));
        for ((a, a_size), (b, b_size)) in places().flat_map(|p| places().map(move |q| (p, q))) {
            let bad = |gpa: u64, size: u64| size == 0 || (base + gpa).checked_add(size).is_none();
            let (first, second) = (region(a, a_size, 0), region(b, b_size, 8));
            assert_eq!((first.is_none(), second.is_none()), (bad(a, a_size), bad(b, b_size)));
            let (Some(first), Some(second)) = (first, second) else { continue };
            let owner = |gpa: u64| match gpa {
                _ if (a..a + a_size).contains(&gpa) => Some((0, gpa - a)),
                _ if (b..b + b_size).contains(&gpa) => Some((1, gpa - b)),
                _ => None,
            };
            let overlap = (a..a + a_size).any(|gpa| (b..b + b_size).contains(&gpa));
            let map = Map::new(vec![first, second], None);
            assert_eq!(map.is_err(), overlap);
            let Ok(map) = map else { continue };
            for (gpa, len) in (0..8).flat_map(|gpa| (0..7).map(move |len| (gpa, len))) {
                let one = |i: u64| owner(gpa + i).map(|(region, at)| (region, at - i.min(at)));
                let inside = owner(gpa).is_some() && (0..len as u64).all(|i| one(i) == one(0));
                let slice = map.slice(base + gpa, len);
                assert_eq!(
                    slice.is_some(),
                    inside,
                    "{base:#x} {a} {a_size} {b} {b_size}: {gpa} {len}"
                );
                assert_eq!(map.slice_mut(base + gpa, len).is_some(), inside);
                let run = map.first_run(base + gpa, len).map(|run| run.len());
                let there = (0..len as u64).take_while(|i| one(*i) == one(0)).count();
                assert_eq!(run, owner(gpa).map(|_| there));
                assert_eq!(map.gpa_of(base + gpa), owner(gpa).map(|_| base + gpa));
            }
        }
    }
}

/// Every run of bytes that begins or ends near a page, in logs that have a bit for each page and in
/// those that end before: exactly the pages that it touches are marked.
#[test]
fn every_run_of_dirty_bytes() {
    const PAGES: u64 = 20;
    for len in 1..=3u64 {
        let file = memfd(4096, MemfdFlags::CLOEXEC);
        let mapping = Arc::new(Mapping::new(file.as_fd(), 0, 4096).unwrap());
        let log = DirtyLog::new(mapping.clone(), 5, len).unwrap();
        let ends = || (0..PAGES).flat_map(|page| [0, 1, 4095].map(|at| page * 4096 + at));
        for (from, to) in ends().flat_map(|a| ends().map(move |b| (a, b))).filter(|(a, b)| a <= b) {
            let clear = [0; 16];
            std::os::unix::fs::FileExt::write_all_at(&file, &clear, 0).unwrap();
            log.mark(from, to - from + 1);
            let mut marked = [0; 16];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut marked, 0).unwrap();
            for page in 0..88 {
                let bit = marked[5 + page / 8] >> (page % 8) & 1 == 1;
                let touched = (from / 4096..=to / 4096).contains(&(page as u64));
                assert_eq!(bit, touched && page as u64 / 8 < len, "{len}: {from}..={to}, {page}");
            }
            assert_eq!(marked[..5], [0; 5], "before the log");
        }
        log.mark(7, 0);
        log.mark(u64::MAX, u64::MAX);
    }
}
