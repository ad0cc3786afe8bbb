//! Memory for a device that no IOMMU serves: one run of physical memory without gaps, which the
//! kernel leaves where it is.
//!
//! First choice are huge pages: a single one is a run by itself, and of several those are taken
//! that lie in a row. Without any, a transparent huge page, or small pages that happen to lie in a
//! row, will do; a pipe holds them so that the kernel does not move them. `/proc/self/pagemap`
//! tells the physical addresses, to root only.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{PciError, sys};
use crate::mapping::Mapping;
use crate::memory::Ram;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const MOST: usize = 1024; // Most huge pages that are looked at for a row of them.

/// RAM with `low` bytes for rings and `high` bytes for buffers.
///
/// # Errors
/// [`PciError::NoMemory`], [`PciError::Permission`].
pub(super) fn contiguous(low: usize, high: usize) -> Result<Arc<Ram>, PciError> {
    let (free, run) = match rows_of_huge_pages(low, high)? {
        Ok(ram) => return Ok(ram),
        Err(there) => there,
    };
    if let Some(ram) = small(low, high)? {
        return Ok(ram);
    }
    let (_, wanted) = Ram::sizes(low, high);
    Err(PciError::NoMemory { wanted, pages: 2 * wanted.div_ceil(HUGE), free, run })
}

/// RAM for rings and buffers made of huge pages, if there are enough.
pub(super) fn huge_pages(low: usize, high: usize) -> Option<Arc<Ram>> {
    rows_of_huge_pages(low, high).ok()?.ok()
}

/// How many huge pages there are, and how many of them in a row.
type There = (usize, usize);

fn rows_of_huge_pages(low: usize, high: usize) -> Result<Result<Arc<Ram>, There>, PciError> {
    let need = Ram::sizes(low, high).1.div_ceil(HUGE);
    let text = fs::read_to_string(FREE).unwrap_or_default();
    let free: usize = text.trim().parse().unwrap_or(0);
    let mut run = usize::from(free > 0);
    // All that there are only if the first ones do not lie in a row: others may want some.
    for count in [need, free.min(MOST)] {
        if count < need || count > free {
            continue;
        }
        match huge(low, high, need, count)? {
            Ok(ram) => return Ok(Ok(ram)),
            Err(longest) => run = longest,
        }
    }
    Ok(Err((free, run)))
}

/// Of `count` huge pages, `need` that lie in a row; else how many do.
fn huge(
    low: usize,
    high: usize,
    need: usize,
    count: usize,
) -> Result<Result<Arc<Ram>, usize>, PciError> {
    let file =
        sys::huge_memfd(count * HUGE).map_err(PciError::system("make memory of huge pages"))?;
    // Taken by somebody else meanwhile: as if they had not been free.
    let Ok(mut mapping) = Mapping::populated(&file, count * HUGE) else { return Ok(Err(0)) };
    let phys = addresses(&mapping, HUGE)?;
    let (longest, order) = row(&phys, need);
    let Some(order) = order else { return Ok(Err(longest)) };
    mapping.reorder(&file, HUGE, &order).map_err(PciError::system("map huge pages"))?;
    for at in (0..count).filter(|at| !order.contains(at)) {
        sys::punch(&file, at * HUGE, HUGE).map_err(PciError::system("free huge pages"))?;
    }
    let first = phys[order[0]];
    // Whole pages, for an IOMMU's sake.
    let (low, _) = Ram::sizes(low, high);
    let parts = (0, low, need * HUGE - low);
    // The file holds the pages; huge pages are not moved.
    Ok(Ok(Ram::pinned(mapping, parts, first, vec![file.into()])))
}

/// The numbers of `need` pages (of [`HUGE`] bytes, at these addresses) that follow each other, in
/// that order, if there are; and the length of the longest row.
fn row(phys: &[u64], need: usize) -> (usize, Option<Vec<usize>>) {
    let mut sorted: Vec<usize> = (0..phys.len()).collect();
    sorted.sort_by_key(|at| phys[*at]);
    let follows = |a: &usize, b: &usize| phys[*a] + HUGE as u64 == phys[*b];
    let rows: Vec<&[usize]> = sorted.chunk_by(follows).collect();
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let found = rows.iter().find(|row| row.len() >= need).map(|row| row[..need].to_vec());
    (longest, found)
}

/// Pages without a promise: from twice as many as needed, a run without gaps, pinned.
fn small(low: usize, high: usize) -> Result<Option<Arc<Ram>>, PciError> {
    let (_, wanted) = Ram::sizes(low, high);
    let len = (2 * wanted).next_multiple_of(HUGE) + HUGE;
    let mapping = Mapping::private(len)
        .and_then(|mapping| mapping.lock().map(|()| mapping))
        .map_err(PciError::system("lock memory for the device"))?;
    let Some((start, _)) = run(&addresses(&mapping, PAGE)?, wanted / PAGE) else { return Ok(None) };
    let Ok(pins) = sys::pin(&mapping, start * PAGE, wanted) else { return Ok(None) };
    // Only now do they stay where they are.
    let phys = addresses(&mapping, PAGE)?;
    match run(&phys[start..start + wanted / PAGE], wanted / PAGE) {
        Some((0, first)) => Ok(Some(Ram::pinned(mapping, (start * PAGE, low, high), first, pins))),
        _ => Ok(None),
    }
}

/// The first of `need` pages (of [`PAGE`] bytes) that follow each other, and its address.
fn run(phys: &[u64], need: usize) -> Option<(usize, u64)> {
    let mut start = 0;
    for row in phys.chunk_by(|a, b| a + PAGE as u64 == *b) {
        if row.len() >= need {
            return Some((start, row[0]));
        }
        start += row.len();
    }
    None
}

/// The physical address of each `page` bytes of a mapping.
fn addresses(mapping: &Mapping, page: usize) -> Result<Vec<u64>, PciError> {
    let what = "read physical addresses from /proc/self/pagemap";
    let pagemap = File::open("/proc/self/pagemap").map_err(PciError::system(what))?;
    (0..mapping.len())
        .step_by(page)
        .map(|at| {
            match physical(&pagemap, mapping.address() + at).map_err(PciError::system(what))? {
                // The kernel hides them from everybody else.
                0 => Err(PciError::Permission { what }),
                frame => Ok(frame * PAGE as u64),
            }
        })
        .collect()
}

/// The number of the page frame behind an address: bits 54 to 0 of its entry, if bit 63 says that
/// it is there.
fn physical(pagemap: &File, address: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    pagemap.read_exact_at(&mut bytes, (address / PAGE * 8) as u64)?;
    let entry = u64::from_ne_bytes(bytes);
    Ok(if entry >> 63 == 1 { entry & ((1 << 55) - 1) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_taken_in_the_order_of_their_addresses() {
        let at = |n: &[u64]| -> Vec<u64> { n.iter().map(|n| n * HUGE as u64).collect() };
        assert_eq!(row(&at(&[7]), 1), (1, Some(vec![0])));
        assert_eq!(row(&at(&[9, 3, 8, 4, 10]), 3), (3, Some(vec![2, 0, 4])));
        assert_eq!(row(&at(&[9, 3, 8, 4, 10]), 4), (3, None));
        assert_eq!(row(&[], 1), (0, None));
    }

    #[test]
    fn small_pages_are_taken_where_they_follow_each_other() {
        let at = |n: &[u64]| -> Vec<u64> { n.iter().map(|n| n * PAGE as u64).collect() };
        assert_eq!(run(&at(&[5, 1, 2, 3, 9]), 3), Some((1, PAGE as u64)));
        assert_eq!(run(&at(&[5, 1, 2, 3, 9]), 4), None);
        assert_eq!(run(&at(&[3, 2, 1]), 1), Some((0, 3 * PAGE as u64)));
    }
}
