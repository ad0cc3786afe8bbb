//! Messages about multicast groups: IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810).

use core::time::Duration;

use super::{HOP_BY_HOP, Headers, ICMPV6, IPV6_HEADER, Network, be16};
use crate::Checksum;

/// IP protocol number of IGMP.
pub const IGMP: u8 = 2;

/// Answers to a query of IGMPv1, which does not say how long to wait (RFC 3376 section 4.1.1).
const USUAL_DELAY: Duration = Duration::from_secs(10);

/// Bytes of Ethernet's shortest frame, without tags and checksum.
const SHORTEST: usize = 60;

/// A message about multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership<'h> {
    /// A querier asks. Whoever has joined what it asks about answers within `delay`.
    Query {
        /// For an answer.
        delay: Duration,
        /// Every host that receives it answers, for all its groups. False if it asks about one
        /// group, or if hosts must ignore it, or if that cannot be told from the snapshot.
        general: bool,
    },
    /// Changes, one for each record that can be read.
    Report(Records<'h>),
    /// What is or could be such a message, and is not understood: anybody's guess.
    Unclear,
}

/// The groups that a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'h> {
    rest: &'h [u8],
    /// Records that are still to come.
    left: u16,
    /// Bytes of a group's address.
    size: usize,
    /// What a report of one group, which has no records, says: joined or left.
    one: Option<bool>,
}

impl<'h> Iterator for Records<'h> {
    /// A group, and whether it is joined or left; `None` instead if the record is not in the
    /// snapshot, which ends the report.
    type Item = Option<(&'h [u8], bool)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = self.record();
        if record.is_none() {
            self.left = 0;
        }
        Some(record)
    }
}

impl<'h> Records<'h> {
    /// RFC 3376 section 4.2.4, RFC 3810 section 5.2.4: type, words of auxiliary data, number of
    /// sources, group, sources, auxiliary data.
    fn record(&mut self) -> Option<(&'h [u8], bool)> {
        if let Some(joined) = self.one {
            return Some((self.rest.get(..self.size)?, joined));
        }
        let (kind, words) = (*self.rest.first()?, usize::from(*self.rest.get(1)?));
        let sources = usize::from(be16(self.rest, 2)?);
        let group = self.rest.get(4..4 + self.size)?;
        self.rest = self.rest.get(4 + self.size + sources * self.size + 4 * words..).unwrap_or(&[]);
        // "Include" nobody is to leave. Sources that are blocked leave others.
        let leaves = matches!(kind, 1 | 3) && sources == 0;
        Some((group, !leaves))
    }
}

impl Headers {
    /// The message about multicast groups in a frame of `len` bytes; `None` if there is none.
    pub fn membership<'h>(&self, head: &'h [u8], len: usize) -> Option<Membership<'h>> {
        match self.said(head) {
            Some(Membership::Query { delay, .. }) => {
                let general = self.ends(len) && self.is_general(head).unwrap_or(false);
                Some(Membership::Query { delay, general })
            }
            said => said,
        }
    }

    /// [`Headers::membership`], with no query called general.
    fn said<'h>(&self, head: &'h [u8]) -> Option<Membership<'h>> {
        let (protocol, whole) = (self.protocol, self.parsed && !self.fragment);
        let end = head.len().min(self.l3 + self.ip_len);
        let message = || head.get(self.l4..end).filter(|_| whole && self.l4 != 0);
        match (self.network, protocol) {
            (Network::Ipv4, IGMP) => Some(message().and_then(igmp).unwrap_or(Membership::Unclear)),
            (Network::Ipv6, ICMPV6) if self.fragment => Some(Membership::Unclear),
            (Network::Ipv6, _) if self.fragment && self.is_hidden() => Some(Membership::Unclear),
            // RFC 3810 section 5: whatever came through a router is none.
            (Network::Ipv6, ICMPV6) if head.get(self.l3 + 7) == Some(&1) => {
                message().map_or(Some(Membership::Unclear), mld)
            }
            // No protocol was reached: whoever receives it looks further than the snapshot.
            (Network::Ipv6, 0) if head.get(self.l3 + 7) == Some(&1) => Some(Membership::Unclear),
            _ => None,
        }
    }

    /// True of a frame without bytes behind the packet, except for what fills it up to the shortest
    /// that Ethernet carries: longer than it needs, some NICs would drop it.
    fn ends(&self, len: usize) -> bool {
        len <= SHORTEST + 4 * usize::from(self.tags) || len == self.l3 + self.ip_len
    }

    /// True of a query that every host has to answer, and that its NIC does not filter.
    fn is_general(&self, head: &[u8]) -> Option<bool> {
        let (from, to) = self.addresses(head)?;
        let header_bytes = head.get(self.l3..self.l4)?;
        let message = head.get(self.l4..self.l3 + self.ip_len)?;
        let (mac, sound, mut sum, group) = if self.network == Network::Ipv4 {
            let mut header_sum = Checksum::new();
            header_sum.add(header_bytes);
            let header = header_sum.folded() == 0xffff && header_bytes.get(8) == Some(&1);
            // RFC 1122 section 3.2.1.3.
            let source = matches!(from, [1..=126 | 128..=223, ..] | [0, 0, 0, 0]);
            // RFC 3376 section 9.1: of later versions than the first some hosts want the alert.
            let first = message.len() == 8 && message.get(1) == Some(&0);
            let alert = first || alerts_routers_v4(header_bytes);
            let sound = header && alert && source && !self.detour && to == [224, 0, 0, 1];
            ([1, 0, 0x5e, 0, 0, 1], sound, Checksum::new(), 4..8)
        } else {
            // RFC 3810 section 6.2.
            let source = matches!(from, [0xfe, 0x80..=0xbf, ..]);
            let sound = source && to == ALL_NODES && alerts_routers(header_bytes);
            let sum = Checksum::pseudo_header(head, self, message.len())?;
            ([0x33, 0x33, 0, 0, 0, 1], sound, sum, 8..24)
        };
        sum.add(message);
        // RFC 3376 sections 4.1.11 and 7.1: of all groups no sources are named, and a message is as
        // long as those of one version.
        let end = group.end;
        let sources = message.get(end + 2..end + 4);
        let version = message.len() == end || sources == Some(&[0, 0]);
        let all = message.get(group)?.iter().all(|byte| *byte == 0);
        Some(sound && version && all && sum.folded() == 0xffff && head.starts_with(&mac))
    }

    /// A first fragment that does not show its protocol: the header is behind the snapshot, or in
    /// another fragment, and what was taken for it is padding.
    fn is_hidden(&self) -> bool {
        !self.later && (self.l4 == 0 || self.l4 > self.l3 + self.ip_len)
    }
}

/// True of an IPv4 header with the option that the alert is (RFC 2113), among others of four bytes.
fn alerts_routers_v4(header: &[u8]) -> bool {
    let options = header.get(20..).unwrap_or_default();
    options.chunks(4).any(|option| option == [0x94, 4, 0, 0])
}

/// ff02::1.
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// True of an IPv6 header and hop-by-hop options that hold the alert which hosts look for, and
/// padding (RFC 3810 section 6.2, RFC 2711).
fn alerts_routers(header: &[u8]) -> bool {
    let [.., a, b, c, d, e, f] = header else { return false };
    let options = [*a, *b, *c, *d, *e, *f];
    header.len() == IPV6_HEADER + 8
        && header.get(6) == Some(&HOP_BY_HOP)
        && matches!(options, [5, 2, 0, 0, 0 | 1, 0] | [0 | 1, 0, 5, 2, 0, 0])
}

fn one(message: &[u8], at: usize, size: usize, joined: bool) -> Option<Membership<'_>> {
    let rest = message.get(at..at + size)?;
    Some(Membership::Report(Records { rest, left: 1, size, one: Some(joined) }))
}

fn query<'h>(delay: Duration) -> Option<Membership<'h>> {
    Some(Membership::Query { delay, general: false })
}

fn records(message: &[u8], size: usize) -> Option<Membership<'_>> {
    let (left, rest) = (be16(message, 6)?, message.get(8..)?);
    Some(Membership::Report(Records { rest, left, size, one: None }))
}

/// RFC 3376 section 4.
fn igmp(message: &[u8]) -> Option<Membership<'_>> {
    let code = *message.get(1)?;
    match message.first()? {
        0x11 if code == 0 => query(USUAL_DELAY),
        0x11 => {
            // Section 4.1.1: from 128 on a floating-point number of tenths of a second.
            let (exponent, mantissa) = (code >> 4 & 7, u64::from(code & 15 | 16));
            let tenths = if code < 128 { code.into() } else { mantissa << (exponent + 3) };
            query(Duration::from_millis(100 * tenths))
        }
        0x12 | 0x16 => one(message, 4, 4, true),
        0x17 => one(message, 4, 4, false),
        0x22 => records(message, 4),
        _ => None,
    }
}

/// RFC 2710 section 3, RFC 3810 section 5. `None` for other messages of ICMPv6.
fn mld(message: &[u8]) -> Option<Membership<'_>> {
    let Some(kind) = message.first() else { return Some(Membership::Unclear) };
    match kind {
        130 => {
            // Whoever receives it reads what is behind the snapshot.
            let Some(code) = be16(message, 4) else { return Some(Membership::Unclear) };
            // RFC 3810 section 5.1.3: from 32,768 on a floating-point number of milliseconds.
            let (exponent, mantissa) = (code >> 12 & 7, u64::from(code & 0xfff | 0x1000));
            let ms = if code < 0x8000 { code.into() } else { mantissa << (exponent + 3) };
            query(Duration::from_millis(ms))
        }
        131 => one(message, 8, 16, true),
        132 => one(message, 8, 16, false),
        143 => records(message, 16),
        _ => None,
    }
}
