//! The forwarding table, as it is shown and changed from outside.

use vmlan_frame::Mac;
use vmlan_switch::policy::{Domain, Vlan};

use super::Ports;
use crate::info::FdbLine;
use vmlan_config::address::PortName;
use vmlan_config::refusal::{Cause, Refusal};

/// The domain that `vid` means at a port, or that no `vid` means.
fn domain(vlan: &Vlan, vid: Option<u16>) -> Result<Domain, String> {
    match (vid, vlan) {
        (None, Vlan::Open) => Ok(Domain::OPEN),
        (None, Vlan::Access(own)) => Ok(Domain::customer(*own)),
        (None, Vlan::Qinq(own)) => Ok(Domain::service(*own)),
        (None, _) => Err(format!("it is in several VLANs ({vlan}): add `vlan`")),
        (Some(_), Vlan::Open) => {
            Err("it has no VLAN settings: leave `vlan` out, or give the port some".to_owned())
        }
        (Some(vid), _) => {
            let mut both = [Domain::customer(vid), Domain::service(vid)].into_iter();
            let other = || format!("it is not in VLAN {vid}: its settings are {vlan}");
            both.find(|d| vlan.carries(*d)).ok_or_else(other)
        }
    }
}

/// The domain of frames that have no tag at a port.
pub(super) fn untagged(vlan: &Vlan) -> Option<Domain> {
    match vlan {
        Vlan::Open => Some(Domain::OPEN),
        Vlan::Access(vid) => Some(Domain::customer(*vid)),
        Vlan::Trunk { native, .. } => native.map(Domain::customer),
        Vlan::Qinq(vid) => Some(Domain::service(*vid)),
        Vlan::QinqTrunk(_) => None,
    }
}

fn check(vid: Option<u16>) -> Result<(), Refusal> {
    let wrong = |vid| Refusal::new(Cause::Invalid, format!("VLAN {vid}: say one from 1 to 4094"));
    vid.filter(|v| !(1..4095).contains(v)).map_or(Ok(()), |vid| Err(wrong(vid)))
}

/// (VLAN, service VLAN) of a domain.
pub(super) fn vids(domain: Domain) -> (Option<u16>, Option<u16>) {
    let vid = Some(domain.bits() & 0xfff).filter(|v| *v != 0);
    if vid.map(Domain::customer) == Some(domain) { (vid, None) } else { (None, vid) }
}

impl Ports {
    /// The forwarding table, sorted by address.
    pub fn fdb(&self) -> Vec<FdbLine> {
        let tick = self.ageing() / 30;
        let line = |e: vmlan_switch::FdbEntry| {
            let port = self.entries.iter().find(|p| p.id == Some(e.port))?;
            let (vlan, qinq) = vids(e.domain);
            Some(FdbLine {
                mac: e.mac.to_string(),
                vlan,
                qinq,
                port: port.name.to_string(),
                r#static: e.age.is_none(),
                age: e.age.map(|ticks| (tick * u32::from(ticks)).as_secs()),
            })
        };
        let mut lines: Vec<_> = self.switch.fdb().list().into_iter().filter_map(line).collect();
        lines.sort_unstable_by(|a, b| (&a.mac, a.qinq, a.vlan).cmp(&(&b.mac, b.qinq, b.vlan)));
        lines
    }

    /// What a port lists in `macs` stays pinned to it.
    fn check_listed(&self, mac: Mac, to: Option<&PortName>) -> Result<(), Refusal> {
        let Some(owner) = self.listed_by(mac).filter(|owner| Some(*owner) != to) else {
            return Ok(());
        };
        let text =
            format!("{mac}: port {owner} lists it in macs, which pins it there: change that first");
        Err(Refusal::new(Cause::Exists, text))
    }

    /// Pins an address to a port, in one of its VLANs if it has any (it need not be named if there
    /// is one).
    ///
    /// # Errors
    /// If there is no such port, it takes no frames or is not in the VLAN, or the table has no
    /// room.
    pub fn add_mac(
        &mut self,
        mac: Mac,
        name: &PortName,
        vid: Option<u16>,
    ) -> Result<FdbLine, Refusal> {
        check(vid)?;
        self.check_listed(mac, Some(name))?;
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let invalid = |text: &str| Refusal::new(Cause::Invalid, format!("port {name}: {text}"));
        let table = self.workers.table();
        let entry = self.entries[index].id.and_then(|id| Some((id, table.get(id)?)));
        let (id, entry) =
            entry.ok_or_else(|| invalid("a capture file takes no frames: name another port"))?;
        let domain = domain(&entry.policy.vlan, vid).map_err(|e| invalid(&e))?;
        self.switch
            .fdb()
            .add_static(mac, domain, id)
            .map_err(|e| Refusal::new(Cause::Invalid, e.to_string()))?;
        self.keep_pins();
        let ((vlan, qinq), port) = (vids(domain), name.to_string());
        Ok(FdbLine { mac: mac.to_string(), vlan, qinq, port, r#static: true, age: None })
    }

    /// Forgets an address, pinned or learned: in a VLAN, or wherever it is known.
    ///
    /// # Errors
    /// If it is not known.
    pub fn remove_mac(&mut self, mac: Mac, vid: Option<u16>) -> Result<(), Refusal> {
        check(vid)?;
        self.check_listed(mac, None)?;
        let fdb = self.switch.fdb();
        let domains = (0..1 << 13).map(Domain::from_bits);
        let meant = |d: &Domain| vid.is_none_or(|v| v == d.bits() & 0xfff);
        let known = domains.filter(meant).filter(|d| fdb.remove(mac, *d)).count();
        let place = vid.map(|v| format!(" in VLAN {v}")).unwrap_or_default();
        let unknown = format!("{mac} is not known{place}: see `vmlan fdb list`");
        self.keep_pins();
        if known > 0 { Ok(()) } else { Err(Refusal::new(Cause::NotFound, unknown)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlan_switch::policy::VidSet;

    #[test]
    fn which_vlan_is_meant() {
        let trunk = Vlan::Trunk { tagged: VidSet::new([10, 20]), native: Some(5) };
        let provider = Vlan::QinqTrunk(VidSet::new([100]));
        let ten = Ok(Domain::customer(10));
        assert_eq!(domain(&Vlan::Open, None), Ok(Domain::OPEN));
        assert_eq!(domain(&Vlan::Access(10), None), ten);
        assert_eq!(domain(&Vlan::Access(10), Some(10)), ten);
        assert_eq!(domain(&trunk, Some(10)), ten);
        assert_eq!(domain(&trunk, Some(5)), Ok(Domain::customer(5)));
        assert_eq!(domain(&Vlan::Qinq(100), None), Ok(Domain::service(100)));
        assert_eq!(domain(&provider, Some(100)), Ok(Domain::service(100)));
        for (vlan, vid, word) in [
            (&Vlan::Open, Some(10), "no VLAN settings"),
            (&Vlan::Access(10), Some(11), "not in VLAN 11: its settings are vlan=10"),
            (&trunk, None, "several VLANs (trunk=10+20,native=5)"),
            (&trunk, Some(100), "not in VLAN 100"),
            (&provider, None, "several"),
        ] {
            let error = domain(vlan, vid).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(check(Some(0)).is_err() && check(Some(4095)).is_err() && check(Some(4094)).is_ok());
        assert_eq!(vids(Domain::OPEN), (None, None));
        assert_eq!(vids(Domain::customer(7)), (Some(7), None));
        assert_eq!(vids(Domain::service(7)), (None, Some(7)));
    }
}
