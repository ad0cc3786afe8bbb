//! The ports that the process has open, by descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::adapter::{Adapter, Bounds};
use super::counters::{Counters, SyncError};
use super::interface::{Interface, Shown};
use super::name::{self, MEM_ID, MONITOR};
use super::nic_port::NicPort;
use super::pipe::Pipe;
use super::region::{Region, region};
use vmlan_driver::nic::Info;
use vmlan_tools::AnyNic;
use vmlan_tools::netmap::{Interest, NetmapError, Port};
use vmlan_transport::Address;

/// How long an open tries.
const PATIENCE: Duration = Duration::from_secs(5);
/// `NR_NO_TX_POLL`.
const NO_TX_POLL: u64 = 0x2_0000;

/// What a descriptor is bound to.
#[derive(Clone)]
enum Target {
    Nic(Arc<Mutex<Adapter>>),
    /// And which end: 0 is the master's.
    Pipe(Arc<Mutex<Pipe>>, usize),
}

impl Target {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nic(one), Self::Nic(two)) => Arc::ptr_eq(one, two),
            (Self::Pipe(one, end), Self::Pipe(two, other)) => Arc::ptr_eq(one, two) && end == other,
            _ => false,
        }
    }
}

/// What is known of a port that has been opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Transmit and receive; here and below.
    pub(crate) rings: [usize; 2],
    pub(crate) host_rings: usize,
    pub(crate) slots: [u32; 2],
}

/// A descriptor that is bound to rings.
pub(crate) struct Bound {
    fd: OwnedFd,
    /// Under what others find it: an address, or the base and the identifier of a pipe.
    key: (String, Option<String>),
    target: Target,
    pub(crate) bounds: Bounds,
    pub(crate) interface: Interface,
    pub(crate) shape: Shape,
    /// poll(2) sends only where POLLOUT is asked for.
    no_tx_poll: bool,
    exclusive: bool,
}

type Table = BTreeMap<RawFd, Arc<Bound>>;

fn table() -> MutexGuard<'static, Table> {
    static TABLE: Mutex<Table> = Mutex::new(BTreeMap::new());
    lock(&TABLE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn find(fd: RawFd) -> Option<Arc<Bound>> {
    table().get(&fd).cloned()
}

/// What a program asks for.
pub(crate) struct Request<'a> {
    /// As in [`name::Name::port`].
    pub(crate) port: &'a str,
    pub(crate) mode: u32,
    pub(crate) ring: u16,
    pub(crate) mem_id: u16,
    pub(crate) flags: u64,
    /// Of a pipe.
    pub(crate) slots: [u32; 2],
    pub(crate) extra: u32,
}

impl Request<'_> {
    /// The rings that are meant of so many lanes, and of host rings after them.
    fn bounds(&self, lanes: usize, has_host: bool) -> Result<Bounds, Errno> {
        let rings = match (self.mode, usize::from(self.ring)) {
            (name::ALL_NIC, _) => 0..lanes,
            (name::ONE_NIC, ring) if ring < lanes => ring..ring + 1,
            (name::SW, _) | (name::ONE_SW, 0) if has_host => lanes..lanes + 1,
            (name::NIC_SW, _) if has_host => 0..lanes + 1,
            _ => return Err(Errno::INVAL),
        };
        let unless = |flag| if self.flags & flag == 0 { rings.clone() } else { 0..0 };
        Ok(Bounds { tx: unless(name::RX_ONLY), rx: unless(name::TX_ONLY) })
    }
}

/// Opens a NIC or a pipe, or shares the one that is open under the same name.
pub(crate) fn open(request: &Request<'_>) -> Result<Arc<Bound>, Errno> {
    // Two threads that open the same one must not both reach for it; those that use others must not
    // wait for them.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = lock(&ONE_AT_A_TIME);
    if request.flags & MONITOR != 0 || request.mem_id > MEM_ID {
        return Err(Errno::INVAL);
    }
    let number = request.ring.to_string();
    let (by_name, slave) = (name::Pipe::of(request.port), request.mode == name::PIPE_SLAVE);
    let bound = match by_name {
        None if request.port.contains(['{', '}']) => return Err(Errno::INVAL),
        None if slave || request.mode == name::PIPE_MASTER => {
            let pipe = name::Pipe { base: request.port, id: &number, slave };
            open_pipe(&Request { mode: name::ALL_NIC, ring: 0, ..*request }, pipe)?
        }
        None => open_nic(request)?,
        Some(pipe) => open_pipe(request, pipe)?,
    };
    let bound = Arc::new(bound);
    table().insert(bound.fd.as_raw_fd(), Arc::clone(&bound));
    Ok(bound)
}

/// The target that is open under this key.
fn known(key: &(String, Option<String>)) -> Option<Target> {
    table().values().find(|bound| bound.key == *key).map(|bound| bound.target.clone())
}

fn open_nic(request: &Request<'_>) -> Result<Bound, Errno> {
    let (address, host) = name::without_host(request.port);
    let (region, key) = (region()?, (address, None));
    let adapter = match known(&key) {
        Some(Target::Nic(adapter)) => adapter,
        _ => Arc::new(Mutex::new(reach(&key.0, region)?)),
    };
    let mut locked = lock(&adapter);
    let bounds = request.bounds(locked.lanes(), true)?;
    let target = Target::Nic(Arc::clone(&adapter));
    check_users(&target, request, &bounds)?;
    let with_host = [&bounds.tx, &bounds.rx].iter().any(|rings| rings.contains(&locked.lanes()));
    let called = with_host.then(|| locked.open_host(region, host)).transpose()?;
    let shown = locked.shown(&bounds);
    let shape = Shape {
        rings: [locked.nic.tx.len(), locked.nic.rx.len()],
        host_rings: 1,
        slots: [locked.nic.tx[0].slots(), locked.nic.rx[0].slots()],
    };
    let name = called.as_deref().unwrap_or(&key.0);
    let interface = Interface::new(region, name, &shown, request.extra)?;
    let fd = if bounds.tx.start.min(bounds.rx.start) < locked.lanes() {
        locked.nic.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?
    } else {
        always_ready()?
    };
    drop(locked);
    Ok(bind(fd, key, target, request, (bounds, interface, shape)))
}

fn reach(address: &str, region: &'static Region) -> Result<Adapter, Errno> {
    let address: Address = address.parse().map_err(|_| Errno::INVAL)?;
    let mut nic = AnyNic::open(&address, None, PATIENCE).map_err(|_| Errno::NXIO)?;
    let mac = nic.settle_mac(None).map(|mac| mac.0);
    let port = Port::new(nic).map_err(|_| Errno::MFILE)?;
    Ok(Adapter::new(NicPort::new(port, region)?, mac))
}

fn open_pipe(request: &Request<'_>, pipe: name::Pipe<'_>) -> Result<Bound, Errno> {
    let bounds = request.bounds(1, false)?;
    let (base, _) = name::without_host(pipe.base);
    let (region, key) = (region()?, (base, Some(pipe.id.to_owned())));
    let side = usize::from(pipe.slave);
    let shared = match known(&key) {
        Some(Target::Pipe(shared, _)) => shared,
        _ => Arc::new(Mutex::new(Pipe::new(region, request.slots)?)),
    };
    let target = Target::Pipe(Arc::clone(&shared), side);
    check_users(&target, request, &bounds)?;
    let mut locked = lock(&shared);
    let end = locked.end(side);
    let one = |ring, bound: &std::ops::Range<usize>| vec![Some(ring).filter(|_| !bound.is_empty())];
    let nic = [one(end.tx(), &bounds.tx), one(end.rx(), &bounds.rx)];
    let shown = Shown { nic, host: [vec![], vec![]] };
    let slots = [end.tx().slots(), end.rx().slots()];
    let shape = Shape { rings: [1, 1], host_rings: 0, slots };
    let interface = Interface::new(region, &key.0, &shown, request.extra)?;
    drop(locked);
    Ok(bind(always_ready()?, key, target, request, (bounds, interface, shape)))
}

/// For programs that look at a descriptor by other calls than ours: they must not miss anything.
fn always_ready() -> Result<OwnedFd, Errno> {
    eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// EBUSY if somebody has one of these rings for itself, or has one that this one wants so.
fn check_users(target: &Target, request: &Request<'_>, bounds: &Bounds) -> Result<(), Errno> {
    let wants = request.flags & name::EXCLUSIVE != 0;
    let meet = |one: &std::ops::Range<usize>, two: &std::ops::Range<usize>| {
        one.start.max(two.start) < one.end.min(two.end)
    };
    let busy = |bound: &&Arc<Bound>| {
        bound.target.is(target)
            && (wants || bound.exclusive)
            && (meet(&bound.bounds.tx, &bounds.tx) || meet(&bound.bounds.rx, &bounds.rx))
    };
    if table().values().any(|bound| busy(&bound)) { Err(Errno::BUSY) } else { Ok(()) }
}

fn bind(
    fd: OwnedFd,
    key: (String, Option<String>),
    target: Target,
    request: &Request<'_>,
    (bounds, interface, shape): (Bounds, Interface, Shape),
) -> Bound {
    let (no_tx_poll, exclusive) =
        (request.flags & NO_TX_POLL != 0, request.flags & name::EXCLUSIVE != 0);
    Bound { fd, key, target, bounds, interface, shape, no_tx_poll, exclusive }
}

/// Forgets a descriptor; false if there is none. The last one ends the NIC or the pipe.
pub(crate) fn close(fd: RawFd) -> bool {
    let bound = table().remove(&fd);
    bound.is_some()
}

/// What poll(2) finds at a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) rx: bool,
    pub(crate) tx: bool,
    pub(crate) error: bool,
}

impl Found {
    pub(crate) fn any(self) -> bool {
        self.rx || self.tx || self.error
    }
}

impl Bound {
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn counters(&self) -> Counters {
        match &self.target {
            Target::Nic(adapter) => lock(adapter).counters(&self.bounds),
            Target::Pipe(pipe, side) => lock(pipe).end(*side).counters(),
        }
    }

    /// Syncs of rings that it has.
    pub(crate) fn txsync(&self) -> Result<(), SyncError> {
        match &self.target {
            _ if self.bounds.tx.is_empty() => Ok(()),
            Target::Nic(adapter) => lock(adapter).txsync(&self.bounds),
            Target::Pipe(pipe, side) => lock(pipe).end(*side).txsync(),
        }
    }

    pub(crate) fn rxsync(&self) -> Result<(), SyncError> {
        match &self.target {
            _ if self.bounds.rx.is_empty() => Ok(()),
            Target::Nic(adapter) => lock(adapter).rxsync(&self.bounds),
            Target::Pipe(pipe, side) => lock(pipe).end(*side).rxsync(),
        }
    }

    fn ready(&self) -> Interest {
        match &self.target {
            Target::Nic(adapter) => lock(adapter).ready(&self.bounds),
            Target::Pipe(pipe, side) => {
                let mut pipe = lock(pipe);
                let end = pipe.end(*side);
                Interest { rx: end.rx().is_ready(), tx: end.tx().is_ready() }
            }
        }
    }

    /// Of what a program waits for, what its rings can have.
    fn sensible(&self, want: Interest) -> Interest {
        Interest {
            rx: want.rx && !self.bounds.rx.is_empty(),
            tx: want.tx && !self.bounds.tx.is_empty(),
        }
    }

    /// Syncs as netmap's poll does: it always sends, unless that was ruled out.
    pub(crate) fn look(&self, want: Interest) -> Found {
        let want = self.sensible(want);
        let mut found = Found::default();
        if want.tx || !self.no_tx_poll {
            found.error |= self.txsync().is_err();
        }
        if want.rx {
            found.error |= self.rxsync().is_err();
        }
        let ready = self.ready();
        Found { rx: want.rx && ready.rx, tx: want.tx && ready.tx, ..found }
    }

    /// Gets ready for a sleep; false if there must be none. [`Self::wake`] follows in any case.
    pub(crate) fn arm(&self, want: Interest) -> Result<bool, NetmapError> {
        let want = self.sensible(want);
        match &self.target {
            Target::Nic(adapter) => lock(adapter).arm(&self.bounds, want),
            Target::Pipe(pipe, side) => Ok(lock(pipe).end(*side).arm(want)),
        }
    }

    /// After [`Self::arm`] with the same, and the sleep, if there was one.
    pub(crate) fn wake(&self, want: Interest) {
        // A pipe keeps its wishes till they are fulfilled.
        if let Target::Nic(adapter) = &self.target {
            lock(adapter).wake(&self.bounds, self.sensible(want));
        }
    }

    /// Descriptors that can be read when a sleep must end; they live as long as this does.
    pub(crate) fn watched(&self, want: Interest) -> Vec<RawFd> {
        let want = self.sensible(want);
        match &self.target {
            Target::Nic(adapter) => lock(adapter).watched(&self.bounds, want),
            Target::Pipe(pipe, side) => lock(pipe).end(*side).watched(want),
        }
    }
}
