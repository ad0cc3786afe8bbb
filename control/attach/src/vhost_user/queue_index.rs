//! The numbers of a connection's virtqueues, and the queue that each stands for.

use std::fmt;
use std::sync::Arc;

use vmlan_nic::virtio::{Fault, Inflight, Net, QueueState, Rings};

use super::port::BothSides;
use crate::interrupt_eventfd::InterruptEventFd;

/// The number of a virtqueue of a port. Even ones are the guest's receive queues, odd ones its
/// transmit queues. A port has at most 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueIndex(pub u8);

impl QueueIndex {
    pub fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..=u8::MAX).take(count).map(Self)
    }

    pub fn is_transmit(self) -> bool {
        self.0 % 2 == 1
    }

    /// The side that it belongs to, and its number there.
    pub fn queue<'b>(self, both: &'b mut BothSides<'_>) -> (&'b mut dyn Queues, u16) {
        let transmit = self.is_transmit();
        let (lane, number) = both.lane_of(self.pair());
        if transmit { (&mut lane.tx.net, number) } else { (&mut lane.rx.net, number) }
    }

    /// The number of the pair that it belongs to.
    pub fn pair(self) -> u16 {
        u16::from(self.0 / 2)
    }

    pub fn is_started(self, both: &mut BothSides<'_>) -> bool {
        let (side, number) = self.queue(both);
        side.is_started(number)
    }
}

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What can be done to the queues of a side, transmit or receive.
pub trait Queues {
    fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault>;
    /// Stops a queue. Returns what to answer `GET_VRING_BASE` with.
    fn stop(&mut self, index: u16) -> u32;
    fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault>;
    fn set_interrupt(&mut self, index: u16, call: Arc<InterruptEventFd>) -> Result<(), Fault>;
    /// Gives a queue its part of the inflight region.
    fn set_inflight(&mut self, index: u16, inflight: Option<Inflight>);
    /// Says where writes to the used ring are logged.
    fn set_log(&mut self, index: u16, log: Option<u64>);
    fn is_started(&self, index: u16) -> bool;
}

impl<S: QueueState> Queues for Net<S> {
    fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault> {
        Net::start(self, index, rings)
    }
    fn stop(&mut self, index: u16) -> u32 {
        Net::stop(self, index)
    }
    fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault> {
        Net::enable(self, index, on)
    }
    fn set_interrupt(&mut self, index: u16, call: Arc<InterruptEventFd>) -> Result<(), Fault> {
        Net::set_interrupt(self, index, Some(call))
    }
    fn set_inflight(&mut self, index: u16, inflight: Option<Inflight>) {
        Net::set_inflight(self, index, inflight);
    }
    fn set_log(&mut self, index: u16, log: Option<u64>) {
        Net::set_log(self, index, log);
    }
    fn is_started(&self, index: u16) -> bool {
        Net::is_started(self, index)
    }
}
