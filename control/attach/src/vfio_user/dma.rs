//! The client's memory: DMA_MAP and DMA_UNMAP.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use vmlan_keeper::Descriptor;
use vmlan_ram::Map;

use crate::bytes::Body;
use crate::held::record::Region;
use crate::memory::{Files, Memory, MemoryError, RegionDesc};

/// Regions without a descriptor that are remembered. QEMU has a few: ROMs, video memory, other
/// devices' BARs.
const MAX_UNSHARED: usize = 256;

/// The page size that VERSION names.
const PAGE: u64 = 4096;

/// Flags of DMA_MAP: "readable" and "writeable".
const READ_WRITE: u32 = 3;

/// Flags of DMA_UNMAP (`linux/vfio.h`).
const GET_DIRTY_BITMAP: u32 = 1;
const UNMAP_ALL: u32 = 1 << 1;

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DmaError {
    #[error("an argsz of {0}")]
    Argsz(u32),
    #[error(
        "a region of {size:#x} bytes at {address:#x}, offset {offset:#x}, is not of whole pages"
    )]
    Shape { address: u64, size: u64, offset: u64 },
    /// "A command to map over an existing region must be failed."
    #[error("a region at {0:#x} overlaps one that is mapped")]
    Exists(u64),
    #[error("one DMA region more than a client may have")]
    TooMany,
    /// Neither "must match exactly a previous mapping" nor a range that covers some and cuts none.
    #[error("no region of {size:#x} bytes at {address:#x} is mapped")]
    Unknown { address: u64, size: u64 },
    #[error("flags {0:#x} of DMA_UNMAP are not supported")]
    Flags(u32),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl DmaError {
    pub fn errno(&self) -> i32 {
        match self {
            Self::Exists(_) => libc::EEXIST,
            Self::TooMany => libc::ENOSPC,
            Self::Unknown { .. } => libc::ENOENT,
            Self::Flags(_) => libc::ENOTSUP,
            Self::Memory(MemoryError::TooMuch { .. }) => libc::ENOMEM,
            _ => libc::EINVAL,
        }
    }
}

/// A run of guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Run {
    pub address: u64,
    pub size: u64,
}

impl Run {
    fn overlaps(self, other: Self) -> bool {
        let disjoint =
            |a: Self, b: Self| a.address.checked_add(a.size).is_some_and(|e| e <= b.address);
        !disjoint(self, other) && !disjoint(other, self)
    }

    fn lies_in(self, other: Self) -> bool {
        self.address >= other.address
            && self.address - other.address <= other.size
            && self.size <= other.size - (self.address - other.address)
    }

    /// The body of a DMA_MAP for it, without a descriptor.
    fn body(self) -> [u8; 32] {
        let mut body = [0; 32];
        let words = [32, READ_WRITE].into_iter().flat_map(u32::to_ne_bytes);
        let places = [0, self.address, self.size].into_iter().flat_map(u64::to_ne_bytes);
        body.iter_mut().zip(words.chain(places)).for_each(|(to, from)| *to = from);
        body
    }

    pub fn contains(self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.size
    }
}

/// A region within reach, for the next switch.
#[derive(Debug)]
struct Kept {
    run: Run,
    body: [u8; 32],
    file: Arc<OwnedFd>,
    /// Device and inode.
    id: (u64, u64),
}

/// Files of which descriptors are kept. Honest VMs have one for each NUMA node, and a few ROMs.
const MAX_FILES: usize = 64;

/// Whether descriptors are kept.
#[derive(Debug, Default)]
enum Keep {
    #[default]
    No,
    Yes(Vec<Kept>),
    /// There were too many files.
    Lost,
}

#[derive(Debug, Default)]
pub struct Dma {
    memory: Memory,
    keep: Keep,
    shared: Vec<Run>,
    /// Known, but out of reach: no descriptor came, or the device may not both read and write it.
    unshared: Vec<Run>,
}

impl Dma {
    /// No regions yet. Those that come are in such `files`.
    /// With `keep`, [`Dma::regions`] has their files later.
    pub fn new(files: Files, keep: bool) -> Self {
        let keep = if keep { Keep::Yes(Vec::new()) } else { Keep::No };
        Self { memory: Memory::new(files), keep, ..Self::default() }
    }

    /// All regions, as they were mapped. `None`: their files were not kept, or are too many.
    pub fn regions(&self) -> Option<Vec<Region<BorrowedFd<'_>>>> {
        let Keep::Yes(list) = &self.keep else { return None };
        let shared = list.iter().map(|k| Region { body: k.body, file: Some(k.file.as_fd()) });
        let unshared = self.unshared.iter().map(|run| Region { body: run.body(), file: None });
        Some(shared.chain(unshared).collect())
    }

    /// Their files. `None`: they are not kept.
    pub fn files(&self) -> Option<Vec<Arc<OwnedFd>>> {
        let Keep::Yes(list) = &self.keep else { return None };
        Some(list.iter().map(|kept| Arc::clone(&kept.file)).collect())
    }

    /// What is needed to keep a region.
    fn prepare_kept(
        &mut self,
        body: Body<'_>,
        run: Run,
        fd: &Descriptor,
    ) -> io::Result<Option<Kept>> {
        let (Keep::Yes(list), Descriptor::Memory(fd) | Descriptor::Disk(fd)) = (&self.keep, fd)
        else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(fd)?;
        let id = (stat.st_dev, stat.st_ino);
        let (mut files, mut known) = (BTreeSet::new(), None);
        for kept in list {
            files.insert(kept.id);
            if kept.id == id {
                known = Some(Arc::clone(&kept.file));
            }
        }
        if known.is_none() && files.len() >= MAX_FILES {
            self.keep = Keep::Lost;
            return Ok(None);
        }
        let file = match known {
            Some(file) => file,
            None => Arc::new(fd.try_clone()?),
        };
        let body = body.0.first_chunk().copied().unwrap_or([0; 32]);
        Ok(Some(Kept { run, body, file, id }))
    }

    /// DMA_MAP. True if the [`Dma::snapshot`] has changed.
    ///
    /// # Errors
    /// [`DmaError`]: nothing has changed.
    pub fn map(&mut self, body: Body<'_>, fd: Option<Descriptor>) -> Result<bool, DmaError> {
        let (argsz, flags) = (body.u32(0), body.u32(4));
        let (offset, address, size) = (body.u64(8), body.u64(16), body.u64(24));
        if argsz < 32 {
            return Err(DmaError::Argsz(argsz));
        }
        let aligned = (offset | address | size) & (PAGE - 1) == 0;
        if !aligned || size == 0 || address.checked_add(size).is_none() {
            return Err(DmaError::Shape { address, size, offset });
        }
        let run = Run { address, size };
        if self.shared.iter().chain(&self.unshared).any(|other| run.overlaps(*other)) {
            return Err(DmaError::Exists(address));
        }
        match fd {
            Some(fd) if flags & READ_WRITE == READ_WRITE => {
                if self.shared.len() >= super::version::MAX_DMA_MAPS {
                    return Err(DmaError::TooMany);
                }
                let desc = RegionDesc { gpa: address, size, uva: address, offset };
                let kept = self.prepare_kept(body, run, &fd).map_err(MemoryError::Io)?;
                self.memory.add(self.memory.region(desc, fd)?)?;
                self.shared.push(run);
                if let (Keep::Yes(list), Some(kept)) = (&mut self.keep, kept) {
                    list.push(kept);
                }
                Ok(true)
            }
            _ if self.unshared.len() >= MAX_UNSHARED => Err(DmaError::TooMany),
            _ => {
                self.unshared.push(run);
                Ok(false)
            }
        }
    }

    /// DMA_UNMAP. True if the [`Dma::snapshot`] has changed.
    ///
    /// # Errors
    /// [`DmaError`]: nothing has changed.
    pub fn unmap(&mut self, body: Body<'_>) -> Result<bool, DmaError> {
        let flags = body.u32(4);
        let run = Run { address: body.u64(8), size: body.u64(16) };
        let unknown = DmaError::Unknown { address: run.address, size: run.size };
        match flags {
            0 => {}
            UNMAP_ALL if run == (Run { address: 0, size: 0 }) => return Ok(self.clear()),
            UNMAP_ALL => return Err(unknown),
            _ => return Err(DmaError::Flags(flags & !UNMAP_ALL | flags & GET_DIRTY_BITMAP)),
        }
        // "Must match exactly a previous mapping", but QEMU with an IOMMU unmaps whole ranges, as
        // the kernel's VFIO lets it.
        let mut hit =
            self.shared.iter().chain(&self.unshared).filter(|r| r.overlaps(run)).peekable();
        if hit.peek().is_none() || hit.any(|r| !r.lies_in(run)) {
            return Err(unknown);
        }
        self.unshared.retain(|r| !r.lies_in(run));
        let (gone, kept) = self.shared.iter().partition(|r| r.lies_in(run));
        self.shared = kept;
        if let Keep::Yes(list) = &mut self.keep {
            list.retain(|kept| !kept.run.lies_in(run));
        }
        let gone: Vec<Run> = gone;
        for Run { address, size } in &gone {
            let (gpa, size) = (*address, *size);
            self.memory.remove(RegionDesc { gpa, size, uva: gpa, offset: 0 })?;
        }
        Ok(!gone.is_empty())
    }

    /// Forgets all regions. True if the [`Dma::snapshot`] has changed.
    pub fn clear(&mut self) -> bool {
        let had = !self.shared.is_empty();
        let _ = self.memory.replace(Vec::new());
        self.shared.clear();
        self.unshared.clear();
        if let Keep::Yes(list) = &mut self.keep {
            list.clear();
        }
        had
    }

    /// A map of what can be reached.
    ///
    /// # Errors
    /// Never for regions that were checked by [`Dma::map`].
    pub fn snapshot(&self) -> Result<Arc<Map>, DmaError> {
        Ok(self.memory.snapshot(false)?)
    }

    /// What is known but out of reach.
    pub fn unshared(&self) -> &[Run] {
        &self.unshared
    }

    /// Bytes within and out of reach.
    pub fn bytes(&self) -> (u64, u64) {
        let out = self.unshared.iter().fold(0u64, |sum, r| sum.saturating_add(r.size));
        (self.memory.bytes(), out)
    }

    /// Regions within reach.
    pub fn count(&self) -> usize {
        self.shared.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sealed_memfd;

    /// First pages: of all memory, and the last ones that there are.
    const PAGES: [u64; 6] = [0, 1, 2, 3, (1 << 52) - 2, (1 << 52) - 1];
    /// Bytes that are not of whole pages.
    const PART: u64 = 100;

    #[derive(Clone, Copy, Debug)]
    struct Act {
        map: bool,
        address: u64,
        size: u64,
    }

    fn acts() -> Vec<Act> {
        let sizes =
            [0, 1, 2, 3].map(|pages| pages * PAGE).into_iter().chain([PART, u64::MAX - 4095]);
        let runs = PAGES.iter().flat_map(|page| sizes.clone().map(move |size| (page * PAGE, size)));
        let all = |map| runs.clone().map(move |(address, size)| Act { map, address, size });
        all(true).chain(all(false)).collect()
    }

    fn body(words: [u32; 2], quads: &[u64]) -> Vec<u8> {
        let mut body = words.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
        body.extend(quads.iter().flat_map(|quad| quad.to_ne_bytes()));
        body
    }

    /// What a client's memory is: regions, in plain numbers, which do not wrap.
    #[derive(Default)]
    struct Model(Vec<(u128, u128)>);

    impl Model {
        /// True if it is to be done.
        fn does(&mut self, act: Act) -> bool {
            let (from, size) = (u128::from(act.address), u128::from(act.size));
            let to = from + size;
            let meets = |(a, b): &(u128, u128)| *a < to && from < *b;
            if act.map {
                let whole = size > 0 && size % u128::from(PAGE) == 0 && to <= u128::from(u64::MAX);
                let free = whole && !self.0.iter().any(meets);
                self.0.extend(free.then_some((from, to)));
                return free;
            }
            let met: Vec<_> = self.0.iter().filter(|r| meets(r)).copied().collect();
            let whole = !met.is_empty() && met.iter().all(|(a, b)| *a >= from && *b <= to);
            self.0.retain(|r| !(whole && meets(r)));
            whole
        }
    }

    fn run(dma: &mut Dma, act: Act, fd: Option<Descriptor>) -> bool {
        let Act { map, address, size } = act;
        match map {
            true => dma.map(Body(&body([32, 3], &[0, address, size])), fd).is_ok(),
            false => dma.unmap(Body(&body([24, 0], &[address, size]))).is_ok(),
        }
    }

    fn same(dma: &Dma, model: &Model) {
        let runs = dma.shared.iter().chain(&dma.unshared);
        let mut is: Vec<_> =
            runs.map(|r| (r.address.into(), u128::from(r.address) + u128::from(r.size))).collect();
        let mut should = model.0.clone();
        is.sort_unstable();
        should.sort_unstable();
        assert_eq!(is, should);
    }

    /// Every three maps and unmaps of up to three pages, at both ends of all addresses: nothing
    /// overlaps, wraps or is cut, and only what is there is taken away, all of it.
    #[test]
    fn every_three_maps_and_unmaps() {
        let acts = acts();
        for (a, b) in acts.iter().flat_map(|a| acts.iter().map(move |b| (*a, *b))) {
            for c in &acts {
                let (mut dma, mut model) = (Dma::default(), Model::default());
                for act in [a, b, *c] {
                    assert_eq!(run(&mut dma, act, None), model.does(act), "{a:?} {b:?} {c:?}");
                }
                same(&dma, &model);
            }
        }
    }

    /// The same with memory behind it, for every two: the map has what is mapped, and nothing else.
    #[test]
    fn every_two_maps_and_unmaps_with_memory() {
        let acts: Vec<_> = acts().into_iter().filter(|act| act.size <= 3 * PAGE).collect();
        let file = sealed_memfd(c"t", 4 * PAGE).unwrap();
        for (a, b) in acts.iter().flat_map(|a| acts.iter().map(move |b| (*a, *b))) {
            let (mut dma, mut model) = (Dma::default(), Model::default());
            for act in [a, b] {
                let file = Descriptor::of(file.try_clone().unwrap());
                let done = run(&mut dma, act, Some(file));
                assert_eq!(done, model.does(act), "{a:?} {b:?}");
            }
            same(&dma, &model);
            let map = dma.snapshot().unwrap();
            for page in PAGES {
                let inside = |(a, b): &(u128, u128)| (*a..*b).contains(&(u128::from(page * PAGE)));
                assert_eq!(map.slice(page * PAGE, 1).is_some(), model.0.iter().any(inside));
            }
        }
    }
}
