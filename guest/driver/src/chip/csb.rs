//! The shared status block: a page of ours in which driver and chip tell each other of their
//! indexes (the paper's section 4; layout and handshake as QEMU's e1000-paravirt and FreeBSD 10's
//! `if_lem` have them). [`crate::notify::csb`] decides when to ring and how to go to sleep.
//!
//! All words are 32 bits, little endian. Ours fill the first cache line, the chip's the second.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::notify::Guard;
use crate::notify::csb::{self, CsbFields};
use vmlan_transport::memory::{Pool, Ram, View};

/// The device ID of the subsystem, by which a chip offers the CSB.
pub(super) const SUBSYSTEM: u16 = 0x1101;

const BYTES: usize = 4096; // The CSB owns its page.
pub(super) const RAM: usize = 2 * BYTES; // RAM for it, wherever it comes to lie.

/// `host_rxkick_at` that asks for nothing, and `host_tdh` before the chip has said anything.
const NONE: u32 = u32::MAX;

/// Which word is which.
mod word {
    pub(super) const GUEST_TDT: usize = 0;
    pub(super) const GUEST_NEED_TXKICK: usize = 1;
    pub(super) const GUEST_NEED_RXKICK: usize = 2;
    pub(super) const GUEST_CSB_ON: usize = 3;
    pub(super) const GUEST_RDT: usize = 4;
    pub(super) const GUEST_TXKICK_AT: usize = 5;
    pub(super) const GUEST_USE_MSIX: usize = 6;
    pub(super) const HOST_TDH: usize = 16;
    pub(super) const HOST_NEED_TXKICK: usize = 17;
    pub(super) const HOST_TXCYCLES_LIM: usize = 18;
    pub(super) const HOST_NEED_RXKICK: usize = 21;
    pub(super) const HOST_RXKICK_AT: usize = 23;
}

/// The page.
#[derive(Debug)]
pub(super) struct Csb {
    words: View<AtomicU32>,
    gpa: u64,
    on: bool,
}

impl Guard for Csb {}

impl CsbFields for Csb {
    #[inline]
    fn set_guest_tdt(&self, index: u32) {
        self.words[word::GUEST_TDT].store(index.to_le(), Release);
    }
    #[inline]
    fn set_guest_rdt(&self, index: u32) {
        self.words[word::GUEST_RDT].store(index.to_le(), Release);
    }
    #[inline]
    fn set_guest_need_txkick(&self, wish: u32) {
        self.words[word::GUEST_NEED_TXKICK].store(wish.to_le(), Relaxed);
    }
    #[inline]
    fn set_guest_need_rxkick(&self, wish: u32) {
        self.words[word::GUEST_NEED_RXKICK].store(wish.to_le(), Relaxed);
    }
    fn set_guest_csb_on(&self, on: u32) {
        self.words[word::GUEST_CSB_ON].store(on.to_le(), Release);
    }
    #[inline]
    fn host_need_txkick(&self) -> u32 {
        u32::from_le(self.words[word::HOST_NEED_TXKICK].load(Relaxed))
    }
    #[inline]
    fn host_rxkick_at(&self) -> u32 {
        u32::from_le(self.words[word::HOST_RXKICK_AT].load(Relaxed))
    }
}

impl Csb {
    pub(super) fn new(ram: &Arc<Ram>, low: &mut Pool) -> Self {
        let at = low.take(BYTES, BYTES);
        Self { words: ram.view(at, BYTES / 4), gpa: ram.guest_phys(at), on: false }
    }

    /// Guest-physical address.
    pub(super) fn base(&self) -> u64 {
        self.gpa
    }

    /// Sets the CSB up for a chip that does not know it yet. Every word is set, since some of them
    /// change what the chip does. `by_message`: the chip interrupts by MSI, and need not leave in
    /// ICR what a message has said.
    pub(super) fn reset(&mut self, by_message: bool) {
        self.on = false;
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        let set = |at: usize, value: u32| self.words[at].store(value.to_le(), Relaxed);
        set(word::GUEST_TXKICK_AT, NONE);
        set(word::GUEST_USE_MSIX, by_message.into());
        set(word::HOST_TDH, NONE);
        set(word::HOST_NEED_TXKICK, 1);
        set(word::HOST_TXCYCLES_LIM, 1);
        set(word::HOST_NEED_RXKICK, 0);
        set(word::HOST_RXKICK_AT, NONE);
    }

    /// From now on the chip reads the indexes here.
    pub(super) fn start(&mut self, tdt: u16, rdt: u16) {
        // What it said the last time is out of date.
        self.words[word::HOST_TDH].store(NONE.to_le(), Relaxed);
        csb::start(self, tdt.into(), rdt.into());
        self.on = true;
    }

    /// Back to the registers.
    pub(super) fn stop(&mut self) {
        csb::stop(self);
        self.on = false;
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// `host_tdh`: the descriptors before it are the driver's again. Anything may stand there.
    #[inline]
    pub(super) fn host_tdh(&self) -> u32 {
        u32::from_le(self.words[word::HOST_TDH].load(Acquire))
    }
}
