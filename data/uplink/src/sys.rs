//! System calls that neither the standard library nor rustix has. All unsafe code of this crate is
//! here: requests to network interfaces, packet sockets, bpf(2), memory shared with the kernel, and
//! writes that gather memory which others may change.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, c_short, c_uint};
use rustix::event::{EventfdFlags, PollFd, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vmlan_ram::Slice;

/// `struct ifreq` (netdevice(7)) as far as we use it: a name and flags.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    flags: c_short,
    rest: [u8; 22],
}

impl IfReq {
    fn new(name: &str, flags: c_short) -> io::Result<Self> {
        let mut req = Self { name: [0; libc::IFNAMSIZ], flags, rest: [0; 22] };
        // One byte stays 0: the kernel wants the name terminated.
        let dst = req.name.get_mut(..name.len()).filter(|d| d.len() < libc::IFNAMSIZ);
        dst.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
        Ok(req)
    }

    fn name(&self) -> String {
        let bytes = self.name.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// The same with a pointer to what a command of ethtool reads and writes.
#[repr(C)]
struct EthtoolReq([u8; libc::IFNAMSIZ], *mut u32, [u8; 16]);

/// A request of `ioctl` that reads or writes one `T`.
struct Request<T>(libc::Ioctl, PhantomData<fn(&mut T)>);

/// Attaches a descriptor of `/dev/net/tun` to a device.
const TUNSETIFF: Request<IfReq> = Request(libc::TUNSETIFF, PhantomData);
/// The present name of that device.
const TUNGETIFF: Request<IfReq> = Request(libc::TUNGETIFF, PhantomData);
/// Length of the virtio-net header before each frame.
const TUNSETVNETHDRSZ: Request<c_int> = Request(libc::TUNSETVNETHDRSZ, PhantomData);
/// Flags of an interface, read and written.
const SIOCGIFFLAGS: Request<IfReq> = Request(libc::SIOCGIFFLAGS as libc::Ioctl, PhantomData);
/// MTU of an interface, where flags have the low half of it.
const SIOCGIFMTU: Request<IfReq> = Request(libc::SIOCGIFMTU as libc::Ioctl, PhantomData);
/// Hardware address of an interface, with its type.
const SIOCGIFHWADDR: Request<IfReq> = Request(libc::SIOCGIFHWADDR as libc::Ioctl, PhantomData);
const SIOCSIFFLAGS: Request<IfReq> = Request(libc::SIOCSIFFLAGS as libc::Ioctl, PhantomData);

/// A command of ethtool, which says itself how long it is.
const SIOCETHTOOL: Request<EthtoolReq> = Request(libc::SIOCETHTOOL as libc::Ioctl, PhantomData);

fn ioctl<T>(fd: BorrowedFd<'_>, request: &Request<T>, arg: &mut T) -> io::Result<()> {
    // SAFETY: the requests above read and write one value of their type, which `arg` is, and what
    // it points to, which is alive and long enough.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request.0, std::ptr::from_mut(arg)) })?;
    Ok(())
}

/// A system call's result: -1 is the only negative one, and its cause is in errno.
fn check<T>(result: T) -> io::Result<usize>
where
    usize: TryFrom<T>,
{
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Attaches a descriptor of `/dev/net/tun` to device `name` (`TUNSETIFF`).
pub(crate) fn tun_attach(tun: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let flags = c_short::try_from(flags).map_err(io::Error::other)?;
    ioctl(tun, &TUNSETIFF, &mut IfReq::new(name, flags)?)
}

/// The present name of the device behind `tun` (`TUNGETIFF`); `EBADFD` once it is deleted.
pub(crate) fn tun_name(tun: BorrowedFd<'_>) -> io::Result<String> {
    let mut req = IfReq::new("", 0)?;
    ioctl(tun, &TUNGETIFF, &mut req)?;
    Ok(req.name())
}

/// Sets the length of the virtio-net header before each frame.
pub(crate) fn tun_set_header(tun: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    ioctl(tun, &TUNSETVNETHDRSZ, &mut { len })
}

/// Says which offloads we can read (`TUN_F_*`).
pub(crate) fn tun_set_offload(tun: BorrowedFd<'_>, bits: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(bits)) })?;
    Ok(())
}

/// The `IFF_*` flags of interface `name`; `ENODEV` if there is none.
pub(crate) fn link_flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<c_int> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFFLAGS, &mut req)?;
    Ok(c_int::from(req.flags))
}

/// The MTU of interface `name`; `ENODEV` if there is none.
pub(crate) fn link_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFMTU, &mut req)?;
    // An int at the place of the flags (netdevice(7)).
    let ([a, b], [c, d, ..]) = (req.flags.to_ne_bytes(), req.rest);
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// The hardware type of interface `name` (`ARPHRD_*`).
pub(crate) fn link_type(socket: BorrowedFd<'_>, name: &str) -> io::Result<u16> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFHWADDR, &mut req)?;
    // The address's family is at the place of the flags (netdevice(7)).
    Ok(req.flags.cast_unsigned())
}

/// Queues of interface `name` that receive and that send, as its driver says (ethtool, kernel:
/// `struct ethtool_channels`); one of each, if it says nothing.
pub(crate) fn link_queues(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, u32)> {
    const GET_CHANNELS: u32 = 0x3c;
    let mut channels = [0u32; 9];
    channels[0] = GET_CHANNELS;
    let mut req = EthtoolReq(IfReq::new(name, 0)?.name, channels.as_mut_ptr(), [0; 16]);
    match ioctl(socket, &SIOCETHTOOL, &mut req) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok((1, 1)),
        Err(e) => Err(e),
        Ok(()) => {
            // Four maxima come first.
            let [_, _, _, _, _, receive, send, _, both] = channels;
            Ok((receive.saturating_add(both), send.saturating_add(both)))
        }
    }
}

/// True if interface `name` takes VLAN tags out of the frames that it receives (ethtool, kernel:
/// `struct ethtool_value`); no, if it does not say.
pub(crate) fn link_takes_tags(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    const GET_FLAGS: u32 = 0x25;
    const RX_VLAN: u32 = 1 << 8;
    let mut value = [GET_FLAGS, 0];
    let mut req = EthtoolReq(IfReq::new(name, 0)?.name, value.as_mut_ptr(), [0; 16]);
    match ioctl(socket, &SIOCETHTOOL, &mut req) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        done => done.map(|()| value[1] & RX_VLAN != 0),
    }
}

/// Sets interface `name` up.
pub(crate) fn link_set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFFLAGS, &mut req)?;
    req.flags |= c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    ioctl(socket, &SIOCSIFFLAGS, &mut req)
}

/// A non-blocking netlink socket that becomes readable whenever some link changes.
pub(crate) fn link_events() -> io::Result<OwnedFd> {
    const LINKS: u32 = libc::RTMGRP_LINK.cast_unsigned();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 of netlink is NETLINK_ROUTE.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
    Ok(socket)
}

/// A non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes `event` readable. It cannot fail in a way that matters: a full counter is readable too.
pub(crate) fn notify(event: BorrowedFd<'_>) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Reads and forgets what is there, up to a bound; `poll` will say if there is more. True if there
/// was anything, if only that something is lost.
pub(crate) fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut buf = [0; 8192];
    for read in 0..64 {
        match rustix::io::read(fd, &mut buf) {
            Ok(_) | Err(Errno::NOBUFS) => {}
            Err(_) => return read > 0,
        }
    }
    true
}

/// Waits until one of `fds` is ready or the time is over. A signal ends it early.
pub(crate) fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    // Longer than `Timespec` can say is as good as for ever.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    let _ = rustix::event::poll(fds, timeout.as_ref());
}

/// An unbound, non-blocking UNIX stream socket.
pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The address of the socket file `path`.
///
/// # Errors
/// If the path is empty or has more bytes than `sockaddr_un` holds.
pub(crate) fn unix_address(path: &Path) -> io::Result<SocketAddrUnix> {
    if !(1..108).contains(&path.as_os_str().as_bytes().len()) {
        let why = "the path is empty or longer than 107 bytes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(SocketAddrUnix::new(path)?)
}

/// Runs to be written by one system call, straight from where they lie: our own bytes or guest
/// memory. The guest may change its bytes while the kernel copies; that is garbage in its own
/// frame.
pub(crate) struct Gather<'a, const N: usize> {
    iov: [MaybeUninit<libc::iovec>; N],
    len: usize,
    _runs: PhantomData<Slice<'a>>,
}

impl<'a, const N: usize> Gather<'a, N> {
    pub(crate) fn new() -> Self {
        // What `writev` and `sendmsg` take at most (IOV_MAX).
        const { assert!(N <= 1024) };
        Self { iov: [const { MaybeUninit::uninit() }; N], len: 0, _runs: PhantomData }
    }

    /// True if `n` more runs fit.
    pub(crate) fn has_room(&self, n: usize) -> bool {
        self.len + n <= N
    }

    /// Appends a run. Ask [`Gather::has_room`] first: what does not fit is left out.
    #[inline]
    pub(crate) fn add(&mut self, run: Slice<'a>) {
        if let Some(slot) = self.iov.get_mut(self.len) {
            let (base, len) = run.as_raw();
            slot.write(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
            self.len += 1;
        }
    }

    /// `writev(2)`.
    #[inline]
    pub(crate) fn write(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // At most N, which `new` has checked.
        let n = c_int::try_from(self.len).map_err(io::Error::other)?;
        // SAFETY: the first `len` entries are initialised by `add`; each names memory that stays
        // readable for 'a (a `Slice`'s promise); writev does not write to it.
        check(unsafe { libc::writev(fd.as_raw_fd(), self.iov.as_ptr().cast(), n) })
    }
}

/// Makes the kernel refuse descriptors that anybody sends to `socket`, or to those accepted from it
/// (`SO_PASSRIGHTS`, Linux 6.16).
///
/// # Errors
/// That of `setsockopt`: the kernel is older.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PASSRIGHTS: c_int = 83; // From `asm-generic/socket.h`.
    let off: c_int = 0;
    let len = libc::socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: the option's value is an int, which `off` is, and which is only read.
    check(unsafe {
        let value = std::ptr::from_ref(&off).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, len)
    })?;
    Ok(())
}

/// An option of packet sockets (packet(7)) that is written as one `T`.
pub(crate) struct PacketOption<T>(c_int, PhantomData<fn(&T)>);

/// `TPACKET_V1`, `V2` or `V3`.
pub(crate) const PACKET_VERSION: PacketOption<c_int> =
    PacketOption(libc::PACKET_VERSION, PhantomData);
/// 1: frames that the host sends by the interface are not received.
pub(crate) const PACKET_IGNORE_OUTGOING: PacketOption<c_int> =
    PacketOption(libc::PACKET_IGNORE_OUTGOING, PhantomData);
/// 1: a virtio-net header goes before each frame, both ways.
pub(crate) const PACKET_VNET_HDR: PacketOption<c_int> =
    PacketOption(libc::PACKET_VNET_HDR, PhantomData);
/// The same, with the header's length (Linux 6.5).
pub(crate) const PACKET_VNET_HDR_SZ: PacketOption<c_int> =
    PacketOption(libc::PACKET_VNET_HDR_SZ, PhantomData);
/// Not 0: frames that are too long for the ring's slots are queued whole as well.
pub(crate) const PACKET_COPY_THRESH: PacketOption<c_int> =
    PacketOption(libc::PACKET_COPY_THRESH, PhantomData);
/// The geometry of the ring that frames are received in.
pub(crate) const PACKET_RX_RING: PacketOption<libc::tpacket_req> =
    PacketOption(libc::PACKET_RX_RING, PhantomData);
const PACKET_ADD_MEMBERSHIP: PacketOption<libc::packet_mreq> =
    PacketOption(libc::PACKET_ADD_MEMBERSHIP, PhantomData);

/// Sets an option of a packet socket.
pub(crate) fn packet_set<T>(
    socket: BorrowedFd<'_>,
    option: &PacketOption<T>,
    value: &T,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the options above are read from one value of their type, which `value` is.
    check(unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option.0, value, len)
    })?;
    Ok(())
}

/// A non-blocking packet socket that receives nothing until it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// Has the socket receive all frames of interface `index`, whoever they are for, until that
/// interface goes.
pub(crate) fn packet_bind(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    const ETH_P_ALL: u16 = 3; // libc has a wider integer than the structure.
    let ifindex = c_int::try_from(index).map_err(io::Error::other)?;
    let mut address = no_link();
    address.sll_family = AddressFamily::PACKET.as_raw();
    address.sll_protocol = ETH_P_ALL.to_be();
    address.sll_ifindex = ifindex;
    let len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: `address` is a `sockaddr_ll` of that length, which is only read.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })?;
    packet_promiscuous(socket, index)
}

/// Has interface `index` receive frames for any address, as long as it and the socket are there.
pub(crate) fn packet_promiscuous(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    const MR_PROMISC: u16 = 1; // libc has a wider integer than the structure.
    let ifindex = c_int::try_from(index).map_err(io::Error::other)?;
    let promiscuous = libc::packet_mreq {
        mr_ifindex: ifindex,
        mr_type: MR_PROMISC,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    packet_set(socket, &PACKET_ADD_MEMBERSHIP, &promiscuous)
}

const fn no_link() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: 0,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Index of the interface that a packet socket is bound to; none if it is gone.
pub(crate) fn packet_bound(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut address = no_link();
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).ok()?;
    // SAFETY: at most `len` bytes are written to `address`, which has as many; any bytes are a
    // valid `sockaddr_ll`.
    check(unsafe {
        let to = std::ptr::from_mut(&mut address).cast();
        libc::getsockname(socket.as_raw_fd(), to, &raw mut len)
    })
    .ok()?;
    u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0)
}

/// Frames that a packet socket had no room for since this was asked last.
pub(crate) fn packet_lost(socket: BorrowedFd<'_>) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let Ok(mut len) = libc::socklen_t::try_from(size_of_val(&stats)) else { return 0 };
    // SAFETY: at most `len` bytes are written to `stats`, which has as many.
    let asked = check(unsafe {
        let to = std::ptr::from_mut(&mut stats).cast();
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len)
    });
    asked.map_or(0, |_| stats.tp_drops.into())
}

/// A command of bpf(2) with its part of `union bpf_attr`: numbers, and addresses of what the caller
/// keeps alive during the call.
fn bpf(command: c_int, attr: &[u64]) -> io::Result<usize> {
    // SAFETY: private; the callers below fill in `attr` as bpf(2) wants it for `command`, with
    // addresses of what they borrow. The kernel reads as many bytes as it is told and writes none
    // for these commands.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) })
}

/// Two 32-bit fields, one behind the other, as one word.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A descriptor that bpf(2) has returned, which is close-on-exec.
fn new_fd(returned: usize) -> io::Result<OwnedFd> {
    let fd = c_int::try_from(returned).map_err(io::Error::other)?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A map of XDP sockets by queue (`BPF_MAP_TYPE_XSKMAP`).
pub(crate) fn bpf_socket_map(queues: u32) -> io::Result<OwnedFd> {
    const MAP_CREATE: c_int = 0;
    const XSKMAP: u32 = 17;
    // map_type, key_size; value_size, max_entries; map_flags.
    new_fd(bpf(MAP_CREATE, &[pair(XSKMAP, 4), pair(4, queues), 0])?)
}

/// Puts the socket of `queue` into the map.
pub(crate) fn bpf_map_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    const MAP_UPDATE_ELEM: c_int = 2;
    let socket = number(socket);
    let address = |word: &u32| std::ptr::from_ref(word).expose_provenance() as u64;
    // map_fd; key; value; flags: any.
    let attr = [u64::from(number(map)), address(&queue), address(&socket), 0];
    bpf(MAP_UPDATE_ELEM, &attr).map(drop)
}

/// Loads an XDP program (`BPF_PROG_TYPE_XDP`) of these instructions.
pub(crate) fn bpf_load_xdp(instructions: &[u64]) -> io::Result<OwnedFd> {
    const PROG_LOAD: c_int = 5;
    const XDP: u32 = 6;
    const LICENSE: &[u8; 11] = b"Apache-2.0\0";
    let n = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    let license = LICENSE.as_ptr().expose_provenance() as u64;
    // prog_type, insn_cnt; insns; license; log_level, log_size; log_buf; kern_version, prog_flags.
    let insns = instructions.as_ptr().expose_provenance() as u64;
    new_fd(bpf(PROG_LOAD, &[pair(XDP, n), insns, license, 0, 0, 0])?)
}

/// Attaches an XDP program to interface `index` until what is returned is closed. `flags`:
/// `XDP_FLAGS_*`.
pub(crate) fn bpf_link_xdp(program: BorrowedFd<'_>, index: u32, flags: u32) -> io::Result<OwnedFd> {
    const LINK_CREATE: c_int = 28;
    const ATTACH_XDP: u32 = 37;
    // prog_fd, target_ifindex; attach_type, flags.
    new_fd(bpf(LINK_CREATE, &[pair(number(program), index), pair(ATTACH_XDP, flags)])?)
}

/// Memory that this process shares with the kernel: the rings of a socket. Only copies leave it, so
/// that nothing here depends on who writes to it when.
#[derive(Debug)]
pub(crate) struct Shared(NonNull<u8>, usize);

// SAFETY: the memory belongs to the process and not to a thread.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps `len` bytes of what `fd` has at `offset`.
    pub(crate) fn map(fd: BorrowedFd<'_>, offset: i64, len: usize) -> io::Result<Self> {
        Self::mmap(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    fn mmap(len: usize, flags: c_int, fd: c_int, offset: i64) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        match NonNull::new(at.cast()) {
            Some(place) if at != libc::MAP_FAILED => Ok(Self(place, len)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `len` bytes of zeros that are nobody's yet.
    pub(crate) fn zeros(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::mmap(len, flags, -1, 0)
    }

    /// Its first `at` bytes, which are whole pages, and the rest.
    pub(crate) fn split(self, at: usize) -> Option<(Self, Self)> {
        let rest = self.1.checked_sub(at).filter(|rest| *rest > 0 && at > 0)?;
        // SAFETY: inside the mapping.
        let middle = unsafe { self.0.add(at) };
        let first = Self(self.0, at);
        std::mem::forget(self);
        Some((first, Self(middle, rest)))
    }

    /// Where it begins, for the kernel.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// `len` bytes at `at`, which the kernel leaves alone for as long as we have them.
    pub(crate) fn own(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        let inside = at.checked_add(len)? <= self.1;
        // SAFETY: inside the mapping, initialised by the kernel, and borrowed from `self` alone.
        inside.then(|| unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().add(at), len) })
    }

    /// The word at `at`; none outside, or where no word begins.
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let inside = at.checked_add(size_of::<u32>())? <= self.1;
        // SAFETY: inside the mapping, aligned since the mapping is, and only accessed by atomics
        // where the kernel may do so at the same time.
        (inside && at.is_multiple_of(size_of::<u32>()))
            .then(|| unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(at).cast()) })
    }

    /// Reads the word at `at`, 0 if there is none.
    pub(crate) fn load(&self, at: usize, order: Ordering) -> u32 {
        self.word(at).map_or(0, |word| word.load(order))
    }

    /// Writes the word at `at`, if there is one.
    pub(crate) fn store(&self, at: usize, value: u32, order: Ordering) {
        if let Some(word) = self.word(at) {
            word.store(value, order);
        }
    }

    /// Copies what lies at `at` to `to`; false and nothing, if that is not all inside.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let inside = at.checked_add(to.len()).is_some_and(|end| end <= self.1);
        if inside {
            // SAFETY: inside the mapping, which no reference is made to.
            unsafe {
                std::ptr::copy_nonoverlapping(self.0.as_ptr().add(at), to.as_mut_ptr(), to.len())
            };
        }
        inside
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody refers to.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

/// Moves the calling thread to a network namespace of its own.
#[cfg(test)]
pub(crate) fn unshare_net() -> io::Result<()> {
    // SAFETY: no pointers; affects this thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    Ok(())
}
