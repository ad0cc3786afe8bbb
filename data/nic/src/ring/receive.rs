//! The receive side: frames meant for this station are copied to the guest's buffers, between head
//! and tail.
//!
//! A frame is written only if descriptors for all of it are posted: one that finds no room is left
//! with its sender, which is what the real chip's packet buffer is for. A frame whose buffers are
//! not in the guest's memory is dropped, and its descriptors are written back with an error, so
//! that the ring goes on.
//!
//! - No frame on this wire is damaged.
//! - An FCS that is appended is zeros: no driver looks at it, and computing it would cost more than
//!   everything else here.
//! - Frames below 60 bytes are padded with zeros, as their sender's hardware would have done.
//! - Checksums are reported for frames that somebody on this host vouches for; for all others the
//!   guest is told to check itself.

use std::sync::Arc;

use vmlan_frame::{Batch, FrameView, Mac, Offloads, Reason};
use vmlan_ram::{Map, SliceMut};

use super::rx_scatter::{MAX_PARTS, Outcome};
use super::{DescriptorRing, Look, add};
use crate::chip::csb::Csb;
use crate::chip::frame_totals::{BatchTotals, SHORTEST, SideStats};
use crate::chip::held::{Held, Remains};
use crate::chip::state::Fields;
use crate::chip::{Chip, Fault, ReceiveSide, Received, StateError};
use crate::notify::csb;

/// Frames for which buffers are found, and asked for, before the first is copied.
const CHUNK: usize = 32;

const JUMBO: usize = 9022; // Longest frame that is usual where long ones are, with tag and FCS.
const MANY: usize = 128; // Frames that nobody asks room for more than.
const NOWHERE: u32 = u32::MAX; // A tail that no ring has.
/// Descriptors one push visits, at most, whatever the guest posts, in all rings together.
pub const VISITS: usize = 4096;

/// Zeros to pad with, and FCS.
pub static ZEROS: [u8; 64] = [0; 64];
/// Zeros that the FCS is part of.
const LAST: [u8; 8] = [0; 8];

/// What the receive registers say about all frames.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a buffer, of those that are usual: 0 is never.
    pub buffer: usize,
    /// Frames of up to so many bytes, FCS included, are taken as they are by a single buffer that
    /// holds them; 0: each is looked at.
    pub quick: usize,
    /// Bytes of the longest frame, with its FCS.
    pub longest: usize,
    /// Bytes of FCS that the guest is given.
    pub fcs: usize,
    /// Tags are taken out of frames. Those without, of up to [`Shape::untagged`] bytes, are as
    /// quick as others are without this.
    pub strip: bool,
    /// See [`Shape::strip`].
    pub untagged: usize,
    /// Descriptors of one frame, at most.
    pub most: usize,
    /// Bytes of the longest packet that is handed over uncut, as [`Shape::longest`]; 0: none is.
    pub uncut: usize,
    /// Checksums of IP headers, and of upper layers, are reported.
    pub sums: (bool, bool),
}

impl Default for Shape {
    fn default() -> Self {
        let (buffer, quick, longest, fcs, strip, untagged) = (0, 0, 0, 0, false, 0);
        let (most, uncut, sums) = (MAX_PARTS, 0, (false, false));
        Self { buffer, quick, longest, fcs, strip, untagged, most, uncut, sums }
    }
}

/// A place in a receive ring, behind the descriptors that a frame has taken.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The next descriptor.
    pub at: u32,
    pub tail: u32,
    pub size: u32,
    /// Descriptors that it has taken of another ring.
    pub others: u32,
}

impl At {
    /// The next descriptor, if there is one.
    #[inline]
    pub fn ahead(self) -> Option<u32> {
        (self.at != self.tail).then_some(self.at)
    }

    /// The place behind it.
    #[inline]
    pub fn after(self) -> Self {
        Self { at: add(self.at, 1, self.size), ..self }
    }
}

/// Which frames are for this station: a digest of the registers that the receive side looks at.
pub trait Filter<G: DescriptorRing>: Send {
    /// Updates the digest, after a look at the ring.
    fn update(&mut self, chip: &G::Chip, ring: &G, look: &Look);
    /// What they say about all frames.
    fn shape(&self) -> &Shape;
    /// True if the frame that begins with `head` is for this station.
    fn accepts(&self, head: &[u8]) -> bool;
    /// Whether it is depends on more than its destination.
    fn by_more(&self) -> bool;
    /// `head` begins a frame with a VLAN tag.
    fn is_tagged(&self, head: &[u8]) -> bool;
    /// Passes its state: what does not follow from the registers. After this it is copied anew.
    fn fields(&mut self, io: &mut Fields<'_>);
}

/// What is known of a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The IPv4 header's was looked at, and is right.
    pub ip: Option<bool>,
    /// The upper layer's is right, which is this protocol's.
    pub upper: Option<u8>,
}

/// What a descriptor is written back with; `N`: [`Receive::Note`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written<N = ()> {
    /// Bytes in its buffer.
    pub len: usize,
    /// It is the frame's first, its last.
    pub first: bool,
    /// See `first`.
    pub last: bool,
    /// Bytes of the frame up to here.
    pub total: usize,
    /// What is known of its checksums, with the last.
    pub sums: Verdict,
    /// The tag that was taken out, with the last.
    pub tag: Option<u16>,
    /// The frame's destination, with the last: whether it is a group, or all.
    pub to: Mac,
    /// The frame was lost here.
    pub failed: bool,
    /// What only this chip says of a frame.
    pub note: N,
}

/// The chip of a kind of receive descriptors.
pub type ChipOf<R> = <<R as Receive>::Ring as DescriptorRing>::Chip;

/// What the words of a chip's receive descriptors mean. Nothing here has state.
pub trait Receive: Sized {
    type Ring: DescriptorRing;
    type Filter: Filter<Self::Ring>;
    /// What only this chip says of a frame.
    type Note: Copy + Default;
    /// Buffers are reported in the order in which they are found, and not where they were found:
    /// none may be written back before those that were found earlier.
    const IN_ORDER: bool = false;
    /// There are receivers that take packets uncut ([`Shape::uncut`]).
    const UNCUT: bool = false;

    /// The buffer of the descriptor at `index`: address, length. Length 0: it takes no data, and is
    /// written back without.
    fn buffer(ring: &Self::Ring, index: u32, shape: &Shape) -> (u64, usize);
    /// The number of the descriptor with the rest of a frame that `taken` descriptors hold the
    /// beginning of, where `at` stands behind them; and where to go on. `None`: there is none.
    #[inline]
    fn next(_ring: &Self::Ring, at: At, _taken: u32) -> Option<(u32, At)> {
        at.ahead().map(|number| (number, at.after()))
    }
    /// What counts the frames of this ring.
    #[inline]
    fn stats<'c>(_ring: &Self::Ring, chip: &'c ChipOf<Self>) -> &'c SideStats {
        &chip.core().stats.rx
    }
    /// What it says of this one.
    #[inline]
    fn note(_filter: &Self::Filter, _frame: &FrameView<'_, '_>) -> Self::Note {
        Self::Note::default()
    }
    /// Writes the descriptor back, after all that was written before.
    fn write_back(ring: &Self::Ring, filter: &Self::Filter, index: u32, what: &Written<Self::Note>);
    /// Publishes the head, after all write-backs, if it has moved to `head`. Returns what is to be
    /// said about that, and, if frames were `lost` since the last time, about those.
    fn publish(
        ring: &mut Self::Ring,
        chip: &ChipOf<Self>,
        filter: &Self::Filter,
        moved: (Look, u32),
        lost: bool,
    ) -> u32;
}

/// The receive side of a chip.
pub struct Receiver<R: Receive> {
    pub(crate) ring: R::Ring,
    pub(crate) filter: Box<R::Filter>,
    /// The tail at which a push found no room.
    starved: Option<u32>,
    /// Frames that the switch has dropped for want of room, as of the last push.
    lost: u64,
}

impl<R: Receive> Receiver<R> {
    /// A side whose ring is `ring`.
    pub fn new(ring: R::Ring, filter: R::Filter) -> Self {
        Self { ring, filter: Box::new(filter), starved: None, lost: 0 }
    }

    fn starve(&mut self, look: Look) {
        self.starved = Some(look.tail);
        self.ring.reconsider(look);
    }

    /// True if there is room, or, after a push that found too little, more of it.
    pub fn has_room(&mut self, chip: &ChipOf<R>) -> bool {
        let Ok(look) = self.ring.look(chip) else { return false };
        look.posted() > 0 && (self.starved != Some(look.tail) || self.ring.has_more())
    }

    /// Brings the filter up to date, for those who look at it before they know what is received.
    pub fn refresh(&mut self, chip: &ChipOf<R>) {
        if let Ok(look) = self.ring.look(chip) {
            self.filter.update(chip, &self.ring, &look);
        }
    }

    /// A push has found too little room.
    pub fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    /// A push to all rings was cut short: the next one finds out what room there is.
    pub fn forget_starved(&mut self) {
        self.starved = None;
    }

    /// Receives, and takes the descriptors visited off `budget`: that of one push, which may have
    /// several rings.
    #[inline(always)]
    pub fn receive_within(
        &mut self,
        chip: &ChipOf<R>,
        batch: &Batch<'_>,
        list: &[u16],
        budget: &mut usize,
    ) -> Received {
        let look = self.ring.look(chip);
        let reopened = self.ring.csb().take_off();
        let Some(look) = look.ok().filter(|look| look.size > 0) else {
            // It is this ring that is waited for, whatever the others of the chip have.
            self.starved = Some(NOWHERE);
            return Received { reopened, ..Received::default() };
        };
        self.filter.update(chip, &self.ring, &look);
        if look.posted() > 0 {
            self.ring.csb().content();
        }
        let mut pass = Pass::<R> {
            ring: &self.ring,
            filter: &*self.filter,
            shape: *self.filter.shape(),
            chip,
            at: look.head,
            tail: look.tail,
            size: look.size,
            budget: *budget,
            last: (Mac::default(), false),
            sums: BatchTotals::default(),
        };
        let mut dealt = 0;
        let mut more = true;
        while more && dealt < list.len() {
            let rest = list.get(dealt..).unwrap_or_default();
            let n;
            (n, more) = pass.chunk(batch, rest.get(..CHUNK).unwrap_or(rest));
            dealt += n;
        }
        let Pass { at, budget: left, mut sums, .. } = pass;
        *budget = left;
        let (frames, bytes) = sums.frames();
        let core = chip.core();
        core.counters.output.count(frames, bytes);
        let stats = R::stats(&self.ring, chip);
        stats.count(sums);
        self.starved = None;
        if dealt < list.len() && left > 0 {
            stats.special.add(1);
            self.starve(look);
        }
        let lost = core.counters.output.dropped(Reason::ReceiverFull);
        let more_lost = std::mem::replace(&mut self.lost, lost) != lost;
        let causes = R::publish(&mut self.ring, chip, &self.filter, (look, at), more_lost);
        Received { dealt, causes, reopened }
    }
}

impl<R: Receive> ReceiveSide<ChipOf<R>> for Receiver<R> {
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    fn place_csb(&mut self, chip: &ChipOf<R>, csb: Option<Arc<Csb>>) {
        self.ring.csb().place(csb);
        self.ring.publish_again(chip);
    }

    fn replace_csb(&mut self, chip: &ChipOf<R>, csb: Option<Arc<Csb>>, on: bool) {
        self.ring.replace_csb(chip, csb, on);
    }

    fn fields(&mut self, _: &ChipOf<R>, io: &mut Fields<'_>) {
        let Self { ring, filter, starved, lost } = self;
        ring.fields(io);
        filter.fields(io);
        io.option(starved, Fields::u32);
        io.u64(lost);
    }

    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>) {
        self.ring.csb().adopt(csb);
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.ring.hold(held);
    }

    fn revive(&mut self, chip: &ChipOf<R>, remains: &Remains<'_>) -> Result<(), StateError> {
        self.ring.revive(chip, remains).map(drop)
    }

    fn stop(&mut self, chip: &ChipOf<R>) {
        self.ring.forget(chip);
        self.starved = None;
    }

    fn fault(&self) -> Option<Fault> {
        self.ring.fault()
    }

    /// Frames, of the longest that are usual, for which descriptors are posted. A large packet is
    /// cut only if all its segments find room, so a ring that is nearly all posted says that they
    /// do: waiting for more would be pointless.
    fn room(&mut self, chip: &ChipOf<R>) -> usize {
        let Some(look) = self.ring.look(chip).ok().filter(|look| look.size > 0) else {
            self.starved = Some(NOWHERE);
            return 0;
        };
        self.filter.update(chip, &self.ring, &look);
        let posted = look.posted();
        let shape = self.filter.shape();
        let each = shape.longest.min(JUMBO).div_ceil(shape.buffer.max(1));
        let frames = posted as usize / each.max(1);
        if frames >= MANY {
            return frames;
        }
        // If this is too little, the caller waits for the tail to move.
        self.starve(look);
        let all = posted > 0 && posted >= look.size / 4 * 3;
        if all { MANY } else { frames }
    }

    fn want_room(&mut self, chip: &ChipOf<R>) -> bool {
        if self.has_room(chip) {
            return true;
        }
        let Ok(Look { size, head, tail, .. }) = self.ring.look(chip) else {
            return false;
        };
        let Some(csb) = self.ring.csb().ask(&chip.core().wishes) else { return false };
        let posted = csb::Ring { size, head, tail };
        let more = csb::arm_room(&*csb, posted, || self.has_room(chip));
        if more {
            self.ring.csb().content();
        }
        more
    }

    fn receive(&mut self, chip: &ChipOf<R>, batch: &Batch<'_>, list: &[u16]) -> Received {
        self.receive_within(chip, batch, list, &mut { VISITS })
    }
}

/// A buffer found for a frame, and the descriptor that names it.
type Target<'m> = Option<(SliceMut<'m>, u32)>;

/// One push.
pub struct Pass<'q, R: Receive> {
    pub ring: &'q R::Ring,
    pub filter: &'q R::Filter,
    pub shape: Shape,
    pub chip: &'q ChipOf<R>,
    /// The next descriptor.
    pub at: u32,
    pub tail: u32,
    pub size: u32,
    /// Descriptors that may still be read.
    pub budget: usize,
    /// The last destination that was looked up, and whether it is this station's.
    last: (Mac, bool),
    sums: BatchTotals,
}

impl<'q, R: Receive> Pass<'q, R> {
    /// Delivers up to [`CHUNK`] frames, in two passes: the first finds buffers and asks for their
    /// cache lines, so that the misses overlap; the second copies. Returns how many were dealt
    /// with, and whether others may find room.
    #[inline]
    fn chunk(&mut self, batch: &Batch<'_>, list: &[u16]) -> (usize, bool) {
        let mut targets = [const { None }; CHUNK];
        let unfinished = R::UNCUT && batch.needs() != Offloads::NONE;
        let held = self.ring.is_held();
        let (mut dealt, mut more, mut pending) = (0, false, false);
        for (i, place) in list.iter().zip(&mut targets) {
            let i = usize::from(*i);
            let (len, destination) = (batch.frame_len(i), batch.macs(i).0);
            if (destination, true) != self.last && !self.admit(batch, i) {
                self.sums.pass_by(len);
                dealt += 1;
                continue;
            }
            if !unfinished || !batch.offload(i).needs_csum {
                *place = self.quick(len, self.shape.quick);
                if place.is_none() && self.shape.strip && !self.filter.is_tagged(batch.head(i)) {
                    *place = self.quick(len, self.shape.untagged);
                }
            }
            // An intent is about descriptors that follow each other.
            pending |= (R::IN_ORDER || held) && place.is_some();
            if place.is_none() {
                // Those before it are to be copied first.
                if pending {
                    more = true;
                    break;
                }
                match batch.frame(i).map_or(Outcome::Delivered, |frame| self.place(&frame)) {
                    Outcome::Delivered => {}
                    Outcome::NoRoom => break,
                    Outcome::Dropped(reason) => {
                        self.chip.core().counters.output.drop(reason, 1);
                        dealt += 1;
                        continue;
                    }
                }
            }
            dealt += 1;
            self.sums.add(destination, len);
        }
        if held {
            self.mark(&targets);
        }
        self.copy(batch, list, &mut targets);
        (dealt, more || dealt == list.len())
    }

    /// True if the frame is for this station. Remembered for the next, unless that depends on more
    /// than the address.
    #[inline(never)]
    fn admit(&mut self, batch: &Batch<'_>, i: usize) -> bool {
        let accepted = batch.frame(i).is_some_and(|frame| self.filter.accepts(frame.head));
        self.last = (batch.macs(i).0, accepted && !self.filter.by_more());
        accepted
    }

    /// The usual case: the frame is taken as it is, and the next buffer is one piece and holds it.
    #[inline]
    fn quick(&mut self, len: usize, most: usize) -> Target<'q> {
        let need = len.max(SHORTEST) + self.shape.fcs;
        if self.at == self.tail || need > most {
            return None;
        }
        let (addr, room) = R::buffer(self.ring, self.at, &self.shape);
        if room < need {
            return None;
        }
        let buffer = self.ring.map().slice_mut(addr, need)?;
        buffer.prefetch();
        let target = (buffer, self.at);
        self.at = add(self.at, 1, self.size);
        Some(target)
    }

    /// The buffers found are about to be handed over.
    #[inline(never)]
    fn mark(&self, targets: &[Target<'q>]) {
        let mut numbers = targets.iter().flatten().map(|(_, number)| *number);
        let Some(first) = numbers.next() else { return };
        self.ring.mark(first);
        numbers.for_each(|number| self.ring.mark(number));
        self.ring.hand_over(first, self.at);
    }

    /// Second pass: copies frames to the buffers found.
    #[inline]
    fn copy(&self, batch: &Batch<'_>, list: &[u16], targets: &mut [Target<'q>]) {
        let (ring, filter) = (self.ring, self.filter);
        for (i, target) in list.iter().zip(targets) {
            let Some((buffer, index)) = target else { continue };
            let Some(frame) = batch.frame(usize::from(*i)) else { continue };
            // The FCS, in a store of known size that the frame's last bytes then overwrite in part.
            if buffer.len() >= LAST.len() {
                buffer.write(buffer.len() - LAST.len(), &LAST);
            }
            let done = frame.write_to(buffer, 0);
            if done < SHORTEST {
                buffer.write(done, &ZEROS);
            }
            let len = buffer.len();
            let (sums, to) = (self.verdict(&frame), batch.macs(usize::from(*i)).0);
            let whole = Written {
                len,
                total: len,
                first: true,
                last: true,
                sums,
                to,
                note: R::note(filter, &frame),
                ..Written::default()
            };
            R::write_back(ring, filter, *index, &whole);
        }
    }

    /// What is said about the frame's checksums.
    #[inline]
    pub fn verdict(&self, frame: &FrameView<'_, '_>) -> Verdict {
        if frame.offload.csum_valid || R::UNCUT && frame.offload.needs_csum {
            self.sums(frame)
        } else {
            Verdict::default()
        }
    }
}
