//! What the descriptors of one chip look like.

use std::fmt::Debug;
use std::sync::Arc;

use super::super::Offload;
use vmlan_transport::Options;
use vmlan_transport::memory::{Pool, Ram};

/// Which part of its frame a descriptor is for.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The first one.
    pub first: bool,
    /// The last one.
    pub last: bool,
    /// The chip reports when it is done.
    pub report: bool,
}

/// Transmit descriptors of a chip: two words of 64 bits.
pub trait TxFormat: Debug + Send {
    /// A bit in the descriptor's first word says who owns it, and hands it over instead of a tail.
    /// Otherwise the chip reports in the second word.
    const OWNED: bool;
    /// A bit of the second word that hands the descriptor over instead of a tail: it is set in the
    /// first lap through the ring, clear in the second, and so on. 0: there is none.
    const GENERATION: u64 = 0;

    /// The RAM that it takes beside the ring.
    fn ram_bytes(_: &Options) -> usize {
        0
    }
    /// What all descriptors have in common, and where they are reported if that is not in
    /// themselves.
    fn new(options: &Options, ram: &Arc<Ram>, low: &mut Pool) -> Self;
    /// For a device that has been reset.
    fn reset(&mut self) {}
    /// Descriptors that a frame may take beside those for its bytes.
    fn beside(options: &Options) -> usize;
    /// Has the chip reported the frame that is so many places after the oldest one under way? It
    /// may have written to `word` of the frame's last descriptor.
    fn is_done(&self, ahead: u16, word: impl FnOnce() -> u64) -> bool;
    /// The oldest frame is retired, which ended at this descriptor. False if the chip has reported
    /// another one in its place.
    #[inline]
    fn retire(&mut self, _end: u16) -> bool {
        true
    }
    /// A frame of `len` bytes is handed over.
    #[inline]
    fn count(&mut self, _: &Offload, _len: usize) {}
    /// Does this take a descriptor before those for its bytes?
    fn has_context(offload: &Offload) -> bool;
    /// That descriptor, for a frame of `len` bytes.
    fn context(&self, offload: &Offload, len: usize) -> [u64; 2];
    /// A descriptor for a whole frame.
    fn whole(&self, address: u64, len: u64, report: bool, offload: &Offload) -> [u64; 2];
    /// One for a part of a frame.
    fn piece(&self, address: u64, len: u64, part: Part, offload: &Offload) -> [u64; 2];
    /// The bits of the first word that say that the ring ends here.
    const END: u64 = 0;
}
