//! The Intel 82540EM after the 8254x software developer's manual (SDM): what only this chip's
//! driver knows. All else is in [`crate::chip`].

mod descriptor;
pub mod registers;
mod start;
#[cfg(test)]
mod tests;

use crate::chip::{
    self, Bus, Causes, Chip, ChipDriver, ChipError, Model, RxRing, RxSide, TxRing, TxSide,
};
pub use descriptor::rx as rx_bits;
use descriptor::{RxDescriptor, TxDescriptor};
use registers::{Register, cause};

/// The 82540EM.
#[derive(Debug)]
pub struct Intel;

/// An 82540EM and its rings.
pub type E1000<B> = ChipDriver<Intel, B>;
/// Its registers.
pub type Registers<B> = chip::Registers<Register, B>;
/// A received frame.
pub type Frame = chip::Frame<RxDescriptor>;
/// Received frames that are not released yet.
pub type Batch = chip::Batch<RxDescriptor>;

impl Chip for Intel {
    const MODEL: Model = Model::E1000;
    const CAUSES: Causes =
        Causes { sent: cause::TXDW, received: cause::RX, link: cause::LSC, csb: cause::TXQE };
    const TAILS: bool = true;
    const MASKS_SENT: bool = true;
    type Register = Register;
    type Tx = TxRing<TxDescriptor>;
    type Rx = RxRing<RxDescriptor>;
    type Shared = ();

    fn reset<B: Bus>(nic: &mut E1000<B>) -> Result<(), ChipError> {
        nic.reset()
    }

    fn read_mac<B: Bus>(nic: &mut E1000<B>) -> Result<[u8; 6], ChipError> {
        nic.read_eeprom_mac()
    }

    fn start<B: Bus>(nic: &mut E1000<B>) -> Result<(), ChipError> {
        nic.start_link()?;
        nic.start_transmitter();
        nic.start_receiver();
        nic.registers.write(Register::ITR, nic.options.itr.into());
        nic.registers.read(Register::ICR);
        Ok(())
    }

    /// SDM 13.5.2.
    fn write_mac<B: Bus>(registers: &mut Registers<B>, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        registers.write(Register::RAL, u32::from_le_bytes([a, b, c, d]));
        let high = u32::from_le_bytes([e, f, 0, 0]) | registers::RAH_AV;
        registers.write(Register::RAH, high);
    }

    /// The low half takes effect.
    fn place_csb<B: Bus>(registers: &mut Registers<B>, address: u64) {
        let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
        registers.write(Register::CSBAH, u32::from_le_bytes([e, f, g, h]));
        registers.write(Register::CSBAL, u32::from_le_bytes([a, b, c, d]));
    }

    /// SDM 13.4.40.
    #[inline]
    fn ring<B: Bus>(registers: &mut Registers<B>, tx: &mut Self::Tx) -> bool {
        registers.write(Register::TDT, TxSide::<Register>::tail(tx).into())
    }

    /// SDM 13.4.29.
    #[inline]
    fn give<B: Bus>(registers: &mut Registers<B>, rx: &mut Self::Rx) {
        registers.write(Register::RDT, RxSide::<Register>::tail(rx).into());
    }

    fn head<B: Bus>(registers: &mut Registers<B>) -> u32 {
        registers.read(Register::TDH)
    }

    fn causes<B: Bus>(nic: &mut E1000<B>) -> u32 {
        nic.registers.read(Register::ICR)
    }

    /// SDM 13.4.17: what is written as 1 is cleared.
    fn clear<B: Bus>(nic: &mut E1000<B>) {
        nic.registers.write(Register::ICR, u32::MAX);
    }

    fn mask<B: Bus>(nic: &mut E1000<B>) {
        nic.registers.write(Register::IMC, u32::MAX);
    }

    fn enable<B: Bus>(nic: &mut E1000<B>, old: u32, new: u32) {
        let (less, more) = (old & !new, new & !old);
        if less != 0 {
            nic.registers.write(Register::IMC, less);
        }
        if more != 0 {
            nic.registers.write(Register::IMS, more);
        }
    }

    /// A read pushes posted writes before it.
    fn settle<B: Bus>(registers: &mut Registers<B>) {
        registers.read(Register::STATUS);
    }
}
