//! A guest's memory, with guards around it. It outlives an input.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use vmlan_frame::Batch;
use vmlan_ram::{Map, Mapping, Region, Window};

use crate::chip::held::HELD;

/// Bytes of the guest's memory.
pub const MEMORY: u64 = 0x1_0000;
/// Bytes before, between and after the two regions of the guest's memory, which the guest does not
/// have.
const GUARD: u64 = 0x1000;
const HALF: u64 = MEMORY / 2;
/// The guard's bytes.
const CANARY: u8 = 0xc5;
/// Bytes of registers that a guest may have mapped.
const PAGES: u64 = 0x2000;

/// What outlives an input.
pub struct World {
    /// All of the file, guards included, from address 0.
    file: Arc<Map>,
    /// The guest's memory: two regions that touch.
    pub guest: Arc<Map>,
    /// The ring registers' pages.
    pages: Arc<Map>,
    /// What outlives a chip.
    held: Arc<Map>,
    /// Storage for what is pulled.
    pub batch: Batch<'static>,
    /// And for what is pushed.
    pub pushed: Batch<'static>,
    /// The guest's memory as it was, and as it is.
    copies: [Vec<u8>; 2],
}

thread_local! {
    /// One for each thread.
    pub static WORLD: RefCell<World> = RefCell::new(World::new());
}

fn mapping(len: u64) -> Arc<Mapping> {
    let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
    let file = file.expect("a temporary file");
    file.set_len(len).expect("its length");
    Arc::new(Mapping::new(file.as_fd(), 0, len).expect("a mapping"))
}

fn map(regions: &[(u64, u64, u64)], mapping: &Arc<Mapping>) -> Arc<Map> {
    let region = |(gpa, len, offset): &(u64, u64, u64)| {
        Region::new(*gpa, *len, *gpa, *offset, mapping.clone()).expect("a region")
    };
    Arc::new(Map::new(regions.iter().map(region).collect(), None).expect("a map"))
}

/// Writes bytes that lie in one region.
pub fn fill(map: &Map, at: u64, bytes: &[u8]) {
    map.slice_mut(at, bytes.len()).expect("memory").write(0, bytes);
}

fn guards() -> [u64; 3] {
    [0, GUARD + HALF, 2 * GUARD + MEMORY]
}

impl World {
    fn new() -> Self {
        let len = MEMORY + 3 * GUARD;
        let memory = mapping(len);
        let file = map(&[(0, len, 0)], &memory);
        let guest = map(&[(0, HALF, GUARD), (HALF, HALF, HALF + 2 * GUARD)], &memory);
        for at in guards() {
            fill(&file, at, &[CANARY; GUARD as usize]);
        }
        let pages = map(&[(0, PAGES, 0)], &mapping(PAGES));
        let held = map(&[(0, HELD as u64, 0)], &mapping(HELD as u64));
        let copies = [(); 2].map(|()| vec![0; MEMORY as usize]);
        Self { file, guest, pages, held, batch: Batch::new(), pushed: Batch::new(), copies }
    }

    /// The registers' pages.
    pub fn pages(&self) -> Window {
        self.pages.window(0, PAGES as usize, 4).expect("pages")
    }

    /// What outlives a chip: nothing yet.
    pub fn held(&self) -> Window {
        fill(&self.held, 0, &[0; HELD]);
        self.held.window(0, HELD, 8).expect("memory")
    }

    /// A copy of it.
    pub fn remains(&self) -> Vec<u8> {
        let mut bytes = vec![0; HELD];
        self.held.slice(0, HELD).expect("memory").read(&mut bytes);
        bytes
    }

    /// The guest's memory begins with `memory`, and is zero behind that.
    pub fn load(&self, memory: &[u8]) {
        let mut bytes = [0; MEMORY as usize];
        let n = memory.len().min(bytes.len());
        bytes[..n].copy_from_slice(&memory[..n]);
        fill(&self.guest, 0, &bytes[..HALF as usize]);
        fill(&self.guest, HALF, &bytes[HALF as usize..]);
    }

    fn copy(&mut self, which: usize) {
        let (low, high) = self.copies[which].split_at_mut(HALF as usize);
        self.guest.slice(0, low.len()).expect("memory").read(low);
        self.guest.slice(HALF, high.len()).expect("memory").read(high);
    }

    /// A copy of the guest's memory.
    pub fn memory(&mut self) -> &[u8] {
        self.copy(1);
        &self.copies[1]
    }

    /// Remembers the memory, if it is known what `may` change of it.
    pub fn except(&mut self, may: Option<Range<u64>>) -> Option<Range<u64>> {
        if may.is_some() {
            self.copy(0);
        }
        may
    }

    /// Nothing else has changed.
    pub fn check(&mut self, may: Option<Range<u64>>) {
        let Some(may) = may else { return };
        self.copy(1);
        let [before, now] = &self.copies;
        let [start, end] = [may.start, may.end].map(|at| at.min(MEMORY) as usize);
        let fine = before[..start] == now[..start] && before[end..] == now[end..];
        assert!(fine, "written outside {may:x?}");
    }

    /// Nothing outside the guest's memory was written.
    pub fn check_guards(&self) {
        for at in guards() {
            let mut guard = [0; GUARD as usize];
            self.file.slice(at, guard.len()).expect("a guard").read(&mut guard);
            assert!(guard.iter().all(|b| *b == CANARY), "written outside the guest's memory");
        }
    }
}
