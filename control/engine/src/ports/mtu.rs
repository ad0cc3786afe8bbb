//! The MTU that guests are to have: what the narrowest link carries that they may send to.
//!
//! Only a VMM can tell a virtio guest (VIRTIO_NET_F_MTU), and only a gateway any other. So it is
//! said to whoever asks how to attach a VM, given to gateways, and `port list` names the guests
//! that may not know it.

use vmlan_switch::PortId;
use vmlan_switch::policy::{Domain, Policy, Vlan};

use super::open::Opened;
use super::{Entry, Ports};
use crate::info::PortInfo;
use vmlan_config::address::{PortName, Spec, Stream, VhostUser};

/// What a guest takes that was told nothing (RFC 894).
const USUAL: u16 = 1500;

impl Ports {
    /// The narrowest link that `entry` may send to, and bytes of the longest packet it carries.
    pub(super) fn narrowest(&self, entry: &Entry) -> Option<(&PortName, u16)> {
        let own = entry.part()?;
        let links = self.entries.iter().filter(|link| link.id != entry.id);
        let links = links.filter_map(|link| Some((link, link.link_mtu()?)));
        let near = links.filter(|(link, _)| link.part().is_some_and(|to| meet(own, to)));
        near.map(|(link, mtu)| (&link.name, mtu)).min_by_key(|(_, mtu)| *mtu)
    }

    /// Describes a port.
    pub(super) fn info(&self, entry: &Entry) -> PortInfo {
        let mut info = entry.info();
        if entry.opened.outlives() && self.holding.has_gone() {
            info.details.insert("held".into(), "no: the holder has gone".into());
        }
        let own = match entry.address.spec() {
            Spec::VhostUser(VhostUser { mtu, .. }) | Spec::Stream(Stream { mtu, .. }) => *mtu,
            Spec::VfioUser(_) => None,
            _ => return info,
        };
        let narrowest = self.narrowest(entry);
        info.mtu = own.or(narrowest.map(|(_, mtu)| mtu).filter(|mtu| *mtu < USUAL));
        if matches!(entry.address.spec(), Spec::Stream(_)) {
            // Who is there, and what it was told, nobody says.
            return info;
        }
        // What its VMM has told it, as far as it says so.
        let told = info.details.get("mtu").and_then(|mtu| mtu.as_str()?.parse().ok());
        let narrow = own.map(|mtu| (&entry.name, mtu)).into_iter().chain(narrowest);
        let narrow = narrow.min_by_key(|(_, mtu)| *mtu);
        if let Some((link, most)) = narrow
            && info.up
            && told.unwrap_or(USUAL) > most
            && !self.has_lease(&entry.name)
        {
            info.details.insert("warning".into(), warning(entry, told, link, most).into());
        }
        info
    }

    /// A gateway has told its guest.
    fn has_lease(&self, name: &PortName) -> bool {
        self.entries.iter().any(|gateway| match &gateway.opened {
            Opened::Nat(nat) => nat.leases().any(|lease| lease.port == name.as_str()),
            _ => false,
        })
    }
}

/// What to do about a guest whose packets are too long for `link`.
fn warning(entry: &Entry, told: Option<u16>, link: &PortName, most: u16) -> String {
    let has = match told {
        Some(told) => format!("its guest was told an MTU of {told}"),
        None => "its guest was not told an MTU".to_owned(),
    };
    let fix = match entry.address.spec() {
        Spec::VhostUser(_) => format!("see host_mtu in `vmlan vm-args {}`", entry.name),
        _ => format!("set {most} in the guest"),
    };
    format!("{has} and {link} carries {most}: {fix}")
}

/// True if frames of the port `from` may go to the port `to`.
fn meet(from: (PortId, &Policy), to: (PortId, &Policy)) -> bool {
    let (a, b) = (&from.1.vlan, &to.1.vlan);
    let both = match (only(a), only(b)) {
        (Some(domain), _) => b.carries(domain),
        (None, Some(domain)) => a.carries(domain),
        // Trunks.
        (None, None) => {
            let mut all = (0..1 << 13).map(Domain::from_bits);
            a == b || all.any(|domain| a.carries(domain) && b.carries(domain))
        }
    };
    both && from.1.reach.covers(from, to)
}

/// The only domain of a port that has one.
fn only(vlan: &Vlan) -> Option<Domain> {
    match vlan {
        Vlan::Open => Some(Domain::OPEN),
        Vlan::Access(vid) => Some(Domain::customer(*vid)),
        Vlan::Qinq(vid) => Some(Domain::service(*vid)),
        Vlan::Trunk { .. } | Vlan::QinqTrunk(_) => None,
    }
}
