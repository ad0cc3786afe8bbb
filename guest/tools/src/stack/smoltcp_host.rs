//! The stack above the driver: smoltcp's interface and sockets.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use smoltcp::iface::SocketSet;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle};
use smoltcp::socket::{tcp, udp};
use smoltcp::time;
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

use super::driver::Driver;
use super::frame::{self, Flow};
use super::options::Options;
use super::smoltcp_device::Phy;
use vmlan_driver::nic::Nic;
use vmlan_transport::Mac;
use vmlan_transport::numbers::{nanos, narrow16};

const EPHEMERAL: u16 = 49_152; // First port for our own ends (RFC 6335).

/// A host on the LAN.
pub(super) struct Host<'d, N: Nic> {
    pub(super) driver: &'d Driver<N>,
    interface: Interface,
    sockets: SocketSet<'static>,
    scratch: Box<[u8]>,
    /// The flow of the last datagram that smoltcp sent.
    pub(super) flow: Option<Flow>,
    clock: Instant,
    mtu: u16,
    seed: u64,
}

impl<'d, N: Nic> Host<'d, N> {
    pub(super) fn new(driver: &'d Driver<N>, options: &Options, mac: Mac) -> Self {
        let clock = Instant::now();
        let mut scratch: Box<[u8]> =
            vec![0; usize::from(options.mtu) + frame::ETHERNET + 64].into();
        let mut flow = None;
        let mut config = Config::new(EthernetAddress(mac.0).into());
        // Not secret: it keeps the ports and sequence numbers of two runs apart.
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let seed = u64::from(since.subsec_nanos()) << 20 ^ since.as_secs();
        config.random_seed = seed;
        let mut phy = Phy::new(driver, &mut scratch, &mut flow, options.mtu);
        let mut interface = Interface::new(config, &mut phy, time::Instant::ZERO);
        drop(phy);
        interface.update_ip_addrs(|addresses| {
            // There is room for two.
            let _ = addresses.push(IpCidr::new(options.ip.0.into(), options.ip.1));
        });
        if let Some(gateway) = options.gateway {
            let _ = interface.routes_mut().add_default_ipv4_route(gateway);
        }
        let sockets = SocketSet::new(Vec::new());
        Self { driver, interface, sockets, scratch, flow, clock, mtu: options.mtu, seed }
    }

    /// Nanoseconds since the start.
    pub(super) fn now(&self) -> u64 {
        nanos(self.clock.elapsed())
    }

    fn time(&self) -> time::Instant {
        time::Instant::from_micros(i64::try_from(self.now() / 1000).unwrap_or(i64::MAX))
    }

    /// A port of ours that nobody uses.
    pub(super) fn ephemeral(&self) -> u16 {
        EPHEMERAL + narrow16(self.seed % 16_000)
    }

    /// Hands the frames that came to the sockets; how many there were.
    pub(super) fn ingress(&mut self) -> usize {
        let mut count = 0;
        if self.driver.backlog.len() == 0 {
            return 0;
        }
        let now = self.time();
        let mut phy = Phy::new(self.driver, &mut self.scratch, &mut self.flow, self.mtu);
        while self.interface.poll_ingress_single(now, &mut phy, &mut self.sockets)
            != PollIngressSingleResult::None
        {
            count += 1;
        }
        count
    }

    /// Sends what the sockets have, as one burst; was there anything?
    pub(super) fn egress(&mut self) -> bool {
        let now = self.time();
        let mut phy = Phy::new(self.driver, &mut self.scratch, &mut self.flow, self.mtu);
        let mut any = false;
        while self.interface.poll_egress(now, &mut phy, &mut self.sockets) != PollResult::None {
            any = true;
        }
        any
    }

    /// How long there is nothing to do unless something comes.
    pub(super) fn quiet(&mut self) -> Option<Duration> {
        let now = self.time();
        let delay = self.interface.poll_delay(now, &self.sockets)?;
        Some(Duration::from_micros(delay.total_micros()))
    }

    /// A UDP socket on `port`.
    pub(super) fn udp(&mut self, port: u16) -> SocketHandle {
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 256], vec![0; 256 * 1500]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        // The port is not zero and the socket is new.
        let _ = socket.bind(port);
        self.sockets.add(socket)
    }

    /// A TCP socket with room for so many bytes to receive and to send.
    pub(super) fn tcp(&mut self, receive: usize, send: usize) -> SocketHandle {
        let buffer = |bytes: usize| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(receive), buffer(send));
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        self.sockets.add(socket)
    }

    pub(super) fn udp_socket(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    pub(super) fn tcp_socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Calls a TCP server.
    pub(super) fn connect(&mut self, handle: SocketHandle, to: SocketAddrV4) {
        let from = self.ephemeral();
        let socket = self.sockets.get_mut::<tcp::Socket<'static>>(handle);
        // Both ends are valid for this, and the socket is closed.
        let _ = socket.connect(self.interface.context(), endpoint(to), from);
    }
}

/// smoltcp's word for it.
pub(super) fn endpoint(to: SocketAddrV4) -> IpEndpoint {
    IpEndpoint::new((*to.ip()).into(), to.port())
}
