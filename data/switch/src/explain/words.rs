//! Explanations in words.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::sync::atomic::Ordering;

use vmlan_frame::headers::{ETHERTYPE_QINQ, ETHERTYPE_VLAN, Neighbour};
use vmlan_frame::{Headers, Mac, Reason};

use crate::PortId;
use crate::policy::{Claims, Domain, Macs};

/// One look at the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was looked at.
    pub check: Check,
    /// The receiver it is about; none if it is about the frame itself.
    pub port: Option<PortId>,
    /// With what result.
    pub verdict: Verdict,
    /// Why, in a few words.
    pub detail: String,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It does not leave its port, or not for this receiver.
    Refuse,
    /// It would stay in its sender's ring for a while.
    Hold,
    /// It is lost at its receiver.
    Drop,
}

impl Verdict {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Refuse => "refuse",
            Self::Hold => "hold",
            Self::Drop => "drop",
        }
    }
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The length of the frame.
    Length,
    /// The limits of what the port sends.
    FromLimit,
    /// Tags, and who takes them.
    Vlan,
    /// Who the sender says it is.
    Claims,
    /// Its MAC address.
    Source,
    /// Whether its MAC address may live here.
    Learning,
    /// Where the destination lives.
    Destination,
    /// Whom the port may send to.
    Reach,
    /// The limits of what the port sends to all.
    Storm,
    /// Whether there is anybody.
    Receivers,
    /// The limits of what the receiver gets.
    ToLimit,
    /// Whose turn it is at an uplink.
    Uplink,
    /// Whether the receiver is up.
    Link,
    /// The receiver gets it.
    Delivery,
}

impl Check {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::FromLimit => "from-limit",
            Self::Vlan => "vlan",
            Self::Claims => "claims",
            Self::Source => "source",
            Self::Learning => "learning",
            Self::Destination => "destination",
            Self::Reach => "reach",
            Self::Storm => "storm",
            Self::Receivers => "receivers",
            Self::ToLimit => "to-limit",
            Self::Uplink => "uplink",
            Self::Link => "link",
            Self::Delivery => "delivery",
        }
    }
}

/// Nanoseconds for people.
pub(super) struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Buckets do not look further ahead.
            ns if ns >= 1_000_000_000 => f.write_str("a second or more"),
            ns if ns >= 1_000_000 => write!(f, "{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
            ns => write!(f, "{} us", ns.div_ceil(1000)),
        }
    }
}

/// Bits for people.
pub(super) struct Bits(pub i64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 10_000_000 => write!(f, "{} Mbit", n / 1_000_000),
            n if n >= 10_000 => write!(f, "{} kbit", n / 1000),
            n => write!(f, "{n} bit"),
        }
    }
}

/// The tags of a frame, as anybody reads them: `untagged`, `service tag 100, tag 7`.
pub(super) fn tags(head: &[u8]) -> String {
    let (mut at, mut words) = (12, Vec::new());
    let be16 = |at: usize| head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
    while let (Some(kind @ (ETHERTYPE_VLAN | ETHERTYPE_QINQ)), Some(tci)) = (be16(at), be16(at + 2))
    {
        let kind = if kind == ETHERTYPE_QINQ { "service tag" } else { "tag" };
        words.push(format!("{kind} {}", tci & 0xfff));
        at += 4;
    }
    match words.len() {
        0 => "untagged".to_owned(),
        1..=4 => words.join(", "),
        n => format!("{n} tags"),
    }
}

/// `vlan 10`, or what is said where there are none.
pub(super) fn domain(domain: Domain) -> String {
    match domain {
        Domain::OPEN => "the domain of ports without VLANs".to_owned(),
        other => other.to_string(),
    }
}

fn ip(bytes: &[u8]) -> String {
    match (bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
        (Some(v6), _) => Ipv6Addr::from(*v6).to_string(),
        (_, Some(v4)) => Ipv4Addr::from(*v4).to_string(),
        _ => String::new(),
    }
}

/// Who the sender of a frame says it is.
pub(super) fn claimed(head: &[u8], len: usize) -> String {
    let h = Headers::parse(head, len);
    let mac = source(head);
    match (h.arp(head, len), h.addresses(head)) {
        (Some(arp), _) => format!("{mac} is {} (ARP)", Ipv4Addr::from(arp.sender.1)),
        (_, Some((from, _))) => format!("{mac} is {}", ip(from)),
        _ => mac.to_string(),
    }
}

fn source(head: &[u8]) -> Mac {
    let bytes = head.get(6..12).and_then(|b| b.first_chunk::<6>());
    bytes.map_or_else(Mac::default, |b| Mac::new(*b))
}

/// What is wrong with what a frame claims, and the address that is not its sender's, if there is one.
pub(super) fn claim_refused(
    reason: Reason,
    claims: &Claims,
    head: &[u8],
    len: usize,
) -> (String, Option<String>) {
    let h = Headers::parse(head, len);
    let mac = source(head);
    match reason {
        Reason::SpoofedMac if mac.is_group() || mac == Mac::default() => {
            (format!("{mac} is no address that a frame can come from"), None)
        }
        Reason::SpoofedMac => match &claims.macs {
            Macs::First(first) => {
                let first = Mac::from_bits(first.0.load(Ordering::Relaxed));
                let text = format!("{mac} is not the address that was seen first, {first}");
                (text, Some(mac.to_string()))
            }
            _ => (format!("source {mac}, which is not one of the port's"), Some(mac.to_string())),
        },
        Reason::SpoofedIp => match h.addresses(head) {
            Some((from, _)) => not_own("source", from),
            None => ("no source address".to_owned(), None),
        },
        Reason::SpoofedArp => match h.arp(head, len) {
            Some(arp) if arp.sender.0 != mac => {
                (format!("ARP of {mac} about another sender, {}", arp.sender.0), None)
            }
            Some(arp) => {
                // A probe is about its target.
                let probe = arp.sender.1 == [0; 4];
                let about = if probe { arp.target.1 } else { arp.sender.1 };
                not_own("ARP about", &about)
            }
            None => ("ARP about others".to_owned(), None),
        },
        Reason::SpoofedNd => neighbour(&h, head, mac),
        Reason::DhcpGuard => ("it is an answer of a DHCP server".to_owned(), None),
        Reason::RaGuard => ("it is a router's advertisement or redirect".to_owned(), None),
        _ => (not_parsed(&h), None),
    }
}

/// An IP address that is not the port's; and it, if it could be.
fn not_own(what: &str, address: &[u8]) -> (String, Option<String>) {
    let text = ip(address);
    let somebodys = text.parse().is_ok_and(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    });
    match somebodys {
        true => (format!("{what} {text}, which is not one of the port's"), Some(text)),
        false => (format!("{what} {text}, which nobody can have"), None),
    }
}

/// The keys of those settings that refuse the frame by themselves; all there are, if none does.
pub(super) fn deciding(claims: &Claims, head: &[u8], len: usize) -> Vec<&'static str> {
    let Claims { macs, ips, dhcp_guard, ra_guard } = claims.clone();
    let none = Claims::default;
    let alone = [
        ("macs", Claims { macs, ..none() }),
        ("ips", Claims { ips, ..none() }),
        ("dhcp_guard", Claims { dhcp_guard, ..none() }),
        ("ra_guard", Claims { ra_guard, ..none() }),
    ];
    let refuse = alone.iter().filter(|(_, c)| c.peek(head, len).is_err());
    let keys: Vec<_> = refuse.map(|(key, _)| *key).collect();
    if !keys.is_empty() {
        return keys;
    }
    alone.iter().filter(|(_, c)| !c.is_any()).map(|(key, _)| *key).collect()
}

fn neighbour(h: &Headers, head: &[u8], mac: Mac) -> (String, Option<String>) {
    let others = || "neighbour discovery about others".to_owned();
    let Some(message) = h.neighbour(head) else { return (others(), None) };
    if message.hop_limit != 255 {
        let text = format!("neighbour discovery with hop limit {}, not 255", message.hop_limit);
        return (text, None);
    }
    if let Some(other) = message.link_layers().find(|m| *m != mac) {
        let text = format!("neighbour discovery of {mac} about another address, {other}");
        return (text, None);
    }
    match (message.kind, message.target) {
        (Neighbour::NA, Some(target)) => not_own("it advertises", &target),
        (Neighbour::NS, Some(target)) => not_own("it asks for its own use of", &target),
        _ => (others(), None),
    }
}

fn not_parsed(h: &Headers) -> String {
    let what = match h.ethertype {
        _ if h.tags > 1 => "two tags".to_owned(),
        _ if h.fragment => "a fragment".to_owned(),
        0x0806 => "ARP that is not whole, or of another kind".to_owned(),
        0x0800 | 0x86dd => "IP whose headers or lengths are odd".to_owned(),
        kind if kind < 0x600 => format!("an IEEE 802.3 frame of length {kind}"),
        kind => format!("EtherType {kind:#06x}"),
    };
    format!("not understood to its end, and so not allowed: {what}")
}
