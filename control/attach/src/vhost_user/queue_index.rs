//! The numbers of a connection's virtqueues, and the queue that each stands for.

use std::fmt;
use std::sync::Arc;

use vmlan_nic::virtio::{Fault, Inflight, Net, QueueState, Rings};

use super::port::BothSides;
use crate::interrupt_eventfd::Call;

/// The number of a virtqueue of a port. Even ones are the guest's receive queues, odd ones its
/// transmit queues. A port has at most 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueIndex(pub u8);

impl QueueIndex {
    /// The first `count` of them.
    pub fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..=u8::MAX).take(count).map(Self)
    }

    /// True if it is one of the guest's transmit queues.
    #[must_use]
    pub fn is_transmit(self) -> bool {
        self.0 % 2 == 1
    }

    /// The side that it belongs to, and its number there.
    pub fn queue<'b>(self, both: &'b mut BothSides<'_>) -> (&'b mut dyn Queues, u16) {
        let number = u16::from(self.0 / 2);
        if self.is_transmit() { (&mut both.tx.net, number) } else { (&mut both.rx.net, number) }
    }

    /// True if it is started.
    #[must_use]
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
    /// Starts a queue.
    fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault>;
    /// Stops a queue. Returns the index that its next buffer has.
    fn stop(&mut self, index: u16) -> u16;
    /// Enables or disables a queue.
    fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault>;
    /// Gives a queue its interrupt.
    fn set_interrupt(&mut self, index: u16, call: Arc<Call>) -> Result<(), Fault>;
    /// Gives a queue its part of the inflight region.
    fn set_inflight(&mut self, index: u16, inflight: Option<Inflight>);
    /// Says where writes to the used ring are logged.
    fn set_log(&mut self, index: u16, log: Option<u64>);
    /// True if the queue is started.
    fn is_started(&self, index: u16) -> bool;
}

impl<S: QueueState> Queues for Net<S> {
    fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault> {
        Net::start(self, index, rings)
    }
    fn stop(&mut self, index: u16) -> u16 {
        Net::stop(self, index)
    }
    fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault> {
        Net::enable(self, index, on)
    }
    fn set_interrupt(&mut self, index: u16, call: Arc<Call>) -> Result<(), Fault> {
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
