//! The EEPROM, through EECD bit by bit and through EERD.

use super::super::super::eeprom::{Eeprom, eecd};
use super::super::super::model::EEPROM;
use super::*;
use crate::chip::microwire::WORDS;

/// A driver of the Microwire bus.
struct Wire<'a>(&'a Bench);

impl Wire<'_> {
    fn set(&self, bits: u32) {
        self.0.write(EECD, eecd::REQ | bits);
    }

    fn select(&self) {
        self.set(0);
        self.set(eecd::CS);
    }

    fn clock(&self, di: bool) -> bool {
        let di = if di { eecd::DI } else { 0 };
        self.set(eecd::CS | di);
        self.set(eecd::CS | di | eecd::SK);
        let out = self.0.read(EECD) & eecd::DO != 0;
        self.set(eecd::CS | di);
        out
    }

    fn send(&self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            self.clock(value >> bit & 1 != 0);
        }
    }

    fn receive(&self) -> u16 {
        (0..16).fold(0, |word, _| word << 1 | u16::from(self.clock(false)))
    }

    fn read(&self, address: u32) -> u16 {
        self.select();
        self.send(0b110, 3);
        self.send(address, 6);
        let word = self.receive();
        self.set(0);
        word
    }

    fn command(&self, opcode: u32, address: u32, data: Option<u32>) {
        self.select();
        self.send(opcode, 3);
        self.send(address, 6);
        if let Some(data) = data {
            self.send(data, 16);
        }
        self.set(0);
        self.set(eecd::CS);
        assert_ne!(self.0.read(EECD) & eecd::DO, 0, "ready");
        self.set(0);
    }
}

fn eerd(bench: &Bench, address: u32) -> u16 {
    bench.write(EERD, address << 8 | 1);
    let value = bench.read(EERD);
    assert_ne!(value & 1 << 4, 0, "done");
    (value >> 16) as u16
}

#[test]
fn the_checksum_is_right_for_any_address() {
    for mac in [[0; 6], MAC, [0xff; 6], [1, 2, 3, 4, 5, 6]] {
        let eeprom = Eeprom::new(&EEPROM, Mac::new(mac));
        let sum = (0..WORDS).fold(0u16, |sum, at| {
            sum.wrapping_add((eeprom.read_word(u32::try_from(at).unwrap() << 8 | 1) >> 16) as u16)
        });
        assert_eq!(sum, 0xbaba);
    }
}

#[test]
fn both_ways_read_the_same_words() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    for address in 0..64 {
        assert_eq!(wire.read(address), eerd(&bench, address), "word {address:#x}");
    }
    let mac: Vec<u8> = (0..3).flat_map(|at| wire.read(at).to_le_bytes()).collect();
    assert_eq!(mac, MAC);
}

#[test]
fn a_read_goes_on_to_the_next_word() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    wire.select();
    wire.send(0b110, 3);
    wire.send(63, 6);
    let words = [wire.receive(), wire.receive(), wire.receive()];
    assert_eq!(words, [eerd(&bench, 63), eerd(&bench, 0), eerd(&bench, 1)]);
}

#[test]
fn the_bus_is_granted_when_asked_for_and_the_eeprom_is_there() {
    let bench = Bench::new();
    assert_eq!(bench.read(EECD), eecd::PRES);
    bench.write(EECD, eecd::REQ);
    assert_eq!(bench.read(EECD), eecd::PRES | eecd::REQ | eecd::GNT);
    bench.write(EECD, 0);
    assert_eq!(bench.read(EECD) & eecd::GNT, 0);
}

#[test]
fn writes_need_to_be_enabled_and_outlive_resets() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    wire.command(0b101, 0x20, Some(0x1234));
    assert_eq!(wire.read(0x20), 0, "not enabled");
    wire.command(0b100, 0x30, None); // EWEN
    wire.command(0b101, 0x20, Some(0x1234));
    wire.command(0b111, 0x21, None); // ERASE
    wire.command(0b100, 0x00, None); // EWDS
    wire.command(0b101, 0x22, Some(0x1234));
    assert_eq!([wire.read(0x20), wire.read(0x21), wire.read(0x22)], [0x1234, 0xffff, 0]);
    bench.chip.reset();
    assert_eq!(wire.read(0x20), 0x1234);
}

#[test]
fn a_write_that_is_cut_short_stores_nothing() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    wire.command(0b100, 0x30, None);
    wire.select();
    wire.send(0b101, 3);
    wire.send(0x20, 6);
    wire.send(0x7f, 15);
    wire.set(0);
    assert_eq!(wire.read(0x20), 0);
}

#[test]
fn whole_chip_commands() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    wire.command(0b100, 0x30, None);
    wire.command(0b100, 0x10, Some(0xa5a5)); // WRAL
    assert_eq!([wire.read(0), wire.read(63)], [0xa5a5; 2]);
    wire.command(0b100, 0x20, None); // ERAL
    assert_eq!([wire.read(0), wire.read(63)], [0xffff; 2]);
}

#[test]
fn reset_loads_the_address() {
    let bench = Bench::new();
    let address = || (bench.read(RA), bench.read(RA + 4));
    let expected = (0x1200_5452, 0x8000_5634);
    assert_eq!(address(), expected);
    for reset in [bit::CTRL_RST, 0] {
        bench.write(RA, 0x1111_1111);
        bench.write(RA + 4, 0x2222);
        if reset != 0 {
            bench.write(CTRL, reset);
        } else {
            bench.write(CTRL_EXT, 1 << 13); // EE_RST
            assert_eq!(bench.read(CTRL_EXT), 0, "clears itself");
        }
        assert_eq!(address(), expected);
    }
}

#[test]
fn the_next_machine_finds_it_as_it_left_the_factory() {
    let bench = Bench::new();
    let wire = Wire(&bench);
    wire.command(0b100, 0x30, None); // EWEN
    wire.command(0b101, 0, Some(0xdead));
    bench.chip.reset();
    assert_eq!(wire.read(0), 0xdead);
    bench.chip.renew();
    let sum = (0..64).fold(0u16, |sum, at| sum.wrapping_add(eerd(&bench, at)));
    assert_eq!(sum, 0xbaba);
    assert_eq!(wire.read(0), u16::from_le_bytes([MAC[0], MAC[1]]));
    wire.command(0b101, 0, Some(0xdead));
    assert_ne!(wire.read(0), 0xdead, "writable without EWEN");
}

/// U-Boot's way to the EEPROM: the semaphore of the 82571 and later (SWSM bit 1) guards SW_FW_SYNC,
/// which says that software uses the EEPROM. Each bit counts once it reads back as set.
#[test]
fn semaphores_of_later_chips_can_be_taken_and_given_back() {
    const SWESMBI: u32 = 2;
    const EEPROM: u32 = 1;
    let bench = Bench::new();
    let take = || {
        bench.write(SWSM, bench.read(SWSM) | SWESMBI);
        assert_eq!(bench.read(SWSM) & SWESMBI, SWESMBI, "the semaphore is ours");
    };
    let give = || bench.write(SWSM, bench.read(SWSM) & !SWESMBI);
    for _ in 0..2 {
        take();
        let busy = bench.read(SW_FW_SYNC);
        assert_eq!(busy & (EEPROM | EEPROM << 16), 0, "nobody uses the EEPROM");
        bench.write(SW_FW_SYNC, busy | EEPROM);
        give();
        assert_eq!(Wire(&bench).read(0), u16::from_le_bytes([MAC[0], MAC[1]]));
        take();
        assert_eq!(bench.read(SW_FW_SYNC), EEPROM);
        bench.write(SW_FW_SYNC, bench.read(SW_FW_SYNC) & !EEPROM);
        give();
        assert_eq!((bench.read(SWSM), bench.read(SW_FW_SYNC)), (0, 0));
    }
    // A driver that left them taken does not keep the next one out.
    take();
    bench.write(SW_FW_SYNC, EEPROM);
    bench.write(CTRL, bit::CTRL_RST);
    assert_eq!((bench.read(SWSM), bench.read(SW_FW_SYNC)), (0, 0));
}
