//! Ports that are not VMs, and the export of samples.
//!
//! - [`tap`]: a TAP device of the host, with checksum and segmentation offload;
//! - [`packet`]: an interface of the host, a physical NIC for one, by a packet socket;
//! - [`xdp`]: the same by XDP sockets, past the host's stack;
//! - [`stream`]: a UNIX socket with QEMU's `-netdev stream` framing (passt, gvproxy, QEMU);
//! - [`pcap`]: a capture file, written while frames pass;
//! - [`sflow`]: samples of frames and counters, sent to a collector.
//!
//! # Contract
//!
//! No error of a device or peer ends a worker: a frame that cannot be delivered is dropped and
//! counted, a device or peer that goes away takes its port down until it is back. Each port has one
//! thread of its own that sleeps in `poll`; the data path neither blocks nor allocates.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(test, allow(clippy::panic, clippy::indexing_slicing))]

mod inbox;
pub mod keep;
mod link;
pub mod packet;
pub mod pcap;
pub mod sflow;
pub mod socket_mode;
pub mod stream;
#[allow(unsafe_code)]
mod sys;
pub mod tap;
#[cfg(test)]
mod tests;
mod thread_control;
mod vnet_header;
mod writer;
pub mod xdp;

use std::path::Path;

pub use sys::refuse_descriptors;

/// True if the directory that `path` is to be in is there. Where it is, ENOENT means one in which
/// nothing can be made, like /proc.
fn has_directory(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.as_os_str().is_empty() || dir.exists())
}
