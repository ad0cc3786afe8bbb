//! Doorbells that are registers: the e1000's TDT and RDT.
//!
//! The write itself is the bell, whether it leaves the guest (then it wakes the device) or goes to a page that is shared with
//! the device (then it wakes nobody: a device that lets it be mapped looks now and then). There is no wish to read, only an
//! order to keep. Nor is there a second look: an interrupt that is enabled in the chip comes at once if its cause stands.

use super::{Guard, Point};

/// The way to a tail's register.
pub trait Tail: Guard {
    /// Writes it; no load or store after it need wait.
    fn write(&self, tail: u32);
}

/// The descriptors before `tail` are described: tells the device.
#[inline]
pub fn publish(register: &impl Tail, tail: u32) {
    register.fence(Point::TailPublish);
    register.write(tail);
}
