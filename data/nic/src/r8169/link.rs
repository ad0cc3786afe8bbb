//! The link, and what lets frames pass: one word that the data path loads.

use std::sync::atomic::Ordering;

use super::chip::R8169;
use super::regs::{TCR, tcr};
use crate::chip::{After, ControlOf};
use crate::realtek::isr;

/// What lets frames pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bus master, and in D0.
    pub dma: bool,
    /// Cable and PHY agree.
    pub link: bool,
    /// Frames come back.
    pub loopback: bool,
    /// 0: 10, 1: 100, 2: 1000 Mbit/s.
    pub speed: u32,
}

impl Wire {
    fn pack(self) -> u32 {
        let (dma, link) = (u32::from(self.dma), u32::from(self.link));
        dma | link << 1 | u32::from(self.loopback) << 2 | self.speed << 3
    }

    fn unpack(word: u32) -> Self {
        let flag = |bit: u32| word >> bit & 1 != 0;
        Self { dma: flag(0), link: flag(1), loopback: flag(2), speed: word >> 3 }
    }

    /// The transmitter has somewhere to send to.
    fn sends(self) -> bool {
        self.dma && (self.link || self.loopback)
    }
}

impl R8169 {
    /// What lets frames pass now.
    #[inline]
    pub(super) fn wire(&self) -> Wire {
        Wire::unpack(self.wire.load(Ordering::Acquire))
    }

    /// Brings the gate in line with the cable, the PHY, TCR and PCI. `flapped`: the link went down
    /// and up again in between. A change of the link posts LinkChg.
    pub(super) fn update_link(&self, control: &mut ControlOf<Self>, flapped: bool) -> After {
        let link = control.phy.link();
        let loopback = self.regs.get(TCR) & tcr::LBK != 0 || control.phy.loopback();
        let speed = control.phy.mode().speed;
        let before = self.wire();
        let wire = Wire { dma: control.pci.may_dma(), link, loopback, speed };
        self.wire.store(wire.pack(), Ordering::Release);
        self.core.let_interrupts(&control.pci);
        self.asleep.store(control.pci.asleep(), Ordering::Release);
        let changed = before.link != link || link && (flapped || before.speed != speed);
        // Frames may wait since the gate was shut.
        let opens = wire.sends() && before != wire;
        After {
            causes: if changed { isr::LINK } else { 0 },
            ring_tx: opens,
            ring_rx: opens,
            ..After::default()
        }
    }
}
