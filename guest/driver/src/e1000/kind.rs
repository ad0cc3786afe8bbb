//! What tells the two chips apart.

use std::fmt::Debug;

use super::Driver;
use super::descriptor::{ExtendedDescriptor, RxDescriptor};
use super::registers::{Register, cause, eerd, vectors};
use crate::chip::{Bus, Causes, Irq, Model, Options, RxFormat};

/// One of the two.
pub trait Kind: Debug + Sized + Send + 'static {
    /// Which one.
    const MODEL: Model;
    /// See [`crate::chip::Chip::CAUSES`].
    const CAUSES: Causes;
    /// Bits of EERD.
    const EERD: eerd::Layout;
    /// Its receive descriptors.
    type Received: RxFormat;

    /// Starts what the other one has not, before both sides are.
    fn start<B: Bus>(_: &mut Driver<Self, B>) {}
    /// ICR says which causes stand. Where it does not, an interrupt may have been about any.
    fn reports(_: &Options) -> bool {
        true
    }
}

/// The 82540EM.
#[derive(Debug)]
pub struct I82540;

impl Kind for I82540 {
    const MODEL: Model = Model::E1000;
    const CAUSES: Causes =
        Causes { sent: cause::TXDW, received: cause::RX, link: cause::LSC, csb: cause::TXQE };
    const EERD: eerd::Layout = eerd::I82540;
    type Received = RxDescriptor;
}

/// The 82574L. With MSI-X frames of both directions have vector 0, whose message clears and masks
/// their causes, and the rest has vector 1.
#[derive(Debug)]
pub struct I82574;

/// What the message of vector 0 is about.
const FRAMES: u32 = cause::RXQ0 | cause::TXQ0;

impl Kind for I82574 {
    const MODEL: Model = Model::E1000e;
    const CAUSES: Causes = Causes {
        sent: cause::TXDW | cause::TXQ0,
        received: cause::RX | cause::RXQ0,
        link: cause::LSC,
        csb: 0,
    };
    const EERD: eerd::Layout = eerd::I82574;
    type Received = ExtendedDescriptor;

    fn start<B: Bus>(nic: &mut Driver<Self, B>) {
        let registers = &mut nic.registers;
        registers.write(Register::RFCTL, vectors::RFCTL_EXTEN);
        if nic.options.irq == Irq::Msix {
            registers.write(Register::IVAR, vectors::IVAR);
            registers.write(Register::EIAC, FRAMES);
            registers.write(Register::IAM, FRAMES);
            registers.write(Register::EITR, nic.options.itr.into());
            let value = registers.read(Register::CTRLEXT);
            registers.write(Register::CTRLEXT, value | vectors::CTRL_EXT_EIAME);
        }
    }

    fn reports(options: &Options) -> bool {
        options.irq != Irq::Msix
    }
}
