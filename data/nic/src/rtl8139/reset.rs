//! Resets, configuration space, the link.
//!
//! | kept by | RST#, power-on | CR.RST |
//! | --- | --- | --- |
//! | configuration space | no | yes |
//! | IDR, MAR, CONFIG, wake-up registers | no | yes |
//! | PHY registers | no | yes |
//! | the CSB | no | yes |
//! | what the EEPROM stores | yes | yes |
//! | everything else | no | no |

use std::sync::atomic::Ordering;

use super::buffer::Look;
use super::chip::{Rtl8139, wire};
use super::regs::*;
use crate::chip::{After, ControlOf};
use crate::realtek::isr;

mod msr {
    pub const SPEED_10: u32 = 1 << 3; // 10 Mbit/s.
    pub const LINKB: u32 = 1 << 2; // No link.
}

const CON_STATUS: u32 = 1 << 3; // CSCR: the link is up.

impl Rtl8139 {
    /// All but configuration space.
    pub(super) fn reset_function(&self, control: &mut ControlOf<Self>) -> After {
        control.phy.reset();
        control.eeprom.reset();
        let mut after = self.reset_chip(control, true);
        self.tally.clear(&self.core.stats, &self.core.counters);
        self.load_eeprom(control);
        // The link goes down without a cause: it would be latched in a chip that has just cleared
        // all causes.
        after.merge(After { causes: 0, ..self.update_link(control, false) });
        after
    }

    /// CR.RST, or more. When it returns, no DMA of before runs any more.
    pub(super) fn reset_chip(&self, control: &mut ControlOf<Self>, power_on: bool) -> After {
        // A pass that starts from here on finds both sides off.
        self.regs.set(CR, 0);
        let edge = self.core.stopped(|tx, rx| {
            self.regs.reset(power_on);
            if power_on {
                self.core.drop_csb(self, tx, rx);
            }
            tx.restart(self);
            rx.restart(self);
            self.core.irq.reset()
        });
        let version = if self.regs.kind().plus { tcr::VERSION_PLUS } else { tcr::VERSION };
        self.regs.set(TCR, self.regs.get(TCR) | version);
        self.clock.reset();
        self.note_own();
        self.mpc.store(self.missed(), Ordering::Relaxed);
        self.filter_version.fetch_add(1, Ordering::Release);
        let after = After { causes: 0, ..self.update_link(control, false) };
        After { edge, ..after }
    }

    /// What the EEPROM initializes: the address.
    pub(super) fn load_eeprom(&self, control: &ControlOf<Self>) {
        let (low, high) = control.eeprom.address();
        self.regs.set(IDR0, low);
        self.regs.set(IDR4, high);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    /// Brings MSR, CSCR and what lets frames pass in line with the cable, the PHY and PCI.
    /// `flapped`: the link went down and up again in between. A change of the link posts LinkChg.
    pub(super) fn update_link(&self, control: &mut ControlOf<Self>, flapped: bool) -> After {
        let (link, mode) = (control.phy.link(), control.phy.mode());
        let speed = if mode.fast { 0 } else { msr::SPEED_10 };
        let status = speed | if link { 0 } else { msr::LINKB };
        self.regs.set(MSR, self.regs.get(MSR) & !(msr::SPEED_10 | msr::LINKB) | status);
        let connected = if link { CON_STATUS } else { 0 };
        self.regs.set(CSCR, self.regs.get(CSCR) & !CON_STATUS | connected);
        let bits = [
            (control.pci.may_dma(), wire::DMA),
            (link, wire::LINK),
            (control.pci.asleep(), wire::ASLEEP),
        ];
        let now = bits.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit);
        let before = self.wire.swap(now, Ordering::AcqRel);
        self.core.let_interrupts(&control.pci);
        let changed = (before ^ now) & wire::LINK != 0 || link && flapped;
        After {
            causes: if changed { isr::LINK } else { 0 },
            // Frames may wait since the gate was shut.
            ring_tx: before != now,
            ring_rx: before != now,
            ..After::default()
        }
    }

    /// The receive buffer is empty (CR.BUFE).
    pub(super) fn is_empty(&self) -> bool {
        Look::new(&self.regs).is_empty()
    }

    /// Makes it so.
    pub(super) fn empty(&self) {
        self.core.stopped(|_, rx| {
            self.regs.set(CAPR, 0xfff0);
            self.regs.set(CBR, 0);
            rx.restart(self);
        });
    }
}
