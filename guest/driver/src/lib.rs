//! User-space NIC drivers for tests, demos and packet programs.
//!
//! This crate plays both parts a back end meets: the VMM (it owns the guest's RAM, a sealed memfd, and speaks vhost-user
//! as the *front end* or vfio-user as the *client*) and the guest (it owns the descriptors and drives a virtio-net device or an
//! Intel 82540EM). It
//! shares no code and no constant with the rest of the project, so a misread specification cannot cancel itself out.
//!
//! Layers, lowest first:
//!
//! | module | what it is | specification |
//! | --- | --- | --- |
//! | [`mem`] | guest RAM: one memfd seen as two regions, with checked views | |
//! | [`notify`] | when to ring, how to go to sleep | virtio 1.2, 2.7; SDM 13.4 |
//! | [`ring`] | the driver's side of a split virtqueue, with an audit | virtio 1.2, 2.7 |
//! | [`net`] | transmit and receive queues: fixed slots, batches, counters | virtio 1.2, 5.1 |
//! | [`vhost_user`] | messages of the front end | QEMU `docs/interop/vhost-user.rst` |
//! | [`nic`] | [`nic::VirtioNet`]: connect, negotiate, reconnect, wait, stop | both |
//! | [`vfio_user`] | messages of a client, and the VMM's part for one device | QEMU `docs/interop/vfio-user.rst` |
//! | [`pci`] | the same chip inside a VM: VFIO, UIO, sysfs | `linux/vfio.h` |
//! | [`chip`] | [`chip::Nic`]: what the drivers of all chips share, over any [`chip::Bus`] | |
//! | [`e1000`] | [`e1000::E1000`]: the Intel 82540EM | Intel 8254x SDM |
//! | [`realtek`] | [`realtek::R8169`], [`realtek::Rtl8139`] | datasheets of the RTL8169 and the RTL8139C+ |
//! | [`rtl8139`] | [`rtl8139::Rtl8139Classic`]: an RTL8139 without descriptor rings | the same |
//! | [`device`] | [`device::Device`]: any of these NICs | |
//! | [`rings`] | [`rings::Port`]: any of them as netmap-like rings, for packet programs | |
//! | [`pktgen`] | `tx`, `rx`, `ping`, `pong` with counters and a summary | |
//! | [`stack`] | UDP and TCP sockets, streams, request-response, livelock | RFC 768, 791, 9293 (smoltcp) |
//!
//! Panic contract: nothing a device writes into shared memory or a socket makes this crate panic; what the device gets
//! wrong is counted ([`ring::SplitRing::bad_used`]) or is an error.
#![deny(unsafe_code)]

pub mod address;
pub mod chip;
pub mod device;
pub mod e1000;
mod mac;
pub mod mem;
pub mod net;
pub mod nic;
pub mod notify;
pub mod pci;
pub mod pktgen;
mod place;
pub mod realtek;
pub mod ring;
pub mod rings;
pub mod rtl8139;
pub mod stack;
pub mod sys;
pub mod vfio_user;
pub mod vhost_user;

pub use address::{Address, AddressError};
pub use mac::{Mac, MacError};
pub use nic::{Error, VirtioNet};
pub use place::Place;
