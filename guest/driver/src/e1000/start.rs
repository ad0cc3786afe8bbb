//! Finding the chip and starting it (SDM chapter 14).

use std::time::{Duration, Instant};

use super::csb::SUBSYSTEM;
use super::registers::{self, Register, ctrl, eerd, rctl, status, tctl};
use super::{Bus, E1000, Error, Interrupts, Irq};

/// How long the chip may take for a reset or a word of its EEPROM.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long autonegotiation may take.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Offsets in configuration space (PCI 2.2, chapter 6), and bits there.
mod config {
    pub(super) const ID: u16 = 0x00;
    pub(super) const COMMAND: u16 = 0x04;
    pub(super) const BAR0: u16 = 0x10;
    pub(super) const BAR1: u16 = 0x14;
    /// Vendor and device of the subsystem.
    pub(super) const SUBSYSTEM: u16 = 0x2c;
    pub(super) const CAPABILITIES: u16 = 0x34;
    /// I/O space, memory space, bus master.
    pub(super) const ENABLE: u16 = 0b111;
    pub(super) const MSI: u8 = 0x05;
    /// Where firmware puts the registers and the I/O window of a NIC.
    pub(super) const REGISTERS_AT: u32 = 0xfebc_0000;
    pub(super) const IO_AT: u32 = 0xc000;
}

/// Length of BAR0.
const REGISTERS_LEN: u64 = 0x2_0000;

impl<B: Bus> E1000<B> {
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.enabled = 0;
        self.set_up_pci()?;
        self.find_block()?;
        self.reset()?;
        self.offer_block()?;
        self.mac = self.read_mac()?;
        self.set_mac(self.mac);
        self.start_link()?;
        self.start_transmitter();
        self.start_receiver();
        self.registers.write(Register::ITR, self.options.itr.into());
        self.registers.read(Register::ICR);
        if self.block.is_some() {
            self.set_csb(true);
        } else if self.options.interrupts == Interrupts::Always {
            self.enable(self.causes_awake());
        }
        self.check()
    }

    /// Did the device go away meanwhile?
    fn check(&mut self) -> Result<(), Error> {
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

    fn set_up_pci(&mut self) -> Result<(), Error> {
        let found = self.config32(config::ID);
        self.check()?;
        if found != registers::PCI_ID {
            return Err(Error::NotFound { found });
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

    /// Lets the chip answer and reach memory, and leaves the other bits of the command register as they are.
    fn allow_access(&mut self) {
        let [low, high, ..] = self.config32(config::COMMAND).to_le_bytes();
        let command = (u16::from_le_bytes([low, high]) | config::ENABLE).to_le_bytes();
        self.registers.with(|bus| bus.write_config(config::COMMAND, &command));
    }

    /// What firmware does.
    fn place(&mut self) -> Result<(), Error> {
        // The address bits of a BAR that stay zero are its length.
        self.set_config32(config::BAR0, u32::MAX);
        let length = u64::from(!(self.config32(config::BAR0) & !0xf)) + 1;
        if length != REGISTERS_LEN {
            return Err(Error::Bar(length));
        }
        self.set_config32(config::BAR0, config::REGISTERS_AT);
        self.set_config32(config::BAR1, config::IO_AT);
        let command = config::ENABLE.to_le_bytes();
        self.registers.with(|bus| bus.write_config(config::COMMAND, &command));
        if self.options.irq == Irq::Msi { self.enable_msi() } else { Ok(()) }
    }

    /// Message address, data and the enable bit of the MSI capability (PCI 2.2, 6.8.1), with a 64-bit address.
    fn enable_msi(&mut self) -> Result<(), Error> {
        /// More than there can be: a longer list runs in a circle.
        const MOST: usize = 48;
        let mut at = self.config32(config::CAPABILITIES).to_le_bytes()[0];
        for _ in 0..MOST {
            let head = self.config32(u16::from(at & !3));
            let [id, next, control @ ..] = head.to_le_bytes();
            if at == 0 {
                return Err(Error::NoMsi);
            }
            if id == config::MSI {
                let (at, control) = (u16::from(at & !3), u16::from_le_bytes(control));
                let wide = control & 0x80 != 0;
                self.set_config32(at + 4, 0xfee0_0000);
                if wide {
                    self.set_config32(at + 8, 0);
                }
                let data = at + if wide { 12 } else { 8 };
                let vector = 0x31_u16.to_le_bytes();
                self.registers.with(|bus| bus.write_config(data, &vector));
                let on = (control | 1).to_le_bytes();
                self.registers.with(|bus| bus.write_config(at + 2, &on));
                return Ok(());
            }
            at = next;
        }
        Err(Error::NoMsi)
    }

    /// Reads a register until `done` says so.
    fn until(
        &mut self,
        register: Register,
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

    /// CTRL.RST, with interrupts masked and both sides stopped before (SDM 14.4).
    fn reset(&mut self) -> Result<(), Error> {
        self.registers.write(Register::IMC, u32::MAX);
        self.registers.write(Register::RCTL, 0);
        self.registers.write(Register::TCTL, 0);
        let value = self.registers.read(Register::CTRL);
        self.write_reset(value | ctrl::RST);
        self.until(Register::CTRL, PATIENCE, |value| value & ctrl::RST == 0)
            .ok_or(Error::Stuck("its reset"))?;
        self.registers.write(Register::IMC, u32::MAX);
        self.registers.read(Register::ICR);
        self.check()
    }

    fn write_reset(&mut self, value: u32) {
        /// IOADDR and IODATA (SDM 13.3.1).
        const IOADDR: u32 = 0;
        const IODATA: u32 = 4;
        if self.options.reset_by_io {
            self.registers.with(|bus| bus.write_io(IOADDR, Register::CTRL.offset()));
            self.registers.with(|bus| bus.write_io(IODATA, value));
        } else {
            self.registers.write(Register::CTRL, value);
        }
    }

    /// Reads a word of the EEPROM (SDM 5.3.1).
    ///
    /// # Errors
    /// [`Error::Stuck`] when the chip does not finish.
    pub fn eeprom(&mut self, word: u32) -> Result<u16, Error> {
        self.registers.write(Register::EERD, word << eerd::ADDRESS | eerd::START);
        let value = self
            .until(Register::EERD, PATIENCE, |value| value & eerd::DONE != 0)
            .ok_or(Error::Stuck("a read of its EEPROM"))?;
        Ok(u16::try_from(value >> eerd::DATA).unwrap_or(0))
    }

    /// The address in the EEPROM's first three words, if the checksum over it is right.
    fn read_mac(&mut self) -> Result<[u8; 6], Error> {
        let (mut mac, mut sum) = ([0; 6], 0_u16);
        for n in 0..registers::EEPROM_WORDS {
            let word = self.eeprom(n)?;
            sum = sum.wrapping_add(word);
            if let Some(bytes) = mac.chunks_exact_mut(2).nth(n as usize) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        self.check()?;
        if sum == registers::EEPROM_SUM { Ok(mac) } else { Err(Error::Eeprom(sum)) }
    }

    /// Link up with flow control off (SDM 14.3, 8.6).
    fn start_link(&mut self) -> Result<(), Error> {
        for register in [Register::FCAL, Register::FCAH, Register::FCT, Register::FCTTV] {
            self.registers.write(register, 0);
        }
        let value = self.registers.read(Register::CTRL);
        self.registers.write(Register::CTRL, value | ctrl::SLU | ctrl::ASDE);
        self.until(Register::STATUS, LINK_PATIENCE, |value| value & status::LU != 0)
            .ok_or(Error::NoLink)?;
        self.check()
    }

    /// The low half takes effect.
    pub(super) fn write_block(&mut self, address: u64) {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        self.registers.write(Register::CSBAH, u32::from_le_bytes([e, f, g, h]));
        self.registers.write(Register::CSBAL, u32::from_le_bytes([a, b, c, d]));
    }

    /// Tells the chip, which has been reset, where the status block is; it is not on yet.
    fn offer_block(&mut self) -> Result<(), Error> {
        let by_message = self.options.irq == Irq::Msi;
        let Some(block) = &mut self.block else { return Ok(()) };
        block.reset(by_message);
        let base = block.base();
        self.write_block(base);
        self.check()
    }

    /// Does the chip offer a status block? One that it may have had from us before, it forgets.
    fn find_block(&mut self) -> Result<(), Error> {
        if self.block.is_none() {
            return Ok(());
        }
        let [.., low, high] = self.config32(config::SUBSYSTEM).to_le_bytes();
        let found = u16::from_le_bytes([low, high]);
        self.check()?;
        if found != SUBSYSTEM {
            return Err(Error::NoCsb { found });
        }
        self.write_block(0);
        self.check()
    }

    fn write_base(&mut self, low: Register, high: Register, address: u64) {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        self.registers.write(low, u32::from_le_bytes([a, b, c, d]));
        self.registers.write(high, u32::from_le_bytes([e, f, g, h]));
    }

    /// SDM 14.5.
    fn start_transmitter(&mut self) {
        let bytes = 16 * u32::from(self.options.size);
        self.write_base(Register::TDBAL, Register::TDBAH, self.tx.base());
        self.registers.write(Register::TDLEN, bytes);
        self.registers.write(Register::TDH, 0);
        self.registers.write(Register::TDT, 0);
        self.registers.write(Register::TIDV, self.options.tidv.into());
        self.registers.write(Register::TADV, self.options.tadv.into());
        self.registers.write(Register::TIPG, registers::TIPG_COPPER);
        self.registers.write(Register::TCTL, tctl::EN | tctl::PSP | tctl::COLLISION);
    }

    /// SDM 14.4.
    fn start_receiver(&mut self) {
        for n in 0..registers::MTA_WORDS {
            self.registers.write_at(Register::MTA, n, 0);
        }
        let checksums = if self.options.checksum { registers::RXCSUM_IP_TCP } else { 0 };
        self.registers.write(Register::RXCSUM, checksums);
        self.registers.write(Register::RDTR, self.options.rdtr.into());
        self.registers.write(Register::RADV, self.options.radv.into());
        let bytes = 16 * u32::from(self.options.size);
        self.write_base(Register::RDBAL, Register::RDBAH, self.rx.base());
        self.registers.write(Register::RDLEN, bytes);
        self.registers.write(Register::RDH, 0);
        self.registers.write(Register::RDT, 0);
        self.registers.write(Register::RCTL, self.receive_control());
        // Buffers only once the receiver is enabled (SDM 14.4).
        self.registers.write(Register::RDT, self.rx.tail.into());
    }

    fn receive_control(&self) -> u32 {
        // BSIZE counts down from 2048, or with BSEX from 16384 on (SDM 13.4.22).
        let (size, extended) = match self.options.buffer {
            256 => (3, false),
            512 => (2, false),
            1024 => (1, false),
            4096 => (3, true),
            8192 => (2, true),
            16_384 => (1, true),
            _ => (0, false),
        };
        let on = |condition, bits| if condition { bits } else { 0 };
        rctl::EN
            | rctl::BAM
            | size << rctl::BSIZE
            | on(extended, rctl::BSEX)
            | on(self.options.mtu > 1500, rctl::LPE)
            | on(self.options.promisc, rctl::UPE | rctl::MPE)
            | on(self.options.strip_crc, rctl::SECRC)
    }
}
