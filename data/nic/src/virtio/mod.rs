//! virtio-net: split virtqueues as the device sees them (virtio 1.2 sections 2.7 and 5.1.6).
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
//! index that stands in guest memory is all the state a ring has: a device that starts there, after
//! whatever end of its predecessor, loses no descriptor and uses none twice.

mod desc;
mod fault;
pub mod feature;
mod header;
mod held_buffers;
mod net;
mod queue;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub use fault::Fault;
pub use feature::Features;
pub use net::{Inflight, MAX_QUEUES, Net, QueueState, Rings};
pub use rx::{NetRx, RxState};
pub use tx::{NetTx, TxState};
