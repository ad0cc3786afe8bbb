//! A NIC with its host rings, of which descriptors are bound to some.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::io::Errno;

use super::counters::{Counters, SyncError};
use super::host::Host;
use super::interface::Shown;
use super::nic_port::NicPort;
use super::region::Region;
use super::ring::Ring;
use vmlan_driver::nic::Nic;
use vmlan_tools::AnyNic;
use vmlan_tools::netmap::{Interest, NetmapError};

/// Rings that a descriptor is bound to, transmit and receive: those of the NIC have its lanes'
/// numbers, and the host's come after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) tx: Range<usize>,
    pub(crate) rx: Range<usize>,
}

/// See above.
pub(crate) struct Adapter<N: Nic = AnyNic> {
    pub(crate) nic: NicPort<N>,
    host: Option<Host>,
    /// The NIC's address, if it has one.
    mac: Option<[u8; 6]>,
    /// Descriptors that sleep, or are about to, and what for. The NIC knows one wish only: the last
    /// one that is stated.
    sleepers: Vec<(Bounds, Interest)>,
}

impl<N: Nic> Adapter<N> {
    pub(crate) fn new(nic: NicPort<N>, mac: Option<[u8; 6]>) -> Self {
        Self { nic, host: None, mac, sleepers: Vec::new() }
    }

    pub(crate) fn lanes(&self) -> usize {
        self.nic.tx.len()
    }

    /// Makes host rings, if there are none; with `name`, on the TAP device of this name. What the
    /// device is called.
    ///
    /// # Errors
    /// EBUSY if they are on another one; those of [`Host::open`].
    pub(crate) fn open_host(
        &mut self,
        region: &'static Region,
        name: Option<&str>,
    ) -> Result<String, Errno> {
        if self.host.is_none() {
            let slots = [self.nic.tx[0].slots(), self.nic.rx[0].slots()];
            let device = (name.unwrap_or("nm%d"), self.mac);
            self.host = Some(Host::open(region, (self.lanes(), slots), device)?);
        }
        let called = self.host.as_ref().map(|host| host.name().to_owned()).unwrap_or_default();
        if name.is_some_and(|name| name != called && !name.contains('%')) {
            return Err(Errno::BUSY);
        }
        Ok(called)
    }

    /// The rings that a descriptor is shown.
    pub(crate) fn shown(&self, bounds: &Bounds) -> Shown<'_> {
        let host = self.host.as_ref();
        let [tx, host_tx] = shown(&self.nic.tx, host.map(|host| &host.tx), &bounds.tx);
        let [rx, host_rx] = shown(&self.nic.rx, host.map(|host| &host.rx), &bounds.rx);
        Shown { nic: [tx, rx], host: [host_tx, host_rx] }
    }

    /// Of these rings the NIC's.
    fn lanes_of(&self, rings: &Range<usize>) -> Range<usize> {
        let lanes = self.lanes();
        rings.start.min(lanes)..rings.end.min(lanes)
    }

    /// The host's, if they are among these rings.
    fn host_of(&mut self, rings: &Range<usize>) -> Option<&mut Host> {
        let host = self.lanes();
        self.host.as_mut().filter(|_| rings.contains(&host))
    }

    fn has_nic(&self, bounds: &Bounds) -> bool {
        !self.lanes_of(&bounds.tx).is_empty() || !self.lanes_of(&bounds.rx).is_empty()
    }

    pub(crate) fn counters(&mut self, bounds: &Bounds) -> Counters {
        let mut sum = if self.has_nic(bounds) { self.nic.counters } else { Counters::default() };
        let host = [&bounds.tx, &bounds.rx].into_iter().find(|rings| rings.contains(&self.lanes()));
        if let Some(host) = host.and_then(|rings| self.host_of(rings)) {
            sum += host.counters;
        }
        sum
    }

    pub(crate) fn txsync(&mut self, bounds: &Bounds) -> Result<(), SyncError> {
        let host = self.host_of(&bounds.tx).map_or(Ok(()), Host::txsync);
        let lanes = self.lanes_of(&bounds.tx);
        let nic = if lanes.is_empty() { Ok(()) } else { self.nic.txsync(lanes) };
        nic.and(host)
    }

    /// With what the program forwards by marks in its slots: from the NIC to the host's stack, and,
    /// where all transmit rings of the NIC are bound, the other way round.
    pub(crate) fn rxsync(&mut self, bounds: &Bounds) -> Result<(), SyncError> {
        let lanes = self.lanes_of(&bounds.rx);
        let mut done = Ok(());
        if !lanes.is_empty() {
            done = self.nic.rxsync(lanes, self.host.as_mut());
        }
        let all = self.lanes_of(&bounds.tx) == (0..self.lanes());
        if !bounds.rx.contains(&self.lanes()) {
            return done;
        }
        let (mut sent, nic) = (false, &self.nic);
        if let Some(host) = &mut self.host {
            let host = host.rxsync(|slot| {
                let instead = if all { nic.insert(slot) } else { None };
                sent |= instead.is_some();
                instead
            });
            done = done.and(host);
        }
        if sent {
            done = done.and(self.nic.txsync(0..self.lanes()));
        }
        done
    }

    /// Has a ring something beyond `cur`?
    pub(crate) fn ready(&self, bounds: &Bounds) -> Interest {
        let nic = |rings: &[Ring], bound: Range<usize>| rings[bound].iter().any(Ring::is_ready);
        let nic_tx = nic(&self.nic.tx, self.lanes_of(&bounds.tx));
        let nic_rx = nic(&self.nic.rx, self.lanes_of(&bounds.rx));
        let host =
            |rings: &Range<usize>| self.host.as_ref().filter(|_| rings.contains(&self.lanes()));
        let tx = host(&bounds.tx).is_some_and(|host| host.tx.is_ready());
        let rx = host(&bounds.rx).is_some_and(|host| host.rx.is_ready());
        Interest { rx: nic_rx || rx, tx: nic_tx || tx }
    }

    /// Gets ready for a sleep on what is [watched](Self::watched); false if there must be none.
    /// In either case [`Self::wake`] follows.
    ///
    /// # Errors
    /// The other side of the NIC is gone, and nothing of it is left.
    pub(crate) fn arm(&mut self, bounds: &Bounds, want: Interest) -> Result<bool, NetmapError> {
        if !self.has_nic(bounds) {
            return Ok(true);
        }
        self.sleepers.push((bounds.clone(), want));
        let mut all = Interest { rx: false, tx: false };
        for (bounds, want) in &self.sleepers {
            let ready = self.ready(bounds);
            if want.rx && ready.rx || want.tx && ready.tx {
                // Another thread's sync has brought it, and with it took the news that were to wake
                // this one: the NIC's descriptor has to stay readable.
                return Ok(false);
            }
            all.rx |= want.rx && self.nic.has_room(self.lanes_of(&bounds.rx));
            all.tx |= want.tx && !self.lanes_of(&bounds.tx).is_empty();
        }
        self.nic.arm(all)
    }

    /// The end of a sleep, or of getting ready for one: what was wished for by the same arguments
    /// is no longer.
    pub(crate) fn wake(&mut self, bounds: &Bounds, want: Interest) {
        // Several threads may sleep alike; it does not matter whose wish this was.
        let at = self.sleepers.iter().position(|(rings, wish)| rings == bounds && *wish == want);
        if let Some(at) = at {
            self.sleepers.swap_remove(at);
        }
    }

    /// What a sleep is for.
    pub(crate) fn watched(&mut self, bounds: &Bounds, want: Interest) -> Vec<RawFd> {
        let mut watched = Vec::new();
        if self.has_nic(bounds) {
            watched.push(self.nic.as_fd().as_raw_fd());
        }
        // The kernel's stack takes all that it is given: there is nothing to wait for.
        let host = self.host_of(&bounds.rx);
        if let Some(host) = host.filter(|host| want.rx && host.rx.free() > 0) {
            watched.push(host.as_fd().as_raw_fd());
        }
        watched
    }
}

/// Those of the NIC's rings and of the host's that are within bounds.
fn shown<'a>(
    nic: &'a [Ring],
    host: Option<&'a Ring>,
    bound: &Range<usize>,
) -> [Vec<Option<&'a Ring>>; 2] {
    let all = nic.iter().map(Some).chain([host]).enumerate();
    let mut all: Vec<_> = all.map(|(at, ring)| ring.filter(|_| bound.contains(&at))).collect();
    let host = all.split_off(nic.len());
    [all, host]
}
