//! When to ring, and how to go to sleep: the driver's side of each protocol, written from its
//! specification.
//!
//! Whoever publishes something and then asks whether the other side wants to be told, and whoever
//! says that it wants to be told and then looks whether it must sleep, stores one word and loads
//! another. Processors (x86 too) may do that in the other order, unless a full fence stands
//! between. With one on each side, one side at least sees what the other has stored.
//!
//! | module | we publish | and ring if | we wait for | after setting |
//! | --- | --- | --- | --- | --- |
//! | [`virtqueue`] | `avail.idx` | `used.flags` or `avail_event` | `used.idx` | `used_event` |
//! | [`packed`] | AVAIL, USED | the device's event structure | AVAIL, USED | our event structure |
//! | [`csb`] | `guest_tdt` | `host_need_txkick` | `host_tdh` or DD | `guest_need_txkick` |
//! | | `guest_rdt` | `host_rxkick_at` is passed | DD | `guest_need_rxkick` |
//! | [`registers`] | TDT, RDT | always: the write is the bell | DD | IMS, in the chip |
//! | [`threshold`] | a generation bit | `txThreshold` | such a bit | IMR, in the chip |
//! | | a generation bit | `updateRxProd` | | |
//!
//! The device's side is in another crate and shares nothing with this one. That crate's
//! `tests/loom` tries both together with every interleaving, and with each [`Point`] taken away.

pub mod csb;
pub mod packed;
pub mod registers;
pub mod threshold;
pub mod virtqueue;

/// The fences and second looks of the driver's side, each by a name, so that a test can remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Fence: `avail.idx` is stored, the device's wish is loaded.
    VirtqueuePublish,
    /// Fence: our wish is stored, `used.idx` is loaded.
    VirtqueueArm,
    /// That load.
    VirtqueueLook,
    /// Fence: a descriptor is made available, the device's event structure is loaded.
    PackedPublish,
    /// Fence: our event structure is stored, used descriptors are looked at.
    PackedArm,
    /// That look.
    PackedLook,
    /// Fence: `guest_tdt` is stored, `host_need_txkick` is loaded.
    CsbSend,
    /// Fence: `guest_need_txkick` is stored, `host_tdh` or DD is loaded.
    CsbCompletionArm,
    /// That load.
    CsbCompletionLook,
    /// Fence: `guest_rdt` is stored, `host_rxkick_at` is loaded.
    CsbRefill,
    /// Fence: `guest_need_rxkick` is stored, DD is loaded.
    CsbReceptionArm,
    /// That load.
    CsbReceptionLook,
    /// Release fence: descriptors are stored, then the tail's register.
    TailPublish,
}

impl Point {
    /// Every point, once.
    pub const ALL: [Self; 13] = [
        Self::VirtqueuePublish,
        Self::VirtqueueArm,
        Self::VirtqueueLook,
        Self::PackedPublish,
        Self::PackedArm,
        Self::PackedLook,
        Self::CsbSend,
        Self::CsbCompletionArm,
        Self::CsbCompletionLook,
        Self::CsbRefill,
        Self::CsbReceptionArm,
        Self::CsbReceptionLook,
        Self::TailPublish,
    ];
}

/// How the functions here reach a fence or a second look. In a driver this adds nothing to it.
pub trait Guard {
    /// A fence that is as strong as the point says: sequentially consistent, if it says nothing.
    #[inline]
    fn fence(&self, point: Point) {
        use std::sync::atomic::{Ordering, fence};
        match point {
            Point::TailPublish => fence(Ordering::Release),
            _ => fence(Ordering::SeqCst),
        }
    }

    /// True, unless a test has removed this second look.
    #[inline]
    fn has_second_look(&self, _point: Point) -> bool {
        true
    }
}

/// A guard with every point in place, for callers that have no other.
#[derive(Clone, Copy, Debug)]
pub struct Intact;

impl Guard for Intact {}
