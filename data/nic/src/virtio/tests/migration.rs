//! A switch that dies while its VM is migrated: whatever its driver can see of what was written is
//! in the dirty log when the next one has begun.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use vmlan_frame::{Batch, Counters};
use vmlan_ram::{DirtyLog, Map, Region};

use super::super::{Features, Inflight, Net, NetRx, NetTx, QueueState, Rings};
use super::guest::*;
use super::packed::{PACKED, PackedGuest};
use crate::chip::held::fuse::{self, Died};

const PAGE: usize = 4096;
/// Of all memory ([`MEMORY`]).
const PAGES: usize = 0x200;
/// More than a page of used entries or descriptors.
const SIZE: u16 = 1024;

/// The VMM: what it has sent of memory, and its log.
struct Vmm {
    map: Arc<Map>,
    log: Arc<Map>,
    sent: Vec<u8>,
}

impl Vmm {
    fn new() -> Self {
        let page = mapping(PAGE as u64);
        let region = Region::new(0, PAGE as u64, 0, 0, page.clone()).unwrap();
        let log = Arc::new(Map::new(vec![region], None).unwrap());
        let dirty = Arc::new(DirtyLog::new(page, 0, PAGE as u64).unwrap());
        Self { map: memory(Some(dirty)), log, sent: Vec::new() }
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES * PAGE];
        for (n, page) in bytes.chunks_mut(PAGE).enumerate() {
            assert_eq!(self.map.slice((n * PAGE) as u64, PAGE).unwrap().read(page), PAGE);
        }
        bytes
    }

    /// Sends what the log names, which it clears. The first time: all.
    fn collect(&mut self) {
        let now = self.memory();
        let bits = self.log.slice(0, PAGES / 8).unwrap().read_array::<{ PAGES / 8 }>().unwrap();
        self.log.slice_mut(0, PAGES / 8).unwrap().write(0, &[0; PAGES / 8]);
        if self.sent.is_empty() {
            self.sent = now;
            return;
        }
        let dirty = |page: &usize| bits[page / 8] >> (page % 8) & 1 != 0;
        for at in (0..PAGES).filter(dirty).map(|page| page * PAGE) {
            self.sent[at..at + PAGE].copy_from_slice(&now[at..at + PAGE]);
        }
    }

    /// Nothing that the driver may look at was missed: rings, but for what is `hidden` there, and
    /// the buffers that it has back.
    fn assert_all_sent(&mut self, back: &[u64], hidden: Range<u64>, what: &str) {
        let mut now = self.memory();
        let hidden = usize::try_from(hidden.start).unwrap()..usize::try_from(hidden.end).unwrap();
        now[hidden.clone()].fill(0);
        self.sent[hidden].fill(0);
        let buffers = usize::try_from(BUFFERS).unwrap() / PAGE;
        let back = back.iter().map(|at| usize::try_from(*at).unwrap() / PAGE);
        for at in (0..buffers).chain(back).map(|page| page * PAGE) {
            let same = self.sent[at..at + PAGE] == now[at..at + PAGE];
            assert!(same, "{what}: page {at:#x} was not sent");
        }
    }
}

/// Either driver.
trait Driver {
    /// Its ring is longer than a page.
    fn over_pages(map: &Arc<Map>) -> Self;
    fn rings(&self) -> Rings;
    fn offers(&mut self, n: u16);
    fn sends(&mut self, n: u16);
    /// The buffers that it has back since the last call.
    fn back(&mut self) -> Vec<u64>;
    /// How far the device is.
    fn stands(&self) -> u16;
    /// Where nothing is published.
    fn hidden(&self) -> Range<u64>;
}

fn places(used: &[(u32, u32)]) -> Vec<u64> {
    used.iter().map(|(id, _)| BUFFERS + 0x1000 * u64::from(*id)).collect()
}

impl Driver for Guest {
    /// The used index is at a page's end, and the entries are on the next ones.
    fn over_pages(map: &Arc<Map>) -> Self {
        let mut guest = Self::new(map, 0, SIZE);
        (guest.rings.avail, guest.rings.used) = (0x5000, 0x8ffc);
        guest
    }
    fn rings(&self) -> Rings {
        self.rings
    }
    fn offers(&mut self, n: u16) {
        self.offer(n, 2048);
    }
    fn sends(&mut self, n: u16) {
        self.send(n, &frame(1, 60));
    }
    fn back(&mut self) -> Vec<u64> {
        places(&self.used())
    }
    fn stands(&self) -> u16 {
        self.used_idx()
    }
    fn hidden(&self) -> Range<u64> {
        let entry = |n: u16| self.rings.used + 4 + 8 * u64::from(n);
        entry(self.stands())..entry(SIZE)
    }
}

impl Driver for PackedGuest {
    fn over_pages(map: &Arc<Map>) -> Self {
        Self::new(map, SIZE)
    }
    fn rings(&self) -> Rings {
        self.rings
    }
    fn offers(&mut self, n: u16) {
        self.offer(n, 2048);
    }
    fn sends(&mut self, n: u16) {
        self.send(n, &frame(1, 60));
    }
    fn back(&mut self) -> Vec<u64> {
        places(&self.used())
    }
    fn stands(&self) -> u16 {
        self.seen.0
    }
    fn hidden(&self) -> Range<u64> {
        0..0
    }
}

/// A switch begins.
fn begin<S: QueueState>(map: &Arc<Map>, rings: Rings, features: u64, noted: &Arc<Map>) -> Net<S> {
    let mut net = Net::new();
    net.set_map(map.clone());
    net.set_features(Features(features));
    net.start(0, Rings { log: Some(rings.used), ..rings }).unwrap();
    net.enable(0, true).unwrap();
    let window = noted.window(0, 64, 8).unwrap();
    net.set_inflight(0, Some(Inflight { window, offset: 16 }));
    net
}

fn dies_before_each_store<S: QueueState, D: Driver>(
    features: u64,
    post: fn(&mut D, u16),
    does: fn(&mut Bench<Net<S>, D>, usize) -> usize,
) {
    for stores in 0.. {
        let (mut vmm, noted) = (Vmm::new(), memory(None));
        let guest = D::over_pages(&vmm.map);
        let rings = guest.rings();
        let net = begin(&vmm.map, rings, features, &noted);
        let (bell, counters, batch) = (Arc::default(), Counters::default(), Batch::new());
        let mut b = Bench { net, guest, bell, counters, batch };
        (0..8).for_each(|n| post(&mut b.guest, n));
        assert_eq!(does(&mut b, 3), 3);
        assert_eq!(b.guest.back().len(), 3);
        // From now on the guest writes nothing.
        vmm.collect();
        fuse::set(Some(stores));
        let done = catch_unwind(AssertUnwindSafe(|| assert_eq!(does(&mut b, 5), 5)));
        fuse::set(None);
        let lives = done.is_ok();
        assert!(lives || done.is_err_and(|why| why.is::<Died>()), "a test has failed in it");
        let Bench { net, mut guest, .. } = b;
        drop(net);
        let _next = begin::<S>(&vmm.map, rings, features, &noted);
        vmm.collect();
        let back = guest.back();
        vmm.assert_all_sent(&back, guest.hidden(), &format!("died before store {stores}"));
        let at = noted.window(16, 8, 8).unwrap().u16(0, Relaxed);
        assert_eq!(at, guest.stands(), "noted, died before store {stores}");
        if lives {
            assert!(back.len() == 5 && stores > 3, "{stores}");
            return;
        }
    }
}

fn pushes<G>(b: &mut Bench<NetRx, G>, count: usize) -> usize {
    let frame = frame(2, 200);
    b.push(&vec![&frame[..]; count])
}

fn pulls<G>(b: &mut Bench<NetTx, G>, count: usize) -> usize {
    b.net.pull(&mut b.batch, count, &mut Bin::default(), &b.counters)
}

#[test]
fn split_rings() {
    for features in [V1, V1 | EVENT] {
        dies_before_each_store(features, Guest::offers, pushes);
        dies_before_each_store(features, Guest::sends, pulls);
    }
}

#[test]
fn packed_rings() {
    dies_before_each_store(PACKED, PackedGuest::offers, pushes);
    dies_before_each_store(PACKED, PackedGuest::sends, pulls);
}
