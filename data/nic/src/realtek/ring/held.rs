//! What of a ring outlives its process: see [`crate::chip::held`].

use std::sync::atomic::Ordering;

use super::{Place, Ring};
use crate::chip::StateError;
use crate::chip::held::{Left, MOST, Remains, Said};
use crate::realtek::cplus::{Cplus, Which};
use crate::realtek::desc::{EOR, FS, LS, MARK, OWN, join, split, tx};
use crate::ring::{Look, Revived, add, distance};

impl<C: Cplus> Ring<C> {
    /// Notes where it is, and its head. Where the place is not that of the registers, the ring is
    /// new: its head is 0. So that has to be there first.
    pub fn note_place(&mut self, cut: bool) {
        let (size, head, Place { base, rewinds }) = (self.said_size(), self.head, self.place);
        if let Some(line) = &mut self.line {
            line.place(0, 0, 0);
            line.sized(size);
            line.begin_at(head, cut);
            line.place(base, 0, rewinds);
        }
    }

    /// What its line says: 1 of a single descriptor.
    pub fn said_size(&self) -> u32 {
        if self.single { 1 } else { self.size }
    }

    /// The number of its line.
    pub fn number(&self) -> usize {
        match self.which {
            Which::Normal => 0,
            Which::Receive => 1,
            Which::High => 2,
        }
    }

    /// Gives back what was sent, so that the next process can tell how far that has come.
    #[inline(never)]
    pub fn give_sent(&mut self, Look { head, size, .. }: Look, to: u32) {
        let all = (0..distance(head, to, size)).map(|n| add(head, n, size));
        all.clone().for_each(|index| self.set_mark(index, self.word(index)));
        if let Some(line) = &mut self.line {
            line.open((head, to), None, self.cut);
        }
        all.for_each(|index| self.sent(index, self.word(index)));
    }

    /// opts1 and opts2.
    pub fn word(&self, index: u32) -> u64 {
        self.descriptors.first(self.index(index), Ordering::Relaxed)
    }

    /// It is about to be handed over.
    pub fn set_mark(&self, index: u32, word: u64) {
        self.descriptors.set_u32(self.index(index), 4, split(word).1 | MARK);
    }

    /// It is ours, with a mark.
    fn is_marked(word: u64) -> bool {
        let (opts1, opts2) = split(word);
        opts1 & OWN != 0 && opts2 & MARK != 0
    }

    /// What is not status stays. The mark goes with OWN.
    fn sent(&self, index: u32, word: u64) {
        let (opts1, opts2) = split(word);
        self.give(index, join(opts1 & (EOR | FS | LS | tx::LEN), opts2 & !MARK));
    }

    /// The first of `a..b` that was not handed over. What is there and behind is made empty again.
    fn empty(&self, left: &Left<'_>, (a, b): (u32, u32)) -> u32 {
        let count = distance(a, b, self.size).min(MOST);
        let at = |n| add(a, n, self.size);
        let first = (0..count).find(|n| Self::is_marked(self.word(at(*n)))).unwrap_or(count);
        for n in first..count {
            let (opts1, opts2) = split(left.kept(n));
            self.give(at(n), join(opts1 | OWN, opts2 & !MARK));
        }
        at(first)
    }

    /// Goes on from what a process has left.
    pub fn go_on(&mut self, chip: &C, remains: &Remains<'_>) -> Result<Revived, StateError> {
        let left = Left::new(*remains, self.number());
        self.go(chip.place(self.which));
        let Place { base, rewinds } = self.place;
        let within = if base == 0 { 0 } else { self.find() };
        let mut cut = false;
        if base != 0 && left.is_of(base, 0, rewinds) {
            self.single = left.size() == 1;
            self.size = if self.single { 2 } else { left.size() };
            let intent = left.intent(self.size);
            let (first, end) = intent.unwrap_or((left.head(), left.head()));
            // All that the intent is about lies in memory.
            let last = if self.single || first.max(end) == 0 { 0 } else { first.max(end) - 1 };
            let fits = (2..=C::MOST).contains(&self.size) && first.max(end) < self.size;
            if !fits || intent.is_some() && (last >= within || end < first && self.size > within) {
                return Err(StateError::Lost("a ring's head is not in the ring"));
            }
            self.head = match intent {
                Some(range) if self.which == Which::Receive => self.empty(&left, range),
                Some(_) => {
                    let all =
                        (0..distance(first, end, self.size)).map(|n| add(first, n, self.size));
                    let words = all.map(|index| (index, self.word(index)));
                    let marked = words.filter(|(_, word)| Self::is_marked(*word));
                    marked.for_each(|(index, word)| self.sent(index, word));
                    end
                }
                None => first,
            };
            cut = left.is_cut(intent.is_some());
        }
        self.doubt();
        self.moved = false;
        // Its descriptors say all.
        self.csb.revive(remains, false);
        self.note_place(cut);
        Ok(Revived { head: self.head, said: Said::default(), cut })
    }
}
