//! What it costs to check who a frame is from: `cargo bench -p vmlan-switch --bench source_check`.
//! The best of many rounds over a batch, since the machine is shared; everything is in the cache,
//! as it is in a breath.
use std::hint::black_box;
use std::time::Instant;

use etherparse::{EtherType, Ethernet2Header, PacketBuilder, SingleVlanHeader, VlanId};
use vmlan_frame::{BATCH, HEAD, Headers, Mac};
use vmlan_switch::policy::{Macs, Prefix, SourceCheck};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Nanoseconds of the fastest of 2,000 rounds over `frames`, for each frame.
fn best(frames: &[Vec<u8>], mut call: impl FnMut(&[u8], usize)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        frames.iter().for_each(|f| call(&f[..f.len().min(HEAD)], f.len()));
        start.elapsed().as_secs_f64() * 1e9 / frames.len() as f64
    };
    (0..2_000).map(round).fold(f64::INFINITY, f64::min)
}

fn udp4(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packet = PacketBuilder::ethernet2(MAC, [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    packet.udp(1, 2).write(&mut bytes, &vec![7; payload]).expect("room in memory");
    bytes
}

fn tcp(v6: bool) -> Vec<u8> {
    let (mut bytes, payload) = (Vec::new(), [7; 1440]);
    let ether = PacketBuilder::ethernet2(MAC, [4; 6]);
    let mut address = [0; 16];
    address[0] = 0x20;
    let step = if v6 {
        ether.ipv6(address, [9; 16], 64)
    } else {
        ether.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    };
    step.tcp(1234, 80, 1, 512).write(&mut bytes, &payload).expect("room in memory");
    bytes
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    let (ether, rest) = Ethernet2Header::from_slice(frame).expect("it was made here");
    let tag = SingleVlanHeader {
        vlan_id: VlanId::try_new(5).expect("below 4096"),
        ether_type: ether.ether_type,
        ..Default::default()
    };
    let ether = Ethernet2Header { ether_type: EtherType::VLAN_TAGGED_FRAME, ..ether };
    [&ether.to_bytes()[..], &tag.to_bytes(), rest].concat()
}

fn main() {
    let prefix = |ip: &str, bits| Prefix { address: ip.parse().expect("an address"), bits };
    let ips = [prefix("10.0.0.1", 32), prefix("2000::", 64)];
    let macs = SourceCheck { macs: Macs::Listed([Mac::new(MAC)].into()), ..SourceCheck::default() };
    let one = SourceCheck { ips: Some(ips.into()), ..macs.clone() };
    let all = SourceCheck { dhcp_guard: true, ra_guard: true, ..one.clone() };
    let frames = [
        ("UDP, 60 bytes", udp4(18)),
        ("TCP", tcp(false)),
        ("TCP over IPv6", tcp(true)),
        ("UDP in a tag", tagged(&udp4(18))),
    ];
    println!("{:16} {:>8} {:>8} {:>8} {:>8}  ns", "", "parse", "macs", "ips", "all");
    for (name, frame) in frames {
        let batch = vec![frame; BATCH];
        let parse = best(&batch, |head, len| {
            black_box(Headers::parse(head, len));
        });
        let check = |source_check: &SourceCheck| {
            best(&batch, |head, len| assert!(source_check.check(black_box(head), len).is_ok()))
        };
        let [macs, ips, all] = [&macs, &one, &all].map(check);
        println!("{name:16} {parse:8.1} {macs:8.1} {ips:8.1} {all:8.1}");
    }
}
