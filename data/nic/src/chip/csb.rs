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
//! - Realtek's rings have no tail: their descriptors say who owns them, and that is believed, with
//!   or without a CSB. Whoever is awake looks at them when the CSB's tail has moved, otherwise now
//!   and then, and before going to sleep: see [`CsbSide::hint`].
//! - The heads are told in `host_tdh` and `host_rdh`, after the descriptors are written back.
//! - The wishes of both sides: `notify/csb.rs`. What the guest wishes decides when INTA# may rise:
//!   [`Csb::judge`].
//!
//! # Whom to believe
//!
//! When the CSB is turned on, and after the ring was stopped or moved, an index in it may be stale
//! (FreeBSD 10.4 sets neither when its interface goes up). If it differs from the register, the
//! register counts until the word in the CSB changes. The guest is not told that we are awake
//! before then, so that it goes on to write TDT. Where the register leaves too few buffers, the
//! descriptors say whether the word is current: `intel::ring::Ring::reconsider`.
//!
//! While a side is stopped, or may not use the guest's memory, nothing is stored in the CSB: see
//! `Transmitter::arm`.
//!
//! When the CSB is turned off, the guest may have published frames that no register knows of, or
//! written the register since. The later of both counts: see [`CsbSide::leave`]. Drivers with
//! posted register writes should write TDT and RDT as they are, and read a register, before they
//! turn the CSB off. Otherwise an old kick may stand there, or arrive later.
//!
//! # Interrupts that need no register access
//!
//! `guest_use_msix` is 1 when the CSB is placed, and the guest has MSI on: causes about frames are
//! taken out of ICR as their message is sent, so that the handler need not read it. The authors did
//! this with an MSI-X vector of its own. This chip has no MSI-X; here it is the one message of MSI.
//! A driver that asks for it must not enable other causes, or look at ICR now and then.
//!
//! # What there is not
//!
//! MSI-X, the ring of virtio-net headers, `host_txcycles_lim` (the worker has its own ways of
//! waiting), `guest_txkick_at` and `host_isr`: not read, not written. Nothing is written from 0x68
//! on, which some drivers use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_ram::{Map, Window};

pub use super::csb_direction::{CsbSide, Direction, Register};
use super::held::point;
use super::irq::Kinds;
use super::{CsbFault, Fault};
use crate::notify::Guard;
use crate::notify::csb::{self, CsbFields};

const LEN: usize = 0x68; // Bytes that the two sides use of the 4096 that the guest allocates.
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

/// The CSB. Every word that the guest writes is read once for each decision, and checked.
#[derive(Debug)]
pub struct Csb {
    words: Window,
    /// `guest_use_msix`, as it was when the CSB was placed: exactly 1, since some drivers leave
    /// garbage there.
    by_message: AtomicBool,
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
        point();
        self.words.set_u32(HOST_TDH, index, Ordering::Release);
    }
    #[inline]
    fn set_host_rdh(&self, index: u32) {
        point();
        self.words.set_u32(HOST_RDH, index, Ordering::Release);
    }
    #[inline]
    fn set_host_need_txkick(&self, wish: u32) {
        point();
        self.words.set_u32(HOST_NEED_TXKICK, wish, Ordering::Relaxed);
    }
    #[inline]
    fn set_host_need_rxkick(&self, wish: u32) {
        point();
        self.words.set_u32(HOST_NEED_RXKICK, wish, Ordering::Relaxed);
    }
    #[inline]
    fn set_host_rxkick_at(&self, index: u32) {
        point();
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
        let by_message = AtomicBool::new(by_message);
        Ok(Arc::new(Self { words, by_message, on: Arc::clone(on) }))
    }

    /// As it was when it was placed, of a chip that goes on from a state.
    pub(super) fn placed_as(&self, by_message: bool) {
        self.by_message.store(by_message, Ordering::Relaxed);
    }

    /// See [`Csb::messages_say_all`].
    pub(super) fn by_message(&self) -> bool {
        self.by_message.load(Ordering::Relaxed)
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
        self.by_message() && self.on.load(Ordering::Relaxed)
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
