//! One port of a running switch.

use std::path::Path;

use vmlan_switch::PortId;
use vmlan_switch::policy::Policy;

use super::open::Opened;
use super::policy::Kept;
use crate::info::PortInfo;
use crate::socket_mode;
use vmlan_config::address::{Address, Packet, PortName, Spec, Stream, Tap, Xdp};
use vmlan_config::refusal::{Cause, Refusal};

/// A port, and what outlives its being closed and opened again.
pub(super) struct Entry {
    pub(super) name: PortName,
    pub(super) address: Address,
    pub(super) opened: Opened,
    pub(super) id: Option<PortId>,
    pub(super) kept: Kept,
    /// It is about to be closed: nobody refers to it any more.
    pub(super) leaving: bool,
}

impl Entry {
    /// Follows the live keys of its address that differ from `old`.
    pub(super) fn follow(&self, old: &Address) -> Result<(), Refusal> {
        let (new, old) = (self.address.spec(), old.spec());
        let fail = |e| Refusal::new(Cause::Failed, format!("port {}: mode: {e}", self.name));
        // A port without `mode` keeps the permissions it has.
        if let Some(mode) = new.mode().filter(|mode| old.mode() != Some(*mode)) {
            socket_mode::set(Path::new(self.address.place()), mode).map_err(fail)?;
        }
        self.opened.set_link(new.link());
        if new.irq_rate_max() != old.irq_rate_max() {
            self.opened.set_irq_rate_max(new.irq_rate_max());
        }
        Ok(())
    }

    /// Bytes of the longest packet that the link behind it carries, if it is no common one.
    pub(super) fn mtu(&self) -> Option<u16> {
        match self.address.spec() {
            Spec::Tap(Tap { mtu, .. })
            | Spec::Packet(Packet { mtu })
            | Spec::Xdp(Xdp { mtu, .. }) => mtu.or_else(|| self.opened.mtu().filter(|n| *n < 1500)),
            Spec::Stream(Stream { mtu, .. }) => *mtu,
            _ => None,
        }
    }

    /// The same of any link, common or not.
    pub(super) fn link_mtu(&self) -> Option<u16> {
        self.mtu().or_else(|| self.opened.mtu())
    }

    /// What it is to the workers; `None`: it takes no part in switching, or not yet.
    pub(super) fn part(&self) -> Option<(PortId, &Policy)> {
        Some((self.id?, self.kept.policy()?))
    }

    /// A capture file is up for as long as it is written.
    pub(super) fn is_up(&self) -> bool {
        !self.opened.moves_frames() || self.opened.port().is_up()
    }

    /// What it says of itself; [`super::Ports::info`] says what others add.
    pub(super) fn info(&self) -> PortInfo {
        let details = self.opened.details().into_iter();
        PortInfo {
            name: self.name.to_string(),
            kind: self.address.kind().to_string(),
            address: self.address.to_string(),
            up: self.is_up(),
            mtu: None,
            details: details.map(|(k, v)| (k.to_owned(), v.into())).collect(),
        }
    }
}
