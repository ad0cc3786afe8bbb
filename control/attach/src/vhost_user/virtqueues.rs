//! The virtqueues of one connection, as the front end has set them up ("Ring states").
//!
//! ```text
//!            NUM, ADDR, BASE              KICK with all of it known
//!  stopped ──────────────────► stopped ────────────────────────────► started ⇄ enabled
//!     ▲                                                                 │
//!     └──────────── GET_VRING_BASE, RESET_DEVICE, SET_STATUS 0 ─────────┘
//! ```
//!
//! While a virtqueue is started its size and addresses cannot change: only the log flag, the
//! doorbell and the interrupt can. Even virtqueues are the guest's receive queues, odd ones its
//! transmit queues.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use vmlan_frame::Port;
use vmlan_keeper::Descriptor;
use vmlan_nic::notify::moderate::Set;
use vmlan_nic::virtio::Rings;
use vmlan_ram::Map;

use super::inflight::InflightRegion;
use super::kick::Kick;
use super::port::{BothSides, VhostUserPort};
use super::queue_index::QueueIndex;
use super::virtqueue_error::VirtqueueError;
use super::wire::{Request, VirtqueueAddr};
use crate::eventfd;
use crate::held::record::Again;
use crate::interrupt_eventfd::InterruptEventFd;

#[derive(Debug)]
struct Virtqueue {
    size: u16,
    addr: Option<VirtqueueAddr>,
    base: u32,
    kick: Option<Arc<Kick>>,
    call: Arc<InterruptEventFd>,
    err: InterruptEventFd,
    enabled: bool,
}

impl Virtqueue {
    fn new(index: QueueIndex, port: &VhostUserPort) -> Self {
        let (cost, limit) = (Arc::clone(port.cost()), Arc::clone(port.limit()));
        Self {
            size: 0,
            addr: None,
            base: 0,
            kick: None,
            err: InterruptEventFd::new(Arc::clone(&cost)),
            call: Arc::new(InterruptEventFd::limited(cost, limit, index.0)),
            enabled: false,
        }
    }
}

#[derive(Debug)]
pub struct VirtqueueTable {
    rings: Vec<Virtqueue>,
    /// Without VHOST_USER_F_PROTOCOL_FEATURES there is no enabling: a started virtqueue is enabled.
    always_enabled: bool,
}

impl VirtqueueTable {
    pub fn new(count: usize, port: &VhostUserPort) -> Self {
        let rings = QueueIndex::first(count).map(|i| Virtqueue::new(i, port)).collect();
        Self { rings, always_enabled: false }
    }

    pub fn len(&self) -> usize {
        self.rings.len()
    }

    fn indices(&self) -> impl Iterator<Item = QueueIndex> + use<> {
        QueueIndex::first(self.rings.len())
    }

    fn indexed(&self) -> impl Iterator<Item = (QueueIndex, &Virtqueue)> {
        self.indices().zip(&self.rings)
    }

    fn ring(&mut self, index: u32) -> Result<(QueueIndex, &mut Virtqueue), VirtqueueError> {
        let rings = self.rings.len();
        // Checked in full width: a number that was cut to 16 bits before the check was
        // CVE-2020-10723.
        let i = u8::try_from(index).or(Err(VirtqueueError::NoRing { index, rings }))?;
        let ring = self.rings.get_mut(usize::from(i));
        Ok((QueueIndex(i), ring.ok_or(VirtqueueError::NoRing { index, rings })?))
    }

    /// SET_VRING_NUM
    pub fn set_size(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        asked: u32,
    ) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let packed = cx.is_packed();
        let size = u16::try_from(asked).ok().filter(|size| is_size(*size, packed));
        let size = size.ok_or(VirtqueueError::Size { size: asked, packed })?;
        if size != ring.size && i.is_started(&mut cx.port.both()) {
            return Err(VirtqueueError::Started(i));
        }
        ring.size = size;
        self.settle(cx, i)
    }

    /// SET_VRING_BASE. Of a split virtqueue only checked: it starts where its used index stands,
    /// which is the same for a front end that tells the truth. A packed virtqueue starts there if
    /// its descriptors do not say where: by the lower half, since some front ends send no other.
    pub fn set_base(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        base: u32,
    ) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        if !cx.is_packed() && base > u16::MAX.into() {
            return Err(VirtqueueError::Base(base));
        }
        ring.base = base;
        if i.is_started(&mut cx.port.both()) { Err(VirtqueueError::Started(i)) } else { Ok(()) }
    }

    /// SET_VRING_ADDR
    pub fn set_addr(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        addr: VirtqueueAddr,
    ) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let mut both = cx.port.both();
        if i.is_started(&mut both) {
            if ring.addr.is_some_and(|old| VirtqueueAddr { log: addr.log, ..old } != addr) {
                return Err(VirtqueueError::Started(i));
            }
            let (side, number) = i.queue(&mut both);
            side.set_log(number, addr.log);
        }
        drop(both);
        ring.addr = Some(addr);
        self.settle(cx, i)
    }

    /// SET_VRING_KICK: starts the virtqueue. The front end's next use of the virtqueue may come
    /// before its first kick, so we look at once and do not wait for one.
    pub fn set_kick(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        fd: Option<Descriptor>,
    ) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.ok_or(VirtqueueError::NoKick(i))?;
        let fd =
            eventfd::check(fd).map_err(|source| VirtqueueError::EventFd { index: i, source })?;
        ring.kick = Some(Arc::new(Kick::new(fd, i.is_transmit())));
        let watched =
            self.show_kicks(cx.port).map_err(|source| VirtqueueError::Watch { index: i, source });
        let settled = watched.and_then(|()| self.settle(cx, i));
        if settled.is_err()
            && let Some(ring) = self.rings.get_mut(usize::from(i.0))
        {
            ring.kick = None;
            let _ = self.show_kicks(cx.port);
        }
        self.refresh(cx.port, &mut cx.port.both());
        settled
    }

    /// SET_VRING_CALL: may come at any time, also for a running virtqueue.
    pub fn set_call(
        &mut self,
        cx: &Context<'_>,
        index: u32,
        fd: Option<Descriptor>,
    ) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.map(eventfd::check).transpose();
        ring.call.set(fd.map_err(|source| VirtqueueError::EventFd { index: i, source })?);
        let call = Arc::clone(&ring.call);
        call.hold();
        let mut both = cx.port.both();
        let (side, number) = i.queue(&mut both);
        // Also when it is the same: what was published while nobody listened is told now.
        let _ = side.set_interrupt(number, Arc::clone(&call));
        let (lane, _) = both.lane_of(i.pair());
        let calls = if i.is_transmit() { &mut lane.tx.calls } else { &mut lane.rx.calls };
        if !calls.iter().any(|c| Arc::ptr_eq(c, &call)) {
            calls.push(Arc::clone(&call));
        }
        drop(both);
        call.release();
        Ok(())
    }

    /// SET_VRING_ERR
    pub fn set_err(&mut self, index: u32, fd: Option<Descriptor>) -> Result<(), VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let fd = fd.map(eventfd::check).transpose();
        ring.err.set(fd.map_err(|source| VirtqueueError::EventFd { index: i, source })?);
        Ok(())
    }

    /// SET_VRING_ENABLE
    pub fn enable(&mut self, cx: &Context<'_>, index: u32, on: bool) -> Result<(), VirtqueueError> {
        let (_, ring) = self.ring(index)?;
        ring.enabled = on;
        self.refresh(cx.port, &mut cx.port.both());
        Ok(())
    }

    /// Whether started virtqueues are enabled by that alone.
    pub fn set_always_enabled(&mut self, port: &VhostUserPort, on: bool) {
        self.always_enabled = on;
        self.refresh(port, &mut port.both());
    }

    /// GET_VRING_BASE: stops the virtqueue. When this returns, nothing of it is touched any more,
    /// and no interrupt of it is held back: whoever serves the virtqueue next knows nothing of
    /// that.
    pub fn stop(&mut self, cx: &Context<'_>, index: u32) -> Result<u32, VirtqueueError> {
        let (i, ring) = self.ring(index)?;
        let mut both = cx.port.both();
        let (side, number) = i.queue(&mut both);
        if side.is_started(number) {
            ring.base = side.stop(number);
        }
        ring.kick = None;
        let base = ring.base;
        self.refresh(cx.port, &mut both);
        drop(both);
        let _ = self.show_kicks(cx.port);
        self.flush(cx.port, i);
        Ok(base)
    }

    /// Stops and disables all virtqueues.
    pub fn reset(&mut self, port: &VhostUserPort) {
        let mut both = port.both();
        for (i, ring) in QueueIndex::first(self.rings.len()).zip(&mut self.rings) {
            let (side, number) = i.queue(&mut both);
            if side.is_started(number) {
                ring.base = side.stop(number);
            }
            ring.kick = None;
            ring.enabled = false;
        }
        self.refresh(port, &mut both);
        drop(both);
        let _ = self.show_kicks(port);
        self.flush_all(port);
    }

    /// Delivers at once whatever the limit holds back. Call without locks, here and below.
    pub fn flush_all(&self, port: &VhostUserPort) {
        self.indices().for_each(|i| self.flush(port, i));
    }

    fn flush(&self, port: &VhostUserPort, i: QueueIndex) {
        if port.limit().take(i.0) {
            self.deliver_one(port, i);
        }
    }

    /// Delivers interrupts that have been held back.
    pub fn deliver(&self, port: &VhostUserPort, due: Set) {
        if !due.is_empty() {
            self.indices().filter(|i| due.contains(i.0)).for_each(|i| self.deliver_one(port, i));
        }
    }

    fn deliver_one(&self, port: &VhostUserPort, i: QueueIndex) {
        let Some(ring) = self.rings.get(usize::from(i.0)) else { return };
        let counters = port.counters();
        let count =
            if i.is_transmit() { &counters.tx_interrupts } else { &counters.output.notifications };
        count.add_shared(1);
        ring.call.deliver();
    }

    pub fn any_started(&self, port: &VhostUserPort) -> bool {
        let mut both = port.both();
        self.indices().any(|i| i.is_started(&mut both))
    }

    /// Tells the front end that a virtqueue broke (SET_VRING_ERR).
    pub fn raise_err(&self) {
        for ring in &self.rings {
            vmlan_nic::Interrupt::raise(&ring.err);
        }
    }

    /// How many virtqueues are started and enabled: (the guest's receive virtqueues, its transmit
    /// virtqueues).
    pub fn live(&self) -> (usize, usize) {
        let live = |r: &Virtqueue| r.kick.is_some() && (r.enabled || self.always_enabled);
        let count = |odd| {
            let rings = self.indexed();
            rings.filter(|(i, r)| i.is_transmit() == odd && live(r)).count()
        };
        (count(false), count(true))
    }

    /// Whether started virtqueues are enabled by that alone.
    pub fn is_always_enabled(&self) -> bool {
        self.always_enabled
    }

    /// The requests that set all this up again. What the present layout cannot have was set up for
    /// another one, and is set up anew before it is used.
    pub fn setup(&self, packed: bool) -> Vec<Again> {
        let mut list = Vec::new();
        for (i, ring) in self.indexed() {
            let index = u32::from(i.0);
            let state = |value: u32| {
                let words = [index, value].into_iter().flat_map(u32::to_ne_bytes);
                Some((words.collect::<Vec<u8>>(), None))
            };
            let with = |fd: Arc<dyn AsFd>| (u64::from(i.0).to_ne_bytes().to_vec(), Some(fd));
            let event = |e: &InterruptEventFd| e.fd().map(|fd| with(fd));
            let base = if packed { ring.base } else { ring.base & u32::from(u16::MAX) };
            let requests = [
                (
                    Request::SetVringNum,
                    state(ring.size.into()).filter(|_| is_size(ring.size, packed)),
                ),
                (Request::SetVringBase, state(base).filter(|_| base != 0)),
                (Request::SetVringAddr, ring.addr.map(|addr| (addr.encode(index), None))),
                (Request::SetVringCall, event(&ring.call)),
                (Request::SetVringErr, event(&ring.err)),
                // Before it is started: what a queue that is not enabled sends is thrown away.
                (Request::SetVringEnable, state(1).filter(|_| ring.enabled)),
                (Request::SetVringKick, ring.kick.clone().map(|kick| with(kick))),
            ];
            let said = requests.into_iter().filter_map(|(request, what)| Some((request, what?)));
            list.extend(said.map(|(request, (body, fd))| Again {
                number: request.number(),
                body,
                fd,
            }));
        }
        list
    }

    /// Starts whatever can be started now that the memory has changed. What cannot will say so when
    /// it is touched.
    pub fn settle_all(&mut self, cx: &Context<'_>) {
        for i in self.indices() {
            let _ = self.settle(cx, i);
        }
        self.refresh(cx.port, &mut cx.port.both());
    }

    /// Starts virtqueue `i` if all of it is known and it is not started yet.
    fn settle(&mut self, cx: &Context<'_>, i: QueueIndex) -> Result<(), VirtqueueError> {
        let Some(ring) = self.rings.get(usize::from(i.0)) else { return Ok(()) };
        let (Some(addr), true, true) = (ring.addr, ring.kick.is_some(), ring.size > 0) else {
            return Ok(());
        };
        let mut both = cx.port.both();
        if i.is_started(&mut both) {
            return Ok(());
        }
        let rings = locate(&both.map(), i, ring, addr)?;
        let packed = both.is_packed();
        let inflight = cx.inflight.map(|region| region.part(i.0, ring.size, packed)).transpose();
        let inflight =
            inflight.map_err(|source| VirtqueueError::Inflight { index: i, source })?.flatten();
        let call = Arc::clone(&ring.call);
        call.hold();
        let (side, number) = i.queue(&mut both);
        let started = side.start(number, rings);
        side.set_inflight(number, inflight);
        self.refresh(cx.port, &mut both);
        drop(both);
        // A front end that reconnects may have missed the interrupt of our predecessor.
        vmlan_nic::Interrupt::raise(&*call);
        call.release();
        started.map_err(|source| VirtqueueError::Fault { index: i, source })
    }

    /// Brings enabling in line with the virtqueues' states.
    fn refresh(&self, port: &VhostUserPort, both: &mut BothSides<'_>) {
        let live = |r: &Virtqueue| r.enabled || self.always_enabled;
        let sends =
            |(i, r): (QueueIndex, &Virtqueue)| i.is_transmit() && r.kick.is_some() && live(r);
        let any_sends = self.indexed().any(sends);
        for (i, ring) in self.indexed().filter(|(_, r)| r.kick.is_some()) {
            // "Started but disabled": a transmit virtqueue is emptied, and what it holds thrown
            // away.
            let on = live(ring) || i.is_transmit() && !any_sends;
            let (side, number) = i.queue(both);
            let _ = side.enable(number, on);
        }
        port.set_discard(!any_sends);
    }

    /// Lets workers hear the kicks that there are now. Call without locks: it may take long.
    fn show_kicks(&self, port: &VhostUserPort) -> io::Result<()> {
        let kick = |(i, ring): (QueueIndex, &Virtqueue)| {
            Some((port.lane_of(i.pair()), ring.kick.clone()?))
        };
        let kicks: Vec<_> = self.indexed().filter_map(kick).collect();
        port.kicks().set(&kicks, port.counters(), port.cost())
    }
}

/// The virtqueue may have so many descriptors.
fn is_size(size: u16, packed: bool) -> bool {
    (1..=32768).contains(&size) && (packed || size.is_power_of_two())
}

/// What virtqueues need to know of their connection.
#[allow(missing_docs, reason = "the names say it")]
pub struct Context<'c> {
    pub port: &'c VhostUserPort,
    pub inflight: Option<&'c InflightRegion>,
}

impl Context<'_> {
    /// Whether packed virtqueues were negotiated.
    fn is_packed(&self) -> bool {
        self.port.both().is_packed()
    }
}

/// From the VMM's addresses to the guest's.
fn locate(
    map: &Map,
    index: QueueIndex,
    ring: &Virtqueue,
    addr: VirtqueueAddr,
) -> Result<Rings, VirtqueueError> {
    let find = |addr| map.gpa_of(addr).ok_or(VirtqueueError::Address { index, addr });
    let (desc, avail, used) = (find(addr.desc)?, find(addr.avail)?, find(addr.used)?);
    let [b0, b1, ..] = ring.base.to_le_bytes();
    let base = u16::from_le_bytes([b0, b1]);
    Ok(Rings { size: ring.size, desc, avail, used, log: addr.log, base })
}
