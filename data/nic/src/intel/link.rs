//! The link (SDM 8.6), and what lets frames pass: the gate that the data path looks at.

use std::sync::atomic::Ordering;

use super::cause;
use super::chip::Intel;
use super::model::Model;
use super::regs::{CTRL, RCTL, STATUS, bit};
use crate::chip::held::Remains;
use crate::chip::{After, ControlOf, Controlled};

/// Which word of a chip's own is 1 in what outlives the process if the driver has seen the last
/// change of the link. Older releases leave 0 there.
const LINK_SEEN: usize = 1;

/// The last LSC: nobody has read it, some read may have returned it, the driver has seen it.
const UNSEEN: u8 = 0;
const READ: u8 = 1;
const SEEN: u8 = 2;

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
        let after = self.derive_link(control, flapped);
        if after.causes & cause::LSC != 0 {
            self.link_is_news();
        }
        after
    }

    /// LSC is about to be posted: from now on whoever goes on with this chip posts it again.
    pub(crate) fn link_is_news(&self) {
        self.link_news.store(UNSEEN, Ordering::Relaxed);
        self.regs.set_own(LINK_SEEN, 0);
    }

    /// ICR was read as this. What the last read but one has returned was seen, for its reply has
    /// been taken; by then whoever had to post LSC has done so.
    #[inline]
    pub(crate) fn link_is_read(&self, causes: u32) {
        match self.link_news.load(Ordering::Relaxed) {
            SEEN => {}
            READ if causes & cause::LSC == 0 => self.link_is_seen(),
            _ => self.link_news.store(READ, Ordering::Relaxed),
        }
    }

    #[cold]
    fn link_is_seen(&self) {
        // Those who change the link hold it, too.
        let _control = self.control();
        let was = (READ, SEEN, Ordering::Relaxed);
        if self.link_news.compare_exchange(was.0, was.1, was.2, was.2).is_ok() {
            self.regs.set_own(LINK_SEEN, 1);
        }
    }

    /// Goes on from what a process has left.
    pub(crate) fn revive_link(&self, remains: &Remains<'_>) {
        let seen = remains.own(LINK_SEEN) == 1;
        self.link_news.store(if seen { SEEN } else { UNSEEN }, Ordering::Relaxed);
        self.regs.set_own(LINK_SEEN, seen.into());
    }

    /// What the driver may not have heard of when its chip's process died. Not the link if it has
    /// seen that: Linux' e1000 takes the cable for pulled for a moment if LSC comes while it looks
    /// at the PHY for the last one.
    pub(crate) fn lost_causes(&self) -> u32 {
        let seen = self.link_news.load(Ordering::Relaxed) == SEEN;
        <Self as Controlled>::LOST & if seen { !cause::LSC } else { u32::MAX }
    }

    /// [`Intel::update_link`] of a chip whose state was restored.
    pub(crate) fn derive_link(&self, control: &mut ControlOf<Self>, flapped: bool) -> After {
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
