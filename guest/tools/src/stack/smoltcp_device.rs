//! smoltcp's view of the driver. A burst holds the driver's lock from its first frame on, and ends
//! with one flush.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::driver::{Driver, LockedNic, transmit};
use super::frame::{self, Flow};
use super::inbox::FrameQueue;
use vmlan_driver::nic::Nic;

const LEAST: usize = 60; // The least Ethernet frame, without CRC.

/// One burst.
pub(super) struct Phy<'d, N: Nic> {
    backlog: &'d FrameQueue,
    out: Out<'d, N>,
    mtu: u16,
}

/// The way out.
pub(super) struct Out<'d, N: Nic> {
    driver: &'d Driver<N>,
    nic: Option<MutexGuard<'d, LockedNic<N>>>,
    scratch: &'d mut [u8],
    /// The flow of the last UDP datagram.
    flow: &'d mut Option<Flow>,
    sent: u64,
    /// Interrupts before the burst.
    interrupts: u64,
}

impl<'d, N: Nic> Phy<'d, N> {
    /// Begins a burst; frames are built in `scratch`.
    pub(super) fn new(
        driver: &'d Driver<N>,
        scratch: &'d mut [u8],
        flow: &'d mut Option<Flow>,
        mtu: u16,
    ) -> Self {
        let out = Out { driver, nic: None, scratch, flow, sent: 0, interrupts: 0 };
        Self { backlog: &driver.backlog, out, mtu }
    }
}

impl<N: Nic> Drop for Phy<'_, N> {
    fn drop(&mut self) {
        if let Some(nic) = &mut self.out.nic {
            nic.device.flush(0);
            self.out.driver.pass_on(&nic.device, self.out.interrupts);
            self.out.driver.counters.sent.fetch_add(self.out.sent, Relaxed);
        }
    }
}

impl<N: Nic> Out<'_, N> {
    /// Takes the lock, and looks for a slot.
    fn has_room(&mut self) -> bool {
        let driver = self.driver;
        if self.nic.is_none() {
            let nic = driver.nic();
            self.interrupts = driver.interrupts(&nic.device);
            self.nic = Some(nic);
        }
        let Some(LockedNic { device, .. }) = self.nic.as_deref_mut() else { return false };
        device.free_slots(0) > 0 || device.reap(0) > 0
    }

    fn send(&mut self, len: usize) {
        self.scratch[len..len.max(LEAST)].fill(0);
        let frame = &self.scratch[..len.max(LEAST)];
        if let Some(flow) = frame::flow(frame) {
            *self.flow = Some(flow);
        }
        let Some(nic) = &mut self.nic else { return };
        self.sent += u64::from(transmit(&mut nic.device, frame));
    }
}

/// A frame that came.
pub(super) struct ReceivedFrame<'a>(&'a FrameQueue);

impl phy::RxToken for ReceivedFrame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        let mut look = Some(look);
        let seen = self.0.take(|bytes| look.take().map(|look| look(bytes)));
        // A token is made for a frame that is there; an empty one is ignored by smoltcp.
        seen.flatten().or_else(|| look.take().map(|look| look(&[]))).expect("called once")
    }
}

/// A slot for a frame.
pub(super) struct FrameToSend<'a, 'd, N: Nic>(&'a mut Out<'d, N>);

impl<N: Nic> phy::TxToken for FrameToSend<'_, '_, N> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let result = fill(&mut self.0.scratch[..len]);
        self.0.send(len);
        result
    }
}

impl<'d, N: Nic> phy::Device for Phy<'d, N> {
    type RxToken<'a>
        = ReceivedFrame<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = FrameToSend<'a, 'd, N>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(ReceivedFrame<'_>, FrameToSend<'_, 'd, N>)> {
        // Whatever came may want an answer.
        if self.backlog.len() == 0 || !self.out.has_room() {
            return None;
        }
        Some((ReceivedFrame(self.backlog), FrameToSend(&mut self.out)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<FrameToSend<'_, 'd, N>> {
        if self.out.has_room() { Some(FrameToSend(&mut self.out)) } else { None }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = usize::from(self.mtu) + frame::ETHERNET;
        capabilities
    }
}
