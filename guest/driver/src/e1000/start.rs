//! Starting the chip (SDM chapter 14).

use super::registers::{self, Register, ctrl, eerd, rctl, status, tctl};
use super::{ChipError, Driver, Kind};
use crate::chip::start::{LINK_PATIENCE, PATIENCE};
use crate::chip::{Bus, RxSide};
use vmlan_transport::numbers::narrow16;

impl<K: Kind, B: Bus> Driver<K, B> {
    /// CTRL.RST, with interrupts masked and both sides stopped before (SDM 14.4).
    pub(super) fn reset(&mut self) -> Result<(), ChipError> {
        self.registers.write(Register::IMC, u32::MAX);
        self.registers.write(Register::RCTL, 0);
        self.registers.write(Register::TCTL, 0);
        let value = self.registers.read(Register::CTRL);
        self.write_reset(value | ctrl::RST);
        self.until(Register::CTRL, PATIENCE, |value| value & ctrl::RST == 0)
            .ok_or(ChipError::Stuck("its reset"))?;
        self.registers.write(Register::IMC, u32::MAX);
        self.registers.read(Register::ICR);
        self.check()
    }

    fn write_reset(&mut self, value: u32) {
        const IOADDR: u32 = 0; // IOADDR and IODATA (SDM 13.3.1).
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
    /// [`ChipError::Stuck`] when the chip does not finish.
    pub fn eeprom(&mut self, word: u32) -> Result<u16, ChipError> {
        let eerd::Layout { done, address } = K::EERD;
        self.registers.write(Register::EERD, word << address | eerd::START);
        let value = self
            .until(Register::EERD, PATIENCE, |value| value & done != 0)
            .ok_or(ChipError::Stuck("a read of its EEPROM"))?;
        Ok(narrow16((value >> eerd::DATA).into()))
    }

    /// The address in the EEPROM's first three words, if the checksum over it is right.
    pub(super) fn read_eeprom_mac(&mut self) -> Result<[u8; 6], ChipError> {
        let (mut mac, mut sum) = ([0; 6], 0_u16);
        for n in 0..registers::EEPROM_WORDS {
            let word = self.eeprom(n)?;
            sum = sum.wrapping_add(word);
            if let Some(bytes) = mac.chunks_exact_mut(2).nth(n as usize) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        self.check()?;
        if sum == registers::EEPROM_SUM { Ok(mac) } else { Err(ChipError::Eeprom(sum)) }
    }

    /// Link up with flow control off (SDM 14.3, 8.6).
    pub(super) fn start_link(&mut self) -> Result<(), ChipError> {
        for register in [Register::FCAL, Register::FCAH, Register::FCT, Register::FCTTV] {
            self.registers.write(register, 0);
        }
        let value = self.registers.read(Register::CTRL);
        self.registers.write(Register::CTRL, value | ctrl::SLU | ctrl::ASDE);
        self.until(Register::STATUS, LINK_PATIENCE, |value| value & status::LU != 0)
            .ok_or(ChipError::NoLink)?;
        self.check()
    }

    fn write_base(&mut self, low: Register, high: Register, address: u64) {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        self.registers.write(low, u32::from_le_bytes([a, b, c, d]));
        self.registers.write(high, u32::from_le_bytes([e, f, g, h]));
    }

    /// SDM 14.5.
    pub(super) fn start_transmitter(&mut self) {
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
    pub(super) fn start_receiver(&mut self) {
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
        self.registers.write(Register::RDT, RxSide::<Register>::tail(&self.rx).into());
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
