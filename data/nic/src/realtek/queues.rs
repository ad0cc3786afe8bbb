//! The two transmit rings, of high and of normal priority: the first is served before the second.

use std::sync::Arc;

use vmlan_frame::{Batch, Sink, WORK};
use vmlan_ram::Map;

use super::cplus::{Cplus, Sending, Which};
use super::ring::Ring;
use crate::chip::csb::Csb;
use crate::chip::held::{Held, Remains};
use crate::chip::state::Fields;
use crate::chip::{Fault, Sent, StateError, TransmitSide};
use crate::ring::{Counted, Transmitter};

/// A transmit side of two rings. A CSB knows of the normal one only.
pub struct Queues<C: Cplus> {
    high: Transmitter<Sending<C>>,
    normal: Transmitter<Sending<C>>,
}

impl<C: Cplus> Default for Queues<C> {
    fn default() -> Self {
        let ring = |which| Transmitter::new(Ring::new(which));
        Self { high: ring(Which::High), normal: ring(Which::Normal) }
    }
}

impl<C: Cplus> TransmitSide<C> for Queues<C> {
    fn map(&self) -> &Arc<Map> {
        self.normal.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        drop(self.high.set_map(Arc::clone(&map)));
        self.normal.set_map(map)
    }

    fn place_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>) {
        self.normal.place_csb(chip, csb);
    }

    fn replace_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>, on: bool) {
        self.normal.replace_csb(chip, csb, on);
    }

    fn fields(&mut self, chip: &C, io: &mut Fields<'_>) {
        let Self { high, normal } = self;
        [high, normal].into_iter().for_each(|queue| queue.fields(chip, io));
    }

    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>) {
        self.normal.adopt_csb(csb);
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.high.hold(held);
        self.normal.hold(held);
    }

    fn revive(&mut self, chip: &C, remains: &Remains<'_>) -> Result<(), StateError> {
        self.high.revive(chip, remains)?;
        self.normal.revive(chip, remains)
    }

    fn stop(&mut self, chip: &C) {
        self.high.stop(chip);
        self.normal.stop(chip);
    }

    fn fault(&self) -> Option<Fault> {
        self.high.fault().or_else(|| self.normal.fault())
    }

    fn arm(&mut self, chip: &C, on: bool) -> bool {
        let high = self.high.arm(chip, on);
        self.normal.arm(chip, on) || high
    }

    fn transmit(
        &mut self,
        chip: &C,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        if chip.place(Which::High).base == 0 {
            return self.normal.transmit(chip, spare, limit, sink);
        }
        let mut counted = Counted { sink, lent: 0, ring: 1 };
        let first = self.high.transmit(chip, spare, limit, &mut counted);
        // A pull is no longer than that of a chip with one ring.
        if first.work > WORK / 2 {
            return first;
        }
        let left = limit.saturating_sub(counted.lent);
        let second = self.normal.transmit(chip, spare, left, counted.sink);
        Sent {
            finished: first.finished + second.finished,
            causes: first.causes | second.causes,
            delayed: true,
            reopened: second.reopened,
            work: first.work + second.work,
            visited: first.visited + second.visited,
        }
    }
}
