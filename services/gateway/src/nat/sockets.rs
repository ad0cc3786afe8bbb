//! Sockets of the host, none of which ever waits.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A connection that is on its way to `to`.
pub(crate) fn tcp(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(family(to.ip()), SocketType::STREAM, FLAGS, None)?;
    prepare(&fd);
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// No delays, and news of a peer that has gone.
pub(crate) fn prepare(fd: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
}

/// A socket for datagrams to `to` alone.
pub(crate) fn udp(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::socket_with(family(to.ip()), SocketType::DGRAM, FLAGS, None)?;
    rustix::net::connect(&fd, &to)?;
    Ok(fd)
}

/// A socket for echo requests to `to`. Who may have one is said by the host
/// (`net.ipv4.ping_group_range`).
pub(crate) fn echo(to: IpAddr) -> Result<OwnedFd, Errno> {
    let icmp = if to.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
    let fd = rustix::net::socket_with(family(to), SocketType::DGRAM, FLAGS, Some(icmp))?;
    rustix::net::connect(&fd, &SocketAddr::from((to, 0)))?;
    Ok(fd)
}

/// Does the host know a way to addresses of the outside by IPv6? No packet leaves.
pub(crate) fn leads_out_by_ipv6() -> bool {
    const OUTSIDE: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);
    udp((OUTSIDE, 9).into()).is_ok()
}

/// Is `address` one of this host's? The kernel says so by the source that it would use. No packet
/// leaves. The first address of a network that it is in is that of each router there, and so its
/// own, if it is one (RFC 4291, 2.6.1).
pub(crate) fn is_own(address: IpAddr) -> bool {
    let Ok(fd) = udp(SocketAddr::new(address, 9)) else { return false };
    let own = rustix::net::getsockname(&fd).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let of_routers = |own: IpAddr| match (own, address) {
        (IpAddr::V6(own), IpAddr::V6(address)) => own.to_bits() >> 64 << 64 == address.to_bits(),
        _ => false,
    };
    own.is_some_and(|own| own.ip() == address || of_routers(own.ip()))
}

/// A socket that listens for connections.
pub(crate) fn listener(at: SocketAddr) -> io::Result<OwnedFd> {
    let listener = std::net::TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// A socket that takes datagrams.
pub(crate) fn receiver(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sends what the socket takes at once.
pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| {
        rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    })
}

/// Receives what is there; 0 of a connection is its end.
pub(crate) fn receive(fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let got = rustix::io::retry_on_intr(|| rustix::net::recv(fd, &mut *bytes, RecvFlags::DONTWAIT));
    got.map(|(len, _)| len)
}

/// Has an outgoing connection arrived?
pub(crate) fn outcome(fd: &OwnedFd) -> Result<(), Errno> {
    match sockopt::socket_error(fd) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) | Err(e) => Err(e),
    }
}

/// Closes a connection as if its program had been killed: the peer gets a reset.
pub(crate) fn reset(fd: OwnedFd) {
    let _ = sockopt::set_socket_linger(fd.as_fd(), Some(Duration::ZERO));
    drop(fd);
}
