//! Several rings behind one sink.

use vmlan_frame::{Batch, Sink};

/// A sink that counts what it was lent, by several rings that share a limit.
pub struct Counted<'s> {
    pub sink: &'s mut dyn Sink,
    pub lent: usize,
    /// The one whose turn it is.
    pub ring: usize,
}

impl Sink for Counted<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.lent += batch.len();
        batch.set_ring(self.ring);
        self.sink.deliver(batch);
    }
}
