//! Doorbells that are registers: the e1000's TDT and RDT.
//!
//! The write itself is the bell, whether it leaves the guest (then it wakes the device) or goes to
//! a page that is shared with the device (then it wakes nobody: a device that lets it be mapped
//! looks now and then). There is no wish to read, only an order to keep. Nor is there a second
//! look: an interrupt that is enabled in the chip comes at once if its cause stands.

use super::{Guard, Point};

/// Makes the device look at memory by storing to a register (`write`). The device then sees what
/// was stored in memory before.
#[inline]
pub fn publish<T>(guard: &impl Guard, write: impl FnOnce() -> T) -> T {
    guard.fence(Point::TailPublish);
    write()
}
