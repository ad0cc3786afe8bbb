//! User-space drivers of virtio-net, the Intel 82540EM (e1000), the RTL8169, the RTL8139 and
//! VMware's vmxnet3.
//!
//! This crate plays the guest: it owns the descriptors and drives the device. It shares no code and
//! no constant with the device's side of the project, so a misread specification cannot cancel
//! itself out.
//!
//! - [`nic`]: [`nic::Nic`]: what a program sends and receives with, whatever the NIC
//! - [`virtio`]: [`virtio::VirtioNet`]: connect, negotiate, reconnect, wait, stop (virtio 1.2, 5.1)
//! - [`virtio::queues`]: transmit and receive queues: fixed slots, batches, counters (virtio 1.2,
//!   5.1.6)
//! - [`virtio::virtqueue`]: the driver's side of a split virtqueue, with an audit (virtio 1.2, 2.7)
//! - [`chip`]: what the drivers of all chips share, over any [`vmlan_transport::Bus`]
//! - [`e1000`]: [`e1000::E1000`]: the Intel 82540EM (Intel 8254x SDM), and the 82574L
//! - [`realtek`]: [`realtek::R8169`], [`realtek::Rtl8139`] (datasheets of the RTL8169 and the
//!   RTL8139C+)
//! - [`rtl8139`]: [`rtl8139::Rtl8139Classic`]: an RTL8139 without descriptor rings (the same)
//! - [`vmxnet3`]: [`vmxnet3::Vmxnet3`]: VMware's NIC (public drivers, QEMU's model)
//! - [`notify`]: when to ring, how to go to sleep (virtio 1.2, 2.7; SDM 13.4)
//! - [`wait`], [`stats`]: what to wait for, and what came of it; counters
//!
//! Panic contract: nothing a device writes into shared memory or a socket makes this crate panic;
//! what the device gets wrong is counted ([`virtio::virtqueue::SplitRing::bad_used`]) or is an
//! error.
#![forbid(unsafe_code)]

pub mod chip;
pub mod e1000;
pub mod nic;
pub mod notify;
pub mod realtek;
pub mod rtl8139;
pub mod stats;
pub mod virtio;
pub mod vmxnet3;
pub mod wait;
