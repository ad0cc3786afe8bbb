//! One end of a TCP connection with a guest: smoltcp's state machine, with an interface for each
//! connection, so that a segment meets one socket however many there are.

use std::net::{IpAddr, SocketAddr};

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint, IpListenEndpoint};

use crate::link::{ETHERNET, LARGEST, Link, Offload, Packet};

/// Bytes that wait in each direction.
const BUFFER: usize = 256 << 10;
/// How long a guest may leave something unanswered.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest packet, headers included, that is sent in one piece.
const SEGMENT: usize = 65_535;

/// Where a connection's packets go.
pub(crate) struct Wire<'a> {
    /// The packet that came, if one did.
    packet: Option<&'a [u8]>,
    pub(crate) link: &'a mut dyn Link,
    pub(crate) ends: Packet,
    pub(crate) mtu: u16,
    pub(crate) scratch: &'a mut [u8],
}

impl<'a> Wire<'a> {
    pub(crate) fn new(
        link: &'a mut dyn Link,
        ends: Packet,
        mtu: u16,
        scratch: &'a mut [u8],
    ) -> Self {
        Self { packet: None, link, ends, mtu, scratch }
    }

    fn send(&mut self, len: usize, segment: Option<u16>) {
        let Some(bytes) = self.scratch.get_mut(..ETHERNET + len) else { return };
        let Packet { from, to } = self.ends;
        let repr = EthernetRepr { src_addr: from, dst_addr: to, ethertype: EthernetProtocol::Ipv4 };
        let mut frame = EthernetFrame::new_unchecked(&mut *bytes);
        repr.emit(&mut frame);
        let Some(checksum) = leave_checksum(frame.payload_mut()) else { return };
        self.link.send(bytes, Offload { checksum: Some(checksum), segment });
    }
}

/// Puts the pseudo header's sum in place of a segment's checksum, which whoever receives it
/// completes. Where it begins in the frame, and where it is from there.
fn leave_checksum(packet: &mut [u8]) -> Option<(u16, u16)> {
    const CHECKSUM: usize = 16;
    let view = Ipv4Packet::new_checked(&*packet).ok()?;
    let header = usize::from(view.header_len());
    let words = view.src_addr().octets().into_iter().chain(view.dst_addr().octets());
    let mut bytes = words.collect::<Vec<_>>();
    let len = u16::try_from(packet.len() - header).ok()?;
    bytes.extend([0, IpProtocol::Tcp.into()]);
    bytes.extend(len.to_be_bytes());
    let sum: u32 = bytes
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).ok()?;
    let place = packet.get_mut(header + CHECKSUM..header + CHECKSUM + 2)?;
    place.copy_from_slice(&folded.to_be_bytes());
    Some((u16::try_from(ETHERNET + header).ok()?, u16::try_from(CHECKSUM).ok()?))
}

pub(crate) struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(self.0)
    }
}

pub(crate) struct ToSend<'t, 'a> {
    wire: &'t mut Wire<'a>,
    segment: Option<u16>,
}

impl phy::TxToken for ToSend<'_, '_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        // smoltcp keeps to the lengths that it was told.
        let mut long = Vec::new();
        let done = match self.wire.scratch.get_mut(ETHERNET..ETHERNET + len) {
            Some(room) => fill(room),
            None => {
                long.resize(len, 0);
                fill(&mut long)
            }
        };
        self.wire.send(len, self.segment);
        done
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size.map(u16::from);
    }
}

impl<'a> phy::Device for Wire<'a> {
    type RxToken<'t>
        = Received<'a>
    where
        Self: 't;
    type TxToken<'t>
        = ToSend<'t, 'a>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Received<'a>, ToSend<'_, 'a>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), ToSend { wire: self, segment: None }))
    }

    fn transmit(&mut self, _: Instant) -> Option<ToSend<'_, 'a>> {
        (self.link.room() > 0).then_some(ToSend { wire: self, segment: None })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut own = DeviceCapabilities::default();
        own.medium = Medium::Ip;
        own.max_transmission_unit = usize::from(self.mtu);
        own.checksum.tcp = Checksum::None;
        own.segmentation.tcpv4 = std::num::NonZeroUsize::new(SEGMENT.min(LARGEST));
        own
    }
}

/// One connection's end.
pub(crate) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint::new(address.ip().into(), address.port())
}

impl Stack {
    /// An end at `own`. `seed` makes its first sequence number, and must be nobody's to guess.
    fn new(own: SocketAddr, seed: u64, wire: &mut Wire<'_>, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, wire, now);
        let address = IpAddress::from(own.ip());
        let bits = if own.is_ipv4() { 32 } else { 128 };
        interface.update_ip_addrs(|list| {
            // There is room for several.
            let _ = list.push(IpCidr::new(address, bits));
        });
        let _ = match own.ip() {
            IpAddr::V4(ip) => interface.routes_mut().add_default_ipv4_route(ip).map(drop),
            IpAddr::V6(ip) => interface.routes_mut().add_default_ipv6_route(ip).map(drop),
        };
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(Some(PATIENCE));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { interface, sockets, handle }
    }

    /// Answers a guest that wants a connection to `own`; its segment comes next.
    pub(crate) fn answer(own: SocketAddr, seed: u64, wire: &mut Wire<'_>, now: Instant) -> Self {
        let mut stack = Self::new(own, seed, wire, now);
        let at = IpListenEndpoint { addr: Some(own.ip().into()), port: own.port() };
        // The socket is new and the port is not zero, or there would have been no connection.
        let _ = stack.socket().listen(at);
        stack
    }

    /// Calls a guest at `to`.
    pub(crate) fn call(
        own: SocketAddr,
        to: SocketAddr,
        seed: u64,
        wire: &mut Wire<'_>,
        now: Instant,
    ) -> Self {
        let mut stack = Self::new(own, seed, wire, now);
        let socket = stack.sockets.get_mut::<Socket<'static>>(stack.handle);
        let _ = socket.connect(stack.interface.context(), endpoint(to), endpoint(own));
        stack
    }

    /// Its socket.
    pub(crate) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// A packet came.
    pub(crate) fn input<'a>(&mut self, packet: &'a [u8], wire: &mut Wire<'a>, now: Instant) {
        wire.packet = Some(packet);
        self.interface.poll_ingress_single(now, wire, &mut self.sockets);
        wire.packet = None;
    }

    /// Sends what is to be sent, as far as there is room.
    pub(crate) fn output(&mut self, wire: &mut Wire<'_>, now: Instant) {
        while self.interface.poll_egress(now, wire, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
    }

    /// When there is something to do though nothing comes.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        self.interface.poll_at(now, &self.sockets)
    }
}
