//! The ports that the process has open, by descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::nic_port::{Lanes, NicPort, SyncError};
use super::region::region;
use vmlan_tools::netmap::{Interest, NetmapError, Port};

/// How long an open tries.
const PATIENCE: Duration = Duration::from_secs(5);
/// `NR_REG_ALL_NIC`, `NR_REG_ONE_NIC`, `NR_NO_TX_POLL`.
const ALL: u32 = 1;
const ONE: u32 = 4;
const NO_TX_POLL: u64 = 0x2_0000;

/// A descriptor that is bound to lanes of a NIC.
pub(crate) struct Bound {
    fd: OwnedFd,
    address: String,
    nic: Arc<Mutex<NicPort>>,
    lanes: Lanes,
    /// poll(2) sends only where POLLOUT is asked for.
    no_tx_poll: bool,
}

type Table = BTreeMap<RawFd, Arc<Bound>>;

fn table() -> MutexGuard<'static, Table> {
    static TABLE: Mutex<Table> = Mutex::new(BTreeMap::new());
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn find(fd: RawFd) -> Option<Arc<Bound>> {
    table().get(&fd).cloned()
}

/// What a program asks for.
pub(crate) struct Request<'a> {
    pub(crate) address: &'a str,
    pub(crate) mode: u32,
    pub(crate) ring: u16,
    pub(crate) flags: u64,
    pub(crate) extra: u32,
}

/// Opens a NIC, or shares the one that is open under the same address.
pub(crate) fn open(request: &Request<'_>) -> Result<Arc<Bound>, Errno> {
    // Two threads that open the same one must not both reach for it; those that use others must not
    // wait for them.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |bound: &&Arc<Bound>| bound.address == request.address;
    let there = table().values().find(is_it).map(|bound| Arc::clone(&bound.nic));
    let nic = match there {
        Some(nic) => nic,
        None => Arc::new(Mutex::new(reach(request)?)),
    };
    let locked = lock(&nic);
    let all = locked.tx.len();
    let lanes = match (request.mode, usize::from(request.ring)) {
        (ALL, _) => 0..=all - 1,
        (ONE, ring) if ring < all => ring..=ring,
        _ => return Err(Errno::INVAL),
    };
    let fd = locked.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    drop(locked);
    let (address, no_tx_poll) = (request.address.to_owned(), request.flags & NO_TX_POLL != 0);
    let bound = Arc::new(Bound { fd, address, nic, lanes, no_tx_poll });
    table().insert(bound.fd.as_raw_fd(), Arc::clone(&bound));
    Ok(bound)
}

fn reach(request: &Request<'_>) -> Result<NicPort, Errno> {
    let address = request.address.parse().map_err(|_| Errno::INVAL)?;
    let port = Port::open_for(&address, None, PATIENCE).map_err(|_| Errno::NXIO)?;
    NicPort::new(port, region()?, request.address, request.extra)
}

/// Forgets a descriptor; false if there is none. The last one ends the NIC.
pub(crate) fn close(fd: RawFd) -> bool {
    let bound = table().remove(&fd);
    bound.is_some()
}

fn lock(nic: &Mutex<NicPort>) -> MutexGuard<'_, NicPort> {
    nic.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn nic(&self) -> MutexGuard<'_, NicPort> {
        lock(&self.nic)
    }

    pub(crate) fn txsync(&self) -> Result<(), SyncError> {
        self.nic().txsync(self.lanes.clone())
    }

    pub(crate) fn rxsync(&self) -> Result<(), SyncError> {
        self.nic().rxsync(self.lanes.clone())
    }

    /// Syncs as netmap's poll does: it always sends, unless that was ruled out.
    pub(crate) fn look(&self, want: Interest) -> Found {
        let mut nic = self.nic();
        let mut found = Found::default();
        if want.tx || !self.no_tx_poll {
            found.error |= nic.txsync(self.lanes.clone()).is_err();
        }
        if want.rx {
            found.error |= nic.rxsync(self.lanes.clone()).is_err();
        }
        let ready = nic.ready(&self.lanes);
        Found { rx: want.rx && ready.rx, tx: want.tx && ready.tx, ..found }
    }

    /// Gets ready for a sleep; false if there must be none.
    pub(crate) fn arm(&self, want: Interest) -> Result<bool, NetmapError> {
        self.nic().arm(&self.lanes, want)
    }
}
