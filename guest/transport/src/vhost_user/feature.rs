//! Bits of virtio (virtio 1.2, 5.1.3 and 6) that the driver can negotiate.
#![allow(missing_docs, reason = "a comment beside each says it")]

pub const CSUM: u64 = 1 << 0; // VIRTIO_NET_F_CSUM: the device completes checksums.
/// VIRTIO_NET_F_GUEST_CSUM: the driver takes frames with incomplete checksums.
pub const GUEST_CSUM: u64 = 1 << 1;
pub const MTU: u64 = 1 << 3; // VIRTIO_NET_F_MTU.
pub const MAC: u64 = 1 << 5; // VIRTIO_NET_F_MAC.
pub const GUEST_TSO4: u64 = 1 << 7; // VIRTIO_NET_F_GUEST_TSO4.
pub const GUEST_TSO6: u64 = 1 << 8; // VIRTIO_NET_F_GUEST_TSO6.
pub const HOST_TSO4: u64 = 1 << 11; // VIRTIO_NET_F_HOST_TSO4.
pub const HOST_TSO6: u64 = 1 << 12; // VIRTIO_NET_F_HOST_TSO6.
pub const MRG_RXBUF: u64 = 1 << 15; // VIRTIO_NET_F_MRG_RXBUF.
pub const STATUS: u64 = 1 << 16; // VIRTIO_NET_F_STATUS.
pub const MQ: u64 = 1 << 22; // VIRTIO_NET_F_MQ.
/// VIRTIO_F_ANY_LAYOUT: a legacy device takes the header in any segment.
pub const ANY_LAYOUT: u64 = 1 << 27;
pub const INDIRECT: u64 = 1 << 28; // VIRTIO_F_INDIRECT_DESC.
pub const EVENT_IDX: u64 = 1 << 29; // VIRTIO_F_EVENT_IDX.
pub const VERSION_1: u64 = 1 << 32; // VIRTIO_F_VERSION_1.
pub const RING_PACKED: u64 = 1 << 34; // VIRTIO_F_RING_PACKED.
pub const IN_ORDER: u64 = 1 << 35; // VIRTIO_F_IN_ORDER.
pub const GUEST_USO4: u64 = 1 << 54; // VIRTIO_NET_F_GUEST_USO4.
pub const GUEST_USO6: u64 = 1 << 55; // VIRTIO_NET_F_GUEST_USO6.
pub const HOST_USO: u64 = 1 << 56; // VIRTIO_NET_F_HOST_USO.
/// VHOST_F_LOG_ALL: the back end logs its writes. Between VMM and back end only, and only while
/// its dirty log is in force.
pub const LOG_ALL: u64 = 1 << 26;
/// What is asked for unless the address says otherwise: rings at their best, no offloads.
pub const DEFAULT: u64 =
    VERSION_1 | ANY_LAYOUT | EVENT_IDX | MRG_RXBUF | IN_ORDER | MTU | STATUS | MQ;
