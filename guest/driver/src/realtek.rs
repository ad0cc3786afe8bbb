//! What Realtek's chips have in common: registers, descriptors of C+ mode, and how they are started
//! (datasheets of the RTL8139C+ and the RTL8169, and what their drivers do). [`R8169`] and
//! [`Rtl8139`] have rings of descriptors and differ little; an RTL8139 in classic mode is
//! [`crate::rtl8139::Classic`].

mod descriptor;
pub mod registers;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::chip::start::{LINK_PATIENCE, PATIENCE};
use crate::chip::{
    self, Bus, Causes, Chip, ChipDriver, ChipError, Model, Options, RxFormat, RxRing, TxRing,
};
use descriptor::{RxDescriptor, TxDescriptor};
use registers::{LOCK, NPQ, Register, UNLOCK, cause, cpcr, cr, rcr};

/// The registers of a chip.
pub(crate) type Registers<B> = chip::Registers<Register, B>;

/// Where two chips with descriptor rings differ.
pub trait Kind: Debug + Send + 'static {
    /// Which one.
    const MODEL: Model;
    /// TPPoll.
    const POLL: Register;
    /// A kernel's driver also masks interrupts while it looks for sent frames.
    const MASKS_SENT: bool;
    /// Bits that CPCR always has.
    const CPCR: u32;
    /// Its receive descriptors.
    type Rx: RxFormat;

    /// What else is to be set up.
    fn prepare<B: Bus>(_: &mut Registers<B>, _: &Options) {}
    /// Is there a link?
    fn link<B: Bus>(nic: &mut ChipDriver<Rings<Self>, B>) -> Option<u32>
    where
        Self: Sized;
}

/// A chip with rings of descriptors.
#[derive(Debug)]
pub struct Rings<K>(PhantomData<K>);

/// The RTL8169.
#[derive(Debug)]
pub struct Gigabit;

impl Kind for Gigabit {
    const MODEL: Model = Model::R8169;
    const POLL: Register = Register::TPPoll;
    const MASKS_SENT: bool = true;
    const CPCR: u32 = 0;
    type Rx = RxDescriptor<14>;

    fn prepare<B: Bus>(registers: &mut Registers<B>, options: &Options) {
        // The header, a tag and the CRC are not in the MTU.
        let longest = u32::from(options.mtu.max(1500)) + 14 + 4 + 4;
        registers.write(Register::RMS, longest);
        registers.write(Register::IntrMitigate, options.mitigate.into());
    }

    fn link<B: Bus>(nic: &mut ChipDriver<Rings<Self>, B>) -> Option<u32> {
        let is_up = |value| value & registers::PHY_LINK != 0;
        nic.until(Register::PHYStatus, LINK_PATIENCE, is_up)
    }
}

/// The RTL8139C+ in C+ mode.
#[derive(Debug)]
pub struct Plus;

impl Kind for Plus {
    const MODEL: Model = Model::Rtl8139Plus;
    const POLL: Register = Register::PollPlus;
    const MASKS_SENT: bool = false;
    const CPCR: u32 = cpcr::TXE | cpcr::RXE;
    type Rx = RxDescriptor<13>;

    fn link<B: Bus>(nic: &mut ChipDriver<Rings<Self>, B>) -> Option<u32> {
        link_of_8139(nic)
    }
}

/// Waits until an RTL8139 has a link.
pub(crate) fn link_of_8139<C, B>(nic: &mut ChipDriver<C, B>) -> Option<u32>
where
    C: Chip<Register = Register>,
    B: Bus,
{
    nic.until(Register::MSR, LINK_PATIENCE, |value| value & registers::MSR_LINKB == 0)
}

/// An RTL8169 and its rings.
pub type R8169<B> = ChipDriver<Rings<Gigabit>, B>;
/// An RTL8139C+ and its rings.
pub type Rtl8139<B> = ChipDriver<Rings<Plus>, B>;

/// Stops and resets any of the chips.
pub(crate) fn reset<C, B>(nic: &mut ChipDriver<C, B>) -> Result<(), ChipError>
where
    C: Chip<Register = Register>,
    B: Bus,
{
    nic.registers.write(Register::IMR, 0);
    nic.registers.write(Register::CR, cr::RST);
    nic.until(Register::CR, PATIENCE, |value| value & cr::RST == 0)
        .ok_or(ChipError::Stuck("its reset"))?;
    nic.registers.write(Register::IMR, 0);
    nic.registers.write(Register::ISR, cause::ALL);
    nic.check()
}

/// The address, which reset has fetched from the EEPROM.
pub(crate) fn read_mac<B: Bus>(registers: &mut Registers<B>) -> [u8; 6] {
    let [a, b, c, d] = registers.read(Register::IDR0).to_le_bytes();
    let [e, f, ..] = registers.read(Register::IDR4).to_le_bytes();
    [a, b, c, d, e, f]
}

pub(crate) fn write_mac<B: Bus>(registers: &mut Registers<B>, mac: [u8; 6]) {
    let [a, b, c, d, e, f] = mac;
    registers.write(Register::EECR, UNLOCK);
    registers.write(Register::IDR4, u32::from_le_bytes([e, f, 0, 0]));
    registers.write(Register::IDR0, u32::from_le_bytes([a, b, c, d]));
    registers.write(Register::EECR, LOCK);
}

/// What is received, and how.
pub(crate) fn start_receiver<B: Bus>(registers: &mut Registers<B>, options: &Options, more: u32) {
    let all = if options.promisc { rcr::AAP | rcr::AM } else { 0 };
    let hash = if options.promisc { u32::MAX } else { 0 };
    registers.write(Register::RCR, rcr::BURSTS | rcr::APM | rcr::AB | all | more);
    registers.write(Register::MAR0, hash);
    registers.write(Register::MAR4, hash);
}

/// A register of 64 bits, the high half first.
fn write_wide<B: Bus>(registers: &mut Registers<B>, low: Register, high: Register, address: u64) {
    let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
    registers.write(high, u32::from_le_bytes([e, f, g, h]));
    registers.write(low, u32::from_le_bytes([a, b, c, d]));
}

impl<K: Kind> Chip for Rings<K> {
    const MODEL: Model = K::MODEL;
    const CAUSES: Causes =
        Causes { sent: cause::TX, received: cause::RX, link: cause::LINK, csb: cause::TDU };
    const TAILS: bool = false;
    const MASKS_SENT: bool = K::MASKS_SENT;
    type Register = Register;
    type Tx = TxRing<TxDescriptor>;
    type Rx = RxRing<K::Rx>;
    type Shared = ();

    fn reset<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError> {
        reset(nic)
    }

    fn read_mac<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<[u8; 6], ChipError> {
        let mac = read_mac(&mut nic.registers);
        nic.check().map(|()| mac)
    }

    fn start<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError> {
        K::link(nic).ok_or(ChipError::NoLink)?;
        let (options, registers) = (&nic.options, &mut nic.registers);
        let checksum = if options.checksum { cpcr::RX_CHECKSUM } else { 0 };
        registers.write(Register::EECR, UNLOCK);
        registers.write(Register::CPCR, K::CPCR | checksum | u32::from(options.mitigate_unit));
        K::prepare(registers, options);
        write_wide(registers, Register::TNPDS, Register::TNPDSH, nic.tx.base());
        write_wide(registers, Register::RDSAR, Register::RDSARH, nic.rx.base());
        registers.write(Register::EECR, LOCK);
        registers.write(Register::CR, cr::TE | cr::RE);
        registers.write(Register::TCR, registers::TCR_PLAIN);
        start_receiver(registers, options, 0);
        registers.write(Register::ISR, cause::ALL);
        nic.check()
    }

    fn write_mac<B: Bus>(registers: &mut Registers<B>, mac: [u8; 6]) {
        write_mac(registers, mac);
    }

    /// The low half takes effect.
    fn place_csb<B: Bus>(registers: &mut Registers<B>, address: u64) {
        write_wide(registers, Register::CSBAL, Register::CSBAH, address);
    }

    #[inline]
    fn ring<B: Bus>(registers: &mut Registers<B>, _: &mut Self::Tx) -> bool {
        registers.write(K::POLL, NPQ)
    }

    /// These chips have no doorbell for buffers: with a shared status block any write of TPPoll is
    /// one, and this one does nothing else.
    #[inline]
    fn give<B: Bus>(registers: &mut Registers<B>, _: &mut Self::Rx) {
        registers.write(K::POLL, 0);
    }

    fn causes<B: Bus>(nic: &mut ChipDriver<Self, B>) -> u32 {
        nic.registers.read(Register::ISR)
    }

    fn acknowledge<B: Bus>(nic: &mut ChipDriver<Self, B>, causes: u32) -> bool {
        nic.registers.write(Register::ISR, causes)
    }

    fn mask<B: Bus>(nic: &mut ChipDriver<Self, B>) {
        nic.registers.write(Register::IMR, 0);
    }

    fn enable<B: Bus>(nic: &mut ChipDriver<Self, B>, _old: u32, new: u32) {
        nic.registers.write(Register::IMR, new);
    }

    /// A read pushes posted writes before it.
    fn settle<B: Bus>(registers: &mut Registers<B>) {
        registers.read(Register::IMR);
    }
}
