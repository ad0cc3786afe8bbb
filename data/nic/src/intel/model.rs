//! What tells the chips apart.

use super::chip::Intel;
use super::eeprom::Part;
use super::regs::Registers;
use super::ring::Format;
use super::table::Row;
use crate::chip::pci::Table;
use crate::chip::phy::Kind;
use crate::chip::{
    Delays, Edge, Host, Interrupts, Irq, Layout, ReceiveSide, StateError, TransmitSide,
};

/// One of Intel's chips.
pub trait Model: Sized + Send + Sync + 'static {
    /// What it looks like on its bus.
    const ON_BUS: &'static Layout;
    /// Its configuration space.
    const PCI: &'static Table;
    /// The BAR with the I/O window.
    const PORTS: u8;
    /// Registers that the other does not have, or has otherwise.
    const REGISTERS: &'static [Row];
    /// Its EEPROM.
    const EEPROM: &'static Part;
    /// Its PHY.
    const PHY: &'static Kind;
    /// Registers 16 to 31 of the PHY have pages.
    const PHY_PAGES: bool = false;
    /// Kilobytes of packet buffer.
    const PACKET_BUFFER: u32;
    /// What the transmitter has left of them at least.
    const TRANSMIT_BUFFER: u32 = 0;
    type Tx: TransmitSide<Intel<Self>>;
    type Rx: ReceiveSide<Intel<Self>>;
    type Irq: Block;

    /// Its two sides after power-on.
    fn sides() -> (Self::Tx, Self::Rx);
    /// Bits of STATUS beside link, speed and duplex.
    fn status(_ctrl: u32) -> u32 {
        0
    }
    /// What receive descriptors look like. Asked once for each pass.
    #[inline]
    fn format(_regs: &Registers) -> Format {
        Format::Legacy
    }
    /// Reads a register that [`Intel`] does nothing about.
    fn read(chip: &Intel<Self>, offset: u32) -> u32 {
        chip.regs.get(offset)
    }
    /// Writes one: `value` has only bits that can be written.
    fn write(chip: &Intel<Self>, offset: u32, value: u32) {
        chip.regs.set(offset, value);
    }
    /// CTRL.RST, or more: everything that is not a register is as after power-on.
    fn reset(_chip: &Intel<Self>) {}
    /// Causes that say that descriptors were written back.
    const WRITTEN: u32;
    /// The registers are those that a process has left.
    ///
    /// # Errors
    /// Nobody can go on with what they say.
    fn revive(_regs: &Registers) -> Result<(), StateError> {
        Ok(())
    }
    /// The registers are those of a restored state: what follows from them is found again.
    fn derive(_chip: &Intel<Self>, _rx: &mut Self::Rx) {}
}

/// An interrupt block with ICR, ICS, IMS and IMC.
pub trait Block: Interrupts {
    /// No causes, all masked. At most `rate_max` interrupts per second (0: no floor).
    fn new(rate_max: u32) -> Self;
    /// ICR is read: the causes, which it clears.
    fn take(&self) -> (u32, Edge);
    /// ICS is read.
    fn causes(&self) -> u32;
    /// ICR is written: bits written as 1 are cleared.
    fn ack(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge;
    /// IMS, IMC are read.
    fn mask(&self) -> u32;
    /// IMS is written.
    fn set_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge;
    /// IMC is written.
    fn clear_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge;
    /// The delay timers of these causes expire at once.
    fn flush(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge;
    /// As after reset.
    fn reset(&self) -> Edge;
}

impl Block for Irq {
    fn new(rate_max: u32) -> Self {
        Irq::new(&super::cause::KINDS, rate_max)
    }

    fn take(&self) -> (u32, Edge) {
        Irq::take(self)
    }

    /// Write-only.
    fn causes(&self) -> u32 {
        0
    }

    fn ack(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        Irq::ack(self, bits, delays, host)
    }

    fn mask(&self) -> u32 {
        Irq::mask(self)
    }

    fn set_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        Irq::set_mask(self, bits, delays, host)
    }

    fn clear_mask(&self, bits: u32, delays: Delays, host: &dyn Host) -> Edge {
        Irq::clear_mask(self, bits, delays, host)
    }

    fn flush(&self, causes: u32, delays: Delays, host: &dyn Host) -> Edge {
        Irq::flush(self, causes, delays, host)
    }

    fn reset(&self) -> Edge {
        Irq::reset(self)
    }
}
