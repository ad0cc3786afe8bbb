//! The guest's transmit queues: frames are lent where they lie.
use vmlan_frame::{Batch, Counters, Sink};

use super::Net;

/// What a transmit queue remembers between pulls.
#[derive(Default)]
pub struct TxState {}

/// The guest's transmit queues.
pub type NetTx = Net<TxState>;

impl Net<TxState> {
    /// Lends up to `limit` frames to `sink`, queue after queue, beginning with another queue each time;
    /// gives back the buffers of those it finished. Returns how many that were.
    pub fn pull(
        &mut self,
        _batch: &mut Batch<'static>,
        _limit: usize,
        _sink: &mut dyn Sink,
        _counters: &Counters,
    ) -> usize {
        0
    }

    /// Asks for doorbells. Returns true if frames wait that were never lent: do not sleep then.
    /// Frames that the sink held do not count: it is their receiver that is waited for.
    pub fn arm(&mut self) -> bool {
        false
    }

    /// Asks for no doorbells: the worker looks by itself.
    pub fn disarm(&mut self) {}
}
