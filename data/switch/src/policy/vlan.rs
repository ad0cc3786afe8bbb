//! Broadcast domains: VLANs (IEEE 802.1Q), service VLANs (802.1ad), and the one of ports without
//! either.
//!
//! | port | sends | gets |
//! | --- | --- | --- |
//! | none of these | anything: tags are payload | the same |
//! | `vlan` | untagged, or tagged with VID 0 (priority only) | untagged |
//! | `trunk` | one tag of a VLAN of the trunk | the same |
//! | `native` | untagged, or tagged with VID 0 | untagged |
//! | `qinq` | anything: tags are payload | the same |
//! | `qinq_trunk` | an outer service tag of one of its VLANs, inside anything | the same |
//!
//! A frame in a customer VLAN has at most one tag, and behind it nothing that could be read as a
//! tag. So when the tag is removed for an access port or a trunk's native VLAN, no second tag
//! appears that would carry the frame into another VLAN at the far end ("VLAN hopping").

use std::fmt;

use vmlan_frame::Reason;
use vmlan_frame::headers::{ETHERTYPE_QINQ, ETHERTYPE_VLAN};

/// EtherTypes of service tags before 802.1ad. Never accepted, but a peer might read them as tags.
const OLD_SERVICE_TAGS: [u16; 3] = [0x9100, 0x9200, 0x9300];

/// Offset of the first tag: behind two MAC addresses.
pub(crate) const TAG_AT: usize = 12;

/// The identifier in a tag's control information (802.1Q section 9.6); the rest is priority.
pub(crate) const VID: u16 = 0xfff;

/// True for the identifiers that name a VLAN: 0 means "priority only", 4095 is reserved.
const fn names_one(vid: u16) -> bool {
    vid != 0 && vid < VID
}

const fn is_tag(ethertype: u16) -> bool {
    let [a, b, c] = OLD_SERVICE_TAGS;
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ)
        || ethertype == a
        || ethertype == b
        || ethertype == c
}

/// A broadcast domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(u16);

impl Domain {
    /// That of ports without VLAN settings: tags are payload there.
    pub const OPEN: Self = Self(0);

    /// The customer VLAN `vid`.
    pub const fn customer(vid: u16) -> Self {
        Self(vid & 0xfff)
    }

    /// The service VLAN `vid`.
    pub const fn service(vid: u16) -> Self {
        Self(vid & 0xfff | 0x1000)
    }

    /// As a number below 2^13, as the forwarding table keeps it.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Its VLAN identifier; 0 for [`Domain::OPEN`].
    #[inline]
    pub const fn vid(self) -> u16 {
        self.0 & VID
    }

    /// From that number.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x1fff)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("open"),
            bits if bits & 0x1000 == 0 => write!(f, "vlan {bits}"),
            bits => write!(f, "service vlan {}", bits & VID),
        }
    }
}

/// A set of VLAN identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VidSet(Box<[u64; 64]>);

impl VidSet {
    /// A set of these. Numbers that do not name a VLAN (0, 4095 and above) are left out.
    pub fn new(vids: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Box::new([0u64; 64]);
        for vid in vids.into_iter().filter(|v| names_one(*v)) {
            if let Some(word) = set.get_mut(usize::from(vid >> 6)) {
                *word |= 1 << (vid & 63);
            }
        }
        Self(set)
    }

    /// All VLANs.
    pub fn all() -> Self {
        Self::new(1..VID)
    }

    /// True if `vid` is one of them.
    #[inline]
    pub fn has(&self, vid: u16) -> bool {
        self.0.get(usize::from(vid >> 6)).is_some_and(|w| w >> (vid & 63) & 1 == 1)
    }
}

/// As in a port's address: `1+10-20`, or `all`.
impl fmt::Display for VidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("all");
        }
        let mut vid = 1;
        let mut plus = "";
        while vid < VID {
            let end = (vid..VID).find(|v| !self.has(*v)).unwrap_or(VID);
            match end - vid {
                0 => {}
                1 => write!(f, "{plus}{vid}")?,
                _ => write!(f, "{plus}{vid}-{}", end - 1)?,
            }
            plus = if end > vid { "+" } else { plus };
            vid = end + 1;
        }
        Ok(())
    }
}

/// A port's VLAN settings. Identifiers that name no VLAN (0, 4095) match nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Vlan {
    /// No settings: its frames are in [`Domain::OPEN`], whatever tags they carry.
    #[default]
    Open,
    /// Untagged frames of one VLAN.
    Access(u16),
    /// Tagged frames of some VLANs, and untagged ones of one.
    Trunk {
        /// Those that are tagged.
        tagged: VidSet,
        /// The one whose frames carry no tag. If it is in `tagged` too, they are also accepted with
        /// one.
        native: Option<u16>,
    },
    /// A customer's port (802.1ad): whatever it sends is in one service VLAN.
    Qinq(u16),
    /// A provider's port (802.1ad): frames carry an outer tag of some service VLANs.
    QinqTrunk(VidSet),
}

/// What a frame of some domain looks like at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it was sent: tags are payload.
    Payload,
    /// Without a tag.
    Untagged,
    /// With one tag of this VLAN.
    Tagged(u16),
    /// With an outer tag of this service VLAN.
    Service(u16),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload => f.write_str("tags are payload"),
            Self::Untagged => f.write_str("untagged"),
            Self::Tagged(vid) => write!(f, "tagged {vid}"),
            Self::Service(vid) => write!(f, "service tag {vid}"),
        }
    }
}

/// What the bytes behind the MAC addresses say.
enum Outer {
    Untagged,
    /// One tag, and no other behind it.
    Customer(u16),
    /// A service tag; what follows may be one too.
    Service(u16),
}

/// The outermost tag. `None` if a tag is cut short, or if a second one follows it.
#[inline]
fn outer(head: &[u8]) -> Option<Outer> {
    let kind = be16(head, TAG_AT)?;
    if !is_tag(kind) {
        return Some(Outer::Untagged);
    }
    let (vid, inner) = (be16(head, TAG_AT + 2)? & VID, be16(head, TAG_AT + 4)?);
    match kind {
        ETHERTYPE_VLAN if !is_tag(inner) => Some(Outer::Customer(vid)),
        ETHERTYPE_QINQ => Some(Outer::Service(vid)),
        _ => None,
    }
}

#[inline]
pub(crate) fn be16(head: &[u8], at: usize) -> Option<u16> {
    head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

impl Vlan {
    /// The domain of a frame that came from this port.
    ///
    /// # Errors
    /// [`Reason::Vlan`] if it carries tags that the port must not use, or none where it must.
    #[inline]
    pub fn enter(&self, head: &[u8]) -> Result<Domain, Reason> {
        let domain = match self {
            Self::Open => return Ok(Domain::OPEN),
            Self::Access(vid) => match outer(head) {
                Some(Outer::Untagged | Outer::Customer(0)) => Some(Domain::customer(*vid)),
                _ => None,
            },
            Self::Trunk { tagged, native } => match outer(head) {
                Some(Outer::Untagged | Outer::Customer(0)) => native.map(Domain::customer),
                Some(Outer::Customer(vid)) if tagged.has(vid) => Some(Domain::customer(vid)),
                _ => None,
            },
            Self::Qinq(vid) => Some(Domain::service(*vid)),
            Self::QinqTrunk(vids) => match outer(head) {
                Some(Outer::Service(vid)) if vids.has(vid) => Some(Domain::service(vid)),
                _ => None,
            },
        };
        domain.filter(|d| names_one(d.bits() & VID)).ok_or(Reason::Vlan)
    }

    /// True if frames of `domain` are sent to this port.
    #[inline]
    pub fn carries(&self, domain: Domain) -> bool {
        self.form(domain).is_some()
    }

    /// The form of frames of `domain` at this port; `None` if the port does not carry them.
    #[inline]
    pub fn form(&self, domain: Domain) -> Option<Form> {
        let vid = domain.bits() & VID;
        if domain == Domain::OPEN || !names_one(vid) {
            let open = domain == Domain::OPEN && matches!(self, Self::Open);
            return open.then_some(Form::Payload);
        }
        let customer = domain == Domain::customer(vid);
        match self {
            Self::Access(own) if customer && *own == vid => Some(Form::Untagged),
            Self::Trunk { native, .. } if customer && *native == Some(vid) => Some(Form::Untagged),
            Self::Trunk { tagged, .. } if customer && tagged.has(vid) => Some(Form::Tagged(vid)),
            Self::Qinq(own) if !customer && *own == vid => Some(Form::Payload),
            Self::QinqTrunk(vids) if !customer && vids.has(vid) => Some(Form::Service(vid)),
            _ => None,
        }
    }

    /// The tag of a frame of this port that is not payload: kind and control information. Of frames
    /// that [`Vlan::enter`] let in.
    #[inline]
    pub(crate) fn own_tag(&self, head: &[u8]) -> Option<[u8; 4]> {
        let own = match self {
            Self::Open | Self::Qinq(_) => return None,
            Self::Access(_) | Self::Trunk { .. } => ETHERTYPE_VLAN,
            Self::QinqTrunk(_) => ETHERTYPE_QINQ,
        };
        let tag: &[u8; 4] = head.get(TAG_AT..)?.first_chunk()?;
        tag.starts_with(&own.to_be_bytes()).then_some(*tag)
    }
}

/// In the words of a port's address; `no VLAN` if there are none.
impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("no VLAN"),
            Self::Access(vid) => write!(f, "vlan={vid}"),
            Self::Trunk { tagged, native } => {
                write!(f, "trunk={tagged}")?;
                native.map_or(Ok(()), |vid| write!(f, ",native={vid}"))
            }
            Self::Qinq(vid) => write!(f, "qinq={vid}"),
            Self::QinqTrunk(vids) => write!(f, "qinq_trunk={vids}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
