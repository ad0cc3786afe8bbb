//! Packet programs: a NIC's rings as slots that a program fills or reads and hands over by moving
//! `head`, as with netmap.
//!
//! ```no_run
//! use std::time::Duration;
//! use vmlan_tools::netmap::{Interest, Port};
//!
//! // Sends every frame back to where it came from.
//! let mut port = Port::open("vfio-user:/run/vm2.sock,csb=on")?;
//! loop {
//!     port.poll(Interest { rx: true, tx: false }, Duration::from_secs(1))?;
//!     let (mut rx, mut tx) = port.rings(0);
//!     while tx.space() > 0 && let Some(frame) = rx.pop() {
//!         let (to, from) = frame[..12].split_at_mut(6);
//!         to.swap_with_slice(from);
//!         tx.push(frame)?;
//!     }
//! } // The next poll sends what was pushed, and gives the read slots back.
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Port::open`] takes any address that the driver knows (`vhost-user:`, `vfio-user:`, and inside
//! a VM `pci:`), [`Port::new`] any [`Nic`], on whatever bus it is. `guest/tools/examples/` has a
//! bridge, a firewall and a counter.
//!
//! # The names
//!
//! - `nm_open`, `nmport_open`: [`Port::open`]; an address of a port instead of an interface's name
//! - `NETMAP_TXRING(nifp, i)`, `NETMAP_RXRING(nifp, i)`: [`Port::tx`], [`Port::rx`],
//!   [`Port::rings`]
//! - `ring->num_slots`: [`Tx::slots`], [`Rx::slots`]
//! - `ring->head`, `ring->cur`, `ring->tail`: `head()`, `cur()`, `tail()`; the same meaning
//! - `ring->head = ring->cur = i`: `set_head(i)` takes `cur` along, `set_cur(i)`; moving beyond
//!   `tail` panics; with netmap the ring is reset
//! - `nm_ring_next`, `nm_ring_space`, `nm_ring_empty`: `next`, `space`, `is_empty`
//! - `nm_tx_pending`: [`Tx::is_pending`]
//! - `ring->slot[i].len`: [`TxSlot::set_len`], [`TxSlot::len`], [`RxSlot::len`]
//! - `NETMAP_BUF(ring, slot->buf_idx)`: [`TxSlot::write`], [`TxSlot::put`], [`RxSlot::read`],
//!   [`RxSlot::bytes`]; the device is another process that may write at any moment, so bytes are
//!   copied in and out
//! - `NS_BUF_CHANGED` (swap buffers): no: each port has memory of its own, which only its device
//!   reaches; a forwarded frame is copied
//! - `NS_MOREFRAG`: no: a slot holds a whole frame, whatever number of buffers it came in
//! - `ioctl(fd, NIOCTXSYNC)`, `NIOCRXSYNC`: [`Port::txsync`], [`Port::rxsync`]; all rings of the
//!   port, as there
//! - `poll(fd, POLLIN | POLLOUT)` of one port: [`Port::poll`]; syncs before and after, as there
//! - `poll`, `epoll`, `kqueue` of many: [`Port::arm`], then the descriptor ([`AsFd`]), then sync;
//!   see below
//!
//! # Sleeping on the descriptor
//!
//! A device interrupts only those who say that they want it. So, before each sleep:
//!
//! 1. [`Port::arm`] for each port: it syncs, states the wishes, and looks again. False: something
//!    is there, do not sleep. Its wishes replace those of an earlier one: threads that share a port
//!    arm it for what all of them wait for.
//! 2. `poll(2)`, `select(2)`, `epoll(7)`, for *readable*, on the ports' descriptors and whatever
//!    else.
//! 3. [`Port::txsync`] and [`Port::rxsync`] (or the next `arm`): they take the interrupts and the
//!    wishes back.
//!
//! A port that is not armed has a descriptor that can be read. So a program that forgets step 1, or
//! does not look at its answer, spins but never misses a frame. The descriptor is the same for the
//! port's whole life, [`Port::reconnect`] included.
//!
//! # Panic contract
//!
//! Nothing that a device does makes this module panic. A program that touches a slot it does not
//! own does.

mod cursors;
mod poll_fd;
mod ring;
mod rx;
mod sleep;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use crate::AnyNic;
use poll_fd::Bell;
pub use ring::Ring;
use rx::RxRing;
pub use rx::{Rx, RxSlot};
use tx::TxRing;
pub use tx::{Refused, Tx, TxSlot};
use vmlan_driver::nic::{Nic, NicError};
pub use vmlan_driver::wait::Interest;
use vmlan_driver::wait::{Prepared, Wake};
use vmlan_transport::Address;
use vmlan_transport::AddressError;

const PATIENCE: Duration = Duration::from_secs(5); // How long [`Port::open`] tries.

/// Why a port cannot be opened, or fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NetmapError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Device(#[from] NicError),
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
    /// The other side has gone away, and every frame that it left behind was handed out.
    #[error("the other side of the port is gone")]
    Gone,
}

impl NetmapError {
    fn descriptor(source: io::Error) -> Self {
        Self::System { what: "make the port's descriptor", source }
    }
}

/// What [`Port::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// A receive ring has a frame that the program has not looked at.
    pub rx: bool,
    /// A transmit ring has a free slot.
    pub tx: bool,
}

/// A NIC, its rings and its descriptor. When it is dropped, frames that the device has not taken
/// yet are lost: [`Tx::is_pending`] tells whether there are any.
#[derive(Debug)]
pub struct Port<N: Nic = AnyNic> {
    device: N,
    tx: Vec<TxRing>,
    rx: Vec<RxRing<N::Batch>>,
    bell: Bell,
}

impl Port {
    /// Opens the port at an address, trying for 5 s. Slots take frames of 1,514 bytes at least.
    pub fn open(address: &str) -> Result<Self, NetmapError> {
        Self::open_for(&address.parse()?, None, PATIENCE)
    }

    /// The same for a parsed address, with slots for frames of `largest` bytes.
    pub fn open_for(
        place: &Address,
        largest: Option<usize>,
        patience: Duration,
    ) -> Result<Self, NetmapError> {
        Self::new(AnyNic::open(place, largest, patience)?)
    }
}

impl<N: Nic> Port<N> {
    /// A port on any device. Nobody else has sent with it, or has received frames that are not
    /// released.
    ///
    /// # Errors
    /// [`NetmapError::System`] when there is no descriptor left.
    pub fn new(mut device: N) -> Result<Self, NetmapError> {
        let bell = Bell::new(&device).map_err(NetmapError::descriptor)?;
        let mut tx: Vec<_> = (0..device.lanes()).map(|lane| TxRing::new(&device, lane)).collect();
        let rx = (0..device.lanes()).map(|lane| RxRing::new(&device, lane)).collect();
        for (lane, ring) in tx.iter_mut().enumerate() {
            ring.sync(&mut device, lane);
        }
        Ok(Self { device, tx, rx, bell })
    }

    /// Pairs of rings.
    pub fn lanes(&self) -> usize {
        self.tx.len()
    }

    /// The device, to ask it for its address and its counters.
    pub fn device(&self) -> &N {
        &self.device
    }

    /// A transmit ring.
    ///
    /// # Panics
    /// When there is no such lane; here and below.
    #[inline]
    pub fn tx(&mut self, lane: usize) -> Tx<'_, N> {
        self.tx[lane].lend(&self.device, lane)
    }

    /// A receive ring.
    #[inline]
    pub fn rx(&mut self, lane: usize) -> Rx<'_, N> {
        self.rx[lane].lend(&self.device, lane)
    }

    /// Both rings of a lane, for programs that answer.
    #[inline]
    pub fn rings(&mut self, lane: usize) -> (Rx<'_, N>, Tx<'_, N>) {
        (self.rx[lane].lend(&self.device, lane), self.tx[lane].lend(&self.device, lane))
    }

    /// Sends what the program filled in all transmit rings, and takes sent slots back: `tail` moves
    /// on.
    ///
    /// # Errors
    /// See [`NetmapError`]; never [`NetmapError::Gone`].
    #[inline]
    pub fn txsync(&mut self) -> Result<(), NetmapError> {
        self.rouse()?;
        for (lane, ring) in self.tx.iter_mut().enumerate() {
            ring.sync(&mut self.device, lane);
        }
        Ok(())
    }

    /// Gives read slots of all receive rings back, and takes received frames: `tail` moves on.
    ///
    /// # Errors
    /// See [`NetmapError`]; never [`NetmapError::Gone`].
    #[inline]
    pub fn rxsync(&mut self) -> Result<(), NetmapError> {
        self.rouse()?;
        for (lane, ring) in self.rx.iter_mut().enumerate() {
            ring.sync(&mut self.device, lane);
        }
        Ok(())
    }

    /// Gets ready for a sleep on the descriptor: sends what was filled, gives back what was read,
    /// and syncs what is of interest. False if something of it is there now, so that there must be
    /// no sleep.
    pub fn arm(&mut self, want: Interest) -> Result<bool, NetmapError> {
        self.sync(want)?;
        if self.has(want).any() {
            return Ok(false);
        }
        match self.device.prepare_wait(self.wish(want))? {
            Prepared::Sleep(most) => {
                self.bell.arm(most).map_err(NetmapError::descriptor)?;
                Ok(true)
            }
            Prepared::Now(wake) => {
                self.device.finish_wait(0)?;
                self.look(want, wake)?;
                Ok(false)
            }
        }
    }

    /// Syncs, and if there is nothing of interest sleeps until there is, or `timeout` is over (or a
    /// signal came); then syncs again.
    pub fn poll(&mut self, want: Interest, timeout: Duration) -> Result<Ready, NetmapError> {
        let start = Instant::now();
        self.sync(want)?;
        loop {
            let ready = self.has(want);
            let left = timeout.saturating_sub(start.elapsed());
            if ready.any() || left.is_zero() {
                return Ok(ready);
            }
            let wake = self.device.wait(self.wish(want), left)?;
            let ready = self.look(want, wake)?;
            if wake == Wake::Timeout {
                return Ok(ready);
            }
        }
    }

    /// Goes on with another device at the same place, when the first is gone. Frames under way are
    /// lost, and so is what the program had in its slots: all rings are as in a new port.
    ///
    /// # Errors
    /// See [`NetmapError`]; it can be tried again.
    pub fn reconnect(&mut self, patience: Duration) -> Result<(), NetmapError> {
        self.rouse()?;
        for (lane, ring) in self.rx.iter_mut().enumerate() {
            ring.clear(&mut self.device, lane);
        }
        self.bell.leave(&self.device);
        let done = self.device.reconnect(patience);
        self.bell.watch(&self.device).map_err(NetmapError::descriptor)?;
        done?;
        for (lane, ring) in self.tx.iter_mut().enumerate() {
            ring.reset(&mut self.device, lane);
        }
        Ok(())
    }

    /// The end of a sleep, if there was one.
    #[inline]
    fn rouse(&mut self) -> Result<(), NetmapError> {
        if self.bell.is_armed() { self.end_sleep() } else { Ok(()) }
    }

    #[cold]
    fn end_sleep(&mut self) -> Result<(), NetmapError> {
        let what = "look at the port's descriptor";
        let ready = self.bell.disarm().map_err(|source| NetmapError::System { what, source })?;
        // The next call that wants to sleep finds again that it is gone.
        self.device.finish_wait(ready)?;
        Ok(())
    }

    fn sync(&mut self, want: Interest) -> Result<(), NetmapError> {
        if want.tx || self.tx.iter().any(|ring| ring.at.given() > 0) {
            self.txsync()?;
        }
        if want.rx || self.rx.iter().any(|ring| ring.at.given() > 0) {
            self.rxsync()?;
        }
        self.rouse()
    }

    /// Syncs after a sleep. Frames that a device left behind come before the report that it is
    /// gone.
    fn look(&mut self, want: Interest, wake: Wake) -> Result<Ready, NetmapError> {
        self.sync(want)?;
        let ready = self.has(want);
        if wake == Wake::Disconnected && !ready.any() { Err(NetmapError::Gone) } else { Ok(ready) }
    }

    fn has(&self, want: Interest) -> Ready {
        Ready {
            rx: want.rx && self.rx.iter().any(|ring| ring.at.space() > 0),
            tx: want.tx && self.tx.iter().any(|ring| ring.at.space() > 0),
        }
    }

    /// What the device can do about it: for frames there must be a slot.
    fn wish(&self, want: Interest) -> Interest {
        Interest { rx: want.rx && !self.rx.iter().all(RxRing::is_full), tx: want.tx }
    }
}

impl Ready {
    /// Is there anything?
    pub fn any(self) -> bool {
        self.rx || self.tx
    }
}

impl<N: Nic> AsFd for Port<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl<N: Nic> AsRawFd for Port<N> {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }
}
