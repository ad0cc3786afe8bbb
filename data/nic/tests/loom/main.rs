//! Every interleaving of one driver and one device over the notification protocols: the driver's
//! real functions (`vmlan_driver::notify`) against the device's real functions
//! (`vmlan_nic::notify`), over words of loom's.
//!
//! Run with `cargo test -p vmlan-nic --test loom`. loom itself is optimised in every profile
//! (`Cargo.toml` of the workspace).
//!
//! In each pairing one side publishes, and the other takes what it sees, states its wish, looks
//! again and sleeps until it is rung for, again and again until it has taken everything. What must
//! hold:
//!
//! - no wake-up is lost: else one sleeps for ever, and loom reports a deadlock;
//! - no frame is lost: what is behind an index can be read once the index is seen;
//! - sleep is reached: the second look says "stay awake" no more often than there is something new.
//!
//! [`mutations`] takes away each fence and each second look in turn; then one of these must be
//! found to fail, else it would not be needed, or these models would prove nothing. loom models
//! C11's memory, so stores that wait in a processor's buffer while later loads are done (x86's one
//! reordering) are among the interleavings.

mod csb;
mod deferred;
mod mutations;
mod packed;
mod registers;
mod virtqueue;
mod wire;

use vmlan_driver::notify as driver;
use vmlan_nic::notify as device;

use loom::sync::atomic::{Ordering, fence};

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    Device(device::Point),
    Driver(driver::Point),
}

impl Without {
    fn device_fence(self, at: device::Point) {
        if self != Self::Device(at) {
            fence(Ordering::SeqCst);
        }
    }

    fn driver_fence(self, at: driver::Point) {
        if self != Self::Driver(at) {
            fence(match at {
                driver::Point::TailPublish => Ordering::Release,
                _ => Ordering::SeqCst,
            });
        }
    }
}

/// Runs every interleaving in which no thread is interrupted more than `bound` times, if there is a
/// bound. Without one, some models would take minutes; stores that are seen late do not count, so
/// all of C11's reorderings are tried at any bound.
fn explore(bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(model);
}
