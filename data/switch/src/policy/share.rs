//! Shares of a worker's time: deficit round robin by measured cost.

use crate::PortId;

/// Who may have how much of a worker's time.
#[derive(Debug, Default)]
pub struct Shares {}

impl Shares {
    /// A new round begins.
    pub fn begin(&mut self) {}

    /// True if it is the port's turn: it has time left.
    #[must_use]
    pub fn may_run(&mut self, port: PortId, weight: u16) -> bool {
        let _ = (port, weight);
        true
    }

    /// A breath of the port took `ns`. `more`: it did a whole batch, so that there is more to do.
    pub fn spent(&mut self, port: PortId, ns: u64, more: bool) {
        let _ = (port, ns, more);
    }
}
