//! The CSB's flags ("CSB" of the paper and of FreeBSD 10's `if_lem`), device side.
//!
//! The CSB is 104 bytes of guest memory, in which guest and chip tell each other of their indexes
//! without a register access or an interrupt while both are awake. Four pairs of words, each with
//! both rules of [`super`]:
//!
//! | what is new | published by | wish | stated by | told by |
//! | --- | --- | --- | --- | --- |
//! | frames to send | guest: `guest_tdt` | `host_need_txkick` | [`arm_transmit`] | write of TDT |
//! | frames sent | [`publish_sent`] | `guest_need_txkick` | guest | interrupt |
//! | buffers to fill | guest: `guest_rdt` | `host_rxkick_at` | [`arm_room`] | write of RDT |
//! | frames received | [`publish_received`] | `guest_need_rxkick` | guest | interrupt |
//!
//! Every word the guest writes is hostile: wishes are read by bit 0 only (one guest parks
//! `guest_need_txkick` at 2), and what an index is worth is the caller's to check.

use super::{Guard, Point};

/// `host_rxkick_at` that asks for nothing.
pub const NO_KICK: u32 = u32::MAX;

/// The words of a CSB.
pub trait CsbFields: Guard {
    /// `guest_tdt`: the first descriptor that is not for us to send. Acquire: the descriptors
    /// before it are written.
    fn guest_tdt(&self) -> u32;
    /// `guest_rdt`: the first descriptor that is not for us to fill. Acquire.
    fn guest_rdt(&self) -> u32;
    /// `guest_need_txkick`, relaxed.
    fn guest_need_txkick(&self) -> u32;
    /// `guest_need_rxkick`, relaxed.
    fn guest_need_rxkick(&self) -> u32;
    /// `guest_csb_on`. Acquire: the indexes stored before it was set are read.
    fn guest_csb_on(&self) -> u32;
    /// `host_tdh`. Release: the descriptors before it are written back.
    fn set_host_tdh(&self, index: u32);
    /// `host_rdh`. Release.
    fn set_host_rdh(&self, index: u32);
    /// `host_need_txkick`, relaxed.
    fn set_host_need_txkick(&self, wish: u32);
    /// `host_need_rxkick`, relaxed: the wish as guests of early 2013 read it.
    fn set_host_need_rxkick(&self, wish: u32);
    /// `host_rxkick_at`, relaxed.
    fn set_host_rxkick_at(&self, index: u32);
}

/// The worker is about to sleep: asks for a write of TDT when there is something to send. Returns
/// what `look`, the second look, says: true if there is something already, then do not sleep, for
/// nobody may ring. Call it whenever there is a CSB, also while `guest_csb_on` is 0: a guest that
/// sets it later trusts the wish that it finds.
///
/// Arm the [`super::bell`] first: [`accept_kick`] relies on it.
#[inline]
#[must_use]
pub fn arm_transmit(words: &impl CsbFields, look: impl FnOnce() -> bool) -> bool {
    words.set_host_need_txkick(1);
    words.full_fence(Point::CsbTransmitArm);
    words.looks_again(Point::CsbTransmitLook) && look()
}

/// The worker is awake and looks at `guest_tdt` by itself.
#[inline]
pub fn disarm_transmit(words: &impl CsbFields) {
    words.set_host_need_txkick(0);
}

/// `guest_csb_on` is found to be 0, and `host_need_txkick` was set: from now on the registers
/// count, and the guest's processors write them, once each has noticed the one or the other. What
/// one of them had published before it noticed is found by `look`, the last one at the CSB. (None:
/// not in production.)
#[inline]
#[must_use]
pub fn leave<T>(words: &impl CsbFields, look: impl FnOnce() -> T) -> Option<T> {
    words.full_fence(Point::CsbLeave);
    words.looks_again(Point::CsbLeaveLook).then(look)
}

/// TDT or TCTL was written, by whatever thread: one kick is enough for one sleep. Ring the worker's
/// [`super::bell`] *after* this: either that finds the worker's wish and wakes it, or the worker
/// has not yet armed, and states this one again.
///
/// The reference has a full fence here, between the wish and the next look at `guest_tdt`. It is
/// not needed: nobody goes to sleep because of that look, only the one after [`arm_transmit`] is,
/// and that one has its fence.
#[inline]
pub fn accept_kick(words: &impl CsbFields) {
    words.set_host_need_txkick(0);
}

/// Frames up to `head` (as TDH) are sent, and their descriptors written back. True if the guest
/// wants an interrupt for that.
#[inline]
#[must_use]
pub fn publish_sent(words: &impl CsbFields, head: u32) -> bool {
    words.set_host_tdh(head);
    words.full_fence(Point::CsbSent);
    wants_sent(words)
}

/// The guest wants an interrupt for sent frames: what the interrupt block asks again when a
/// held-off interrupt is due, or the mask has changed.
#[inline]
pub fn wants_sent(words: &impl CsbFields) -> bool {
    words.guest_need_txkick() & 1 != 0
}

/// Frames up to `head` (as RDH) are received, and their descriptors (DD) written back. True if the
/// guest wants an interrupt for that.
#[inline]
#[must_use]
pub fn publish_received(words: &impl CsbFields, head: u32) -> bool {
    words.set_host_rdh(head);
    words.full_fence(Point::CsbReceived);
    wants_received(words)
}

/// The guest wants an interrupt for received frames. See [`wants_sent`].
#[inline]
pub fn wants_received(words: &impl CsbFields) -> bool {
    words.guest_need_rxkick() & 1 != 0
}

/// The receive ring as the chip last saw it. All are below `size`; otherwise the result is
/// nonsense, but harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Descriptors.
    pub size: u32,
    /// RDH.
    pub head: u32,
    /// RDT: there are no buffers from here on. Equal to `head`: there are none at all.
    pub tail: u32,
}

/// The index whose return is worth a kick: when the guest has given back about three quarters of
/// what it holds now.
#[inline]
pub fn kick_at(ring: Ring) -> u32 {
    let Ring { size, head, tail } = ring;
    if size == 0 {
        return NO_KICK;
    }
    let available = if tail >= head { tail - head } else { (tail + size).saturating_sub(head) };
    let held = u64::from(size.saturating_sub(available).saturating_sub(1));
    let at = (u64::from(tail) + 1 + held * 3 / 4) % u64::from(size);
    u32::try_from(at).unwrap_or(NO_KICK)
}

/// Frames wait for buffers: asks for a write of RDT when most of `ring` is given back. Returns what
/// `look`, the second look, says: true if `guest_rdt` is no longer [`Ring::tail`]. *Any* movement
/// must count, not only enough of it for the frame that waits: the guest may have passed the index
/// already, and would never pass it again. Then [`disarm_room`], and try.
#[inline]
#[must_use]
pub fn arm_room(words: &impl CsbFields, ring: Ring, look: impl FnOnce() -> bool) -> bool {
    words.set_host_rxkick_at(kick_at(ring));
    words.set_host_need_rxkick(1);
    words.full_fence(Point::CsbRoomArm);
    words.looks_again(Point::CsbRoomLook) && look()
}

/// There is room, or nobody waits for it. Only after [`arm_room`], for it dirties the guest's cache
/// line.
#[inline]
pub fn disarm_room(words: &impl CsbFields) {
    words.set_host_rxkick_at(NO_KICK);
    words.set_host_need_rxkick(0);
}

#[cfg(test)]
mod tests {
    use super::{NO_KICK, Ring, kick_at};

    #[test]
    fn a_kick_is_asked_for_where_the_guest_can_get_to() {
        for size in [8, 64, 256] {
            for head in 0..size {
                for available in 0..size - 1 {
                    let tail = (head + available) % size;
                    let at = kick_at(Ring { size, head, tail });
                    let steps = (at + size - tail) % size;
                    let held = size - 1 - available;
                    assert_eq!(steps, 1 + held * 3 / 4);
                    assert!((1..=held).contains(&steps), "{size} {head} {tail}: {at}");
                }
            }
        }
        assert_eq!(kick_at(Ring { size: 256, head: 10, tail: 10 }), 10 + 1 + 191);
        assert_eq!(kick_at(Ring { size: 0, head: 1, tail: 2 }), NO_KICK);
        for wild in [u32::MAX, 1 << 31, 4096] {
            let _ = kick_at(Ring { size: 256, head: wild, tail: 3 });
            let _ = kick_at(Ring { size: 256, head: 3, tail: wild });
        }
    }
}
