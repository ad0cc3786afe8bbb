//! The receive side: frames meant for this station are copied to the guest's buffers, between RDH and RDT (SDM 3.2).
//!
//! A frame is written only if descriptors for all of it are posted: one that finds no room is left with its sender, which is what
//! the real chip's packet buffer is for. Buffers with a null address are written back without data. A frame whose
//! buffers are not in the guest's memory is dropped, and its descriptors are written back with RXE, so that the ring goes on.
//!
//! - No frame on this wire is damaged, so RCTL.SBP changes nothing.
//! - The FCS that is appended without RCTL.SECRC is zeros: no driver looks at it, and computing it would cost more
//!   than everything else here.
//! - Frames below 60 bytes are padded with zeros, as their sender's hardware would have done.
//! - The packet checksum field (RXCSUM.PCSS) is 0: the drivers of this chip use the two below.
//! - Checksums are reported (IPCS, TCPCS) for frames that somebody on this host vouches for; for all others IXSM
//!   tells the guest to look itself.
//! - RXDMT0 is raised when the free descriptors fall to the threshold, RXO when the switch had to drop frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::{Batch, Mac, Reason};
use vmlan_ram::{Map, SliceMut};

use crate::notify::csb;

use super::desc::rx;
use super::filter::Filter;
use super::irq::cause;
use super::regs::Registers;
use super::ring::{Look, RECEIVE, Ring, add, distance};
use super::rx_place::Outcome;
use super::stats::{SHORTEST, Sums};
use super::{E1000, Trouble};

/// Frames for which buffers are found, and asked for, before the first is copied.
const CHUNK: usize = 32;

/// Longest frame that is usual where long ones are, with tag and FCS.
const JUMBO: usize = 9022;

/// Frames that nobody asks room for more than.
const MANY: usize = 128;

/// Descriptors one push visits, at most, whatever the guest posts.
const BUDGET: usize = 4096;

/// Zeros to pad with, and FCS.
pub static ZEROS: [u8; 64] = [0; 64];
/// Zeros that the FCS is part of.
const LAST: [u8; 8] = [0; 8];

/// The receive side of a chip.
pub struct Rx {
    pub(super) ring: Ring,
    filter: Box<Filter>,
    /// The tail at which a push found no room.
    starved: Option<u32>,
    /// Frames that the switch dropped for want of room, at the last look.
    missed: u64,
}

impl Default for Rx {
    fn default() -> Self {
        Self { ring: Ring::new(&RECEIVE), filter: Box::default(), starved: None, missed: 0 }
    }
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Entries of the list that were dealt with.
    pub dealt: usize,
    /// Interrupt causes to post, without locks.
    pub causes: u32,
    /// The guest has turned its status block off: causes that were kept in are to come out.
    pub reopened: bool,
}

impl Rx {
    /// Replaces the map. No frame is being written.
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    /// Forgets everything about the ring but its registers.
    pub fn stop(&mut self, regs: &Registers) {
        self.ring.forget(regs);
        self.starved = None;
    }

    pub fn trouble(&self) -> Option<Trouble> {
        self.ring.trouble()
    }

    /// Frames, of the longest that are usual, for which descriptors are posted. A large packet is cut only if all its segments
    /// find room, so a ring that is nearly all posted says that they do: waiting for more would be vain.
    pub fn room(&mut self, chip: &E1000) -> usize {
        self.filter.update(chip.filter_version.load(Ordering::Acquire), &chip.regs);
        let Ok(look) = self.ring.look(&chip.regs) else { return 0 };
        let posted = free(look);
        let each = self.filter.longest.min(JUMBO).div_ceil(self.filter.buffer);
        let frames = posted as usize / each.max(1);
        if frames >= MANY {
            return frames;
        }
        // Whoever finds this too little waits for the tail to move.
        self.starve(look);
        let all = posted > 0 && posted >= look.size / 4 * 3;
        if all { MANY } else { frames }
    }

    /// Somebody waits for room: asks the guest to say so when there is. True if there is already.
    pub fn want_room(&mut self, chip: &E1000) -> bool {
        let regs = &chip.regs;
        if self.has_room(regs) {
            return true;
        }
        let Ok(Look { size, head, tail, .. }) = self.ring.look(regs) else { return false };
        let Some(block) = self.ring.csb.ask(&chip.wishes) else { return false };
        let posted = csb::Ring { size, head, tail };
        let more = csb::arm_room(&*block, posted, || self.has_room(regs));
        if more {
            self.ring.csb.content();
        }
        more
    }

    fn starve(&mut self, look: Look) {
        self.starved = Some(look.tail);
        self.ring.reconsider(look);
    }

    /// True if there is room, or, after a push that found too little, more of it.
    fn has_room(&mut self, regs: &Registers) -> bool {
        let Ok(look) = self.ring.look(regs) else { return false };
        free(look) > 0 && self.starved != Some(look.tail)
    }

    /// Delivers the frames of `batch` that `list` names, in that order.
    pub fn receive(&mut self, chip: &E1000, batch: &Batch<'_>, list: &[u16]) -> Received {
        self.filter.update(chip.filter_version.load(Ordering::Acquire), &chip.regs);
        let look = self.ring.look(&chip.regs);
        let reopened = self.ring.csb.take_off();
        let Some(look) = look.ok().filter(|look| look.size > 0) else {
            return Received { reopened, ..Received::default() };
        };
        if free(look) > 0 {
            self.ring.csb.content();
        }
        let mut pass = Pass {
            ring: &self.ring,
            filter: &self.filter,
            chip,
            at: look.head,
            tail: look.tail,
            size: look.size,
            budget: BUDGET,
            last: (Mac::default(), false),
            sums: Sums::default(),
        };
        let mut dealt = 0;
        for chunk in list.chunks(CHUNK) {
            let n = pass.chunk(batch, chunk);
            dealt += n;
            if n < chunk.len() {
                break;
            }
        }
        let Pass { at, budget, mut sums, .. } = pass;
        let (frames, bytes) = sums.frames();
        chip.counters.output.count(frames, bytes);
        chip.stats.rx.count(sums);
        self.starved = None;
        if dealt < list.len() && budget > 0 {
            chip.stats.rx.special.add(1);
            self.starve(look);
        }
        Received { dealt, causes: self.publish(chip, look, at), reopened }
    }

    /// Publishes the head; returns what is to be said about it.
    fn publish(&mut self, chip: &E1000, look: Look, at: u32) -> u32 {
        let mut causes = 0;
        if at != look.head {
            causes |= cause::RXT0;
            let threshold = look.size >> self.filter.threshold;
            let left = distance(at, look.tail, look.size);
            if left <= threshold && free(look) > threshold {
                causes |= cause::RXDMT0;
            }
            self.ring.publish(&chip.regs, at);
        }
        let missed = chip.counters.output.dropped(Reason::ReceiverFull);
        if std::mem::replace(&mut self.missed, missed) != missed {
            causes |= cause::RXO;
        }
        causes
    }
}

fn free(look: Look) -> u32 {
    if look.size == 0 { 0 } else { distance(look.head, look.tail, look.size) }
}

/// A buffer found for a frame, and the descriptor that names it.
type Target<'m> = Option<(SliceMut<'m>, u32)>;

/// One push.
pub struct Pass<'q> {
    pub ring: &'q Ring,
    pub filter: &'q Filter,
    chip: &'q E1000,
    /// The next descriptor.
    pub at: u32,
    pub tail: u32,
    pub size: u32,
    /// Descriptors that may still be read.
    pub budget: usize,
    /// The last destination that was looked up, and whether it is this station's.
    last: (Mac, bool),
    sums: Sums,
}

impl<'q> Pass<'q> {
    /// Delivers up to [`CHUNK`] frames, in two passes: the first finds buffers and asks for their cache lines, so that the
    /// misses overlap; the second copies. Returns how many were dealt with.
    #[inline]
    fn chunk(&mut self, batch: &Batch<'_>, list: &[u16]) -> usize {
        let mut targets = [const { None }; CHUNK];
        let mut dealt = 0;
        for (i, place) in list.iter().zip(&mut targets) {
            let i = usize::from(*i);
            let (len, destination) = (batch.frame_len(i), batch.macs(i).0);
            if (destination, true) != self.last && !self.admit(batch, i) {
                self.sums.pass_by(len);
                dealt += 1;
                continue;
            }
            *place = self.quick(len);
            if place.is_none() {
                match batch.frame(i).map_or(Outcome::Delivered, |frame| self.place(&frame)) {
                    Outcome::Delivered => {}
                    Outcome::NoRoom => break,
                    Outcome::Dropped(reason) => {
                        self.chip.counters.output.drop(reason, 1);
                        dealt += 1;
                        continue;
                    }
                }
            }
            dealt += 1;
            self.sums.add(destination, len);
        }
        self.copy(batch, list, &mut targets);
        dealt
    }

    /// True if the frame is for this station. Remembered for the next, unless it hangs on more than the address.
    #[inline(never)]
    fn admit(&mut self, batch: &Batch<'_>, i: usize) -> bool {
        let accepted = batch.frame(i).is_some_and(|frame| self.filter.accepts(frame.head));
        self.last = (batch.macs(i).0, accepted && !self.filter.by_vlan());
        accepted
    }

    /// ROC.
    pub fn count_long(&self) {
        self.chip.stats.rx.failed.add(1);
    }

    /// The usual case: the frame is taken as it is, and the next buffer is one piece and holds it.
    #[inline]
    fn quick(&mut self, len: usize) -> Target<'q> {
        let need = len.max(SHORTEST) + self.filter.fcs;
        if self.at == self.tail || need > self.filter.quick {
            return None;
        }
        let addr = self.ring.address(self.at);
        if addr == 0 {
            return None;
        }
        let buffer = self.ring.map().slice_mut(addr, need)?;
        buffer.prefetch();
        let target = (buffer, self.at);
        self.at = add(self.at, 1, self.size);
        Some(target)
    }

    /// Second pass: copies frames to the buffers found.
    #[inline]
    fn copy(&self, batch: &Batch<'_>, list: &[u16], targets: &mut [Target<'q>]) {
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
            let status = match frame.offload.csum_valid {
                false => rx::IXSM,
                true => self.sums_status(&frame),
            };
            let word = rx::DD | rx::EOP | status | buffer.len() as u64;
            self.ring.write_back(*index, word);
        }
    }
}
