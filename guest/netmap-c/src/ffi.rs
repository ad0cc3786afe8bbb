//! What C calls: `include/vmlan_netmap.h`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::counters::{Counters, SyncError};
use super::name::{MEM_ID, Name, Pipe};
use super::region::{Region, region};
use super::table::{self, Bound, Found, Request};
use vmlan_tools::netmap::Interest;
use vmlan_transport::numbers::{narrow16, narrow32};

/// `NIOCTXSYNC`, `NIOCRXSYNC`, and the kind of their likes: `_IOC_TYPE` is 'i'.
const TXSYNC: c_ulong = 0x6994;
const RXSYNC: c_ulong = 0x6995;
const KIND: c_ulong = 0x69;
/// The number of `NIOCREGIF`.
const REGISTER: c_ulong = 146;
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
    pub mem_id: u16,
    pub host_rings: u16,
    pub first_tx_ring: u16,
    pub last_tx_ring: u16,
    pub first_rx_ring: u16,
    pub last_rx_ring: u16,
}

/// `struct vmlan_netmap_name`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the header says it")]
pub struct NetmapName {
    pub flags: u64,
    pub len: u32,
    pub mode: u32,
    pub ring: u16,
    pub mem_id: u16,
    pub pipe_base: u32,
    pub pipe_mode: u32,
    pub pipe: u16,
}

fn set_errno(errno: Errno) -> c_int {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
    -1
}

/// A string of C.
///
/// # Safety
/// It ends in a zero and does not change, or it is NULL.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Errno> {
    if text.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Errno::INVAL)
}

/// Takes the name of a port apart.
///
/// # Safety
/// `name` is a string that ends in a zero, `parsed` a structure that can be written, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_parse(name: *const c_char, parsed: *mut NetmapName) -> c_int {
    // SAFETY: the caller's promise.
    let Some(parsed) = (unsafe { parsed.as_mut() }) else { return set_errno(Errno::FAULT) };
    // SAFETY: the caller's promise.
    match unsafe { text(name) }.and_then(Name::parse) {
        Ok(name) => {
            let pipe = Pipe::of(name.port).map_or(0, |pipe| pipe.base.len());
            // A pipe that has no number has none of the older modes either.
            let numbered = Pipe::of(name.port).and_then(|pipe| pipe.numbered().ok());
            let (pipe_mode, number) = numbered.unwrap_or_default();
            *parsed = NetmapName {
                flags: name.flags,
                len: narrow32(name.port.len() as u64),
                mode: name.mode,
                ring: name.ring,
                mem_id: name.mem_id,
                pipe_base: narrow32(pipe as u64),
                pipe_mode,
                pipe: number,
            };
            0
        }
        Err(errno) => set_errno(errno),
    }
}

/// Opens a port.
///
/// # Safety
/// `name` is a string that ends in a zero, `port` a structure that can be written, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmlan_netmap_open(
    name: *const c_char,
    mode: u32,
    ring: u16,
    flags: u64,
    port: *mut NetmapPort,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_mut() }) else { return set_errno(Errno::FAULT) };
    let (slots, mem_id, extra) = ([port.tx_slots, port.rx_slots], port.mem_id, port.extra_bufs);
    // SAFETY: the caller's promise.
    let opened = unsafe { text(name) }.and_then(|name| {
        let request = Request { port: name, mode, ring, mem_id, flags, slots, extra };
        Ok((region()?, table::open(&request)?))
    });
    match opened {
        Ok((region, bound)) => {
            describe(region, &bound, port);
            0
        }
        Err(errno) => set_errno(errno),
    }
}

fn describe(region: &'static Region, bound: &Bound, port: &mut NetmapPort) {
    let (shape, block) = (bound.shape, bound.interface.block);
    let ends = |rings: usize, bound: &Range<usize>| {
        // As libnetmap has it: of no rings, the first lies behind the last.
        let all = rings + shape.host_rings;
        let bound = if bound.is_empty() { all..all } else { bound.clone() };
        (narrow16(bound.start as u64), narrow16(bound.end as u64 - 1))
    };
    let (first_tx_ring, last_tx_ring) = ends(shape.rings[0], &bound.bounds.tx);
    let (first_rx_ring, last_rx_ring) = ends(shape.rings[1], &bound.bounds.rx);
    *port = NetmapPort {
        fd: bound.fd(),
        tx_rings: narrow16(shape.rings[0] as u64),
        rx_rings: narrow16(shape.rings[1] as u64),
        tx_slots: shape.slots[0],
        rx_slots: shape.slots[1],
        nifp: region.pointer(block).cast(),
        mem: region.pointer(0).cast(),
        memsize: Region::BYTES as u64,
        nifp_offset: block as u64,
        extra_bufs: bound.interface.extra,
        mem_id: MEM_ID,
        host_rings: narrow16(shape.host_rings as u64),
        first_tx_ring,
        last_tx_ring,
        first_rx_ring,
        last_rx_ring,
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
    *counters = bound.counters();
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
        // As netmap answers for a descriptor that is bound.
        _ if request & 0xffff == KIND << 8 | REGISTER => return set_errno(Errno::BUSY),
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

/// poll(2), with ports.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: c_int) -> io::Result<c_int> {
    let ports: Vec<_> = fds.iter().map(|fd| table::find(fd.fd)).collect();
    if ports.iter().all(Option::is_none) {
        return system_poll(fds, timeout);
    }
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let (start, mut vain, mut others) = (Instant::now(), 0, false);
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let (mut found, over) = (look(fds, &ports), left == Some(Duration::ZERO));
        if !others && !over && !found.iter().any(|found| found.any()) {
            let (sleeps, gone) = arm(fds, &ports);
            let slept = sleeps.then(|| sleep(fds, &ports, left));
            wake(fds, &ports);
            if let Some(slept) = slept {
                others = slept?;
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
        let ready = finish(fds, &ports, &found)?;
        if ready > 0 || over {
            return Ok(ready);
        }
        // Another thread has taken what was there.
        others = false;
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

/// The end of what was armed.
fn wake(fds: &[libc::pollfd], ports: &Ports) {
    for (fd, port) in fds.iter().zip(ports) {
        if let Some(port) = port {
            port.wake(want(fd));
        }
    }
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

/// Sleeps on all, for ports on what they watch. Have others than ports ended the sleep?
fn sleep(fds: &[libc::pollfd], ports: &Ports, left: Option<Duration>) -> io::Result<bool> {
    let mut all = others_only(fds, ports);
    for (fd, port) in fds.iter().zip(ports) {
        let watched = port.as_ref().map(|port| port.watched(want(fd))).unwrap_or_default();
        let watched = watched.into_iter();
        all.extend(watched.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
    }
    sleep_on(&mut all, left)?;
    Ok(all[..fds.len()].iter().any(|fd| fd.revents != 0))
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
