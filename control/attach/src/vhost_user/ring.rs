//! The rings of one connection, as the front end has set them up ("Ring states").
//!
//! ```text
//!            NUM, ADDR, BASE              KICK with all of it known
//!  stopped ──────────────────► stopped ────────────────────────────► started ⇄ enabled
//!     ▲                                                                 │
//!     └──────────── GET_VRING_BASE, RESET_DEVICE, SET_STATUS 0 ─────────┘
//! ```
//!
//! While a ring is started its size and addresses cannot change: only the log flag, the doorbell and the
//! interrupt can. Even rings are the guest's receive queues, odd ones its transmit queues.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlan_frame::Port;
use vmlan_nic::notify::moderate::Set;
use vmlan_nic::virtio::{Fault, Inflight, Net, QueueState, Rings};
use vmlan_ram::Map;

use super::inflight::{self, InflightRegion};
use super::port::{Bell, Both, VhostUserPort};
use super::wire::RingAddr;
use crate::eventfd::{self, Call};
use crate::memory::UNSHARED;

/// Why a ring was not set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such ring.
    #[error("there is no ring {index}: this port has {rings}")]
    NoRing {
        /// The number asked for.
        index: u32,
        /// How many there are.
        rings: usize,
    },
    /// It must be stopped for that.
    #[error("ring {0} is started: stop it with GET_VRING_BASE first")]
    Started(usize),
    /// A base beyond 16 bits (packed rings use more; we do not offer them).
    #[error("ring base {0} has more than 16 bits")]
    Base(u32),
    /// A size no ring has.
    #[error("ring size {0} is no power of two from 1 to 32768")]
    Size(u32),
    /// The addresses do not lie in any region. A VMM announces no region at all for memory that it
    /// does not share.
    #[error("ring {index} is at {addr:#x}, outside the memory that was announced: {UNSHARED}")]
    Address {
        /// The ring.
        index: usize,
        /// The first address that was not found.
        addr: u64,
    },
    /// The model refused it.
    #[error("ring {index} cannot start")]
    Fault {
        /// The ring.
        index: usize,
        /// Why.
        #[source]
        source: Fault,
    },
    /// No doorbell: such a ring would have to be polled for ever.
    #[error("ring {0} comes without a kick descriptor; polled rings are not supported")]
    NoKick(usize),
    /// The descriptor that should ring or be rung.
    #[error("ring {index}'s descriptor is of no use")]
    EventFd {
        /// The ring.
        index: usize,
        /// Why.
        #[source]
        source: eventfd::Error,
    },
    /// Its inflight region.
    #[error("ring {index} cannot start")]
    Inflight {
        /// The ring.
        index: usize,
        /// Why.
        #[source]
        source: inflight::Error,
    },
}

/// What both sides of a NIC can be told, whatever kind their queues have.
trait Queues {
    fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault>;
    fn stop(&mut self, index: u16) -> u16;
    fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault>;
    fn set_interrupt(&mut self, index: u16, call: Arc<Call>) -> Result<(), Fault>;
    fn set_inflight(&mut self, index: u16, inflight: Option<Inflight>);
    fn set_log(&mut self, index: u16, log: Option<u64>);
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

/// The side and the queue that ring `index` is.
fn queue<'b>(both: &'b mut Both<'_>, index: usize) -> (&'b mut dyn Queues, u16) {
    let number = u16::try_from(index / 2).unwrap_or(u16::MAX);
    if is_transmit(index) { (&mut both.tx.net, number) } else { (&mut both.rx.net, number) }
}

fn is_transmit(index: usize) -> bool {
    index % 2 == 1
}

/// What the port's limit knows ring `index` by: there are no more rings than that.
fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

#[derive(Debug)]
struct Ring {
    size: u16,
    addr: Option<RingAddr>,
    base: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Arc<Call>,
    err: Call,
    enabled: bool,
}

impl Ring {
    fn new(index: usize, port: &VhostUserPort) -> Self {
        let (account, limit) = (Arc::clone(port.account()), Arc::clone(port.limit()));
        Self {
            size: 0,
            addr: None,
            base: 0,
            kick: None,
            err: Call::new(Arc::clone(&account)),
            call: Arc::new(Call::limited(account, limit, number(index))),
            enabled: false,
        }
    }
}

/// All rings of one connection.
#[derive(Debug)]
pub struct RingTable {
    rings: Vec<Ring>,
    /// Without VHOST_USER_F_PROTOCOL_FEATURES there is no enabling: a started ring is enabled.
    always_enabled: bool,
}

impl RingTable {
    /// `count` rings of `port`, all stopped.
    #[must_use]
    pub fn new(count: usize, port: &VhostUserPort) -> Self {
        let rings = (0..count).map(|i| Ring::new(i, port)).collect();
        Self { rings, always_enabled: false }
    }

    /// How many rings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rings.len()
    }

    fn ring(&mut self, index: u32) -> Result<(usize, &mut Ring), Error> {
        let no_ring = Error::NoRing { index, rings: self.rings.len() };
        // Checked in full width: a ring number cut to 16 bits before the check was CVE-2020-10723.
        let i = usize::try_from(index).unwrap_or(usize::MAX);
        self.rings.get_mut(i).map(|ring| (i, ring)).ok_or(no_ring)
    }

    /// SET_VRING_NUM
    ///
    /// # Errors
    /// [`Error`], here and below.
    pub fn set_size(&mut self, cx: &Context<'_>, index: u32, size: u32) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        let valid = u16::try_from(size).ok().filter(|n| n.is_power_of_two() && *n <= 32768);
        let size = valid.ok_or(Error::Size(size))?;
        if size != ring.size && is_started(&mut cx.port.both(), i) {
            return Err(Error::Started(i));
        }
        ring.size = size;
        self.settle(cx, i)
    }

    /// SET_VRING_BASE. Only checked: a ring starts where its used index stands, which is the same for a front end
    /// that tells the truth.
    pub fn set_base(&mut self, cx: &Context<'_>, index: u32, base: u32) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        ring.base = u16::try_from(base).or(Err(Error::Base(base)))?;
        if is_started(&mut cx.port.both(), i) { Err(Error::Started(i)) } else { Ok(()) }
    }

    /// SET_VRING_ADDR
    pub fn set_addr(&mut self, cx: &Context<'_>, index: u32, addr: RingAddr) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        let mut both = cx.port.both();
        if is_started(&mut both, i) {
            if ring.addr.is_some_and(|old| RingAddr { log: addr.log, ..old } != addr) {
                return Err(Error::Started(i));
            }
            let (side, number) = queue(&mut both, i);
            side.set_log(number, addr.log);
        }
        drop(both);
        ring.addr = Some(addr);
        self.settle(cx, i)
    }

    /// SET_VRING_KICK: starts the ring. The front end's next use of the ring may come before its first kick, so we
    /// look at once and do not wait for one.
    pub fn set_kick(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        fd: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.ok_or(Error::NoKick(i))?;
        let fd = eventfd::check(fd).map_err(|source| Error::EventFd { index: i, source })?;
        ring.kick = Some(Arc::new(fd));
        let settled = self.settle(cx, i);
        if settled.is_err()
            && let Some(ring) = self.rings.get_mut(i)
        {
            ring.kick = None;
        }
        self.refresh(cx.port, &mut cx.port.both());
        settled
    }

    /// SET_VRING_CALL: may come at any time, also for a running ring.
    pub fn set_call(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        fd: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.map(eventfd::check).transpose();
        ring.call.set(fd.map_err(|source| Error::EventFd { index: i, source })?);
        let call = Arc::clone(&ring.call);
        call.hold();
        let mut both = cx.port.both();
        let (side, number) = queue(&mut both, i);
        // Also when it is the same: what was published while nobody listened is told now.
        let _ = side.set_interrupt(number, Arc::clone(&call));
        let calls = if is_transmit(i) { &mut both.tx.calls } else { &mut both.rx.calls };
        if !calls.iter().any(|c| Arc::ptr_eq(c, &call)) {
            calls.push(Arc::clone(&call));
        }
        drop(both);
        call.release();
        Ok(())
    }

    /// SET_VRING_ERR
    pub fn set_err(&mut self, index: u32, fd: Option<OwnedFd>) -> Result<(), Error> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.map(eventfd::check).transpose();
        ring.err.set(fd.map_err(|source| Error::EventFd { index: i, source })?);
        Ok(())
    }

    /// SET_VRING_ENABLE
    pub fn enable(&mut self, cx: &Context<'_>, index: u32, on: bool) -> Result<(), Error> {
        let (_, ring) = self.ring(index)?;
        ring.enabled = on;
        self.refresh(cx.port, &mut cx.port.both());
        Ok(())
    }

    /// Whether started rings are enabled by that alone.
    pub fn set_always_enabled(&mut self, port: &VhostUserPort, on: bool) {
        self.always_enabled = on;
        self.refresh(port, &mut port.both());
    }

    /// GET_VRING_BASE: stops the ring. When this returns, nothing of it is touched any more, and no interrupt of it is held
    /// back: whoever serves the ring next knows nothing of that.
    pub fn stop(&mut self, cx: &Context<'_>, index: u32) -> Result<u16, Error> {
        let (i, ring) = self.ring(index)?;
        let mut both = cx.port.both();
        let (side, number) = queue(&mut both, i);
        if side.is_started(number) {
            ring.base = side.stop(number);
        }
        ring.kick = None;
        let base = ring.base;
        self.refresh(cx.port, &mut both);
        drop(both);
        self.flush(cx.port, i);
        Ok(base)
    }

    /// Stops and disables all rings.
    pub fn reset(&mut self, port: &VhostUserPort) {
        let mut both = port.both();
        for (i, ring) in self.rings.iter_mut().enumerate() {
            let (side, number) = queue(&mut both, i);
            if side.is_started(number) {
                ring.base = side.stop(number);
            }
            ring.kick = None;
            ring.enabled = false;
        }
        self.refresh(port, &mut both);
        drop(both);
        self.flush_all(port);
    }

    /// Delivers at once whatever the limit holds back. Call without locks, here and below.
    pub fn flush_all(&self, port: &VhostUserPort) {
        (0..self.rings.len()).for_each(|i| self.flush(port, i));
    }

    fn flush(&self, port: &VhostUserPort, i: usize) {
        if port.limit().take(number(i)) {
            self.deliver_one(port, i);
        }
    }

    /// Delivers interrupts that have been held back.
    pub fn deliver(&self, port: &VhostUserPort, due: Set) {
        if !due.is_empty() {
            let all = 0..self.rings.len();
            all.filter(|i| due.contains(number(*i))).for_each(|i| self.deliver_one(port, i));
        }
    }

    fn deliver_one(&self, port: &VhostUserPort, i: usize) {
        let Some(ring) = self.rings.get(i) else { return };
        let counters = port.counters();
        let count =
            if is_transmit(i) { &counters.tx_interrupts } else { &counters.output.notifications };
        count.add_shared(1);
        ring.call.deliver();
    }

    /// True if a ring is started.
    #[must_use]
    pub fn any_started(&self, port: &VhostUserPort) -> bool {
        let mut both = port.both();
        (0..self.rings.len()).any(|i| is_started(&mut both, i))
    }

    /// Tells the front end that a ring broke (SET_VRING_ERR).
    pub fn raise_err(&self) {
        for ring in &self.rings {
            vmlan_nic::Interrupt::raise(&ring.err);
        }
    }

    /// How many rings are started and enabled: (the guest's receive rings, its transmit rings).
    #[must_use]
    pub fn live(&self) -> (usize, usize) {
        let live = |r: &Ring| r.kick.is_some() && (r.enabled || self.always_enabled);
        let count = |odd| {
            let rings = self.rings.iter().enumerate();
            rings.filter(|(i, r)| is_transmit(*i) == odd && live(r)).count()
        };
        (count(false), count(true))
    }

    /// Starts whatever can be started now that the memory has changed. What cannot will say so when it is touched.
    pub fn settle_all(&mut self, cx: &Context<'_>) {
        for i in 0..self.rings.len() {
            let _ = self.settle(cx, i);
        }
        self.refresh(cx.port, &mut cx.port.both());
    }

    /// Starts ring `i` if all of it is known and it is not started yet.
    fn settle(&mut self, cx: &Context<'_>, i: usize) -> Result<(), Error> {
        let Some(ring) = self.rings.get(i) else { return Ok(()) };
        let (Some(addr), true, true) = (ring.addr, ring.kick.is_some(), ring.size > 0) else {
            return Ok(());
        };
        let mut both = cx.port.both();
        if is_started(&mut both, i) {
            return Ok(());
        }
        let rings = locate(&both.tx.map, i, ring.size, addr)?;
        let inflight = cx.inflight.map(|region| region.part(i, ring.size)).transpose();
        let inflight = inflight.map_err(|source| Error::Inflight { index: i, source })?.flatten();
        let call = Arc::clone(&ring.call);
        call.hold();
        let (side, number) = queue(&mut both, i);
        let started = side.start(number, rings);
        side.set_inflight(number, inflight);
        self.refresh(cx.port, &mut both);
        drop(both);
        // A front end that reconnects may have missed the interrupt of our predecessor.
        vmlan_nic::Interrupt::raise(&*call);
        call.release();
        started.map_err(|source| Error::Fault { index: i, source })
    }

    /// Brings enabling and doorbells in line with the rings' states.
    fn refresh(&self, port: &VhostUserPort, both: &mut Both<'_>) {
        let live = |r: &Ring| r.enabled || self.always_enabled;
        let sends = |(i, r): (usize, &Ring)| is_transmit(i) && r.kick.is_some() && live(r);
        let any_sends = self.rings.iter().enumerate().any(sends);
        for (i, ring) in self.rings.iter().enumerate().filter(|(_, r)| r.kick.is_some()) {
            // "Started but disabled": a transmit ring is emptied, and what it holds thrown away.
            let on = live(ring) || is_transmit(i) && !any_sends;
            let (side, number) = queue(both, i);
            let _ = side.enable(number, on);
        }
        port.set_discard(!any_sends);
        let bell = |(i, r): (usize, &Ring)| Some(Bell::new(r.kick.clone()?, is_transmit(i)));
        port.set_bells(self.rings.iter().enumerate().filter_map(bell).collect());
    }
}

/// What rings need to know of their connection.
pub struct Context<'c> {
    /// The port.
    pub port: &'c VhostUserPort,
    /// The inflight region, if one was given.
    pub inflight: Option<&'c InflightRegion>,
}

fn is_started(both: &mut Both<'_>, i: usize) -> bool {
    let (side, number) = queue(both, i);
    side.is_started(number)
}

/// From the VMM's addresses to the guest's.
fn locate(map: &Map, index: usize, size: u16, addr: RingAddr) -> Result<Rings, Error> {
    let find = |addr| map.gpa_of(addr).ok_or(Error::Address { index, addr });
    let (desc, avail, used) = (find(addr.desc)?, find(addr.avail)?, find(addr.used)?);
    Ok(Rings { size, desc, avail, used, log: addr.log })
}
