//! What each check of a frame found, as data. Whoever shows it to people makes the sentences.

use vmlan_frame::Mac;
use vmlan_frame::headers::{ETHERTYPE_QINQ, ETHERTYPE_VLAN};

use super::source_check::{ClaimFault, Claimed};
use crate::PortId;
use crate::fdb::WouldLearn;
use crate::policy::{Budget, Domain, Vlan};

/// One check of the frame, and what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Step {
    /// The receiver it is about; `None` if it is about the frame itself.
    pub port: Option<PortId>,
    pub verdict: Verdict,
    pub finding: Finding,
}

impl Step {
    /// What was checked.
    pub fn check(&self) -> Check {
        self.finding.check()
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes on.
    Pass,
    /// It does not leave its port, or not for this receiver.
    Refuse,
    /// It would stay in its sender's ring for a while.
    Hold,
    /// It is lost at its receiver.
    Drop,
}

impl Verdict {
    /// Its name in the API and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Refuse => "refuse",
            Self::Hold => "hold",
            Self::Drop => "drop",
        }
    }
}

/// What is checked, in the order of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The length of the frame.
    Length,
    /// Whether a port's memory is fast enough for workers to touch it.
    Memory,
    /// The limits of what the port sends.
    FromLimit,
    /// Tags, and whose VLAN settings accept them.
    Vlan,
    /// Whether the sender is who it claims to be.
    SourceCheck,
    /// The source MAC address.
    Source,
    /// Whether the source MAC address may be behind this port.
    Learning,
    /// Where the destination is.
    Destination,
    /// Whom the port may send to.
    Reach,
    /// The limits of what the port sends to all.
    Storm,
    /// Which member of a team gets the frame.
    Team,
    /// Whether the frame is for all, or for the members of a multicast group.
    Multicast,
    /// Whether anybody is left to receive the frame.
    Receivers,
    /// The limits of what the receiver gets.
    ToLimit,
    /// Whose turn it is at an uplink.
    Uplink,
    /// Whether the receiver is up.
    Link,
    /// The receiver gets the frame.
    Delivery,
}

impl Check {
    /// Its name in the API and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Memory => "memory",
            Self::FromLimit => "from-limit",
            Self::Vlan => "vlan",
            Self::SourceCheck => "claims",
            Self::Source => "source",
            Self::Learning => "learning",
            Self::Destination => "destination",
            Self::Reach => "reach",
            Self::Storm => "storm",
            Self::Team => "team",
            Self::Multicast => "multicast",
            Self::Receivers => "receivers",
            Self::ToLimit => "to-limit",
            Self::Uplink => "uplink",
            Self::Link => "link",
            Self::Delivery => "delivery",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No Ethernet frame has this length, in bytes.
    BadLength(usize),
    /// What the limits of the port say.
    FromLimit(Tokens),
    /// The port's VLAN settings put a frame with these tags into this domain.
    Enters(Tags, Vlan, Domain),
    /// The port's VLAN settings do not accept a frame with these tags.
    TagsRefused(Tags, Vlan),
    /// The receiver's VLAN settings do not carry the frame's domain.
    OutsideDomain(Vlan, Domain),
    /// The frame cannot carry the tag that the receiver's VLAN settings ask for.
    NoRoomForTag,
    /// The port may claim anything.
    AnyClaim,
    /// The port may claim this.
    Claims(Claimed),
    /// The port may not claim this.
    ClaimRefused(ClaimFault),
    /// The source MAC address.
    Source(Mac),
    /// An address that no frame can come from: a group address, or zero.
    BadSource(Mac),
    /// The source is a monitor, which may not send.
    SourceIsMonitor,
    /// What would be learned about the source address.
    Learning(Mac, WouldLearn),
    /// Where the destination address is.
    Destination(Mac, Place),
    /// The port may send to this one.
    MaySend(PortId),
    /// The destination is behind another uplink: the frame leaves by the port's own, this one.
    LeavesByUplink(PortId),
    /// The port may not send to this one.
    MayNotSend(PortId),
    /// The port may send to nobody.
    ReachesNobody,
    /// The receiver is a monitor, which gets copies only.
    ReceiverIsMonitor,
    /// What the limits of frames to all say.
    Storm(StormTokens),
    /// The member of the destination's team that gets the frame.
    Chosen(PortId),
    /// All members of this port's team get the frame: it tells of a neighbour.
    ChosenAll(PortId),
    /// No member of this port's team has the address that the packet is for.
    NoMember(PortId),
    /// The frame is for another member of the port's team, or comes from one.
    NotChosen,
    /// A multicast frame for all ports.
    Multicast,
    /// A multicast frame for those who have joined its group.
    Members,
    /// A report of a member, for those who route multicast.
    Report,
    /// A query, or what could be one, of a port that is no router.
    Query,
    /// The port has not joined the group, or does not route multicast.
    NotJoined,
    /// The port may not send to any port that could receive the frame.
    NobodyReachable,
    /// No other port is up and carries the frame's domain.
    NobodyUp,
    /// The link behind the receiver carries packets of so many bytes.
    TooLong(u16),
    /// The port's memory made a worker sleep: it is passed over.
    PassedOver {
        /// For how long, in nanoseconds.
        wait_ns: u64,
    },
    /// The receiver's limits have no tokens: nothing gets there for so many nanoseconds.
    ToLimit {
        /// How long, in nanoseconds, up to a second.
        wait_ns: u64,
    },
    /// It is the turn of others at the uplink.
    NotItsTurn,
    /// The receiver's link is down.
    LinkDown,
    /// There is no such port any more.
    PortGone,
    /// The receiver gets the frame.
    Delivery {
        /// The tags that it sees.
        tags: Tags,
        /// What its limits have left; `None` if it has no limits.
        left: Option<Budget>,
        /// It has no room at present.
        full: bool,
    },
    /// A monitor gets a copy, in the form in which the frame came.
    Copy,
}

impl Finding {
    /// What was checked.
    pub fn check(&self) -> Check {
        match self {
            Self::BadLength(_) | Self::TooLong(_) => Check::Length,
            Self::PassedOver { .. } => Check::Memory,
            Self::FromLimit(_) => Check::FromLimit,
            Self::Enters(..)
            | Self::TagsRefused(..)
            | Self::OutsideDomain(..)
            | Self::NoRoomForTag => Check::Vlan,
            Self::AnyClaim | Self::Claims(_) | Self::ClaimRefused(_) => Check::SourceCheck,
            Self::Source(_) | Self::BadSource(_) | Self::SourceIsMonitor => Check::Source,
            Self::Learning(..) => Check::Learning,
            Self::Destination(..) => Check::Destination,
            Self::MaySend(_)
            | Self::LeavesByUplink(_)
            | Self::MayNotSend(_)
            | Self::ReachesNobody
            | Self::ReceiverIsMonitor => Check::Reach,
            Self::Storm(_) => Check::Storm,
            Self::Chosen(_) | Self::ChosenAll(_) | Self::NoMember(_) | Self::NotChosen => {
                Check::Team
            }
            Self::Multicast | Self::Members | Self::Report | Self::Query | Self::NotJoined => {
                Check::Multicast
            }
            Self::NobodyReachable | Self::NobodyUp => Check::Receivers,
            Self::ToLimit { .. } => Check::ToLimit,
            Self::NotItsTurn => Check::Uplink,
            Self::LinkDown | Self::PortGone => Check::Link,
            Self::Delivery { .. } | Self::Copy => Check::Delivery,
        }
    }
}

/// What a limit has for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// There is no limit.
    Unlimited,
    /// Enough: this much is left before the frame.
    Left(Budget),
    /// None for so long.
    Spent {
        /// In nanoseconds, up to a second.
        wait_ns: u64,
    },
}

/// What a limit of frames to all has for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormTokens {
    /// There is no limit.
    Unlimited,
    /// So many frames are left.
    Left {
        /// Frames that may pass now.
        frames: i64,
        /// Frames per second.
        rate: u64,
    },
    /// None are left.
    Spent {
        /// Frames per second.
        rate: u64,
    },
}

/// Where a destination address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is a group address: everywhere.
    Group,
    /// It is reserved for the protocols of bridges: everywhere, if it may pass at all.
    Reserved,
    /// Not in the forwarding table: anywhere.
    Unknown,
    /// Behind this port.
    Behind(PortId),
    /// Behind this port, which the frame came from.
    SamePort(PortId),
    /// Behind this port when it was learned; the port no longer carries the frame's domain.
    OutsideDomain(PortId),
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Of a customer VLAN (IEEE 802.1Q), with its identifier.
    Customer(u16),
    /// Of a service VLAN (IEEE 802.1ad), with its identifier.
    Service(u16),
}

/// The tags of a frame, the outermost first, as anybody reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(pub Vec<Tag>);

impl Tags {
    /// Those of a frame that begins with `head`.
    pub fn of(head: &[u8]) -> Self {
        let be16 = |at: usize| head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
        let tag = |at: &usize| {
            let vid = be16(at + 2)? & 0xfff;
            match be16(*at)? {
                ETHERTYPE_VLAN => Some(Tag::Customer(vid)),
                ETHERTYPE_QINQ => Some(Tag::Service(vid)),
                _ => None,
            }
        };
        Self((12..).step_by(4).map_while(|at| tag(&at)).collect())
    }
}
