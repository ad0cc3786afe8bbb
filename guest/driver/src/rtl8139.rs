//! The RTL8139 in classic mode, as Linux's `8139too` drives it: four pairs of registers for
//! transmission, and one buffer in which the chip writes received frames one after the other. In C+
//! mode it is [`crate::realtek::Rtl8139`].
//!
//! ```text
//!  a frame out   W TSDn                  interrupt: R ISR, W ISR; R TSDn for each frame under way
//!  frames in     interrupt: R ISR, W IMR; then R ISR; for each frame R CR, W CAPR, R ISR,
//!                W ISR if it was set; R CR, W IMR
//! ```

mod rx;
#[cfg(test)]
mod tests;
mod tx;

use crate::chip::{Bus, Causes, Chip, ChipDriver, ChipError, Model};
use crate::realtek::registers::{self, Register, cause, cr, rcr};
use crate::realtek::{self, Registers};
pub use rx::{Buffer, Copied};
pub use tx::Pairs;

/// The chip in this mode.
#[derive(Debug)]
pub struct Classic;

/// An RTL8139 and its buffers.
pub type Rtl8139Classic<B> = ChipDriver<Classic, B>;

/// Addresses have 32 bits.
fn near(address: u64) -> Result<u32, ChipError> {
    u32::try_from(address).map_err(|_| ChipError::Far(address))
}

impl Chip for Classic {
    const MODEL: Model = Model::Rtl8139Classic;
    const CAUSES: Causes =
        Causes { sent: cause::TX, received: cause::RX, link: cause::LINK, csb: 0 };
    const TAILS: bool = false;
    const MASKS_SENT: bool = false;
    type Register = Register;
    type Tx = Pairs;
    type Rx = Buffer;
    type Shared = ();

    fn reset<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError> {
        realtek::reset(nic)
    }

    fn read_mac<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<[u8; 6], ChipError> {
        let mac = realtek::read_mac(&mut nic.registers);
        nic.check().map(|()| mac)
    }

    fn start<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError> {
        realtek::link_of_8139(nic).ok_or(ChipError::NoLink)?;
        let buffer = near(nic.rx.base())?;
        let (options, registers) = (&nic.options, &mut nic.registers);
        registers.write(Register::RBSTART, buffer);
        registers.write(Register::CR, cr::TE | cr::RE);
        registers.write(Register::TCR, registers::TCR_PLAIN);
        realtek::start_receiver(registers, options, rcr::WRAP | nic.rx.rblen() << rcr::RBLEN);
        for (register, address) in tx::TSAD.into_iter().zip(nic.tx.addresses()) {
            registers.write(register, near(address)?);
        }
        registers.write(Register::ISR, cause::ALL);
        nic.check()
    }

    fn write_mac<B: Bus>(registers: &mut Registers<B>, mac: [u8; 6]) {
        realtek::write_mac(registers, mac);
    }

    /// No CSB: it has the indexes of rings, which this mode does not have.
    fn place_csb<B: Bus>(_: &mut Registers<B>, _address: u64) {}

    /// TSDn of each frame.
    fn ring<B: Bus>(registers: &mut Registers<B>, tx: &mut Pairs) -> bool {
        tx.publish(registers)
    }

    /// CAPR was written while frames were copied.
    fn give<B: Bus>(_: &mut Registers<B>, _: &mut Buffer) {}

    fn causes<B: Bus>(nic: &mut Rtl8139Classic<B>) -> u32 {
        nic.registers.read(Register::ISR)
    }

    /// Those of received frames with each of them.
    fn acknowledge<B: Bus>(nic: &mut Rtl8139Classic<B>, causes: u32) -> bool {
        causes & !cause::RX != 0 && nic.registers.write(Register::ISR, causes & !cause::RX)
    }

    fn mask<B: Bus>(nic: &mut Rtl8139Classic<B>) {
        nic.registers.write(Register::IMR, 0);
    }

    fn enable<B: Bus>(nic: &mut Rtl8139Classic<B>, _old: u32, new: u32) {
        nic.registers.write(Register::IMR, new);
    }

    fn settle<B: Bus>(registers: &mut Registers<B>) {
        registers.read(Register::IMR);
    }
}
