//! One end of a TCP connection with a guest: smoltcp's state machine, with an interface for each
//! connection, so that a segment meets one socket however many there are.

use std::net::{IpAddr, SocketAddr};

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, EthernetRepr, HardwareAddress, IpAddress, IpCidr, IpEndpoint,
    IpListenEndpoint, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use crate::link::{ETHERNET, LARGEST, Link, Offload, Packet};

/// Bytes that wait in each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) from_guest: usize,
    pub(crate) to_guest: usize,
}

/// Of a connection that goes on to a server. One byte less than a power of two from the guest: see
/// `is_told_rightly`.
pub(crate) const USUAL: Sizes = Sizes { from_guest: (256 << 10) - 1, to_guest: 256 << 10 };
/// Of one whose port, or all of them together, have many.
pub(crate) const SMALL: Sizes = Sizes { from_guest: 16 << 10, to_guest: 16 << 10 };

impl Sizes {
    /// Both.
    pub(crate) const fn sum(self) -> usize {
        self.from_guest + self.to_guest
    }

    /// smoltcp says in its SYN that it takes 65,535 bytes, without a scale as TCP wants it, and
    /// reads its own word with the scale until it has said another. If that is more than it has
    /// room for, any guest can make it panic.
    pub(crate) const fn is_told_rightly(self) -> bool {
        let bits = usize::BITS - self.from_guest.leading_zeros();
        let told = if self.from_guest < 65_535 { self.from_guest } else { 65_535 };
        told << bits.saturating_sub(16) <= self.from_guest
    }
}

const _: () = assert!(USUAL.is_told_rightly() && SMALL.is_told_rightly());

/// How long a guest may leave something unanswered.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest packet, headers included, that is sent in one piece.
const SEGMENT: usize = 65_535;

/// Bytes of the headers of a segment over IPv6 that we send.
const HEADERS6: usize = 60;
/// The longest segment that each host takes over IPv6 (RFC 8200, 5). Who claims to take less gets
/// small ones, one by one.
const LEAST6: u16 = 1220;

/// Where a connection's packets go.
pub(crate) struct Wire<'a> {
    /// The packet that came, if one did.
    packet: Option<&'a [u8]>,
    pub(crate) link: &'a mut dyn Link,
    pub(crate) ends: Packet,
    pub(crate) mtu: u16,
    pub(crate) scratch: &'a mut [u8],
    /// It carries IPv6.
    long: bool,
    /// The guest's longest segment, if the link is to cut those that are longer.
    mss: Option<u16>,
}

impl<'a> Wire<'a> {
    pub(crate) fn new(
        link: &'a mut dyn Link,
        ends: Packet,
        mtu: u16,
        scratch: &'a mut [u8],
    ) -> Self {
        Self { packet: None, link, ends, mtu, scratch, long: false, mss: None }
    }

    fn send(&mut self, len: usize, segment: Option<u16>) {
        let Some(bytes) = self.scratch.get_mut(..ETHERNET + len) else { return };
        let Packet { from, to } = self.ends;
        let ethertype = match bytes.get(ETHERNET).map(|first| first >> 4) {
            Some(4) => EthernetProtocol::Ipv4,
            Some(6) => EthernetProtocol::Ipv6,
            _ => return,
        };
        let repr = EthernetRepr { src_addr: from, dst_addr: to, ethertype };
        let mut frame = EthernetFrame::new_unchecked(&mut *bytes);
        repr.emit(&mut frame);
        let packet = frame.payload_mut();
        let segment = match self.mss {
            Some(mss) if packet.len() > HEADERS6 + usize::from(mss) => Some(mss),
            Some(_) => None,
            None => segment,
        };
        if let Some(own) = mss_of(packet) {
            let most = usize::from(self.mtu).saturating_sub(HEADERS6);
            *own = u16::try_from(most).unwrap_or(u16::MAX).to_be_bytes();
        }
        let Some(checksum) = leave_checksum(packet) else { return };
        self.link.send(bytes, Offload { checksum: Some(checksum), segment });
    }
}

/// Where a segment over IPv6 that begins a connection says what the longest one is that its sender
/// takes (RFC 9293, 3.2).
///
/// smoltcp 0.14 leaves segments to the link over IPv4 only. So over IPv6 it is told that each side
/// takes the longest, and what the guest takes is kept here.
fn mss_of(packet: &mut [u8]) -> Option<&mut [u8; 2]> {
    const SYN: u8 = 2;
    let tcp = Some(packet).filter(|packet| packet.first().is_some_and(|first| first >> 4 == 6))?;
    let tcp = tcp.split_at_mut_checked(40).filter(|(ip, _)| ip.get(6) == Some(&6))?.1;
    let (header, options) = tcp.split_at_mut_checked(20)?;
    let end = 4 * usize::from(header.get(12)? >> 4);
    if header.get(13)? & SYN == 0 {
        return None;
    }
    let options = options.get_mut(..end.checked_sub(header.len())?)?;
    let mut at = 0;
    let place = loop {
        at += match options.get(at..)? {
            [2, 4, _, _, ..] => break at + 2,
            [1, ..] => 1,
            [kind, len, ..] if *kind > 1 && *len >= 2 => usize::from(*len),
            _ => return None,
        };
    };
    options.get_mut(place..)?.first_chunk_mut()
}

/// Puts the pseudo header's sum in place of a segment's checksum, which whoever receives it
/// completes. Where it begins in the frame, and where it is from there.
fn leave_checksum(packet: &mut [u8]) -> Option<(u16, u16)> {
    const CHECKSUM: usize = 16;
    let (header, mut bytes) = match packet.first()? >> 4 {
        4 => {
            let view = Ipv4Packet::new_checked(&*packet).ok()?;
            let both = [view.src_addr().octets(), view.dst_addr().octets()].concat();
            (usize::from(view.header_len()), both)
        }
        _ => {
            let view = Ipv6Packet::new_checked(&*packet).ok()?;
            let both = [view.src_addr().octets(), view.dst_addr().octets()].concat();
            (view.header_len(), both)
        }
    };
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
        own.max_transmission_unit = if self.long { SEGMENT } else { self.mtu.into() };
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
    mss: Option<u16>,
    /// Since when the guest has left unanswered what we said.
    unanswered: Option<Instant>,
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
    fn new(own: SocketAddr, sizes: Sizes, seed: u64, wire: &mut Wire<'_>, now: Instant) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        wire.long = own.is_ipv6();
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
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(sizes.from_guest), buffer(sizes.to_guest));
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { interface, sockets, handle, mss: None, unanswered: None }
    }

    /// Answers a guest that wants a connection to `own`; its segment comes next.
    pub(crate) fn answer(
        own: SocketAddr,
        sizes: Sizes,
        seed: u64,
        wire: &mut Wire<'_>,
        now: Instant,
    ) -> Self {
        let mut stack = Self::new(own, sizes, seed, wire, now);
        let at = IpListenEndpoint { addr: Some(own.ip().into()), port: own.port() };
        // The socket is new and the port is not zero, or there would have been no connection.
        let _ = stack.socket().listen(at);
        stack
    }

    /// Calls a guest at `to`.
    pub(crate) fn call(
        own: SocketAddr,
        to: SocketAddr,
        sizes: Sizes,
        seed: u64,
        wire: &mut Wire<'_>,
        now: Instant,
    ) -> Self {
        let mut stack = Self::new(own, sizes, seed, wire, now);
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
        // No other segment is copied: byte 53 has the flags, if it is one over IPv6.
        let begins = packet.get(53).is_some_and(|flags| flags & 2 != 0);
        let mut begin = if begins { packet.to_vec() } else { Vec::new() };
        let told = mss_of(&mut begin).filter(|mss| u16::from_be_bytes(**mss) >= LEAST6);
        let Some(mss) = told else { return self.take(packet, wire, now) };
        let most = u16::from_be_bytes(*mss);
        self.mss = Some(most.min(wire.mtu.saturating_sub(60).max(LEAST6)));
        *mss = u16::MAX.to_be_bytes();
        let Wire { link, ends, mtu, scratch, .. } = wire;
        let mut wire = Wire::new(&mut **link, *ends, *mtu, scratch);
        self.take(&begin, &mut wire, now);
    }

    fn take<'a>(&mut self, packet: &'a [u8], wire: &mut Wire<'a>, now: Instant) {
        wire.mss = self.mss;
        wire.packet = Some(packet);
        self.interface.poll_ingress_single(now, wire, &mut self.sockets);
        wire.packet = None;
        // A guest that only asks again for a connection does not answer.
        if !matches!(self.socket().state(), State::SynSent | State::SynReceived) {
            self.unanswered = None;
        }
    }

    /// Looks whether the guest owes an answer, and gives it up if it has for too long.
    ///
    /// smoltcp's own timeout ends connections as well in which nobody says anything.
    fn watch(&mut self, now: Instant) {
        let socket = self.sockets.get_mut::<Socket<'static>>(self.handle);
        let owes = match socket.state() {
            State::Closed | State::Listen | State::TimeWait => false,
            State::Established | State::CloseWait | State::FinWait2 => socket.send_queue() > 0,
            State::SynSent
            | State::SynReceived
            | State::FinWait1
            | State::Closing
            | State::LastAck => true,
        };
        self.unanswered = owes.then(|| self.unanswered.unwrap_or(now));
        if self.unanswered.is_some_and(|since| now >= since + PATIENCE) {
            self.unanswered = None;
            socket.abort();
        }
    }

    /// Sends what is to be sent, as far as there is room.
    pub(crate) fn output(&mut self, wire: &mut Wire<'_>, now: Instant) {
        wire.mss = self.mss;
        self.watch(now);
        while self.interface.poll_egress(now, wire, &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
    }

    /// When there is something to do though nothing comes.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.unanswered.map(|since| since + PATIENCE);
        self.interface.poll_at(now, &self.sockets).into_iter().chain(patience).min()
    }
}
