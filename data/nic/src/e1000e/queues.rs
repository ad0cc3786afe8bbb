//! Two queues each way.

use std::sync::Arc;

use vmlan_frame::{Batch, Sink};
use vmlan_ram::Map;

use super::E1000e;
use super::model::I82574;
use super::rx::Rx;
use super::table::{TARC0, TARC1};
use super::vectors::cause;
use crate::chip::csb::{Csb, Direction};
use crate::chip::held::{Held, Remains};
use crate::chip::state::Fields;
use crate::chip::{Fault, ReceiveSide, Received, Sent, StateError, TransmitSide};
use crate::intel::Filter;
use crate::intel::regs::*;
use crate::intel::ring::{Format, Names, Ring};
use crate::intel::tx::Tx;
use crate::ring::{Receiver, Transmitter, VISITS, in_turn, run};

const QUEUES: usize = 2;
const TARC_ENABLE: u32 = 1 << 10; // The queue is on.

/// The transmit rings' registers.
static TRANSMIT: [Names; QUEUES] = [
    transmit("transmit", TDBAL, cause::TXQ0, 0),
    transmit("second transmit", TDBAL1, cause::TXQ1, 1),
];

/// The receive rings' registers.
static RECEIVE: [Names; QUEUES] =
    [receive("receive", RDBAL, cause::RXQ0, 0), receive("second receive", RDBAL1, cause::RXQ1, 1)];

const fn transmit(ring: &'static str, base: u32, written: u32, queue: u8) -> Names {
    Names { direction: Direction::Transmit, ..receive(ring, base, written, queue) }
}

const fn receive(ring: &'static str, base: u32, written: u32, queue: u8) -> Names {
    Names {
        ring,
        low: base,
        high: base + 0x04,
        len: base + 0x08,
        head: base + 0x10,
        tail: base + 0x18,
        direction: Direction::Receive,
        written,
        queue,
    }
}

/// The transmit queues, served in turn.
pub struct Senders {
    queues: [Transmitter<Tx<I82574>>; QUEUES],
    /// Whose turn it is to be first.
    turn: usize,
}

impl Default for Senders {
    fn default() -> Self {
        Self {
            queues: TRANSMIT.each_ref().map(|names| Transmitter::new(Ring::new(names))),
            turn: 0,
        }
    }
}

/// A queue is on. The register may have been written by the guest at any time.
fn is_on(chip: &E1000e, index: usize) -> bool {
    let tarc = if index == 0 { TARC0 } else { TARC1 };
    chip.regs.get(tarc) & TARC_ENABLE != 0
}

impl TransmitSide<E1000e> for Senders {
    const STATE: u16 = <Transmitter<Tx<I82574>> as TransmitSide<E1000e>>::STATE;

    fn map(&self) -> &Arc<Map> {
        let [first, _] = &self.queues;
        first.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        let [first, second] = &mut self.queues;
        drop(second.set_map(Arc::clone(&map)));
        first.set_map(map)
    }

    fn place_csb(&mut self, _: &E1000e, _: Option<Arc<Csb>>) {}

    fn replace_csb(&mut self, _: &E1000e, _: Option<Arc<Csb>>, _: bool) {}

    fn fields(&mut self, chip: &E1000e, io: &mut Fields<'_>) {
        let Self { queues, turn } = self;
        queues.iter_mut().for_each(|queue| queue.fields(chip, io));
        io.count(turn, QUEUES - 1);
    }

    fn adopt_csb(&mut self, _: Option<Arc<Csb>>) {}

    fn hold(&mut self, held: &Arc<Held>) {
        self.queues.iter_mut().for_each(|queue| queue.hold(held));
    }

    fn revive(&mut self, chip: &E1000e, remains: &Remains<'_>) -> Result<(), StateError> {
        self.queues.iter_mut().try_for_each(|queue| queue.revive(chip, remains))
    }

    fn stop(&mut self, chip: &E1000e) {
        self.queues.iter_mut().for_each(|queue| queue.stop(chip));
    }

    fn reset(&mut self, chip: &E1000e) {
        self.queues.iter_mut().for_each(|queue| queue.reset(chip));
    }

    fn fault(&self) -> Option<Fault> {
        self.queues.iter().find_map(Transmitter::fault)
    }

    fn arm(&mut self, chip: &E1000e, on: bool) -> bool {
        let queues = self.queues.iter_mut().enumerate();
        on && queues.fold(false, |any, (i, queue)| any | (is_on(chip, i) && queue.waiting(chip)))
    }

    fn transmit(
        &mut self,
        chip: &E1000e,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        let sent = in_turn((QUEUES, self.turn), limit, sink, |index, left, sink| {
            let queue = self.queues.get_mut(index).filter(|_| is_on(chip, index));
            queue.map_or(Sent::default(), |queue| queue.transmit(chip, spare, left, sink))
        });
        self.turn = (self.turn + 1) % QUEUES;
        sent
    }
}

/// The receive queues.
pub struct Receivers {
    queues: [Receiver<Rx>; QUEUES],
}

impl Default for Receivers {
    fn default() -> Self {
        let queue = |names| Receiver::new(Ring::new(names), Filter::spreading());
        Self { queues: RECEIVE.each_ref().map(queue) }
    }
}

impl Receivers {
    /// What all descriptors look like, before the first look.
    pub fn set_format(&mut self, format: Format) {
        self.queues.iter_mut().for_each(|queue| queue.ring.format = format);
    }

    /// The queues that frames go to. The first one's filter tells, as of its last update.
    fn used(&mut self) -> impl Iterator<Item = &mut Receiver<Rx>> {
        let [first, _] = &self.queues;
        let count = if first.filter.spread().is_some() { QUEUES } else { 1 };
        self.queues.iter_mut().take(count)
    }
}

impl ReceiveSide<E1000e> for Receivers {
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        let [first, second] = &mut self.queues;
        drop(second.set_map(Arc::clone(&map)));
        first.set_map(map)
    }

    fn place_csb(&mut self, _: &E1000e, _: Option<Arc<Csb>>) {}

    fn replace_csb(&mut self, _: &E1000e, _: Option<Arc<Csb>>, _: bool) {}

    fn fields(&mut self, chip: &E1000e, io: &mut Fields<'_>) {
        let Self { queues } = self;
        queues.iter_mut().for_each(|queue| queue.fields(chip, io));
    }

    fn adopt_csb(&mut self, _: Option<Arc<Csb>>) {}

    fn hold(&mut self, held: &Arc<Held>) {
        self.queues.iter_mut().for_each(|queue| queue.hold(held));
    }

    fn revive(&mut self, chip: &E1000e, remains: &Remains<'_>) -> Result<(), StateError> {
        self.queues.iter_mut().try_for_each(|queue| queue.revive(chip, remains))
    }

    fn stop(&mut self, chip: &E1000e) {
        self.queues.iter_mut().for_each(|queue| queue.stop(chip));
    }

    fn fault(&self) -> Option<Fault> {
        self.queues.iter().find_map(Receiver::fault)
    }

    fn room(&mut self, chip: &E1000e) -> usize {
        self.used().map(|queue| queue.room(chip)).min().unwrap_or(0)
    }

    /// If some queues had too little room, those are waited for, and not the others; nor one that
    /// no frame goes to any more.
    fn want_room(&mut self, chip: &E1000e) -> bool {
        let [first, _] = &mut self.queues;
        first.refresh(chip);
        let starved = self.used().any(|queue| queue.is_starved());
        let waited = self.used().filter(|queue| !starved || queue.is_starved());
        waited.fold(false, |any, queue| any | queue.has_room(chip))
    }

    /// Frames of one queue that follow each other are delivered together.
    fn receive(&mut self, chip: &E1000e, batch: &Batch<'_>, list: &[u16]) -> Received {
        let (mut all, mut budget) = (Received::default(), VISITS);
        let [first, _] = &mut self.queues;
        first.refresh(chip);
        while let Some(rest) = list.get(all.dealt..).filter(|rest| !rest.is_empty()) {
            let (index, count) = self.run(batch, rest);
            let Some(queue) = self.queues.get_mut(index) else { break };
            let run = rest.get(..count).unwrap_or(rest);
            let received = queue.receive_within(chip, batch, run, &mut budget);
            all.dealt += received.dealt;
            all.causes |= received.causes;
            if received.dealt < count {
                break;
            }
        }
        // The rest comes with the next push, though a queue may wait since one before this.
        if budget == 0 {
            self.queues.iter_mut().for_each(Receiver::forget_starved);
        }
        all
    }
}

impl Receivers {
    /// The queue of the list's first frame, and how many from there on go to the same.
    #[inline]
    fn run(&self, batch: &Batch<'_>, list: &[u16]) -> (usize, usize) {
        let [first, _] = &self.queues;
        let Some(spread) = first.filter.spread() else { return (0, list.len()) };
        run(list, |i| spread.queue(spread.hash(batch.head(i), batch.frame_len(i))))
    }
}
