//! The bytes of a datagram: sFlow version 5 (sflow.org, July 2004), section 5, in XDR.

use std::net::IpAddr;

use vmlan_frame::{Fate, Reason, Sample};

use super::{Polled, Record};

/// Longest datagram: an Ethernet payload with room for tunnels.
pub(super) const DATAGRAM: usize = 1400;

const VERSION: u32 = 5;
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;
const RAW_HEADER: u32 = 1; // Flow records.
const EXTENDED_SWITCH: u32 = 1001;
/// Counter records. `port_name` is that of sFlow's `OpenFlow` structures.
const GENERIC_INTERFACE: u32 = 1;
const PORT_NAME: u32 = 1005;

const ETHERNET_ISO8023: u32 = 1;
/// Bytes of the frame check sequence, which count for `frame_length` and are not in the header.
const CHECK_SEQUENCE: u32 = 4;
const ETHERNET_CSMACD: u32 = 6; // `ifType` (IANA): ethernetCsmacd.
const FULL_DUPLEX: u32 = 1;
const STATUS_UP: u32 = 0b11; // `ifStatus`: administratively up, operationally up.
const STATUS_DOWN: u32 = 0b01;
const UNKNOWN: u32 = u32::MAX; // A counter that is not kept.
const DISCARDED: u32 = 1 << 30; // The two upper bits of `output`.
const MANY: u32 = 2 << 30;

/// Who sends a datagram, and when.
#[derive(Clone, Copy)]
pub(super) struct Agent {
    pub(super) address: IpAddr,
    pub(super) sequence: u32,
    /// Milliseconds since the export began.
    pub(super) uptime: u32,
}

/// Longest header: version, address and its type, sub-agent, sequence number, uptime, number of
/// samples.
const HEADER: usize = 4 + 4 + 16 + 4 * 4;

/// A datagram that is being filled. All its room is allocated once.
pub(super) struct Datagram {
    /// Room for the longest header, then samples: the header is written before them when it is
    /// known.
    bytes: Vec<u8>,
    samples: u32,
}

impl Datagram {
    /// An empty one.
    pub(super) fn new() -> Self {
        let mut bytes = Vec::with_capacity(DATAGRAM);
        bytes.resize(HEADER, 0);
        Self { bytes, samples: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEADER);
        self.samples = 0;
    }

    /// Adds a sample; false if it does not fit.
    pub(super) fn add(&mut self, sample: &[u8]) -> bool {
        let fits = self.bytes.len() + sample.len() <= DATAGRAM;
        if fits {
            self.bytes.extend_from_slice(sample);
            self.samples += 1;
        }
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The whole datagram.
    pub(super) fn finish(&mut self, agent: Agent) -> &[u8] {
        let (v4, v6);
        let (kind, address): (u32, &[u8]) = match agent.address {
            IpAddr::V4(a) => {
                v4 = a.octets();
                (1, &v4)
            }
            IpAddr::V6(a) => {
                v6 = a.octets();
                (2, &v6)
            }
        };
        let start = 16 - address.len();
        put(&mut self.bytes, start, VERSION);
        put(&mut self.bytes, start + 4, kind);
        if let Some(place) = self.bytes.get_mut(start + 8..24) {
            place.copy_from_slice(address);
        }
        // One sub-agent: 0.
        let numbers = [0, agent.sequence, agent.uptime, self.samples];
        for (i, number) in numbers.into_iter().enumerate() {
            put(&mut self.bytes, 24 + 4 * i, number);
        }
        self.bytes.get(start..).unwrap_or_default()
    }
}

/// `ifIndex` of the switch's port `number`.
pub(super) fn interface(number: usize) -> u32 {
    length(number).saturating_add(1)
}

/// Counters on the wire wrap at 32 bits.
pub(super) fn low(n: u64) -> u32 {
    let [.., a, b, c, d] = n.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// `output` of a flow sample: one interface, many, or the reason why there is none (section 5,
/// `interface`).
pub(super) fn output(fate: Fate) -> u32 {
    match fate {
        Fate::Port(number) => interface(number),
        Fate::Many => MANY,
        Fate::Dropped(reason) => DISCARDED | discard_code(reason),
    }
}

fn discard_code(reason: Reason) -> u32 {
    const UNSPECIFIED: u32 = 256;
    const ACL: u32 = 258;
    const NO_BUFFER: u32 = 259;
    const SHAPING: u32 = 261;
    const TOO_BIG: u32 = 262;
    match reason {
        Reason::ReceiverFull | Reason::Overrun => NO_BUFFER,
        Reason::OverLimit | Reason::Storm => SHAPING,
        Reason::TooLong => TOO_BIG,
        Reason::NotAllowed
        | Reason::SpoofedMac
        | Reason::SpoofedIp
        | Reason::SpoofedArp
        | Reason::SpoofedNd
        | Reason::NotParsed
        | Reason::DhcpGuard
        | Reason::RaGuard
        | Reason::Vlan
        | Reason::Reserved
        | Reason::MulticastGuard
        | Reason::Isolated => ACL,
        _ => UNSPECIFIED,
    }
}

/// VLAN and priority: the switch's own VLAN before the one that the frame names.
pub(super) fn vlan(sample: &Sample<'_>) -> (u32, u32) {
    let tag = match sample.head {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x81, 0x00, a, b, ..]
        | [_, _, _, _, _, _, _, _, _, _, _, _, 0x88, 0xa8, a, b, ..] => {
            u16::from_be_bytes([*a, *b])
        }
        _ => 0,
    };
    let vid = if sample.vid == 0 { tag & 0xfff } else { sample.vid };
    (vid.into(), (tag >> 13).into())
}

/// Appends a `flow_sample` with two records.
pub(super) fn flow_sample(out: &mut Vec<u8>, r: &Record) {
    sized(out, FLOW_SAMPLE, |out| {
        let numbers = [r.sequence, r.interface, r.rate, r.pool, r.drops];
        words(out, &numbers);
        words(out, &[r.interface, r.output, 2]);
        sized(out, RAW_HEADER, |out| {
            let frame_length = r.frame_len.saturating_add(CHECK_SEQUENCE);
            words(out, &[ETHERNET_ISO8023, frame_length, CHECK_SEQUENCE]);
            opaque(out, r.head.get(..r.head_len).unwrap_or_default());
        });
        sized(out, EXTENDED_SWITCH, |out| words(out, &[r.vlan, r.priority, r.vlan, r.priority]));
    });
}

/// Appends a `counters_sample` with the generic interface counters and the port's name.
pub(super) fn counters_sample(out: &mut Vec<u8>, polled: &Polled) {
    let counters = polled.port.counters();
    let (input, output) = counters.snapshot();
    let drops = |d: &vmlan_frame::Direction| Reason::ALL.iter().map(|r| d.dropped(*r)).sum();
    let status = if polled.port.is_up() { STATUS_UP } else { STATUS_DOWN };
    sized(out, COUNTERS_SAMPLE, |out| {
        words(out, &[polled.sequence, polled.interface, 2]);
        sized(out, GENERIC_INTERFACE, |out| {
            words(out, &[polled.interface, ETHERNET_CSMACD]);
            // ifSpeed: none is known.
            double(out, 0);
            words(out, &[FULL_DUPLEX, status]);
            double(out, input.bytes);
            words(out, &[low(input.frames), UNKNOWN, UNKNOWN]);
            words(out, &[low(drops(&counters.input)), low(counters.faults.get()), UNKNOWN]);
            double(out, output.bytes);
            words(out, &[low(output.frames), UNKNOWN, UNKNOWN]);
            // No errors on the way out: what a receiver refuses is discarded. Not promiscuous.
            words(out, &[low(drops(&counters.output)), 0, 0]);
        });
        sized(out, PORT_NAME, |out| opaque(out, polled.name.as_bytes()));
    });
}

/// A type (enterprise 0), a length, and that many bytes.
fn sized(out: &mut Vec<u8>, format: u32, body: impl FnOnce(&mut Vec<u8>)) {
    words(out, &[format, 0]);
    let start = out.len();
    body(out);
    let len = length(out.len() - start);
    put(out, start - 4, len);
}

/// A length, the bytes, and zeros to a multiple of four.
fn opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    words(out, &[length(bytes.len())]);
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn words(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_be_bytes()));
}

fn double(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put(out: &mut [u8], at: usize, value: u32) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// A number that the wire has 32 bits for; larger ones become the largest.
pub(super) fn length(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
