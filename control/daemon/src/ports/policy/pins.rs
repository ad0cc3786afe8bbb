//! MAC addresses that ports list are pinned to them: nobody else may send from them, and frames to them are not flooded.

use std::collections::BTreeSet;

use vmlan_frame::Mac;
use vmlan_switch::policy::Domain;
use vmlan_switch::{Fdb, PortId};

use super::Entry;
use crate::address::{Address, VlanRule};
use crate::settings::listed;

/// An address in a domain.
type Pin = (Mac, Domain);

/// More are not pinned: the port is a trunk for much of the LAN, and the table is for others too.
const MAX_PINS: usize = 4096;

/// What is to be pinned to a port: its addresses in each of its domains; nothing for a trunk of all VLANs.
fn wanted(address: &Address) -> Vec<Pin> {
    let macs = listed(address);
    if macs.is_empty() {
        return Vec::new();
    }
    let domains: Vec<_> = match address.vlan() {
        VlanRule::Open => vec![Domain::OPEN],
        VlanRule::Access(vid) => vec![Domain::customer(vid)],
        VlanRule::Qinq(vid) => vec![Domain::service(vid)],
        VlanRule::Trunk(list, native) => {
            let vids = list.into_iter().flat_map(|l| l.iter()).chain(native);
            vids.collect::<BTreeSet<_>>().into_iter().map(Domain::customer).collect()
        }
        VlanRule::QinqTrunk(list) => {
            list.into_iter().flat_map(|l| l.iter()).map(Domain::service).collect()
        }
    };
    if macs.len() * domains.len() > MAX_PINS {
        return Vec::new();
    }
    domains.iter().flat_map(|d| macs.iter().map(|m| (*m, *d))).collect()
}

/// A port that has to be pinned anew: what goes, what comes.
struct Change {
    index: usize,
    id: PortId,
    new: Vec<Pin>,
    gone: Vec<Pin>,
    come: Vec<Pin>,
}

impl Change {
    fn new(index: usize, entry: &Entry) -> Option<Self> {
        let id = entry.id?;
        let old = &entry.kept.pins;
        let new = if entry.leaving { Vec::new() } else { wanted(&entry.address) };
        if new == *old {
            return None;
        }
        let set = |pins: &[Pin]| pins.iter().copied().collect::<BTreeSet<_>>();
        let (before, after) = (set(old), set(&new));
        let gone = before.difference(&after).copied().collect();
        let come = after.difference(&before).copied().collect();
        Some(Self { index, id, new, gone, come })
    }
}

/// Pins what the addresses of `entries` ask for, and nothing else of what was pinned here.
///
/// # Errors
/// If the table has no room; then everything is as it was.
pub(super) fn repin(entries: &mut [Entry], fdb: &Fdb) -> Result<(), String> {
    let changes: Vec<_> =
        entries.iter().enumerate().filter_map(|(i, e)| Change::new(i, e)).collect();
    // First all that goes: an address may move from one port to another.
    changes.iter().for_each(|change| unpin(&change.gone, fdb));
    for change in &changes {
        if let Err(text) = pin(&change.come, change.id, fdb) {
            changes.iter().for_each(|change| unpin(&change.come, fdb));
            // They had room before.
            changes.iter().for_each(|change| _ = pin(&change.gone, change.id, fdb));
            return Err(format!("port {}: macs: {text}", entries[change.index].name));
        }
    }
    for Change { index, new, .. } in changes {
        entries[index].kept.pins = new;
    }
    Ok(())
}

fn pin(pins: &[Pin], id: PortId, fdb: &Fdb) -> Result<(), String> {
    let mut pins = pins.iter();
    pins.try_for_each(|(mac, domain)| fdb.add_static(*mac, *domain, id)).map_err(|e| e.to_string())
}

fn unpin(pins: &[Pin], fdb: &Fdb) {
    for (mac, domain) in pins {
        fdb.remove(*mac, *domain);
    }
}
