//! The CSB on this chip.

use super::guest::*;

const CSB: u64 = 0x8000;

fn guest() -> Guest {
    let mut guest = Guest::cold(0, true);
    guest.write(CSB, &[0; 128]);
    guest.start();
    guest
}

/// A word of the CSB.
fn set(guest: &Guest, at: u64, value: u32) {
    guest.write(CSB + at, &value.to_le_bytes());
}

fn get(guest: &Guest, at: u64) -> u32 {
    guest.word(CSB + at)
}

fn place(guest: &Guest) {
    set(guest, 0x0c, 1);
    guest.set32(CSBAH, 0);
    guest.set32(CSBAL, CSB as u32);
}

#[test]
fn there_is_one_only_if_asked_for() {
    let plain = Guest::new();
    plain.set32(CSBAL, 0x1234);
    assert_eq!(plain.get(CSBAL, 4), 0);
    assert_eq!(plain.chip.device().csb, None);
    let guest = guest();
    place(&guest);
    assert_eq!((guest.get(CSBAL, 4), guest.get(CSBAH, 4)), (CSB as u32, 0));
    guest.set8(CR, RST);
    assert_eq!(guest.get(CSBAL, 4), CSB as u32, "a software reset keeps it");
    guest.chip.reset();
    assert_eq!(guest.get(CSBAL, 4), 0);
}

#[test]
fn no_register_and_no_interrupt_while_both_are_awake() {
    let mut guest = guest();
    guest.set16(IMR, ROK | TOK);
    place(&guest);
    let (polls, raises) = (guest.touched("TPPoll").1, guest.host.raises());
    assert!(!guest.chip.arm());
    assert_eq!(get(&guest, 0x44), 1, "the sleeper wants a kick");
    for n in 0..200u64 {
        let sent = frame([2; 6], 60 + n as usize);
        let at = guest.fill(0, &sent);
        let i = guest.tx;
        let eor = if i == SIZE - 1 { EOR } else { 0 };
        guest.tx_desc(TX_RING, i, OWN | FS | LS | eor | sent.len() as u32, 0, at);
        guest.tx = (i + 1) % SIZE;
        set(&guest, 0, guest.tx);
        assert_eq!(guest.pull()[0].bytes, sent);
        assert_eq!((get(&guest, 0x44), get(&guest, 0x40)), (0, guest.tx));
        let came = frame(MAC, 60 + n as usize);
        assert_eq!(guest.arrive_plain(&[&came]), 1);
        assert_eq!(guest.take().unwrap().0, came);
        set(&guest, 0x10, guest.rx);
        assert_eq!(get(&guest, 0x50), guest.rx);
    }
    assert_eq!((guest.touched("TPPoll").1, guest.host.raises()), (polls, raises));
    let csb = guest.chip.device().csb.unwrap();
    assert!(csb.on && csb.suppressed >= 400, "{csb:?}");
}

#[test]
fn wishes_are_heard() {
    let mut guest = guest();
    guest.set16(IMR, ROK | TOK);
    place(&guest);
    // The guest's: an interrupt.
    set(&guest, 8, 1);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!((guest.host.raises(), guest.isr() & ROK), (1, ROK));
    guest.set16(ISR, 0xffff);
    set(&guest, 8, 0);
    set(&guest, 4, 1);
    guest.send(0, &frame([2; 6], 60));
    guest.pull();
    assert_eq!(guest.host.raises(), 2);
    guest.set16(ISR, 0xffff);
    set(&guest, 4, 0);
    // The worker's: a kick, by whatever is written to TPPoll.
    assert!(!guest.chip.arm());
    assert_eq!(get(&guest, 0x44), 1);
    let rings = guest.host.rings();
    guest.set8(TPPOLL, 0);
    assert_eq!(guest.host.rings(), rings + 1);
    // And for room.
    let came = vec![frame(MAC, 60); 64];
    let all: Vec<&[u8]> = came.iter().map(Vec::as_slice).collect();
    let mut done = 1;
    while done < 64 && guest.arrive_plain(&all[done..done + 1]) == 1 {
        done += 1;
    }
    assert_eq!(guest.arrive_plain(&all[..1]), 0);
    assert!(!guest.chip.want_room());
    assert_ne!(get(&guest, 0x5c), u32::MAX);
    guest.take();
    guest.set8(TPPOLL, 0);
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive_plain(&all[..1]), 1);
    assert_eq!(get(&guest, 0x5c), u32::MAX, "content");
}

/// Descriptors are looked at when the tail is told to have moved, or before sleep; whatever it
/// says, OWN counts.
#[test]
fn tails_are_hints() {
    let mut guest = guest();
    assert!(guest.chip.posts_silently());
    place(&guest);
    let post = |guest: &Guest, n: u32| {
        let at = guest.fill(0, &frame([2; 6], 60));
        guest.tx_desc(TX_RING, n, OWN | FS | LS | 60, 0, at);
    };
    // The first look finds the ring, the second the CSB.
    assert_eq!((guest.pull().len(), guest.pull().len()), (0, 0));
    assert!(!guest.chip.posts_silently(), "whoever waits for room is told");
    post(&guest, 0);
    assert_eq!(guest.pull().len(), 0, "not told");
    set(&guest, 0, 1);
    assert_eq!(guest.pull().len(), 1);
    post(&guest, 1);
    assert!(guest.pull().is_empty() && guest.chip.arm(), "found out before sleep");
    guest.chip.disarm();
    assert_eq!(guest.pull().len(), 1);
    set(&guest, 0, 5);
    assert_eq!(guest.pull().len(), 0, "OWN says no");
    post(&guest, 2);
    set(&guest, 0, 4);
    assert_eq!(guest.pull().len(), 1, "as far as OWN goes");
    for nonsense in [SIZE, u32::MAX] {
        set(&guest, 0, nonsense);
        post(&guest, guest.word(CSB + 0x40));
        assert_eq!(guest.pull().len(), 1, "{nonsense}: no hint");
    }
}

/// Turned off amid traffic: what it kept in comes out, registers ring again.
#[test]
fn turned_off() {
    let mut guest = guest();
    guest.set16(IMR, ROK);
    place(&guest);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.host.raises(), 0);
    set(&guest, 0x0c, 0);
    guest.arrive_plain(&[&frame(MAC, 60)]);
    assert_eq!(guest.host.raises(), 1);
    guest.send(0, &frame([2; 6], 60));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(get(&guest, 0x44), 1, "kicks are wanted");
    assert!(!guest.chip.device().csb.unwrap().on);
}

/// What a guest can write into it changes nothing that it does not own.
#[test]
fn nonsense_in_it() {
    for garbage in [0xffu8, 0x5a, 0x80, 1] {
        let mut guest = guest();
        guest.set16(IMR, 0xffff);
        guest.write(CSB, &[garbage; 104]);
        guest.set32(CSBAL, CSB as u32);
        for n in 0..200 {
            guest.send(0, &frame([2; 6], 60 + n));
            assert_eq!(guest.pull().len(), 1);
            assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
            assert!(guest.take().is_some());
            guest.write(CSB, &[garbage; 0x40]);
            guest.set16(ISR, 0xffff);
            let _ = (guest.chip.arm(), guest.chip.want_room());
        }
    }
    for at in [CSB + 4, MEMORY, MEMORY - 64, 0xfebc_0000] {
        let mut guest = guest();
        guest.set32(CSBAL, at as u32);
        assert!(matches!(guest.chip.fault(), Some(Fault::BadCsb { .. })), "{at:#x}");
        guest.send(0, &frame([2; 6], 60));
        assert_eq!(guest.pull().len(), 1, "it does without");
        guest.set32(CSBAL, 0);
        assert_eq!(guest.chip.fault(), None);
    }
}

/// `guest_use_msix`, and MSI on: a message says it all.
#[test]
fn messages_that_say_all() {
    let mut guest = guest();
    guest.config_write(0x52, &[1]);
    guest.set16(IMR, ROK | TOK);
    set(&guest, 0x18, 1);
    place(&guest);
    set(&guest, 8, 1);
    for n in 1..=3 {
        guest.arrive_plain(&[&frame(MAC, 60)]);
        guest.take();
        assert_eq!(
            (guest.host.raises(), guest.isr() & ROK),
            (n, 0),
            "no acknowledgement is needed"
        );
    }
}

/// One wake-up more or less does not matter; that nobody sleeps must not.
const LOOKS: u32 = 200;

/// A driver that gives all descriptors away tells the same tail again, and a worker that others
/// keep awake never is about to sleep.
#[test]
fn a_ring_that_is_given_away_whole() {
    let mut guest = guest();
    place(&guest);
    guest.pull();
    for round in 0..5 {
        for n in 0..SIZE {
            let at = guest.fill(0, &frame([2; 6], 60));
            let eor = if n == SIZE - 1 { EOR } else { 0 };
            guest.tx_desc(TX_RING, n, OWN | FS | LS | eor | 60, 0, at);
        }
        set(&guest, 0, 0);
        let sent: usize = (0..LOOKS).map(|_| guest.pull().len()).sum();
        assert_eq!(sent, SIZE as usize, "round {round}");
    }
    let came = vec![frame(MAC, 60); SIZE as usize];
    let all: Vec<&[u8]> = came.iter().map(Vec::as_slice).collect();
    for round in 0..5 {
        set(&guest, 0x10, 0);
        let mut done = 0;
        for _ in 0..LOOKS {
            done += guest.arrive_plain(&all[done..]);
        }
        assert_eq!(done, all.len(), "round {round}");
        (0..SIZE).for_each(|_| assert!(guest.take().is_some()));
    }
}

/// A driver that tells no tail, but rings, and a worker that is awake.
#[test]
fn a_tail_that_is_not_told() {
    let mut guest = guest();
    place(&guest);
    guest.pull();
    for n in 0..SIZE {
        guest.send(0, &frame([2; 6], 60));
        let sent: usize = (0..LOOKS).map(|_| guest.pull().len()).sum();
        assert_eq!(sent, 1, "{n}");
    }
}

/// Buffers are asked for by an index that there is, also while nobody has seen where the ring ends.
#[test]
fn a_kick_is_asked_for_within_a_ring_that_has_not_wrapped() {
    let guest = guest();
    // As our own driver, and e1000's, do: one is kept back.
    guest.tx_desc(RX_RING, SIZE - 1, EOR, 0, 0);
    place(&guest);
    let came = vec![frame(MAC, 60); 64];
    let all: Vec<&[u8]> = came.iter().map(Vec::as_slice).collect();
    assert_eq!(guest.arrive_plain(&all), 63);
    assert_eq!(guest.arrive_plain(&all), 0);
    assert!(!guest.chip.want_room());
    let at = get(&guest, 0x5c);
    assert!(at < SIZE, "{at}");
}

/// Rings of any size, filled as far as there is room or less; tails told before or after OWN, late,
/// or never; the CSB turned off and on, the map replaced: a worker that is never about to sleep
/// sends all.
#[test]
fn drivers_of_all_kinds_are_heard_by_a_worker_that_never_sleeps() {
    for seed in 1..=300u32 {
        let mut state = seed.wrapping_mul(0x9e37_79b9);
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let mut guest = guest();
        let (size, whole) = (1 + random(SIZE), random(2) == 0);
        place(&guest);
        let (mut next, mut sent) = (0, 0usize);
        for round in 0..30 {
            let burst = 1 + random(if whole { size } else { size.max(2) - 1 });
            let (before, told) = (random(2) == 0, random(4) > 0);
            let tail = (next + burst) % size;
            if before {
                set(&guest, 0, tail);
            }
            for n in (next..next + burst).map(|n| n % size) {
                if random(3) == 0 {
                    sent += guest.pull().len();
                }
                let at = guest.fill(0, &frame([2; 6], 60));
                let eor = if n == size - 1 { EOR } else { 0 };
                guest.tx_desc(TX_RING, n, OWN | FS | LS | eor | 60, 0, at);
            }
            if told {
                set(&guest, 0, tail);
            }
            match random(8) {
                0 => set(&guest, 0x0c, 0),
                1 => set(&guest, 0x0c, 1),
                2 => drop(guest.chip.set_map(guest.map.clone())),
                _ => {}
            }
            sent += (0..LOOKS).map(|_| guest.pull().len()).sum::<usize>();
            next = tail;
            let posted = (0..size).filter(|n| guest.tx_opts(*n) & OWN != 0).count();
            assert_eq!(posted, 0, "seed {seed}, round {round}: {sent} sent");
        }
    }
}
