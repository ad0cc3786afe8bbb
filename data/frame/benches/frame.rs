//! What this crate costs for each frame: `cargo bench -p vmlan-frame`. The best of many rounds,
//! since the machine is shared; memory is warm.
use std::hint::black_box;
use std::time::Instant;

use etherparse::PacketBuilder;
use vmlan_frame::{Batch, Checksum, Finisher, Gso, HEAD, Headers, Offload, Offloads, flow_hash};
use vmlan_ram::Slice;

/// Nanoseconds of the fastest of 200 rounds of `times` calls, each.
fn best(times: u32, mut call: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..times).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    };
    (0..200).map(round).fold(f64::INFINITY, f64::min)
}

fn packet(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1234, 80, 1, 512)
        .ack(1)
        .write(&mut bytes, &vec![7; payload])
        .expect("room in memory");
    bytes
}

/// Adds `bytes` to a batch, finishes them for a receiver that takes `takes`; returns the time of
/// both.
fn finish(bytes: &[u8], gso_size: u16, takes: Offloads) -> f64 {
    let gso = if gso_size > 0 { Gso::Tcp4 } else { Gso::None };
    let offload = Offload {
        needs_csum: true,
        gso,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
        ..Offload::NONE
    };
    let pieces: Vec<Slice<'_>> = bytes.chunks(4096).map(Slice::from_bytes).collect();
    let (mut batch, mut out) = (Batch::new(), Batch::new());
    best(200, || {
        batch.clear();
        out.clear();
        batch.add(&pieces, offload).expect("a good frame");
        let frame = batch.frame(0).expect("it was added");
        let mut finisher = Finisher::new(frame, takes).expect("a good frame");
        black_box(finisher.fill(&mut out)).expect("a good frame");
    })
}

fn main() {
    let (small, large) = (packet(1448), packet(64_000));
    let head = &small[..HEAD];
    println!(
        "parse           {:8.1} ns",
        best(10_000, || {
            black_box(Headers::parse(black_box(head), black_box(small.len())));
        })
    );
    println!(
        "flow_hash       {:8.1} ns",
        best(10_000, || {
            black_box(flow_hash(black_box(head), black_box(small.len())));
        })
    );
    for size in [64, 1448, 64_000] {
        let time = best(1000, || {
            let mut sum = Checksum::new();
            sum.add_slice(Slice::from_bytes(black_box(&large[..size])));
            black_box(sum.finish());
        });
        println!("sum {size:6} B    {time:8.1} ns, {:.1} GB/s", size as f64 / time);
    }
    println!("add and pass    {:8.1} ns", finish(&small, 0, Offloads::ALL));
    println!("add and sum     {:8.1} ns", finish(&small, 0, Offloads::NONE));
    let segments = 64_000_f64 / 1448.0;
    for (name, takes) in [("cut, sum", Offloads::NONE), ("cut", Offloads::CSUM)] {
        let time = finish(&large, 1448, takes);
        println!("{name:15} {:8.1} ns a segment, {:.1} GB/s", time / segments, 64_000.0 / time);
    }
}
