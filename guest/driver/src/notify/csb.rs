//! The shared status block, driver side: the order of stores and loads. Layout and handshake are
//! the driver's.
//!
//! The drivers of 2013 had no fences here, and lost wake-ups were made good by the next packet or
//! by a timer. These have none to lose.

use super::{Guard, Point};

/// The words of a block that a driver touches while it runs.
pub trait CsbFields: Guard {
    /// `guest_tdt`, release: the descriptors before it are described.
    fn set_guest_tdt(&self, index: u32);
    /// `guest_rdt`, release: the descriptors before it are the chip's.
    fn set_guest_rdt(&self, index: u32);
    /// `guest_need_txkick`, relaxed.
    fn set_guest_need_txkick(&self, wish: u32);
    /// `guest_need_rxkick`, relaxed.
    fn set_guest_need_rxkick(&self, wish: u32);
    /// `guest_csb_on`, release: the indexes are in place.
    fn set_guest_csb_on(&self, on: u32);
    /// `host_need_txkick`, relaxed.
    fn host_need_txkick(&self) -> u32;
    /// `host_rxkick_at`, relaxed.
    fn host_rxkick_at(&self) -> u32;
}

/// The chip knows the block: from now on it reads the indexes here. They must be what TDT and RDT
/// say. No interrupt is wanted.
pub fn start(words: &impl CsbFields, tdt: u32, rdt: u32) {
    words.set_guest_need_txkick(0);
    words.set_guest_need_rxkick(0);
    words.set_guest_tdt(tdt);
    words.set_guest_rdt(rdt);
    words.set_guest_csb_on(1);
}

/// Back to the registers. Write TDT and RDT after this: what was published without a kick may not
/// have been seen.
pub fn stop(words: &impl CsbFields) {
    words.set_guest_csb_on(0);
}

/// Frames up to `tail` (as TDT) are described. True: write TDT, for the chip sleeps.
#[inline]
#[must_use]
pub fn send(words: &impl CsbFields, tail: u32) -> bool {
    words.set_guest_tdt(tail);
    words.fence(Point::CsbSend);
    // Bit 0 is the wish; later hosts use the others for themselves.
    words.host_need_txkick() & 1 != 0
}

/// About to sleep until frames are sent: asks for an interrupt, then calls `look`. True: there is
/// news (what `look` says), do not sleep.
#[inline]
#[must_use]
pub fn want_completion(words: &impl CsbFields, look: impl FnOnce() -> bool) -> bool {
    words.set_guest_need_txkick(1);
    words.fence(Point::CsbCompletionArm);
    words.has_second_look(Point::CsbCompletionLook) && look()
}

/// Awake: no interrupt for sent frames.
#[inline]
pub fn unwant_completion(words: &impl CsbFields) {
    words.set_guest_need_txkick(0);
}

/// Gives the receive descriptors from `old` up to `new` (as RDT before and after) of a ring of
/// `size` to the chip, with one store. True: write RDT, for the chip waits for one that was among
/// them.
#[inline]
#[must_use]
pub fn refill(words: &impl CsbFields, size: u32, old: u32, new: u32) -> bool {
    words.set_guest_rdt(new);
    words.fence(Point::CsbRefill);
    passed(words.host_rxkick_at(), size, old, new)
}

/// Would a tail that is moved from `old` to `new` one by one ever be `at`, after a move? With all
/// of them below `size`; an `at` that is not (all ones: no wish) is never met.
#[inline]
pub fn passed(at: u32, size: u32, old: u32, new: u32) -> bool {
    let steps = |to: u32| if to >= old { to - old } else { to + size - old };
    at < size && at != old && steps(at) <= steps(new)
}

/// About to sleep until a frame is received: asks for an interrupt, then calls `look`. True: there
/// is news, do not sleep.
#[inline]
#[must_use]
pub fn want_reception(words: &impl CsbFields, look: impl FnOnce() -> bool) -> bool {
    words.set_guest_need_rxkick(1);
    words.fence(Point::CsbReceptionArm);
    words.has_second_look(Point::CsbReceptionLook) && look()
}

/// Awake: no interrupt for received frames.
#[inline]
pub fn unwant_reception(words: &impl CsbFields) {
    words.set_guest_need_rxkick(0);
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn one_store_passes_what_single_steps_would_have_met() {
        for size in [1, 2, 8, 13] {
            for old in 0..size {
                for count in 0..size {
                    let new = (old + count) % size;
                    for at in 0..size + 3 {
                        let met = (1..=count).any(|n| (old + n) % size == at);
                        assert_eq!(
                            passed(at, size, old, new),
                            met,
                            "{at}: {old} to {new} of {size}"
                        );
                    }
                    assert!(!passed(u32::MAX, size, old, new));
                }
            }
        }
    }
}
