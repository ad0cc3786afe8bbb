//! Packets, and their segments, as etherparse builds them: it shares no code with us.
use etherparse::{
    IpHeaders, Ipv4Header, Ipv6Extensions, Ipv6Header, Ipv6RawExtHeader, PacketBuilder, TcpHeader,
    ip_number,
};
use proptest::prelude::*;

use crate::{Gso, Offload};

/// A TCP or UDP packet, and how it is to be cut.
#[derive(Clone, Debug)]
pub struct Packet {
    pub tags: usize,
    pub v6: bool,
    pub tcp: bool,
    /// 4-byte words of IPv4 options, or 8-byte units of an IPv6 destination options header.
    pub ip_options: usize,
    /// 4-byte words.
    pub tcp_options: usize,
    /// FIN, SYN, RST, PSH, ACK, URG, ECE, CWR from the lowest bit, as in the header.
    pub flags: u8,
    pub sequence: u32,
    pub id: u16,
    pub payload: Vec<u8>,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            tags: 0,
            v6: false,
            tcp: true,
            ip_options: 0,
            tcp_options: 3,
            flags: 0x18,
            sequence: 1000,
            id: 7,
            payload: (0..=252).cycle().take(4000).collect(),
        }
    }
}

pub fn packets() -> impl Strategy<Value = Packet> {
    let shape = (0..3usize, any::<bool>(), any::<bool>(), 0..4usize, 0..8usize);
    let rest = (any::<u8>(), any::<u32>(), any::<u16>(), 0..6000usize, any::<u8>());
    (shape, rest).prop_map(
        |((tags, v6, tcp, ip_options, tcp_options), (flags, sequence, id, n, fill))| {
            // Runs of zeros and ones now and then, for sums of 0 and 0xffff.
            let payload = (0..n)
                .map(|i| if fill < 8 { fill / 4 * 255 } else { (i * usize::from(fill)) as u8 });
            let payload = payload.collect();
            Packet { tags, v6, tcp, ip_options, tcp_options, flags, sequence, id, payload }
        },
    )
}

impl Packet {
    pub fn l3(&self) -> usize {
        14 + 4 * self.tags
    }

    pub fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 + 8 * self.ip_options } else { 20 + 4 * self.ip_options }
    }

    pub fn header_len(&self) -> usize {
        self.l4() + if self.tcp { 20 + 4 * self.tcp_options } else { 8 }
    }

    pub fn sum_offset(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    fn ip(&self, id: u16) -> IpHeaders {
        let protocol = if self.tcp { ip_number::TCP } else { ip_number::UDP };
        if self.v6 {
            let mut exts = Ipv6Extensions::default();
            if self.ip_options > 0 {
                let bytes = vec![0; 8 * self.ip_options - 2];
                exts.destination_options =
                    Some(Ipv6RawExtHeader::new_raw(protocol, &bytes).unwrap());
            }
            let ip = Ipv6Header {
                source: [0x20; 16],
                destination: [0xfe; 16],
                hop_limit: 9,
                ..Default::default()
            };
            return IpHeaders::Ipv6(ip, exts);
        }
        let mut ip = Ipv4Header::new(0, 9, protocol, [10, 0, 0, 1], [10, 255, 0, 2]).unwrap();
        ip.identification = id;
        ip.options = vec![1; 4 * self.ip_options].as_slice().try_into().unwrap();
        IpHeaders::Ipv4(ip, Default::default())
    }

    fn tcp(&self, done: usize, flags: u8) -> TcpHeader {
        let bit = |n: u8| flags >> n & 1 == 1;
        let mut tcp = TcpHeader::new(4321, 80, self.sequence.wrapping_add(done as u32), 512);
        (tcp.fin, tcp.syn, tcp.rst, tcp.psh) = (bit(0), bit(1), bit(2), bit(3));
        (tcp.ack, tcp.urg, tcp.ece, tcp.cwr) = (bit(4), bit(5), bit(6), bit(7));
        tcp.set_options_raw(&vec![1; 4 * self.tcp_options]).unwrap();
        tcp
    }

    fn write(&self, id: u16, done: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
        let ether = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = self.ip(id);
        let vlan = |id: u16| id.try_into().unwrap();
        let step = match self.tags {
            0 => ether.ip(ip),
            1 => ether.single_vlan(vlan(5)).ip(ip),
            _ => ether.double_vlan(vlan(6), vlan(5)).ip(ip),
        };
        let mut out = Vec::new();
        if self.tcp {
            step.tcp_header(self.tcp(done, flags)).write(&mut out, payload).unwrap();
        } else {
            step.udp(4321, 53).write(&mut out, payload).unwrap();
        }
        out
    }

    /// The whole packet, finished.
    pub fn whole(&self) -> Vec<u8> {
        self.write(self.id, 0, self.flags, &self.payload)
    }

    /// The whole packet as a driver hands it over: only the pseudo-header is summed.
    pub fn unfinished(&self) -> Vec<u8> {
        let mut bytes = self.whole();
        set_unfinished(&mut bytes, self);
        bytes
    }

    pub fn offload(&self, gso_size: usize) -> Offload {
        let gso = match (gso_size, self.tcp, self.v6) {
            (0, ..) => Gso::None,
            (_, true, false) => Gso::Tcp4,
            (_, true, true) => Gso::Tcp6,
            (_, false, _) => Gso::Udp,
        };
        Offload {
            needs_csum: true,
            gso,
            gso_size: gso_size as u16,
            csum_start: self.l4() as u16,
            csum_offset: self.sum_offset() as u16,
            hdr_len: 0xdead,
            ..Offload::NONE
        }
    }

    /// Every segment, built from nothing.
    pub fn segments(&self, gso_size: usize) -> Vec<Vec<u8>> {
        let mut chunks: Vec<&[u8]> = self.payload.chunks(gso_size).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let last = chunks.len() - 1;
        let each = chunks.iter().enumerate().map(|(i, chunk)| {
            let mut flags = self.flags;
            if i != last {
                flags &= !0x09;
            }
            if i != 0 {
                flags &= !0x80;
            }
            self.write(self.id.wrapping_add(i as u16), i * gso_size, flags, chunk)
        });
        each.collect()
    }
}

/// Puts the pseudo-header's sum into the checksum field.
pub fn set_unfinished(bytes: &mut [u8], packet: &Packet) {
    let (l3, l4) = (packet.l3(), packet.l4());
    let addresses = if packet.v6 { &bytes[l3 + 8..l3 + 40] } else { &bytes[l3 + 12..l3 + 20] };
    let mut words: Vec<u64> =
        addresses.chunks(2).map(|b| u64::from(b[0]) * 256 + u64::from(b[1])).collect();
    words.push(if packet.tcp { 6 } else { 17 });
    words.push((bytes.len() - l4) as u64);
    let sum: u64 = words.iter().sum();
    let sum = if sum == 0 { 0 } else { (sum - 1) % 0xffff + 1 };
    let at = l4 + packet.sum_offset();
    bytes[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// In one's complement, 0 and 0xffff are one number: RFC 1071. We always send 0xffff.
pub fn same_zero(bytes: &mut [u8], packet: &Packet) {
    let l3 = packet.l3();
    let mut fields = vec![packet.l4() + packet.sum_offset()];
    if !packet.v6 {
        fields.push(l3 + 10);
    }
    for at in fields {
        if bytes[at..at + 2] == [0, 0] {
            bytes[at..at + 2].copy_from_slice(&[0xff, 0xff]);
        }
    }
}
