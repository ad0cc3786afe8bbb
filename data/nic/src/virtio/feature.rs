//! Feature bits (virtio 1.2 sections 5.1.3 and 6).
#![allow(missing_docs, reason = "a comment beside each says it")]

use vmlan_frame::Offloads;

pub const CSUM: u64 = 1 << 0; // The device computes checksums that the driver leaves unfinished.
pub const GUEST_CSUM: u64 = 1 << 1; // The driver takes frames with unfinished checksums.
pub const MTU: u64 = 1 << 3; // The maximum MTU is given in the configuration space.
pub const MAC: u64 = 1 << 5; // The MAC address is given in the configuration space.
pub const GUEST_TSO4: u64 = 1 << 7; // The driver takes unsegmented TCP over IPv4.
pub const GUEST_TSO6: u64 = 1 << 8; // The driver takes unsegmented TCP over IPv6.
pub const GUEST_ECN: u64 = 1 << 9; // The driver takes unsegmented TCP with ECN.
pub const HOST_TSO4: u64 = 1 << 11; // The device takes unsegmented TCP over IPv4.
pub const HOST_TSO6: u64 = 1 << 12; // The device takes unsegmented TCP over IPv6.
pub const HOST_ECN: u64 = 1 << 13; // The device takes unsegmented TCP with ECN.
pub const MRG_RXBUF: u64 = 1 << 15; // A received frame may span several buffers.
pub const STATUS: u64 = 1 << 16; // The link's state is given in the configuration space.
pub const MQ: u64 = 1 << 22; // Several pairs of queues.
/// Any arrangement of descriptors (legacy; always so with [`VERSION_1`]).
pub const ANY_LAYOUT: u64 = 1 << 27;
pub const INDIRECT_DESC: u64 = 1 << 28; // Tables of descriptors outside the ring.
pub const EVENT_IDX: u64 = 1 << 29; // Notifications by index instead of by flag.
pub const VERSION_1: u64 = 1 << 32; // Virtio 1.0 or later.
pub const RING_PACKED: u64 = 1 << 34; // One ring of descriptors for both directions.
/// Buffers are used in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
pub const GUEST_USO4: u64 = 1 << 54; // The driver takes unsegmented UDP over IPv4.
pub const GUEST_USO6: u64 = 1 << 55; // The driver takes unsegmented UDP over IPv6.
pub const HOST_USO: u64 = 1 << 56; // The device takes unsegmented UDP.

/// Everything the data path implements. What is left to the VMM or the control socket (MAC, MTU,
/// STATUS, MQ) is for those who answer there to add.
pub const DATA_PATH: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | GUEST_USO4
    | GUEST_USO6
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_USO
    | MRG_RXBUF
    | ANY_LAYOUT
    | INDIRECT_DESC
    | EVENT_IDX
    | VERSION_1
    | RING_PACKED
    | IN_ORDER;

/// A set of negotiated features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// True if all of `bits` were negotiated.
    #[inline]
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Bytes of the header before each frame (virtio 1.2 section 5.1.6: 12, but 10 for a legacy
    /// driver without mergeable buffers).
    #[inline]
    pub const fn header_len(self) -> usize {
        if self.0 & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { 12 }
    }

    /// What the driver takes: for [`vmlan_frame::Port::offloads`].
    pub fn receives(self) -> Offloads {
        self.offloads(GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_ECN, GUEST_USO4 | GUEST_USO6)
    }

    /// What the driver may send.
    pub fn sends(self) -> Offloads {
        self.offloads(CSUM, HOST_TSO4, HOST_TSO6, HOST_ECN, HOST_USO)
    }

    fn offloads(self, csum: u64, tso4: u64, tso6: u64, ecn: u64, uso: u64) -> Offloads {
        if !self.has(csum) {
            return Offloads::NONE;
        }
        let pairs = [
            (tso4, Offloads::TSO4),
            (tso6, Offloads::TSO6),
            (ecn, Offloads::ECN),
            (uso, Offloads::USO),
        ];
        pairs
            .iter()
            .filter(|(bits, _)| self.has(*bits))
            .fold(Offloads::CSUM, |a, (_, o)| a.with(*o))
    }
}
