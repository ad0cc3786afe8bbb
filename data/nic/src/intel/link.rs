//! The link (SDM 8.6), and what lets frames pass: the gate that the data path looks at.

use std::sync::atomic::Ordering;

use super::cause;
use super::chip::Intel;
use super::model::Model;
use super::regs::{CTRL, RCTL, STATUS, bit};
use crate::chip::{After, ControlOf};

/// Where frames that the guest sends go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loopback {
    /// To the wire.
    #[default]
    None,
    /// Back, within the MAC (RCTL.LBM).
    Mac,
    /// Back, within the PHY.
    Phy,
}

/// What lets frames pass, as one word that the data path loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bus master, and in D0.
    pub dma: bool,
    /// Cable, PHY and MAC agree: STATUS.LU.
    pub link: bool,
    /// Frames come back.
    pub loopback: Loopback,
}

impl Wire {
    fn pack(self) -> u32 {
        let loopback = match self.loopback {
            Loopback::None => 0,
            Loopback::Mac => 4,
            Loopback::Phy => 8,
        };
        u32::from(self.dma) | u32::from(self.link) << 1 | loopback
    }

    fn unpack(word: u32) -> Self {
        let loopback = match word & 12 {
            4 => Loopback::Mac,
            8 => Loopback::Phy,
            _ => Loopback::None,
        };
        Self { dma: word & 1 != 0, link: word & 2 != 0, loopback }
    }

    /// The transmitter has somewhere to send to.
    fn sends(self) -> bool {
        self.dma && (self.link || self.loopback != Loopback::None)
    }
}

impl<M: Model> Intel<M> {
    /// What lets frames pass now.
    #[inline]
    pub(crate) fn wire(&self) -> Wire {
        Wire::unpack(self.gate.load(Ordering::Acquire))
    }

    /// Brings STATUS and the gate in line with the cable, the PHY, CTRL, RCTL.LBM and PCI.
    /// `flapped`: the link went down and up again in between. A change of the link posts LSC.
    pub(crate) fn update_link(&self, control: &mut ControlOf<Self>, flapped: bool) -> After {
        let ctrl = self.regs.get(CTRL);
        // The PHY is held in reset as long as the bit stands.
        let phy = ctrl & bit::CTRL_PHY_RST == 0 && control.phy.link();
        // Without SLU the MAC does not look at the PHY (SDM 8.6.2.1).
        let link = phy && ctrl & bit::CTRL_SLU != 0;
        self.regs.set(STATUS, status::<M>(ctrl, link, control));
        let loopback = match self.regs.get(RCTL) & bit::RCTL_LBM {
            0 if control.phy.loopback() => Loopback::Phy,
            0 => Loopback::None,
            _ => Loopback::Mac,
        };
        let before = self.wire();
        let gate = Wire { dma: control.pci.may_dma(), link, loopback };
        self.gate.store(gate.pack(), Ordering::Release);
        self.core.let_interrupts(&control.pci);
        self.asleep.store(control.pci.asleep(), Ordering::Release);
        let changed = before.link != link || link && flapped;
        After {
            causes: if changed { cause::LSC } else { 0 },
            // Frames may wait since the gate was shut.
            ring_tx: gate.sends() && before != gate,
            ring_rx: gate.sends() && before != gate,
            ..After::default()
        }
    }
}

/// STATUS: link, speed and duplex (SDM 13.4.2). Speed and duplex are those that CTRL forces, or
/// else the PHY's.
fn status<M: Model>(ctrl: u32, link: bool, control: &ControlOf<Intel<M>>) -> u32 {
    let mode = control.phy.mode();
    let speed = if ctrl & bit::CTRL_FRCSPD != 0 { (ctrl >> 8 & 3).min(2) } else { mode.speed };
    let full = if ctrl & bit::CTRL_FRCDPLX != 0 { ctrl & bit::CTRL_FD != 0 } else { mode.full };
    let full = if full { bit::STATUS_FD } else { 0 };
    let link = if link { bit::STATUS_LU } else { 0 };
    full | link | speed << 6 | mode.speed << 8 | M::status(ctrl)
}
