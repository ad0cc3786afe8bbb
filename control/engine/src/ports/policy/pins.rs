//! MAC addresses that ports list are pinned to them: no other port may send from them, and frames
//! to them are not flooded.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use vmlan_frame::Mac;
use vmlan_switch::policy::Domain;
use vmlan_switch::{Fdb, FdbEntry, PortId};

use super::Entry;
use vmlan_config::address::{Address, VlanRule};

/// An address in a domain.
pub(in crate::ports) type Pin = (Mac, Domain);

/// Most that a port may have: the table is for others too.
const MAX_PINS: usize = 4096;

/// The VLANs that ports name. A trunk of all VLANs shares these with somebody; in other
/// VLANs only trunks of all VLANs could take its addresses.
#[derive(Default)]
struct Named {
    customer: BTreeSet<u16>,
    service: BTreeSet<u16>,
}

impl Named {
    fn by<'a>(addresses: impl Iterator<Item = &'a Address>) -> Self {
        let mut named = Self::default();
        for address in addresses {
            match &address.policy().vlan {
                VlanRule::Open => {}
                VlanRule::Access(vid) => named.customer.extend([*vid]),
                VlanRule::Qinq(vid) => named.service.extend([*vid]),
                VlanRule::Trunk(list, native) => {
                    named.customer.extend(list.iter().flat_map(|l| l.iter()).chain(*native));
                }
                VlanRule::QinqTrunk(list) => {
                    named.service.extend(list.iter().flat_map(|l| l.iter()));
                }
            }
        }
        named
    }
}

/// What is to be pinned to a port: its addresses in each of its domains. `named`: the VLANs that
/// any port names.
fn wanted(address: &Address, named: impl FnOnce() -> Rc<Named>) -> Result<Vec<Pin>, String> {
    let macs = address.policy().macs.listed();
    if macs.is_empty() {
        return Ok(Vec::new());
    }
    let customer = |vids: BTreeSet<u16>| vids.into_iter().map(Domain::customer).collect();
    let domains: Vec<_> = match &address.policy().vlan {
        VlanRule::Open => vec![Domain::OPEN],
        VlanRule::Access(vid) => vec![Domain::customer(*vid)],
        VlanRule::Qinq(vid) => vec![Domain::service(*vid)],
        VlanRule::Trunk(Some(list), native) => customer(list.iter().chain(*native).collect()),
        // Its native VLAN is among those that are named.
        VlanRule::Trunk(None, _) => {
            named().customer.iter().copied().map(Domain::customer).collect()
        }
        VlanRule::QinqTrunk(Some(list)) => list.iter().map(Domain::service).collect(),
        VlanRule::QinqTrunk(None) => named().service.iter().copied().map(Domain::service).collect(),
    };
    let (m, d) = (macs.len(), domains.len());
    if m * d > MAX_PINS {
        return Err(format!(
            "{m} addresses in {d} VLANs are more than the {MAX_PINS} that a port may have: list \
                fewer addresses, or fewer VLANs (here, or if this is a trunk of all, at the others)"
        ));
    }
    Ok(domains.iter().flat_map(|d| macs.iter().map(|m| (*m, *d))).collect())
}

/// A port that has to be pinned again: what goes, what comes.
struct Change {
    index: usize,
    id: PortId,
    new: Vec<Pin>,
    gone: Vec<Pin>,
    come: Vec<Pin>,
}

impl Change {
    /// `None`: it has what it wants.
    fn new(
        index: usize,
        entry: &Entry,
        named: impl FnOnce() -> Rc<Named>,
        taken: &mut BTreeSet<Pin>,
    ) -> Result<Option<Self>, String> {
        let Some(id) = entry.id else { return Ok(None) };
        let old = &entry.kept.pins;
        let mut new = match entry.leaving {
            true => Vec::new(),
            false => wanted(&entry.address, named)
                .map_err(|text| format!("port {}: macs: {text}", entry.name))?,
        };
        if entry.address.policy().team.is_some() {
            new.retain(|pin| taken.insert(*pin));
        }
        if new == *old {
            return Ok(None);
        }
        let set = |pins: &[Pin]| pins.iter().copied().collect::<BTreeSet<_>>();
        let (before, after) = (set(old), set(&new));
        let gone = before.difference(&after).copied().collect();
        let come = after.difference(&before).copied().collect();
        Ok(Some(Self { index, id, new, gone, come }))
    }
}

/// Pins what the addresses of `entries` ask for, and unpins what else was pinned here.
///
/// # Errors
/// If a port asks for too many, or the table has no room; then nothing has changed.
pub(super) fn repin(entries: &mut [Entry], fdb: &Fdb) -> Result<(), String> {
    let changes = changes(entries)?;
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

/// Pins again what was pinned by hand to ports that were closed and opened again. What cannot be is
/// let go: the port is another one now. To be called after [`repin`], for a list goes first.
pub(super) fn restore(entries: &mut [Entry], fdb: &Fdb) {
    for entry in entries.iter_mut().filter(|e| !e.leaving && !e.kept.pinned.is_empty()) {
        let vlan = super::vlan(&entry.address.policy().vlan);
        for (mac, domain) in std::mem::take(&mut entry.kept.pinned) {
            let done = match (entry.id, fdb.get(mac, domain)) {
                (None, _) => Err("it takes no frames".to_owned()),
                _ if !vlan.carries(domain) => Err("it is not in that VLAN any more".to_owned()),
                (Some(id), Some(FdbEntry { age: None, port, .. })) if port != id => {
                    Err("another port lists it".to_owned())
                }
                // Its own list has pinned it.
                (_, Some(FdbEntry { age: None, .. })) => Ok(()),
                (Some(id), _) => pin(&[(mac, domain)], id, fdb),
            };
            if let Err(why) = done {
                log::warn!("{mac}: is not pinned to port {} any more: {why}", entry.name);
            }
        }
    }
}

fn changes(entries: &[Entry]) -> Result<Vec<Change>, String> {
    let cell = OnceCell::new();
    // Only made if somebody needs it.
    let named = || {
        let staying = entries.iter().filter(|e| !e.leaving).map(|e| &e.address);
        Rc::clone(cell.get_or_init(|| Rc::new(Named::by(staying))))
    };
    // What several members of a team list is pinned to the first of them.
    let mut taken = BTreeSet::new();
    let all = entries.iter().enumerate();
    all.filter_map(|(i, e)| Change::new(i, e, named, &mut taken).transpose()).collect()
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
