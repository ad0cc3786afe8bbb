//! The shared status block ("CSB", communication status block: L. Rizzo, G. Lettieri, V. Maffione,
//! *Speeding up packet I/O in virtual machines*, ANCS 2013; FreeBSD 10's `if_lem`): 104 bytes of
//! the guest's memory, by which driver and chip tell each other of their indexes while both are
//! awake, so that neither a register access nor an interrupt is needed.
//!
//! ```text
//!  0x00  guest_tdt            0x40  host_tdh
//!  0x04  guest_need_txkick    0x44  host_need_txkick
//!  0x08  guest_need_rxkick    0x50  host_rdh
//!  0x0c  guest_csb_on         0x54  host_need_rxkick
//!  0x10  guest_rdt            0x5c  host_rxkick_at      all: 32 bits, little-endian
//! ```
//!
//! The guest finds subsystem 1101h, writes CSBAH, then CSBAL: the CSB is placed there (0:
//! released). It counts from when the guest sets `guest_csb_on`, and as long as that is not 0. All
//! of it, with its races, is in `docs/csb.md`.
//!
//! - The tails are `guest_tdt` and `guest_rdt`, checked like the registers. The registers follow
//!   them, so that turning the CSB off in mid-traffic changes nothing; a write of TDT, RDT or TCTL
//!   is a kick, whatever it writes.
//! - Realtek's rings have no tail: their descriptors say who owns them, and that is believed, CSB
//!   or not. Whoever is awake looks at them when the CSB's tail has moved, otherwise now and then,
//!   and before going to sleep: see [`CsbSide::hint`].
//! - The heads are told in `host_tdh` and `host_rdh`, after the descriptors are written back.
//! - The wishes of both sides: `notify/csb.rs`. What the guest wishes decides when INTA# may rise:
//!   [`Csb::judge`].
//!
//! # Whom to believe
//!
//! When the CSB is turned on, and after the ring was stopped or moved, an index in it may be of
//! long ago (FreeBSD 10.4 sets neither when its interface goes up). If it differs from the
//! register, the register counts until the word in the CSB changes. The guest is not told that we
//! are awake before then, so that it goes on to write TDT. Where the register leaves too few
//! buffers, the descriptors say whether the word is of now: `e1000::ring::Ring::reconsider`.
//!
//! While a side is stopped, or may not use the guest's memory, nothing is stored in the CSB: see
//! `Transmitter::arm`.
//!
//! When the CSB is turned off, the guest may have published frames that no register knows of, or
//! written the register since. The later of both counts: see [`CsbSide::leave`]. Drivers with
//! posted register writes should read a register before they turn the CSB off, lest an old kick
//! arrive after that.
//!
//! # Interrupts that need no register access
//!
//! `guest_use_msix` is 1 when the CSB is placed, and the guest has MSI on: causes about frames are
//! taken out of ICR as their message is sent, so that the handler need not read it. The authors did
//! this with a vector of MSI-X of its own, which this chip has not; here it is the one message of
//! MSI. A driver that asks for it must not enable other causes, or look at ICR now and then.
//!
//! # What there is not
//!
//! MSI-X, the ring of virtio-net headers, `host_txcycles_lim` (the worker has its own ways of
//! waiting), `guest_txkick_at` and `host_isr`: not read, not written. Nothing is written from 0x68
//! on, which some drivers use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmlan_ram::{Map, Window};

use super::irq::Kinds;
use super::{CsbFault, Fault};
use crate::notify::Guard;
use crate::notify::csb::{self, CsbFields};
use crate::ring::distance;

/// Bytes that the two sides use of the 4096 that the guest allocates.
const LEN: usize = 0x68;
/// Each side writes cache lines of its own. Drivers align to 128 bytes at least.
const ALIGN: u64 = 64;

const GUEST_TDT: usize = 0x00;
const GUEST_NEED_TXKICK: usize = 0x04;
const GUEST_NEED_RXKICK: usize = 0x08;
const GUEST_CSB_ON: usize = 0x0c;
const GUEST_RDT: usize = 0x10;
const GUEST_USE_MSIX: usize = 0x18;
const HOST_TDH: usize = 0x40;
const HOST_NEED_TXKICK: usize = 0x44;
const HOST_RDH: usize = 0x50;
const HOST_NEED_RXKICK: usize = 0x54;
const HOST_RXKICK_AT: usize = 0x5c;

/// Times that a tail is looked at again because a register write raced with it.
const TRIES: usize = 8;

/// The CSB. Every word that the guest writes is read once for each decision, and not believed.
#[derive(Debug)]
pub struct Csb {
    words: Window,
    /// `guest_use_msix`, as it was when the CSB was placed: exactly 1, for there are drivers that
    /// leave garbage there.
    by_message: bool,
    /// What `guest_csb_on` said last, for those who must not wait for the guest's memory.
    on: Arc<AtomicBool>,
}

impl Guard for Csb {}

impl CsbFields for Csb {
    #[inline]
    fn guest_tdt(&self) -> u32 {
        self.words.u32(GUEST_TDT, Ordering::Acquire)
    }
    #[inline]
    fn guest_rdt(&self) -> u32 {
        self.words.u32(GUEST_RDT, Ordering::Acquire)
    }
    #[inline]
    fn guest_need_txkick(&self) -> u32 {
        self.words.u32(GUEST_NEED_TXKICK, Ordering::Relaxed)
    }
    #[inline]
    fn guest_need_rxkick(&self) -> u32 {
        self.words.u32(GUEST_NEED_RXKICK, Ordering::Relaxed)
    }
    #[inline]
    fn guest_csb_on(&self) -> u32 {
        self.words.u32(GUEST_CSB_ON, Ordering::Acquire)
    }
    #[inline]
    fn set_host_tdh(&self, index: u32) {
        self.words.set_u32(HOST_TDH, index, Ordering::Release);
    }
    #[inline]
    fn set_host_rdh(&self, index: u32) {
        self.words.set_u32(HOST_RDH, index, Ordering::Release);
    }
    #[inline]
    fn set_host_need_txkick(&self, wish: u32) {
        self.words.set_u32(HOST_NEED_TXKICK, wish, Ordering::Relaxed);
    }
    #[inline]
    fn set_host_need_rxkick(&self, wish: u32) {
        self.words.set_u32(HOST_NEED_RXKICK, wish, Ordering::Relaxed);
    }
    #[inline]
    fn set_host_rxkick_at(&self, index: u32) {
        self.words.set_u32(HOST_RXKICK_AT, index, Ordering::Relaxed);
    }
}

/// What the CSB says about an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has no say.
    Pass,
    /// The guest wants this one.
    Wished,
    /// The guest looks by itself: not now.
    Shut,
}

impl Csb {
    /// The CSB at `address`, all of it in one region of memory.
    pub(super) fn find(
        map: &Arc<Map>,
        address: u64,
        on: &Arc<AtomicBool>,
    ) -> Result<Arc<Self>, CsbFault> {
        if !address.is_multiple_of(ALIGN) {
            return Err(CsbFault::Unaligned);
        }
        let words = map.window(address, LEN, 4).ok_or(CsbFault::Outside)?;
        let by_message = words.u32(GUEST_USE_MSIX, Ordering::Relaxed) == 1;
        Ok(Arc::new(Self { words, by_message, on: Arc::clone(on) }))
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        let on = self.guest_csb_on() != 0;
        if self.on.load(Ordering::Relaxed) != on {
            self.on.store(on, Ordering::Relaxed);
        }
        on
    }

    /// The driver does not look at ICR after a message about frames. As of the last
    /// [`Self::judge`].
    pub fn messages_say_all(&self) -> bool {
        self.by_message && self.on.load(Ordering::Relaxed)
    }

    /// Whether INTA# may rise for these causes, by what the guest wishes now. Whoever posts one has
    /// published what it is about, with a full fence after it. Overruns, and all that is not about
    /// frames, always pass; a low ring alone never does.
    #[inline]
    pub fn judge(&self, pending: u32, of: &Kinds) -> Verdict {
        if !self.is_on() || pending & !(of.receive | of.low | of.transmit) != 0 {
            return Verdict::Pass;
        }
        let sent = pending & of.transmit != 0 && csb::wants_sent(self);
        if sent || pending & of.receive != 0 && csb::wants_received(self) {
            Verdict::Wished
        } else {
            Verdict::Shut
        }
    }
}

/// What CSBAL was last written to, and what is wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placed {
    /// 0: nowhere.
    pub address: u64,
    pub fault: Option<Fault>,
}

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Transmit,
    Receive,
}

/// A ring's tail as a register: TDT, RDT. Where descriptors say themselves who owns them there is
/// none: [`CsbSide::notice`].
pub trait Register {
    /// Its value.
    fn get(&self) -> u32;
    /// Its value, bits that do not exist included: they may be memory.
    fn raw(&self) -> u32;
    /// Replaces its value if it is still `old`; false: somebody has written it since.
    fn replace(&self, old: u32, new: u32) -> bool;
}

/// Where the tail is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// In the register.
    Register,
    /// In the register, until the word in the CSB is no longer this.
    Stale(u32),
    /// In the CSB.
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
}

impl CsbSide {
    pub fn new(direction: Direction) -> Self {
        let tail = Tail::Register;
        let (csb, last, asked, awake, off) = (None, 0, false, false, false);
        Self { direction, csb, tail, last, asked, awake, off }
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
    /// back. `on`: this side is, so that the CSB is its driver's still.
    pub fn replace(&mut self, csb: Option<Arc<Csb>>, on: bool) {
        self.csb = csb;
        if self.direction == Direction::Transmit {
            self.asked = true;
            if let Some(csb) = self.csb.as_ref().filter(|_| on) {
                csb.set_host_need_txkick(1);
            }
        }
    }

    /// The ring was stopped or moved: the word in the CSB may be of before.
    pub fn restart(&mut self) {
        let csb = self.csb.take();
        self.believe_register(csb.as_deref());
        self.csb = csb;
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

    /// For the same: the tail in the CSB, neither checked nor believed. `None`: descriptors
    /// themselves are to be looked at, for there is no CSB, or somebody is about to wait for the
    /// guest.
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
        self.disarm(csb);
        self.follow(csb, register, size)
    }

    /// The tail in the CSB, and the register brought in line with it.
    fn follow(&mut self, csb: &Csb, register: &impl Register, size: u32) -> u32 {
        let mut word = self.word(csb);
        for _ in 0..TRIES {
            let known = register.raw();
            if word >= size || known == word || register.replace(known, word) {
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
