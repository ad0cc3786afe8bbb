//! Any ring contents: bounded work, no panic, no byte changed that the guest did not name.

use proptest::collection::vec;
use proptest::prelude::*;
use vmlan_frame::Offload;

use super::guest::*;

/// A transmit descriptor, mostly sensible so that long ways are walked too.
fn tx_desc() -> impl Strategy<Value = (u64, u64)> {
    let place = prop_oneof![
        8 => (0u64..64).prop_map(|i| TX_BUFFERS + 0x100 * i),
        1 => Just(0),
        1 => Just(TX_RING),
        1 => (0u64..9000).prop_map(|i| MEMORY - i),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 60u64..3000, 2 => 0u64..80, 1 => 0u64..0x10_0000];
    let bits = [EOP, IFCS, TSE, RS, DEXT, VLE, IDE, 1 << 20, 1 << 21, IXSM, TXSM];
    let flags =
        (any::<u16>(), any::<u16>(), any::<bool>()).prop_map(move |(some, special, plain)| {
            let chosen = bits.iter().enumerate().filter(|(i, _)| some >> i & 1 != 0);
            let all = chosen.fold(0, |all, (_, bit)| all | bit) | u64::from(special) << 48;
            if plain { LAST } else { all }
        });
    let data = (place, len, flags).prop_map(|(at, len, flags)| (at, len | flags));
    // A context that fits packets() mostly, and one that fits nothing.
    let context = (any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
        |(first, second, sane, segment)| {
            if !sane {
                return (first, DEXT | second & !(DEXT | 0xf << 20));
            }
            let context = super::tx::Context::of(&tcp(false, 934), if segment { 100 } else { 0 });
            context.descriptor()
        },
    );
    prop_oneof![6 => data, 1 => context]
}

#[derive(Clone, Debug)]
struct Step {
    tx: Vec<(u64, u64)>,
    /// Where RDT goes, and what stands in the registers instead of sense.
    rdt: u32,
    scribble: Option<(u64, u32)>,
    hold: Vec<usize>,
    limit: usize,
    lens: Vec<usize>,
}

fn step() -> impl Strategy<Value = Step> {
    let register = prop_oneof![Just(0u64), Just(HIGH), Just(LEN), Just(HEAD), Just(TAIL)];
    let side = prop_oneof![Just(TD), Just(RD)];
    let value = prop_oneof![0..2 * SIZE, (0..20u32).prop_map(|n| 128 * n), any::<u32>()];
    let scribble = (side, register, value).prop_map(|(s, r, v)| (s + r, v));
    let scribble = prop_oneof![5 => Just(None), 1 => scribble.prop_map(Some)];
    let limit = prop_oneof![Just(256usize), 0..10usize];
    let rest = (vec(0usize..40, 0..4), limit, vec(14usize..3000, 0..20));
    (vec(tx_desc(), 0..40), 0..SIZE, scribble, rest).prop_map(
        |(tx, rdt, scribble, (hold, limit, lens))| Step { tx, rdt, scribble, hold, limit, lens },
    )
}

fn control() -> impl Strategy<Value = (u32, u32, u32, u32)> {
    // TCTL with EN, RCTL with EN and MPE, without LBM; CTRL; RXCSUM.
    (any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>()).prop_map(|(t, r, vme, sums)| {
        (t | 2, r & !0xc0 | 0x1a, SLU | if vme { VME } else { 0 }, sums)
    })
}

/// One step: what is pulled and pushed, and what may have changed.
fn run(guest: &mut Guest, step: &Step) {
    guest.post(&step.tx);
    guest.set(RD + TAIL, step.rdt);
    if let Some((at, value)) = step.scribble {
        guest.set(at, value);
    }
    let mut take = Take { hold: step.hold.clone(), ..Take::default() };
    let before = guest.chip.counters().input.frames.get() + guest.dropped();
    let n = guest.chip.pull(&mut guest.batch, step.limit, &mut take);
    assert!(take.frames.len() <= step.limit);
    let lent = take.frames.len();
    let held = step.hold.iter().filter(|i| **i < lent).collect::<std::collections::HashSet<_>>();
    let counted = guest.chip.counters().input.frames.get() + guest.dropped() - before;
    // Descriptors without a frame count as one.
    assert!(n as u64 == counted || (n, counted, lent) == (1, 0, 0), "{n} {counted}");
    assert!(n >= lent - held.len());
    let frames: Vec<_> = step.lens.iter().map(|n| (frame(MAC, *n), Offload::NONE)).collect();
    assert!(guest.arrive(&frames) <= frames.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn any_rings(control in control(), steps in vec(step(), 1..12)) {
        let mut guest = Guest::new();
        let (tctl, rctl, ctrl, sums) = control;
        guest.set(VET, 0x8100);
        guest.set(CTRL, ctrl);
        guest.set(TCTL, tctl);
        guest.set(RCTL, rctl);
        guest.set(RXCSUM, sums);
        for i in 0..64 {
            guest.write(TX_BUFFERS + 0x1000 * i, &super::tx::unfinished(&tcp(false, 934), true));
        }
        let behind = MEMORY - 0x10_0000;
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
        guest.set(CTRL, 1 << 26);
        guest.start();
        guest.send(0, &frame([2; 6], 100));
        prop_assert_eq!(guest.pull().len(), 1);
        prop_assert_eq!(guest.arrive_plain(&[&frame(MAC, 100)]), 1);
        prop_assert_eq!(guest.received(0).0, 104);
    }
}
