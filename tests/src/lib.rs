//! Tests across crates: houserules, sockets, real guests in QEMU.
//!
//! The harness in three nouns: a [`Guest`] is a Linux VM in stock QEMU (TCG, no KVM, no root), a [`NetNs`] is a network
//! namespace that plays the host, and a [`Switch`] is the `vmlan switch` process under test. Guest and namespace are both
//! a [`Station`]: something with an address that runs shell commands. [`check`] holds what one station asks of another.
//!
//! Everything a test starts dies with it: by `Drop`, and by the parent-death signal if the test itself is killed.
//! What is missing on the machine is reported as one line that names the mend, mostly `scripts/setup.sh test`.

mod base64;
mod boot;
pub mod check;
pub mod cpio;
mod fault;
mod guest;
mod image;
mod netns;
mod proc;
pub mod qemu;
mod station;
mod switch;
pub mod testpmd;

pub use boot::Boot;
pub use fault::{Fault, Result};
pub use guest::Guest;
pub use image::{Extras, Image};
pub use netns::NetNs;
pub use proc::{Proc, out_of, threads, vmlan_binary};
pub use station::{Said, Station};
pub use switch::Switch;
pub mod attacker;
pub mod card;
pub mod counting;
pub mod e1000;
pub mod gso;
pub mod lan;
pub mod native;
pub mod near;
pub mod nic;
pub mod peer;
pub mod random;
pub mod scene;
pub mod siege;
pub mod steps;
pub mod trio;
pub mod usage;
pub mod victim;
pub mod wired;
