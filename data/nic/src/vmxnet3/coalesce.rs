//! Moderation, as commands set it: a level for each vector, or (version 3) a scheme for all.

use super::chip::Vmxnet3;
use super::shared::{ARGUMENT, LEVELS, Words, copy};
use super::vectors::{LONGEST, VECTORS};
use crate::chip::{After, ControlOf};

/// A scheme: its kind, and what that kind says. The device waits for nothing with the others: those
/// of fixed numbers of frames (2), and none (0).
const ADAPTIVE: u32 = 1; // It is left to the device.
const BY_RATE: u32 = 3; // So many interrupts a second.
const LEFT_TO_DEVICE: u8 = 8; // The level that means the same.
const SECOND: u64 = 1_000_000_000;

impl Vmxnet3 {
    /// UPDATE_IML: the levels are read again.
    pub(super) fn update_levels(&self, control: &ControlOf<Self>) -> After {
        let Some(active) = &control.phy.active else { return After::default() };
        let levels =
            self.with_memory(|map| copy::<VECTORS>(map, active.shared.checked_add(LEVELS as u64)?));
        let Some(levels) = levels else { return After::default() };
        After { edge: self.core.irq.set_levels(&levels, &*self.core.host), ..After::default() }
    }

    /// SET_COALESCE and GET_COALESCE: the argument says where the scheme is, 16 bytes.
    pub(super) fn coalesce(&self, control: &mut ControlOf<Self>, set: bool) -> After {
        let (shared, mut scheme) = (control.phy.shared, control.phy.scheme);
        let done = control.pci.may_dma().then(|| {
            self.with_memory(|map| {
                let argument: [u8; 16] = copy(map, shared.checked_add(ARGUMENT)?)?;
                let place = Words(&argument).u64(8);
                if set {
                    scheme = copy(map, place)?;
                } else {
                    map.slice_mut(place, scheme.len())?.write(0, &scheme);
                }
                Some(())
            })
        });
        control.phy.result = u32::from(done.flatten().is_none());
        if !set || control.phy.result != 0 {
            return After::default();
        }
        control.phy.scheme = scheme;
        let said = Words(&scheme);
        let (irq, host) = (&self.core.irq, &*self.core.host);
        if said.u32(0) == ADAPTIVE {
            let edge = irq.set_levels(&[LEFT_TO_DEVICE; VECTORS], host);
            return After { edge, ..After::default() };
        }
        let rate = if said.u32(0) == BY_RATE { said.u32(4) } else { 0 };
        let window = if rate == 0 { 0 } else { (SECOND / u64::from(rate)).min(LONGEST) };
        After { edge: irq.set_windows(window, host), ..After::default() }
    }
}
