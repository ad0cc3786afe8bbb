//! A ring whose descriptors say themselves who owns them: there is no register for its head, its
//! tail or its length. The chip takes descriptors in turn while OWN is set, and begins again behind
//! the one with EOR, or behind the most that a ring can have.
//!
//! ```text
//!     head: first not written back      tail: first that is not known to be ours
//!       │  ours: OWN seen                │  read one by one, at each look, as far as OWN is set
//!    ───┴────────────────────────────────┴──────────────────────────── EOR ┐
//!    ◄─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - Each look goes on where the last one ended, and reads at most [`AHEAD`] descriptors. An OWN
//!   that was seen is believed: only the driver that gave a descriptor away could take it back, and
//!   it has to stop the chip before.
//! - The size is known once EOR was seen. Until then it is the largest, which makes no difference,
//!   since nothing has wrapped yet. Linux sets EOR in a transmit ring only as it fills the last
//!   descriptor, and clears it with the rest when that was sent.
//! - One descriptor always stays out of reach, so that head equal to tail means an empty ring. A
//!   ring of a single descriptor, as some boot loaders have, counts as two equal ones.
//! - An EOR that turns up before the head, once the ring has wrapped, is not passed before the head
//!   has come round: what is known to be ours never wraps at two places. When an EOR has gone, the
//!   ring is as long as it can be.
//! - A ring that runs out of its region of memory stops there.
//! - With a CSB, while we are awake, nobody looks before its tail has moved: the descriptors next
//!   to ours are those that the guest is writing, and a look takes their cache line away from it. A
//!   guest that does not tell its tails, or tells the same one again because it gives away a whole
//!   ring at once, is noticed when we are about to sleep, or after [`PATIENCE`] looks: others may
//!   keep us awake.
//! - In a receive ring an EOR where nothing is ours yet tells the size if it is the first EOR: a
//!   driver that keeps one descriptor back may put it there.

mod held;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::Map;

use super::cplus::{Cplus, Which};
use super::desc::{EOR, OWN, SIZE};
use crate::chip::csb::{Csb, CsbSide};
use crate::chip::held::{Held, Line, Remains};
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Fault, StateError};
use crate::ring::{DescriptorRing, Descriptors, Look, Revived, distance, halves};

const AHEAD: u32 = 256; // Descriptors that one look reads, at most.

/// Looks in turn that are saved while the CSB's tail stands still: one cache line is taken from the
/// guest for so many of a busy worker's rounds.
const PATIENCE: u8 = 64;

const ALIGN: u64 = 0xff; // Bits of a ring's address that do not exist.

/// What a chip's registers say about a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its address; 0: there is none.
    pub base: u64,
    /// Counts the times that the chip was told to begin at its first descriptor.
    pub rewinds: u32,
}

impl Stateful for Place {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { base, rewinds } = self;
        io.u64(base);
        io.u32(rewinds);
    }
}

/// A ring of the chip `C`.
pub struct Ring<C> {
    which: Which,
    descriptors: Descriptors,
    place: Place,
    /// Descriptors that lie in memory, of those that may be the ring's; `None`: look for them.
    within: Option<u32>,
    /// Descriptors, as far as is known.
    size: u32,
    /// There is one descriptor, and `size` is 2.
    single: bool,
    head: u32,
    tail: u32,
    /// What others know of the ring is void.
    moved: bool,
    /// The CSB's tail, if all before it was looked at.
    heard: Option<u32>,
    /// Looks that it may still save.
    patience: u8,
    fault: Option<Fault>,
    csb: CsbSide,
    /// Where it outlives the process.
    line: Option<Line>,
    /// The head will be within a frame that is passed over.
    cut: bool,
    chip: PhantomData<fn(&C)>,
}

impl<C: Cplus> Ring<C> {
    /// A ring that is nowhere.
    pub fn new(which: Which) -> Self {
        Self {
            which,
            descriptors: Descriptors::default(),
            place: Place::default(),
            within: None,
            size: C::MOST,
            single: false,
            head: 0,
            tail: 0,
            moved: true,
            heard: None,
            patience: 0,
            fault: None,
            csb: CsbSide::new(which.direction()),
            line: None,
            cut: false,
            chip: PhantomData,
        }
    }

    /// Forgets which descriptors are ours, and what stood in the way.
    fn stop(&mut self) {
        self.doubt();
        self.fault = None;
        self.csb.restart();
        self.publish_head();
    }

    fn doubt(&mut self) {
        (self.tail, self.moved, self.heard) = (self.head, true, None);
        // Whoever passes over the rest of a frame begins anew.
        if let Some(line) = &mut self.line {
            line.begin_at(self.head, false);
        }
    }

    /// Begins at the first descriptor.
    fn rewind(&mut self) {
        (self.head, self.size, self.single) = (0, C::MOST, false);
        self.doubt();
    }

    /// Where `index` is in memory.
    #[inline]
    fn index(&self, index: u32) -> u32 {
        if self.single { 0 } else { index }
    }

    /// Finds out how far descriptors are ours.
    ///
    /// # Errors
    /// They are not in the guest's memory; [`DescriptorRing::fault`] repeats it.
    #[inline]
    fn look_at(&mut self, place: Place) -> Result<Look, Fault> {
        self.csb.notice();
        if place != self.place {
            self.go(place);
        }
        if place.base == 0 {
            self.fault = None;
            return Ok(Look { size: 0, head: 0, tail: 0, moved: true });
        }
        let within = match self.within {
            Some(within) => within,
            None => self.find(),
        };
        self.follow(within);
        if let Some(fault) = self.fault.filter(|_| self.head == self.tail) {
            return Err(fault);
        }
        let moved = std::mem::take(&mut self.moved);
        Ok(Look { size: self.size, head: self.head, tail: self.tail, moved })
    }

    #[cold]
    fn go(&mut self, place: Place) {
        self.place = place;
        self.within = None;
        self.rewind();
        self.note_place(false);
        self.csb.restart();
        self.publish_head();
    }

    /// How many descriptors the region of memory holds.
    #[cold]
    fn find(&mut self) -> u32 {
        let base = self.place.base & !ALIGN;
        let most = C::MOST as usize * SIZE;
        let run = self.map().first_run(base, most).map_or(0, |run| run.len() / SIZE);
        // The run is no longer than the largest ring.
        let run = u32::try_from(run).unwrap_or(C::MOST).min(C::MOST);
        let found = run > 0 && self.descriptors.find(base, 16 * run);
        let within = if found { run } else { 0 };
        self.within = Some(within);
        within
    }

    /// After a restore: none of what is said to be ours may lie outside memory.
    fn find_ours(&mut self) {
        if self.place.base == 0 {
            return;
        }
        let within = self.find();
        let last = if self.single { 1 } else { self.size };
        let end = if self.head <= self.tail { self.tail.min(last) } else { last };
        if end > within {
            self.doubt();
        }
    }

    /// Moves the tail over descriptors that are ours, if there is reason to think that there are
    /// more.
    #[inline]
    fn follow(&mut self, within: u32) {
        let hint = self.csb.hint().filter(|tail| *tail < self.size && !self.single);
        let same = hint.is_some() && hint == self.heard;
        if same && self.patience > 0 {
            self.patience -= 1;
            return;
        }
        self.patience = PATIENCE;
        self.fault = None;
        let told = hint.filter(|_| !same).map(|tail| distance(self.tail, tail, self.size));
        // A tail that equals ours says nothing: there may be no descriptor, or all of them.
        let most = told.filter(|told| *told > 0).map_or(AHEAD, |told| told.min(AHEAD));
        let found = self.advance(within, most);
        // What we have no room for is to be found when we have.
        let all = found < AHEAD && (hint == Some(self.tail) || self.has_room());
        self.heard = hint.filter(|_| all);
    }

    /// Moves the tail over descriptors that are ours, up to `most`. Returns how many there were.
    #[inline]
    fn advance(&mut self, within: u32, most: u32) -> u32 {
        let mut left = most;
        loop {
            left -= self.run(within, left);
            if left == 0 || !self.step(within) {
                return most - left;
            }
            left -= 1;
        }
    }

    /// The usual case: descriptors that are neither the last one nor said to be it. Returns how
    /// many there are, up to `most`.
    #[inline]
    fn run(&mut self, within: u32, most: u32) -> u32 {
        if self.single {
            return 0;
        }
        let free = self.size - 1 - distance(self.head, self.tail, self.size);
        let before_last = self.size - 1 - self.tail;
        let most = most.min(free).min(before_last).min(within.saturating_sub(self.tail));
        let ours = |opts1| opts1 & (OWN | EOR) == OWN;
        let n = self.descriptors.leading(self.tail, most, ours);
        self.tail += n;
        n
    }

    /// Moves the tail over one descriptor, if that is ours.
    fn step(&mut self, within: u32) -> bool {
        let index = self.index(self.tail);
        if !self.has_room() {
            return false;
        }
        if index >= within {
            self.fault = Some(self.beyond());
            return false;
        }
        let word = self.descriptors.word(index, Ordering::Acquire);
        if word & OWN == 0 {
            self.glimpse(index, word & EOR != 0);
            return false;
        }
        self.pass(index, word & EOR != 0 || index + 1 == C::MOST)
    }

    /// The next descriptor is not in memory.
    fn beyond(&self) -> Fault {
        let (ring, base) = (self.which.name(), self.place.base & !ALIGN);
        Fault::BadRing { ring, base, len: (self.index(self.tail) + 1).saturating_mul(16) }
    }

    /// Nothing is ours from `index` on. If that is the `last`, and no other was said to be, the
    /// size of a receive ring is known before it wraps: asking for room needs an index at which
    /// there is enough. (A ring of known size has to hold a frame: one that is being sent must not
    /// be dropped because of a mark that somebody left in memory.)
    #[inline]
    fn glimpse(&mut self, index: u32, last: bool) {
        let first = self.size == C::MOST && index > 0 && self.head <= self.tail;
        if last && first && self.which == Which::Receive {
            self.size = index + 1;
        }
    }

    /// One more may be ours.
    #[inline]
    fn has_room(&self) -> bool {
        distance(self.head, self.tail, self.size) + 1 < self.size
    }

    /// Moves the tail over the descriptor at `index`, the `last` of the ring or not. False: not
    /// yet.
    fn pass(&mut self, index: u32, last: bool) -> bool {
        let known = self.single || self.tail + 1 == self.size;
        if last != known && !(self.resize(index, last) && self.has_room()) {
            return false;
        }
        self.tail = if self.tail + 1 == self.size { 0 } else { self.tail + 1 };
        true
    }

    /// The ring does not end where it did. False: it cannot be told yet.
    #[cold]
    fn resize(&mut self, index: u32, last: bool) -> bool {
        if self.single {
            // There is none under way, or the tail would not be looked at.
            self.rewind();
        }
        if self.head > self.tail {
            return false;
        }
        self.single = last && index == 0;
        self.size = match last {
            true => (index + 1).max(2),
            false => C::MOST,
        };
        true
    }

    /// There is nothing of ours from `index` on.
    #[inline]
    pub fn is_empty_at(&self, index: u32) -> bool {
        index == self.tail && self.opts1(index) & OWN == 0
    }

    /// Its first doubleword, opts1.
    #[inline]
    pub fn opts1(&self, index: u32) -> u32 {
        self.descriptors.word(self.index(index), Ordering::Relaxed)
    }

    /// EOR, if it was set in the descriptor at `index`, which is ours: it stays where it is. The
    /// last descriptor that a ring can have does not show it, so its word is looked at.
    #[inline]
    pub fn eor(&self, index: u32) -> u32 {
        if index + 1 < self.size && !self.single { 0 } else { self.last_eor(index) }
    }

    #[cold]
    fn last_eor(&self, index: u32) -> u32 {
        if self.size == C::MOST { self.opts1(index) & EOR } else { EOR }
    }

    /// Gives the descriptor at `index` back to the guest, after all that was written before.
    /// `word`: opts1 without OWN, and opts2.
    #[inline]
    pub fn give(&self, index: u32, word: u64) {
        self.descriptors.set_u64(self.index(index), 0, word);
    }

    /// As [`Ring::give`]; opts2 stays as it is.
    #[inline]
    pub fn give_opts1(&self, index: u32, opts1: u32) {
        self.descriptors.set_u32(self.index(index), 0, opts1);
    }

    /// Publishes the head, after all write-backs.
    #[inline]
    pub fn publish(&mut self, head: u32) {
        self.head = head;
        if let Some(line) = &mut self.line {
            line.close_at(head);
        }
        self.publish_head();
    }

    #[inline]
    fn publish_head(&self) {
        self.csb.publish(self.index(self.head));
    }
}

impl<C: Cplus> DescriptorRing for Ring<C> {
    type Chip = C;

    #[inline]
    fn map(&self) -> &Arc<Map> {
        self.descriptors.map()
    }

    /// Of the old map only the place of the head is kept.
    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        (self.within, self.fault) = (None, None);
        self.doubt();
        self.descriptors.set_map(map)
    }

    #[inline]
    fn csb(&mut self) -> &mut CsbSide {
        &mut self.csb
    }

    #[inline]
    fn look(&mut self, chip: &C) -> Result<Look, Fault> {
        let look = self.look_at(chip.place(self.which));
        let size = self.said_size();
        if let Some(line) = &mut self.line {
            line.sized(size);
        }
        look
    }

    fn fault(&self) -> Option<Fault> {
        self.fault.or(self.map().poisoned().then_some(Fault::Truncated))
    }

    fn forget(&mut self, _: &C) {
        self.stop();
    }

    fn publish_again(&self, _: &C) {
        self.publish_head();
    }

    fn replace_csb(&mut self, chip: &C, csb: Option<Arc<Csb>>, on: bool) {
        self.csb.replace(csb, on);
        if on {
            self.publish_again(chip);
        }
    }

    #[rustfmt::skip]
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self {
            which: _, descriptors: _, place, within, size, single, head, tail, moved, heard,
            patience, fault, csb, line: _, cut: _, chip: _,
        } = self;
        place.fields(io);
        io.u32(size);
        io.check((2..=C::MOST).contains(size));
        [head, tail].into_iter().for_each(|index| io.below(index, *size));
        [&mut *single, moved].into_iter().for_each(|flag| io.flag(flag));
        io.check(!*single || *size == 2);
        io.option(heard, Fields::u32);
        io.u8(patience);
        io.check(*patience <= PATIENCE);
        let mut failed = fault.is_some();
        io.flag(&mut failed);
        csb.fields(io);
        if io.restores() {
            (*within, *fault) = (None, None);
            self.find_ours();
            self.fault = failed.then(|| self.beyond());
            self.note_place(false);
        }
    }

    fn note_said(&mut self, cut: bool) {
        self.note_place(cut);
    }

    fn cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.line = Some(Line::new(held, self.number()));
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.line.is_some()
    }

    fn mark(&self, number: u32) {
        let word = self.word(number);
        self.line.iter().for_each(|line| line.keep(word));
        self.set_mark(number, word);
    }

    fn hand_over(&self, a: u32, b: u32) {
        self.line.iter().for_each(|line| line.hand_over(a, b));
    }

    fn revive(&mut self, chip: &C, remains: &Remains<'_>) -> Result<Option<Revived>, StateError> {
        self.go_on(chip, remains).map(Some)
    }

    fn extent(&self) -> Option<(u32, u32)> {
        (self.place.base != 0).then_some((self.head, self.size))
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        let (word, addr) = self.descriptors.read(self.index(index));
        (addr, word)
    }

    #[inline]
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        self.descriptors.copy(self.index(index), out);
    }

    #[inline]
    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        let (word, addr) = halves(desc);
        (addr, word)
    }
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;
