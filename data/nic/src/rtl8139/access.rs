//! The registers, one by one: what reads and writes do beside loading and storing.

use std::sync::atomic::Ordering;

use super::chip::{Rtl8139, wire};
use super::regs::*;
use crate::bits::low32;
use crate::chip::{After, Chip, ChipCore, ControlOf, Controlled, TransmitSide};
use crate::realtek::isr;
use crate::realtek::regs::{Row, Write};
use crate::realtek::tally::{ADDRESS, DUMP};

/// TSAD (60h): a bit of each of TSD0 to TSD3, and where the four begin.
const SUMMARY: [(u32, u32); 4] = [(tsd::OWN, 0), (tsd::TABT, 4), (tsd::TUN, 8), (tsd::TOK, 12)];
const MPC_MAX: u64 = 0xff_ffff; // MPC has 24 bits.

impl Rtl8139 {
    /// Reads registers, through either BAR. In D3 nothing answers.
    pub(super) fn read_registers(&self, offset: u64, data: &mut [u8]) {
        let asleep = self.is(wire::ASLEEP);
        let mut read = |row: &'static Row| if asleep { u32::MAX } else { self.read_register(row) };
        self.regs.read(offset, data, &mut read);
    }

    /// Writes registers, through either BAR.
    pub(super) fn write_registers(&self, offset: u64, data: &[u8]) {
        self.regs.write(offset, data, &mut |write| {
            if !self.is(wire::ASLEEP) {
                self.write_register(&write);
            }
        });
    }

    fn read_register(&self, row: &'static Row) -> u32 {
        if self.regs.is_plus(row) {
            return self.regs.get_plus(row.offset);
        }
        match row.offset {
            CR => self.regs.get(CR) | if self.is_empty() { cr::BUFE } else { 0 },
            IMR => self.core.irq.mask(),
            ISR => self.core.irq.causes(),
            TCTR => self.clock.count(),
            MPC => self.missed_now(),
            EECR => self.control().eeprom.read().into(),
            TSAD => self.summary(),
            BMCR | BMSR | ANAR | ANLPAR | ANER => self.control().phy.read(row.offset),
            // Polling is done at once.
            TPPOLL => 0,
            offset => self.regs.get(offset),
        }
    }

    fn write_register(&self, write: &Write) {
        if self.regs.is_plus(write.row) {
            return self.write_plus(write);
        }
        match write.row.offset {
            offset @ (IDR0 | IDR4 | MAR0 | MAR4 | RCR) => {
                self.regs.store(write);
                self.filter_version.fetch_add(1, Ordering::Release);
                if offset == RCR {
                    self.core.ring_rx();
                }
            }
            TSD0..TSAD0 => self.write_tsd(write),
            TSAD0..RBSTART => {
                self.regs.store(write);
                self.core.ring_tx();
            }
            RBSTART | CAPR | RDSAR | RDSAR_HI => self.write_receive(write),
            CR => self.with_control(|control| self.write_cr(control, write)),
            IMR | ISR => self.write_interrupt(write),
            TCR => self.write_tcr(write),
            TCTR => {
                self.clock.restart();
                self.note_own();
            }
            MPC => self.mpc.store(self.missed(), Ordering::Relaxed),
            TIMERINT => {
                let (_, value) = self.regs.store(write);
                self.clock.set_limit(value);
            }
            EECR | CONFIG0 | CONFIG1 | CONFIG3 | CONFIG4 | BMCR | ANAR => {
                self.with_control(|control| self.write_controlled(control, write));
            }
            TPPOLL => self.poll(write.value),
            CPCR => self.write_cpcr(write),
            CSBAL | CSBAH => self.write_csb(write),
            _ => {
                self.regs.store(write);
            }
        }
    }

    /// A frame to send, if OWN is among what is written, and 0. The status of the frame before is
    /// cleared.
    fn write_tsd(&self, write: &Write) {
        let at = write.row.offset;
        let value = write.over(self.regs.get(at));
        let repeated = self.is_repeat(at);
        if write.covers & tsd::OWN == 0 || value & tsd::OWN != 0 {
            self.regs.store(write);
        } else if !repeated {
            // One store: a worker that is awake sends the frame, and says so here, as soon as it
            // sees OWN gone.
            self.regs.set(at, value & tsd::WRITABLE);
            self.core.counters.input.notifications.add_shared(1);
            self.core.ring_tx();
        }
    }

    /// What may make room, or a ring good.
    fn write_receive(&self, write: &Write) {
        self.regs.store(write);
        if write.row.offset == CAPR {
            self.core.counters.rx_doorbells.add_shared(1);
        }
        self.core.ring_rx();
    }

    fn write_cr(&self, control: &mut ControlOf<Self>, write: &Write) -> After {
        if write.value & cr::RST != 0 {
            return self.reset_chip(control, false);
        }
        let before = self.regs.get(CR);
        if write.value & !before & cr::RE != 0 {
            // Before anything is received. In C+ mode the ring begins again.
            self.empty();
        }
        let (_, value) = self.regs.store(write);
        let on = value & !before;
        self.rewind(on & cr::TE != 0, false);
        if before & !value & cr::TE != 0 {
            self.core.stop_tx(self);
        }
        if before & !value & cr::RE != 0 {
            self.core.stop_rx(self);
        }
        After { ring_tx: value & cr::TE != 0, ring_rx: value & cr::RE != 0, ..After::default() }
    }

    fn write_interrupt(&self, write: &Write) {
        let (irq, host) = (&self.core.irq, &*self.core.host);
        let edge = if write.row.offset == ISR {
            irq.ack_seen(write.value, self.delays(), host)
        } else {
            irq.replace_mask(write.over(irq.mask()), self.delays(), host)
        };
        self.core.tell(edge);
        // A driver that has refilled its ring does this next, and C+ mode has no register for that.
        if self.regs.plus_mode().1 {
            self.core.ring_rx();
        }
    }

    fn write_tcr(&self, write: &Write) {
        let (before, value) = self.regs.store(write);
        let version = if self.regs.kind().plus { tcr::VERSION_PLUS } else { tcr::VERSION };
        self.regs.set(TCR, value & tcr::WRITABLE & !tcr::CLRABT | version);
        if (before ^ value) & tcr::LBK != 0 {
            self.core.ring_tx();
            self.core.ring_rx();
        }
    }

    fn write_controlled(&self, control: &mut ControlOf<Self>, write: &Write) -> After {
        let unlocked = control.eeprom.unlocked();
        match write.row.offset {
            EECR => {
                let [value, ..] = write.value.to_le_bytes();
                if control.eeprom.write(value) {
                    self.load_eeprom(control);
                }
            }
            offset @ (BMCR | ANAR) => {
                let value = write.over(control.phy.read(offset));
                let flapped = control.phy.write(offset, value, unlocked);
                return self.update_link(control, flapped);
            }
            _ if unlocked => {
                self.regs.store(write);
            }
            _ => {}
        }
        After::default()
    }

    /// DTCCR, and where the transmit rings are.
    fn write_plus(&self, write: &Write) {
        let (_, value) = self.regs.store(write);
        match write.row.offset {
            DTCCR if write.covers & value & DUMP != 0 => self.dump(),
            DTCCR | DTCCR_HI => {}
            _ => self.core.ring_tx(),
        }
    }

    /// Dumps the tally counters, at once. Where there is no memory, the bit stays: the dump is
    /// never done.
    fn dump(&self) {
        let address = self.regs.address(DTCCR) & ADDRESS;
        let ChipCore { stats, counters, .. } = &self.core;
        let done = self.is(wire::DMA)
            && self.core.stopped(|tx, _| self.tally.dump(stats, counters, tx.map(), address));
        if done {
            self.regs.set_plus(DTCCR, self.regs.get_plus(DTCCR) & !DUMP);
        } else {
            counters.faults.add_shared(1);
        }
    }

    /// TPPoll: any write rings both bells, since with a CSB it is the kick for both rings.
    fn poll(&self, value: u32) {
        if value & (tppoll::HPQ | tppoll::NPQ) != 0 {
            self.core.counters.input.notifications.add_shared(1);
        } else {
            self.core.counters.rx_doorbells.add_shared(1);
        }
        if value & tppoll::FSWINT != 0 {
            self.core.post(self, isr::SWINT);
        }
        self.core.ring_tx();
        self.core.ring_rx();
    }

    fn write_cpcr(&self, write: &Write) {
        let before = self.regs.get(CPCR);
        let value = write.over(before) & write.row.mask;
        // A pass that runs now ends before its rings change.
        self.core.stopped(|tx, rx| {
            let [tx_changes, rx_changes] =
                [cpcr::TXE, cpcr::RXE].map(|bit| (before ^ value) & bit != 0);
            let mut restart = || {
                if tx_changes {
                    tx.restart(self);
                }
                if rx_changes {
                    rx.restart(self);
                }
            };
            if tx_changes {
                self.regs.change_mode(value & cpcr::TXE != 0);
            }
            // All of it has to be noted before the mode: who repeats this access changes nothing
            // more.
            restart();
            self.regs.set(CPCR, value);
            restart();
        });
        self.filter_version.fetch_add(1, Ordering::Release);
        self.core.ring_tx();
        self.core.ring_rx();
    }

    /// A write of CSBAL places the CSB, or releases it (0).
    fn write_csb(&self, write: &Write) {
        self.regs.store(write);
        if write.row.offset == CSBAL {
            self.core.place_csb(self, self.regs.address(CSBAL));
        }
    }

    /// TSAD (60h).
    fn summary(&self) -> u32 {
        let mut all = 0;
        for (n, at) in (TSD0..TSAD0).step_by(4).enumerate() {
            let value = self.regs.get(at);
            for (bit, place) in SUMMARY {
                all |= u32::from(value & bit != 0) << n << place;
            }
        }
        all
    }

    /// MPC.
    fn missed_now(&self) -> u32 {
        let n = self.missed().wrapping_sub(self.mpc.load(Ordering::Relaxed));
        low32(n.min(MPC_MAX))
    }
}
