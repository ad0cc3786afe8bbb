//! States that earlier builds have recorded (`tests/states/MODEL-N.state`, N ascending): each must
//! be adopted by every later one, and the newest must come out again as it went in. So must what
//! they have left that were killed (`MODEL-N.held`).
//!
//! A change of the format adds a file, written by `write_golden` before it, and leaves the others.

use std::path::PathBuf;

use super::*;
use crate::chip::held::HELD;
use crate::chip::state::{Made, parts_of};
use crate::e1000::E1000;
use crate::e1000e::E1000e;
use crate::r8169::R8169;
use crate::rtl8139::Rtl8139;
use crate::vmxnet3::Vmxnet3;

/// Frames sent, some of them held; frames received; time passes; the EEPROM's bus is driven.
const STEPS: [u8; 12] = [0x6f, 0x12, 0x28, 0xb3, 0xf6, 0xf7, 0x6f, 0x13, 0x22, 0xb1, 0x94, 0x08];

/// What the chip has come to after that; `then` goes on with it. `held`: it outlives its process.
fn recorded<C: Fuzzed, T>(byte: u8, held: bool, then: impl FnOnce(&mut Run<'_, C>) -> T) -> T {
    WORLD.with_borrow_mut(|world| {
        world.load(&[]);
        let mut run = start::<C>(world, byte | 1, &STEPS);
        if held {
            run.hold();
        }
        run.chip.set_link(true);
        fill(&run.world.guest, FRAME.into(), &[0xff; 60]);
        for i in 0..RING {
            C::put_part(&run, i, Part { at: FRAME, len: 60, first: true, last: true });
            C::put_buffer(&run, i, BUFFER, 2048);
        }
        C::set_up(&mut run, byte);
        run.chip.note();
        while !run.steps.is_empty() {
            run.step();
            run.chip.note();
        }
        then(&mut run)
    })
}

fn place() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/states"].iter().collect()
}

/// The recorded states of a kind, oldest first.
pub fn states(kind: &str) -> Vec<Vec<u8>> {
    let named = |n: u32| place().join(format!("{kind}-{n}.state"));
    (1..).map_while(|n| std::fs::read(named(n)).ok()).collect()
}

/// All but who wrote it.
fn without_build(state: &[u8]) -> (&[u8], &[u8]) {
    (&state[..32], &state[48..])
}

fn is_adopted<C: Fuzzed>(kind: &str, byte: u8) {
    let states = states(kind);
    assert!(!states.is_empty(), "{kind}'s states are gone");
    for (n, state) in (1..).zip(&states) {
        recorded::<C, _>(byte, false, |run| {
            let model = run.chip.layout().model;
            let made = Made::read(state, model).unwrap();
            assert_eq!(made.mac, Mac::new([2, 0, 0, 0, 0, 1]));
            let successor: C = make(run.world, byte, &run.host);
            drop(successor.set_map(run.map()));
            assert_eq!(successor.restore(state), Ok(()), "{kind}-{n}");
            if n == states.len() {
                let again = successor.save();
                for (was, is) in parts_of(state).iter().zip(parts_of(&again)) {
                    assert_eq!(*was, is, "{kind}-{n} has changed");
                }
                assert!(without_build(&again) == without_build(state), "{kind}-{n} has changed");
            }
            goes_on(run, successor, &format!("{kind}-{n}"));
        });
    }
}

/// What was held is sent, more is received. The steps leave the e1000e with another kind of receive
/// descriptors than these.
fn goes_on<C: Fuzzed>(run: &mut Run<'_, C>, successor: C, state: &str) {
    run.chip = successor;
    let before = run.frames();
    run.pull(200, 0);
    run.push(2, 46);
    let after = run.frames();
    let receives = after.1 > before.1 || state.starts_with("e1000e");
    assert!(after.0 > before.0 && receives, "{state}: {before:?} {after:?}");
}

/// What was left by those that were killed, oldest first: a line for each 32 bytes that are not all
/// zeros, with their place in front.
fn remains(kind: &str) -> Vec<Vec<u8>> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let bytes = |text: String| {
        let mut bytes = vec![0; HELD];
        for line in text.lines() {
            let (at, row) = line.split_once(' ').unwrap();
            for n in 0..row.len() / 2 {
                bytes[hex(at) as usize + n] = hex(&row[2 * n..2 * n + 2]) as u8;
            }
        }
        bytes
    };
    let named = |n: u32| place().join(format!("{kind}-{n}.held"));
    (1..).map_while(|n| std::fs::read_to_string(named(n)).ok().map(bytes)).collect()
}

/// All but who wrote its two slots.
fn without_builds(mut left: Vec<u8>) -> Vec<u8> {
    for slot in [0x2000, 0x3000] {
        left[slot + 32..slot + 48].fill(0);
    }
    left
}

fn is_revived<C: Fuzzed>(kind: &str, byte: u8) {
    let all = remains(kind);
    assert!(!all.is_empty(), "what {kind} has left is gone");
    for (n, left) in (1..).zip(&all) {
        recorded::<C, _>(byte, true, |run| {
            if n == all.len() {
                let now = without_builds(run.world.remains());
                assert!(now == without_builds(left.clone()), "{kind}-{n} has changed");
            }
            let successor: C = make(run.world, byte, &run.host);
            drop(successor.set_map(run.map()));
            assert_eq!(successor.revive(left, false), Ok(()), "{kind}-{n}");
            let (was, is) = (run.chip.save(), successor.save());
            let same = [b"PCI ", b"EEPR", b"PHY ", b"REGS"];
            let both = parts_of(&was).into_iter().zip(parts_of(&is));
            for (was, is) in both.filter(|(part, _)| same.contains(&&part.0.0)) {
                assert_eq!(was, is, "{kind}-{n}");
            }
            goes_on(run, successor, &format!("{kind}-{n}"));
        });
    }
}

/// Which chips: the byte of configuration makes the rtl8139 a classic one, or an 8139C.
macro_rules! each {
    ($what:ident) => {{
        $what::<E1000>("e1000", 0);
        $what::<E1000e>("e1000e", 0);
        $what::<R8169>("r8169", 0);
        $what::<Rtl8139>("rtl8139-plus", 0);
        $what::<Rtl8139>("rtl8139-classic", 0x10);
        $what::<Rtl8139>("rtl8139c", 0x30);
    }};
}

#[test]
fn recorded_states_are_adopted() {
    each!(is_adopted);
    is_adopted::<Vmxnet3>("vmxnet3", 0);
}

#[test]
fn what_was_left_is_adopted() {
    each!(is_revived);
}

fn write<C: Fuzzed>(kind: &str, byte: u8) {
    let state = recorded::<C, _>(byte, false, |run| run.chip.save());
    let named = place().join(format!("{kind}-{}.state", states(kind).len() + 1));
    std::fs::write(named, state).unwrap();
}

fn write_left<C: Fuzzed>(kind: &str, byte: u8) {
    let left = recorded::<C, _>(byte, true, |run| run.world.remains());
    let rows = left.chunks(32).zip((0..).step_by(32)).filter(|(row, _)| row.iter().any(|b| *b > 0));
    let hex = |row: &[u8]| row.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text: String = rows.map(|(row, at)| format!("{at:04x} {}\n", hex(row))).collect();
    let named = place().join(format!("{kind}-{}.held", remains(kind).len() + 1));
    std::fs::write(named, text).unwrap();
}

#[test]
#[ignore = "writes into tests/states"]
fn write_golden() {
    each!(write);
    write::<Vmxnet3>("vmxnet3", 0);
}

#[test]
#[ignore = "writes into tests/states"]
fn write_golden_left() {
    each!(write_left);
}

/// Where things are in the first of them: whatever is read later must be found there.
#[test]
fn fields_stay_where_they_are() {
    let parts = |kind| {
        let states = states(kind);
        let of = parts_of(&states[0]);
        of.iter().map(|(tag, version, bytes)| format!("{tag} {version} {}", bytes.len())).collect()
    };
    let all: Vec<Vec<String>> =
        ["e1000", "e1000e", "r8169", "rtl8139-plus", "rtl8139-classic", "vmxnet3"]
            .into_iter()
            .map(parts)
            .collect();
    assert_eq!(all, WANTED);
    let state = &states("e1000")[0];
    assert_eq!(&state[..12], b"vmlanNIC\x01\0\0\0");
    assert_eq!(&state[16..32], b"e1000\0\0\0\0\0\0\0\0\0\0\0");
    // MADE: the address, a CSB, no variants. PCI: vendor and device.
    assert_eq!(&state[60..68], [2, 0, 0, 0, 0, 1, 1, 0]);
    assert_eq!(&state[80..84], [0x86, 0x80, 0x0e, 0x10]);
}

/// Tag, version and bytes of each part.
#[rustfmt::skip]
const WANTED: [[&str; 11]; 6] = [
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 147", "PHY  1 66", "REGS 1 1120", "STAT 1 776",
        "IRQ  1 63", "TX   1 885", "RX   1 44", "WAIT 1 2", "CSB  1 11",
    ],
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 147", "PHY  1 66", "REGS 1 1160", "STAT 1 824",
        "IRQ  1 114", "TX   1 968", "RX   1 84", "WAIT 1 2", "CSB  1 11",
    ],
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 144", "PHY  1 518", "REGS 1 230", "STAT 1 776",
        "IRQ  1 63", "TX   1 381", "RX   1 54", "WAIT 1 2", "CSB  1 11",
    ],
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 144", "PHY  1 6", "REGS 1 187", "STAT 1 776",
        "IRQ  1 63", "TX   1 400", "RX   1 64", "WAIT 1 2", "CSB  1 11",
    ],
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 144", "PHY  1 6", "REGS 1 222", "STAT 1 776",
        "IRQ  1 63", "TX   1 157", "RX   1 64", "WAIT 1 2", "CSB  1 11",
    ],
    [
        "MADE 1 8", "PCI  1 256", "EEPR 1 0", "PHY  1 2944", "REGS 1 3484", "STAT 1 776",
        "IRQ  1 270", "TX   1 619", "RX   1 664", "WAIT 1 2", "CSB  1 11",
    ],
];
