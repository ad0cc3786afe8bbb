//! Any NIC that we drive, as programs need it: [`Nic`]. A program is compiled once for each kind
//! ([`open`] and [`Visitor`]), so that no call on the data path goes through a table.

mod chip;
mod error;
mod registers;
mod virtio;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use self::chip::{
    BusAddress, ChipNic, E1000Nic, E1000eNic, R8169Nic, Rtl8139ClassicNic, Rtl8139Nic, Vmxnet3Nic,
    make_ram,
};
pub use self::error::NicError;
pub use self::registers::Registers;
use crate::chip::Model;
use crate::stats::QueueStats;
use crate::virtio::VirtioNet;
use crate::wait::{Interest, Prepared, Wake};
use vmlan_transport::Address;
use vmlan_transport::Mac;

/// What was found, in a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Connected {
    /// virtio-net.
    Virtio {
        /// Feature bits in force.
        features: u64,
        /// Queue pairs.
        queues: u16,
    },
    /// A chip inside a VM, which has a link.
    Pci {
        /// Which one.
        model: Model,
        /// Its address.
        mac: Mac,
        /// How it is reached.
        way: vmlan_transport::pci::Way,
        /// The shared status block is in use.
        csb: bool,
    },
    /// A chip, which has a link.
    Chip {
        /// Which one.
        model: Model,
        /// Its address.
        mac: Mac,
        /// Ring registers are in shared memory.
        mapped: bool,
        /// Register writes do not wait for their reply.
        posted: bool,
        /// The shared status block is in use.
        csb: bool,
    },
}

impl fmt::Display for Connected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Virtio { features, queues } => {
                write!(out, "features {features:#x}, {queues} queue pair(s)")
            }
            Self::Pci { model, mac, way, csb } => {
                let csb = if *csb { ", CSB" } else { "" };
                write!(out, "{model} {mac}, driven through {way}{csb}")
            }
            Self::Chip { model, mac, mapped, posted, csb } => {
                let doorbell = if *mapped { "mapped" } else { "trapped" };
                let writes = if *posted { "posted" } else { "waited" };
                let csb = if *csb { ", CSB" } else { "" };
                write!(out, "{model} {mac}, doorbell {doorbell}, writes {writes}{csb}")
            }
        }
    }
}

/// A program that runs on a device of any kind.
pub trait Visitor {
    /// What it ends with.
    type Output;
    /// Runs it.
    fn visit<N: Nic>(self, nic: N) -> Self::Output;
}

/// Reaches the device at `place`, trying for `patience`, and lets `visitor` run on it. With
/// `largest`, slots for frames of so many bytes.
pub fn open<V: Visitor>(
    place: &Address,
    largest: Option<usize>,
    patience: Duration,
    visitor: V,
) -> Result<V::Output, NicError> {
    Ok(match sized(place, largest) {
        Address::VhostUser(address) => visitor.visit(VirtioNet::connect(&address, patience)?),
        Address::VfioUser(address) => open_chip(&address, patience, visitor)?,
        Address::Pci(address) => open_chip(&address, patience, visitor)?,
    })
}

fn open_chip<L: BusAddress, V: Visitor>(
    address: &L,
    patience: Duration,
    visitor: V,
) -> Result<V::Output, NicError> {
    Ok(match address.driver().model {
        Model::E1000 => visitor.visit(E1000Nic::connect(address, patience)?),
        Model::E1000e => visitor.visit(E1000eNic::connect(address, patience)?),
        Model::R8169 => visitor.visit(R8169Nic::connect(address, patience)?),
        Model::Rtl8139Plus => visitor.visit(Rtl8139Nic::connect(address, patience)?),
        Model::Rtl8139Classic => visitor.visit(Rtl8139ClassicNic::connect(address, patience)?),
        Model::Vmxnet3 => visitor.visit(Vmxnet3Nic::connect(address, patience)?),
    })
}

/// The address of the same NIC, with slots for frames of `largest` bytes.
pub fn sized(place: &Address, largest: Option<usize>) -> Address {
    let mut place = place.clone();
    let largest = largest.unwrap_or(0);
    match &mut place {
        Address::VhostUser(address) => {
            address.buffer = address.buffer.max(largest + crate::virtio::queues::NetHeader::LEN);
        }
        Address::VfioUser(address) => address.driver.room = address.driver.room.max(largest),
        Address::Pci(address) => address.driver.room = address.driver.room.max(largest),
    }
    place
}

/// A NIC with one or several pairs of queues ("lanes"), as a program sees it.
pub trait Nic: Info + Transmit + Receive + Wait + Send {}

impl<N: Info + Transmit + Receive + Wait + Send> Nic for N {}

/// What a NIC is, and how it has fared.
pub trait Info {
    /// Pairs of queues.
    fn lanes(&self) -> usize;
    /// What was found, for the first line of a run.
    fn connected(&self) -> Connected;
    /// Uses `chosen` as its address if it has one; the address in force when that is not up to the
    /// tool.
    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac>;
    /// Can the NIC complete UDP checksums?
    fn can_checksum(&self) -> bool;
    /// Is the device there?
    fn is_connected(&self) -> bool;
    /// How often it was reached anew.
    fn reconnects(&self) -> u64;
    /// Counters of all lanes together.
    fn stats(&self) -> QueueStats;
    /// Has the device kept the rules of its rings so far?
    fn is_sound(&self) -> bool;
    /// Register accesses so far, of a NIC that has registers.
    fn registers(&self) -> Option<Registers>;
}

/// Sending: [`Self::reap`], then for each frame [`Self::next`], [`Self::write`], [`Self::send`];
/// [`Self::flush`] ends a burst. Slots are used in turn.
pub trait Transmit {
    /// Transmit slots of a lane; they are used in turn.
    fn slots(&self, lane: usize) -> u16;
    /// Longest frame that fits a slot, in bytes.
    fn room(&self, lane: usize) -> usize;
    /// Slots that can be sent now, as of the last `reap`.
    fn free_slots(&self, lane: usize) -> u16;
    /// Slots that the device has.
    fn under_way(&self, lane: usize) -> u16;
    /// Takes sent slots back; the free ones.
    fn reap(&mut self, lane: usize) -> u16;
    /// The next slot to fill; `None` when all are under way, which is counted.
    fn next(&mut self, lane: usize) -> Option<u16>;
    /// The slot that `next` gives after `ahead` others, of which there are fewer than `free_slots`:
    /// it can be written already.
    fn slot_ahead(&self, lane: usize, ahead: u16) -> u16;
    /// Writes `bytes` of the frame from byte `at` on into a slot. Panics when they leave it.
    fn write(&self, lane: usize, slot: u16, at: usize, bytes: &[u8]);
    /// Frames of this slot have their UDP checksum completed, or not.
    fn offload_checksum(&mut self, lane: usize, slot: u16, on: bool);
    /// Sends the frame of `len` bytes in the slot that `next` gave.
    fn send(&mut self, lane: usize, slot: u16, len: u32);
    /// Sends up to `count` free slots that were filled before, all with `len` bytes; returns how
    /// many.
    fn send_filled(&mut self, lane: usize, count: u32, len: u32) -> u32;
    /// Ends a burst: what was sent is seen by the device, now or as the driver's options say.
    fn flush(&mut self, lane: usize);
    /// Counts a moment in which there were frames and no slot.
    fn count_full(&mut self, lane: usize);
}

/// Receiving: [`Self::poll`], [`Self::read`] each frame, [`Self::release`].
pub trait Receive {
    /// Received frames of one lane.
    type Batch: Send;
    /// An empty batch for `poll`.
    fn batch(&self, lane: usize) -> Self::Batch;
    /// Is there something to poll?
    fn ready(&mut self, lane: usize) -> bool;
    /// Adds received frames to a batch until it holds `most`; returns how many it holds.
    fn poll(&mut self, lane: usize, batch: &mut Self::Batch, most: usize) -> usize;
    /// Bytes of all frames of a batch.
    fn bytes(batch: &Self::Batch) -> u64;
    /// Bytes of one frame of a batch.
    fn frame_len(batch: &Self::Batch, at: usize) -> usize;
    /// Copies a frame; its length, or that of `bytes` if that is less.
    fn read(&self, lane: usize, batch: &Self::Batch, at: usize, bytes: &mut [u8]) -> usize;
    /// Is the frame's checksum still to be completed?
    fn checksum_pending(&self, lane: usize, batch: &Self::Batch, at: usize) -> bool;
    /// Gives the buffers of a batch back to the device, and empties it.
    fn release(&mut self, lane: usize, batch: &mut Self::Batch);
    /// Gives the buffers of the first `count` frames of a batch back; the other frames move up.
    fn release_first(&mut self, lane: usize, batch: &mut Self::Batch, count: usize);
    /// Buffers the device has.
    fn posted(&self, lane: usize) -> u16;
}

/// Sleeping until something comes: [`Self::wait`]; or, for programs that sleep on descriptors of
/// their own as well, [`Self::prepare_wait`], a sleep on [`Self::watched`], [`Self::finish_wait`].
pub trait Wait {
    /// Sleeps until something of `interest` is there, the device is gone, or the time is up.
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError>;
    /// The first half of `wait`: states the wishes of `interest` and looks again.
    /// [`Prepared::Now`]: do not sleep. Otherwise sleep until one of [`Self::watched`] can be read.
    /// `finish_wait` follows in either case.
    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError>;
    /// What to sleep on: 62 descriptors at most, the same until `reconnect`.
    fn watched(&self) -> Vec<BorrowedFd<'_>>;
    /// Which of [`Self::watched`] tell that the device is gone: bit n stands for the `n`th. A
    /// thread that sleeps while another uses the device leaves them out, because replies to the
    /// other can be read there as well.
    fn watched_for_end(&self) -> u64;
    /// The second half of `wait`: takes the interrupts and takes the wishes back. Bit n of `ready`
    /// tells that the `n`th of [`Self::watched`] could be read.
    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError>;
    /// Goes on with another device at the same place.
    fn reconnect(&mut self, patience: Duration) -> Result<(), NicError>;
}
