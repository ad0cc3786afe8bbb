//! What C calls: `include/vmlan_netmap.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::nic_port::{Counters, SyncError};
use super::region::{Region, region};
use super::table::{self, Bound, Found, Request};
use vmlan_tools::netmap::Interest;
use vmlan_transport::numbers::narrow16;

/// `NIOCTXSYNC`, `NIOCRXSYNC`, and the kind of their likes: `_IOC_TYPE` is 'i'.
const TXSYNC: c_ulong = 0x6994;
const RXSYNC: c_ulong = 0x6995;
const KIND: c_ulong = 0x69;
/// How long a sleep is that may not be one, because a program waits for more than there can be.
const DOZE: Duration = Duration::from_millis(1);

/// `struct vmlan_netmap_port`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the header says it")]
pub struct NetmapPort {
    pub fd: c_int,
    pub tx_rings: u16,
    pub rx_rings: u16,
    pub tx_slots: u32,
    pub rx_slots: u32,
    pub nifp: *mut c_void,
    pub mem: *mut c_void,
    pub memsize: u64,
    pub nifp_offset: u64,
    pub extra_bufs: u32,
}

fn set_errno(errno: Errno) -> c_int {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
    -1
}

/// Opens a port.
///
/// # Safety
/// `address` is a string that ends in a zero, `port` a structure that can be written, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_open(
    address: *const c_char,
    mode: u32,
    ring: u16,
    flags: u64,
    port: *mut NetmapPort,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_mut() }) else { return set_errno(Errno::FAULT) };
    if address.is_null() {
        return set_errno(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    let Ok(address) = (unsafe { CStr::from_ptr(address) }).to_str() else {
        return set_errno(Errno::INVAL);
    };
    let request = Request { address, mode, ring, flags, extra: port.extra_bufs };
    let found = region().and_then(|region| Ok((region, table::open(&request)?)));
    match found {
        Ok((region, bound)) => {
            describe(region, &bound, port);
            0
        }
        Err(errno) => set_errno(errno),
    }
}

fn describe(region: &'static Region, bound: &Bound, port: &mut NetmapPort) {
    let nic = bound.nic();
    let [tx_slots, rx_slots] = nic.slots();
    *port = NetmapPort {
        fd: bound.fd(),
        tx_rings: narrow16(nic.tx.len() as u64),
        rx_rings: narrow16(nic.rx.len() as u64),
        tx_slots,
        rx_slots,
        nifp: region.pointer(nic.block).cast(),
        mem: region.pointer(0).cast(),
        memsize: Region::BYTES as u64,
        nifp_offset: nic.block as u64,
        extra_bufs: nic.extra(),
    };
}

/// Closes a port.
#[unsafe(no_mangle)]
pub extern "C" fn vmlan_netmap_close(fd: c_int) -> c_int {
    if table::close(fd) { 0 } else { set_errno(Errno::BADF) }
}

/// Counters of a port.
///
/// # Safety
/// `counters` can be written, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_counters(fd: c_int, counters: *mut Counters) -> c_int {
    // SAFETY: the caller's promise.
    let Some(counters) = (unsafe { counters.as_mut() }) else { return set_errno(Errno::FAULT) };
    let Some(bound) = table::find(fd) else { return set_errno(Errno::BADF) };
    *counters = bound.nic().counters;
    0
}

/// ioctl(2), with the requests of ports.
///
/// # Safety
/// That of ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_ioctl(
    fd: c_int,
    request: c_ulong,
    arg: *mut c_void,
) -> c_int {
    let Some(bound) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { libc::ioctl(fd, request, arg) };
    };
    let done = match request {
        TXSYNC => bound.txsync(),
        RXSYNC => bound.rxsync(),
        _ if request >> 8 & 0xff == KIND => return set_errno(Errno::OPNOTSUPP),
        // SAFETY: the caller's promise.
        _ => return unsafe { libc::ioctl(fd, request, arg) },
    };
    match done {
        // As in netmap, a ring that was reset is told by poll(2), not here.
        Ok(()) | Err(SyncError::Reset) => 0,
        Err(SyncError::Nic) => set_errno(Errno::NXIO),
    }
}

/// poll(2), with ports.
///
/// # Safety
/// `fds` are `count` structures that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_poll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    let Ok(len) = usize::try_from(count) else { return set_errno(Errno::INVAL) };
    if fds.is_null() && len > 0 {
        return set_errno(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    let fds = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(fds, len) } };
    match poll(fds, timeout) {
        Ok(ready) => ready,
        Err(error) => set_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn system_poll(fds: &mut [libc::pollfd], milliseconds: c_int) -> io::Result<c_int> {
    // SAFETY: a slice of as many structures.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    if ready < 0 { Err(io::Error::last_os_error()) } else { Ok(ready) }
}

fn want(fd: &libc::pollfd) -> Interest {
    Interest { rx: fd.events & libc::POLLIN != 0, tx: fd.events & libc::POLLOUT != 0 }
}

fn told(found: Found) -> i16 {
    let mut events = 0;
    for (is, event) in
        [(found.rx, libc::POLLIN), (found.tx, libc::POLLOUT), (found.error, libc::POLLERR)]
    {
        events |= if is { event } else { 0 };
    }
    events
}

fn poll(fds: &mut [libc::pollfd], timeout: c_int) -> io::Result<c_int> {
    let ports: Vec<_> = fds.iter().map(|fd| table::find(fd.fd)).collect();
    if ports.iter().all(Option::is_none) {
        return system_poll(fds, timeout);
    }
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let (start, mut vain) = (Instant::now(), 0);
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let mut found = look(fds, &ports);
        if !found.iter().any(|found| found.any()) && left != Some(Duration::ZERO) {
            let (sleeps, gone) = arm(fds, &ports);
            if sleeps {
                sleep(fds, &ports, left)?;
                continue;
            }
            for (found, gone) in found.iter_mut().zip(gone) {
                found.error |= gone;
            }
            if !found.iter().any(|found| found.any()) {
                // Something came while arming, or the program waits for what it has already.
                vain += 1;
                if vain > 2 {
                    let doze = left.unwrap_or(DOZE).min(DOZE);
                    let others = others_only(fds, &ports);
                    sleep_on(&mut others.clone(), Some(doze))?;
                }
                if !others_ready(fds, &ports)? {
                    continue;
                }
            }
        }
        return finish(fds, &ports, &found);
    }
}

type Ports = [Option<std::sync::Arc<Bound>>];

fn look(fds: &[libc::pollfd], ports: &Ports) -> Vec<Found> {
    let one = |(fd, port): (&libc::pollfd, &Option<std::sync::Arc<Bound>>)| {
        port.as_ref().map_or_else(Found::default, |port| port.look(want(fd)))
    };
    fds.iter().zip(ports).map(one).collect()
}

/// May it sleep, and who is gone?
fn arm(fds: &[libc::pollfd], ports: &Ports) -> (bool, Vec<bool>) {
    let mut sleeps = true;
    let gone = fds.iter().zip(ports).map(|(fd, port)| {
        let armed = port.as_ref().map_or(Ok(true), |port| port.arm(want(fd)));
        sleeps &= matches!(armed, Ok(true));
        armed.is_err()
    });
    let gone = gone.collect();
    (sleeps, gone)
}

/// The same without ports.
fn others_only(fds: &[libc::pollfd], ports: &Ports) -> Vec<libc::pollfd> {
    let mut others = fds.to_vec();
    for (fd, _) in others.iter_mut().zip(ports).filter(|(_, port)| port.is_some()) {
        fd.fd = -1;
    }
    others
}

fn others_ready(fds: &[libc::pollfd], ports: &Ports) -> io::Result<bool> {
    Ok(system_poll(&mut others_only(fds, ports), 0)? > 0)
}

/// Sleeps on all, on ports' descriptors for their bells.
fn sleep(fds: &[libc::pollfd], ports: &Ports, left: Option<Duration>) -> io::Result<()> {
    let mut all = fds.to_vec();
    for (fd, _) in all.iter_mut().zip(ports).filter(|(_, port)| port.is_some()) {
        fd.events = libc::POLLIN;
    }
    sleep_on(&mut all, left)
}

fn sleep_on(fds: &mut [libc::pollfd], left: Option<Duration>) -> io::Result<()> {
    // Rounded up: a millisecond too long rather than a loop without sleep.
    let milliseconds = left.map_or(-1, |left| {
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    });
    system_poll(fds, milliseconds).map(drop)
}

/// What is there now; how many descriptors.
fn finish(fds: &mut [libc::pollfd], ports: &Ports, found: &[Found]) -> io::Result<c_int> {
    let mut others = others_only(fds, ports);
    let mut ready = system_poll(&mut others, 0)?;
    for (at, fd) in fds.iter_mut().enumerate() {
        if ports[at].is_some() {
            fd.revents = told(found[at]);
            ready += c_int::from(fd.revents != 0);
        } else {
            fd.revents = others[at].revents;
        }
    }
    Ok(ready)
}
