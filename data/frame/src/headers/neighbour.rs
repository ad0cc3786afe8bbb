//! Neighbour discovery (RFC 4861 section 4).

use super::{Headers, ICMPV6, IPV6_HEADER, Network};
use crate::{HEAD, Mac};

/// Options with the sender's and the target's link-layer address.
const LINK_LAYER: [u8; 2] = [1, 2];

/// Bytes of an ICMPv6 header that tell what it is (RFC 4443 section 2.1).
const ICMPV6_HEADER: usize = 4;

/// A whole message of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour<'h> {
    /// Its ICMPv6 type.
    pub kind: u8,
    /// 255 if it was not forwarded.
    pub hop_limit: u8,
    /// The address that a solicitation, an advertisement or a redirect is about.
    pub target: Option<[u8; 16]>,
    options: &'h [u8],
}

impl Neighbour<'_> {
    /// Router solicitation.
    pub const RS: u8 = 133;
    /// Router advertisement.
    pub const RA: u8 = 134;
    /// Neighbour solicitation.
    pub const NS: u8 = 135;
    /// Neighbour advertisement.
    pub const NA: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// Inverse solicitation and advertisement (RFC 3122), which nothing on Ethernet uses.
    pub const INVERSE: [u8; 2] = [141, 142];

    /// The link-layer addresses in its options, wherever they stand.
    pub fn link_layers(&self) -> impl Iterator<Item = Mac> {
        let mut rest = self.options;
        let options = std::iter::from_fn(move || {
            let (option, next) = split(rest)?;
            rest = next;
            Some(option)
        });
        options.filter_map(|option| match option {
            [kind, 1, a, b, c, d, e, f] if LINK_LAYER.contains(kind) => {
                Some(Mac::new([*a, *b, *c, *d, *e, *f]))
            }
            _ => None,
        })
    }
}

/// The first option and those behind it; `None` at the end, or if its length is 0 or too large.
fn split(options: &[u8]) -> Option<(&[u8], &[u8])> {
    let units = usize::from(*options.get(1)?);
    if units == 0 { None } else { options.split_at_checked(units * 8) }
}

/// True if the options can be walked to their end, and link-layer addresses are Ethernet's.
fn are_whole(mut options: &[u8]) -> bool {
    while !options.is_empty() {
        let Some((option, rest)) = split(options) else { return false };
        if option.first().is_some_and(|kind| LINK_LAYER.contains(kind)) && option.len() != 8 {
            return false;
        }
        options = rest;
    }
    true
}

impl Headers {
    /// The type of an ICMPv6 message, if its first 4 bytes are there. Not set in fragments other
    /// than the first.
    #[inline]
    pub fn icmpv6(&self, head: &[u8]) -> Option<u8> {
        let here = self.network == Network::Ipv6 && self.protocol == ICMPV6 && self.l4 != 0;
        let header = head.get(self.l4..self.l4 + ICMPV6_HEADER)?;
        let fits = self.l4 + ICMPV6_HEADER <= self.l3 + self.ip_len;
        header.first().copied().filter(|_| here && fits)
    }

    /// The neighbour discovery message; `None` if it is another message, not valid (RFC 4861
    /// sections 6.1, 7.1, 8.1, except what addresses mean; RFC 6980: no fragment, not even an
    /// atomic one), or not whole in the snapshot.
    pub fn neighbour<'h>(&self, head: &'h [u8]) -> Option<Neighbour<'h>> {
        let head = head.get(..HEAD).unwrap_or(head);
        let kind = self.icmpv6(head).filter(|_| self.parsed && !self.fragment)?;
        let message = head.get(self.l4..self.l3 + self.ip_len)?;
        let (fixed, targets) = match kind {
            Neighbour::RS => (8, false),
            Neighbour::RA => (16, false),
            Neighbour::NS | Neighbour::NA => (24, true),
            Neighbour::REDIRECT => (40, true),
            _ => return None,
        };
        let (fixed, options) = message.split_at_checked(fixed)?;
        let target = fixed.get(8..24).filter(|_| targets).and_then(|t| t.try_into().ok());
        let hop_limit = *head.get(self.l3..self.l3 + IPV6_HEADER)?.get(7)?;
        let valid = fixed.get(1) == Some(&0) && are_whole(options);
        valid.then_some(Neighbour { kind, hop_limit, target, options })
    }
}
