//! What the slots hold before the first frame is sent.

use super::super::frame;
use super::super::options::{Options, OptionsError};
use super::Engine;
use vmlan_driver::nic::Nic;

/// Has the NIC room for the longest frame in each of its slots?
pub(super) fn check_room<N: Nic>(options: &Options, nic: &N) -> Result<(), OptionsError> {
    let Some(size) = options.largest() else { return Ok(()) };
    let room = (0..nic.lanes()).map(|lane| nic.room(lane)).min().unwrap_or(0);
    if size as usize > room { Err(OptionsError::Room { size, room }) } else { Ok(()) }
}

impl<N: Nic> Engine<'_, N> {
    /// Builds every slot's frame once; afterwards sending touches descriptors only.
    pub(super) fn prefill(&mut self) {
        if !self.options.sends() || self.replay.is_some() {
            return;
        }
        for lane in 0..self.lanes.len() {
            let slots = self.nic.slots(lane);
            if self.options.least_size.is_some() {
                let size = |slot| self.options.size_of(self.nth(lane, slot));
                self.lanes[lane].sizes = (0..slots).map(size).collect();
            }
            self.lanes[lane].bodies = vec![0; slots.into()];
            for slot in 0..slots {
                self.fill(lane, slot);
            }
        }
    }

    /// The number of a slot's frame among all that are in slots.
    fn nth(&self, lane: usize, slot: u16) -> u64 {
        let before = (self.share.first + lane) as u64;
        before * u64::from(self.nic.slots(lane)) + u64::from(slot)
    }

    /// Builds the frame of a slot.
    pub(super) fn fill(&mut self, lane: usize, slot: u16) {
        let offload = self.offloads();
        let size = self.size(lane, slot);
        let frame = frame::build(self.options, size, self.nth(lane, slot), offload);
        self.nic.write(lane, slot, 0, &frame);
        if offload {
            self.nic.offload_checksum(lane, slot, true);
        }
        let sum = if self.varies { frame::pattern_sum(&frame) } else { frame::body_sum(&frame) };
        self.lanes[lane].bodies[usize::from(slot)] = sum;
    }

    pub(super) fn offloads(&self) -> bool {
        self.options.offload_checksum && self.nic.can_checksum()
    }

    /// The size of the frame in a slot.
    pub(super) fn size(&self, lane: usize, slot: u16) -> u32 {
        let sizes = &self.lanes[lane].sizes;
        sizes.get(usize::from(slot)).copied().unwrap_or(self.options.size)
    }
}
