//! BAR0, word by word: what reads and writes of a register do beside loading and storing it.
//!
//! Registers are 32 bits wide (SDM 13.2). Of an access of another size or alignment, a read returns
//! the bytes it asks for (and has the effects of reading each word that it touches), and a write
//! stores the words that it covers whole.

use std::sync::atomic::Ordering;

use super::cause;
use super::chip::Intel;
use super::model::{Block, Model};
use super::regs::*;
use crate::chip::{After, ControlOf, Controlled, Interrupts};

/// Bits of CTRL that clear themselves. PHY_RST stays until software clears it.
const CTRL_SELF_CLEARING: u32 = bit::CTRL_RST;
const CTRL_EXT_EE_RST: u32 = 1 << 13; // CTRL_EXT.EE_RST: reload the EEPROM.

impl<M: Model> Intel<M> {
    /// A register as read. Reads past the last one give 0, as reserved registers do; in D3 nothing
    /// answers.
    pub(crate) fn read_register(&self, offset: u32) -> u32 {
        let Some(row) = self.regs.touch(offset, false) else { return 0 };
        match offset {
            _ if self.asleep.load(Ordering::Relaxed) => u32::MAX,
            CTRL_DUP => self.ctrl(),
            EECD => self.control().eeprom.read(),
            ICR => {
                let (value, edge) = self.core.irq.take();
                self.core.tell(edge);
                self.link_is_read(value);
                value
            }
            ICS => self.core.irq.causes(),
            IMS => self.core.irq.mask(),
            // Write-only.
            IMC => 0,
            STATUS | EERD | MDIC | PBA => self.regs.get(offset),
            STATS..STATS_END => self.statistic(offset),
            // A store to a mapped page may have set any bit.
            PAGES_START..PAGES_END => self.regs.get(offset) & row.mask,
            _ => M::read(self, offset),
        }
    }

    /// A register as written.
    pub(crate) fn write_register(&self, offset: u32, value: u32) {
        let Some(row) = self.regs.touch(offset, true) else { return };
        if self.asleep.load(Ordering::Relaxed) {
            return;
        }
        let masked = value & row.mask;
        match offset {
            CTRL | CTRL_DUP => self.with_control(|control| self.write_ctrl(control, masked)),
            EECD | EERD | CTRL_EXT | MDIC | RCTL => {
                self.with_control(|control| self.write_controlled(control, offset, masked));
            }
            ICR | ICS | IMS | IMC => self.write_interrupt(offset, value),
            TCTL => self.write_tctl(masked),
            PBA => self.regs.set(PBA, write_pba::<M>(masked)),
            ITR | RADV | TADV | RDTR | TIDV => self.write_delay(offset, value, masked),
            RDBAL..=RDT | TDBAL..=TDT | RDBAL1..=RDT1 | TDBAL1..=TDT1 => {
                self.write_ring(offset, masked);
            }
            CSBAL | CSBAH => self.write_csb(offset, masked),
            VET | RXCSUM | MTA..FILTERS_END => self.set_filter(offset, masked),
            _ if row.mask == 0 => {}
            _ => M::write(self, offset, masked),
        }
    }

    /// The ring registers. Only writes to the tails count as doorbells, but any of them may make a
    /// ring good.
    fn write_ring(&self, offset: u32, value: u32) {
        self.regs.set(offset, value);
        match offset {
            TDT | TDT1 => self.core.counters.input.notifications.add_shared(1),
            RDT | RDT1 => self.core.counters.rx_doorbells.add_shared(1),
            _ => {}
        }
        if offset < TDBAL {
            self.core.ring_rx();
        } else {
            self.core.ring_tx();
        }
    }

    /// Registers that the receive side keeps a digest of.
    pub(crate) fn set_filter(&self, offset: u32, value: u32) {
        self.regs.set(offset, value);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    fn write_ctrl(&self, control: &mut ControlOf<Self>, value: u32) -> After {
        if value & CTRL_SELF_CLEARING != 0 {
            return self.reset_mac(control, false);
        }
        let before = self.ctrl();
        self.set_filter(CTRL, value);
        let rises = value & !before & bit::CTRL_PHY_RST != 0;
        if rises {
            self.reset_phy(control);
        }
        self.update_link(control, rises)
    }

    fn write_controlled(&self, control: &mut ControlOf<Self>, offset: u32, value: u32) -> After {
        match offset {
            EECD => control.eeprom.write(value),
            EERD => self.regs.set(EERD, control.eeprom.read_word(value)),
            CTRL_EXT => {
                // EE_RST clears itself.
                M::write(self, CTRL_EXT, value & !CTRL_EXT_EE_RST);
                if value & CTRL_EXT_EE_RST != 0 {
                    self.load_eeprom(control);
                }
            }
            MDIC => return self.write_mdic(control, value),
            _ => return self.write_rctl(control, value),
        }
        After::default()
    }

    fn write_mdic(&self, control: &mut ControlOf<Self>, value: u32) -> After {
        let done = control.phy.transfer(value);
        self.regs.set(MDIC, done.mdic);
        let mut after = self.update_link(control, done.flapped);
        if done.interrupt {
            after.causes |= cause::MDAC;
        }
        after
    }

    fn write_rctl(&self, control: &mut ControlOf<Self>, value: u32) -> After {
        let before = self.regs.get(RCTL);
        self.set_filter(RCTL, value);
        let mut after = self.update_link(control, false);
        if before & !value & bit::RCTL_EN != 0 {
            self.core.stop_rx(self);
        }
        after.ring_rx |= value & bit::RCTL_EN != 0;
        after
    }

    fn write_tctl(&self, value: u32) {
        let before = self.regs.get(TCTL);
        self.regs.set(TCTL, value);
        if before & !value & bit::TCTL_EN != 0 {
            self.core.stop_tx(self);
        }
        if value & bit::TCTL_EN != 0 {
            self.core.ring_tx();
        }
    }

    fn write_interrupt(&self, offset: u32, value: u32) {
        let (delays, irq, host) = (self.windows(), &self.core.irq, &*self.core.host);
        if offset == ICS && value & cause::LSC != 0 {
            self.link_is_news();
        }
        self.core.tell(match offset {
            ICR => irq.ack(value, delays, host),
            ICS => irq.post(value, delays, host),
            IMS => irq.set_mask(value, delays, host),
            _ => irq.clear_mask(value, delays, host),
        });
    }

    fn statistic(&self, offset: u32) -> u32 {
        let core = &self.core;
        self.stats.read(offset, &core.stats, &core.counters).unwrap_or(0)
    }

    /// A write of CSBAL places the CSB, or releases it (0). All ones in CSBAH released it once, for
    /// three days of 2013.
    fn write_csb(&self, register: u32, value: u32) {
        self.regs.set(register, value);
        let high = self.regs.get(CSBAH);
        let address = u64::from(self.regs.get(CSBAL)) | u64::from(high) << 32;
        match (register, high) {
            (_, u32::MAX) => self.core.place_csb(self, 0),
            (CSBAL, _) => self.core.place_csb(self, address),
            _ => {}
        }
    }

    fn write_delay(&self, offset: u32, value: u32, masked: u32) {
        self.regs.set(offset, masked);
        if matches!(offset, RDTR | TIDV) && value & bit::FPD != 0 {
            self.flush(offset);
        } else {
            self.core.remoderate(self);
        }
    }
}

/// PBA: software chooses the receiver's share, the transmitter gets the rest.
fn write_pba<M: Model>(value: u32) -> u32 {
    let receive = value & 0xffff;
    receive | M::PACKET_BUFFER.saturating_sub(receive).max(M::TRANSMIT_BUFFER) << 16
}
