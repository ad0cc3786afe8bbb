//! The transmit side: what descriptors mean, and up to 8 rings of them, served in turn.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

use vmlan_frame::{Batch, Offload, Reason, Sink};
use vmlan_ram::Map;

use super::Vmxnet3;
use super::desc::tx;
use super::ring::Ring;
use super::shared::{Queue, TRANSMIT};
use crate::chip::csb::{Csb, Direction};
use crate::chip::frame_totals::{SHORTEST, SideStats};
use crate::chip::state::Fields;
use crate::chip::{Chip, Fault, Sent, TransmitSide};
use crate::notify::deferred;
use crate::ring::{
    Checksums, Found, Look, Plan, Range, Segment, Setup, Transmit, Transmitter, Want, Wanted, add,
    distance, in_turn, unfinished,
};

const VLAN: u16 = 0x8100; // EtherType of the tags that are inserted.
const LONGEST: u32 = 1 << 14; // Bytes of a buffer whose length is 0.

/// What transmit descriptors mean. Of a frame, the first says what is to be done.
pub struct Sending;

fn headers(first: u64) -> usize {
    (first >> tx::HEADERS_SHIFT & tx::HEADERS) as usize
}

/// MSS, or where the checksum goes: 14 bits.
fn place(first: u64) -> u16 {
    u16::try_from(first >> tx::PLACE_SHIFT & tx::PLACE).unwrap_or(u16::MAX)
}

fn tag(first: u64) -> Option<(u16, u16)> {
    let tci = u16::try_from(first >> tx::TAG_SHIFT).unwrap_or(0);
    (first & tx::TAG != 0).then_some((VLAN, tci))
}

impl Transmit for Sending {
    type Ring = Ring;
    type Memory = ();
    type Context = ();
    const MASK: u64 = tx::TYPE | tx::MODE | tx::EOP | tx::TAG;
    const PLAIN: u64 = tx::EOP;

    fn setup(_: &Vmxnet3) -> Setup {
        Setup { vlan: Some(VLAN), pad: true }
    }

    #[inline]
    fn len(word: u64) -> u32 {
        match crate::bits::low32(word & tx::LEN) {
            0 => LONGEST,
            len => len,
        }
    }

    #[inline]
    fn is_last(word: u64) -> bool {
        word & tx::EOP != 0
    }

    fn between((): &mut (), _: u64, _: u64) -> bool {
        false
    }

    #[inline]
    fn fits(_: u64, word: u64, _: u32) -> bool {
        word & tx::TYPE == 0
    }

    #[inline]
    fn has_data(_: u64, _: u64) -> bool {
        true
    }

    fn context((): &(), _: u64) {}

    fn segments(want: &Want<Self>) -> Option<u16> {
        (want.first & tx::MODE == tx::SEGMENTS).then(|| place(want.first))
    }

    #[inline]
    fn as_it_is(found: &Found<Self>, _: Setup) -> Option<Offload> {
        let first = found.want.first;
        if (found.len as usize) < SHORTEST || first & tx::TAG != 0 {
            return None;
        }
        match first & tx::MODE {
            0 => Some(Offload::NONE),
            tx::SUM => unfinished(headers(first), place(first).into()),
            _ => None,
        }
    }

    fn plan(found: &Found<Self>, _: Setup) -> Result<Plan, Reason> {
        let first = found.want.first;
        let mut plan = Plan { tag: tag(first), pad: true, ..Plan::default() };
        match first & tx::MODE {
            0 => {}
            tx::SUM => {
                let small = |n| u8::try_from(n).map_err(|_| Reason::BadOffload);
                let (start, at) = (small(headers(first))?, small(place(first).into())?);
                let upper = Some(Range { start, at, last: 0 });
                plan.sums = Checksums::Told { ip: None, upper };
            }
            tx::SEGMENTS => {
                let headers = Wanted::Tcp(headers(first));
                plan.segment = Some(Segment { mss: place(first), headers });
            }
            // Encapsulation, of version 4.
            _ => return Err(Reason::BadOffload),
        }
        Ok(plan)
    }

    #[inline]
    fn stats<'c>(ring: &Ring, chip: &'c Vmxnet3) -> &'c SideStats {
        chip.stats.transmit(ring.number())
    }

    /// A completion for each frame that asks for one, in order. They may wait for others, unless
    /// the driver could run out of descriptors meanwhile.
    #[inline]
    fn complete(ring: &mut Ring, _: &Vmxnet3, look: Look, to: u32) -> (u32, bool) {
        let (mut at, mut reported) = (look.head, false);
        while at != to {
            let wanted = tx::EOP | tx::REPORT;
            if ring.word(at) & wanted == wanted {
                ring.complete(at.into(), 0);
                reported = true;
            }
            at = add(at, 1, look.size);
        }
        ring.publish(to);
        ring.waiting += distance(look.head, to, look.size);
        let delayed = ring.waiting < look.size / 4;
        if !delayed {
            ring.waiting = 0;
        }
        (if reported { ring.vector() } else { 0 }, delayed)
    }
}

/// All transmit queues.
pub struct Senders {
    queues: [Transmitter<Sending>; TRANSMIT],
    /// How many are in use.
    count: usize,
    /// Whose turn it is to be first.
    turn: usize,
}

impl Default for Senders {
    fn default() -> Self {
        let ring = |number| Transmitter::new(Ring::new(Direction::Transmit, number));
        Self { queues: std::array::from_fn(ring), count: 0, turn: 0 }
    }
}

impl Senders {
    /// The device is activated with these queues; with none, it no longer is.
    pub fn place(&mut self, chip: &Vmxnet3, queues: impl Iterator<Item = Queue>) {
        let mut queues = queues.fuse();
        self.count = 0;
        chip.economy.quiet.store(0, Ordering::Relaxed);
        for queue in &mut self.queues {
            queue.stop(chip);
            let place = queues.next();
            self.count += usize::from(place.is_some());
            queue.ring.place(place);
        }
    }

    fn used(&mut self) -> impl Iterator<Item = &mut Transmitter<Sending>> {
        self.queues.iter_mut().take(self.count)
    }

    /// The third look: true if frames wait.
    pub fn look_later(&mut self, chip: &Vmxnet3) -> bool {
        self.used().fold(false, |any, queue| {
            let words = queue.ring.words();
            any | words.is_some_and(|words| deferred::later(&*words, || queue.waiting(chip)))
        })
    }

    fn transmit_one(
        &mut self,
        chip: &Vmxnet3,
        index: usize,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        let Some(queue) = self.queues.get_mut(index) else { return Sent::default() };
        let sent = queue.transmit(chip, spare, limit, sink);
        if sent.finished == 0 {
            return sent;
        }
        if !queue.ring.asked {
            chip.economy.unrung.add(sent.finished as u64);
        } else if let Some(words) = queue.ring.words() {
            queue.ring.asked = false;
            chip.economy.quiet.fetch_or(1 << index, Ordering::Relaxed);
            deferred::disarm(&*words);
        }
        sent
    }
}

impl TransmitSide<Vmxnet3> for Senders {
    fn map(&self) -> &Arc<Map> {
        let [first, ..] = &self.queues;
        first.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        let [first, others @ ..] = &mut self.queues;
        others.iter_mut().for_each(|queue| drop(queue.set_map(Arc::clone(&map))));
        first.set_map(map)
    }

    fn place_csb(&mut self, _: &Vmxnet3, _: Option<Arc<Csb>>) {}

    fn replace_csb(&mut self, _: &Vmxnet3, _: Option<Arc<Csb>>, _: bool) {}

    fn fields(&mut self, chip: &Vmxnet3, io: &mut Fields<'_>) {
        let Self { queues, count, turn } = self;
        io.count(count, TRANSMIT);
        io.count(turn, TRANSMIT);
        for queue in &mut *queues {
            queue.fields(chip, io);
        }
        io.check(queues.iter().take(*count).all(|queue| queue.ring.is_placed()));
    }

    fn adopt_csb(&mut self, _: Option<Arc<Csb>>) {}

    fn stop(&mut self, chip: &Vmxnet3) {
        self.queues.iter_mut().for_each(|queue| queue.stop(chip));
    }

    fn fault(&self) -> Option<Fault> {
        self.queues.iter().take(self.count).find_map(Transmitter::fault)
    }

    /// Where the wish did not stand before, a third look is needed. A doorbell that nobody hears is
    /// not wished for.
    fn arm(&mut self, chip: &Vmxnet3, on: bool) -> bool {
        if !on {
            return false;
        }
        if chip.mapped {
            return self.used().fold(false, |any, queue| any | queue.waiting(chip));
        }
        let (mut more, mut later) = (false, false);
        for (index, queue) in self.queues.iter_mut().take(self.count).enumerate() {
            let Some(words) = queue.ring.words() else { continue };
            if std::mem::replace(&mut queue.ring.asked, true) {
                more |= queue.waiting(chip);
                continue;
            }
            later = true;
            chip.economy.quiet.fetch_and(!(1 << index), Ordering::Relaxed);
            more |= deferred::arm(&*words, || queue.waiting(chip));
        }
        if later {
            chip.look_later();
        }
        more
    }

    fn transmit(
        &mut self,
        chip: &Vmxnet3,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        if self.count <= 1 {
            return self.transmit_one(chip, 0, spare, limit, sink);
        }
        let turns = (self.count, self.turn);
        let all = in_turn(turns, limit, sink, |index, left, sink| {
            self.transmit_one(chip, index, spare, left, sink)
        });
        self.turn = (self.turn + 1) % self.count;
        all
    }
}

impl Vmxnet3 {
    /// Asks for a third look at the transmit rings.
    fn look_later(&self) {
        let core = self.core();
        core.irq.look_at(core.host.now().saturating_add(deferred::LATER), &*core.host);
    }

    /// The third look, if it is due. Whoever has the lock is awake; but it may have looked a moment
    /// too early, so this looks once more.
    pub(super) fn third_look(&self) {
        let core = self.core();
        if !core.irq.take_look(core.host.now()) {
            return;
        }
        let mut side = match core.tx.try_lock() {
            Ok(side) => side,
            Err(TryLockError::Poisoned(side)) => side.into_inner(),
            Err(TryLockError::WouldBlock) => return self.look_later(),
        };
        let gate = self.gate();
        if !gate.dma || !gate.transmit || !side.look_later(self) {
            return;
        }
        drop(side);
        self.economy.found_later.add_shared(1);
        core.ring_tx();
    }
}
