//! The window of registers, in I/O space (BAR0) and in memory (BAR1): what reads and writes of a
//! register do beside loading and storing it.

use std::sync::atomic::Ordering;

use super::chip::R8169;
use super::regs::*;
use crate::bits::low32;
use crate::chip::{After, ControlOf, Controlled, TransmitSide};
use crate::realtek::cplus::Which;
use crate::realtek::isr;
use crate::realtek::regs::{Row, Write};
use crate::realtek::tally;

const MISSED: u64 = 0x00ff_ffff; // Bits of MPC.

impl R8169 {
    /// A register as read; in D3 nothing answers.
    pub(super) fn read_register(&self, row: &'static Row) -> u32 {
        match row.offset {
            _ if self.asleep.load(Ordering::Relaxed) => u32::MAX,
            IMR => self.core.irq.mask(),
            ISR => self.core.irq.causes(),
            TCTR => self.clock.count(),
            MPC => {
                let all = tally::missed(&self.core.stats, &self.core.counters);
                let missed = all.wrapping_sub(self.missed.load(Ordering::Relaxed));
                low32(missed.min(MISSED))
            }
            CR9346 => self.control().eeprom.read().into(),
            PHYAR => self.control().phy.access(),
            PHYSTATUS => self.control().phy.status(),
            offset => self.regs.get(offset),
        }
    }

    /// A register as written.
    pub(super) fn write_register(&self, write: &Write) {
        let repeats = self.core.may_repeat();
        match write.row.offset {
            IDR0 | IDR4 | CONFIG0..=CONFIG5 => self.write_locked(write),
            MAR0 | MAR4 | RCR | RMS => self.set_filter(write),
            DTCCR => self.write_tally(write),
            TNPDS..=THPDSH | RDSAR | RDSARH => self.write_place(write, repeats),
            CR => self.with_control(|control| self.write_command(control, write)),
            TPPOLL => self.write_poll(write.value),
            IMR | ISR => self.write_interrupt(write),
            TCR => self.with_control(|control| {
                self.regs.store(write);
                self.update_link(control, false)
            }),
            TCTR => {
                self.clock.restart();
                self.note_own();
            }
            MPC => self.clear_missed(),
            CR9346 => self.write_9346(write.value),
            TIMERINT => {
                let (_, limit) = self.regs.store(write);
                self.clock.set_limit(limit);
            }
            PHYAR => self.write_phy(write),
            CPCR | INTMIT => {
                self.set_filter(write);
                self.core.remoderate(self);
            }
            CSBAL | CSBAH => self.write_csb(write),
            _ => {
                self.regs.store(write);
            }
        }
    }

    /// What 9346CR must unlock.
    fn write_locked(&self, write: &Write) {
        let control = self.control();
        if control.eeprom.unlocked() {
            self.set_filter(write);
        }
    }

    /// Registers that the receive side keeps a digest of.
    fn set_filter(&self, write: &Write) {
        self.regs.store(write);
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    /// Where a ring is: the chip begins at its first descriptor, whatever was written there before
    /// (Linux writes it while the chip is on, in old releases). Frames may have moved since the
    /// same write was made by a process that has died, so it is not made again. The register is
    /// last, for it tells that it was made.
    fn write_place(&self, write: &Write, repeats: bool) {
        let (which, receives) = match write.row.offset {
            TNPDS | TNPDSH => (Which::Normal, false),
            THPDS | THPDSH => (Which::High, false),
            _ => (Which::Receive, true),
        };
        let before = self.regs.get(write.row.offset);
        if !repeats || (write.over(before) ^ before) & write.row.mask != 0 {
            self.rewind(which);
            self.regs.store(write);
        }
        if receives { self.core.ring_rx() } else { self.core.ring_tx() }
    }

    fn write_command(&self, control: &mut ControlOf<Self>, write: &Write) -> After {
        if write.value & cr::RST != 0 {
            return self.reset_mac(control, false);
        }
        let on = self.regs.get(CR);
        let new = write.over(on) & !on;
        // Rings begin again before the data path finds them on.
        if new & cr::TE != 0 {
            self.rewind(Which::Normal);
            self.rewind(Which::High);
        }
        if new & cr::RE != 0 {
            self.rewind(Which::Receive);
        }
        let (before, after) = self.regs.store(write);
        if before & !after & cr::TE != 0 {
            self.core.stop_tx(self);
        }
        if before & !after & cr::RE != 0 {
            self.core.stop_rx(self);
        }
        let on = |bit| after & bit != 0;
        After { ring_tx: on(cr::TE), ring_rx: on(cr::RE), ..After::default() }
    }

    /// A doorbell, whatever is written: for frames to send; and for buffers, which have none of
    /// their own.
    fn write_poll(&self, value: u32) {
        let counters = &self.core.counters;
        if value & (tppoll::HPQ | tppoll::NPQ) != 0 {
            counters.input.notifications.add_shared(1);
        } else {
            counters.rx_doorbells.add_shared(1);
        }
        self.core.ring_tx();
        self.core.ring_rx();
        if value & tppoll::FSWINT != 0 {
            self.core.post(self, isr::SWINT);
        }
    }

    /// Also a bell for buffers: a driver that has just given some to the chip tends to do this
    /// next.
    fn write_interrupt(&self, write: &Write) {
        let (delays, irq, host) = (self.windows(), &self.core.irq, &*self.core.host);
        self.core.tell(match write.row.offset {
            ISR => irq.ack_seen(write.value, delays, host),
            _ => irq.replace_mask(write.over(irq.mask()), delays, host),
        });
        self.core.ring_rx();
    }

    fn write_9346(&self, value: u32) {
        let [value, ..] = value.to_le_bytes();
        self.with_control(|control| {
            if control.eeprom.write(value) {
                self.load_eeprom(control);
            }
            After::default()
        });
    }

    /// The transfer begins with the byte that has the flag; other bytes wait for it.
    fn write_phy(&self, write: &Write) {
        let value = write.over(self.regs.get(PHYAR));
        self.regs.set(PHYAR, value);
        if write.covers >> 24 == 0 {
            return;
        }
        self.with_control(|control| {
            let flapped = control.phy.transfer(value);
            self.update_link(control, flapped)
        });
    }

    /// The statistics are dumped at once. What lies outside the guest's memory is lost, as on the
    /// bus.
    fn write_tally(&self, write: &Write) {
        self.regs.store(write);
        if write.value & tally::DUMP == 0 || !self.wire().dma {
            return;
        }
        let address = self.regs.address(DTCCR);
        let (stats, counters) = (&self.core.stats, &self.core.counters);
        let _written = self.core.stopped(|tx, _| {
            self.tally.dump(stats, counters, TransmitSide::<Self>::map(tx), address)
        });
    }

    /// A write of CSBAL places the CSB, or releases it (0).
    fn write_csb(&self, write: &Write) {
        self.regs.store(write);
        if write.row.offset == CSBAL {
            self.core.place_csb(self, self.regs.address(CSBAL));
        }
    }
}
