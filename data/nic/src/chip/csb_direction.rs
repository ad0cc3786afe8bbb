//! One side's part of the CSB: whose tail counts, and which wishes stand. The rules are in
//! `csb.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::csb::Csb;
use super::held::{Held, Remains};
use super::state::{Fields, Stateful};
use crate::bits::low32;
use crate::notify::csb::{self, CsbFields};
use crate::ring::distance;

/// Times that a tail is looked at again because a register write raced with it.
const TRIES: usize = 8;

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Transmit,
    Receive,
}

/// A ring's tail as a register: TDT, RDT. Rings whose descriptors say who owns them have no tail:
/// [`CsbSide::notice`].
pub trait Register {
    fn get(&self) -> u32;
    /// Its value, bits that do not exist included: they may be memory.
    fn raw(&self) -> u32;
    /// Replaces its value if it is still `old`; false: somebody has written it since.
    fn replace(&self, old: u32, new: u32) -> bool;
}

/// Where the tail is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Register,
    /// In the register, until the word in the CSB differs from this.
    Stale(u32),
    Csb,
}

/// What one side of the chip has of the CSB.
#[derive(Debug)]
pub struct CsbSide {
    direction: Direction,
    csb: Option<Arc<Csb>>,
    tail: Tail,
    /// The tail as last read in the CSB.
    last: u32,
    /// The wish for a kick stands.
    asked: bool,
    /// The worker is awake.
    awake: bool,
    /// The guest has turned the CSB off.
    off: bool,
    /// Where the tail and `last` outlive the process, as they were noted there.
    held: Option<Arc<Held>>,
    noted: u64,
}

impl CsbSide {
    pub fn new(direction: Direction) -> Self {
        let tail = Tail::Register;
        let (csb, last, asked, awake, off) = (None, 0, false, false, false);
        let (held, noted) = (None, 0);
        Self { direction, csb, tail, last, asked, awake, off, held, noted }
    }

    /// There is a CSB.
    #[inline]
    pub fn is_placed(&self) -> bool {
        self.csb.is_some()
    }

    /// A new CSB, or none. The host's words in it are those of a chip that sleeps and waits for
    /// nothing.
    pub fn place(&mut self, csb: Option<Arc<Csb>>) {
        self.csb = csb;
        self.restart();
        if self.direction == Direction::Receive {
            self.asked = true;
            self.content();
        }
    }

    /// The same CSB, in a new map. If it was away, what the guest did meanwhile is found when it is
    /// back. `on`: this side is on, so the CSB still belongs to its driver.
    pub fn replace(&mut self, csb: Option<Arc<Csb>>, on: bool) {
        self.csb = csb;
        if !on {
            self.tail = Tail::Register;
            self.note();
        }
        if self.direction == Direction::Transmit {
            self.asked = true;
            if let Some(csb) = self.csb.as_ref().filter(|_| on) {
                csb.set_host_need_txkick(1);
            }
        }
    }

    /// The ring was stopped or moved: the word in the CSB may be stale.
    pub fn restart(&mut self) {
        let csb = self.csb.take();
        self.believe_register(csb.as_deref());
        self.csb = csb;
        self.note();
    }

    /// The same, in a look, which finds the tail after this.
    pub fn doubt(&mut self) {
        if self.tail != Tail::Register {
            self.restart();
        }
    }

    /// As long as the register counts the guest must write it, so the wish for kicks stands.
    fn believe_register(&mut self, csb: Option<&Csb>) {
        self.tail = Tail::Register;
        if self.direction == Direction::Transmit {
            self.asked = true;
            if let Some(csb) = csb {
                csb.set_host_need_txkick(1);
            }
        }
    }

    /// The word in the CSB, if it is not believed because the register says otherwise.
    pub fn doubted(&self) -> Option<u32> {
        let Tail::Stale(word) = self.tail else { return None };
        self.csb.as_ref().filter(|csb| csb.is_on()).map(|_| word)
    }

    /// There is proof that the word is of now.
    pub fn believe_word(&mut self) {
        self.tail = Tail::Csb;
    }

    /// The worker is awake, and looks by itself.
    #[inline]
    pub fn wake(&mut self) {
        self.awake = true;
    }

    /// It is not, or soon will not be: the caller states the wish in the CSB that this returns.
    /// `wishes`: counts them.
    pub fn ask(&mut self, wishes: &AtomicU64) -> Option<Arc<Csb>> {
        self.awake = false;
        let csb = self.csb.as_ref()?;
        if self.tail == Tail::Csb {
            wishes.fetch_add(1, Ordering::Relaxed);
        }
        self.asked = true;
        Some(Arc::clone(csb))
    }

    /// Takes the wish for room back, if one stands.
    #[inline]
    pub fn content(&mut self) {
        if std::mem::take(&mut self.asked)
            && let Some(csb) = &self.csb
        {
            csb::disarm_room(&**csb);
        }
    }

    /// True once after the guest has turned the CSB off.
    #[inline]
    pub fn take_off(&mut self) -> bool {
        std::mem::take(&mut self.off)
    }

    #[inline]
    fn word(&self, csb: &Csb) -> u32 {
        match self.direction {
            Direction::Transmit => csb.guest_tdt(),
            Direction::Receive => csb.guest_rdt(),
        }
    }

    /// The tail of a ring of `size`, not checked. `moved`: what is known of the ring is void.
    #[inline]
    pub fn tail(&mut self, register: &impl Register, size: u32, moved: bool) -> u32 {
        let Some(csb) = self.csb.take() else { return register.get() };
        if moved && self.tail != Tail::Register {
            self.believe_register(Some(&csb));
        }
        let tail = if csb.is_on() {
            self.tail_while_on(&csb, register, size)
        } else {
            self.leave(&csb, register, size)
        };
        self.note();
        // Not before it is noted that kicks are not needed.
        if self.tail == Tail::Csb {
            self.disarm(&csb);
        }
        self.csb = Some(csb);
        tail
    }

    /// For rings whose descriptors say who owns them: there is no tail to choose, only the CSB to
    /// notice.
    #[inline]
    pub fn notice(&mut self) {
        let Some(csb) = self.csb.take() else { return };
        if csb.is_on() {
            self.tail = Tail::Csb;
            self.disarm(&csb);
        } else if self.tail != Tail::Register {
            self.off = true;
            self.believe_register(Some(&csb));
        }
        self.csb = Some(csb);
    }

    /// For the same: the tail in the CSB, neither checked nor believed. `None`: look at the
    /// descriptors themselves, since there is no CSB, or somebody is about to wait for the guest.
    #[inline]
    pub fn hint(&self) -> Option<u32> {
        let waits = match self.direction {
            Direction::Transmit => !self.awake,
            Direction::Receive => self.asked,
        };
        let csb = self.csb.as_ref().filter(|_| self.tail == Tail::Csb && !waits)?;
        Some(self.word(csb))
    }

    /// The worker is awake, and looks at the tail by itself: kicks are not needed.
    #[inline]
    fn disarm(&mut self, csb: &Csb) {
        if self.asked && self.awake && self.direction == Direction::Transmit {
            self.asked = false;
            csb::disarm_transmit(csb);
        }
    }

    #[inline]
    fn tail_while_on(&mut self, csb: &Csb, register: &impl Register, size: u32) -> u32 {
        let word = self.word(csb);
        match self.tail {
            Tail::Csb => {}
            Tail::Stale(old) if word == old => return register.get(),
            Tail::Register if word != register.get() => {
                self.tail = Tail::Stale(word);
                return register.get();
            }
            Tail::Stale(_) | Tail::Register => self.tail = Tail::Csb,
        }
        self.follow(csb, register, size)
    }

    /// The tail in the CSB, and the register brought in line with it.
    fn follow(&mut self, csb: &Csb, register: &impl Register, size: u32) -> u32 {
        let mut word = self.word(csb);
        for _ in 0..TRIES {
            let known = register.raw();
            // Once the CSB is off the register has what the guest has written there since.
            if word >= size || known == word || !csb.is_on() {
                break;
            }
            // Noted first: without the word, a kick from before it would be the tail.
            self.last = word;
            self.note();
            if register.replace(known, word) {
                break;
            }
            // A kick has arrived: the word may have moved on before it.
            word = self.word(csb);
        }
        self.last = word;
        word
    }

    /// The tail while the CSB is off; when it has just been turned off, the later of the register
    /// and the CSB's word.
    fn leave(&mut self, csb: &Csb, register: &impl Register, size: u32) -> u32 {
        if self.tail == Tail::Register {
            return register.get();
        }
        self.off = true;
        let believed = self.tail == Tail::Csb;
        self.believe_register(Some(csb));
        let last = self.last;
        let word = csb::leave(csb, || self.word(csb)).filter(|word| *word < size);
        let Some(word) = word.filter(|_| believed && last < size) else {
            return register.get();
        };
        for _ in 0..TRIES {
            let known = register.raw();
            let (later, ahead) = (distance(last, known % size, size), distance(last, word, size));
            // One far ahead is a kick that was long on its way. But there are drivers that refill
            // most of a ring by the register alone, as soon as the CSB is off, and that never write
            // it again if they get no frames.
            let near = later <= size / 2 || ahead == 0 && self.direction == Direction::Receive;
            if known == word || later > ahead && near {
                return known;
            }
            if register.replace(known, word) {
                return word;
            }
        }
        register.get()
    }

    /// Publishes the head, after all write-backs. The fence is for whoever posts a cause now.
    #[inline]
    pub fn publish(&self, head: u32) {
        let Some(csb) = &self.csb else { return };
        let _wished = match self.direction {
            Direction::Transmit => csb::publish_sent(&**csb, head),
            Direction::Receive => csb::publish_received(&**csb, head),
        };
    }
}

impl CsbSide {
    /// The CSB of a chip that goes on from a state: it is told nothing.
    pub fn adopt(&mut self, csb: Option<Arc<Csb>>) {
        self.csb = csb;
    }

    /// What is known of the tail outlives the process there.
    pub fn hold(&mut self, held: &Arc<Held>) {
        self.held = Some(Arc::clone(held));
    }

    /// The tail has changed, or what follows from it.
    #[inline]
    fn note(&mut self) {
        let Some(held) = &self.held else { return };
        let (kind, word) = self.tail.parts();
        let word = if self.tail == Tail::Csb { self.last } else { word };
        let word = u64::from(kind) << 32 | u64::from(word);
        if self.noted != word {
            self.noted = word;
            held.set_csb_side(self.direction == Direction::Receive, word);
        }
    }

    /// Goes on from what a process has left. `same`: of this ring. Nobody knows which wishes stand.
    pub fn revive(&mut self, remains: &Remains<'_>, same: bool) {
        let word = remains.csb_side(self.direction == Direction::Receive);
        let tail = Tail::of(low32(word >> 32), low32(word)).filter(|_| same);
        (self.tail, self.last) = (tail.unwrap_or(Tail::Register), low32(word));
        self.asked = true;
        self.note();
    }
}

impl Stateful for CsbSide {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { direction: _, csb: _, tail, last, asked, awake, off, held: _, noted: _ } = self;
        tail.fields(io);
        io.u32(last);
        [asked, awake, off].into_iter().for_each(|flag| io.flag(flag));
        if io.restores() {
            self.note();
        }
    }
}

impl Tail {
    /// As numbers.
    fn parts(self) -> (u8, u32) {
        match self {
            Self::Register => (0, 0),
            Self::Stale(word) => (1, word),
            Self::Csb => (2, 0),
        }
    }

    fn of(kind: u32, word: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::Register),
            1 => Some(Self::Stale(word)),
            2 => Some(Self::Csb),
            _ => None,
        }
    }
}

impl Stateful for Tail {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let (mut kind, mut word) = self.parts();
        io.u8(&mut kind);
        io.u32(&mut word);
        let tail = Self::of(kind.into(), word).filter(|_| kind == 1 || word == 0);
        io.check(tail.is_some());
        *self = tail.unwrap_or(Self::Register);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::chip::fixture::memory;
    use crate::chip::held::HELD;
    use crate::chip::held_judge::words::{CSB_ON, GUEST_TDT};

    /// What else happens to a register.
    type Meanwhile<'t> = &'t dyn Fn(&Cell<u32>);

    /// A register of which much happens while it is looked at: at the first look, at the second,
    /// and before it is replaced.
    struct Busy<'t> {
        value: Cell<u32>,
        meanwhile: [Meanwhile<'t>; 3],
    }

    impl Register for Busy<'_> {
        fn get(&self) -> u32 {
            let value = self.value.get();
            self.meanwhile[0](&self.value);
            value
        }
        fn raw(&self) -> u32 {
            self.meanwhile[1](&self.value);
            self.value.get()
        }
        fn replace(&self, old: u32, new: u32) -> bool {
            self.meanwhile[2](&self.value);
            let same = self.value.get() == old;
            self.value.set(if same { new } else { self.value.get() });
            same
        }
    }

    /// A side whose CSB is on, with the words of that, and what is noted of the side.
    fn side() -> (CsbSide, impl Fn(u64, u32), impl Fn() -> u32) {
        let (map, outlives) = (memory(0x1000), memory(HELD as u64));
        let mut side = CsbSide::new(Direction::Transmit);
        side.hold(&Held::new(outlives.window(0, HELD, 8).unwrap()));
        side.place(Some(Csb::find(&map, 0, &Arc::default()).unwrap()));
        let put =
            move |at, value| map.window(at, 4, 4).unwrap().set_u32(0, value, Ordering::SeqCst);
        put(CSB_ON, 1);
        let noted = outlives.window(36, 4, 4).unwrap();
        (side, put, move || noted.u32(0, Ordering::SeqCst))
    }

    /// It may die there, and a kick that is older than the word may come then.
    #[test]
    fn that_a_word_is_believed_is_noted_before_the_register_follows() {
        let (mut side, put, noted) = side();
        let publishes = |_: &Cell<u32>| put(GUEST_TDT, 2);
        let is_noted = |_: &Cell<u32>| assert_eq!(noted(), 2);
        let meanwhile: [Meanwhile<'_>; 3] = [&publishes, &|_| (), &is_noted];
        let register = Busy { value: Cell::new(0), meanwhile };
        assert_eq!(side.tail(&register, 32, false), 2);
        assert_eq!(register.value.get(), 2);
    }

    /// The guest turns the CSB off, and writes the register, after the device has seen it on.
    #[test]
    fn a_register_that_counts_again_is_not_overwritten() {
        let (mut side, put, _) = side();
        let publishes = |_: &Cell<u32>| put(GUEST_TDT, 2);
        let turns_off = |value: &Cell<u32>| {
            put(CSB_ON, 0);
            value.set(3);
        };
        let meanwhile: [Meanwhile<'_>; 3] = [&publishes, &turns_off, &|_| ()];
        let mut register = Busy { value: Cell::new(0), meanwhile };
        side.tail(&register, 32, false);
        assert_eq!(register.value.get(), 3);
        register.meanwhile = [&|_| (); 3];
        assert_eq!(side.tail(&register, 32, false), 3);
    }
}
