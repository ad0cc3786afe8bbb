//! Stopping a chip that goes back to the kernel: no interrupt, no DMA, no address of ours in it.
//!
//! The bus does this when it is dropped, after a panic of the driver too, so it knows these few
//! registers by itself.

use super::bus::Registers;
use crate::{Model, Width};

/// Registers of an 82540EM (SDM 13.4), all of 32 bits.
mod e1000 {
    pub const CTRL: u32 = 0x0000;
    pub const CTRL_RST: u32 = 1 << 26;
    pub const STATUS: u32 = 0x0008;
    pub const IMC: u32 = 0x00d8;
    pub const RCTL: u32 = 0x0100;
    pub const TCTL: u32 = 0x0400;
    pub const CSBAL: u32 = 0x2830;
    pub const CSBAH: u32 = 0x2834;
}

/// Registers of the Realtek chips.
mod realtek {
    pub const CR: u32 = 0x37;
    pub const CR_RST: u32 = 1 << 4;
    pub const IMR: u32 = 0x3c;
    pub const CSBAL: u32 = 0xf0;
    pub const CSBAH: u32 = 0xf4;
}

/// Registers of a vmxnet3, all of 32 bits: the second BAR begins at 1000h.
mod vmxnet3 {
    pub const IMR: [u32; 2] = [0x000, 0x008]; // Of the vectors that our driver uses.
    pub const CMD: u32 = 0x1020;
    pub const QUIESCE: u32 = 0xcafe_0001;
    pub const RESET: u32 = 0xcafe_0002;
}

/// Ends interrupts and DMA. `csb`: the chip has a shared status block, whose address must be
/// cleared.
pub(super) fn quiet(model: Model, registers: &Registers, csb: bool) {
    let write = |offset, width, value| registers.store(offset, width, value);
    let (low, high) = match model {
        Model::E1000 | Model::E1000e => {
            write(e1000::RCTL, Width::Four, 0);
            write(e1000::TCTL, Width::Four, 0);
            write(e1000::IMC, Width::Four, u32::MAX);
            // A reset leaves the CSB's address as it is: the FreeBSD driver depends on that.
            (e1000::CSBAL, e1000::CSBAH)
        }
        Model::R8169 | Model::Rtl8139Plus | Model::Rtl8139Classic => {
            write(realtek::IMR, Width::Two, 0);
            write(realtek::CR, Width::One, 0);
            (realtek::CSBAL, realtek::CSBAH)
        }
        Model::Vmxnet3 => {
            vmxnet3::IMR.iter().for_each(|imr| write(*imr, Width::Four, 1));
            write(vmxnet3::CMD, Width::Four, vmxnet3::QUIESCE);
            return;
        }
    };
    if csb {
        write(high, Width::Four, 0);
        write(low, Width::Four, 0);
    }
}

/// Resets the chip, once it is no longer a bus master.
pub(super) fn reset(model: Model, registers: &Registers) {
    match model {
        Model::E1000 | Model::E1000e => {
            let value = registers.load(e1000::CTRL, Width::Four);
            registers.store(e1000::CTRL, Width::Four, value | e1000::CTRL_RST);
            registers.load(e1000::STATUS, Width::Four);
        }
        Model::R8169 | Model::Rtl8139Plus | Model::Rtl8139Classic => {
            registers.store(realtek::CR, Width::One, realtek::CR_RST);
            registers.load(realtek::CR, Width::One);
        }
        Model::Vmxnet3 => {
            registers.store(vmxnet3::CMD, Width::Four, vmxnet3::RESET);
            registers.load(vmxnet3::CMD, Width::Four);
        }
    }
}
