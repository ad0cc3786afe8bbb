//! PCI configuration space (SDM chapter 4): 256 bytes, of which software can write some bits.

/// Command register.
pub const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
/// Bus master: without it, no DMA.
const BUS_MASTER: u16 = 1 << 2;
/// INTA# is not driven.
const INTX_DISABLE: u16 = 1 << 10;
/// INTA# is asserted (in the status register, whether or not it is disabled).
const INTERRUPT_STATUS: u8 = 1 << 3;
const PM: usize = 0xdc;
const PMCSR: usize = PM + 4;
const MSI: usize = 0xf0;
const MSI_CONTROL: usize = MSI + 2;

/// Offset, value after reset, mask of bits that can be written. Everything else is 0 and stays so.
#[rustfmt::skip]
const LAYOUT: &[(usize, &[u8], &[u8])] = &[
    // Vendor 8086, device 100E, command: I/O, memory, bus master, MWI, parity, SERR#, interrupt disable.
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
];

/// Subsystem device, and the one that says to drivers that there is a shared status block.
const SUBSYSTEM: usize = 0x2e;
const SUBSYSTEM_CSB: [u8; 2] = [0x01, 0x11];

/// Configuration space.
#[derive(Debug)]
pub struct Pci {
    csb: bool,
    bytes: [u8; 256],
    masks: [u8; 256],
}

impl Pci {
    /// As after power-on. `csb`: there is a shared status block.
    pub fn new(csb: bool) -> Self {
        let mut pci = Self { csb, bytes: [0; 256], masks: [0; 256] };
        for (at, _, masks) in LAYOUT {
            for (slot, mask) in pci.masks.iter_mut().skip(*at).zip(*masks) {
                *slot = *mask;
            }
        }
        pci.reset();
        pci
    }

    /// As after RST#.
    pub fn reset(&mut self) {
        self.bytes = [0; 256];
        for (at, values, _) in LAYOUT {
            for (slot, value) in self.bytes.iter_mut().skip(*at).zip(*values) {
                *slot = *value;
            }
        }
        if self.csb {
            for (slot, value) in self.bytes.iter_mut().skip(SUBSYSTEM).zip(SUBSYSTEM_CSB) {
                *slot = value;
            }
        }
    }

    /// Reads; outside there is 0. `asserted`: the level of INTA#.
    pub fn read(&self, offset: u64, data: &mut [u8], asserted: bool) {
        data.fill(0);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let status = if asserted { INTERRUPT_STATUS } else { 0 };
        for (byte, (at, value)) in data.iter_mut().zip(self.bytes.iter().enumerate().skip(start)) {
            *byte = *value | if at == STATUS { status } else { 0 };
        }
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let state = self.byte(PMCSR) & 3;
        let slots = self.bytes.iter_mut().zip(&self.masks).skip(start);
        for ((byte, mask), value) in slots.zip(data) {
            *byte = *byte & !mask | value & mask;
        }
        // D1 and D2 do not exist: a write of theirs leaves the state alone (PCI PM 3.2.4).
        if matches!(self.byte(PMCSR) & 3, 1 | 2)
            && let Some(byte) = self.bytes.get_mut(PMCSR)
        {
            *byte = *byte & !3 | state;
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.byte(COMMAND), self.byte(COMMAND + 1)])
    }

    /// In D3hot: no DMA, no interrupts, no access to the BARs.
    pub fn asleep(&self) -> bool {
        self.byte(PMCSR) & 3 == 3
    }

    /// DMA is allowed.
    pub fn may_dma(&self) -> bool {
        self.command() & BUS_MASTER != 0 && !self.asleep()
    }

    /// Interrupts are messages (MSI), not the pin.
    pub fn sends_messages(&self) -> bool {
        self.byte(MSI_CONTROL) & 1 != 0
    }

    /// The interrupt pin, or MSI in its place, is let out. With MSI the disable bit of the pin means nothing.
    pub fn may_interrupt(&self) -> bool {
        let msi = self.sends_messages();
        !self.asleep() && (msi || self.command() & INTX_DISABLE == 0)
    }
}
