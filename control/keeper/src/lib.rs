//! Descriptors of strangers are received and closed in processes that serve nobody else.
//!
//! Three things that a peer decides can take for ever, and no signal ends them: to *close* a
//! descriptor of its making (a file of a FUSE daemon that does not answer, a socket that lingers);
//! to *drop a socket* in which such a descriptor is queued, or a listener with such a socket in its
//! backlog; and to *read* from a socket without taking the descriptors that come along, which drops
//! them. Whatever thread does it is parked, and a process with a parked thread cannot end.
//!
//! So each port has a **keeper**, a process that has a second descriptor of the port's listener and
//! of each of its connections, and closes them after us: the last close is never ours. It accepts
//! connections, and it takes those messages that carry descriptors ([`Kept::take`]); it passes on
//! only what [`Descriptor`] names. Plain messages never come near it.
//!
//! A keeper that does not answer within 4 s is replaced, and the peer that parked it loses its
//! connection. One that is killed is replaced too; nobody notices. When the switch dies, its
//! keepers see the end of their line: they shut the listener down, so that nobody hangs at a dead
//! door, close everything and exit. Where that parks them, it harms nobody. A keeper whose line is
//! held for the next switch ([`hold`]) waits for that one instead ([`Keeper::adopt`]).
//!
//! Keepers are forked by a **spawner**, a process that does nothing else. [`start`] forks it, and
//! ought to be called while the program has one thread and holds nothing: keepers hold what it
//! held. Otherwise the first keeper that is asked for starts it. A second spawner is spare: when
//! one is killed, the other replaces it. When both are killed at once, ports go on as they are, and
//! no keeper can be made any more.
//!
//! A peer decides how much its keeper has to do. One that has used more than a hundredth of a core
//! for long sleeps after each request (`budget`), and its port waits.
//!
//! Keepers and spawners that are confined have no capability, may reach no file, and make only the
//! system calls that they need. One that makes another is ended, and its last words name the call.
#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod asked;
mod budget;
mod descriptor;
pub mod hold;
mod keeper;
mod line;
mod packet;
mod process;
mod spawner;
mod starter;
#[allow(unsafe_code)]
mod sys;
mod wait;

pub use asked::Asked;
pub use descriptor::Descriptor;
pub use keeper::{Keeper, KeeperError, Kept, Taken};
pub use spawner::start;
pub use starter::{open_file, start_program, start_starter};

/// Most descriptors that one [`Kept::take`] passes on: enough for all vectors of a NIC in one
/// message. If a peer sends more at once, all of them are closed.
pub const MAX_FDS: usize = 32;
