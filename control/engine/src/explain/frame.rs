//! Frames to explain: made from a few settings, or read from hex.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use vmlan_frame::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ICMPV6, TCP, UDP,
};
use vmlan_frame::{Checksum, Mac};

/// Of frames whose content was not asked for: IEEE 802 reserves it for experiments.
pub(super) const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
const ICMP: u8 = 1;

/// The frame to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Wanted {
    pub src: Mac,
    pub dst: Mac,
    /// VLAN tags, the outermost first.
    pub vlans: Vec<u16>,
    /// IP addresses, source and destination.
    pub ips: Option<(IpAddr, IpAddr)>,
    /// What is in it.
    pub inside: Inside,
    /// Its length; zeros are added.
    pub len: Option<usize>,
}

/// What is in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inside {
    /// With IP addresses: an echo request.
    #[default]
    Nothing,
    /// An ARP request.
    Arp,
    /// UDP, with source and destination port.
    Udp(u16, u16),
    /// A TCP SYN, with source and destination port.
    Tcp(u16, u16),
    /// An ICMPv6 message, with its type.
    Icmpv6(u8),
}

impl Wanted {
    /// The frame. Checksums are left out except IPv4's own: the switch does not look at others.
    ///
    /// # Errors
    /// Which settings do not go together.
    pub fn build(&self) -> Result<Vec<u8>, String> {
        let mut frame = [self.dst.octets(), self.src.octets()].concat();
        for vid in &self.vlans {
            frame.extend(ETHERTYPE_VLAN.to_be_bytes());
            frame.extend(vid.to_be_bytes());
        }
        let (ethertype, mut packet) = self.packet()?;
        frame.extend(ethertype.to_be_bytes());
        let wanted = self.len.unwrap_or(60);
        let pad = wanted.saturating_sub(frame.len() + packet.len());
        if self.len.is_some_and(|len| len < frame.len() + packet.len()) {
            let text =
                format!("--len {wanted}: what you ask for takes {}", frame.len() + packet.len());
            return Err(text);
        }
        // A length that was asked for is payload; short frames have a trailer.
        let short = packet.len();
        packet.resize(short + pad, 0);
        let counted = if self.len.is_some() { packet.len() } else { short };
        set_lengths(ethertype, &mut packet, counted, self.inside)?;
        if ethertype == ETHERTYPE_IPV4 {
            let mut sum = Checksum::default();
            sum.add(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        }
        frame.extend(packet);
        Ok(frame)
    }

    fn packet(&self) -> Result<(u16, Vec<u8>), String> {
        match (self.inside, self.ips) {
            (Inside::Arp, Some((IpAddr::V4(from), IpAddr::V4(to)))) => {
                Ok((ETHERTYPE_ARP, self.arp(from, to)))
            }
            (Inside::Arp, _) => Err("--arp needs --ip-src and --ip-dst, both IPv4".into()),
            (Inside::Nothing, None) => Ok((ETHERTYPE_EXPERIMENT, Vec::new())),
            (_, None) => Err("this needs --ip-src and --ip-dst".into()),
            (Inside::Icmpv6(_), Some((IpAddr::V4(_), _))) => {
                Err("--icmpv6 needs --ip-src and --ip-dst, both IPv6".into())
            }
            (_, Some((IpAddr::V4(from), IpAddr::V4(to)))) => {
                Ok((ETHERTYPE_IPV4, self.v4(from, to)))
            }
            (_, Some((IpAddr::V6(from), IpAddr::V6(to)))) => {
                Ok((ETHERTYPE_IPV6, self.v6(from, to)))
            }
            _ => Err(
                "--ip-src and --ip-dst are of different kinds: give two IPv4 or two IPv6 addresses"
                    .into(),
            ),
        }
    }

    /// RFC 826.
    fn arp(&self, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let begin = [0, 1, 8, 0, 6, 4, 0, 1];
        let (src, from, to) = (self.src.octets(), from.octets(), to.octets());
        [&begin[..], &src, &from, &[0; 6], &to].concat()
    }

    fn v4(&self, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let (protocol, upper) = match self.inside {
            Inside::Udp(from, to) => (UDP, udp(from, to)),
            Inside::Tcp(from, to) => (TCP, tcp(from, to)),
            _ => (ICMP, vec![8, 0, 0, 0, 0, 1, 0, 1]),
        };
        // Its length is set when it has its payload.
        let begin = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        [&begin[..], &from.octets(), &to.octets(), &upper].concat()
    }

    fn v6(&self, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let (protocol, upper) = match self.inside {
            Inside::Udp(from, to) => (UDP, udp(from, to)),
            Inside::Tcp(from, to) => (TCP, tcp(from, to)),
            Inside::Icmpv6(kind) => (ICMPV6, self.icmpv6(kind, from, to)),
            _ => (ICMPV6, vec![128, 0, 0, 0, 0, 1, 0, 1]),
        };
        let to = if self.inside == Inside::Icmpv6(135) { solicited(to) } else { to };
        // Its length is set when it has its payload. Neighbour discovery wants a hop limit of 255.
        let begin = [0x60, 0, 0, 0, 0, 0, protocol, 255];
        [&begin[..], &from.octets(), &to.octets(), &upper].concat()
    }

    /// RFC 4861 section 4: with the sender's MAC address where there is a place for one.
    fn icmpv6(&self, kind: u8, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let mac = self.src.octets();
        let option = |kind: u8| [&[kind, 1][..], &mac].concat();
        // A host that has no address yet gives no MAC address.
        let own = if from.is_unspecified() { Vec::new() } else { option(1) };
        let rest = match kind {
            133 => own,
            134 => [&[0; 8][..], &own].concat(),
            135 => [&to.octets()[..], &own].concat(),
            136 => [&from.octets()[..], &option(2)].concat(),
            137 => [from.octets(), to.octets()].concat(),
            _ => Vec::new(),
        };
        [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &rest].concat()
    }
}

/// The group that a solicitation about `target` is sent to (RFC 4291 section 2.7.1).
fn solicited(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The lengths in IP's and UDP's headers, of a packet of `len` bytes.
fn set_lengths(
    ethertype: u16,
    packet: &mut [u8],
    len: usize,
    inside: Inside,
) -> Result<(), String> {
    let (at, header) = match ethertype {
        ETHERTYPE_IPV4 => (2, 20),
        ETHERTYPE_IPV6 => (4, 40),
        _ => return Ok(()),
    };
    let upper = len - header;
    let counted = if header == 20 { len } else { upper };
    let fits = |n: usize| {
        u16::try_from(n).map_err(|_| format!("--len: {n} bytes are too many for an IP packet"))
    };
    packet[at..at + 2].copy_from_slice(&fits(counted)?.to_be_bytes());
    if matches!(inside, Inside::Udp(..)) {
        packet[header + 4..header + 6].copy_from_slice(&fits(upper)?.to_be_bytes());
    }
    Ok(())
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    vec![a, b, c, d, 0, 8, 0, 0]
}

/// A SYN.
fn tcp(from: u16, to: u16) -> Vec<u8> {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    let mut header = vec![a, b, c, d, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff];
    header.resize(20, 0);
    header
}

/// A frame in hex. Blanks, line ends, ':' and '-' are ignored.
///
/// # Errors
/// What in it is not hex.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let plain = text.trim();
    let plain = plain.strip_prefix("0x").unwrap_or(plain);
    let mut digits = Vec::new();
    for c in plain.chars().filter(|c| !c.is_whitespace() && !matches!(c, ':' | '-')) {
        let digit = c.to_digit(16).and_then(|d| u8::try_from(d).ok());
        digits.push(digit.ok_or_else(|| {
            format!("frame: '{c}' is not a hex digit: give bytes like ffffffffffff5254...")
        })?);
    }
    if digits.is_empty() || digits.len() % 2 == 1 {
        let n = digits.len();
        return Err(format!(
            "frame: {n} hex digits are not a whole number of bytes: give two for each byte"
        ));
    }
    Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// As [`parse_hex`] reads it.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
