//! No DMA runs any more when the write that ends it has returned, however busy the worker is.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vmlan_frame::{Batch, Offload, Sink};
use vmlan_ram::{Map, Mapping, Region, Slice};

use super::super::regs::*;
use super::registers::Bench;
use crate::chip::{Controlled, Nic};

const TX_RING: u32 = 0x1000;
const RX_RING: u32 = 0x2000;
const SIZE: u32 = 128;
const MEMORY: usize = 0x1_0000;

fn memory() -> Arc<Map> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY as u64).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, MEMORY as u64).unwrap());
    let region = Region::new(0, MEMORY as u64, 0, 0, mapping).unwrap();
    let map = Arc::new(Map::new(vec![region], None).unwrap());
    for i in 0..u64::from(SIZE) {
        let put = |at: u64, word: u64| map.slice_mut(at, 8).unwrap().write(0, &word.to_le_bytes());
        // 60 bytes, EOP, IFCS, RS.
        put(u64::from(TX_RING) + 16 * i, 0x8000);
        put(u64::from(TX_RING) + 16 * i + 8, 60 | 0x0b << 24);
        put(u64::from(RX_RING) + 16 * i, 0x4000 + 64 * i);
    }
    map
}

fn start(bench: &Bench) {
    bench.chip.write_config(4, &[7, 0]);
    bench.write(CTRL, bit::CTRL_SLU);
    for (base, at) in [(TDBAL, TX_RING), (RDBAL, RX_RING)] {
        bench.write(base, at);
        bench.write(base + 8, 16 * SIZE);
    }
    bench.write(TCTL, bit::TCTL_EN);
    bench.write(RCTL, bit::RCTL_EN | 1 << 15);
}

struct Nothing;

impl Sink for Nothing {
    fn deliver(&mut self, _: &mut Batch<'_>) {}
}

/// A worker, and a driver that always has frames and buffers: its tails run behind the heads, in
/// the mapped pages.
fn work(bench: &Bench, until: &AtomicBool) {
    let mut spare = Batch::new();
    for n in (0..=u8::MAX).cycle() {
        if until.load(Ordering::Relaxed) {
            return;
        }
        let regs = &bench.chip.regs;
        regs.set(TDT, regs.get(TDH).wrapping_add(SIZE - 1) % SIZE);
        regs.set(RDT, regs.get(RDH).wrapping_add(SIZE - 1) % SIZE);
        bench.chip.pull(&mut spare, 16, &mut Nothing);
        let mut batch = Batch::new();
        let body = [n; 46];
        for _ in 0..8 {
            let _ = batch.add_parts(&[0xff; 14], [Slice::from_bytes(&body)], Offload::NONE);
        }
        bench.chip.push(&batch, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// Ends the worker, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn dump(map: &Map) -> Vec<u8> {
    let mut bytes = vec![0; MEMORY];
    map.slice(0, MEMORY).unwrap().read(&mut bytes);
    bytes
}

#[test]
fn no_dma_after_it_was_ended() {
    let bench = Bench::new();
    let map = memory();
    drop(bench.chip.set_map(map.clone()));
    let until = AtomicBool::new(false);
    let ends: [(&str, &dyn Fn()); 5] = [
        ("EN", &|| {
            bench.write(TCTL, 0);
            bench.write(RCTL, 0);
        }),
        ("CTRL.RST", &|| bench.write_io(CTRL, bit::CTRL_RST)),
        ("bus master", &|| bench.chip.write_config(4, &[3, 0])),
        ("D3", &|| bench.chip.write_config(0xe0, &[3])),
        ("map", &|| drop(bench.chip.set_map(Arc::default()))),
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| work(&bench, &until));
        let _ends = Ends(&until);
        for (what, end) in ends.iter().cycle().take(100) {
            start(&bench);
            let counters = bench.chip.counters();
            let moved = || (counters.input.frames.get(), counters.output.frames.get());
            let (before, since) = (moved(), Instant::now());
            while moved().0 == before.0 || moved().1 == before.1 {
                assert!(since.elapsed() < Duration::from_secs(300), "{what}: nothing moves");
                std::thread::yield_now();
            }
            end();
            let heads = || (bench.chip.regs.get(TDH), bench.chip.regs.get(RDH));
            let before = (heads(), dump(&map));
            std::thread::sleep(Duration::from_micros(500));
            assert!(before == (heads(), dump(&map)), "{what}: something moved after the end");
            bench.chip.write_config(0xe0, &[0]);
            drop(bench.chip.set_map(map.clone()));
        }
    });
}
