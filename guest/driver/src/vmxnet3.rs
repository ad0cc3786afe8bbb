//! VMware's vmxnet3, versions 1 to 3, as public drivers (Linux, FreeBSD, OpenBSD, DPDK) and QEMU's
//! model show it; there is no public specification. One transmit and one receive queue.
//!
//! ```text
//!  start         shared area and rings in memory; DSAL, DSAH, CMD = activate; W RXPROD, RXPROD2
//!  a frame out   descriptors; W TXPROD if the device's threshold is reached
//!  frames in     interrupt, which masks itself (INTx: R ICR); reports; buffers; W RXPROD if the
//!                device wants that; W IMR0
//! ```

mod completions;
pub mod registers;
mod rx;
mod shared;
#[cfg(test)]
mod tests;
mod tx;

use std::time::Instant;

use crate::chip::start::LINK_PATIENCE;
use crate::chip::{self, Bus, Causes, Chip, ChipDriver, ChipError, Irq, Model, TxRing, TxSide};
use crate::notify::threshold;
use registers::{Register, command};
pub use rx::{Rings, Said};
pub use shared::{Area, Counters};
pub use tx::TxDescriptor;

/// The chip.
#[derive(Debug)]
pub struct Vmware;

/// A vmxnet3 and its rings.
pub type Vmxnet3<B> = ChipDriver<Vmware, B>;
/// Its registers.
type Registers<B> = chip::Registers<Register, B>;

/// Causes, which only the driver tells apart: one interrupt is for all.
mod cause {
    pub(super) const SENT: u32 = 1;
    pub(super) const RECEIVED: u32 = 2;
    pub(super) const LINK: u32 = 4;
}

/// Gives a command; what the device answers.
fn execute<B: Bus>(registers: &mut Registers<B>, command: u32) -> u32 {
    registers.write(Register::CMD, command);
    registers.read(Register::CMD)
}

fn write_wide<B: Bus>(registers: &mut Registers<B>, value: u64) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    registers.write(Register::DSAL, u32::from_le_bytes([a, b, c, d]));
    registers.write(Register::DSAH, u32::from_le_bytes([e, f, g, h]));
}

fn mac_of(low: u32, high: u32) -> [u8; 6] {
    let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
    [a, b, c, d, e, f]
}

impl<B: Bus> Vmxnet3<B> {
    /// # Errors
    /// [`ChipError::Refused`] when the device does not answer 0.
    fn demand(&mut self, command: u32, what: &'static str) -> Result<(), ChipError> {
        let answer = execute(&mut self.registers, command);
        self.check()?;
        if answer == 0 { Ok(()) } else { Err(ChipError::Refused { what, answer }) }
    }

    /// The latest version that both sides know.
    fn choose_versions(&mut self) -> Result<(), ChipError> {
        let offered = self.registers.read(Register::VRRS);
        let upt = self.registers.read(Register::UVRS);
        self.check()?;
        let version = registers::VERSIONS.into_iter().find(|version| offered & version != 0);
        let Some(version) = version.filter(|_| upt & registers::UPT_1 != 0) else {
            return Err(ChipError::Refused { what: "all known versions", answer: offered });
        };
        self.registers.write(Register::VRRS, version);
        self.registers.write(Register::UVRS, registers::UPT_1);
        Ok(())
    }

    fn wait_for_link(&mut self) -> Result<(), ChipError> {
        let end = Instant::now() + LINK_PATIENCE;
        while execute(&mut self.registers, command::GET_LINK) & registers::LINK_UP == 0 {
            if Instant::now() > end {
                return Err(ChipError::NoLink);
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        self.check()
    }

    /// What the device has counted since it was activated, of transmission and of reception.
    pub fn counters(&mut self) -> [Counters; 2] {
        execute(&mut self.registers, command::GET_STATS);
        self.shared.counters()
    }

    /// Tags of received frames are taken off and reported, or not.
    pub fn strip_tags(&mut self, on: bool) {
        let features = self.shared.get(shared::at::FEATURES) & !shared::STRIP_TAGS;
        let strip = if on { shared::STRIP_TAGS } else { 0 };
        self.shared.set(shared::at::FEATURES, features | strip);
        execute(&mut self.registers, command::UPDATE_FEATURE);
    }
}

impl Chip for Vmware {
    const MODEL: Model = Model::Vmxnet3;
    const CAUSES: Causes =
        Causes { sent: cause::SENT, received: cause::RECEIVED, link: cause::LINK, csb: 0 };
    const TAILS: bool = true;
    const MASKS_SENT: bool = true;
    type Register = Register;
    type Tx = TxRing<TxDescriptor>;
    type Rx = Rings;
    type Shared = Area;

    fn masks_itself(_: &chip::Options) -> bool {
        true
    }

    fn reset<B: Bus>(nic: &mut Vmxnet3<B>) -> Result<(), ChipError> {
        nic.registers.write(Register::IMR0, 1);
        nic.registers.write(Register::IMR1, 1);
        nic.choose_versions()?;
        nic.demand(command::RESET, "a reset")
    }

    fn read_mac<B: Bus>(nic: &mut Vmxnet3<B>) -> Result<[u8; 6], ChipError> {
        let low = execute(&mut nic.registers, command::GET_PERM_MAC_LO);
        let high = execute(&mut nic.registers, command::GET_PERM_MAC_HI);
        nic.check().map(|()| mac_of(low, high))
    }

    fn start<B: Bus>(nic: &mut Vmxnet3<B>) -> Result<(), ChipError> {
        nic.wait_for_link()?;
        nic.shared.fill(&nic.options, nic.rx.longest());
        let ring = (nic.tx.base(), nic.options.size);
        nic.shared.set_tx(ring, nic.tx.format().completions());
        nic.shared.set_rx(nic.rx.rings(), nic.rx.completions());
        write_wide(&mut nic.registers, nic.shared.base());
        nic.demand(command::ACTIVATE, "its activation")?;
        Self::give(&mut nic.registers, &mut nic.rx);
        execute(&mut nic.registers, command::UPDATE_RX_MODE);
        if nic.options.irq == Irq::Msix {
            nic.registers.write(Register::IMR1, 0);
        }
        nic.check()
    }

    fn write_mac<B: Bus>(registers: &mut Registers<B>, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        registers.write(Register::MACL, u32::from_le_bytes([a, b, c, d]));
        registers.write(Register::MACH, u32::from_le_bytes([e, f, 0, 0]));
    }

    /// It has thresholds in memory of its own.
    fn place_csb<B: Bus>(_: &mut Registers<B>, _address: u64) {}

    #[inline]
    fn ring<B: Bus>(registers: &mut Registers<B>, tx: &mut Self::Tx) -> bool {
        registers.write(Register::TXPROD, TxSide::<Register>::tail(tx).into())
    }

    #[inline]
    fn wants_frames(area: &Area, tx: &mut Self::Tx) -> bool {
        threshold::send(area, tx.format_mut().take_fresh())
    }

    fn give<B: Bus>(registers: &mut Registers<B>, rx: &mut Rings) {
        let doorbells = [Register::RXPROD, Register::RXPROD2];
        for (register, tail) in doorbells.into_iter().zip(rx.take_untold()) {
            if let Some(tail) = tail {
                registers.write(register, tail.into());
            }
        }
    }

    #[inline]
    fn wants_buffers(area: &Area, rx: &Rings) -> bool {
        rx.may_tell() && threshold::refill(area)
    }

    /// It does not say which, so all of them, unless another device has interrupted.
    fn causes<B: Bus>(nic: &mut Vmxnet3<B>) -> u32 {
        let ours = nic.options.irq != Irq::Intx || nic.registers.read(Register::ICR) != 0;
        if ours { u32::MAX } else { 0 }
    }

    /// Events, which have nothing to do with frames, are told in memory.
    fn acknowledge<B: Bus>(nic: &mut Vmxnet3<B>, _causes: u32) -> bool {
        let events = nic.shared.get(shared::at::EVENTS);
        if events != 0 {
            nic.registers.write(Register::ECR, events);
            if nic.options.irq == Irq::Msix {
                nic.registers.write(Register::IMR1, 0);
            }
        }
        events != 0
    }

    /// The interrupt has masked itself.
    fn mask<B: Bus>(_: &mut Vmxnet3<B>) {}

    fn enable<B: Bus>(nic: &mut Vmxnet3<B>, old: u32, new: u32) {
        if old == 0 || old == new {
            nic.registers.write(Register::IMR0, u32::from(new == 0));
            nic.shared.set_interrupts(true);
        }
    }

    fn settle<B: Bus>(registers: &mut Registers<B>) {
        registers.read(Register::IMR0);
    }
}
