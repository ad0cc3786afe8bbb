//! The guest's transmit queues: frames are lent where they lie.

use vmlan_frame::{BATCH, Batch, Counters, Offload, Offloads, Reason, Sink, Verdict, WORK};
use vmlan_ram::{Map, Slice, recycle};

use super::desc::Buffers;
use super::held_buffers::Held;
use super::net::QueueState;
use super::queue::{HEADS, Queue, Ring, either};
use super::{Fault, Net, header};
use crate::bits::small;

/// Frames whose descriptors are read, and whose first bytes are asked for, before the first is
/// looked at: more than the cache misses a core keeps in flight, fewer than its first cache holds.
const CHUNK: usize = 32;

/// Pieces of one frame, at most. Linux sends up to 46 (`MAX_SKB_FRAGS` can be 45); longer chains
/// are dropped.
const MAX_PIECES: usize = 128;

/// Descriptors one pull visits in all queues together, whatever the guest posts; the last chain may
/// exceed it.
const BUDGET: usize = 4096;

/// A frame found in the ring, its bytes at `first..first + count` of the pieces.
#[derive(Clone, Copy)]
struct Found {
    at: u16,
    first: u16,
    count: u16,
    bad: bool,
}

/// What a transmit queue remembers between pulls.
pub struct TxState {
    /// Of the positions from `done` to `next`, those not finished.
    held: Held,
    /// Scratch: positions of the batch's frames.
    lent: Vec<u16>,
    found: Vec<Found>,
    pieces: Vec<Slice<'static>>,
}

impl Default for TxState {
    fn default() -> Self {
        Self {
            held: Held::default(),
            lent: Vec::with_capacity(HEADS.into()),
            found: Vec::with_capacity(CHUNK),
            pieces: Vec::with_capacity(CHUNK + MAX_PIECES),
        }
    }
}

impl QueueState for TxState {
    const WANTS_DOORBELLS: bool = true;
    const STAGED: usize = HEADS as usize;
}

/// The guest's transmit queues.
pub type NetTx = Net<TxState>;

impl Net<TxState> {
    /// Lends up to `limit` frames to `sink`, queue after queue, beginning with another queue each
    /// time; gives back the buffers of those it finished. Returns how many that were, counting
    /// those that were dropped here. Storage for the frames is `batch`'s.
    pub fn pull(
        &mut self,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
        counters: &Counters,
    ) -> usize {
        let queues = self.ready.len();
        let mut finished = 0;
        let (mut budget, mut work) = (BUDGET, WORK);
        for k in 0..queues {
            let turn = (self.turn + k) % queues;
            if finished >= limit || budget == 0 || work == 0 {
                break;
            }
            let Some(index) = self.ready.get(turn).map(|i| usize::from(*i)) else { break };
            let Some((queue, state)) = self.slots.get_mut(index).and_then(|s| s.live()) else {
                continue;
            };
            let (hlen, allowed) = (self.features.header_len(), self.features.sends());
            let (map, lane) = (&self.map, self.lane);
            let (n, fault);
            either!(queue, queue => {
                let ring = index;
                let mut visit =
                    Visit { queue, map, counters, lane, ring, hlen, allowed, budget, work };
                (n, fault) = visit.serve(state, batch, limit - finished, sink);
                (budget, work) = (visit.budget, visit.work);
            });
            finished += n;
            if let Some(fault) = fault {
                self.break_off(index, fault, &counters.faults);
                break;
            }
        }
        self.turn = self.turn.wrapping_add(1) % queues.max(1);
        finished
    }

    /// Asks for doorbells. Returns true if frames wait that were never lent: do not sleep then.
    /// Frames that the sink held do not count: it is their receiver that is waited for.
    pub fn arm(&mut self) -> bool {
        let mut waiting = false;
        for (queue, _) in self.slots.iter_mut().filter_map(super::net::QueueSlot::live) {
            either!(queue, q => {
                let full = q.next.wrapping_sub(q.done) >= HEADS;
                waiting |= q.arm(q.next) && !full;
            });
        }
        waiting
    }

    /// Asks for no doorbells: the worker looks by itself.
    pub fn disarm(&mut self) {
        for (queue, _) in self.slots.iter_mut().filter_map(super::net::QueueSlot::live) {
            either!(queue, q => q.disarm());
        }
    }
}

/// One pull from one queue.
struct Visit<'q, L> {
    queue: &'q mut Queue<L>,
    map: &'q Map,
    counters: &'q Counters,
    lane: usize,
    /// Its number among the lane's.
    ring: usize,
    hlen: usize,
    allowed: Offloads,
    /// Descriptors that may still be read.
    budget: usize,
    /// Work that may still be lent.
    work: usize,
}

/// How collecting went on.
enum Step {
    More,
    Enough,
    Broken(Fault),
}

impl<'q, L> Visit<'q, L>
where
    Queue<L>: Ring,
{
    /// Lends, then finishes: returns how many frames were finished, and the rule that was broken.
    fn serve(
        &mut self,
        state: &mut TxState,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> (usize, Option<Fault>) {
        match self.queue.look() {
            Err(fault) => return (0, Some(fault)),
            Ok(0) if state.held.is_empty() => return (0, None),
            Ok(_) => match self.queue.fetch(self.queue.done) {
                Err(fault) => return (0, Some(fault)),
                Ok(0) => {}
                // Whatever was read, one frame is looked at: there is progress.
                Ok(more) => self.budget = self.budget.saturating_sub(more).max(1),
            },
        }
        let mut batch: Batch<'q> = Batch::take(spare);
        batch.set_ring(self.ring);
        let (dropped, fault) = self.collect(state, &mut batch, limit);
        if !batch.is_empty() {
            sink.deliver(&mut batch);
        }
        let finished = self.settle(state, &batch);
        batch.give_back(spare);
        (finished + dropped, fault)
    }

    /// Puts frames into the batch, a chunk at a time, in two passes: the first reads descriptors
    /// and asks for the frames' first bytes, so that their cache misses overlap; the second looks
    /// at them.
    fn collect(
        &mut self,
        state: &mut TxState,
        batch: &mut Batch<'q>,
        limit: usize,
    ) -> (usize, Option<Fault>) {
        let TxState { held, lent, found, pieces: kept } = state;
        let mut pieces: Vec<Slice<'q>> = recycle(std::mem::take(kept));
        lent.clear();
        let limit = limit.min(BATCH);
        let mut dropped = 0;
        let mut fault = None;
        let mut at = 0;
        while lent.len() < limit && self.work > 0 {
            if held.is_empty() {
                let found = self.singles(lent, batch, limit - lent.len(), &mut dropped);
                at = self.queue.next.wrapping_sub(self.queue.done);
                if found == CHUNK {
                    continue;
                }
            }
            found.clear();
            pieces.clear();
            let left = limit - lent.len();
            let step = self.find(held, &mut at, left, found, &mut pieces);
            let all = self.add(held, lent, found, &mut pieces, batch, &mut dropped);
            match step {
                Step::More if all => {}
                Step::Broken(broken) if all => {
                    fault = Some(broken);
                    break;
                }
                _ => break,
            }
        }
        *kept = recycle(pieces);
        (dropped, fault)
    }

    /// Both passes for the usual case, which is nearly all that some drivers send: nothing is held,
    /// each frame lies with its header in one buffer. Returns how many there were before another
    /// kind, up to a chunk.
    #[inline]
    fn singles(
        &mut self,
        lent: &mut Vec<u16>,
        batch: &mut Batch<'q>,
        limit: usize,
        dropped: &mut usize,
    ) -> usize {
        if !batch.has_room(CHUNK) {
            return 0;
        }
        let mut pieces = [Slice::from_bytes(&[]); CHUNK];
        let n = self.find_singles(limit, &mut pieces);
        let first = self.queue.next.wrapping_sub(self.queue.done);
        for (at, piece) in (first..).zip(pieces.get(..n).unwrap_or_default()) {
            let header = piece.read_array().unwrap_or_default();
            let frame = piece.sub(self.hlen, usize::MAX);
            let added = if header::is_plain(&header) {
                batch.add_plain(frame).map(|()| frame.len())
            } else {
                self.add_claimed(&header, frame, batch)
            };
            match added {
                Ok(work) => {
                    self.work = self.work.saturating_sub(work);
                    lent.push(at);
                }
                Err(reason) => {
                    *dropped += 1;
                    self.counters.input.drop(reason, 1);
                }
            }
        }
        self.queue.next = self.queue.next.wrapping_add(small(n));
        n
    }

    /// Adds a frame whose header claims something; returns the work it makes.
    #[inline(never)]
    fn add_claimed(
        &self,
        header: &[u8; 10],
        frame: Slice<'q>,
        batch: &mut Batch<'q>,
    ) -> Result<usize, Reason> {
        let offload = header::parse(header, self.allowed)?;
        batch.add(std::slice::from_ref(&frame), offload)?;
        Ok(offload.work(frame.len()))
    }

    #[inline]
    fn find_singles(&mut self, limit: usize, pieces: &mut [Slice<'q>; CHUNK]) -> usize {
        let queue = &*self.queue;
        let known = usize::from(queue.fetched.wrapping_sub(queue.next));
        let (mut found, mut bytes, mut position) = (0, 0, queue.next);
        let most = known.min(limit).min(self.budget).min(CHUNK);
        for place in pieces.get_mut(..most).unwrap_or_default() {
            let head = queue.head(position);
            position = position.wrapping_add(1);
            // Faults are left to the thorough way.
            let Ok(desc) = queue.desc(head) else { break };
            let Some(piece) = self.map.slice(desc.addr, desc.len as usize) else { break };
            if !desc.is_single(false) || piece.len() < self.hlen {
                break;
            }
            piece.prefetch();
            // The driver's header often ends one cache line, and the frame begins the next.
            piece.sub(64, 1).prefetch();
            bytes += piece.len();
            *place = piece;
            found += 1;
            if bytes >= self.work {
                break;
            }
        }
        self.budget -= found;
        found
    }

    /// First pass: reads up to a chunk of chains, from position `at` on.
    #[inline]
    fn find(
        &mut self,
        held: &Held,
        at: &mut u16,
        limit: usize,
        found: &mut Vec<Found>,
        pieces: &mut Vec<Slice<'q>>,
    ) -> Step {
        let total = self.queue.fetched.wrapping_sub(self.queue.done);
        let before = self.queue.next.wrapping_sub(self.queue.done);
        while found.len() < CHUNK.min(limit) && pieces.len() < CHUNK {
            if *at >= total || self.budget == 0 {
                return Step::Enough;
            }
            if *at >= before || held.contains(*at) {
                match self.find_one(*at, pieces) {
                    Ok(one) => found.push(one),
                    Err(fault) => return Step::Broken(fault),
                }
            }
            *at += 1;
        }
        Step::More
    }

    #[inline]
    fn find_one(&mut self, at: u16, pieces: &mut Vec<Slice<'q>>) -> Result<Found, Fault> {
        let head = self.queue.head(self.queue.done.wrapping_add(at));
        let desc = self.queue.desc(head)?;
        self.budget -= 1;
        let first = small(pieces.len());
        if desc.is_single(false)
            && let Some(piece) = self.map.slice(desc.addr, desc.len as usize)
        {
            piece.prefetch();
            pieces.push(piece);
            return Ok(Found { at, first, count: 1, bad: false });
        }
        let (count, bad) = self.gather(head, desc, pieces)?;
        Ok(Found { at, first, count, bad })
    }

    /// Collects the pieces of a chain, or of a buffer that crosses regions. True: too many of them.
    #[inline(never)]
    fn gather(
        &mut self,
        head: u16,
        first: super::desc::Desc,
        pieces: &mut Vec<Slice<'q>>,
    ) -> Result<(u16, bool), Fault> {
        let before = pieces.len();
        let mut chain = self.queue.chain(self.map, head, first, false);
        let mut visited = 0;
        while let Some((addr, len)) = chain.next_buffer()? {
            visited += 1;
            // Empty buffers do not count as pieces, and an indirect table has room for 32,768 of
            // them.
            if visited > MAX_PIECES {
                self.budget = self.budget.saturating_sub(visited);
                pieces.truncate(before);
                return Ok((0, true));
            }
            let (mut done, bytes) = (0, len as usize);
            while done < bytes {
                let bad = Fault::BadAddress { addr, len };
                let gpa = addr.checked_add(done as u64).ok_or(bad)?;
                let run = self.map.first_run(gpa, bytes - done).ok_or(bad)?;
                if pieces.len() - before >= MAX_PIECES {
                    self.budget = self.budget.saturating_sub(visited);
                    pieces.truncate(before);
                    return Ok((0, true));
                }
                run.prefetch();
                done += run.len();
                pieces.push(run);
            }
        }
        self.budget = self.budget.saturating_sub(visited);
        Ok((small(pieces.len() - before), false))
    }

    /// Second pass: reads headers, adds the frames to the batch. False if the batch is full.
    #[inline]
    fn add(
        &mut self,
        held: &mut Held,
        lent: &mut Vec<u16>,
        found: &[Found],
        pieces: &mut [Slice<'q>],
        batch: &mut Batch<'q>,
        dropped: &mut usize,
    ) -> bool {
        for one in found {
            let (first, count) = (usize::from(one.first), usize::from(one.count));
            if !batch.has_room(count) {
                return false;
            }
            let bytes = pieces.get_mut(first..first + count).unwrap_or_default();
            let added = match one.bad {
                false => self.add_one(bytes, batch),
                true => Err(Reason::TooLong),
            };
            let before = self.queue.next.wrapping_sub(self.queue.done);
            if one.at >= before {
                self.queue.next = self.queue.done.wrapping_add(one.at + 1);
            } else {
                held.remove(one.at);
            }
            match added {
                Ok(work) => {
                    lent.push(one.at);
                    self.work = self.work.saturating_sub(work);
                }
                Err(reason) => {
                    *dropped += 1;
                    self.counters.input.drop(reason, 1);
                }
            }
            if self.work == 0 {
                return false;
            }
        }
        true
    }

    /// Returns the work that the frame can make.
    #[inline]
    fn add_one(&self, pieces: &mut [Slice<'q>], batch: &mut Batch<'q>) -> Result<usize, Reason> {
        if let [piece, ..] = pieces
            && piece.len() >= self.hlen
        {
            let header = piece.read_array().ok_or(Reason::BadHeader)?;
            *piece = piece.sub(self.hlen, usize::MAX);
            let offload: Offload = header::parse(&header, self.allowed)?;
            batch.add(pieces, offload)?;
            return Ok(offload.work(batch.frame_len(batch.len() - 1)));
        }
        let header = take_header(pieces, self.hlen).ok_or(Reason::BadHeader)?;
        let offload = header::parse(&header, self.allowed)?;
        batch.add(pieces, offload)?;
        Ok(offload.work(batch.frame_len(batch.len() - 1)))
    }

    /// Gives back, in order, the buffers of all frames up to the first that is held. Returns how
    /// many frames of the batch were finished.
    #[inline]
    fn settle(&mut self, state: &mut TxState, batch: &Batch<'_>) -> usize {
        let (mut frames, mut bytes) = (batch.len(), batch.bytes());
        if batch.any_held() {
            for (i, at) in state.lent.iter().enumerate() {
                if batch.verdict(i) == Verdict::Held {
                    state.held.insert(*at);
                    frames -= 1;
                    bytes -= batch.frame_len(i) as u64;
                }
            }
        }
        let examined = self.queue.next.wrapping_sub(self.queue.done);
        let n = state.held.first().unwrap_or(examined);
        self.queue.stage_unwritten(n);
        state.held.shift(n);
        self.counters.count_input(self.lane, frames, bytes);
        if self.queue.publish(self.map) {
            self.counters.tx_interrupts.add_shared(1);
        }
        frames
    }
}

/// Takes a header that lies in several pieces off their front. `None`: there are not that many
/// bytes.
#[inline(never)]
fn take_header(pieces: &mut [Slice<'_>], hlen: usize) -> Option<[u8; 10]> {
    let mut bytes = [0; header::LEN];
    let mut done = 0;
    for piece in pieces {
        let n = piece.read(bytes.get_mut(done..hlen)?);
        *piece = piece.sub(n, usize::MAX);
        done += n;
        if done == hlen {
            break;
        }
    }
    (done == hlen).then(|| bytes.first_chunk().copied())?
}
