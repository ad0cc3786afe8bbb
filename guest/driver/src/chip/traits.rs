//! What a driver needs of the two sides of a chip, and of the chip itself.

use std::fmt::Debug;
use std::sync::Arc;

use super::{
    Batch, Bus, ChipDriver, ChipError, Frame, Model, Offload, Options, Register, Registers, Report,
};
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram};

/// The interrupt causes of a chip that a driver enables.
#[derive(Clone, Copy, Debug)]
pub struct Causes {
    /// Frames were sent.
    pub sent: u32,
    /// Frames were received, or could not be.
    pub received: u32,
    /// The link has changed.
    pub link: u32,
    /// What else is enabled while CSB is on, whose flags say when causes interrupt.
    pub csb: u32,
}

/// What only the driver of one chip knows.
pub trait Chip: Debug + Sized + Send + 'static {
    /// Which one.
    const MODEL: Model;
    /// Its interrupt causes.
    const CAUSES: Causes;
    /// Buffers are given to the chip by the write of a register.
    const TAILS: bool;
    /// A kernel's driver also masks interrupts while it looks for sent frames.
    const MASKS_SENT: bool;
    /// An interrupt masks itself until all causes are enabled again, so that neither a mask nor an
    /// acknowledgement is on its way while rings are looked at.
    fn masks_itself(_: &Options) -> bool {
        false
    }
    /// Its registers.
    type Register: Register;
    /// Its transmit side.
    type Tx: TxSide<Self::Register>;
    /// Its receive side.
    type Rx: RxSide<Self::Register>;
    /// What it shares with its driver beside the rings.
    type Shared: Shared;

    /// Stops and resets it; no interrupt is enabled then.
    fn reset<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError>;
    /// The address it was made with.
    fn read_mac<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<[u8; 6], ChipError>;
    /// Starts link, moderation and both sides. No interrupt is enabled yet, and no cause stands.
    fn start<B: Bus>(nic: &mut ChipDriver<Self, B>) -> Result<(), ChipError>;
    /// Receives frames for an address.
    fn write_mac<B: Bus>(registers: &mut Registers<Self::Register, B>, mac: [u8; 6]);
    /// The status block lies there; 0: nowhere.
    fn place_csb<B: Bus>(registers: &mut Registers<Self::Register, B>, address: u64);

    /// The doorbell: there are frames in the ring. True when it was a trip to the device.
    fn ring<B: Bus>(registers: &mut Registers<Self::Register, B>, tx: &mut Self::Tx) -> bool;
    /// Does it want to hear that doorbell, for the frames that were handed over last?
    #[inline]
    fn wants_frames(_: &Self::Shared, _: &mut Self::Tx) -> bool {
        true
    }
    /// The other one: there are buffers.
    fn give<B: Bus>(registers: &mut Registers<Self::Register, B>, rx: &mut Self::Rx);
    /// Does it want to hear that one, for the buffers that were handed over last?
    #[inline]
    fn wants_buffers(_: &Self::Shared, _: &Self::Rx) -> bool {
        Self::TAILS
    }
    /// How far the transmitter has come, of a chip that can be asked.
    fn head<B: Bus>(_: &mut Registers<Self::Register, B>) -> u32 {
        u32::MAX
    }

    /// Which interrupt causes stand.
    fn causes<B: Bus>(nic: &mut ChipDriver<Self, B>) -> u32;
    /// They have been seen. False if reading them has said so.
    fn acknowledge<B: Bus>(_: &mut ChipDriver<Self, B>, _causes: u32) -> bool {
        false
    }
    /// None stands any more, whichever did.
    fn clear<B: Bus>(nic: &mut ChipDriver<Self, B>) {
        Self::acknowledge(nic, u32::MAX);
    }
    /// No cause interrupts.
    fn mask<B: Bus>(nic: &mut ChipDriver<Self, B>);
    /// These causes interrupt, and no others; so far `old` did.
    fn enable<B: Bus>(nic: &mut ChipDriver<Self, B>, old: u32, new: u32);
    /// Waits until writes have arrived.
    fn settle<B: Bus>(registers: &mut Registers<Self::Register, B>);
}

/// Memory beside the rings that a chip shares with its driver.
pub trait Shared: Debug + Send {
    /// The RAM that it takes, among that for rings.
    fn ram_bytes() -> usize;
    /// With memory out of a pool.
    fn new(ram: &Arc<Ram>, low: &mut Pool, options: &Options) -> Self;
    /// The chip has not stopped for something that it says is wrong.
    fn is_sound(&self) -> bool;
}

/// There is none.
impl Shared for () {
    fn ram_bytes() -> usize {
        0
    }

    fn new(_: &Arc<Ram>, _: &mut Pool, _: &Options) -> Self {}

    fn is_sound(&self) -> bool {
        true
    }
}

/// The transmit side of a chip. A slot is a buffer; slots are used in turn.
pub trait TxSide<R: Register>: Debug + Send {
    /// The RAM that it takes, for rings and for buffers.
    fn ram_bytes(options: &Options) -> (usize, usize);
    /// With memory out of two pools.
    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self;
    /// Makes it unused, for a device that has been reset. Frames under way are lost; buffers keep
    /// their contents.
    fn reset(&mut self);
    /// How many slots there are.
    fn slots(&self) -> u16;
    /// Longest frame that fits a slot.
    fn room(&self) -> usize;
    /// Slots that can be sent now.
    fn free_slots(&self) -> u16;
    /// Slots under way.
    fn under_way(&self) -> u16;
    /// The next descriptor to fill.
    fn tail(&self) -> u16;
    /// The next slot to fill; None when all are under way, which is counted.
    fn next(&mut self) -> Option<u16>;
    /// The slot `ahead` places after the next.
    fn slot_ahead(&self, ahead: u16) -> u16;
    /// Writes bytes into a slot's buffer.
    fn write(&self, slot: u16, at: usize, bytes: &[u8]);
    /// What the device shall do with the frames of a slot.
    fn set_offload(&mut self, slot: u16, offload: Offload);
    /// Describes the frame in the next slot. The device need not look before the doorbell.
    ///
    /// # Panics
    /// When there is no free slot, `slot` is not the next one, or the frame leaves it: bugs of the
    /// caller.
    fn send(&mut self, slot: u16, len: u32);
    /// Frames sent since the last call.
    fn take_pending(&mut self) -> u32;
    /// An interrupt said that frames were sent.
    fn note_sent(&mut self) {}
    /// For a side that has to ask what was sent: the caller needs an answer.
    fn wants_to_ask(&mut self) -> bool {
        false
    }
    /// Takes sent slots back; returns how many are free now.
    fn reap<B: Bus>(&mut self, registers: &mut Registers<R, B>) -> u16;
    /// Frames are under way, and none of them will be reported.
    fn is_blind(&self) -> bool;
    /// Reports were looked for in vain many times: the device's head is worth a read.
    fn wants_head(&mut self) -> bool;
    /// Takes slots back up to the device's head; false if it said nothing yet.
    fn retire_to(&mut self, head: u32) -> bool;
    /// Has the device's head moved?
    fn has_moved(&self, head: u32) -> bool;
    /// Has a good part of what is under way been sent, as far as memory tells?
    fn is_half_done(&self) -> bool;
    /// Frames that are done though an earlier one is not, and heads that cannot be: the device must
    /// do neither.
    fn out_of_order(&self) -> u64;
    /// Counters.
    fn stats(&self) -> &QueueStats;
    /// Its counters, to be changed.
    fn stats_mut(&mut self) -> &mut QueueStats;
}

/// The receive side of a chip.
pub trait RxSide<R: Register>: Debug + Send {
    /// What its frames look like.
    type Format: Report;

    /// The RAM that it takes, for rings and for buffers.
    fn ram_bytes(options: &Options) -> (usize, usize);
    /// With memory out of two pools.
    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self;
    /// Full, for a device that has been reset.
    fn reset(&mut self);
    /// Descriptors.
    fn size(&self) -> u16;
    /// The first descriptor that is not the device's.
    fn tail(&self) -> u16;
    /// An interrupt said that frames were received.
    fn note_received(&mut self) {}
    /// Is there a frame?
    fn ready<B: Bus>(&mut self, registers: &mut Registers<R, B>) -> bool;
    /// May the device have found too few buffers for a frame when `tail` was the tail? Asked once
    /// there are more: the device looks again before it waits, so either it sees those, or this
    /// sees that it took what was left.
    fn ran_short(&self, tail: u16) -> bool;
    /// Adds frames to a batch until it holds `most`; returns how many were added.
    fn poll<B: Bus>(
        &mut self,
        registers: &mut Registers<R, B>,
        batch: &mut Batch<Self::Format>,
        most: usize,
    ) -> usize;
    /// Copies bytes of a frame, from byte `at` on, into `bytes`; returns how many there were.
    fn read(&self, frame: Frame<Self::Format>, at: usize, bytes: &mut [u8]) -> usize;
    /// Where the first of these frames starts; if there are none, the next descriptor to look at.
    fn start_of(&self, frames: &[Frame<Self::Format>]) -> u16;
    /// Fills up to `most` of the descriptors that were taken, before `end`; returns how many.
    fn refill(&mut self, most: u16, end: u16) -> u16;
    /// Buffers the device has, as far as we know.
    fn outstanding(&self) -> u16;
    /// Descriptors that are done though an earlier one is not.
    fn out_of_order(&self) -> u64;
    /// Counters.
    fn stats(&self) -> &QueueStats;
    /// Its counters, to be changed.
    fn stats_mut(&mut self) -> &mut QueueStats;
}
