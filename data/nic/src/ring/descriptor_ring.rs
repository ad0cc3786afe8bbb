//! Where descriptors come from.

use std::sync::Arc;

use vmlan_ram::Map;

use super::{Look, SIZE};
use crate::chip::csb::{Csb, CsbSide};
use crate::chip::held::{Held, Remains, Said};
use crate::chip::state::Fields;
use crate::chip::{Chip, Fault, StateError};

/// A ring as a process has left it.
#[derive(Clone, Copy, Debug)]
pub struct Revived {
    /// The first descriptor that is not written back.
    pub head: u32,
    /// What descriptors before it have said.
    pub said: Said,
    /// The rest of a frame is to be passed over.
    pub cut: bool,
}

/// A ring of descriptors in guest memory: where it is, how far the guest has filled it, and what
/// the CSB says about that. Intel's chips say so in registers, Realtek's in the descriptors. What
/// the descriptors mean is not known here: see [`super::Transmit`] and [`super::Receive`].
///
/// A descriptor is two quadwords: an address, and a word with everything else, whichever comes
/// first in memory.
pub trait DescriptorRing: Send {
    /// The chip whose registers say where the ring is.
    type Chip: Chip;

    fn map(&self) -> &Arc<Map>;
    /// Replaces the map; nothing of the old one is kept.
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map>;
    /// This ring's part of the CSB.
    fn csb(&mut self) -> &mut CsbSide;
    /// Reads the registers, and checks that descriptors can be where they say.
    ///
    /// # Errors
    /// The rule that they break; [`Self::fault`] repeats it.
    fn look(&mut self, chip: &Self::Chip) -> Result<Look, Fault>;
    /// Why the last look failed.
    fn fault(&self) -> Option<Fault>;
    /// Forgets the head and what stood in the way.
    fn forget(&mut self, chip: &Self::Chip);
    /// Writes the head into a CSB that is new.
    fn publish_again(&self, chip: &Self::Chip);
    /// The CSB is in a new map: writes the head into it, now or when this side is `on`.
    fn replace_csb(&mut self, chip: &Self::Chip, csb: Option<Arc<Csb>>, on: bool);
    /// Passes its state, of a chip whose registers are known already.
    fn fields(&mut self, io: &mut Fields<'_>);
    /// Head and size, as it was last looked at. `None`: who knows.
    fn extent(&self) -> Option<(u32, u32)>;
    /// It outlives the process in there, in a line of its own.
    fn hold(&mut self, _: &Arc<Held>) {}
    /// It does.
    #[inline]
    fn is_held(&self) -> bool {
        false
    }
    /// Goes on from what a process has left. Returns the head, quadwords that transmit descriptors
    /// before it have said, and whether the rest of a frame is to be passed over there. `None`:
    /// there is no ring.
    ///
    /// # Errors
    /// It cannot.
    fn revive(
        &mut self,
        _chip: &Self::Chip,
        _: &Remains<'_>,
    ) -> Result<Option<Revived>, StateError> {
        Err(StateError::NotHeld)
    }
    /// It goes on from a state. What outlives the process is to know what transmit descriptors
    /// before the head have said, and whether the rest of a frame is to be passed over there.
    fn note_said(&mut self, _cut: bool) {}
    /// What transmit descriptors have said is void.
    fn forget_said(&mut self) {}
    /// The head will be within a frame that is passed over, or not.
    fn cut(&mut self, _: bool) {}
    /// The descriptor `number` is about to be written back, with others of the same intent.
    fn mark(&self, _number: u32) {}
    /// Those in `a..b` have marks.
    fn hand_over(&self, _a: u32, _b: u32) {}
    /// What a frame found missing beside the ring is there now.
    fn has_more(&self) -> bool {
        false
    }
    /// The ring has too few descriptors for what is to be received.
    fn reconsider(&mut self, _look: Look) {}

    /// The descriptor at `index`, read once: address, word.
    fn read(&self, index: u32) -> (u64, u64);
    /// Copies out descriptors from `index` on, as many as `out` holds or the ring has before its
    /// end.
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]);
    /// Address and word of a descriptor copied out.
    fn split(desc: &[u8; SIZE]) -> (u64, u64);
}
