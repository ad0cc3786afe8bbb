//! What the traffic tools need of a NIC. The engine is compiled once for each kind, so that no call goes through a table.

mod e1000;
mod virtio;

use std::time::Duration;

use super::report::{Registers, Report};
use super::{Error, Mac};
use crate::net::QueueStats;
use crate::nic::{Interest, Wake};

pub(super) use self::e1000::connect as connect_e1000;

/// A NIC with one or several pairs of queues ("lanes").
pub(super) trait Nic {
    /// Received frames of one lane.
    type Batch;

    fn lanes(&self) -> usize;
    /// The first line of a run.
    fn greeting(&self) -> Report;
    /// Uses `chosen` as its address if it has one; the address in force when that is not up to the tool.
    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac>;
    /// Can the NIC complete UDP checksums?
    fn can_checksum(&self) -> bool;

    fn slots(&self, lane: usize) -> u16;
    fn room(&self, lane: usize) -> usize;
    fn free_slots(&self, lane: usize) -> u16;
    fn under_way(&self, lane: usize) -> u16;
    /// Takes sent slots back; the free ones.
    fn reap(&mut self, lane: usize) -> u16;
    fn next(&mut self, lane: usize) -> Option<u16>;
    fn write(&self, lane: usize, slot: u16, at: usize, bytes: &[u8]);
    /// Frames of this slot have their UDP checksum completed, or not.
    fn offload_checksum(&mut self, lane: usize, slot: u16, on: bool);
    fn send(&mut self, lane: usize, slot: u16, len: u32);
    fn send_filled(&mut self, lane: usize, count: u32, len: u32) -> u32;
    fn flush(&mut self, lane: usize);
    fn count_full(&mut self, lane: usize);

    fn batch(&self, lane: usize) -> Self::Batch;
    fn ready(&mut self, lane: usize) -> bool;
    fn poll(&mut self, lane: usize, batch: &mut Self::Batch, most: usize) -> usize;
    /// Bytes of all frames of a batch.
    fn bytes(batch: &Self::Batch) -> u64;
    /// Copies a frame; its length, or that of `bytes` if that is less.
    fn read(&self, lane: usize, batch: &Self::Batch, at: usize, bytes: &mut [u8]) -> usize;
    /// Is the frame's checksum still to be completed?
    fn checksum_pending(&self, lane: usize, batch: &Self::Batch, at: usize) -> bool;
    fn release(&mut self, lane: usize, batch: &mut Self::Batch);
    /// Buffers the device has.
    fn posted(&self, lane: usize) -> u16;

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, Error>;
    fn reconnect(&mut self, patience: Duration) -> Result<(), Error>;
    fn is_connected(&self) -> bool;
    fn reconnects(&self) -> u64;
    fn stats(&self) -> QueueStats;
    fn is_sound(&self) -> bool;
    /// Register accesses so far, of a NIC that has registers.
    fn registers(&self) -> Option<Registers>;
}
