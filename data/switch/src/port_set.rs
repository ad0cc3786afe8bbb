//! A set of ports.

use crate::{MAX_PORTS, PortId};

/// A set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; MAX_PORTS / 64]);

impl PortSet {
    /// Every port, also those to come.
    pub const ALL: Self = Self([u64::MAX; MAX_PORTS / 64]);

    /// These ports.
    pub fn new(ports: impl IntoIterator<Item = PortId>) -> Self {
        let mut set = Self::default();
        for port in ports {
            if let Some(word) = set.0.get_mut(port.index() / 64) {
                *word |= 1 << (port.index() % 64);
            }
        }
        set
    }

    /// One bit for each port, the first port in the lowest bit of the first word.
    pub(crate) const fn from_words(words: [u64; MAX_PORTS / 64]) -> Self {
        Self(words)
    }

    /// True if `port` is one of them.
    #[inline]
    pub fn has(&self, port: PortId) -> bool {
        self.0.get(port.index() / 64).is_some_and(|w| w >> (port.index() % 64) & 1 == 1)
    }

    /// Its ports, in order.
    pub fn iter(&self) -> impl Iterator<Item = PortId> + '_ {
        (0..MAX_PORTS).filter_map(PortId::new).filter(|port| self.has(*port))
    }
}
