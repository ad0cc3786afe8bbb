//! Four transmit buffers, each with a register for its address and one that sends it and says what
//! has become of it.

use std::sync::Arc;

use crate::chip::{Bus, Offload, Options, TxSide, stride};
use crate::realtek::Registers;
use crate::realtek::registers::Register;
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram};

const PAIRS: u16 = 4; // Buffers.
const LONGEST: usize = 1792; // Bytes of the longest frame that the chip sends.
const SHORTEST: u32 = 60; // Bytes of the shortest frame that it sends: it does not pad.

const TSD: [Register; 4] = [Register::TSD0, Register::TSD1, Register::TSD2, Register::TSD3];
/// The registers of the addresses.
pub(super) const TSAD: [Register; 4] =
    [Register::TSAD0, Register::TSAD1, Register::TSAD2, Register::TSAD3];

/// Bits of TSD. While OWN is 0 the chip owns the frame.
mod tsd {
    /// The chip begins to send once it has 256 bytes.
    pub(super) const THRESHOLD: u32 = (256 / 32) << 16;
    /// Underrun, sent, aborted: one of them is set in the end.
    pub(super) const TUN: u32 = 1 << 14;
    pub(super) const TOK: u32 = 1 << 15;
    pub(super) const TABT: u32 = 1 << 30;
}

const CLRABT: u32 = 1; // TCR: sends the aborted frame again.

/// The transmit side.
#[derive(Debug)]
pub struct Pairs {
    ram: Arc<Ram>,
    first: usize,
    stride: usize,
    lens: [u32; PAIRS as usize],
    next: u16,
    oldest: u16,
    under_way: u16,
    /// Of those under way, the ones that the chip knows.
    told: u16,
    /// It pays to ask.
    sent: bool,
    /// No frame came since the caller looked for free slots.
    looked: bool,
    aborted: u64,
    pending: u32,
    stats: QueueStats,
}

fn after(slot: u16) -> u16 {
    (slot + 1) % PAIRS
}

impl Pairs {
    fn at(&self, slot: u16) -> usize {
        self.first + usize::from(slot) * self.stride
    }

    /// Guest-physical addresses of the buffers.
    pub(super) fn addresses(&self) -> [u64; PAIRS as usize] {
        [0, 1, 2, 3].map(|slot| self.ram.guest_phys(self.at(slot)))
    }

    /// Sends the frames that the chip does not know of yet. False if there are none.
    pub(super) fn publish<B: Bus>(&mut self, registers: &mut Registers<B>) -> bool {
        let any = self.told < self.under_way;
        while self.told < self.under_way {
            let slot = usize::from((self.oldest + self.told) % PAIRS);
            registers.write(TSD[slot], self.lens[slot] | tsd::THRESHOLD);
            self.told += 1;
        }
        any
    }
}

impl TxSide<Register> for Pairs {
    /// Addresses have 32 bits.
    fn ram_bytes(options: &Options) -> (usize, usize) {
        (usize::from(PAIRS) * stride(options.room.max(LONGEST)) + 64, 0)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, _: &mut Pool, options: &Options) -> Self {
        let stride = stride(options.room.max(LONGEST));
        Self {
            ram: Arc::clone(ram),
            first: low.take(usize::from(PAIRS) * stride, 64),
            stride,
            lens: [0; PAIRS as usize],
            next: 0,
            oldest: 0,
            under_way: 0,
            told: 0,
            sent: false,
            looked: false,
            aborted: 0,
            pending: 0,
            stats: QueueStats::default(),
        }
    }

    fn reset(&mut self) {
        (self.next, self.oldest, self.under_way, self.told) = (0, 0, 0, 0);
        (self.sent, self.pending) = (false, 0);
    }

    fn slots(&self) -> u16 {
        PAIRS
    }

    fn room(&self) -> usize {
        LONGEST
    }

    fn free_slots(&self) -> u16 {
        PAIRS - self.under_way
    }

    fn under_way(&self) -> u16 {
        self.under_way
    }

    fn tail(&self) -> u16 {
        self.next
    }

    fn next(&mut self) -> Option<u16> {
        let free = self.under_way < PAIRS;
        self.stats.full += u64::from(!free);
        free.then_some(self.next)
    }

    fn slot_ahead(&self, ahead: u16) -> u16 {
        (self.next + ahead) % PAIRS
    }

    fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.stride, "{} bytes at {at} leave the slot", bytes.len());
        self.ram.write(self.at(slot) + at, bytes);
    }

    fn set_offload(&mut self, _: u16, offload: Offload) {
        assert!(offload == Offload::default(), "the chip does nothing but send");
    }

    fn send(&mut self, slot: u16, len: u32) {
        assert!(self.under_way < PAIRS && slot == self.next, "slot {slot} is not the next");
        let bytes = len as usize;
        assert!(bytes <= LONGEST, "a frame of {len} bytes leaves the slot");
        if len < SHORTEST {
            self.ram.write(self.at(slot) + bytes, &[0; SHORTEST as usize][bytes..]);
        }
        self.lens[usize::from(slot)] = len.max(SHORTEST);
        self.next = after(slot);
        self.looked = false;
        self.under_way += 1;
        self.pending += 1;
        self.stats.frames += 1;
        self.stats.bytes += u64::from(len);
    }

    fn take_pending(&mut self) -> u32 {
        std::mem::take(&mut self.pending)
    }

    fn note_sent(&mut self) {
        self.sent = true;
    }

    /// All slots are under way, or somebody waits until none is.
    fn wants_to_ask(&mut self) -> bool {
        let looked = std::mem::replace(&mut self.looked, true);
        self.told > 0 && (looked || self.under_way == PAIRS)
    }

    fn reap<B: Bus>(&mut self, registers: &mut Registers<B>) -> u16 {
        while self.sent && self.told > 0 {
            let status = registers.read(TSD[usize::from(self.oldest)]);
            if registers.failure().is_some() || status & (tsd::TUN | tsd::TOK | tsd::TABT) == 0 {
                self.sent = false;
                break;
            }
            if status & tsd::TABT != 0 {
                self.aborted += 1;
                let value = registers.read(Register::TCR);
                registers.write(Register::TCR, value | CLRABT);
            }
            self.oldest = after(self.oldest);
            self.under_way -= 1;
            self.told -= 1;
        }
        self.sent &= self.told > 0;
        PAIRS - self.under_way
    }

    fn is_blind(&self) -> bool {
        false
    }

    fn wants_head(&mut self) -> bool {
        false
    }

    fn retire_to(&mut self, _head: u32) -> bool {
        false
    }

    fn has_moved(&self, _head: u32) -> bool {
        false
    }

    /// Memory does not show it; an enabled interrupt does.
    fn is_half_done(&self) -> bool {
        self.sent && self.told > 0
    }

    fn out_of_order(&self) -> u64 {
        self.aborted
    }

    fn stats(&self) -> &QueueStats {
        &self.stats
    }

    fn stats_mut(&mut self) -> &mut QueueStats {
        &mut self.stats
    }
}
