//! A descriptor ring where its registers say it is. The registers are hostile memory: each pass
//! reads each once.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::Map;

use super::cause;
use super::chip::Intel;
use super::desc::{rx, tx, upper};
use super::model::Model;
use super::regs::{self, Registers};
use crate::bits::low32;
use crate::chip::csb::{Csb, CsbSide, Direction, Register};
use crate::chip::held::{Held, Left, Line, MOST, Remains, Said};
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Fault, StateError};
use crate::ring::{DescriptorRing, Descriptors, Look, Revived, SIZE, add, distance, halves};

/// The registers of a ring.
#[derive(Debug)]
pub struct Names {
    pub ring: &'static str,
    pub low: u32,
    pub high: u32,
    pub len: u32,
    pub head: u32,
    pub tail: u32,
    pub direction: Direction,
    /// The cause that says that descriptors were written back.
    pub written: u32,
    /// Which queue it is.
    pub queue: u8,
}

/// The transmit ring's.
pub static TRANSMIT: Names = Names {
    ring: "transmit",
    low: regs::TDBAL,
    high: regs::TDBAH,
    len: regs::TDLEN,
    head: regs::TDH,
    tail: regs::TDT,
    direction: Direction::Transmit,
    written: cause::TXDW,
    queue: 0,
};

/// The receive ring's.
pub static RECEIVE: Names = Names {
    ring: "receive",
    low: regs::RDBAL,
    high: regs::RDBAH,
    len: regs::RDLEN,
    head: regs::RDH,
    tail: regs::RDT,
    direction: Direction::Receive,
    written: cause::RXT0,
    queue: 0,
};

/// Bits of TDLEN and RDLEN that exist: multiples of 128 below 1 MiB (13.4.38).
const LEN: u32 = 0xf_ff80;
const INDEX: u32 = 0xffff; // Bits of the heads and tails that exist.

/// The register that is a ring's tail.
struct Tail<'r>(&'r Registers, u32);

impl Register for Tail<'_> {
    #[inline]
    fn get(&self) -> u32 {
        self.raw() & INDEX
    }
    #[inline]
    fn raw(&self) -> u32 {
        self.0.get(self.1)
    }
    #[inline]
    fn replace(&self, old: u32, new: u32) -> bool {
        self.0.replace(self.1, old, new)
    }
}

/// What the descriptors of a receive ring look like. Those of a transmit ring say themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// SDM 3.2.3.
    #[default]
    Legacy,
    /// 16 bytes with more room for status (82574L).
    Extended,
    /// 32 bytes with several buffers (82574L).
    Split(Sizes),
}

/// Bytes of the buffers of a descriptor of 32 bytes; 0: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub [u16; 4]);

impl Sizes {
    /// Of the first.
    pub fn first(self) -> usize {
        let [first, ..] = self.0;
        first.into()
    }

    /// Of all together.
    pub fn sum(self) -> usize {
        self.0.iter().map(|size| usize::from(*size)).sum()
    }
}

impl Format {
    /// Heads and tails count units of 16 bytes: units of a descriptor, as a shift.
    #[inline]
    fn shift(self) -> u32 {
        u32::from(matches!(self, Self::Split(_)))
    }
}

/// As a number.
fn kind(format: Format) -> u32 {
    match format {
        Format::Legacy => 0,
        Format::Extended => 1,
        Format::Split(_) => 2,
    }
}

/// One side's ring.
pub struct Ring<M> {
    names: &'static Names,
    /// Where it is.
    pub memory: Descriptors,
    /// The head as last published; `None`: take over what the register says.
    head: Option<u32>,
    fault: Option<Fault>,
    /// Where the guest publishes its tail, if not in the register.
    pub csb: CsbSide,
    /// The head as the CSB has it. Unlike `head` it outlives a ring that is nowhere for a while.
    told: Option<u32>,
    /// Descriptors were written back since the ring was last stopped.
    wrote: bool,
    /// What its descriptors look like, as of the last look.
    pub format: Format,
    /// Lengths that a descriptor in the making has so far: it is written back whole.
    pub lengths: Cell<[u16; 4]>,
    /// Where it outlives the process.
    pub line: Option<Line>,
    /// What transmit descriptors before the head have said, if it does: the two contexts.
    pub said: Said,
    /// Transmit descriptors with a mark, and what the mark's doubleword becomes.
    pub marked: Vec<(u32, u32)>,
    /// The head will be within a frame that is passed over.
    pub cut: bool,
    _model: PhantomData<fn() -> M>,
}

impl<M: Model> Ring<M> {
    /// A ring that is nowhere.
    pub fn new(names: &'static Names) -> Self {
        Self {
            names,
            memory: Descriptors::default(),
            head: None,
            fault: None,
            csb: CsbSide::new(names.direction),
            told: None,
            wrote: false,
            format: Format::Legacy,
            lengths: Cell::default(),
            line: None,
            said: Said::default(),
            marked: Vec::new(),
            cut: false,
            _model: PhantomData,
        }
    }

    /// The cause that says that descriptors were written back.
    #[inline]
    pub fn written(&self) -> u32 {
        self.names.written
    }

    /// Which queue it is.
    pub fn queue(&self) -> u8 {
        self.names.queue
    }

    #[inline]
    fn check(&mut self, same: bool, base: u64, len: u32, index: u32) -> Result<(), Fault> {
        if !same {
            self.head = None;
        }
        let found = self.memory.find(base, len);
        let (ring, size) = (self.names.ring, len >> 4 >> self.format.shift());
        if size == 0 {
            return Ok(());
        }
        if !found {
            return Err(Fault::BadRing { ring, base, len });
        }
        if index >= size { Err(Fault::BadIndex { ring, size, index }) } else { Ok(()) }
    }

    /// Publishes the head, after all write-backs.
    #[inline]
    pub fn publish(&mut self, regs: &Registers, head: u32) {
        (self.head, self.told, self.wrote) = (Some(head), Some(head), true);
        regs.set(self.names.head, head << self.format.shift());
        if let Some(line) = &mut self.line {
            line.wrote(true);
            line.close();
        }
        self.csb.publish(head);
    }

    /// The number of its line.
    fn number(&self) -> usize {
        usize::from(self.names.queue) * 2 + usize::from(self.names.direction == Direction::Receive)
    }

    /// Where a receive descriptor has its status, and in which word what it had before is.
    fn status(&self) -> usize {
        if self.format == Format::Legacy { 12 } else { 8 }
    }

    /// The first of `a..b` that was not handed over. What is there and behind is made empty again.
    fn empty(&self, left: &Left<'_>, (a, b): (u32, u32), size: u32) -> u32 {
        let count = distance(a, b, size).min(MOST);
        let at = |n| add(a, n, size);
        let first = (0..count).find(|n| self.is_marked(at(*n))).unwrap_or(count);
        for (n, index) in (first..count).map(|n| (n, at(n))) {
            if self.format == Format::Extended {
                self.memory.set_u64(index, 0, left.kept(n));
            }
            self.memory.set_u32(index, self.status(), 0);
        }
        at(first)
    }

    /// A receive descriptor has a mark, and was not handed over.
    fn is_marked(&self, index: u32) -> bool {
        let (_, word) = self.memory.read(index);
        let status = if self.format == Format::Legacy { upper(word) } else { low32(word) };
        status & (rx::MARK | 1) == rx::MARK
    }

    /// Frames of `a..b` were sent: what was not yet said of them is.
    fn report(&self, (a, b): (u32, u32), size: u32) {
        for index in (0..distance(a, b, size)).map(|n| add(a, n, size)) {
            let (_, word) = self.memory.read(index);
            let status = upper(word);
            if word & (tx::RS | tx::RPS) != 0 && status & (tx::MARK | tx::DD) == tx::MARK {
                self.memory.set_u32(index, 12, status & !tx::STA | tx::DD);
            }
        }
    }
}

impl<M: Model> DescriptorRing for Ring<M> {
    type Chip = Intel<M>;

    #[inline]
    fn map(&self) -> &Arc<Map> {
        self.memory.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.memory.set_map(map)
    }

    #[inline]
    fn csb(&mut self) -> &mut CsbSide {
        &mut self.csb
    }

    #[inline]
    fn look(&mut self, chip: &Intel<M>) -> Result<Look, Fault> {
        let regs = &chip.regs;
        let base = regs.base(self.names.low, self.names.high);
        let len = regs.get(self.names.len) & LEN;
        let format = match self.names.direction {
            Direction::Transmit => Format::Legacy,
            Direction::Receive => M::format(regs),
        };
        let shift = format.shift();
        let same = self.memory.is_at(base, len) && shift == self.format.shift();
        self.format = format;
        let head = (regs.get(self.names.head) & INDEX) >> shift;
        let moved = !same || self.head != Some(head);
        let size = len >> 4 >> shift;
        let register = Tail(regs, self.names.tail);
        // The ring that what is noted of the CSB is about has to be noted first.
        if let Some(line) = &mut self.line {
            if !same {
                self.csb.doubt();
            }
            line.place(base, len, kind(format));
        }
        let tail = match self.csb.is_placed() {
            false => register.get() >> shift,
            true => {
                let moved = !same || self.told.is_some_and(|told| told != head);
                self.csb.tail(&register, size, moved)
            }
        };
        let result = self.check(same, base, len, head.max(tail));
        self.fault = result.err();
        result?;
        self.head = Some(head);
        if self.told.replace(head) != Some(head) {
            self.csb.publish(head);
        }
        Ok(Look { size, head, tail, moved })
    }

    fn fault(&self) -> Option<Fault> {
        self.fault.or(self.map().poisoned().then_some(Fault::Truncated))
    }

    fn forget(&mut self, chip: &Intel<M>) {
        (self.head, self.fault, self.told, self.wrote) = (None, None, None, false);
        self.csb.restart();
        if let Some(line) = &mut self.line {
            line.wrote(false);
            line.forget();
        }
        self.publish_again(chip);
    }

    fn note_said(&mut self, cut: bool) {
        if let Some(line) = &mut self.line {
            line.say(&self.said, cut);
        }
    }

    fn forget_said(&mut self) {
        self.said = Said::default();
        self.note_said(false);
    }

    fn cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.line = Some(Line::new(held, self.number()));
        self.csb.hold(held);
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.line.is_some() && !matches!(self.format, Format::Split(_))
    }

    fn mark(&self, number: u32) {
        if self.format == Format::Extended
            && let Some(line) = &self.line
        {
            line.keep(self.memory.first(number, Ordering::Relaxed));
        }
        self.memory.set_u32(number, self.status(), rx::MARK);
    }

    fn hand_over(&self, a: u32, b: u32) {
        self.line.iter().for_each(|line| line.hand_over(a, b));
    }

    fn revive(
        &mut self,
        chip: &Intel<M>,
        remains: &Remains<'_>,
    ) -> Result<Option<Revived>, StateError> {
        let (regs, left) = (&chip.regs, Left::new(*remains, self.number()));
        let receives = self.names.direction == Direction::Receive;
        let base = regs.base(self.names.low, self.names.high);
        let len = regs.get(self.names.len) & LEN;
        if receives {
            self.format = M::format(regs);
        }
        let (size, there) = (len >> 4, self.memory.find(base, len));
        let same = there && left.is_of(base, len, kind(self.format));
        let intent = left.intent(size).filter(|_| same);
        let mut head = regs.get(self.names.head) & INDEX;
        match intent {
            Some((a, b)) if receives => head = self.empty(&left, (a, b), size),
            Some((a, b)) => {
                self.report((a, b), size);
                head = b;
            }
            None => {}
        }
        if receives && same && head < size {
            // Marks of an intent that was not stated yet.
            let next = (0..MOST).map(|n| add(head, n, size));
            let marked = next.take_while(|index| self.is_marked(*index));
            marked.for_each(|index| self.memory.set_u32(index, self.status(), 0));
        }
        regs.set(self.names.head, head);
        self.csb.revive(remains, same);
        self.wrote = same && (left.wrote() || intent.is_some_and(|(first, _)| first != head));
        self.said = left.said(intent.is_some());
        let cut = same && left.is_cut(intent.is_some());
        if let Some(line) = &mut self.line {
            if same {
                line.place(base, len, kind(self.format));
            }
            line.wrote(self.wrote);
            line.say(&self.said, cut);
        }
        self.head = Some(head);
        Ok(Some(Revived { head, said: self.said, cut }))
    }

    fn publish_again(&self, chip: &Intel<M>) {
        self.csb.publish(chip.regs.get(self.names.head) & INDEX);
    }

    fn replace_csb(&mut self, chip: &Intel<M>, csb: Option<Arc<Csb>>, on: bool) {
        self.csb.replace(csb, on);
        if on {
            self.publish_again(chip);
        } else {
            self.told = None;
        }
    }

    fn fields(&mut self, io: &mut Fields<'_>) {
        // The model derives the format; no descriptor is in the making.
        #[rustfmt::skip]
        let Self {
            names: _, memory, head, fault, csb, told, wrote, format: _, lengths: _, line,
            said, marked: _, cut: _, _model: _,
        } = self;
        memory.fields(io);
        [head, told].into_iter().for_each(|index| io.option(index, Fields::u32));
        io.flag(wrote);
        csb.fields(io);
        // Before that a kill after the hand-over lost it; and receive rings have none.
        if io.since(2) {
            said.as_flattened_mut().iter_mut().for_each(|word| io.u64(word));
        }
        if io.restores() {
            // The next look finds out.
            *fault = None;
            if let Some(line) = line {
                let (base, len) = memory.place();
                line.place(base, len, kind(Format::Legacy));
                line.wrote(*wrote);
                line.say(said, false);
            }
        }
    }

    fn extent(&self) -> Option<(u32, u32)> {
        self.head.map(|head| (head, self.memory.size()))
    }

    /// If the CSB was turned on when nobody waited for room, the guest may have given back all that
    /// was taken by its word alone, before it was first looked at: nothing would move the word
    /// again. The proof is in the last descriptor that the word claims: we had set DD there, and
    /// the guest clears it when it gives the buffer back, in order.
    #[cold]
    fn reconsider(&mut self, look: Look) {
        let Look { size, head, tail, .. } = look;
        let Some(word) = self.csb.doubted().filter(|word| *word < size && self.wrote) else {
            return;
        };
        // The descriptor at the register's tail was never ours.
        let more = distance(head, word, size) > distance(head, tail, size) + 1;
        let last = if word == 0 { size - 1 } else { word - 1 };
        if more && self.memory.read(last).1 & rx::DD == 0 {
            self.csb.believe_word();
        }
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        self.memory.read(index)
    }

    #[inline]
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        self.memory.copy(index, out);
    }

    #[inline]
    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        halves(desc)
    }
}
