//! Any ring contents: bounded work, no panic, no byte changed that the guest did not name.

use proptest::collection::vec;
use proptest::prelude::*;
use vmlan_frame::Offload;

use super::guest::*;

/// A descriptor, mostly sensible so that long ways are walked too.
fn descriptor() -> impl Strategy<Value = (u32, u32, u64)> {
    let place = prop_oneof![
        8 => (0u64..64).prop_map(|i| TX_BUFFERS + 0x1000 * i),
        1 => Just(0),
        1 => Just(TX_RING),
        1 => (0u64..9000).prop_map(|i| MEMORY - i),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 60u32..3000, 2 => 0u32..80, 1 => 0u32..0x1_0000];
    let bits = prop_oneof![
        4 => Just(OWN | FS | LS),
        2 => (0u32..16).prop_map(|bits| bits << 28),
        1 => Just(OWN | FS | LS | LGSEN | 100 << 16),
        1 => Just(OWN | FS | LS | IPCS | TCPCS),
        1 => any::<u32>().prop_map(|bits| bits & 0xffff_0000),
    ];
    (bits, len, prop_oneof![3 => Just(0), 1 => any::<u32>()], place)
        .prop_map(|(bits, len, opts2, at)| (bits | len, opts2, at))
}

#[derive(Clone, Debug)]
struct Step {
    /// Ring, index, descriptor.
    set: Vec<(u8, u32, (u32, u32, u64))>,
    /// A register that is written amid all this.
    scribble: Option<(u64, u32)>,
    hold: Vec<usize>,
    limit: usize,
    lens: Vec<usize>,
}

fn step() -> impl Strategy<Value = Step> {
    let register = prop::sample::select(vec![
        TNPDS,
        THPDS,
        RDSAR,
        TNPDS + 4,
        CR,
        RCR,
        TCR,
        CPCR,
        RMS,
        TPPOLL,
        IMR,
        ISR,
        INTMIT,
        MAR0,
    ]);
    let value = prop_oneof![Just(TX_RING as u32), Just(0xc), any::<u32>()];
    let scribble = prop_oneof![5 => Just(None), 1 => (register, value).prop_map(Some)];
    let limit = prop_oneof![Just(256usize), 0..10usize];
    let set = vec((0u8..3, 0u32..SIZE, descriptor()), 0..40);
    (set, scribble, vec(0usize..40, 0..4), limit, vec(14usize..3000, 0..20))
        .prop_map(|(set, scribble, hold, limit, lens)| Step { set, scribble, hold, limit, lens })
}

/// One step: what is pulled and pushed.
fn run(guest: &mut Guest, step: &Step) {
    for (ring, index, (opts1, opts2, addr)) in &step.set {
        let (ring, addr) = match ring {
            0 => (TX_RING, *addr),
            1 => (HIGH_RING, *addr),
            // Buffers of the receive ring lie where receive buffers are.
            _ => (RX_RING, RX_BUFFERS + addr % 0x10_0000),
        };
        guest.tx_desc(ring, *index, *opts1, *opts2, addr);
    }
    if let Some((at, value)) = step.scribble {
        guest.set32(at, value);
    }
    guest.set8(TPPOLL, NPQ | HPQ);
    let mut take = Take { hold: step.hold.clone(), ..Take::default() };
    let before = guest.chip.counters().input.frames.get() + guest.dropped();
    let n = guest.chip.pull(&mut guest.batch, step.limit, &mut take);
    assert!(take.frames.len() <= step.limit);
    // Of loopback, what is dropped on arrival counts, too.
    let counted = guest.chip.counters().input.frames.get() + guest.dropped() - before;
    // Descriptors without a frame count as one, in each of the two rings.
    assert!(n as u64 <= counted + 2, "{n} {counted}");
    let frames: Vec<_> = step.lens.iter().map(|n| (frame(MAC, *n), Offload::NONE)).collect();
    assert!(guest.arrive(&frames) <= frames.len());
    let _ = (guest.chip.arm(), guest.chip.want_room(), guest.chip.room());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn any_rings(steps in vec(step(), 1..12), command in any::<u16>(), high in any::<bool>()) {
        let mut guest = Guest::new();
        guest.set16(CPCR, command.into());
        if high {
            guest.set64(THPDS, HIGH_RING);
        }
        for i in 0..64 {
            guest.write(TX_BUFFERS + 0x1000 * i, &unfinished(&packet(true, 934)));
        }
        let behind = MEMORY - 0x8_0000;
        guest.write(behind, &[0xee; 0x1000]);
        let sent = guest.read(TX_BUFFERS, 0x4_0000);
        for step in &steps {
            run(&mut guest, step);
        }
        // Rings moved to lie over buffers are the guest's own doing.
        if steps.iter().all(|s| s.scribble.is_none()) {
            prop_assert_eq!(guest.read(TX_BUFFERS, 0x4_0000), sent);
            prop_assert_eq!(guest.read(behind, 0x1000), [0xee; 0x1000]);
        }
        // Whatever it was, a driver that starts again finds a chip that works.
        guest.set8(CR, RST);
        guest.start();
        guest.send(0, &frame([2; 6], 100));
        prop_assert_eq!(guest.pull().len(), 1);
        prop_assert_eq!(guest.arrive_plain(&[&frame(MAC, 100)]), 1);
        prop_assert_eq!(guest.take().unwrap().0, frame(MAC, 100));
    }
}
