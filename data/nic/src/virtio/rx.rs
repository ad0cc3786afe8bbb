//! The guest's receive queues: frames are copied to where the guest wants them.

use vmlan_frame::{BATCH, Batch, Counters, FrameView, Reason, place_of};
use vmlan_ram::{Lines, Map, Slice, SliceMut};

use super::desc::Buffers;
use super::net::{QueueSlot, QueueState};
use super::packed::Packed;
use super::queue::{HEADS, Queue, Ring, either};
use super::split::Split;
use super::{Fault, Net, feature, header};
use crate::chip::held::point;

/// Frames for which buffers are found, and asked for, before the first is copied.
const CHUNK: usize = 32;

/// Pieces of memory one frame is spread over, at most: 64 KiB in buffers of 256 bytes.
const MAX_RUNS: usize = 256;

/// Frames for which buffers are asked for before the push; the last one's end finds no place among
/// [`Lines`].
const FEW: usize = 4;

/// Bytes of a frame of 60 with its header.
const SHORT: usize = 72;

/// Descriptors one push visits, at most, whatever the guest posts: buffers of one byte must not
/// keep a worker busy for ever. The last reading of heads may exceed it: by as many, and by one
/// list of a packed ring.
const BUDGET: usize = 4096;

/// Descriptors that a push may still visit. The parts of one that goes by several lanes share it.
#[derive(Debug)]
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(BUDGET)
    }
}

impl Budget {
    /// Nothing is left.
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// What a receive queue remembers between pushes.
#[derive(Default)]
pub struct RxState {
    /// The last push, or a look since, found too little room.
    starved: bool,
    /// The present push used the queue.
    touched: bool,
}

impl QueueState for RxState {
    const WANTS_DOORBELLS: bool = false;
    // A frame in one buffer, or buffers that the budget paid for.
    const STAGED: usize = BATCH + BUDGET;
}

/// The guest's receive queues.
pub type NetRx = Net<RxState>;

/// A buffer found for a frame, and its guest address for the log.
type Target<'m> = Option<(SliceMut<'m>, u64)>;

/// What became of a frame.
enum Outcome<'m> {
    /// It fits this one buffer, and is still to be copied.
    One(SliceMut<'m>, u64),
    /// It was spread over several.
    Delivered,
    Dropped(Reason),
    NoRoom,
    Broken(Fault),
}

impl Net<RxState> {
    /// Delivers the frames of `batch` that `list` names, in that order. Returns how many entries of
    /// `list` were dealt with, delivered or dropped; the rest found no room. Frames of one flow go
    /// to one queue.
    pub fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &[u16],
        counters: &Counters,
        budget: &mut Budget,
    ) -> usize {
        if self.ready.is_empty() {
            counters.output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        if self.features.has(feature::RING_PACKED) {
            self.push_to::<Packed>(batch, list, counters, budget)
        } else {
            self.push_to::<Split>(batch, list, counters, budget)
        }
    }

    /// As [`Self::push`], to queues of one layout.
    fn push_to<L>(
        &mut self,
        batch: &Batch<'_>,
        list: &[u16],
        counters: &Counters,
        budget: &mut Budget,
    ) -> usize
    where
        Queue<L>: Ring,
    {
        let mut visit = Visit {
            map: &self.map,
            hlen: self.features.header_len(),
            mergeable: self.features.has(feature::MRG_RXBUF),
            csum: self.features.has(feature::GUEST_CSUM),
            ready: &self.ready,
            budget,
            frames: 0,
            bytes: 0,
        };
        let mut dealt = 0;
        let mut fault = None;
        for chunk in list.chunks(CHUNK) {
            let n;
            (n, fault) = visit.chunk::<L>(&mut self.slots, batch, chunk, counters);
            dealt += n;
            if n < chunk.len() {
                if visit.budget.is_spent() {
                    forget_starved(&mut self.slots);
                }
                break;
            }
        }
        counters.count_output(self.lane, visit.frames, visit.bytes);
        self.publish::<L>(counters);
        if let Some((index, fault)) = fault {
            self.break_off(index, fault, &counters.faults);
        }
        dealt
    }

    /// Publishes what the push used, queue by queue.
    #[inline]
    fn publish<L>(&mut self, counters: &Counters)
    where
        Queue<L>: Ring,
    {
        for index in &self.ready {
            let Some(slot) = self.slots.get_mut(usize::from(*index)) else { continue };
            if let Some(queue) = slot.queue.as_mut().and_then(Queue::<L>::of)
                && std::mem::take(&mut slot.state.touched)
            {
                if queue.publish(&self.map) {
                    // Shared: those that were held back are counted by another thread.
                    counters.output.notifications.add_shared(1);
                }
                // Another worker may sleep until the driver rings for those buffers. A driver that
                // publishes its index with each buffer, and looks whether to ring at the end of a
                // refill, may find the wish gone through the whole refill: a push in between takes
                // it back. Then that worker sleeps to the end of its wait (10 ms at most). It drops
                // nothing: what this push delivers earns the receiver another wait.
                if !slot.state.starved {
                    queue.disarm_if_met();
                }
            }
        }
    }

    /// Notes the lines that the next push of `frames` frames is likely to touch, if there is one
    /// queue: what is ours, the ring, and both ends of short frames' buffers.
    pub fn note_next(&self, lines: &Lines, frames: usize) {
        let mut lines = lines.note();
        let [ready] = self.ready.as_slice() else { return };
        let Some(slot) = self.slots.get(usize::from(*ready)) else { return };
        let Some(queue) = &slot.queue else { return };
        lines.value(self);
        lines.value(&self.lane);
        lines.value(slot);
        lines.value(&slot.enabled);
        either!(queue, q => {
            lines.value(&q.next);
            q.note_lines(&mut lines);
            let left = usize::from(q.fetched.wrapping_sub(q.next));
            for (_, i) in (0..frames.min(FEW).min(left)).zip(0..) {
                let desc = q.desc(q.head(q.next.wrapping_add(i))).ok();
                let Some(buffer) = desc.and_then(|d| self.map.slice_mut(d.addr, SHORT)) else {
                    return;
                };
                lines.buffer(&buffer, 0);
                lines.buffer(&buffer, SHORT - 1);
            }
        });
    }

    /// Buffers posted and not used, in the queue that has fewest: which one frames go to is for
    /// their flows to say. With mergeable buffers a frame may need several. Less than `wanted` is
    /// too little, as if a push had found no room.
    pub fn room(&mut self, wanted: usize) -> usize {
        let live = self.slots.iter_mut().filter_map(QueueSlot::live);
        let rooms = live.map(|(queue, state)| {
            let room = usize::from(either!(queue, q => room(q)));
            state.starved |= room < wanted;
            room
        });
        rooms.min().unwrap_or(0)
    }

    /// True if the last push to some queue, or a look since, found too little room.
    pub fn is_starved(&mut self) -> bool {
        self.slots.iter_mut().filter_map(QueueSlot::live).any(|(_, state)| state.starved)
    }

    /// Asks for a doorbell when buffers are posted. Returns true if there is room already, or new
    /// buffers since a push found too few: then nobody may ring. Room in another queue than the one
    /// that had too little does not count.
    pub fn want_room(&mut self) -> bool {
        let (mut starved, mut more_there, mut room) = (false, false, false);
        for (queue, state) in self.slots.iter_mut().filter_map(QueueSlot::live) {
            let (more, known);
            either!(queue, q => (more, known) = (q.arm(q.seen()), q.known()));
            starved |= state.starved;
            more_there |= state.starved && more;
            room |= more || known > 0;
        }
        if starved { more_there } else { room }
    }
}

/// One push.
struct Visit<'q> {
    map: &'q Map,
    hlen: usize,
    mergeable: bool,
    csum: bool,
    ready: &'q [u16],
    /// Descriptors that may still be read.
    budget: &'q mut Budget,
    frames: usize,
    bytes: u64,
}

impl<'q> Visit<'q> {
    /// Delivers up to [`CHUNK`] frames, in two passes: the first finds buffers and asks for their
    /// cache lines, so that the misses overlap; the second copies. Returns how many were dealt
    /// with.
    #[inline]
    fn chunk<L>(
        &mut self,
        slots: &mut [QueueSlot<RxState>],
        batch: &Batch<'_>,
        list: &[u16],
        counters: &Counters,
    ) -> (usize, Option<(usize, Fault)>)
    where
        Queue<L>: Ring,
    {
        let mut targets: [Target<'q>; CHUNK] = [const { None }; CHUNK];
        let mut dealt = 0;
        let mut fault = None;
        while dealt < list.len() {
            let rest = list.get(dealt..).unwrap_or_default();
            let places = targets.get_mut(dealt..).unwrap_or_default();
            let (index, run) = self.run(batch, rest);
            let live = slots.get_mut(index).and_then(QueueSlot::live);
            let Some((Some(queue), state)) = live.map(|(q, state)| (Queue::<L>::of(q), state))
            else {
                break;
            };
            let rest = rest.get(..run).unwrap_or_default();
            let (n, broken) = self.place_run(queue, batch, rest, places, counters);
            state.touched = true;
            state.starved = n < run;
            dealt += n;
            fault = broken.map(|f| (index, f));
            if n < run {
                break;
            }
        }
        self.copy(batch, list, &mut targets);
        (dealt, fault)
    }

    /// The queue of the list's first frame, and how many frames from there on go to the same.
    #[inline]
    fn run(&self, batch: &Batch<'_>, list: &[u16]) -> (usize, usize) {
        if let [one] = self.ready {
            return (usize::from(*one), list.len());
        }
        let mut queues = list.iter().map(|i| self.pick(batch, usize::from(*i)));
        let first = queues.next().unwrap_or(0);
        (first, 1 + queues.take_while(|q| *q == first).count())
    }

    /// First pass, for frames of one queue: returns how many were dealt with.
    #[inline]
    fn place_run<L>(
        &mut self,
        queue: &mut Queue<L>,
        batch: &Batch<'_>,
        list: &[u16],
        places: &mut [Target<'q>],
        counters: &Counters,
    ) -> (usize, Option<Fault>)
    where
        Queue<L>: Ring,
    {
        let mut dealt = 0;
        for (i, place) in list.iter().zip(places) {
            let i = usize::from(*i);
            let len = batch.frame_len(i);
            if let Some(target) = self.quick(queue, self.hlen + len) {
                self.frames += 1;
                self.bytes += len as u64;
                *place = Some(target);
            } else {
                match self.place(queue, batch, i) {
                    Outcome::One(buffer, gpa) => *place = Some((buffer, gpa)),
                    Outcome::Delivered => {}
                    Outcome::Dropped(reason) => counters.output.drop(reason, 1),
                    Outcome::NoRoom => return (dealt, None),
                    Outcome::Broken(fault) => return (dealt, Some(fault)),
                }
            }
            dealt += 1;
        }
        (dealt, None)
    }

    /// The usual case: the next buffer is one piece, and large enough.
    #[inline]
    fn quick<L>(&self, queue: &mut Queue<L>, need: usize) -> Option<(SliceMut<'q>, u64)>
    where
        Queue<L>: Ring,
    {
        if queue.next == queue.fetched {
            return None;
        }
        let head = queue.head(queue.next);
        let desc = queue.desc(head).ok()?;
        if !desc.is_single(true) || (desc.len as usize) < need {
            return None;
        }
        let buffer = self.map.slice_mut(desc.addr, need)?;
        buffer.prefetch();
        // A short frame's header and end are in two lines.
        buffer.prefetch_at(64.min(need - 1));
        queue.stage(self.map, head, u32::try_from(need).ok()?);
        queue.next = queue.next.wrapping_add(1);
        Some((buffer, desc.addr))
    }

    fn pick(&self, batch: &Batch<'_>, i: usize) -> usize {
        // Other bits than those by which a port with lanes has chosen this one.
        let place = place_of(batch.flow(i).rotate_left(16), self.ready.len());
        self.ready.get(place).map_or(0, |i| usize::from(*i))
    }

    /// First pass, thorough: reads more of the avail ring, then finds room for frame `i`, and uses
    /// it.
    #[inline(never)]
    fn place<L>(&mut self, queue: &mut Queue<L>, batch: &Batch<'_>, i: usize) -> Outcome<'q>
    where
        Queue<L>: Ring,
    {
        if queue.next == queue.fetched
            && let Err(outcome) = self.refill(queue)
        {
            return outcome;
        }
        let len = batch.frame_len(i);
        let need = self.hlen + len;
        if let Some((buffer, gpa)) = self.quick(queue, need) {
            self.frames += 1;
            self.bytes += len as u64;
            return Outcome::One(buffer, gpa);
        }
        match batch.frame(i) {
            Some(frame) => self.spread(queue, &frame, need).unwrap_or_else(Outcome::Broken),
            None => Outcome::Delivered,
        }
    }

    /// Second pass: copies frames to the buffers found. Apart from the first, for which it shares a
    /// frame of the stack, it takes five instructions more for each frame.
    #[inline(always)]
    fn copy(&self, batch: &Batch<'_>, list: &[u16], targets: &mut [Target<'q>]) {
        for (i, target) in list.iter().zip(targets) {
            let Some((buffer, gpa)) = target else { continue };
            let Some(frame) = batch.frame(usize::from(*i)) else { continue };
            let built;
            let header = if frame.offload.needs_csum || frame.offload.csum_valid {
                built = header::build(&frame.offload, 1, self.csum);
                &built
            } else {
                &header::PLAIN
            };
            if self.hlen == header::LEN {
                buffer.write(0, header);
            } else {
                buffer.write(0, header.get(..self.hlen).unwrap_or_default());
            }
            frame.write_to(buffer, self.hlen);
            point();
            self.map.mark_dirty(*gpa, buffer.len());
        }
    }

    /// Delivers a frame that does not fit one buffer of one piece. Nothing is used unless all of it
    /// fits: the next frame may be shorter.
    #[cold]
    #[inline(never)]
    fn spread<L>(
        &mut self,
        queue: &mut Queue<L>,
        frame: &FrameView<'_, '_>,
        need: usize,
    ) -> Result<Outcome<'q>, Fault>
    where
        Queue<L>: Ring,
    {
        let mut runs = Runs { list: [const { None }; MAX_RUNS], len: 0 };
        let mut used = [(0u16, 0u32); MAX_RUNS];
        let (mut found, mut buffers) = (0, 0u16);
        while found < need {
            if buffers > 0 && !self.mergeable {
                return Ok(Outcome::Dropped(Reason::TooLong));
            }
            let position = queue.next.wrapping_add(buffers);
            let Some(slot) = used.get_mut(usize::from(buffers)) else {
                return Ok(Outcome::Dropped(Reason::TooLong));
            };
            if position == queue.fetched
                && let Err(outcome) = self.refill(queue)
            {
                // With the whole ring posted, waiting for more is pointless.
                let pointless = matches!(outcome, Outcome::NoRoom) && buffers == queue.size();
                return Ok(if pointless { Outcome::Dropped(Reason::TooLong) } else { outcome });
            }
            if self.budget.0 == 0 {
                return Ok(Outcome::NoRoom);
            }
            let head = queue.head(position);
            let Some(n) = self.gather(queue, head, need - found, &mut runs)? else {
                return Ok(Outcome::Dropped(Reason::TooLong));
            };
            *slot = (head, u32::try_from(n).unwrap_or(0));
            found += n;
            buffers += 1;
        }
        let header = header::build(&frame.offload, buffers, self.csum);
        runs.fill(header.get(..self.hlen).unwrap_or_default(), frame, self.map);
        for (head, len) in used.iter().take(buffers.into()) {
            queue.stage(self.map, *head, *len);
        }
        queue.next = queue.next.wrapping_add(buffers);
        self.frames += 1;
        self.bytes += frame.len as u64;
        Ok(Outcome::Delivered)
    }

    /// Reads more heads; the outcome if there are none.
    #[inline]
    fn refill<L>(&mut self, queue: &mut Queue<L>) -> Result<(), Outcome<'q>>
    where
        Queue<L>: Ring,
    {
        // A list of a packed ring is read to its end, however long it is.
        if self.budget.0 == 0 {
            return Err(Outcome::NoRoom);
        }
        if queue.seen() == queue.fetched {
            queue.look().map_err(Outcome::Broken)?;
        }
        let before = queue.fetched;
        let more = queue.fetch(queue.next).map_err(Outcome::Broken)?;
        if more > 0 {
            // Whatever was read first, one buffer is looked at: there is progress.
            let least = usize::from(self.budget.0 == BUDGET);
            self.budget.0 = self.budget.0.saturating_sub(more).max(least);
        }
        if queue.fetched == before { Err(Outcome::NoRoom) } else { Ok(()) }
    }

    /// Adds the first `need` bytes of a chain to `runs`, fewer if it is shorter; returns how many.
    /// `None`: too many pieces.
    fn gather<L>(
        &mut self,
        queue: &Queue<L>,
        head: u16,
        need: usize,
        runs: &mut Runs<'q>,
    ) -> Result<Option<usize>, Fault>
    where
        Queue<L>: Ring,
    {
        let mut chain = queue.chain(self.map, head, queue.desc(head)?, true);
        let (mut found, mut visited) = (0, 0);
        while found < need
            && let Some((addr, len)) = chain.next_buffer()?
        {
            self.budget.0 = self.budget.0.saturating_sub(1);
            visited += 1;
            // Empty buffers do not count as pieces, and an indirect table has room for 32,768 of
            // them.
            if visited > MAX_RUNS {
                return Ok(None);
            }
            let n = (len as usize).min(need - found);
            let mut done = 0;
            while done < n {
                let bad = Fault::BadAddress { addr, len };
                let gpa = addr.checked_add(done as u64).ok_or(bad)?;
                let run = self.map.first_run_mut(gpa, n - done).ok_or(bad)?;
                done += run.len();
                if !runs.push(run, gpa) {
                    return Ok(None);
                }
            }
            found += n;
        }
        if found == 0 { Err(Fault::Empty) } else { Ok(Some(found)) }
    }
}

/// The budget is spent, so whether there is too little room is not known: who waits for it is to
/// look again.
#[cold]
fn forget_starved(slots: &mut [QueueSlot<RxState>]) {
    slots.iter_mut().filter_map(QueueSlot::live).for_each(|(_, state)| state.starved = false);
}

/// Buffers that can be counted on, of those that are posted.
fn room<L>(queue: &mut Queue<L>) -> u16
where
    Queue<L>: Ring,
{
    let looked = queue.look().and_then(|n| queue.fetch(queue.next).map(|_| n));
    looked.map_or(0, |n| n.max(queue.known()))
}

/// The pieces of guest memory that one frame is spread over.
struct Runs<'m> {
    list: [Target<'m>; MAX_RUNS],
    len: usize,
}

impl<'m> Runs<'m> {
    fn push(&mut self, run: SliceMut<'m>, gpa: u64) -> bool {
        let Some(place) = self.list.get_mut(self.len) else { return false };
        *place = Some((run, gpa));
        self.len += 1;
        true
    }

    /// Writes the header, then the frame.
    fn fill(&mut self, header: &[u8], frame: &FrameView<'_, '_>, map: &Map) {
        let mut done = 0;
        for (run, gpa) in self.list.iter_mut().flatten() {
            let mut at = 0;
            if done < header.len() {
                at = run.write(0, header.get(done..).unwrap_or_default());
            }
            let from = (done + at).saturating_sub(header.len());
            let sources = frame.runs(from, run.len() - at);
            sources.for_each(|s: Slice<'_>| at += run.write_from(at, s));
            done += at;
            map.mark_dirty(*gpa, run.len());
        }
    }
}

const _: () = assert!(MAX_RUNS <= HEADS as usize, "positions peeked at are all in the head cache");
