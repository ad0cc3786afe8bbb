//! PCI configuration space: 256 bytes from a table, of which software can write some bits.

use super::state::{Fields, Stateful};

/// Command register.
pub const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BUS_MASTER: u16 = 1 << 2; // Bus master: without it, no DMA.
const INTX_DISABLE: u16 = 1 << 10; // INTA# is not driven.
/// INTA# is asserted (in the status register, whether or not it is disabled).
const INTERRUPT_STATUS: u8 = 1 << 3;

/// A chip's configuration space.
#[derive(Debug)]
pub struct Table {
    /// Offset, value after reset, mask of bits that can be written. Everything else is 0 and stays
    /// so.
    pub bytes: &'static [(usize, &'static [u8], &'static [u8])],
    /// Offset of the power management capability's PMCSR.
    pub pmcsr: usize,
    /// Offset of the MSI capability, if there is one.
    pub msi: Option<usize>,
    /// Offset of the MSI-X capability, if there is one.
    pub msix: Option<usize>,
}

/// Subsystem device, and the one that says to drivers that there is a CSB.
const SUBSYSTEM: usize = 0x2e;
const SUBSYSTEM_CSB: [u8; 2] = [0x01, 0x11];

/// How interrupts reach the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// INTA#.
    #[default]
    Pin,
    /// One message (MSI).
    Message,
    /// A message for each vector (MSI-X).
    Vectors,
}

/// Configuration space.
#[derive(Debug)]
pub struct Pci {
    table: &'static Table,
    csb: bool,
    bytes: [u8; 256],
    masks: [u8; 256],
}

/// What a write to configuration space brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// From D3 to D0: the rest of the chip is to be reset.
    pub woke: bool,
    /// Interrupts are let out that were kept in, or had no vector while MSI-X was on.
    pub let_out: bool,
    /// DMA must stop.
    pub stops: bool,
}

impl Pci {
    /// As after power-on. `csb`: there is a CSB.
    pub fn new(table: &'static Table, csb: bool) -> Self {
        let mut pci = Self { table, csb, bytes: [0; 256], masks: [0; 256] };
        for (at, _, masks) in table.bytes {
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
        for (at, values, _) in self.table.bytes {
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
        let start = place(offset);
        let status = if asserted { INTERRUPT_STATUS } else { 0 };
        for (byte, (at, value)) in data.iter_mut().zip(self.bytes.iter().enumerate().skip(start)) {
            *byte = *value | if at == STATUS { status } else { 0 };
        }
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let start = place(offset);
        let state = self.byte(self.table.pmcsr) & 3;
        let slots = self.bytes.iter_mut().zip(&self.masks).skip(start);
        for ((byte, mask), value) in slots.zip(data) {
            *byte = *byte & !mask | value & mask;
        }
        // D1 and D2 do not exist: a write of theirs leaves the state alone (PCI PM 3.2.4).
        if matches!(self.byte(self.table.pmcsr) & 3, 1 | 2)
            && let Some(byte) = self.bytes.get_mut(self.table.pmcsr)
        {
            *byte = *byte & !3 | state;
        }
    }

    /// As [`Pci::write`]; says what it meant, and resets what waking up resets.
    pub fn change(&mut self, offset: u64, data: &[u8]) -> Change {
        let (slept, dma) = (self.asleep(), self.may_dma());
        let (interrupted, way) = (self.may_interrupt(), self.way());
        self.write(offset, data);
        let woke = slept && !self.asleep();
        if woke {
            // D3hot to D0: as after RST# (PCI PM 5.4, No_Soft_Reset is 0).
            self.reset();
        }
        let returns = way == Way::Vectors && self.way() != Way::Vectors;
        let let_out = self.may_interrupt() && (!interrupted || returns);
        Change { woke, let_out, stops: dma && !self.may_dma() }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.byte(COMMAND), self.byte(COMMAND + 1)])
    }

    /// In D3hot: no DMA, no interrupts, no access to the BARs.
    pub fn asleep(&self) -> bool {
        self.byte(self.table.pmcsr) & 3 == 3
    }

    /// DMA is allowed.
    pub fn may_dma(&self) -> bool {
        self.command() & BUS_MASTER != 0 && !self.asleep()
    }

    /// As what interrupts are delivered. The function mask of MSI-X, and those in its table, are
    /// the VMM's to heed: it keeps the table.
    pub fn way(&self) -> Way {
        let on =
            |at: Option<usize>, byte, bit| at.is_some_and(|at| self.byte(at + byte) & bit != 0);
        match (on(self.table.msix, 3, 0x80), on(self.table.msi, 2, 1)) {
            (true, _) => Way::Vectors,
            (_, true) => Way::Message,
            _ => Way::Pin,
        }
    }

    /// The interrupt pin, or messages in its place, are let out. With messages the disable bit of
    /// the pin means nothing.
    pub fn may_interrupt(&self) -> bool {
        !self.asleep() && (self.way() != Way::Pin || self.command() & INTX_DISABLE == 0)
    }
}

impl Stateful for Pci {
    /// What software cannot write is what the guest was told, and must be what this chip says.
    fn fields(&mut self, io: &mut Fields<'_>) {
        let factory = Self::new(self.table, self.csb).bytes;
        let Self { table, csb: _, bytes, masks } = self;
        io.bytes(bytes);
        let told = bytes.iter().zip(&factory).zip(&*masks);
        io.check(told.into_iter().all(|((byte, factory), mask)| (byte ^ factory) & !mask == 0));
        let power = bytes.get(table.pmcsr).map_or(0, |byte| byte & 3);
        io.check(matches!(power, 0 | 3));
    }
}

/// An offset as an index. What is beyond all indexes is outside as well.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
