//! The port: a NIC as the switch sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlan_frame::{Batch, Counters, Doorbell, NicCounters, Offloads, Port, Reason, Sink};

use super::nic_host::NicHost;
use crate::waker::Waker;
use vmlan_nic::chip::Nic;

/// A VM's NIC, as the switch sees it.
pub struct VfioUserPort {
    nic: Arc<dyn Nic>,
    host: Arc<NicHost>,
    waker: Arc<Waker>,
    /// How often to look at doorbells in shared memory.
    poll_idle: Option<Duration>,
    connected: AtomicBool,
    /// No more frames are taken from the guest.
    paused: AtomicBool,
    /// A worker saw that the NIC stands still, and woke the port's thread.
    faulted: AtomicBool,
    /// The same, for what the NIC does not do, though it moves frames.
    warned: AtomicBool,
}

impl VfioUserPort {
    /// A port with nobody connected.
    pub fn new(
        nic: Arc<dyn Nic>,
        host: Arc<NicHost>,
        waker: Arc<Waker>,
        poll_idle: Option<Duration>,
    ) -> Self {
        Self {
            nic,
            host,
            waker,
            poll_idle,
            connected: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }
    }

    /// The model.
    pub fn nic(&self) -> &Arc<dyn Nic> {
        &self.nic
    }

    /// Its host.
    pub fn host(&self) -> &Arc<NicHost> {
        &self.host
    }

    /// Says whether a client is there.
    pub fn set_connected(&self, on: bool) {
        self.connected.store(on, Ordering::Release);
        self.forget_faults();
    }

    /// Takes no more frames from the guest. Those under way are delivered.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::Release);
    }

    /// Lets workers report faults again.
    pub fn forget_faults(&self) {
        self.faulted.store(false, Ordering::Release);
        self.warned.store(false, Ordering::Release);
    }

    /// A client is there, and does not tamper with its interrupt.
    fn is_served(&self) -> bool {
        self.is_connected() && !self.host.is_stuck()
    }

    /// Wakes the port's thread if there is a fault that it was not woken for.
    fn report(&self) {
        let Some(fault) = self.nic.fault() else { return };
        let reported = if fault.stops() { &self.faulted } else { &self.warned };
        if !reported.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

impl Port for VfioUserPort {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        if !self.is_served() || self.paused.load(Ordering::Acquire) {
            return 0;
        }
        let done = self.nic.pull(batch, limit, sink);
        if done == 0 && !self.faulted.load(Ordering::Relaxed) {
            self.report();
        }
        done
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        if !self.is_served() {
            self.nic.counters().output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        let done = self.nic.push(batch, list);
        if done < list.len() && !self.faulted.load(Ordering::Relaxed) {
            self.report();
        }
        done
    }

    fn offloads(&self) -> Offloads {
        self.nic.offloads()
    }

    fn room(&self) -> usize {
        self.nic.room()
    }

    fn is_up(&self) -> bool {
        self.is_served() && self.nic.is_up()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    fn arm(&self, _: usize) -> bool {
        self.is_served() && self.nic.arm()
    }

    fn is_being_changed(&self) -> bool {
        self.nic.is_being_changed()
    }

    fn disarm(&self, _: usize) {
        self.nic.disarm();
    }

    fn want_room(&self) -> bool {
        !self.is_up() || self.nic.want_room()
    }

    fn doorbells(&self, _: usize) -> Vec<Doorbell> {
        vec![self.host.bell().clone()]
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.poll_idle.filter(|_| self.is_served())
    }

    fn posts_silently(&self) -> bool {
        self.is_served() && (self.poll_idle.is_some() || self.nic.posts_silently())
    }

    /// QEMU waits for the writes of what it may map, and this chip's driver rings when asked to.
    fn rings_dearly(&self) -> bool {
        self.is_served() && self.poll_idle.is_none() && self.nic.layout().idle_page.is_some()
    }

    fn device(&self) -> Option<NicCounters> {
        Some(self.nic.device())
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn counters(&self) -> &Counters {
        self.nic.counters()
    }
}
