//! The notification protocol, once for all NICs.
//!
//! Leaving the guest costs microseconds, so each side rings only when the other has said that it
//! sleeps. Both rules are the same for every kind of doorbell and interrupt, in either direction
//! and on every CPU:
//!
//! - *publish, full fence, read the other side's wish*;
//! - *state the wish, full fence, look again*, before sleeping.
//!
//! Where the other side has no fence between its two, the one that sleeps looks a third time, later
//! ([`deferred`]).
//!
//! | module | what is published | the wish |
//! | --- | --- | --- |
//! | [`virtqueue`] | `avail.idx`, `used.idx` | `flags`, or event indexes |
//! | [`packed`] | a descriptor's flags | event suppression structures |
//! | [`bell`] | a register, trapped or mapped | a flag of ours |
//! | [`csb`] | `guest_tdt`, `guest_rdt` | `host_need_txkick`, `host_rxkick_at` |
//! | | `host_tdh`, DD | `guest_need_txkick`, `guest_need_rxkick` |
//! | [`deferred`] | generation bits | `txThreshold` |
//!
//! [`moderate`] decides when a wish for an interrupt is met: the host has a say in that as well.
//!
//! The words are behind traits, so that loom can try every interleaving (`tests/loom`), and can do
//! so with each fence and each second look, a [`Point`], taken away: [`Guard`].

pub mod bell;
pub mod csb;
pub mod deferred;
pub mod moderate;
pub mod packed;
pub mod virtqueue;

/// A place in the protocol that prevents a lost wake-up: a full fence, or a second look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Fence: `used.idx` is published, then the driver's wish is read.
    VirtqueuePublish,
    /// Fence: our wish is stated, then `avail.idx` is looked at again.
    VirtqueueArm,
    /// That second look.
    VirtqueueLook,
    /// Fence: used descriptors are published, then the driver's wish is read.
    PackedPublish,
    /// Fence: our wish is stated, then the next descriptor is looked at again.
    PackedArm,
    /// That second look.
    PackedLook,
    /// Fence: a tail's register (or the link, or a wish that is gone) is stored, then the worker's
    /// wish is read.
    BellRing,
    /// Fence: the worker's wish is stated, then the tail is looked at again.
    BellArm,
    /// That second look.
    BellLook,
    /// Fence: `host_need_txkick` is stated, then `guest_tdt` is looked at again.
    CsbTransmitArm,
    /// That second look.
    CsbTransmitLook,
    /// Fence: `host_tdh` is published, then `guest_need_txkick` is read.
    CsbSent,
    /// Fence: `host_rxkick_at` is stated, then `guest_rdt` is looked at again.
    CsbRoomArm,
    /// That second look.
    CsbRoomLook,
    /// Fence: DD is published, then `guest_need_rxkick` is read.
    CsbReceived,
    /// Fence: the guest has turned the CSB off, and kicks are wanted; then its indexes are looked
    /// at once more.
    CsbLeave,
    /// That look.
    CsbLeaveLook,
    /// Fence: `txThreshold` is stated, then descriptors are looked at again.
    DeferredArm,
    /// That second look.
    DeferredLook,
    /// The third look, after a while: the driver has no fence.
    DeferredLater,
}

impl Point {
    /// Every point, once.
    pub const ALL: [Self; 20] = [
        Self::VirtqueuePublish,
        Self::VirtqueueArm,
        Self::VirtqueueLook,
        Self::PackedPublish,
        Self::PackedArm,
        Self::PackedLook,
        Self::BellRing,
        Self::BellArm,
        Self::BellLook,
        Self::CsbTransmitArm,
        Self::CsbTransmitLook,
        Self::CsbSent,
        Self::CsbRoomArm,
        Self::CsbRoomLook,
        Self::CsbReceived,
        Self::CsbLeave,
        Self::CsbLeaveLook,
        Self::DeferredArm,
        Self::DeferredLook,
        Self::DeferredLater,
    ];
}

/// The points, by name, so that a test can take one away. In production they cost nothing beside
/// the fence.
pub trait Guard {
    /// A sequentially consistent fence.
    #[inline]
    fn full_fence(&self, _at: Point) {
        vmlan_ram::full_fence();
    }

    /// Whether there is a second look here: always, outside that test.
    #[inline]
    fn looks_again(&self, _at: Point) -> bool {
        true
    }
}
