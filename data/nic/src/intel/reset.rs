//! Resets (SDM 14.7): of the PCI function, of the MAC (CTRL.RST), and out of D3.
//!
//! | kept by | RST#, power-on | CTRL.RST |
//! | --- | --- | --- |
//! | configuration space | no | yes |
//! | PHY registers | no | yes (CTRL.PHY_RST resets them) |
//! | PBA, wake-up registers | no | yes |
//! | the CSB | no | yes (FreeBSD places it before its first reset, and never again) |
//! | what the EEPROM stores | yes | yes |
//! | everything else | no | no |

use std::sync::atomic::Ordering;

use super::chip::Intel;
use super::model::{Block, Model};
use super::regs::{CTRL, PBA, RA, RCTL, STATUS, TCTL};
use crate::chip::{After, ControlOf, ReceiveSide, TransmitSide};

impl<M: Model> Intel<M> {
    /// All but configuration space.
    pub(crate) fn reset_function(&self, control: &mut ControlOf<Self>) -> After {
        control.phy.reset();
        self.set_ioaddr(0);
        self.reset_mac(control, true)
    }

    /// CTRL.RST, or more. When it returns, no DMA of before runs any more.
    pub(crate) fn reset_mac(&self, control: &mut ControlOf<Self>, power_on: bool) -> After {
        let pba = self.regs.get(PBA);
        // A pass that starts from here on finds both sides off.
        self.regs.set(TCTL, 0);
        self.regs.set(RCTL, 0);
        let edge = self.core.stopped(|tx, rx| {
            let status = self.regs.get(STATUS);
            self.regs.reset(power_on);
            self.regs.set(STATUS, status);
            if power_on {
                self.core.drop_csb(self, tx, rx);
            } else {
                self.regs.set(PBA, pba);
            }
            tx.reset(self);
            rx.stop(self);
            self.stats.clear(&self.core.stats, &self.core.counters);
            self.core.irq.reset()
        });
        M::reset(self);
        self.load_eeprom(control);
        self.filter_version.fetch_add(1, Ordering::Release);
        // The link goes down without a cause: LSC would be latched in a chip that has just cleared
        // all causes.
        let _ = self.update_link(control, false);
        After { edge, ..After::default() }
    }

    /// What the EEPROM initializes (SDM 5.6): the address, here.
    pub(crate) fn load_eeprom(&self, control: &mut ControlOf<Self>) {
        control.eeprom.reset();
        let (low, high) = control.eeprom.address();
        self.regs.set(RA, low);
        self.regs.set(RA + 4, high);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    /// CTRL.PHY_RST was set.
    pub(crate) fn reset_phy(&self, control: &mut ControlOf<Self>) {
        control.phy.reset();
    }

    /// CTRL as it stands, without bits that clear themselves.
    pub(crate) fn ctrl(&self) -> u32 {
        self.regs.get(CTRL)
    }
}
