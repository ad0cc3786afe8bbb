//! The ports of a switch: a snapshot, replaced whole when a port comes or goes.

use std::fmt;
use std::sync::Arc;

use vmlan_frame::{Mirror, Port};

use crate::MAX_PORTS;
use crate::policy::Policy;

/// Number of a port in its switch, below [`MAX_PORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u16);

impl PortId {
    /// The `index`-th port; `None` past the last a switch can have.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u16::try_from(index).ok().filter(|_| index < MAX_PORTS).map(Self)
    }

    /// As an index.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(u16::try_from(bits & (MAX_PORTS as u64 - 1)).unwrap_or(0))
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A port and what the switch needs to know of it.
#[derive(Clone)]
pub struct Entry {
    /// Its name, for logs.
    pub name: Arc<str>,
    /// The port.
    pub port: Arc<dyn Port>,
    /// Who watches it, and under which interface number.
    pub mirror: Option<(Arc<dyn Mirror>, u32)>,
    /// What it may do.
    pub policy: Arc<Policy>,
}

/// All ports, by number.
#[derive(Clone, Default)]
pub struct Table {
    entries: Vec<Option<Entry>>,
    members: Vec<PortId>,
    mirrored: bool,
}

impl Table {
    /// A table of `entries`; the index is the port's number. Entries past [`MAX_PORTS`] are left out.
    #[must_use]
    pub fn new(entries: Vec<Option<Entry>>) -> Self {
        let used = entries.iter().enumerate().filter(|(_, e)| e.is_some());
        let members = used.filter_map(|(i, _)| PortId::new(i)).collect();
        let mirrored = entries.iter().flatten().any(|e| e.mirror.is_some());
        Self { entries, members, mirrored }
    }

    /// A port by number.
    #[must_use]
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Numbers of all ports.
    #[must_use]
    pub fn members(&self) -> &[PortId] {
        &self.members
    }

    /// True if anybody watches any port.
    #[must_use]
    #[inline]
    pub fn mirrored(&self) -> bool {
        self.mirrored
    }
}
