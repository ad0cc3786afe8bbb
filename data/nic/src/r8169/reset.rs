//! Resets: of the PCI function, by CR.RST, and out of D3.
//!
//! | kept by | RST#, power-on | CR.RST |
//! | --- | --- | --- |
//! | configuration space | no | yes |
//! | PHY registers | no | yes |
//! | IDR, MAR, CONFIG0-5, wake-up registers | no | yes |
//! | statistics | no | yes |
//! | the CSB | no | yes |
//! | what the EEPROM stores | yes | yes |
//! | everything else | no | no |
//!
//! Descriptor addresses become 0, which means that there is no ring: a receiver that is turned on
//! too early writes nowhere.

use std::sync::atomic::Ordering;

use super::chip::R8169;
use super::regs::{CR, IDR0, IDR4, is_sticky};
use crate::chip::{After, ControlOf, ReceiveSide, TransmitSide};
use crate::realtek::tally;

impl R8169 {
    /// All but configuration space.
    pub(super) fn reset_function(&self, control: &mut ControlOf<Self>) -> After {
        control.phy.reset();
        self.reset_mac(control, true)
    }

    /// CR.RST, or more. When it returns, no DMA of before runs any more.
    pub(super) fn reset_mac(&self, control: &mut ControlOf<Self>, power_on: bool) -> After {
        // A pass that starts from here on finds both sides off.
        self.regs.set(CR, 0);
        let edge = self.core.stopped(|tx, rx| {
            self.regs.reset(|row| !power_on && is_sticky(row));
            if power_on {
                self.core.drop_csb(self, tx, rx);
                self.tally.clear(&self.core.stats, &self.core.counters);
            }
            self.rewind_all();
            tx.stop(self);
            rx.stop(self);
            self.core.irq.reset()
        });
        self.clock.reset();
        self.note_own();
        self.clear_missed();
        if power_on {
            self.load_eeprom(control);
        } else {
            control.eeprom.reset();
        }
        self.filter_version.fetch_add(1, Ordering::Release);
        let after = self.update_link(control, false);
        // The link of a chip that has just cleared all causes changes without a cause.
        After { edge, causes: 0, ..after }
    }

    /// What the EEPROM loads (9346CR, auto-load): the address, here.
    pub(super) fn load_eeprom(&self, control: &mut ControlOf<Self>) {
        control.eeprom.reset();
        let (low, high) = control.eeprom.address();
        self.regs.set(IDR0, low);
        self.regs.set(IDR4, high);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    /// MPC becomes 0.
    pub(super) fn clear_missed(&self) {
        let missed = tally::missed(&self.core.stats, &self.core.counters);
        self.missed.store(missed, Ordering::Relaxed);
    }
}
