//! Intel's 82540EM after the 8254x software developer's manual (SDM), and the 82574L, its successor
//! with MSI-X: what only the drivers of these chips know. All else is in [`crate::chip`].

mod descriptor;
mod kind;
pub mod registers;
mod start;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use crate::chip::{
    self, Bus, Causes, Chip, ChipDriver, ChipError, Model, Options, RxRing, RxSide, TxRing, TxSide,
};
pub use descriptor::rx as rx_bits;
use descriptor::{RxDescriptor, TxDescriptor};
pub use kind::{I82540, I82574, Kind};
use registers::Register;

/// One of these chips.
#[derive(Debug)]
pub struct Family<K>(PhantomData<K>);
/// The 82540EM.
pub type Intel = Family<I82540>;
/// The 82574L.
pub type Intel82574 = Family<I82574>;

/// One of these chips and its rings.
pub type Driver<K, B> = ChipDriver<Family<K>, B>;
/// An 82540EM and its rings.
pub type E1000<B> = Driver<I82540, B>;
/// An 82574L and its rings: those of its first queues.
pub type E1000e<B> = Driver<I82574, B>;
/// Its registers.
pub type Registers<B> = chip::Registers<Register, B>;
/// A received frame.
pub type Frame = chip::Frame<RxDescriptor>;
/// Received frames that are not released yet.
pub type Batch = chip::Batch<RxDescriptor>;

impl<K: Kind> Chip for Family<K> {
    const MODEL: Model = K::MODEL;
    const CAUSES: Causes = K::CAUSES;
    const TAILS: bool = true;
    const MASKS_SENT: bool = true;
    type Register = Register;
    type Tx = TxRing<TxDescriptor>;
    type Rx = RxRing<K::Received>;
    type Shared = ();

    /// If ICR need not be read: then a message has masked what it was about, and nothing else is
    /// cleared. That of the other direction may come meanwhile: one interrupt too many.
    fn masks_itself(options: &Options) -> bool {
        !K::reports(options)
    }

    fn reset<B: Bus>(nic: &mut Driver<K, B>) -> Result<(), ChipError> {
        nic.reset()
    }

    fn read_mac<B: Bus>(nic: &mut Driver<K, B>) -> Result<[u8; 6], ChipError> {
        nic.read_eeprom_mac()
    }

    fn start<B: Bus>(nic: &mut Driver<K, B>) -> Result<(), ChipError> {
        nic.start_link()?;
        K::start(nic);
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

    fn causes<B: Bus>(nic: &mut Driver<K, B>) -> u32 {
        if K::reports(&nic.options) { nic.registers.read(Register::ICR) } else { u32::MAX }
    }

    /// SDM 13.4.17: what is written as 1 is cleared.
    fn clear<B: Bus>(nic: &mut Driver<K, B>) {
        if K::reports(&nic.options) {
            nic.registers.write(Register::ICR, u32::MAX);
        }
    }

    fn mask<B: Bus>(nic: &mut Driver<K, B>) {
        nic.registers.write(Register::IMC, u32::MAX);
    }

    fn enable<B: Bus>(nic: &mut Driver<K, B>, old: u32, new: u32) {
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
