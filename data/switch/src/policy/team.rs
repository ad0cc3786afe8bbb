//! Teams: ports that are one place to the others. Guests that share an address, or uplinks to one
//! switch (a bond).
//!
//! What is for the team goes to one member. [`Steer::Ip`] chooses the one whose addresses the
//! packet is for. [`Steer::Hash`] gives each flow to a member, in proportion to weights: flows fall
//! into buckets, and a bucket belongs to the member with the highest score for it (weighted
//! rendezvous hashing: Thaler and Ravishankar 1998). So if a member leaves, goes down or joins,
//! only its own buckets change hands. Scores depend on names and weights alone: they are the same
//! after a restart, and on other hosts. The hash is not keyed, as that of a bond is not: a sender
//! can aim its flows at one member.
//!
//! Each guest has neighbours of its own to know, though all have one address: what tells of a
//! neighbour goes to all of them. At a bond it would come twice.
//!
//! Nothing passes from one member to another.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use vmlan_frame::headers::Neighbour;
use vmlan_frame::{FlowFields, Headers, Mac, fields_hash};

use super::Prefix;
use crate::PortId;

/// Members of a team.
pub const MAX_MEMBERS: usize = 64;

/// Buckets that flows fall into.
const BUCKETS: u32 = 8192;

/// How the member is chosen that gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// By the IP address that the packet is for, or that ARP or neighbour discovery asks for.
    Ip,
    /// By a hash over these fields.
    Hash(FlowFields),
}

/// A member of a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The port.
    pub port: PortId,
    /// Its name: what its scores are made of.
    pub name: Arc<str>,
    /// Its share of the flows in relation to others'.
    pub weight: u16,
    /// Its IP addresses.
    pub ips: Arc<[Prefix]>,
}

/// Ports that are one place to the others.
#[derive(Debug)]
pub struct Team {
    steer: Steer,
    members: Vec<Member>,
    /// The number of each bucket's member.
    buckets: Box<[u8]>,
}

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// This member.
    One(PortId),
    /// No single one: it is for all, if it is for many.
    All,
    /// None of those that could take it.
    Nobody,
}

impl Team {
    /// A team of these; those beyond [`MAX_MEMBERS`] are left out.
    pub fn new(steer: Steer, mut members: Vec<Member>) -> Self {
        members.truncate(MAX_MEMBERS);
        let best = |bucket| {
            let best = best(&members, bucket, |_| true);
            best.and_then(|(i, _)| u8::try_from(i).ok()).unwrap_or_default()
        };
        let hashes = matches!(steer, Steer::Hash(_));
        let buckets = (0..BUCKETS).filter(|_| hashes).map(best).collect();
        Self { steer, members, buckets }
    }

    /// How members are chosen.
    pub fn steer(&self) -> Steer {
        self.steer
    }

    /// True if it is a team of these, steered like this.
    pub fn is(&self, steer: Steer, members: &[Member]) -> bool {
        self.steer == steer && self.members == members
    }

    /// True if `port` is a member.
    pub fn has(&self, port: PortId) -> bool {
        self.members.iter().any(|m| m.port == port)
    }

    /// The members.
    pub(crate) fn ports(&self) -> impl Iterator<Item = PortId> {
        self.members.iter().map(|m| m.port)
    }

    /// Who of those for which `can` is true gets the frame of `len` bytes that begins with `head`.
    /// `guests`: the members are guests, not ways to one switch.
    pub(crate) fn choose(
        &self,
        (head, len): (&[u8], usize),
        guests: bool,
        can: impl Fn(PortId) -> bool,
    ) -> Chosen {
        let headers = Headers::parse(head, len);
        match self.steer {
            Steer::Hash(fields) => {
                if guests && tells(&headers, head, len) && self.ports().any(&can) {
                    return Chosen::All;
                }
                let bucket = fields_hash(fields, &headers, head) % BUCKETS;
                let owner = usize::try_from(bucket).ok().and_then(|b| self.buckets.get(b));
                let owner = owner.and_then(|i| self.members.get(usize::from(*i)));
                let owner = owner.filter(|m| can(m.port));
                let next = || best(&self.members, bucket, |m| can(m.port)).map(|(_, m)| m);
                owner.or_else(next).map_or(Chosen::Nobody, |m| Chosen::One(m.port))
            }
            Steer::Ip => {
                let Some(ip) = asked(&headers, head, len) else { return Chosen::All };
                match self.owner(ip).filter(|port| can(*port)) {
                    Some(port) => Chosen::One(port),
                    None => Chosen::Nobody,
                }
            }
        }
    }

    /// The member that has the longest prefix of an address.
    fn owner(&self, ip: IpAddr) -> Option<PortId> {
        let own = |m: &Member| {
            let has = m.ips.iter().filter(|prefix| prefix.has(ip));
            has.map(|prefix| prefix.bits).max().map(|bits| (bits, m.port))
        };
        self.members.iter().filter_map(own).max_by_key(|(bits, _)| *bits).map(|(_, port)| port)
    }
}

/// True for ARP and neighbour discovery that say where an address is and ask for none: answers,
/// and announcements, which may be requests for the sender itself (RFC 5227 section 3).
fn tells(headers: &Headers, head: &[u8], len: usize) -> bool {
    let arp = headers.arp(head, len);
    arp.is_some_and(|a| a.operation == 2 || a.operation == 1 && a.sender.1 == a.target.1)
        || headers.neighbour(head).is_some_and(|n| n.kind == Neighbour::NA)
}

/// The one IP address that a frame is for: the packet's destination, or what ARP or neighbour
/// discovery asks for; `None` if it is for many, or is no IP.
fn asked(headers: &Headers, head: &[u8], len: usize) -> Option<IpAddr> {
    let to_all = head.first_chunk().is_some_and(|dst| Mac::new(*dst).is_group());
    if let Some(arp) = headers.arp(head, len) {
        let asks = !(to_all && tells(headers, head, len));
        return asks.then_some(IpAddr::from(arp.target.1));
    }
    let solicitation = headers.neighbour(head).filter(|n| n.kind == Neighbour::NS);
    if let Some(target) = solicitation.and_then(|n| n.target) {
        return Some(IpAddr::from(target));
    }
    let (_, to) = headers.addresses(head).filter(|_| !to_all)?;
    let v4 = <[u8; 4]>::try_from(to).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(to).map(IpAddr::from)).ok()
}

/// The member with the highest score for a bucket, of those that are `wanted`, and its number.
fn best(
    members: &[Member],
    bucket: u32,
    wanted: impl Fn(&Member) -> bool,
) -> Option<(usize, &Member)> {
    let members = members.iter().enumerate().filter(|(_, m)| wanted(m));
    members.max_by(|(_, a), (_, b)| score(a, bucket).total_cmp(&score(b, bucket)))
}

/// `-weight / ln(u)`, for a number `u` between 0 and 1 that is made of name and bucket: the highest
/// of several scores is a member's as often as its weight says.
#[allow(clippy::cast_precision_loss)] // 53 bits are all that an f64 has
fn score(member: &Member, bucket: u32) -> f64 {
    // FNV-1a, and the finalizer of MurmurHash3, since FNV's high bits know little of the last byte.
    let bytes = member.name.bytes().chain(bucket.to_be_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for multiplier in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(multiplier);
    }
    let u = ((hash ^ hash >> 33) >> 11) as f64 + 0.5;
    -f64::from(member.weight) / (u / (1u64 << 53) as f64).ln()
}

/// In the words of a port's address.
impl fmt::Display for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Hash(fields) = self else { return f.write_str("ip") };
        let words = [(fields.src, "src"), (fields.dst, "dst"), (fields.ports, "ports")];
        let words: Vec<_> = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
        write!(f, "hash:{}", words.join("+"))
    }
}

/// The text names no way of steering.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write ip, or hash: and some of src+dst+ports")]
pub struct ParseSteerError;

impl FromStr for Steer {
    type Err = ParseSteerError;

    fn from_str(text: &str) -> Result<Self, ParseSteerError> {
        if text == "ip" {
            return Ok(Self::Ip);
        }
        let words = text.strip_prefix("hash:").ok_or(ParseSteerError)?;
        let mut fields = FlowFields { src: false, dst: false, ports: false };
        for word in words.split('+') {
            let field = match word {
                "src" => &mut fields.src,
                "dst" => &mut fields.dst,
                "ports" => &mut fields.ports,
                _ => return Err(ParseSteerError),
            };
            if std::mem::replace(field, true) {
                return Err(ParseSteerError);
            }
        }
        Ok(Self::Hash(fields))
    }
}

impl Default for Steer {
    fn default() -> Self {
        Self::Hash(FlowFields { src: true, dst: true, ports: true })
    }
}

#[cfg(test)]
mod tests;
