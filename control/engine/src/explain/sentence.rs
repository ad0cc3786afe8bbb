//! The sentences that say what a check of the switch found.

use std::fmt;

use vmlan_switch::policy::{Budget, Domain};
use vmlan_switch::{
    Claim, ClaimFault, Claimed, Finding, Naming, Place, StormTokens, Tag, Tags, Tokens, Unparsed,
    WouldLearn,
};

use super::Known;

/// From this many tags on they are counted, not listed.
const MANY_TAGS: usize = 5;

/// Says what was found.
pub(super) fn finding(found: &Finding, known: &Known<'_>) -> String {
    let name = |port| known.name(port);
    match found {
        Finding::BadLength(n) => format!("{n} bytes: no Ethernet frame has that length"),
        Finding::FromLimit(tokens) => from_limit(*tokens),
        Finding::Enters(t, vlan, d) => format!("{}, {vlan}: it is in {}", tags(t), domain(*d)),
        Finding::TagsRefused(t, vlan) => format!("{}, which {vlan} does not accept", tags(t)),
        Finding::OutsideDomain(vlan, d) => format!("{vlan}: not in {}", domain(*d)),
        Finding::NoRoomForTag => "the frame cannot carry the tag that it needs there".into(),
        Finding::AnyClaim => "no setting restricts them".into(),
        Finding::Claims(claimed) => claims(claimed),
        Finding::ClaimRefused(fault) => claim_fault(fault),
        Finding::Source(mac) => mac.to_string(),
        Finding::BadSource(mac) => format!("{mac} is not a valid source address"),
        Finding::SourceIsMonitor => "the port is a monitor, which may not send".into(),
        Finding::Learning(mac, would) => learning(mac, *would, known),
        Finding::Destination(mac, place) => destination(mac, *place, known),
        Finding::MaySend(to) => format!("this port may send to {}", name(*to)),
        Finding::LeavesByUplink(to) => format!("it leaves by this port's uplink, {}", name(*to)),
        Finding::MayNotSend(to) => format!("this port may not send to {}", name(*to)),
        Finding::ReachesNobody => {
            "this port may not send to anybody, and nothing is learned from it".into()
        }
        Finding::ReceiverIsMonitor => "a monitor: it gets copies only".into(),
        Finding::Storm(tokens) => storm(*tokens),
        Finding::Chosen(to) => format!("the team's member for it is {}", name(*to)),
        Finding::ChosenAll(at) => {
            format!("it tells of a neighbour: for each member of the team of {}", name(*at))
        }
        Finding::NoMember(at) => format!("nobody in the team of {} has its address", name(*at)),
        Finding::NotChosen => "it is for another member of the team, or comes from one".into(),
        Finding::Multicast => "for all ports".into(),
        Finding::Members => "for those that have joined the group".into(),
        Finding::Report => "a report, for ports that get all groups".into(),
        Finding::Query => "a query, or what could be one, from a port that is no router".into(),
        Finding::NotJoined => "multicast=joined, and it has not joined that".into(),
        Finding::NobodyReachable => "no port is left that this port may send to".into(),
        Finding::NobodyUp => "no other port is up that accepts such frames".into(),
        Finding::TooLong(mtu) => format!("its packet is longer than the {mtu} bytes of the link"),
        Finding::PassedOver { wait_ns } => {
            format!("its memory made a worker sleep: it is passed over for {}", Time(*wait_ns))
        }
        Finding::ToLimit { wait_ns } => {
            format!("no tokens: nothing gets there for {}", Time(*wait_ns))
        }
        Finding::NotItsTurn => "it is the turn of others".into(),
        Finding::LinkDown => "down".into(),
        Finding::PortGone => "the port has been deleted".into(),
        Finding::Delivery { tags, left, full } => delivery(tags, *left, *full),
        Finding::Copy => "a copy, in the form in which the frame came".into(),
    }
}

/// `untagged`, or `service tag 100, tag 7`.
pub(super) fn tags(Tags(tags): &Tags) -> String {
    let tag = |tag: &Tag| match tag {
        Tag::Customer(vid) => format!("tag {vid}"),
        Tag::Service(vid) => format!("service tag {vid}"),
    };
    match tags.len() {
        0 => "untagged".to_owned(),
        n if n >= MANY_TAGS => format!("{n} tags"),
        _ => tags.iter().map(tag).collect::<Vec<_>>().join(", "),
    }
}

/// `vlan 10`, or the words for ports without VLAN settings.
pub(super) fn domain(domain: Domain) -> String {
    match domain {
        Domain::OPEN => "the domain of ports without VLANs".to_owned(),
        other => other.to_string(),
    }
}

/// The address alone.
pub(super) fn claim(claim: Claim) -> String {
    match claim {
        Claim::Mac(mac) => mac.to_string(),
        Claim::Ip(ip) => ip.to_string(),
    }
}

fn from_limit(tokens: Tokens) -> String {
    match tokens {
        Tokens::Unlimited => "there is no limit".to_owned(),
        Tokens::Left(budget) => left(budget),
        Tokens::Spent { wait_ns } => {
            format!("no tokens: it stays in its sender's ring for {}", Time(wait_ns))
        }
    }
}

fn storm(tokens: StormTokens) -> String {
    match tokens {
        StormTokens::Unlimited => "frames like this to all are not limited".to_owned(),
        StormTokens::Left { frames, rate } => format!("{frames} frames left of {rate} per second"),
        StormTokens::Spent { rate } => format!("over {rate} frames per second like this to all"),
    }
}

fn claims(Claimed { mac, ip, by_arp }: &Claimed) -> String {
    match ip {
        Some(ip) if *by_arp => format!("{mac} is {ip} (ARP)"),
        Some(ip) => format!("{mac} is {ip}"),
        None => mac.to_string(),
    }
}

fn claim_fault(fault: &ClaimFault) -> String {
    let about = |naming: &Naming| match naming {
        Naming::Source => "source",
        Naming::Arp => "ARP about",
        Naming::Advertisement => "it advertises",
        Naming::Solicitation => "it asks whether it may use",
    };
    match fault {
        ClaimFault::BadSource(mac) => format!("{mac} is not a valid source address"),
        ClaimFault::NotFirst { mac, first } => {
            format!("{mac} is not the address that was seen first, {first}")
        }
        ClaimFault::NotListed(mac) => format!("source {mac}, which is not one of the port's"),
        ClaimFault::NotOwn(naming, ip) => {
            format!("{} {ip}, which is not one of the port's", about(naming))
        }
        ClaimFault::Nobodys(naming, ip) => {
            format!("{} {ip}, which is not the address of a host", about(naming))
        }
        ClaimFault::NoSource => "no source address".to_owned(),
        ClaimFault::ArpSender { mac, sender } => {
            format!("ARP of {mac} about another sender, {sender}")
        }
        ClaimFault::Arp => "ARP about others".to_owned(),
        ClaimFault::HopLimit(n) => format!("neighbour discovery with hop limit {n}, not 255"),
        ClaimFault::LinkLayer { mac, other } => {
            format!("neighbour discovery of {mac} about another address, {other}")
        }
        ClaimFault::Neighbour => "neighbour discovery about others".to_owned(),
        ClaimFault::DhcpServer => "it is an answer of a DHCP server".to_owned(),
        ClaimFault::Router => "it is a router's advertisement or redirect".to_owned(),
        ClaimFault::NotParsed(what) => {
            format!("not understood to its end, and so not allowed: {}", unparsed(*what))
        }
    }
}

fn unparsed(what: Unparsed) -> String {
    match what {
        Unparsed::Tags => "two tags".to_owned(),
        Unparsed::Fragment => "a fragment".to_owned(),
        Unparsed::Arp => "ARP that is cut short, or of another kind".to_owned(),
        Unparsed::Ip => "IP whose headers or lengths contradict each other".to_owned(),
        Unparsed::Length(n) => format!("an IEEE 802.3 frame of length {n}"),
        Unparsed::EtherType(kind) => format!("EtherType {kind:#06x}"),
    }
}

fn learning(mac: &vmlan_frame::Mac, would: WouldLearn, known: &Known<'_>) -> String {
    match would {
        WouldLearn::Known(None) => format!("{mac} is pinned to this port"),
        WouldLearn::Known(Some(_)) => format!("{mac} is known to be behind this port"),
        WouldLearn::New => format!("{mac} would be learned"),
        WouldLearn::Moves(old) => format!("{mac} would move here from {}", known.name(old)),
        WouldLearn::Pinned(other) => format!("{mac} is pinned to {}", known.name(other)),
        WouldLearn::Full(_) => {
            format!("{mac} would not be learned: the table, or this port's share of it, is full")
        }
    }
}

fn destination(mac: &vmlan_frame::Mac, place: Place, known: &Known<'_>) -> String {
    let behind = |port| format!("{mac} is behind {}", known.name(port));
    match place {
        Place::Group if *mac == vmlan_frame::Mac::BROADCAST => format!("{mac}, broadcast: to all"),
        Place::Group => format!("{mac}, a group address: to all"),
        Place::Reserved => format!("{mac} is reserved for the protocols of bridges"),
        Place::Unknown => format!("{mac} is not known"),
        Place::Behind(port) => behind(port),
        Place::SamePort(port) => format!("{}, where the frame comes from", behind(port)),
        Place::OutsideDomain(port) => {
            format!("{}, which no longer accepts such frames", behind(port))
        }
    }
}

fn delivery(seen: &Tags, budget: Option<Budget>, full: bool) -> String {
    let mut text = tags(seen);
    if let Some(budget) = budget {
        text += &format!(", {}", left(budget));
    }
    if full {
        text += ", but it is full at present";
    }
    text
}

/// What is left of a limit.
fn left(Budget { bits, frames }: Budget) -> String {
    match (bits, frames) {
        (i64::MAX, frames) => format!("{frames} frames left"),
        (bits, i64::MAX) => format!("{} left", Bits(bits)),
        (bits, frames) => format!("{} and {frames} frames left", Bits(bits)),
    }
}

/// Nanoseconds for people.
struct Time(u64);

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
struct Bits(i64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 10_000_000 => write!(f, "{} Mbit", n / 1_000_000),
            n if n >= 10_000 => write!(f, "{} kbit", n / 1000),
            n => write!(f, "{n} bit"),
        }
    }
}
