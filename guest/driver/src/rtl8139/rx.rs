//! The receive buffer. Each frame begins with its status and its length, and is copied out at once,
//! as a kernel's driver does, so that its place can be given back: what a batch holds lies in slots
//! of ours.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::chip::{Batch, Bus, Frame, Options, Report, RxSide};
use crate::realtek::Registers;
use crate::realtek::registers::{Register, cause, cr};
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram};
use vmlan_transport::numbers::narrow16;

/// Bytes behind the buffer that a frame which begins in it may run over.
const OVERRUN: usize = 2048;
const HEADER: usize = 4; // Bytes in front of a frame, and of the CRC behind it.
const CRC: usize = 4;
/// Shortest and longest frame, with its CRC.
const LENGTHS: std::ops::RangeInclusive<usize> = 14 + CRC..=1792;
const SHORTEST: u16 = 8192; // The shortest buffer; lengths are this in powers of two.
const LEAD: u16 = 16; // CAPR is behind the place that it means.
const SLOT: usize = 1792; // Bytes of a slot.
const ROK: u16 = 1; // The status' bit for a good frame.

/// A frame that was copied out of the buffer: the chip only says that it is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied;

impl Report for Copied {}

/// The receive side.
#[derive(Debug)]
pub struct Buffer {
    ram: Arc<Ram>,
    at: usize,
    length: u16,
    /// Where the next frame begins.
    read: u16,
    /// Frames that were copied: a ring, of which what lies from `next` to `tail` is free.
    slots: Box<[u8]>,
    places: u16,
    next: u16,
    tail: u16,
    /// An interrupt said that there are frames, and nobody has looked.
    fresh: bool,
    /// CR said that there is one.
    ready: bool,
    /// CR said that the buffer is empty, after some frames.
    dried: bool,
    stats: QueueStats,
}

impl Buffer {
    /// Guest-physical address.
    pub(super) fn base(&self) -> u64 {
        self.ram.guest_phys(self.at)
    }

    /// Length, as RCR has it.
    pub(super) fn rblen(&self) -> u32 {
        (self.length / SHORTEST).ilog2()
    }

    fn after(&self, slot: u16) -> u16 {
        if slot + 1 == self.places { 0 } else { slot + 1 }
    }

    /// Is there a frame?
    fn look<B: Bus>(registers: &mut Registers<B>) -> bool {
        registers.read(Register::CR) & cr::BUFE == 0
    }

    /// Takes back the cause that says that frames have come; was it there?
    fn acknowledge<B: Bus>(registers: &mut Registers<B>) -> bool {
        let causes = registers.read(Register::ISR) & cause::RX;
        if causes != 0 && registers.failure().is_none() {
            registers.write(Register::ISR, causes);
        }
        causes != 0
    }

    /// Status and length of the next frame.
    fn header(&self) -> (u16, usize) {
        let mut bytes = [0; HEADER];
        self.ram.read(self.at + usize::from(self.read), &mut bytes);
        let [a, b, c, d] = bytes;
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]).into())
    }

    /// Copies the next frame out, and gives its place back. `None`: there is no frame, and all is
    /// given back.
    fn take<B: Bus>(&mut self, registers: &mut Registers<B>) -> Option<Frame<Copied>> {
        let (status, len) = self.header();
        if status & ROK == 0 || !LENGTHS.contains(&len) {
            let next = narrow16(registers.read(Register::CBR).into());
            self.read = (next % self.length) & !3;
            self.give(registers);
            return None;
        }
        let (slot, bytes) = (self.next, len - CRC);
        let to = &mut self.slots[usize::from(slot) * SLOT..][..bytes];
        self.ram.read(self.at + usize::from(self.read) + HEADER, to);
        let end = (usize::from(self.read) + HEADER + len).next_multiple_of(4);
        self.read = narrow16((end % usize::from(self.length)) as u64);
        self.next = self.after(slot);
        self.give(registers);
        let word = status.into();
        Some(Frame { first: slot, descriptors: 1, len: bytes, word, of: PhantomData })
    }

    fn give<B: Bus>(&self, registers: &mut Registers<B>) {
        registers.write(Register::CAPR, self.read.wrapping_sub(LEAD).into());
    }

    /// Is there another one, `got` having been found?
    fn goes_on<B: Bus>(&mut self, registers: &mut Registers<B>, got: usize) -> bool {
        if std::mem::take(&mut self.ready) || Self::look(registers) {
            return true;
        }
        self.dried = got > 0;
        // A cause that is out of date would interrupt again and again. One that came in between is
        // taken back as well, so look again.
        got == 0 && Self::acknowledge(registers) && Self::look(registers)
    }
}

impl RxSide<Register> for Buffer {
    type Format = Copied;

    /// Addresses have 32 bits.
    fn ram_bytes(options: &Options) -> (usize, usize) {
        (usize::from(options.buffer) + OVERRUN + 256, 0)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, _: &mut Pool, options: &Options) -> Self {
        let at = low.take(usize::from(options.buffer) + OVERRUN, 256);
        Self {
            ram: Arc::clone(ram),
            at,
            length: options.buffer,
            read: 0,
            slots: vec![0; usize::from(options.size) * SLOT].into(),
            places: options.size,
            next: 0,
            tail: options.size - 1,
            fresh: false,
            ready: false,
            dried: false,
            stats: QueueStats::default(),
        }
    }

    fn reset(&mut self) {
        (self.read, self.next, self.tail) = (0, 0, self.places - 1);
        (self.fresh, self.ready, self.dried) = (false, false, false);
    }

    fn size(&self) -> u16 {
        self.places
    }

    fn tail(&self) -> u16 {
        self.tail
    }

    fn note_received(&mut self) {
        (self.fresh, self.dried) = (true, false);
    }

    fn ready<B: Bus>(&mut self, registers: &mut Registers<B>) -> bool {
        if std::mem::take(&mut self.dried) {
            return false;
        }
        self.ready = self.ready || Self::look(registers);
        self.ready
    }

    fn ran_short(&self, _tail: u16) -> bool {
        false
    }

    fn poll<B: Bus>(
        &mut self,
        registers: &mut Registers<B>,
        batch: &mut Batch<Copied>,
        most: usize,
    ) -> usize {
        if std::mem::take(&mut self.dried) {
            return 0;
        }
        if std::mem::take(&mut self.fresh) && registers.read(Register::ISR) & cause::RX == 0 {
            return 0;
        }
        let mut got = 0;
        while batch.frames.len() < most && self.next != self.tail && self.goes_on(registers, got) {
            // A device that is gone says that there is always one.
            if registers.failure().is_some() {
                break;
            }
            match self.take(registers) {
                Some(frame) => {
                    self.stats.frames += 1;
                    self.stats.bytes += frame.len as u64;
                    batch.frames.push(frame);
                    got += 1;
                }
                None => {
                    self.stats.malformed += 1;
                    break;
                }
            }
            Self::acknowledge(registers);
        }
        self.stats.batches += u64::from(got > 0);
        got
    }

    fn read(&self, frame: Frame<Copied>, at: usize, bytes: &mut [u8]) -> usize {
        let from = &self.slots[usize::from(frame.first) * SLOT..][..frame.len];
        let from = &from[at.min(frame.len)..];
        let count = from.len().min(bytes.len());
        bytes[..count].copy_from_slice(&from[..count]);
        count
    }

    fn start_of(&self, frames: &[Frame<Copied>]) -> u16 {
        frames.first().map_or(self.next, |frame| frame.first)
    }

    fn refill(&mut self, most: u16, end: u16) -> u16 {
        let mut count = 0;
        while count < most && self.after(self.tail) != end {
            self.tail = self.after(self.tail);
            count += 1;
        }
        count
    }

    fn outstanding(&self) -> u16 {
        if self.tail >= self.next {
            self.tail - self.next
        } else {
            self.tail + self.places - self.next
        }
    }

    fn out_of_order(&self) -> u64 {
        0
    }

    fn stats(&self) -> &QueueStats {
        &self.stats
    }

    fn stats_mut(&mut self) -> &mut QueueStats {
        &mut self.stats
    }
}
