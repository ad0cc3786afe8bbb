//! Any DriverShared, any rings, any commands: bounded work, no panic, and a device that works for
//! the next driver.

use proptest::collection::vec;
use proptest::prelude::*;
use vmlan_frame::Offload;

use super::guest::*;

/// A word of DriverShared or of a queue's descriptor: mostly of what is read, mostly small.
fn scribble() -> impl Strategy<Value = (u64, u32)> {
    let known = prop::sample::select(vec![0x18u64, 0x28, 0x34, 0x38, 0x3c, 0x50, 0x78, 0x7c, 0x80]);
    let queue = prop::sample::select(vec![0x10u64, 0x18, 0x20, 0x38, 0x3c, 0x40, 0x48]);
    let place = prop_oneof![
        3 => known.prop_map(|at| SHARED + at),
        3 => (0u64..4, queue).prop_map(|(n, at)| QUEUES + 256 * n + at),
        1 => (0u64..0x2d0 / 4).prop_map(|at| SHARED + 4 * at),
    ];
    let value = prop_oneof![
        2 => Just(64),
        2 => Just(TX_RING as u32),
        1 => 0u32..0x100,
        1 => any::<u32>(),
        1 => Just(0x0202_0000),
    ];
    (place, value)
}

/// A descriptor: address, words 2 and 3.
fn descriptor() -> impl Strategy<Value = (u64, u32, u32)> {
    let place = prop_oneof![
        8 => (0u64..64).prop_map(|i| TX_BUFFERS + 0x1000 * i),
        1 => Just(TX_RING),
        1 => (0u64..9000).prop_map(|i| MEMORY - i),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 60u32..3000, 2 => 0u32..80, 1 => 0u32..0x4000];
    let rest = prop_oneof![3 => Just(0), 1 => any::<u32>().prop_map(|bits| bits & 0xffff_0000)];
    let bits = prop_oneof![
        5 => Just(EOP | CQ),
        2 => Just(0),
        1 => Just(EOP | CQ | 34 | 2 << 10),
        1 => Just(EOP | CQ | 54 | 3 << 10),
        1 => any::<u32>(),
    ];
    (place, len, rest, bits).prop_map(|(at, len, rest, bits)| (at, len | rest, bits))
}

#[derive(Clone, Debug)]
struct Step {
    shared: Vec<(u64, u32)>,
    command: Option<u32>,
    descriptors: Vec<(u64, u32, u32)>,
    buffers: Vec<(bool, u32)>,
    hold: Vec<usize>,
    limit: usize,
    lens: Vec<usize>,
}

fn step() -> impl Strategy<Value = Step> {
    let set = (0u32..20).prop_map(|n| 0xcafe_0000 + n);
    let get = (0u32..20).prop_map(|n| 0xf00d_0000 + n);
    let command = prop_oneof![3 => Just(None), 2 => Just(Some(ACTIVATE)), 1 => set.prop_map(Some),
        1 => get.prop_map(Some)];
    (
        vec(scribble(), 0..3),
        command,
        vec(descriptor(), 0..20),
        vec((any::<bool>(), prop_oneof![2 => Just(2048u32), 1 => 0u32..0x4000]), 0..20),
        vec(0usize..40, 0..4),
        prop_oneof![Just(256usize), 0..10usize],
        vec(14usize..3000, 0..20),
    )
        .prop_map(|(shared, command, descriptors, buffers, hold, limit, lens)| Step {
            shared,
            command,
            descriptors,
            buffers,
            hold,
            limit,
            lens,
        })
}

fn run(guest: &mut Guest, step: &Step) {
    step.shared.iter().for_each(|(at, value)| guest.put(*at, *value));
    if let Some(command) = step.command {
        guest.command(command);
    }
    for descriptor in &step.descriptors {
        guest.give(&[*descriptor]);
    }
    for (body, len) in &step.buffers {
        guest.post(0, *body, *len);
    }
    guest.ring(0);
    let mut take = Take { hold: step.hold.clone(), ..Take::default() };
    let before = guest.chip.counters().input.frames.get() + guest.dropped();
    let n = guest.chip.pull(&mut guest.batch, step.limit, &mut take);
    assert!(take.frames.len() <= step.limit);
    let counted = guest.chip.counters().input.frames.get() + guest.dropped() - before;
    // Descriptors without a frame count as one, in each queue.
    assert!(n as u64 <= counted + 8, "{n} {counted}");
    let frames: Vec<_> = step.lens.iter().map(|n| (frame(MAC, *n), Offload::NONE)).collect();
    assert!(guest.arrive(&frames) <= frames.len());
    let _ = (guest.chip.arm(), guest.chip.want_room(), guest.chip.room());
    guest.sleep(60_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn any_rings(steps in vec(step(), 1..12), queues in 1u32..3, features in 0u32..16) {
        let mut guest = Guest::with(Setup { queues, features, mtu: 9000, ..Setup::default() });
        steps.iter().for_each(|step| run(&mut guest, step));
        guest.command(RESET);
        guest.start(Setup::default());
        guest.send(0, &frame(MAC, 60));
        prop_assert_eq!(guest.pull().len(), 1);
        prop_assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
        prop_assert_eq!(guest.take().unwrap().0.len(), 60);
    }
}
