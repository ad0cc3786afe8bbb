//! The model of a frame in cache lines (`data/nic/PERF.md`): which lines each side has to write for
//! a ring full of frames, once descriptors have been used before. Each has to travel to the other
//! side, and ownership of it back.

use super::*;

const SIZE: u16 = 128;
const LINE: usize = 64;

/// All memory.
fn image(guest: &Guest) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(MEMORY).unwrap()];
    let (low, high) = bytes.split_at_mut(usize::try_from(BORDER).unwrap());
    for (at, part) in [(0, low), (BORDER, high)] {
        assert_eq!(guest.map.slice(at, part.len()).unwrap().read(part), part.len());
    }
    bytes
}

/// Lines that differ: of rings (below the buffers), and of buffers.
fn written(before: &[u8], after: &[u8]) -> [usize; 2] {
    let differ = before.chunks(LINE).zip(after.chunks(LINE)).map(|(a, b)| a != b);
    let differ: Vec<bool> = differ.collect();
    let (rings, buffers) = differ.split_at(usize::try_from(BUFFERS).unwrap() / LINE);
    [rings, buffers].map(|lines| lines.iter().filter(|l| **l).count())
}

/// Makes every used entry of a split ring another one, which only a write makes right again. The
/// driver has seen them all.
fn spoil(raw: &Guest, used: bool) {
    if used {
        raw.write(raw.rings.used + 4, &[0xff; 8 * SIZE as usize]);
    }
}

/// What the driver, then the device, has to write for a ring full of frames of 60 bytes, in the
/// third lap. `split`: the ring has used entries.
fn transmit<G>(
    mut b: Bench<NetTx, G>,
    (raw, split): (&Guest, bool),
    mut send: impl FnMut(&mut G, u16, &[u8]),
    mut reap: impl FnMut(&mut G),
) -> [[usize; 2]; 2] {
    b.net.disarm();
    let mut all = [[0; 2]; 2];
    for lap in 1..=3 {
        let before = image(raw);
        (0..SIZE).for_each(|id| send(&mut b.guest, id, &frame(lap, 60)));
        let given = written(&before, &image(raw));
        spoil(raw, split);
        let between = image(raw);
        assert_eq!(b.pulled().len(), SIZE.into());
        all = [given, written(&between, &image(raw))];
        reap(&mut b.guest);
    }
    all
}

/// The same with receive buffers: what the driver writes to post them, and the device to fill them.
fn receive<G>(
    mut b: Bench<NetRx, G>,
    (raw, split): (&Guest, bool),
    mut offer: impl FnMut(&mut G, u16),
    mut reap: impl FnMut(&mut G),
) -> [[usize; 2]; 2] {
    let mut all = [[0; 2]; 2];
    for lap in 1..=3 {
        let before = image(raw);
        (0..SIZE).for_each(|id| offer(&mut b.guest, id));
        let given = written(&before, &image(raw));
        spoil(raw, split);
        let between = image(raw);
        let f = frame(lap, 60);
        assert_eq!(b.push(&vec![&f[..]; SIZE.into()]), SIZE.into());
        all = [given, written(&between, &image(raw))];
        reap(&mut b.guest);
    }
    all
}

#[test]
fn each_side_writes_the_lines_of_the_model() {
    let n = usize::from(SIZE);
    let (split_tx, split_rx) = (Bench::<NetTx>::new(SIZE, V1), Bench::<NetRx>::new(SIZE, V1));
    let raw = |guest: &Guest| Guest { map: guest.map.clone(), rings: guest.rings, ..*guest };
    let (at_tx, at_rx) = (raw(&split_tx.guest), raw(&split_rx.guest));
    // A driver need not write descriptors and heads that are as they were, only `avail.idx`. The
    // device writes 8 bytes for each frame, and `used.idx` 4 bytes before them.
    let sent = transmit(split_tx, (&at_tx, true), Guest::send, |g| drop(g.used()));
    assert_eq!(sent, [[1, n], [entries(&at_tx), 0]]);
    let offer = |g: &mut Guest, id| assert_ne!(g.offer(id, 2000), 0);
    let got = receive(split_rx, (&at_rx, true), offer, |g| drop(g.used()));
    assert_eq!(got, [[1, 0], [entries(&at_rx), n]]);
    // In a packed ring each side writes all of it, 16 bytes for each frame, and nothing else.
    let (packed_tx, packed_rx) = (tx(SIZE, 0), rx(SIZE, 0));
    let (at_tx, at_rx) = (packed_tx.guest.raw(), packed_rx.guest.raw());
    let sent = transmit(packed_tx, (&at_tx, false), PackedGuest::send, |g| drop(g.used()));
    assert_eq!(sent, [[n / 4, n], [n / 4, 0]]);
    let offer = |g: &mut PackedGuest, id| assert_ne!(g.offer(id, 2000), 0);
    let got = receive(packed_rx, (&at_rx, false), offer, |g| drop(g.used()));
    assert_eq!(got, [[n / 4, 0], [n / 4, n]]);
}

/// Lines that index and entries of a split used ring lie in.
fn entries(raw: &Guest) -> usize {
    let (first, last) = (raw.rings.used, raw.rings.used + 3 + 8 * u64::from(SIZE));
    usize::try_from(last / LINE as u64 - first / LINE as u64 + 1).unwrap()
}
