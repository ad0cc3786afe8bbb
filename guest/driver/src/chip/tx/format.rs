//! What the descriptors of one chip look like.

use std::fmt::Debug;

use super::super::Offload;
use vmlan_transport::Options;

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

    /// What all descriptors have in common.
    fn new(options: &Options) -> Self;
    /// Descriptors that a frame may take beside those for its bytes.
    fn beside(options: &Options) -> usize;
    /// Has the chip written back so?
    fn is_done(word: u64) -> bool;
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
