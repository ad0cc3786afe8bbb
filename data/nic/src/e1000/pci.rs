//! PCI configuration space (SDM chapter 4).

use crate::chip::pci::{COMMAND, Table};

const STATUS: usize = 0x06;
const PM: usize = 0xdc;
const PMCSR: usize = PM + 4;
const MSI: usize = 0xf0;

/// The 82540EM's.
#[rustfmt::skip]
pub static TABLE: Table = Table { pmcsr: PMCSR, msi: Some(MSI), msix: None, bytes: &[
    // Vendor 8086, device 100E, command: I/O, memory, bus master, MWI, parity, SERR#, interrupt
    // disable.
    (0x00, &[0x86, 0x80, 0x0e, 0x10], &[0, 0, 0, 0]),
    (COMMAND, &[0x00, 0x00], &[0x57, 0x05]),
    // Status: capabilities, 66 MHz, medium DEVSEL.
    (STATUS, &[0x30, 0x02], &[0, 0]),
    // Revision, class: Ethernet.
    (0x08, &[0x03, 0x00, 0x00, 0x02], &[0, 0, 0, 0]),
    // Cache line size, latency timer.
    (0x0c, &[0x00, 0x00], &[0xff, 0xff]),
    // BAR0: 128 KiB of memory. BAR1: 64 bytes of I/O space.
    (0x10, &[0x00, 0x00, 0x00, 0x00], &[0x00, 0x00, 0xfe, 0xff]),
    (0x14, &[0x01, 0x00, 0x00, 0x00], &[0xc0, 0xff, 0xff, 0xff]),
    // Subsystem 8086:001E, PRO/1000 MT Desktop.
    (0x2c, &[0x86, 0x80, 0x1e, 0x00], &[0, 0, 0, 0]),
    // Capabilities, interrupt line, pin, minimal grant.
    (0x34, &[0xdc], &[0]),
    (0x3c, &[0x00, 0x01, 0xff, 0x00], &[0xff, 0, 0, 0]),
    // Power management, version 2: D0, D3hot, with PME#; PMCSR: state, PME enable.
    (PM, &[0x01, 0xf0, 0x22, 0x48], &[0, 0, 0, 0]),
    (PMCSR, &[0x00, 0x00, 0x00, 0x00], &[0x03, 0x01, 0, 0]),
    // MSI, 64-bit, one message.
    (MSI, &[0x05, 0x00, 0x80, 0x00], &[0, 0, 0x01, 0]),
    (MSI + 4, &[0; 10], &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
]};
