//! Any ring contents: bounded work, no panic, no buffer used that was not made available, none
//! twice.

use proptest::collection::vec;
use proptest::prelude::*;
use vmlan_frame::Reason;

use super::super::{NetRx, NetTx};
use super::guest::*;

const SIZE: u16 = 16;
const TABLE: u64 = 0x4_0000;

/// One descriptor: address, length, flags, next.
type Raw = (u64, u32, u16, u16);

/// Descriptors that are mostly sensible, so that long ways are walked too. None points at the
/// rings: a guest may overwrite those itself, and then nothing is promised to it.
fn raw() -> impl Strategy<Value = Raw> {
    let place = prop_oneof![
        6 => (0u64..64).prop_map(|i| BUFFERS + 0x100 * i),
        2 => (1u64..200).prop_map(|i| BORDER - i),
        1 => Just(TABLE),
        1 => prop_oneof![Just(MEMORY - 1), Just(MEMORY), Just(u64::MAX - 3), any::<u64>()
            .prop_map(|a| a | 1 << 40)],
    ];
    let len = prop_oneof![
        6 => 60u32..2000,
        2 => Just(12),
        2 => (0u32..6).prop_map(|n| 16 * n),
        1 => 0u32..16,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![
        6 => Just(0),
        6 => Just(WRITE),
        3 => Just(NEXT),
        3 => Just(WRITE | NEXT),
        2 => Just(INDIRECT),
        1 => any::<u16>(),
    ];
    (place, len, flags, 0..=SIZE)
}

/// A step: heads to post, how many of them to announce beyond those, and what the sink holds.
#[derive(Clone, Debug)]
struct Step {
    heads: Vec<u16>,
    jump: u16,
    hold: Vec<u8>,
    lens: Vec<usize>,
    limit: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let heads = vec(prop_oneof![20 => 0..SIZE, 1 => Just(SIZE), 1 => any::<u16>()], 0..9);
    let jump = prop_oneof![30 => Just(0u16), 1 => any::<u16>()];
    let lens = vec(prop_oneof![14usize..128, 60usize..4000], 0..9);
    (heads, jump, vec(any::<u8>(), 0..3), lens, 0usize..12)
        .prop_map(|(heads, jump, hold, lens, limit)| Step { heads, jump, hold, lens, limit })
}

/// What the driver made available, by position.
struct Audit {
    posted: Vec<u16>,
    used: usize,
}

impl Audit {
    /// Posts what fits the ring, and jumps.
    fn post(&mut self, guest: &mut Guest, step: &Step) {
        for head in &step.heads {
            if self.posted.len() - self.used < usize::from(SIZE) {
                guest.post(*head);
                self.posted.push(*head);
            }
        }
        if step.jump > 0 {
            guest.set_avail(guest.avail.wrapping_add(step.jump));
        }
    }

    /// Each buffer used is the next one that was made available.
    fn check(&mut self, guest: &mut Guest, jumped: bool) {
        for (head, _) in guest.used() {
            if !jumped {
                assert_eq!(Some(head), self.posted.get(self.used).map(|h| u32::from(*h)));
            }
            self.used += 1;
        }
        assert!(jumped || self.used <= self.posted.len());
    }
}

fn fill(guest: &Guest, ring: &[Raw], table: &[Raw]) {
    for (i, (addr, len, flags, next)) in (0..).zip(ring) {
        guest.desc(i, *addr, *len, *flags, *next);
    }
    for (i, (addr, len, flags, next)) in (0u64..).zip(table) {
        guest.write(TABLE + 16 * i, &Guest::descriptor(*addr, *len, *flags, *next));
    }
}

fn features() -> impl Strategy<Value = u64> {
    vec(prop_oneof![Just(V1), Just(MRG), Just(EVENT), Just(INDIRECT_DESC), Just(3u64)], 0..5)
        .prop_map(|bits| bits.into_iter().fold(INDIRECT_DESC, |a, b| a | b))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn any_transmit_ring(
        features in features(),
        ring in vec(raw(), usize::from(SIZE)),
        table in vec(raw(), 6),
        steps in vec(step(), 1..12),
    ) {
        let mut b = Bench::<NetTx>::new(SIZE, features);
        fill(&b.guest, &ring, &table);
        let (mut audit, mut jumped) = (Audit { posted: Vec::new(), used: 0 }, false);
        let mut bin = Bin::default();
        for step in &steps {
            audit.post(&mut b.guest, step);
            jumped |= step.jump > 0;
            bin.hold.clone_from(&step.hold);
            let lent = bin.frames.len();
            b.net.pull(&mut b.batch, step.limit, &mut bin, &b.counters);
            prop_assert!(bin.frames.len() - lent <= step.limit);
            audit.check(&mut b.guest, jumped);
            b.net.arm();
            b.net.disarm();
        }
        if b.net.is_ready() && !jumped {
            // Nothing is forgotten: with nobody holding, all that was posted comes back.
            let mut bin = Bin::default();
            while b.pull(&mut bin) > 0 {}
            audit.check(&mut b.guest, false);
            prop_assert!(!b.net.is_ready() || audit.used == audit.posted.len());
            prop_assert_eq!(b.net.stop(0), u32::from(b.guest.used_idx()));
        }
    }

    #[test]
    fn any_receive_ring(
        features in features(),
        ring in vec(raw(), usize::from(SIZE)),
        table in vec(raw(), 6),
        steps in vec(step(), 1..12),
    ) {
        let mut b = Bench::<NetRx>::new(SIZE, features);
        fill(&b.guest, &ring, &table);
        let (mut audit, mut jumped) = (Audit { posted: Vec::new(), used: 0 }, false);
        let (mut dealt, mut asked) = (0, 0);
        for step in &steps {
            audit.post(&mut b.guest, step);
            jumped |= step.jump > 0;
            let frames: Vec<Vec<u8>> = step.lens.iter().map(|l| frame(1, *l)).collect();
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            asked += frames.len();
            dealt += b.push(&frames);
            audit.check(&mut b.guest, jumped);
            b.net.room(step.lens.len());
            b.net.want_room();
        }
        prop_assert!(dealt <= asked);
        let out = &b.counters.output;
        let drops = out.dropped(Reason::TooLong) + out.dropped(Reason::LinkDown);
        prop_assert_eq!(out.frames.get() + drops, dealt as u64);
        prop_assert!(out.frames.get() <= audit.used as u64, "each frame has a buffer of its own");
    }
}
