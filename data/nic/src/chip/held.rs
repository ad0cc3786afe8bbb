//! What of a chip outlives its process, whatever instruction that dies at: memory that the next one
//! has as well, which says at every moment how the chip is to go on ([`super::Nic::revive`]).
//!
//! ```text
//!  0x0000  words: the format, which slot counts, the interrupt mask, the CSB, what a chip
//!          has of its own
//!  0x1000  a line for each ring                  written by whoever has that side's lock
//!  0x2000  two slots: configuration space, EEPROM, PHY, as a state has them
//!  0x4000  registers, each at its offset
//! ```
//!
//! A process that is killed has made all stores up to some place in the program, and none behind
//! it. So what is one word is stored ([`Held::set`]), and what is more is written to the slot that
//! does not count, which a store then makes the one that does. Registers are written here *before*
//! they change, since a worker may act on them at once; the access is repeated if nobody noted that
//! it was done, which changes nothing.
//!
//! # Rings
//!
//! What the guest has been given, and the head here, do not change together. So a ring's *intent*
//! says which descriptors `a..b` are being handed over, and each of those has a *mark* until it is:
//! a bit of the status that a driver clears with the rest, and does not look at before.
//!
//! | | intent | descriptors | what is right |
//! | --- | --- | --- | --- |
//! | 1 | none | some have marks | head `a`: the marks mean nothing |
//! | 2 | `a..b` | the first with a mark is `x` | those before `x` were handed over |
//! | 3 | `a..b` | none has a mark | all were; the driver may have given them back since |
//! | 4 | none | | head `b` |
//!
//! Without marks nobody could tell a descriptor that was never handed over from one that the driver
//! has taken, cleared and given back. Transmitted: the frames are sent by then, so the rest of the
//! marks become DD, and the head is `b`. Received: what is behind `x` is made empty again, and the
//! head is `x`, since their sender has the frames still. A frame of several descriptors is written
//! from the last to the first.
//!
//! Where the descriptors say who owns them, a mark is a bit beside OWN, and goes with it, in one
//! store; the head of such a ring is in the intent's word, and so is its size.
//!
//! # The CSB
//!
//! Where it is, and whether messages say all, is noted while both sides are stopped. A side whose
//! tail is in the CSB has a word that says how far it is believed ([`super::csb::CsbSide`]): before
//! the register follows it or the guest is told that it need not kick, and, once it has turned the
//! CSB off, only when the register has the later of both tails. All else in there is the guest's,
//! or is said again.
//!
//! # Whom to believe
//!
//! Nobody: the memory is checked as a state is.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::Window;

use super::StateError;
use crate::bits::low32;

/// Bytes of it.
pub const HELD: usize = 0x1_0000;

const FORMAT: usize = 0;
/// What the format's word is, once all is there.
const VALID: u32 = 0x484c_4d01;
/// Whoever wrote it notes where the CSB is: older ones did not.
const KNOWS_CSB: usize = 4;
const SELECT: usize = 8;
const MASK: usize = 16;
/// Where the CSB is; what it said when it was placed; a word for each side.
const CSB: usize = 24;
const CSB_BY_MESSAGE: usize = 20;
const CSB_SIDES: usize = 32;
/// Words of a chip's own.
const OWN: usize = 0x40;
const LINES: usize = 0x1000;
const LINE: usize = 0x400;
const SLOTS: usize = 0x2000;
const SLOT: usize = 0x1000;
const REGISTERS: usize = 0x4000;

/// In a line: the intent; where the ring is, and of what kind; what was before the descriptors of
/// the intent were written to, in their order; two slots for what descriptors have said.
const INTENT: usize = 0;
const BASE: usize = 8;
const EXTENT: usize = 16;
const UNDO: usize = 0x100;
const SAID: [usize; 2] = [0x40, 0x80];

/// Most descriptors of an intent whose former words are kept.
pub const MOST: u32 = 64;

/// A test's process dies before its n-th store.
#[cfg(test)]
pub mod fuse {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The points that were come to, for whoever looks at this process from outside.
    pub static POINTS: AtomicU32 = AtomicU32::new(0);

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// What the process dies of.
    pub struct Died;

    /// It has so many stores left. `None`: it lives. Returns what was left.
    pub fn set(stores: Option<u32>) -> Option<u32> {
        LEFT.replace(stores)
    }

    /// One more of them is about to be made.
    pub fn store() {
        POINTS.fetch_add(1, Ordering::Relaxed);
        let left = LEFT.get();
        if let Some(left) = left {
            match left.checked_sub(1) {
                Some(left) => LEFT.set(Some(left)),
                None => std::panic::resume_unwind(Box::new(Died)),
            }
        }
    }
}

/// A store to memory that outlives the process comes next.
#[inline]
pub fn point() {
    #[cfg(test)]
    fuse::store();
}

/// The memory.
#[derive(Debug)]
pub struct Held(Window);

impl Held {
    /// All of it lies in `window`.
    pub fn new(window: Window) -> Arc<Self> {
        Arc::new(Self(window))
    }

    /// A word.
    #[inline]
    fn set(&self, at: usize, value: u32) {
        point();
        self.0.set_u32(at, value, Ordering::Release);
    }

    #[inline]
    fn set_long(&self, at: usize, value: u64) {
        point();
        self.0.set_u64(at, value, Ordering::Release);
    }

    /// A register is about to have this value.
    #[inline]
    pub fn set_register(&self, offset: u32, value: u32) {
        self.set(REGISTERS + offset as usize, value);
    }

    /// The same, unless it is about to have another.
    #[inline]
    pub fn replace_register(&self, offset: u32, old: u32, new: u32) {
        point();
        let _other = self.0.replace_u32(REGISTERS + offset as usize, old, new);
    }

    /// The CSB is there. `by_message`: its driver is content with messages.
    pub fn set_csb(&self, address: u64, by_message: bool) {
        // Neither of the two makes sense with the other's former value.
        self.set_long(CSB, 0);
        self.set(CSB_BY_MESSAGE, by_message.into());
        self.set_long(CSB, address);
    }

    /// What a side knows of it. `receives`: which.
    #[inline]
    pub fn set_csb_side(&self, receives: bool, word: u64) {
        self.set_long(CSB_SIDES + 8 * usize::from(receives), word);
    }

    /// A word of the chip's own.
    pub fn set_own(&self, n: usize, value: u32) {
        self.set(OWN + 4 * n, value);
    }

    /// Two words of its own, from an even one on.
    pub fn set_own_long(&self, n: usize, value: u64) {
        self.set_long(OWN + 4 * n, value);
    }

    /// The interrupts that are enabled.
    pub fn set_mask(&self, mask: u32) {
        self.set(MASK, mask);
    }

    /// Puts `parts` in the place of those that are there. From now on all of this counts.
    pub fn commit(&self, parts: &[u8]) {
        let next = self.0.u64(SELECT, Ordering::Relaxed).wrapping_add(1);
        let at = SLOTS + (next & 1) as usize * SLOT;
        if parts.len() > SLOT {
            return self.set(FORMAT, 0);
        }
        for (n, bytes) in parts.chunks(8).enumerate() {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            self.set_long(at + 8 * n, u64::from_le_bytes(word));
        }
        self.set_long(SELECT, next);
        if self.0.u32(FORMAT, Ordering::Relaxed) != VALID {
            self.set(KNOWS_CSB, 1);
            self.set(FORMAT, VALID);
        }
    }
}

/// A copy of what a process has left.
#[derive(Clone, Copy, Debug)]
pub struct Remains<'b>(&'b [u8]);

impl<'b> Remains<'b> {
    /// All of it.
    ///
    /// # Errors
    /// It is not whole, or of another format.
    pub fn new(bytes: &'b [u8]) -> Result<Self, StateError> {
        let it = Self(bytes);
        let whole = bytes.len() == HELD && it.word(FORMAT) == VALID;
        if whole { Ok(it) } else { Err(StateError::NotAState) }
    }

    /// The word by which nobody takes it for whole any more, and where that is.
    pub const VOID: (usize, u32) = (FORMAT, 0);

    fn word(&self, at: usize) -> u32 {
        let word = self.0.get(at..at + 4).and_then(|word| word.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    /// The parts that count, and perhaps some bytes behind them.
    pub fn parts(&self) -> &'b [u8] {
        let at = SLOTS + (self.long(SELECT) & 1) as usize * SLOT;
        let slot = self.0.get(at..at + SLOT).unwrap_or_default();
        let len = slot.get(12..16).and_then(|len| len.first_chunk());
        let len = len.map_or(0, |len| u32::from_le_bytes(*len) as usize);
        slot.get(..len).unwrap_or_default()
    }

    /// A register.
    pub fn register(&self, offset: u32) -> u32 {
        self.word(REGISTERS + offset as usize)
    }

    /// A word of the chip's own.
    pub fn own(&self, n: usize) -> u32 {
        self.word(OWN + 4 * n)
    }

    /// Two of them.
    pub fn own_long(&self, n: usize) -> u64 {
        self.long(OWN + 4 * n)
    }

    /// What it says of the CSB counts.
    pub fn knows_csb(&self) -> bool {
        self.word(KNOWS_CSB) != 0
    }

    /// Where the CSB is, and whether its driver is content with messages.
    pub fn csb(&self) -> (u64, bool) {
        (self.long(CSB), self.word(CSB_BY_MESSAGE) != 0)
    }

    /// See [`Held::set_csb_side`].
    pub fn csb_side(&self, receives: bool) -> u64 {
        self.long(CSB_SIDES + 8 * usize::from(receives))
    }

    /// The interrupts that were enabled, and perhaps some more: messages disable them, too.
    pub fn mask(&self) -> u32 {
        self.word(MASK)
    }
}

/// What an intent's word says beside its descriptors.
mod intent {
    pub const OPEN: u64 = 1 << 32; // There is one.
    pub const SLOT: u64 = 1 << 33; // What was said before it is in the second slot.
    pub const FLIP: u64 = 1 << 34; // What was said with it is in the other one.
    pub const CUT: u64 = 1 << 35; // Behind it the rest of a frame is passed over.
    pub const WAS_CUT: u64 = 1 << 36; // In front of it.
    pub const WROTE: u64 = 1 << 37; // Descriptors were written back since the ring was stopped.
    pub const SIZE: u32 = 48; // From here on: how long the ring is, if no register says so.
}

/// What transmit descriptors have said that holds for those that follow: two descriptors.
pub type Said = [[u64; 2]; 2];

/// The line of a ring, for whoever serves it.
#[derive(Debug)]
pub struct Line {
    held: Arc<Held>,
    at: usize,
    /// The intent's word as it is when there is none.
    rest: u64,
    /// What it becomes when the intent is through.
    next: u64,
    /// Where the ring is.
    base: u64,
    extent: u64,
    /// Its size, or that descriptors were written back: each intent's word says it.
    always: u64,
    /// Words that were kept for the next intent.
    kept: Cell<u32>,
}

impl Line {
    /// The `n`-th of up to four.
    pub fn new(held: &Arc<Held>, n: usize) -> Self {
        let (base, extent) = (0, u64::MAX);
        let (held, at, kept) = (Arc::clone(held), LINES + n * LINE, Cell::new(0));
        Self { held, at, rest: 0, next: 0, base, extent, always: 0, kept }
    }

    fn set(&self, at: usize, value: u64) {
        self.held.set_long(self.at + at, value);
    }

    #[inline]
    fn intent(&self, word: u64) {
        self.set(INTENT, word | self.always);
    }

    /// No register says how long the ring is. As far as is known, so long.
    #[inline]
    pub fn sized(&mut self, size: u32) {
        self.always = u64::from(size) << intent::SIZE;
    }

    /// Descriptors were written back since the ring was stopped, or were not. The next word says
    /// so.
    #[inline]
    pub fn wrote(&mut self, wrote: bool) {
        self.always = if wrote { intent::WROTE } else { 0 };
    }

    /// The ring is here.
    #[inline]
    pub fn place(&mut self, base: u64, len: u32, kind: u32) {
        let extent = u64::from(len) | u64::from(kind) << 32;
        if (base, extent) != (self.base, self.extent) {
            (self.base, self.extent) = (base, extent);
            // Neither of the two makes sense with the other's former value.
            self.set(EXTENT, u64::MAX);
            self.set(BASE, base);
            self.set(EXTENT, extent);
        }
    }

    /// The ring is stopped: no intent, nothing of a frame is left.
    pub fn forget(&mut self) {
        (self.base, self.extent) = (0, u64::MAX);
        self.rest &= intent::SLOT;
        self.next = self.rest;
        self.intent(self.rest);
    }

    /// What holds for the descriptors at the head.
    pub fn say(&mut self, said: &Said, cut: bool) {
        self.write(said);
        let cut = if cut { intent::CUT } else { 0 };
        self.rest = self.rest & intent::SLOT ^ intent::SLOT | cut;
        self.next = self.rest;
        self.intent(self.rest);
    }

    /// To the slot that does not count.
    fn write(&self, said: &Said) {
        let [first, second] = SAID;
        let at = if self.rest & intent::SLOT == 0 { second } else { first };
        for (n, word) in said.as_flattened().iter().enumerate() {
            self.set(at + 8 * n, *word);
        }
    }

    /// Descriptors `a..b` are handed over from now on; they have marks. `said`: among them is what
    /// holds for those behind. `cut`: those begin within a frame that is passed over.
    pub fn open(&mut self, (a, b): (u32, u32), said: Option<&Said>, cut: bool) {
        let mut word = intent::OPEN | self.rest & intent::SLOT;
        self.next = self.rest & intent::SLOT;
        if let Some(said) = said {
            self.write(said);
            word |= intent::FLIP;
            self.next ^= intent::SLOT;
        }
        if self.rest & intent::CUT != 0 {
            word |= intent::WAS_CUT;
        }
        if cut {
            word |= intent::CUT;
            self.next |= intent::CUT;
        }
        self.intent(word | range(a, b));
    }

    /// As [`Self::open`], where nothing is said.
    #[inline]
    pub fn hand_over(&self, a: u32, b: u32) {
        self.kept.set(0);
        self.intent(intent::OPEN | range(a, b));
    }

    /// They are, and the head says so.
    #[inline]
    pub fn close(&mut self) {
        self.rest = self.next;
        self.intent(self.rest);
    }

    /// The same, of a ring whose head no register has.
    #[inline]
    pub fn close_at(&mut self, head: u32) {
        self.rest = self.next | range(head, 0);
        self.intent(self.rest);
    }

    /// It begins at this head. `cut`: the rest of a frame is passed over there.
    pub fn begin_at(&mut self, head: u32, cut: bool) {
        self.next = if cut { intent::CUT } else { 0 };
        self.close_at(head);
    }

    /// A word of the next descriptor of the next intent: it is overwritten before that is handed
    /// over.
    #[inline]
    pub fn keep(&self, word: u64) {
        let n = self.kept.replace(self.kept.get() + 1);
        self.set(UNDO + 8 * (n % MOST) as usize, word);
    }
}

#[inline]
fn range(a: u32, b: u32) -> u64 {
    u64::from(a & 0xffff) | u64::from(b & 0xffff) << 16
}

/// A line as it was left.
#[derive(Clone, Copy, Debug)]
pub struct Left<'b> {
    remains: Remains<'b>,
    at: usize,
    word: u64,
}

impl<'b> Left<'b> {
    /// The `n`-th.
    pub fn new(remains: Remains<'b>, n: usize) -> Self {
        let at = LINES + n * LINE;
        Self { remains, at, word: remains.long(at + INTENT) }
    }

    /// It is about the ring there.
    pub fn is_of(&self, base: u64, len: u32, kind: u32) -> bool {
        let extent = u64::from(len) | u64::from(kind) << 32;
        let long = |at| self.remains.long(self.at + at);
        (long(BASE), long(EXTENT)) == (base, extent)
    }

    fn range(&self) -> (u32, u32) {
        let [a0, a1, b0, b1, ..] = self.word.to_le_bytes();
        (u16::from_le_bytes([a0, a1]).into(), u16::from_le_bytes([b0, b1]).into())
    }

    /// The head, of a ring whose head no register has, if there is no intent.
    pub fn head(&self) -> u32 {
        self.range().0
    }

    /// See [`Line::sized`].
    pub fn size(&self) -> u32 {
        low32(self.word >> intent::SIZE)
    }

    /// See [`Line::wrote`].
    pub fn wrote(&self) -> bool {
        self.word & intent::WROTE != 0
    }

    /// The intent, of a ring with `size` descriptors.
    pub fn intent(&self, size: u32) -> Option<(u32, u32)> {
        let (a, b) = self.range();
        (self.word & intent::OPEN != 0 && a < size && b < size).then_some((a, b))
    }

    /// What was said before the intent, or with it.
    pub fn said(&self, with: bool) -> Said {
        let flip = with && self.word & intent::FLIP != 0;
        let [first, second] = SAID;
        let at = if (self.word & intent::SLOT != 0) == flip { first } else { second };
        [[0, 1], [2, 3]].map(|desc| desc.map(|n| self.remains.long(self.at + at + 8 * n)))
    }

    /// The rest of a frame is passed over, in front of the intent or behind it.
    pub fn is_cut(&self, behind: bool) -> bool {
        let open = self.word & intent::OPEN != 0;
        let bit = if behind || !open { intent::CUT } else { intent::WAS_CUT };
        self.word & bit != 0
    }

    /// See [`Line::keep`]: that of the intent's `n`-th descriptor.
    pub fn kept(&self, n: u32) -> u64 {
        self.remains.long(self.at + UNDO + 8 * (n % MOST) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::fixture::memory;

    /// In a ring of 72, which no power of two divides into whole intents.
    #[test]
    fn an_intent_that_wraps_has_a_word_for_each_descriptor() {
        let map = memory(HELD as u64);
        let held = Held::new(map.window(0, HELD, 8).unwrap());
        let line = Line::new(&held, 1);
        for _ in 0..2 {
            (0..MOST.into()).for_each(|n| line.keep(0x1000 + n));
            line.hand_over(60, 52);
            let mut bytes = vec![0; HELD];
            map.slice(0, HELD).unwrap().read(&mut bytes);
            let left = Left::new(Remains(&bytes), 1);
            assert_eq!(left.intent(72), Some((60, 52)));
            (0..MOST).for_each(|n| assert_eq!(left.kept(n), 0x1000 + u64::from(n), "{n}"));
        }
    }

    /// Whatever store of it a process dies before.
    #[test]
    fn parts_are_the_old_ones_or_the_new_ones() {
        let parts = |n: u8| {
            let mut parts = vec![n; 100];
            parts[12..16].copy_from_slice(&100u32.to_le_bytes());
            parts
        };
        let remains = |map: &vmlan_ram::Map| {
            let mut bytes = vec![0; HELD];
            map.slice(0, HELD).unwrap().read(&mut bytes);
            bytes
        };
        let (mut olds, mut news) = (0, 0);
        for stores in 0.. {
            let map = memory(HELD as u64);
            let held = Held::new(map.window(0, HELD, 8).unwrap());
            held.commit(&parts(1));
            held.commit(&parts(2));
            fuse::set(Some(stores));
            let lives = std::panic::catch_unwind(|| held.commit(&parts(3))).is_ok();
            fuse::set(None);
            let bytes = remains(&map);
            let found = Remains::new(&bytes).unwrap().parts().to_vec();
            (olds, news) =
                (olds + u32::from(found == parts(2)), news + u32::from(found == parts(3)));
            assert_eq!(olds + news, stores + 1, "neither, {stores} stores later");
            if lives {
                break;
            }
        }
        assert!(olds > 10 && news > 0, "{olds} and {news}");
    }
}
