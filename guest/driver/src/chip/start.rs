//! Finding a chip and setting it up, as far as that is the same for all: PCI, and the shared status
//! block.

use std::time::{Duration, Instant};

use super::csb::SUBSYSTEM;
use super::{Bus, Chip, ChipDriver, ChipError, Interrupts, Irq};

/// How long a chip may take for a reset or a word of its EEPROM.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long autonegotiation may take.
pub(crate) const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Offsets in configuration space (PCI 2.2, chapter 6), and bits there.
mod config {
    pub(super) const ID: u16 = 0x00;
    pub(super) const COMMAND: u16 = 0x04;
    /// Revision, and the class.
    pub(super) const REVISION: u16 = 0x08;
    /// Vendor and device of the subsystem.
    pub(super) const SUBSYSTEM: u16 = 0x2c;
    pub(super) const CAPABILITIES: u16 = 0x34;
    /// I/O space, memory space, bus master.
    pub(super) const ENABLE: u16 = 0b111;
    pub(super) const MSI: u8 = 0x05;
    pub(super) const MSIX: u8 = 0x11;
    /// In the control word of MSI and of MSI-X.
    pub(super) const MSI_ON: u16 = 1;
    pub(super) const MSIX_ON: u16 = 1 << 15;
    /// Where firmware puts the registers and the I/O window of a NIC.
    pub(super) const REGISTERS_AT: u32 = 0xfebc_0000;
    pub(super) const IO_AT: u32 = 0xc000;

    /// A base address register.
    pub(super) const fn bar(n: u16) -> u16 {
        0x10 + 4 * n
    }
}

impl<C: Chip, B: Bus> ChipDriver<C, B> {
    pub(super) fn set_up(&mut self) -> Result<(), ChipError> {
        self.enabled = 0;
        self.set_up_pci()?;
        self.find_csb()?;
        C::reset(self)?;
        self.offer_csb()?;
        self.mac = C::read_mac(self)?;
        self.set_mac(self.mac);
        C::start(self)?;
        if self.csb.is_some() {
            self.set_csb(true);
        } else if self.options.interrupts == Interrupts::Always {
            self.enable(self.causes_awake());
        }
        self.check()
    }

    /// Did the device go away meanwhile?
    pub(crate) fn check(&mut self) -> Result<(), ChipError> {
        self.registers.take_failure().map_or(Ok(()), |error| Err(error.into()))
    }

    fn config32(&mut self, offset: u16) -> u32 {
        let mut bytes = [0; 4];
        self.registers.with(|bus| bus.read_config(offset, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    fn set_config32(&mut self, offset: u16, value: u32) {
        self.registers.with(|bus| bus.write_config(offset, &value.to_le_bytes()));
    }

    fn set_up_pci(&mut self) -> Result<(), ChipError> {
        let found = self.config32(config::ID);
        self.check()?;
        if found != C::MODEL.pci_id() {
            return Err(ChipError::NotFound { found, model: C::MODEL });
        }
        let [found, ..] = self.config32(config::REVISION).to_le_bytes();
        self.check()?;
        if found < C::MODEL.least_revision() {
            return Err(ChipError::NoPlus { found });
        }
        if self.registers.bus().is_set_up() {
            self.allow_access();
        } else {
            self.place()?;
        }
        let irq = self.options.irq;
        self.registers.with(|bus| bus.use_interrupt(irq));
        self.check()
    }

    /// Lets the chip answer and reach memory, and leaves the other bits of the command register as
    /// they are.
    fn allow_access(&mut self) {
        let [low, high, ..] = self.config32(config::COMMAND).to_le_bytes();
        let command = (u16::from_le_bytes([low, high]) | config::ENABLE).to_le_bytes();
        self.registers.with(|bus| bus.write_config(config::COMMAND, &command));
    }

    /// What firmware does.
    fn place(&mut self) -> Result<(), ChipError> {
        let bars = C::MODEL.bars();
        let mut address = config::REGISTERS_AT;
        for bar in bars.registers {
            // The address bits of a BAR that stay zero are its length.
            self.set_config32(config::bar(*bar), u32::MAX);
            let length = u64::from(!(self.config32(config::bar(*bar)) & !0xf)) + 1;
            if length != u64::from(bars.len) {
                return Err(ChipError::Bar { bar: *bar, found: length, wanted: bars.len.into() });
            }
            self.set_config32(config::bar(*bar), address);
            address += bars.len;
        }
        if let Some(io) = bars.io {
            self.set_config32(config::bar(io), config::IO_AT);
        }
        let command = config::ENABLE.to_le_bytes();
        self.registers.with(|bus| bus.write_config(config::COMMAND, &command));
        match self.options.irq {
            Irq::Intx => Ok(()),
            Irq::Msi => self.enable_msi(),
            Irq::Msix => {
                let (at, control) = self.capability(config::MSIX)?;
                self.set_control(at, control | config::MSIX_ON);
                Ok(())
            }
        }
    }

    /// Message address, data and the enable bit of the MSI capability (PCI 2.2, 6.8.1), with a
    /// 64-bit address.
    fn enable_msi(&mut self) -> Result<(), ChipError> {
        let (at, control) = self.capability(config::MSI)?;
        let wide = control & 0x80 != 0;
        self.set_config32(at + 4, 0xfee0_0000);
        if wide {
            self.set_config32(at + 8, 0);
        }
        let data = at + if wide { 12 } else { 8 };
        let vector = 0x31_u16.to_le_bytes();
        self.registers.with(|bus| bus.write_config(data, &vector));
        self.set_control(at, control | config::MSI_ON);
        Ok(())
    }

    fn set_control(&mut self, capability: u16, control: u16) {
        let bytes = control.to_le_bytes();
        self.registers.with(|bus| bus.write_config(capability + 2, &bytes));
    }

    /// Where a capability lies, and its control word (PCI 2.2, 6.7).
    fn capability(&mut self, wanted: u8) -> Result<(u16, u16), ChipError> {
        const MOST: usize = 48; // More than there can be: a longer list is a loop.
        let mut at = self.config32(config::CAPABILITIES).to_le_bytes()[0];
        for _ in 0..MOST {
            let head = self.config32(u16::from(at & !3));
            let [id, next, control @ ..] = head.to_le_bytes();
            if at == 0 {
                return Err(ChipError::NoMsi);
            }
            if id == wanted {
                return Ok((u16::from(at & !3), u16::from_le_bytes(control)));
            }
            at = next;
        }
        Err(ChipError::NoMsi)
    }

    /// Reads a register until `done` says so.
    pub(crate) fn until(
        &mut self,
        register: C::Register,
        patience: Duration,
        done: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let end = Instant::now() + patience;
        loop {
            let value = self.registers.read(register);
            if self.registers.failure().is_some() || done(value) {
                return Some(value);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Tells the chip, which has been reset, where the status block is; it is not on yet.
    fn offer_csb(&mut self) -> Result<(), ChipError> {
        let by_message = self.options.irq == Irq::Msi;
        let Some(csb) = &mut self.csb else { return Ok(()) };
        csb.reset(by_message);
        let base = csb.base();
        C::place_csb(&mut self.registers, base);
        self.check()
    }

    /// Does the chip offer a status block? The chip forgets one that we may have given it before.
    fn find_csb(&mut self) -> Result<(), ChipError> {
        if self.csb.is_none() {
            return Ok(());
        }
        let [.., low, high] = self.config32(config::SUBSYSTEM).to_le_bytes();
        let found = u16::from_le_bytes([low, high]);
        self.check()?;
        if found != SUBSYSTEM {
            return Err(ChipError::NoCsb { found });
        }
        C::place_csb(&mut self.registers, 0);
        self.check()
    }
}
