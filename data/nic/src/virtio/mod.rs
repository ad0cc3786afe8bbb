//! virtio-net: virtqueues, split and packed, as the device sees them (virtio 1.2 sections 2.7, 2.8
//! and 5.1.6).
//!
//! ```text
//!  NetTx::pull                               NetRx::push
//!    avail ring ─► heads, read together        avail ring ─► heads
//!    descriptors ─► pieces, prefetched         descriptors ─► buffers, prefetched
//!    header ─► Offload, frame ─► Batch         Offload ─► header, frame copied
//!    sink decides                              used entries written together
//!    used entries, one used.idx, one interrupt decision for the batch, on both sides
//! ```
//!
//! The device completes strictly in the order in which buffers were made available. So the used
//! index that stands in guest memory is all the state a split ring has, and the flags of its
//! descriptors are all that a packed one has ([`packed`]): a device that starts there, after
//! whatever end of its predecessor, loses no descriptor and uses none twice.
//!
//! What passes between rings and frames is written once, over either layout ([`queue::Ring`]).

mod desc;
mod fault;
pub mod feature;
mod header;
mod held_buffers;
mod net;
mod packed;
mod queue;
mod rx;
mod split;
#[cfg(test)]
mod tests;
mod tx;

pub use fault::Fault;
pub use feature::Features;
pub use net::{Inflight, MAX_QUEUES, Net, QueueState, Rings};
pub use rx::{Budget, NetRx, RxState};
pub use tx::{NetTx, TxState};
