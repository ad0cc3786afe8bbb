//! Every register: value after power-on, bits that can be written, how it is accessed. From the
//! RTL8169 datasheet as far as it is remembered (7.x: sections of its chapter "Register
//! Descriptions" are not cited, for want of the paper), and from what Linux's `r8169` and FreeBSD's
//! `re` rely on; apart from the table in `regs.rs`.

use proptest::prelude::*;

use super::guest::*;

/// How a register is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// These bits keep what is written, the others stay.
    Rw(u32),
    /// As `Rw`, but only while 9346CR says so.
    Locked(u32),
    /// Read only, or what is written does something else that is tested elsewhere.
    Ro,
    /// Has a test of its own, named here.
    Own(&'static str),
}
use Mode::*;

const ALL: u32 = u32::MAX;

/// Name, place, bytes, value after power-on, mode.
type Line = (&'static str, u64, usize, u32, Mode);

#[rustfmt::skip]
const REGISTERS: &[Line] = &[
    // From the EEPROM.
    ("IDR0", 0x00, 4, 0x0100_5452, Locked(ALL)),
    ("IDR4", 0x04, 2, 0x0302, Locked(0xffff)),
    ("MAR0", 0x08, 4, 0, Rw(ALL)),
    ("MAR4", 0x0c, 4, 0, Rw(ALL)),
    // The command (3) clears itself; 64-byte aligned.
    ("DTCCR", 0x10, 4, 0, Rw(0xffff_ffc0)),
    ("DTCCR", 0x14, 4, 0, Rw(ALL)),
    // 256-byte aligned.
    ("TNPDS", 0x20, 4, 0, Rw(0xffff_ff00)),
    ("TNPDS", 0x24, 4, 0, Rw(ALL)),
    ("THPDS", 0x28, 4, 0, Rw(0xffff_ff00)),
    ("THPDS", 0x2c, 4, 0, Rw(ALL)),
    ("FLASH", 0x30, 4, 0, Ro),
    ("ERBCR", 0x34, 2, 0, Ro),
    ("ERSR", 0x36, 1, 0, Ro),
    ("CR", 0x37, 1, 0, Own("commands")),
    ("TPPoll", 0x38, 1, 0, Ro),
    // Bits 9 to 13 do not exist.
    ("IMR", 0x3c, 2, 0, Rw(0xc1ff)),
    ("ISR", 0x3e, 2, 0, Own("interrupts")),
    // HWVERID (30:26, 23): RTL8169SB. IFG1:0 (25:24), IFG2 (19), LBK (18:17), CRC (16), MXDMA
    // (10:8).
    ("TCR", 0x40, 4, 0x1300_0000, Own("versions")),
    // MulERINT (24), RER8 (16), RXFTH (15:13), MXDMA (10:8), AER to AAP (5:0). 9356SEL (6) is 0: a
    // 93C46.
    ("RCR", 0x44, 4, 0, Rw(0x0101_e73f)),
    ("TCTR", 0x48, 4, 0, Own("timer")),
    ("MPC", 0x4c, 4, 0, Ro),
    ("9346CR", 0x50, 1, 0, Own("eeprom")),
    ("CONFIG0", 0x51, 1, 0, Ro),
    // MEMMAP (3) and IOMAP (2) stay set.
    ("CONFIG1", 0x52, 1, 0x0d, Locked(0xf1)),
    // MSIEnable (5): Linux clears it.
    ("CONFIG2", 0x53, 1, 0, Locked(0x20)),
    ("CONFIG3", 0x54, 1, 0, Locked(0x30)),
    ("CONFIG4", 0x55, 1, 0, Locked(0x14)),
    ("CONFIG5", 0x56, 1, 0, Locked(0x73)),
    ("TimerInt", 0x58, 4, 0, Rw(ALL)),
    ("MULINT", 0x5c, 2, 0, Rw(0x0fff)),
    ("PHYAR", 0x60, 4, 0, Own("phy")),
    ("TBICSR", 0x64, 4, 0, Ro),
    ("TBI_ANAR", 0x68, 2, 0, Ro),
    ("TBI_LPAR", 0x6a, 2, 0, Ro),
    // 1000 (4), link (1), full duplex (0).
    ("PHYStatus", 0x6c, 1, 0x13, Ro),
    ("82h", 0x82, 1, 0, Rw(0xff)),
    ("Wakeup0", 0x84, 4, 0, Rw(ALL)),
    ("Wakeup0", 0x88, 4, 0, Rw(ALL)),
    ("Wakeup1", 0x8c, 4, 0, Rw(ALL)),
    ("Wakeup4", 0xc0, 4, 0, Rw(ALL)),
    ("CRC0", 0xc4, 2, 0, Rw(0xffff)),
    ("CRC4", 0xcc, 2, 0, Rw(0xffff)),
    ("RMS", 0xda, 2, 0, Rw(0xffff)),
    ("C+CR", 0xe0, 2, 0, Rw(0x6c7b)),
    ("IntrMitigate", 0xe2, 2, 0, Rw(0xffff)),
    ("RDSAR", 0xe4, 4, 0, Rw(0xffff_ff00)),
    ("RDSAR", 0xe8, 4, 0, Rw(ALL)),
    ("MTPS", 0xec, 1, 0, Rw(0x3f)),
    // CardBus.
    ("FER", 0xf0, 4, 0, Ro),
    ("FEMR", 0xf4, 4, 0, Ro),
    ("FPSR", 0xf8, 4, 0, Ro),
    ("FFER", 0xfc, 4, 0, Ro),
];

fn patterns() -> impl Iterator<Item = u32> {
    [0x5a5a_5a5a, 0xa5a5_a5a5, 0, ALL].into_iter().chain((0..32).map(|bit| 1 << bit))
}

fn put(guest: &Guest, line: &Line, value: u32) {
    guest.write_bar(line.1, &value.to_le_bytes()[..line.2]);
}

#[test]
fn values_after_power_on() {
    let guest = Guest::cold(0, false);
    for (name, at, len, reset, _) in REGISTERS {
        assert_eq!(guest.get(*at, *len), *reset, "{name} at {at:#x}");
    }
}

#[test]
fn access_modes() {
    for unlocked in [false, true] {
        let guest = Guest::cold(0, false);
        guest.set8(CR9346, if unlocked { 0xc0 } else { 0 });
        for line in REGISTERS {
            let (name, at, len, reset, mode) = *line;
            let mask = match mode {
                Rw(mask) => mask,
                Locked(mask) if unlocked => mask,
                Locked(_) | Ro => 0,
                Own(_) => continue,
            };
            for written in patterns() {
                put(&guest, line, written);
                let want = reset & !mask | written & mask;
                assert_eq!(guest.get(at, len), want, "{name} at {at:#x}: {written:#x}");
            }
        }
    }
}

#[test]
fn every_access_is_counted_by_name_and_once() {
    let guest = Guest::cold(0, false);
    for (name, at, len, ..) in REGISTERS {
        let before = guest.touched(name);
        guest.get(*at, *len);
        guest.get(*at + *len as u64 - 1, 1);
        guest.write_bar(*at, &[0; 4][..*len]);
        let after = guest.touched(name);
        assert_eq!((after.0 - before.0, after.1 - before.1), (2, 1), "{name}");
    }
    // All of the window at once: each register once, those of two halves twice.
    let before: u64 = guest.chip.device().registers.iter().map(|a| a.reads).sum();
    guest.chip.read(Space::Bar(0), 0, &mut [0; 256]);
    let after: u64 = guest.chip.device().registers.iter().map(|a| a.reads).sum();
    assert_eq!(after - before, super::super::regs::TABLE.len() as u64 + 4);
}

#[test]
fn what_is_between_registers_is_nothing() {
    let guest = Guest::cold(0, false);
    for at in [0x06, 0x07, 0x18, 0x39, 0x3b, 0x57, 0x5e, 0x6d, 0x7c, 0x83, 0xce, 0xd9, 0xdc, 0xed] {
        guest.set8(at, 0xff);
        assert_eq!(guest.get(at, 1), 0, "{at:#x}");
    }
    assert_eq!(guest.chip.device().registers, []);
    assert_eq!(guest.get(0x100, 4), ALL, "nothing answers");
}

/// Which of Linux's versions it is: RTL_GIGA_MAC_VER_04, by the bits that its table compares (FC8h
/// of TCR >> 20).
#[test]
fn versions() {
    let guest = Guest::cold(0, false);
    for written in patterns() {
        guest.set32(TCR, written);
        let tcr = guest.get(TCR, 4);
        assert_eq!(tcr >> 20 & 0xfc8, 0x100);
        assert_eq!(tcr & !0x7c80_0000, written & 0x030f_0700);
    }
}

#[test]
fn both_windows_are_the_same_registers() {
    let guest = Guest::cold(0, false);
    guest.chip.write(Space::Bar(0), MAR0, &[1, 2, 3, 4]);
    assert_eq!(guest.get(MAR0, 4), 0x0403_0201);
}

#[derive(Clone, Debug)]
enum Access {
    Read(u8, u64, usize),
    Write(u8, u64, Vec<u8>),
    Link(bool),
    Timer(u64),
    Reset,
}

fn access() -> impl Strategy<Value = Access> {
    let offset = prop_oneof![
        8 => 0u64..0x100,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0xff, 0x100, 0xffff_ffff, u64::MAX, 63, 255]),
    ];
    let size = prop_oneof![Just(4usize), 0usize..300];
    let bytes = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        6 => (0u8..3, offset.clone(), size).prop_map(|(b, o, s)| Access::Read(b, o, s)),
        9 => (0u8..3, offset, bytes).prop_map(|(b, o, d)| Access::Write(b, o, d)),
        1 => any::<bool>().prop_map(Access::Link),
        1 => (0u64..1 << 40).prop_map(Access::Timer),
        1 => Just(Access::Reset),
    ]
}

fn space(n: u8) -> Space {
    if n < 2 { Space::Bar(n) } else { Space::Config }
}

proptest! {
    #[test]
    fn no_access_panics(steps in prop::collection::vec(access(), 1..100), csb in any::<bool>()) {
        let mut guest = Guest::cold(0, csb);
        for step in steps {
            match step {
                Access::Read(to, offset, len) => {
                    guest.chip.read(space(to), offset, &mut vec![0; len]);
                }
                Access::Write(to, offset, data) => guest.chip.write(space(to), offset, &data),
                Access::Link(up) => guest.chip.set_link(up),
                Access::Timer(ns) => guest.sleep(ns),
                Access::Reset => guest.chip.reset(),
            }
            guest.pull();
            guest.arrive_plain(&[&frame(MAC, 60)]);
        }
        // Whatever was done to it, a reset makes it what it was, but for what is in the EEPROM.
        guest.chip.renew();
        guest.chip.set_link(true);
        let fresh = Guest::cold(0, csb);
        let all = |guest: &Guest| {
            let mut data = [0; 256];
            guest.chip.read(Space::Bar(0), 0, &mut data);
            // ISR says that the cable is back, and TCTR counts.
            data[0x3e..0x40].fill(0);
            data[0x48..0x4c].fill(0);
            data
        };
        prop_assert_eq!(all(&guest), all(&fresh));
        guest.start();
        guest.send(0, &frame([2; 6], 100));
        prop_assert_eq!(guest.pull().len(), 1);
        prop_assert_eq!(guest.arrive_plain(&[&frame(MAC, 100)]), 1);
        prop_assert_eq!(guest.take().unwrap().0, frame(MAC, 100));
    }
}
