//! Registers with a will of their own: command, transmit configuration, EEPROM, PHY, link; accesses
//! of all sizes; configuration space.

use vmlan_frame::Mac;

use super::guest::*;
use crate::chip::{Config, Nic, PciFunction, Space};

#[test]
fn command() {
    let guest = Guest::bare(false, Guest::config());
    assert_eq!(guest.get8(CR), BUFE);
    guest.set8(CR, !RST);
    assert_eq!(guest.get8(CR), BUFE | RE | TE, "reserved bits, and BUFE, stay as they are");
    guest.set8(CR, 0xff);
    assert_eq!(guest.get8(CR), BUFE, "RST clears itself, and everything");
    // With ERBCR, ERSR in one doubleword.
    guest.set32(0x34, u32::from(RE) << 24);
    assert_eq!(guest.get32(0x34), u32::from(RE | BUFE) << 24);
}

#[test]
fn transmit_configuration() {
    let guest = Guest::bare(false, Guest::config());
    guest.set32(TCR, u32::MAX);
    // CLRABT clears itself.
    assert_eq!(guest.get32(TCR), 0x7780_0000 | 0x030f_07f0);
    guest.set32(TCR, 0);
    assert_eq!(guest.get32(TCR), 0x7480_0000, "the version stays");
    guest.set8(TCR + 1, 7);
    assert_eq!(guest.get32(TCR), 0x7480_0700);
}

/// Each register that an access touches is touched once; between registers, and behind the last,
/// nothing happens.
#[test]
fn accesses_of_all_sizes_at_all_offsets() {
    for plus in [false, true] {
        let guest = Guest::bare(!plus, Guest::config());
        for offset in 0..0x108u64 {
            for len in (0..=17usize).chain([64, 256, 300]) {
                let mut data = vec![0xee; len];
                for space in [Space::Bar(0), Space::Bar(1), Space::Bar(5), Space::Config] {
                    guest.chip.read(space, offset, &mut data);
                    guest.chip.write(space, offset, &data);
                    guest.chip.write(space, offset, &vec![0xff; len]);
                    guest.chip.write(space, offset, &vec![0; len]);
                }
            }
        }
        for offset in [u64::MAX, u64::MAX - 3, 1 << 32, 0x100, 0x1000] {
            let mut data = [0; 8];
            guest.chip.read(Space::Bar(0), offset, &mut data);
            guest.chip.read(Space::Config, offset, &mut data);
            guest.chip.write(Space::Bar(1), offset, &[0xff; 8]);
            guest.chip.write(Space::Config, offset, &[0xff; 8]);
        }
    }
    let guest = Guest::classic();
    let before = [guest.count("IMR"), guest.count("ISR"), guest.count("CAPR")];
    guest.get32(IMR);
    let mut data = [0; 7];
    guest.chip.read(Space::Bar(0), CAPR + 1, &mut data);
    let after = [guest.count("IMR"), guest.count("ISR"), guest.count("CAPR")];
    let reads = |n: usize| after[n].0 - before[n].0;
    assert_eq!([reads(0), reads(1), reads(2)], [2, 2, 1]);
}

/// TSD is one register, whatever is written of it: a frame is posted with OWN's byte.
#[test]
fn parts_of_a_transmit_status() {
    let mut guest = Guest::classic();
    guest.set32(TSAD, TX_BUFFERS as u32);
    guest.set8(TSD, 60);
    assert_eq!((guest.tsd(0), guest.pull().len()), (T_OWN | 60, 0));
    guest.set8(TSD + 1, 0);
    assert_eq!((guest.pull().len(), guest.tsd(0)), (1, T_OWN | T_TOK | 60));
    // Two at once, in one access of 8 bytes.
    guest.set(TSD + 4, &[60, 0, 0, 0, 61, 0, 0, 0]);
    assert_eq!(guest.pull().len(), 2);
}

/// The EEPROM as drivers read it: signature, then the address in words 7 to 9.
#[test]
fn eeprom() {
    let guest = Guest::classic();
    let word = |address: u16| {
        guest.set8(EECR, 0x80);
        guest.set8(EECR, 0x88);
        let command = 6 << 6 | address;
        for bit in (0..9).rev() {
            let di = if command >> bit & 1 != 0 { 2 } else { 0 };
            guest.set8(EECR, 0x88 | di);
            guest.set8(EECR, 0x8c | di);
        }
        let mut value = 0u16;
        for _ in 0..16 {
            guest.set8(EECR, 0x88);
            guest.set8(EECR, 0x8c);
            value = value << 1 | u16::from(guest.get8(EECR) & 1);
        }
        guest.set8(EECR, 0);
        value
    };
    assert_eq!(word(0), 0x8129);
    assert_eq!([word(7), word(8), word(9)], [0x5452, 0x0100, 0x0302]);
    // Loaded again: the address is the EEPROM's.
    guest.set32(IDR, 0);
    guest.set8(EECR, 0x40);
    assert_eq!((guest.get32(IDR), guest.get8(EECR) & 0xc0), (0x0100_5452, 0));
}

/// A new machine gets the EEPROM as it left the factory.
#[test]
fn renewed() {
    let guest = Guest::classic();
    guest.set32(IDR, 0);
    guest.chip.renew();
    assert_eq!((guest.get32(IDR), guest.get8(CR)), (0x0100_5452, BUFE));
}

#[test]
fn config1_is_locked_and_keeps_its_maps() {
    let guest = Guest::classic();
    guest.set8(0x52, 0);
    assert_eq!(guest.get8(0x52), 0x8d);
    guest.set8(EECR, 0xc0);
    guest.set8(0x52, 0);
    assert_eq!(guest.get8(0x52), 0x0c);
    guest.set8(0x52, 0xff);
    assert_eq!(guest.get8(0x52), 0xff);
}

/// The link, as the cable has it, in all places that say so; its cause.
#[test]
fn link_down_and_up() {
    let guest = Guest::classic();
    assert_eq!((guest.get8(MSR) & 0xc, guest.get16(0x64) & 0x24), (0, 0x24));
    assert!(guest.chip.is_up());
    guest.chip.set_link(false);
    assert_eq!((guest.get8(MSR) & 0xc, guest.get16(0x64) & 0x24), (4, 0));
    assert_eq!((guest.get16(0x68), guest.get16(0x74) & 8, guest.get16(ISR)), (0, 0, LINK));
    assert!(!guest.chip.is_up());
    guest.ack(LINK);
    guest.chip.set_link(true);
    // BMSR remembers that it was down.
    assert_eq!([guest.get16(0x64) & 4, guest.get16(0x64) & 4, guest.get16(ISR)], [0, 4, LINK]);
    guest.ack(LINK);
    guest.chip.set_link(true);
    assert_eq!(guest.get16(ISR), 0, "it was up");
}

#[test]
fn phy() {
    let guest = Guest::classic();
    // Bits 13, 12 and 8 are locked.
    guest.set16(BMCR, 0);
    assert_eq!((guest.get16(BMCR), guest.get16(ISR)), (0x3100, 0));
    guest.set8(EECR, 0xc0);
    guest.set16(BMCR, 0);
    assert_eq!((guest.get16(BMCR), guest.get8(MSR) & 8), (0, 8), "10 Mbit/s, forced");
    assert_eq!((guest.get16(0x68), guest.get16(ISR)), (0, LINK));
    // Restarting autonegotiation makes the link flap; it takes no time.
    guest.ack(LINK);
    guest.set16(BMCR, 0x1200);
    assert_eq!((guest.get16(BMCR), guest.get16(ISR), guest.get8(MSR) & 8), (0x1000, LINK, 0));
    // What is advertised decides.
    guest.set16(0x66, 0x0061);
    assert_eq!((guest.get16(0x66), guest.get8(MSR) & 8), (0x0061, 8));
    guest.set16(BMCR, 0x8000);
    assert_eq!((guest.get16(BMCR), guest.get16(0x66)), (0x3100, 0x01e1));
    // The registers are not bytes of others.
    guest.set8(0x67, 0);
    assert_eq!(guest.get16(0x66), 0x00e1);
}

#[test]
fn configuration_space() {
    let config = |guest: &Guest, at: u64| {
        let mut bytes = [0; 4];
        guest.chip.read(Space::Config, at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    let plus = Guest::bare(false, Config { csb: true, mac: Mac::new(MAC), irq_rate_max: 0 });
    let classic = Guest::bare(true, Config { csb: true, mac: Mac::new(MAC), irq_rate_max: 0 });
    for (guest, revision, subsystem) in [(&plus, 0x20, 0x1101), (&classic, 0x10, 0x8139)] {
        assert_eq!(config(guest, 0), 0x8139_10ec);
        assert_eq!(config(guest, 8), 0x0200_0000 | revision);
        assert_eq!(config(guest, 0x2c), subsystem << 16 | 0x10ec);
        // BARs: 256 ports, 256 bytes.
        guest.chip.write(Space::Config, 0x10, &[0xff; 8]);
        assert_eq!((config(guest, 0x10), config(guest, 0x14)), (0xffff_ff01, 0xffff_ff00));
        assert_eq!(config(guest, 0x18), 0);
        // One capability: power management. There is no MSI.
        assert_eq!((config(guest, 0x34) & 0xff, config(guest, 0x50) & 0xffff), (0x50, 1));
        assert!(!guest.chip.layout().msi && guest.chip.layout().pages.is_empty());
    }
}

/// In D3 nothing answers; out of it, the chip is as after a reset.
#[test]
fn sleeping() {
    let guest = Guest::classic();
    guest.chip.write(Space::Config, 0x54, &[3]);
    assert_eq!((guest.get32(IDR), guest.get8(CR)), (u32::MAX, 0xff));
    guest.set8(CR, RE | TE);
    assert!(!guest.chip.is_up());
    assert_eq!(guest.arrive(&[frame(MAC, 60)]), 1, "dropped");
    guest.chip.write(Space::Config, 0x54, &[0]);
    assert_eq!((guest.get8(CR), guest.get32(RBSTART)), (BUFE, 0));
}

/// Without bus mastering no frame moves, and none of before does later.
#[test]
fn bus_master_off() {
    let mut guest = Guest::classic();
    guest.send(&frame(MAC, 60));
    guest.chip.write(Space::Config, 4, &[3]);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (0, 1));
    assert_eq!(guest.dropped(), 1);
    guest.chip.write(Space::Config, 4, &[7]);
    assert_eq!((guest.pull().len(), guest.arrive(&[frame(MAC, 60)])), (1, 1));
    assert_eq!(guest.take().unwrap().0, 0x4001);
}
