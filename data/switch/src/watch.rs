//! Those who watch frames pass.

use std::sync::Arc;

use vmlan_frame::{Batch, Verdict};

use crate::PortId;
use crate::forward::{Pass, Way};

impl Pass<'_> {
    /// Shows the batch to whoever watches its source or its destinations. Held frames are shown when
    /// they are finished with, and who watches both ends is shown a frame where it came in only: a
    /// capture in which every frame is there twice looks like a network full of retransmissions.
    pub(crate) fn mirror(&self, batch: &Batch<'_>) {
        let watcher = |port: PortId| self.table.get(port).and_then(|e| e.mirror.as_ref());
        let source = watcher(self.source);
        for i in (0..batch.len()).filter(|i| batch.verdict(*i) != Verdict::Held) {
            let Some(frame) = batch.frame(i) else { continue };
            let dropped = batch.dropped(i);
            if let Some((mirror, interface)) = source {
                mirror.capture(*interface, false, &frame, dropped);
            }
            let delivered = |port: PortId| {
                let Some((mirror, interface)) = watcher(port) else { return };
                if source.is_none_or(|(m, _)| !Arc::ptr_eq(m, mirror)) {
                    mirror.capture(*interface, true, &frame, None);
                }
            };
            match self.state.ways.get(i) {
                Some(Way::To(port)) if dropped.is_none() => delivered(*port),
                Some(Way::Flood) => {
                    let others = self.table.members().iter().filter(|p| **p != self.source);
                    others.for_each(|p| delivered(*p));
                }
                _ => {}
            }
        }
    }
}
