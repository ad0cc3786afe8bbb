//! The receive buffer of classic mode: every wrap, read pointer and overflow.

use super::guest::*;
use crate::chip::Nic;
use crate::rtl8139::buffer::{LONGEST, Look, OVERRUN};

const SIZES: [u32; 4] = [0x2000, 0x4000, 0x8000, 0x1_0000];

fn look(size: u32, wrap: bool, at: u32, read: u32) -> Look {
    Look { base: 0x10_0000, size, wrap: wrap && size < 0x1_0000, at, read }
}

/// Places in a buffer that are worth a look: its ends, the middle, and round about `other`.
fn places(size: u32, other: u32) -> impl Iterator<Item = u32> {
    let near = (0..48).map(move |n| (other + size + n - 24) % size);
    let steps = [1514 + 8, 60 + 8, OVERRUN, 1800, 4096];
    let far = steps.into_iter().flat_map(move |n| [(other + n) % size, (other + size - n) % size]);
    near.chain(far).chain((0..8).map(move |n| size - 1 - n)).chain([0, 1, 4, size / 2])
}

/// For all places of CBR and the read pointer (unaligned ones, too), lengths, sizes and modes: what
/// is written lies in what is free, and the read pointer is never reached.
#[test]
fn a_frame_never_lies_on_what_is_not_read_nor_outside() {
    let mut fitted = 0u64;
    for size in SIZES {
        for wrap in [false, true] {
            let ends = [0, 4, 64, 1520, size / 2, size - 4, size - 8, size - 64, size - 1524];
            for at in ends {
                for read in places(size, at) {
                    for len in [64u32, 65, 66, 67, 68, 300, 1514, 1518, 1522, 1535, 1536, 1792] {
                        fitted += u64::from(check(look(size, wrap, at, read), len));
                    }
                }
            }
        }
    }
    assert!(fitted > 10_000, "{fitted}");
}

fn check(look: Look, len: u32) -> bool {
    let Look { size, at, read, wrap, .. } = look;
    let need = Look::need(len);
    assert!(need.is_multiple_of(4) && need >= len + 4 && need < len + 8);
    let unread = (at + size - read) % size;
    assert_eq!(look.is_empty(), unread == 0);
    if need > look.free() {
        // There is truly no room: it would touch what is not read, or fill the buffer to the last
        // byte.
        assert!(unread + need >= size, "{look:?} {len}");
        return false;
    }
    let mut after = look;
    after.step(need);
    assert!(!after.is_empty() && after.at < size && after.at.is_multiple_of(4), "{look:?} {len}");
    assert_eq!((after.at + size - read) % size, unread + need, "{look:?} {len}");
    let Some(parts) = look.parts(len) else {
        assert!(wrap && at + 4 + len > size + OVERRUN, "{look:?} {len}");
        return false;
    };
    let (first, second) = (parts.first, parts.second);
    assert_eq!(first.1 + second.1, 4 + len);
    assert_eq!(first.0, at);
    assert!(first.1 >= 4, "a header never crosses the end");
    if wrap {
        assert!(second.1 == 0 && first.0 + first.1 <= size + OVERRUN);
    } else {
        assert!(first.0 + first.1 <= size && second.0 == 0);
        assert!(second.1 == 0 || first.0 + first.1 == size);
    }
    true
}

/// A standard frame with a tag always fits behind the end.
#[test]
fn wrap_suffices_for_all_frames_that_are_usual() {
    for size in &SIZES[..3] {
        for at in (0..*size).step_by(4) {
            assert!(look(*size, true, at, at).parts(1522).is_some());
        }
    }
    let frames =
        (0..0x2000).step_by(4).filter(|at| look(0x2000, true, *at, *at).parts(1792).is_none());
    assert_eq!(frames.count(), 64, "1,792 bytes are too many in the last 256");
}

/// Whatever is in the registers, what comes of it is within bounds.
#[test]
fn registers_of_any_value() {
    let guest = Guest::classic();
    for rblen in 0..4u32 {
        for wrap in [0, WRAP] {
            guest.set32(RCR, ACCEPT | wrap | rblen << 11);
            for capr in (0..=0xffffu16).step_by(251).chain([0xffef, 0xfff0, 0xfff1, 0xffff, 1, 3]) {
                guest.set16(CAPR, capr);
                let look = Look::new(&guest.chip.regs);
                assert_eq!(look.size, SIZES[rblen as usize]);
                assert_eq!(look.wrap, wrap != 0 && rblen < 3);
                assert!(look.at < look.size && look.read < look.size);
                assert_eq!(look.read, (u32::from(capr) + 16) % look.size);
                assert!(look.free() < look.size);
            }
        }
    }
}

/// The whole way, against a driver that keeps its own account: lengths and read pointers at random,
/// all sizes and modes, several times round; nothing outside the buffer is ever written.
#[test]
fn frames_pass_in_order_however_they_wrap() {
    for rblen in 0..4u32 {
        for wrap in [0, WRAP] {
            let guest = Guest::classic();
            guest.start_classic(wrap | rblen << 11);
            let size = SIZES[rblen as usize];
            let fence = [0xa5; 4096];
            let behind =
                RX_BUFFER + u64::from(size) + if wrap != 0 { u64::from(OVERRUN) } else { 0 };
            guest.write(behind, &fence);
            guest.write(RX_BUFFER - 4096, &fence);
            let (mut sent, mut taken, mut dice) = (vec![], 0, 7u32);
            while sent.len() < 60 * SIZES.len() * (1 + rblen as usize) {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let len = match dice >> 16 & 7 {
                    0..3 => 14 + (dice >> 20 & 63) as usize,
                    3..6 => 1400 + (dice >> 20) as usize % 115,
                    _ => 60 + (dice >> 20) as usize % 1454,
                };
                let f = frame(MAC, len);
                if guest.arrive(std::slice::from_ref(&f)) == 1 {
                    sent.push(f);
                    if dice >> 30 != 0 {
                        continue;
                    }
                }
                for _ in 0..=dice >> 8 & 3 {
                    taken += usize::from(expect(&guest, &sent, taken));
                }
            }
            while expect(&guest, &sent, taken) {
                taken += 1;
            }
            assert_eq!(taken, sent.len());
            assert_eq!((guest.get8(CR) & BUFE, guest.dropped()), (BUFE, 0));
            assert_eq!(guest.read(behind, 4096), fence, "{size} {wrap}");
            assert_eq!(guest.read(RX_BUFFER - 4096, 4096), fence);
        }
    }
}

/// Takes a frame, which must be the one that was sent then.
fn expect(guest: &Guest, sent: &[Vec<u8>], n: usize) -> bool {
    let Some((status, got)) = guest.take() else { return false };
    let mut want = sent[n].clone();
    want.resize(want.len().max(60) + 4, 0);
    assert_eq!((status, got.len()), (0x4001, want.len()), "frame {n}");
    assert_eq!(got, want, "frame {n}");
    true
}

/// Hostile registers of all kinds, changed while frames come: whatever is written, it is written
/// between RBSTART and 1.5 KiB behind the longest buffer.
#[test]
fn nothing_is_written_outside_whatever_the_driver_does() {
    let guest = Guest::classic();
    let low = RX_BUFFER - 0x4000;
    let reach = 0x1_0000 + u64::from(OVERRUN);
    let mut dice = 1u32;
    let mut roll = move || {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        dice >> 8
    };
    let bases =
        [RX_BUFFER, RX_BUFFER + 1, RX_BUFFER + 0x1f00, 0, MEMORY - 0x1000, MEMORY, 0xffff_fff0];
    for _ in 0..4000 {
        match roll() % 6 {
            0 => guest.set32(RCR, ACCEPT | roll() & (WRAP | 3 << 11)),
            1 => guest.set16(CAPR, roll() as u16),
            2 => guest.set32(RBSTART, bases[roll() as usize % bases.len()] as u32),
            3 => guest.set8(CR, TE | if roll() & 1 != 0 { RE } else { 0 }),
            _ => {
                let frames = vec![frame(MAC, 14 + roll() as usize % 1760); 1 + roll() as usize % 8];
                guest.arrive(&frames);
            }
        }
        let cbr = guest.get16(CBR);
        assert!(cbr.is_multiple_of(4));
    }
    let untouched =
        |from: u64, to: u64| guest.read(from, (to - from) as usize).iter().all(|b| *b == 0);
    assert!(untouched(0x1000, low) && untouched(RX_BUFFER + 0x1f00 + reach, MEMORY - 0x1_0000));
    assert!(untouched(low, RX_BUFFER) && guest.read(0, 0x1000).iter().all(|b| *b == 0));
}

/// RBSTART that was never set, or points outside memory: frames are refused, and the port says why.
#[test]
fn a_buffer_that_is_nowhere_is_told() {
    let guest = Guest::classic();
    for base in [0, MEMORY as u32, MEMORY as u32 - 0x1000, 0xffff_f000] {
        guest.set32(RBSTART, base);
        assert_eq!((guest.arrive(&[frame(MAC, 60)]), guest.chip.room()), (0, 0), "{base:#x}");
        let fault = guest.chip.fault().unwrap();
        assert_eq!(fault.address(), Some(base.into()));
        assert!(!guest.chip.want_room());
        assert_eq!(guest.get8(CR) & BUFE, BUFE);
    }
    let rang = guest.rang();
    guest.set32(RBSTART, RX_BUFFER as u32);
    assert_eq!(guest.rang(), rang + 1);
    assert_eq!((guest.arrive(&[frame(MAC, 60)]), guest.chip.fault()), (1, None));
    // Behind the end of memory there is no room for what overruns the buffer.
    guest.start_classic(WRAP);
    guest.set32(RBSTART, MEMORY as u32 - 0x2000);
    guest.set16(CAPR, 0x1ff0);
    for _ in 0..5 {
        assert_eq!(guest.arrive(&[frame(MAC, 1514)]), 1);
        guest.set16(CAPR, guest.get16(CBR).wrapping_sub(16));
    }
    assert_eq!(guest.dropped(), 0);
    assert_eq!((guest.arrive(&[frame(MAC, 1514)]), guest.dropped()), (1, 1));
}

/// What is too long for a driver's buffers is dropped, and no more than that.
#[test]
fn long_frames_are_dropped() {
    let guest = Guest::classic();
    assert_eq!(guest.arrive(&[frame(MAC, LONGEST - 3), frame(MAC, LONGEST - 4)]), 2);
    assert_eq!(guest.dropped(), 1);
    assert_eq!(guest.take().unwrap().1.len(), LONGEST);
    assert!(guest.take().is_none());
}

/// With WRAP a long frame overruns the end by no more than drivers have reserved: it goes to the
/// beginning, and is found there.
#[test]
fn long_frames_at_the_end_go_to_the_beginning() {
    for at in (0x1e00u16..0x2000).step_by(4) {
        let guest = Guest::classic();
        guest.start_classic(WRAP);
        // CBR cannot be written; frames move it there.
        while guest.get16(CBR) != at {
            let left = usize::from(at - guest.get16(CBR));
            let len = if left > 1500 { 1000 } else { left - 8 };
            assert_eq!(guest.arrive(&[frame(MAC, len)]), 1);
            guest.take().unwrap();
        }
        let behind = RX_BUFFER + 0x2000 + u64::from(OVERRUN);
        guest.write(behind, &[0xa5; 512]);
        let long = frame(MAC, LONGEST - 4);
        assert_eq!(guest.arrive(&[long.clone(), frame(MAC, 60)]), 2);
        if at >= 0x1f00 {
            let (status, filler) = guest.take().unwrap();
            assert_eq!(
                (status, &filler[..14]),
                (0x4001, [MAC.as_slice(), &MAC, &[0x90, 0]].concat().as_slice())
            );
            assert!(filler[14..].iter().all(|b| *b == 0) && (64..=252).contains(&filler.len()));
        }
        assert_eq!(guest.take().unwrap().1[..LONGEST - 4], long, "{at:#x}");
        assert_eq!(guest.take().unwrap().1[..60], frame(MAC, 60));
        assert!(guest.take().is_none() && guest.dropped() == 0);
        assert_eq!(guest.read(behind, 512), [0xa5; 512]);
        assert_eq!(guest.chip.counters().output.frames.get() as usize, 2 + moved(at));
    }
}

/// Frames that it takes to move CBR there.
fn moved(at: u16) -> usize {
    let (mut left, mut n) = (usize::from(at), 0);
    while left > 0 {
        left -= if left > 1500 { 1008 } else { left };
        n += 1;
    }
    n
}

/// Both of them find room, or neither is written.
#[test]
fn a_filler_and_its_frame_find_room_together() {
    for free in (0..2400u32).step_by(4) {
        let look = look(0x2000, true, 0x1f80, (0x1f80 + free) % 0x2000);
        let both = Look::need(look.filler()) + Look::need(1792);
        let mut after = look;
        after.step(Look::need(look.filler()));
        assert_eq!(after.at, 0);
        assert_eq!(both <= look.free(), free == 0 || free > both, "{free}");
    }
}

/// The registers say so when frames are lost, and when the driver catches up.
#[test]
fn overflow_and_catching_up() {
    let guest = Guest::classic();
    let frames = vec![frame(MAC, 1514); 10];
    assert_eq!(guest.arrive(&frames), 5, "8 KiB hold five");
    assert_eq!((guest.get16(ISR), guest.get32(MPC)), (ROK, 0));
    assert!(!guest.chip.want_room());
    // The switch gives up.
    guest.chip.counters().output.drop(vmlan_frame::Reason::ReceiverFull, 5);
    assert_eq!(guest.arrive(&frames[..1]), 0);
    assert_eq!((guest.get16(ISR), guest.get32(MPC)), (ROK | RXOVW, 5));
    guest.set32(MPC, 77);
    assert_eq!(guest.get32(MPC), 0);
    let rang = guest.rang();
    guest.take().unwrap();
    assert_eq!(guest.rang(), rang + 1, "CAPR rings");
    assert!(guest.chip.want_room());
    assert_eq!(guest.arrive(&frames), 1);
    // Room for one of 60, but not of 1514: no more is promised than a try.
    assert!(!guest.chip.want_room());
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1);
    // RE off and on: all is gone.
    guest.set8(CR, TE);
    guest.set8(CR, TE | RE);
    assert_eq!((guest.get8(CR), guest.get16(CBR), guest.get16(CAPR)), (TE | RE | BUFE, 0, 0xfff0));
    assert_eq!(guest.arrive(&frames), 5);
}
