//! PCI configuration space (RTL8169 datasheet, chapter 8, from memory).

use crate::chip::pci::{COMMAND, Table};

const PM: usize = 0xdc;
const PMCSR: usize = PM + 4;
const MSI: usize = 0x50;

/// The RTL8169SB's. Its MSI capability is where the later chips of its kind have theirs.
#[rustfmt::skip]
pub static TABLE: Table = Table { pmcsr: PMCSR, msi: Some(MSI), msix: None, bytes: &[
    // Vendor 10EC, device 8169, command: I/O, memory, bus master, MWI, parity, SERR#, interrupt
    // disable.
    (0x00, &[0xec, 0x10, 0x69, 0x81], &[0, 0, 0, 0]),
    (COMMAND, &[0x00, 0x00], &[0x57, 0x05]),
    // Status: capabilities, fast back-to-back, medium DEVSEL.
    (0x06, &[0x90, 0x02], &[0, 0]),
    // Revision, class: Ethernet.
    (0x08, &[0x10, 0x00, 0x00, 0x02], &[0, 0, 0, 0]),
    // Cache line size, latency timer.
    (0x0c, &[0x00, 0x00], &[0xff, 0xff]),
    // BAR0: 256 bytes of I/O space. BAR1: 256 bytes of memory.
    (0x10, &[0x01, 0x00, 0x00, 0x00], &[0x00, 0xff, 0xff, 0xff]),
    (0x14, &[0x00, 0x00, 0x00, 0x00], &[0x00, 0xff, 0xff, 0xff]),
    // Subsystem 10EC:8169.
    (0x2c, &[0xec, 0x10, 0x69, 0x81], &[0, 0, 0, 0]),
    // Capabilities, interrupt line, pin, minimal grant, maximal latency.
    (0x34, &[0xdc], &[0]),
    (0x3c, &[0x00, 0x01, 0x20, 0x40], &[0xff, 0, 0, 0]),
    // MSI, 64-bit, one message.
    (MSI, &[0x05, 0x00, 0x80, 0x00], &[0, 0, 0x01, 0]),
    (MSI + 4, &[0; 10], &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    // Power management, version 2: D0, D3hot, with PME#; PMCSR: state, PME enable.
    (PM, &[0x01, 0x50, 0x02, 0xc8], &[0, 0, 0, 0]),
    (PMCSR, &[0x00, 0x00, 0x00, 0x00], &[0x03, 0x01, 0, 0]),
]};
