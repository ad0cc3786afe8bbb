//! The notification protocol, once for all NICs (DESIGN section 5).
//!
//! Leaving the guest costs microseconds, so each side rings only when the other has said that it sleeps. Both rules are the
//! same for every kind of doorbell and interrupt, in either direction and on every CPU:
//!
//! - *publish, full fence, read the other side's wish*;
//! - *state the wish, full fence, look again*, before sleeping.
//!
//! | module | what is published | the wish |
//! | --- | --- | --- |
//! | [`virtqueue`] | `avail.idx`, `used.idx` | `flags`, or event indexes |
//! | [`bell`] | a register, trapped or mapped | a flag of ours |
//! | [`csb`] | `guest_tdt`, `guest_rdt`, DD and `host_tdh` | `host_need_txkick`, `host_rxkick_at`, `guest_need_*kick` |
//!
//! The words are behind traits, so that loom can try every interleaving (`tests/loom.rs`), and can do so with each fence and
//! each second look taken away.

pub mod bell;
pub mod csb;
pub mod virtqueue;
