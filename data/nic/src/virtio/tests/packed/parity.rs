//! The same traffic over a split and a packed ring: the same frames, the same buffers, in the same
//! order, with the same counts.

use proptest::collection::vec;
use proptest::prelude::*;
use vmlan_frame::Reason;

use super::*;

/// Buffers that a driver has; each has a place for four descriptors, and one for a table.
const IDS: u16 = 16;
const SIZE: u16 = 4 * IDS;

/// A buffer: lengths of its pieces, and whether they are in a table.
type List = (Vec<u32>, bool);

fn pieces(id: u16, (lens, _): &List, write: u16) -> Vec<Piece> {
    let mut at = place(id);
    let next = |len: &u32| {
        at += u64::from(*len);
        (at - u64::from(*len), *len, write)
    };
    lens.iter().map(next).collect()
}

/// The driver's view of either layout.
trait Driver {
    fn make(map: &Arc<Map>) -> (Self, Rings)
    where
        Self: Sized;
    fn give(&mut self, id: u16, list: &List, write: u16);
    /// (id, length) of each that was used.
    fn take(&mut self) -> Vec<(u32, u32)>;
    fn memory(&self) -> Guest;
}

fn table(id: u16) -> u64 {
    0x4_0000 + 64 * u64::from(id)
}

impl Driver for Guest {
    fn make(map: &Arc<Map>) -> (Self, Rings) {
        let guest = Guest::new(map, 0, SIZE);
        let rings = guest.rings;
        (guest, rings)
    }
    fn give(&mut self, id: u16, list: &List, write: u16) {
        let pieces = pieces(id, list, write);
        let first = if list.1 { 0 } else { 4 * id };
        for (k, (addr, len, flags)) in (0u16..).zip(&pieces) {
            let next = if usize::from(k) + 1 < pieces.len() { NEXT } else { 0 };
            let to = if next == 0 { 0 } else { first + k + 1 };
            if list.1 {
                let at = table(id) + 16 * u64::from(k);
                self.write(at, &Guest::descriptor(*addr, *len, flags | next, to));
            } else {
                self.desc(first + k, *addr, *len, flags | next, to);
            }
        }
        if list.1 {
            let len = u32::try_from(16 * pieces.len()).unwrap();
            self.desc(4 * id, table(id), len, INDIRECT, 0);
        }
        Guest::post(self, 4 * id);
    }
    fn take(&mut self) -> Vec<(u32, u32)> {
        self.used().into_iter().map(|(head, len)| (head / 4, len)).collect()
    }
    fn memory(&self) -> Guest {
        Guest { map: self.map.clone(), rings: self.rings, avail: 0, seen_used: 0 }
    }
}

impl Driver for PackedGuest {
    fn make(map: &Arc<Map>) -> (Self, Rings) {
        let guest = PackedGuest::new(map, SIZE);
        let rings = guest.rings;
        (guest, rings)
    }
    fn give(&mut self, id: u16, list: &List, write: u16) {
        let pieces = pieces(id, list, write);
        if !list.1 {
            return self.post(id, &pieces);
        }
        for (k, (addr, len, flags)) in (0u64..).zip(&pieces) {
            let entry =
                [&addr.to_le_bytes()[..], &len.to_le_bytes(), &[0; 2], &flags.to_le_bytes()];
            self.write(table(id) + 16 * k, &entry.concat());
        }
        self.post(id, &[(table(id), u32::try_from(16 * pieces.len()).unwrap(), INDIRECT)]);
    }
    fn take(&mut self) -> Vec<(u32, u32)> {
        self.used()
    }
    fn memory(&self) -> Guest {
        self.raw()
    }
}

/// What is done in one step: lists to give, what is held or how long frames are, a limit.
type Step = (Vec<List>, Vec<u8>, Vec<usize>, usize);

fn steps(least: u32) -> impl Strategy<Value = Vec<Step>> {
    let list = (vec(prop_oneof![least..80, 60u32..900], 1..4), any::<bool>());
    let step = (vec(list, 0..6), vec(0u8..8, 0..3), vec(60usize..1600, 0..6), 0usize..12);
    vec(step, 1..15)
}

/// Gives lists to the buffers that are free.
fn give(guest: &mut impl Driver, free: &mut Vec<u16>, lists: &[List], write: u16, n: &mut u8) {
    for list in lists {
        let Some(id) = free.pop() else { return };
        if write == 0 {
            let len: u32 = list.0.iter().sum();
            let mut bytes = vec![0; 12];
            bytes.extend(frame(*n % 8, 60.max(len as usize)));
            *n = n.wrapping_add(1);
            bytes.truncate(len as usize);
            guest.memory().write(place(id), &bytes);
        }
        guest.give(id, list, write);
    }
}

/// What a driver sees of its transmit ring: frames, buffers used, counters.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    frames: Vec<Vec<u8>>,
    used: Vec<Vec<(u32, u32)>>,
    bytes: Vec<Vec<u8>>,
    counts: Vec<u64>,
    fault: bool,
}

fn transmit<G: Driver>(features: u64, steps: &[Step]) -> Seen {
    let map = memory(None);
    let (guest, rings) = G::make(&map);
    let mut b = Bench::<NetTx, G>::with(&map, guest, rings, features);
    let (mut free, mut seen, mut n) = ((0..IDS).collect(), Seen::default(), 0);
    let mut bin = Bin::default();
    for (lists, hold, _, limit) in steps {
        give(&mut b.guest, &mut free, lists, 0, &mut n);
        bin.hold.clone_from(hold);
        let done = b.net.pull(&mut b.batch, *limit, &mut bin, &b.counters);
        let used = b.guest.take();
        free.extend(used.iter().rev().map(|(id, _)| u16::try_from(*id).unwrap()));
        seen.used.push(used);
        seen.counts.extend([done as u64, u64::from(b.net.arm())]);
        b.net.disarm();
    }
    seen.frames = bin.frames;
    seen.counts.push(b.counters.input.dropped(Reason::BadHeader));
    seen.fault = b.net.fault().is_some();
    seen
}

fn receive<G: Driver>(features: u64, steps: &[Step]) -> Seen {
    let map = memory(None);
    let (guest, rings) = G::make(&map);
    let mut b = Bench::<NetRx, G>::with(&map, guest, rings, features);
    let (mut free, mut seen) = ((0..IDS).collect(), Seen::default());
    for (n, (lists, _, lens, _)) in (0u8..).zip(steps) {
        give(&mut b.guest, &mut free, lists, WRITE, &mut 0);
        let frames: Vec<_> = lens.iter().map(|len| frame(n, *len)).collect();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        seen.counts.push(b.push(&frames) as u64);
        let used = b.guest.take();
        for (id, len) in &used {
            let id = u16::try_from(*id).unwrap();
            seen.bytes.push(b.guest.memory().read(place(id), *len as usize));
            free.push(id);
        }
        seen.used.push(used);
        seen.counts.extend([b.net.room(1) as u64, u64::from(b.net.want_room())]);
    }
    let out = &b.counters.output;
    seen.counts.extend([out.frames.get(), out.bytes.get(), out.dropped(Reason::TooLong)]);
    seen.fault = b.net.fault().is_some();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn transmit_rings_are_alike(event in any::<bool>(), steps in steps(0)) {
        let features = V1 | INDIRECT_DESC | if event { EVENT } else { 0 };
        let split = transmit::<Guest>(features, &steps);
        prop_assert_eq!(&transmit::<PackedGuest>(features | PACKED, &steps), &split);
    }

    #[test]
    fn receive_rings_are_alike(
        event in any::<bool>(),
        mergeable in any::<bool>(),
        steps in steps(1),
    ) {
        let features = V1 | INDIRECT_DESC
            | if event { EVENT } else { 0 }
            | if mergeable { MRG } else { 0 };
        let split = receive::<Guest>(features, &steps);
        prop_assert_eq!(&receive::<PackedGuest>(features | PACKED, &steps), &split);
    }
}
