//! A chip that takes the place of another in mid-traffic: nobody can tell.

use proptest::collection::vec;
use proptest::prelude::*;

use super::state::{chip_state, trace};
use super::*;
use crate::chip::PciFunction;
use crate::chip::state::{Made, StateError, Tag, parts_of};
use crate::e1000::E1000;
use crate::e1000e::E1000e;
use crate::r8169::R8169;
use crate::rtl8139::Rtl8139;
use crate::vmxnet3::Vmxnet3;

/// The same input with one chip, and with others in its place after the steps that `when` names.
fn same<C: Fuzzed>(data: &[u8], when: impl Fn(usize) -> bool) {
    let (one, many) = (trace::<C>(data, |_| false), trace::<C>(data, when));
    for (at, (one, many)) in one.iter().zip(&many).enumerate() {
        assert_eq!(one, many, "step {at}");
    }
    assert_eq!(one.len(), many.len());
}

/// Those that the fuzzer has kept: `every` n-th.
fn kept_inputs<C: Fuzzed>(target: &str, every: usize) {
    let inputs = replay::kept_inputs(target);
    assert!(inputs.len() >= 8);
    for (n, input) in inputs.iter().step_by(every).enumerate() {
        same::<C>(input, |step| n % 3 == 0 || step % 5 == n % 5);
    }
}

#[test]
fn e1000s_go_on() {
    kept_inputs::<E1000>("e1000", 5);
}

#[test]
fn e1000es_go_on() {
    kept_inputs::<E1000e>("e1000e", 1);
}

#[test]
fn r8169s_go_on() {
    kept_inputs::<R8169>("r8169", 3);
}

#[test]
fn rtl8139s_go_on() {
    kept_inputs::<Rtl8139>("rtl8139", 3);
}

#[test]
fn vmxnet3s_go_on() {
    kept_inputs::<Vmxnet3>("vmxnet3", 1);
}

/// Steps by lot, which the seeds do not have: frames held, mode changes, resets, the EEPROM's bus.
fn steps() -> impl Strategy<Value = Vec<u8>> {
    let often = prop_oneof![0x0au8..0x30, 0x60u8..0x70, 0xd0u8..=0xdf, 0xb0u8..0xc0];
    vec(prop_oneof![3 => often, 1 => any::<u8>()], 1..60)
}

/// An input with the memory of one that was kept.
fn input(kept: &[Vec<u8>], which: usize, byte: u8, steps: &[u8]) -> Vec<u8> {
    let kept = &kept[which % kept.len()];
    let [_, low, high, rest @ ..] = &kept[..] else { return replay::input(byte, steps, &[]) };
    let count = usize::from(u16::from_le_bytes([*low, *high]));
    replay::input(byte, steps, rest.get(count..).unwrap_or_default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 1000 }))]

    #[test]
    fn nobody_can_tell(
        which in 0usize..1000,
        byte in any::<u8>(),
        steps in steps(),
        every in 1usize..6,
    ) {
        let byte = byte & 0xfe;
        let when = |step: usize| step.is_multiple_of(every);
        let with = |target| input(&replay::kept_inputs(target), which, byte, &steps);
        same::<E1000>(&with("e1000"), when);
        same::<E1000e>(&with("e1000e"), when);
        same::<R8169>(&with("r8169"), when);
        same::<Rtl8139>(&with("rtl8139"), when);
        same::<Vmxnet3>(&with("vmxnet3"), when);
    }

    /// Bytes of a state that a chip would never write, and bytes that are none.
    #[test]
    fn states_of_any_bytes_do_no_harm(
        chip in prop_oneof![0u8..5, 0x80u8..0x85],
        byte in any::<u8>(),
        before in vec(any::<u8>(), 0..20),
        changes in vec((any::<u16>(), any::<u8>()), 0..6),
        after in steps(),
    ) {
        let mut data = vec![chip, byte, u8::try_from(before.len()).unwrap()];
        data.extend(before);
        data.push(u8::try_from(changes.len()).unwrap());
        for (at, value) in changes {
            data.extend(at.to_le_bytes());
            data.push(value);
        }
        data.extend(after);
        chip_state(&data);
    }
}

/// Each byte of a state, one after the other, becomes another: most such states are taken, and do
/// no harm either.
#[test]
fn every_byte_may_be_wrong() {
    for chip in 0..5u8 {
        let (mut taken, mut refused) = (0, 0);
        // Frames sent, received and held; one more after each change.
        let before = [0x6f, 0x0f, 0x28, 0x12, 0x6f, 0x11, 0xb1];
        for at in (0..6000u16).step_by(7) {
            let value = [0, 1, 0x7f, 0xff][usize::from(at) / 7 % 4];
            let mut data = vec![chip, 0x12, u8::try_from(before.len()).unwrap()];
            data.extend(before);
            data.push(1);
            data.extend(at.to_le_bytes());
            data.extend([value, 0x0f, 0x28, 0x67, 0x11]);
            let was = if chip_state(&data) { &mut taken } else { &mut refused };
            *was += 1;
        }
        assert!(taken > 100 && refused > 20, "chip {chip}: {taken} taken, {refused} refused");
    }
}

/// The same of what a chip leaves that dies: words of the format, lines, slots, registers; and
/// intents of all kinds.
#[test]
fn whatever_was_left_may_be_wrong() {
    for chip in [0x80u8, 0x82, 0x83, 0x84] {
        let (mut taken, mut refused) = (0, 0);
        let before = [0x6f, 0x0f, 0x28, 0x12, 0x6f, 0x11, 0xb1];
        let mut one = |changes: &[(u16, u8)]| {
            let mut data = vec![chip, 0x12, u8::try_from(before.len()).unwrap()];
            data.extend(before);
            data.push(u8::try_from(changes.len()).unwrap());
            for (at, value) in changes {
                data.extend(at.to_le_bytes());
                data.push(*value);
            }
            data.extend([0x0f, 0x28, 0x67, 0x11]);
            let was = if chip_state(&data) { &mut taken } else { &mut refused };
            *was += 1;
        };
        one(&[]);
        let places =
            (0..0x80).chain((0x1000..0x1100).step_by(3)).chain((0x2000..0x2300).step_by(5));
        let places = places.chain((0x3000..0x3300).step_by(5)).chain((0x4000..0xe000).step_by(97));
        for (n, at) in places.enumerate() {
            one(&[(at, [0, 1, 0x7f, 0xff][n % 4])]);
        }
        for line in [0x1000u16, 0x1400, 0x1c00] {
            for (a, b, flags) in [(0, 1, 1), (31, 3, 3), (5, 5, 7), (9, 200, 15), (3, 30, 0xff)] {
                one(&[(line, a), (line + 2, b), (line + 4, flags)]);
            }
        }
        assert!(taken > 300 && refused > 20, "chip {chip}: {taken} taken, {refused} refused");
    }
}

fn e1000() -> (E1000, Vec<u8>) {
    let chip: E1000 = WORLD.with_borrow(|world| make(world, 0, &Arc::default()));
    let state = chip.save();
    (chip, state)
}

/// Adds a part, and says so in the header.
fn with_part(state: &[u8], tag: [u8; 4], version: u16, flags: u16) -> Vec<u8> {
    let mut state = state.to_vec();
    state.extend(tag);
    state.extend(version.to_le_bytes());
    state.extend(flags.to_le_bytes());
    state.extend(3u32.to_le_bytes());
    state.extend([1, 2, 3]);
    let len = u32::try_from(state.len()).unwrap();
    state[12..16].copy_from_slice(&len.to_le_bytes());
    state
}

#[test]
fn what_is_new_is_skipped_or_refused() {
    let (chip, state) = e1000();
    assert_eq!(chip.restore(&with_part(&state, *b"NEW!", 1, 1)), Ok(()));
    let new = StateError::Unknown(Tag(*b"NEW!"), 7);
    assert_eq!(chip.restore(&with_part(&state, *b"NEW!", 7, 0)), Err(new));
    assert_eq!(chip.restore(&with_part(&state, *b"PCI ", 1, 1)), Err(StateError::Damaged));
    let mut newer = state.clone();
    newer[48 + 4] = 2;
    assert_eq!(chip.restore(&newer), Err(StateError::Unknown(Tag(*b"MADE"), 2)));
    let mut other = state.clone();
    other[48] = b'm';
    assert_eq!(chip.restore(&other), Err(StateError::Missing(Tag(*b"MADE"))));
    let mut layout = state.clone();
    layout[8] = 2;
    assert_eq!(chip.restore(&layout), Err(StateError::Layout(2)));
    assert!(chip.save() == state);
}

#[test]
fn what_is_cut_or_of_another_is_refused() {
    let (chip, state) = e1000();
    for len in (0..state.len()).step_by(11) {
        assert!(chip.restore(&state[..len]).is_err());
        let mut cut = state[..len].to_vec();
        if len >= 16 {
            cut[12..16].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
            assert!(chip.restore(&cut).is_err(), "{len} bytes");
        }
    }
    assert!(chip.restore(&[&state[..], &[0]].concat()).is_err());
    let other: R8169 = WORLD.with_borrow(|world| make(world, 0, &Arc::default()));
    assert_eq!(other.restore(&state), Err(StateError::Model));
    let made = Made { mac: Mac::new([2, 0, 0, 0, 0, 1]), csb: true, variant: 0 };
    assert_eq!(Made::read(&state, "e1000"), Ok(made));
    assert_eq!(Made::read(&state, "r8169"), Err(StateError::Model));
    let config = Config { mac: made.mac, irq_rate_max: 0, csb: false };
    let plain =
        WORLD.with_borrow(|world| E1000::new(config, world.pages(), Arc::<Clock>::default()));
    assert_eq!(plain.restore(&state), Err(StateError::Unfit(Tag(*b"MADE"))));
    assert_eq!(parts_of(&state).len(), 11);
}

/// TDT, in a page that the guest has mapped: it stores there whether or not there is a chip.
#[test]
fn what_a_guest_stores_meanwhile_stays() {
    const TDT: u32 = 0x3818;
    const TDLEN: u32 = 0x3808;
    let config = Config { mac: Mac::new([2, 0, 0, 0, 0, 1]), irq_rate_max: 0, csb: true };
    let host = Arc::new(Clock::default());
    let pages = || WORLD.with_borrow(|world| world.pages());
    let read = |chip: &E1000, at: u32| {
        let mut bytes = [0; 4];
        chip.read(Space::Bar(0), at.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    };
    let chip = E1000::new(config, pages(), host.clone());
    for (at, value) in [(TDLEN, 0x200u32), (TDT, 5)] {
        chip.write(Space::Bar(0), at.into(), &value.to_le_bytes());
    }
    let state = chip.save();
    drop(chip);
    let stored = |value| pages().set_u32((TDT - 0x2000) as usize, value, Ordering::Relaxed);
    stored(9);
    let successor = E1000::over(config, pages(), host.clone());
    stored(11);
    assert_eq!(successor.restore(&state), Ok(()));
    assert_eq!((read(&successor, TDT), read(&successor, TDLEN)), (11, 0x200));
    successor.reset();
    assert_eq!((read(&successor, TDT), read(&successor, TDLEN)), (0, 0));
    // As it was before, without the pages: those are the state's.
    stored(9);
    assert_eq!(E1000::new(config, pages(), host.clone()).restore(&state), Ok(()));
    assert_eq!(pages().u32((TDT - 0x2000) as usize, Ordering::Relaxed), 5);
    // One that cannot go on is reset, pages and all.
    let other = E1000::over(config, pages(), host);
    assert!(other.restore(&state[..100]).is_err());
    other.reset();
    assert_eq!(read(&other, TDLEN), 0);
}

/// Inputs of `chip_state`: recorded states as they are, and states with changes.
fn seeds() -> Vec<Vec<u8>> {
    let kinds = [
        (0, 0, "e1000"),
        (1, 0, "r8169"),
        (2, 0, "rtl8139-plus"),
        (2, 0x10, "rtl8139-classic"),
        (3, 0, "vmxnet3"),
    ];
    let before = [0x6f, 0x12, 0x28, 0xb1];
    let after = [0x0f, 0x28, 0x6f, 0x11, 0xb3, 0xd2];
    let counted = |bytes: &[u8], each: usize| {
        [&[u8::try_from(bytes.len() / each).unwrap()][..], bytes].concat()
    };
    kinds
        .into_iter()
        .flat_map(|(chip, byte, kind)| {
            let head = [&[chip, byte][..], &counted(&before, 1)].concat();
            let raw = [&head[..], &[0], &golden::states(kind)[0], &after].concat();
            let changes = [0x40u16, 0x320, 0x7a0, 0x8b0].map(|at| {
                let [low, high] = at.to_le_bytes();
                [&head[..], &counted(&[low, high, 3], 3), &after].concat()
            });
            std::iter::once(raw).chain(changes)
        })
        .collect()
}

#[test]
fn seeds_and_kept_states() {
    let taken = seeds().iter().filter(|seed| chip_state(seed)).count();
    assert!(taken >= 5, "{taken} of the seeds are taken");
    let kept = replay::kept_inputs("chip_state");
    assert!(kept.len() >= seeds().len(), "the seeds are gone from the corpus");
    kept.iter().for_each(|input| _ = chip_state(input));
}

#[test]
#[ignore = "writes into fuzz/corpus"]
fn write_seeds() {
    replay::write_seeds("chip_state", &seeds());
}
