//! PCI configuration space (datasheet chapter 7). The chip has no MSI, so INTA# is the only
//! interrupt.

use crate::chip::pci::{COMMAND, Table};

const PM: usize = 0x50; // Power management.

macro_rules! table {
    ($revision:literal) => {
        Table {
            bytes: &[
                // Vendor 10EC, device 8139, command: I/O, memory, bus master, MWI, parity, SERR#,
                // interrupt disable.
                (0x00, &[0xec, 0x10, 0x39, 0x81], &[0, 0, 0, 0]),
                (COMMAND, &[0x00, 0x00], &[0x57, 0x05]),
                // Status: capabilities, fast back-to-back, medium DEVSEL.
                (0x06, &[0x90, 0x02], &[0, 0]),
                // Revision, class: Ethernet.
                (0x08, &[$revision, 0x00, 0x00, 0x02], &[0, 0, 0, 0]),
                // Cache line size, latency timer.
                (0x0c, &[0x00, 0x00], &[0xff, 0xff]),
                // BAR0: 256 bytes of I/O space. BAR1: the same registers, in memory.
                (0x10, &[0x01, 0x00, 0x00, 0x00], &[0x00, 0xff, 0xff, 0xff]),
                (0x14, &[0x00, 0x00, 0x00, 0x00], &[0x00, 0xff, 0xff, 0xff]),
                // Subsystem 10EC:8139.
                (0x2c, &[0xec, 0x10, 0x39, 0x81], &[0, 0, 0, 0]),
                // Capabilities, interrupt line, pin, minimal grant, maximal latency.
                (0x34, &[0x50], &[0]),
                (0x3c, &[0x00, 0x01, 0x20, 0x40], &[0xff, 0, 0, 0]),
                // Power management, version 2: D0, D3hot, with PME#; PMCSR: state, PME enable.
                (PM, &[0x01, 0x00, 0x02, 0x48], &[0, 0, 0, 0]),
                (PM + 4, &[0x00, 0x00, 0x00, 0x00], &[0x03, 0x01, 0, 0]),
            ],
            pmcsr: PM + 4,
            msi: None,
            msix: None,
        }
    };
}

/// The 8139C+: revision 20h is how drivers know it.
pub static PLUS: Table = table!(0x20);
/// The 8139C.
pub static PLAIN: Table = table!(0x10);
