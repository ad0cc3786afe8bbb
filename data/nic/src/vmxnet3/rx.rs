//! The receive side: what descriptors and completions mean, and up to 16 queues of two rings each.
//!
//! A frame begins in the next head of ring 0 (bodies on the way are passed over, which drivers
//! allow), and goes on in bodies: the next descriptor of ring 0 if that is one, else the next of
//! ring 1. Each buffer has a completion.

use std::sync::Arc;

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{Batch, FrameView};
use vmlan_ram::Map;

use super::Vmxnet3;
use super::desc::{done, rx};
use super::ring::Ring;
use super::rules::{Rules, is_tagged};
use super::shared::{Queue, RECEIVE};
use crate::chip::csb::{Csb, Direction};
use crate::chip::frame_totals::SideStats;
use crate::chip::state::Fields;
use crate::chip::{Fault, ReceiveSide, Received};
use crate::ring::spread::Hash;
use crate::ring::{
    At, DescriptorRing, Filter, Look, Receive, Receiver, Shape, VISITS, Verdict, Written, run,
    uncut,
};

/// In the number of a descriptor: of ring 0, wanted as a body; of ring 1.
const BODY: u32 = 1 << 30;
const SECOND: u32 = 1 << 31;
const INDEX: u32 = BODY - 1;

/// Bytes of the longest buffer.
const LONGEST: usize = 1 << 14;

/// What only this device says of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Note {
    hash: Hash,
    /// Of a packet that is handed over uncut: how many segments it stands for, and the payload
    /// bytes of each.
    uncut: Option<(usize, u16)>,
}

/// What receive descriptors mean.
pub struct Receiving;

impl Receive for Receiving {
    type Ring = Ring;
    type Filter = Digest;
    type Note = Note;
    const IN_ORDER: bool = true;
    const UNCUT: bool = true;

    /// A body where a head is wanted takes no data, and the other way round.
    #[inline]
    fn buffer(ring: &Ring, number: u32, _: &Shape) -> (u64, usize) {
        let index = number & INDEX;
        let (addr, word) =
            if number & SECOND == 0 { ring.read(index) } else { ring.read_second(index) };
        let fits = (word & rx::BODY != 0) == (number & (BODY | SECOND) != 0);
        (addr, if fits { (word & rx::LEN) as usize } else { 0 })
    }

    #[inline]
    fn next(ring: &Ring, at: At, taken: u32) -> Option<(u32, At)> {
        let first = at.ahead();
        if taken == 0 {
            return first.map(|number| (number, at.after()));
        }
        if let Some(index) = first.filter(|index| ring.word(*index) & rx::BODY != 0) {
            return Some((index | BODY, at.after()));
        }
        let index = ring.second_after(at.others)?;
        Some((index | SECOND, At { others: at.others + 1, ..at }))
    }

    #[inline]
    fn stats<'c>(ring: &Ring, chip: &'c Vmxnet3) -> &'c SideStats {
        chip.stats.receive(ring.number())
    }

    #[inline]
    fn note(filter: &Digest, frame: &FrameView<'_, '_>) -> Note {
        let hash = filter.rules.spread().map_or(Hash::default(), |s| s.hash(frame.head, frame.len));
        Note { hash, uncut: uncut(frame) }
    }

    /// The usual frame has one head and nothing to be said of it; the other ones are apart, so that
    /// what they need is not even put together for this.
    #[inline(always)]
    fn write_back(ring: &Ring, _: &Digest, number: u32, what: &Written<Note>) {
        let plain = what.first && what.last && !what.failed && what.tag.is_none();
        let note = &what.note;
        if plain
            && what.sums.upper.is_none()
            && note.uncut.is_none()
            && note.hash.kind == 0
            && number & (BODY | SECOND) == 0
            && what.len > 0
        {
            let [main, _] = ring.names();
            let name = u64::from(number) | main | done::SOP | done::EOP | done::NO_SUMS;
            ring.complete(name, done::TYPE | what.len as u64);
        } else {
            write_back_other(ring, number, what);
        }
    }

    #[inline]
    fn publish(
        ring: &mut Ring,
        _: &Vmxnet3,
        _: &Digest,
        (look, head): (Look, u32),
        _: bool,
    ) -> u32 {
        if head == look.head {
            return 0;
        }
        ring.publish(head);
        ring.vector()
    }
}

/// What is passed over has no completion. Of a frame whose buffers cannot be written, the head is
/// given back empty.
#[inline(never)]
fn write_back_other(ring: &Ring, number: u32, what: &Written<Note>) {
    let index = number & INDEX;
    let body = number & (BODY | SECOND) != 0;
    if number & SECOND != 0 {
        ring.pass_second();
    }
    let [main, second] = ring.names();
    let name = u64::from(index) | if number & SECOND == 0 { main } else { second };
    if what.failed && !body {
        ring.complete(name | done::SOP | done::EOP | done::NO_SUMS, done::TYPE);
    }
    if what.failed || what.len == 0 {
        return;
    }
    let first = if what.first { done::SOP } else { 0 };
    let (last, said) = if what.last { end(what) } else { (0, 0) };
    let (name, said) = (name | first | last, said | what.len as u64);
    match what.note.uncut.filter(|_| what.first) {
        None => {
            let Hash { value, kind } = if what.last { what.note.hash } else { Hash::default() };
            let hash = u64::from(value) << done::HASH_SHIFT;
            let name = name | hash | u64::from(kind) << done::HASH_TYPE_SHIFT;
            ring.complete(name, done::TYPE | said);
        }
        // In the place of the hash.
        Some((segments, size)) => {
            let segments = segments.min(255) as u64;
            let said = done::TYPE_UNCUT | said | u64::from(size) << done::SIZE_SHIFT;
            ring.complete(name | segments << done::SEGMENTS_SHIFT, said);
        }
    }
}

/// What the completion of a frame's last part says, in its two quadwords.
#[inline]
fn end(what: &Written<Note>) -> (u64, u64) {
    let tag = what.tag.map_or(0, |tci| done::TAGGED | u64::from(tci) << done::TAG_SHIFT);
    let protocol = match what.sums {
        Verdict { upper: Some(TCP), .. } => done::UPPER | done::TCP,
        Verdict { upper: Some(UDP), .. } => done::UPPER | done::UDP,
        // Drivers take nothing less: an IP header alone is not worth a word.
        _ => return (done::EOP | done::NO_SUMS, tag),
    };
    match what.sums.ip {
        None => (done::EOP, tag | protocol | done::IPV6),
        Some(true) => (done::EOP, tag | protocol | done::IPV4 | done::IP),
        Some(false) => (done::EOP | done::NO_SUMS, tag),
    }
}

/// The rules, as one queue knows them.
#[derive(Default)]
pub struct Digest {
    rules: Arc<Rules>,
    shape: Shape,
}

impl Filter<Ring> for Digest {
    /// The length of the head that is next is the usual one.
    #[inline]
    fn update(&mut self, _: &Vmxnet3, ring: &Ring, look: &Look) {
        if look.posted() > 0 {
            let word = ring.word(look.head);
            let len = (word & rx::LEN) as usize;
            if word & rx::BODY == 0 && len > 0 {
                self.shape.buffer = len;
            }
        }
    }

    #[inline]
    fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    fn accepts(&self, head: &[u8]) -> bool {
        self.rules.accepts(head)
    }

    fn by_more(&self) -> bool {
        self.rules.filters_vlans()
    }

    #[inline]
    fn is_tagged(&self, head: &[u8]) -> bool {
        is_tagged(head)
    }

    /// The length of the heads that were last seen. The rules are the device's.
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { rules: _, shape } = self;
        io.count(&mut shape.buffer, LONGEST);
    }
}

/// All receive queues.
pub struct Receivers {
    queues: [Receiver<Receiving>; RECEIVE],
    /// How many are in use.
    count: usize,
}

impl Default for Receivers {
    fn default() -> Self {
        let queue =
            |number| Receiver::new(Ring::new(Direction::Receive, number), Digest::default());
        Self { queues: std::array::from_fn(queue), count: 0 }
    }
}

impl Receivers {
    /// The device is activated with these queues; with none, it no longer is.
    pub fn place(&mut self, chip: &Vmxnet3, queues: impl Iterator<Item = Queue>) {
        let mut queues = queues.fuse();
        self.count = 0;
        for queue in &mut self.queues {
            queue.stop(chip);
            let place = queues.next();
            self.count += usize::from(place.is_some());
            queue.ring.place(place);
        }
    }

    /// New rules.
    pub fn set_rules(&mut self, rules: &Arc<Rules>) {
        for queue in &mut self.queues {
            let buffer = queue.filter.shape.buffer;
            *queue.filter =
                Digest { rules: Arc::clone(rules), shape: Shape { buffer, ..rules.shape() } };
        }
    }

    /// Packets may be handed over uncut: the driver wants that, and has buffers for the longest.
    pub fn take_uncut(&mut self) -> bool {
        self.used().all(|queue| {
            let rules = &queue.filter.rules;
            let (head, body) = queue.ring.lengths();
            rules.wants_uncut() && rules.fits_uncut(head, body)
        })
    }

    fn used(&mut self) -> impl Iterator<Item = &mut Receiver<Receiving>> {
        self.queues.iter_mut().take(self.count)
    }
}

impl ReceiveSide<Vmxnet3> for Receivers {
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        let [first, others @ ..] = &mut self.queues;
        others.iter_mut().for_each(|queue| drop(queue.set_map(Arc::clone(&map))));
        first.set_map(map)
    }

    fn place_csb(&mut self, _: &Vmxnet3, _: Option<Arc<Csb>>) {}

    fn replace_csb(&mut self, _: &Vmxnet3, _: Option<Arc<Csb>>, _: bool) {}

    fn fields(&mut self, chip: &Vmxnet3, io: &mut Fields<'_>) {
        let Self { queues, count } = self;
        io.count(count, RECEIVE);
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
        self.queues.iter().take(self.count).find_map(Receiver::fault)
    }

    fn room(&mut self, chip: &Vmxnet3) -> usize {
        self.used().map(|queue| queue.room(chip)).min().unwrap_or(0)
    }

    /// If some queues had too little room, those are waited for, and not the others. No doorbell is
    /// asked for: whoever waits looks by itself ([`posts_without_register`]).
    ///
    /// [`posts_without_register`]: crate::chip::Controlled::posts_without_register
    fn want_room(&mut self, chip: &Vmxnet3) -> bool {
        let starved = self.used().any(|queue| queue.is_starved());
        let mut waited = self.used().filter(|queue| !starved || queue.is_starved());
        waited.any(|queue| queue.has_room(chip))
    }

    /// Frames of one queue that follow each other are delivered together.
    fn receive(&mut self, chip: &Vmxnet3, batch: &Batch<'_>, list: &[u16]) -> Received {
        let (mut all, mut budget) = (Received::default(), VISITS);
        while let Some(rest) = list.get(all.dealt..).filter(|rest| !rest.is_empty()) {
            let (index, run) = self.run(batch, rest);
            let Some(queue) = self.queues.get_mut(index) else { break };
            let frames = rest.get(..run).unwrap_or(rest);
            let received = queue.receive_within(chip, batch, frames, &mut budget);
            all.dealt += received.dealt;
            all.causes |= received.causes;
            if received.dealt < run {
                break;
            }
        }
        // The rest comes with the next push, though a queue may wait since one before this.
        if budget == 0 {
            self.used().for_each(Receiver::forget_starved);
        }
        all
    }
}

impl Receivers {
    /// The queue of the list's first frame, and how many from there on go to the same. A table may
    /// name queues that there are not.
    #[inline]
    fn run(&self, batch: &Batch<'_>, list: &[u16]) -> (usize, usize) {
        let [first, ..] = &self.queues;
        let Some(spread) = first.filter.rules.spread().filter(|_| self.count > 1) else {
            return (0, list.len());
        };
        run(list, |i| {
            let queue = spread.queue(spread.hash(batch.head(i), batch.frame_len(i)));
            if queue < self.count { queue } else { 0 }
        })
    }
}
