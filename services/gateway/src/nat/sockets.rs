//! Sockets of the host, none of which ever waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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

/// Is `address` one of this host's? No packet leaves.
pub(crate) fn is_own(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(own) => is_own4(own),
        IpAddr::V6(own) => is_own6(own),
    }
}

/// The kernel lets a socket have only addresses of the host, or groups. With `ip_nonlocal_bind` a
/// socket may have any, but nothing leads from it anywhere.
///
/// The source that the kernel would use says less: to an address that a device has beside others of
/// the same network, that is the first of them.
fn is_own4(address: Ipv4Addr) -> bool {
    let Ok(fd) = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, FLAGS, None)
    else {
        return false;
    };
    match rustix::net::bind(&fd, &SocketAddr::from((address, 0))) {
        Ok(()) => rustix::net::connect(&fd, &SocketAddr::from((address, 9))).is_ok(),
        // What cannot be found out is closed.
        Err(e) => e != Errno::ADDRNOTAVAIL,
    }
}

/// The kernel says so by the source that it would use. The first address of a network that the host
/// is in is that of each router there, and so its own, if it is one (RFC 4291, 2.6.1).
fn is_own6(address: Ipv6Addr) -> bool {
    let Ok(fd) = udp(SocketAddr::from((address, 9))) else { return false };
    let own = rustix::net::getsockname(&fd).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let of_routers = |own: Ipv6Addr| own.to_bits() >> 64 << 64 == address.to_bits();
    own.is_some_and(|own| match own.ip() {
        IpAddr::V6(own) => own == address || of_routers(own),
        IpAddr::V4(_) => false,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The loopback device has 127.0.0.1 and its network, as others have several addresses.
    #[test]
    fn each_address_of_the_host_is_its_own() {
        for (address, own) in [
            ("127.0.0.1", true),
            ("127.0.0.2", true),
            ("192.0.2.1", false),
            ("::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_own(address.parse().unwrap()), own, "{address}");
        }
    }
}
