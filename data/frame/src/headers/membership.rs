//! Messages about multicast groups: IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810).

use core::time::Duration;

use super::{Headers, ICMPV6, Network, be16};

/// IP protocol number of IGMP.
pub const IGMP: u8 = 2;

/// Answers to a query of IGMPv1, which does not say how long to wait (RFC 3376 section 4.1.1).
const USUAL_DELAY: Duration = Duration::from_secs(10);

/// A message about multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership<'h> {
    /// A querier asks. Whoever has joined something answers within this time.
    Query(Duration),
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
    /// The message about multicast groups in the packet; `None` if it is another packet.
    pub fn membership<'h>(&self, head: &'h [u8]) -> Option<Membership<'h>> {
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

    /// A first fragment that does not show its protocol: the header is behind the snapshot, or in
    /// another fragment, and what was taken for it is padding.
    fn is_hidden(&self) -> bool {
        !self.later && (self.l4 == 0 || self.l4 > self.l3 + self.ip_len)
    }
}

fn one(message: &[u8], at: usize, size: usize, joined: bool) -> Option<Membership<'_>> {
    let rest = message.get(at..at + size)?;
    Some(Membership::Report(Records { rest, left: 1, size, one: Some(joined) }))
}

fn records(message: &[u8], size: usize) -> Option<Membership<'_>> {
    let (left, rest) = (be16(message, 6)?, message.get(8..)?);
    Some(Membership::Report(Records { rest, left, size, one: None }))
}

/// RFC 3376 section 4.
fn igmp(message: &[u8]) -> Option<Membership<'_>> {
    let code = *message.get(1)?;
    match message.first()? {
        0x11 if code == 0 => Some(Membership::Query(USUAL_DELAY)),
        0x11 => {
            // Section 4.1.1: from 128 on a floating-point number of tenths of a second.
            let (exponent, mantissa) = (code >> 4 & 7, u64::from(code & 15 | 16));
            let tenths = if code < 128 { code.into() } else { mantissa << (exponent + 3) };
            Some(Membership::Query(Duration::from_millis(100 * tenths)))
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
            Some(Membership::Query(Duration::from_millis(ms)))
        }
        131 => one(message, 8, 16, true),
        132 => one(message, 8, 16, false),
        143 => records(message, 16),
        _ => None,
    }
}
