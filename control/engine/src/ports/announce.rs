//! Tells uplinks where guests are: their MAC addresses, when their drivers become ready.
//!
//! A fabric that knows a guest elsewhere (another host, another port) sends its frames there until
//! the guest speaks. So an announcement is sent to the uplinks at once, and again after 60, 300 and
//! 1,000 ms: the first may be lost while the fabric itself changes. When an uplink comes up, its
//! other side may have forgotten all of them, and they are announced again. This switch hears it
//! too: it may know the guest behind an uplink, where it came from.
//!
//! A guest can take its driver down and up as often as it likes: a series of announcements is not
//! begun again within a second.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use vmlan_frame::Mac;
use vmlan_frame::headers::announcement;
use vmlan_switch::Table;
use vmlan_switch::policy::{Domain, Form, Vlan};

use super::open::Opened;
use super::{Entry, Ports, fdb};
use vmlan_config::address::{IpRule, Kind, PortName, Spec};
use vmlan_config::vm_args::nic_mac_of;

/// When a guest is announced, in nanoseconds after its driver became ready.
const TIMES: [u64; 4] = [0, 60_000_000, 300_000_000, 1_000_000_000];

/// The last of them: a series lasts that long.
const LAST: u64 = TIMES[TIMES.len() - 1];

/// Addresses of a port that are announced.
const MOST: usize = 64;

/// A guest that is being announced.
#[derive(Debug)]
struct Series {
    began: u64,
    /// The announcement that comes next.
    next: usize,
}

/// Who is announced when.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    up: BTreeSet<PortName>,
    series: BTreeMap<PortName, Series>,
}

impl Announcer {
    /// The guests and uplinks that are up at `now`: whoever was not before is announced, and if an
    /// uplink was not, all guests are.
    fn look(&mut self, guests: BTreeSet<PortName>, uplinks: BTreeSet<PortName>, now: u64) {
        let again = uplinks.iter().any(|name| !self.up.contains(name));
        for name in &guests {
            if again || !self.up.contains(name) {
                self.begin(name, now);
            }
        }
        let recent = |s: &Series| now < s.began + LAST;
        self.series.retain(|name, s| guests.contains(name) || recent(s));
        self.up = guests.into_iter().chain(uplinks).collect();
    }

    fn begin(&mut self, name: &PortName, now: u64) {
        if self.series.get(name).is_none_or(|s| now >= s.began + LAST) {
            self.series.insert(name.clone(), Series { began: now, next: 0 });
        }
    }

    /// The guests that are to be announced at `now`, each once.
    fn due(&mut self, now: u64) -> Vec<PortName> {
        let mut due = Vec::new();
        for (name, series) in self.series.iter_mut().filter(|(name, _)| self.up.contains(*name)) {
            let passed = |at: &&u64| series.began + **at <= now;
            let all = TIMES.iter().take_while(passed).count();
            if all > series.next {
                series.next = all;
                due.push(name.clone());
            }
        }
        due
    }

    /// Nanoseconds until the next announcement.
    fn wait(&self, now: u64) -> Option<u64> {
        let next = |s: &Series| TIMES.get(s.next).map(|at| (s.began + at).saturating_sub(now));
        let up = self.series.iter().filter(|(name, _)| self.up.contains(*name));
        up.filter_map(|(_, series)| next(series)).min()
    }
}

impl Ports {
    /// Announces guests whose time has come. Returns when to call again, if nothing else happens
    /// before.
    #[must_use]
    pub fn announce(&mut self) -> Option<Duration> {
        let now = self.workers.now();
        let hearing = self.hearing();
        let up = |e: &&Entry| e.id.is_some() && e.is_up();
        let uplinks: BTreeSet<_> = hearing.iter().copied().filter(up).map(|e| &e.name).collect();
        let guest = |e: &&Entry| up(e) && is_guest(e) && !uplinks.contains(&e.name);
        let guests = self.entries.iter().filter(|e| !uplinks.is_empty() && guest(e));
        let guests = guests.map(|e| e.name.clone()).collect();
        let uplinks = uplinks.into_iter().cloned().collect();
        self.announcer.look(guests, uplinks, now);
        let due = self.announcer.due(now);
        if !due.is_empty() {
            let (table, uplinks) = (self.workers.table(), self.hearing());
            for entry in due.iter().filter_map(|name| self.find(name)).map(|i| &self.entries[i]) {
                self.announce_one(entry, &uplinks, &table);
            }
        }
        self.announcer.wait(now).map(Duration::from_nanos)
    }

    /// The uplinks that hear announcements: those that say so, devices of the host, and ports that
    /// others name.
    fn hearing(&self) -> Vec<&Entry> {
        let named = self.entries.iter().filter_map(|e| e.address.policy().uplink.as_ref());
        let named: BTreeSet<_> = named.collect();
        let hears = |e: &&Entry| {
            let usual = || e.address.kind().is_interface() || named.contains(&e.name);
            let policy = e.address.policy();
            e.id.is_some() && !policy.is_watcher() && policy.announce.unwrap_or_else(usual)
        };
        self.entries.iter().filter(hears).collect()
    }

    /// Sends what announces the guest of `entry` to all uplinks that it may send to.
    fn announce_one(&self, entry: &Entry, uplinks: &[&Entry], table: &Table) {
        let Some((id, own)) = entry.id.and_then(|id| Some((id, table.get(id)?))) else { return };
        let nics = Self::addresses_of(entry, &own.policy.vlan);
        let has = self.one_address(entry, &nics);
        for (mac, domain) in nics {
            let ip = has.filter(|(_, nic)| *nic == mac).map(|(ip, _)| ip.octets());
            self.switch.fdb().announced(mac, domain, id);
            for uplink in uplinks {
                let Some(to) = uplink.id.filter(|to| *to != id) else { continue };
                let form = table.form_of_flood((id, &own.policy), domain, to);
                if let Some(form) = form {
                    self.workers.send(to, tagged(&announcement(mac, ip), form));
                }
            }
        }
    }

    /// MAC addresses that are known to be the guest's: those of its `macs`, the one seen first, and
    /// that of its NIC.
    fn addresses_of(entry: &Entry, vlan: &Vlan) -> Vec<(Mac, Domain)> {
        let mut all: Vec<_> = entry.kept.pins().iter().copied().take(MOST).collect();
        let nic = match entry.address.spec() {
            Spec::VhostUser(spec) => spec.mac,
            Spec::VfioUser(spec) => Some(spec.mac.unwrap_or_else(|| nic_mac_of(&entry.name))),
            Spec::Stream(spec) => spec.mac,
            _ => None,
        };
        let domain = fdb::untagged(vlan);
        let first = entry.kept.first.0.load(Ordering::Relaxed);
        let first = Some(Mac::from_bits(first)).filter(|mac| *mac != Mac::default());
        for known in [nic, first].into_iter().flatten().filter_map(|mac| Some((mac, domain?))) {
            if !all.contains(&known) {
                all.push(known);
            }
        }
        all
    }

    /// The IPv4 address of a guest that has one and no other, listed or leased, and which of its
    /// `nics` has it. Where nobody knows that, it is announced of none: hosts would believe the
    /// last one.
    fn one_address(&self, entry: &Entry, nics: &[(Mac, Domain)]) -> Option<(Ipv4Addr, Mac)> {
        let mut all: Vec<(IpAddr, Option<Mac>)> = Vec::new();
        if let IpRule::Listed(list) = &entry.address.policy().ips {
            let whole = list.iter().filter(|range| range.bits == 32);
            all.extend(whole.map(|range| (range.address, None)));
        }
        for gateway in &self.entries {
            if let Opened::Nat(nat) = &gateway.opened {
                let leases = nat.leases().filter(|l| l.port == entry.name.as_str());
                all.extend(leases.map(|lease| (lease.ip, lease.mac.parse().ok())));
            }
        }
        all.retain(|(ip, _)| ip.is_ipv4());
        let (one, only) = (all.first()?.0, nics.first()?.0);
        let IpAddr::V4(ip) = one else { return None };
        let same = all.iter().all(|(ip, _)| *ip == one);
        let leased = all.iter().find_map(|(_, nic)| *nic);
        let only = nics.iter().all(|(nic, _)| *nic == only).then_some(only);
        same.then_some((ip, leased.or(only)?))
    }
}

/// True for ports behind which a guest is, if they are no uplinks.
fn is_guest(entry: &Entry) -> bool {
    let kind = entry.address.kind();
    matches!(kind, Kind::VhostUser | Kind::VfioUser | Kind::Stream)
        && !entry.address.policy().is_watcher()
}

/// The frame as a port sees it that carries its domain in this form.
fn tagged(frame: &[u8], form: Form) -> Vec<u8> {
    let (kind, vid) = match form {
        Form::Untagged | Form::Payload => return frame.to_vec(),
        Form::Tagged(vid) => (vmlan_frame::headers::ETHERTYPE_VLAN, vid),
        Form::Service(vid) => (vmlan_frame::headers::ETHERTYPE_QINQ, vid),
    };
    let (macs, rest) = frame.split_at(12);
    [macs, &kind.to_be_bytes(), &vid.to_be_bytes(), rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn names(names: &[&str]) -> BTreeSet<PortName> {
        names.iter().map(|n| n.parse().unwrap()).collect()
    }

    /// When, in milliseconds, `name` is announced until `end`, if the ports that are up are
    /// `up(ms)`: guests and uplinks.
    fn times(
        name: &str,
        end: u64,
        up: impl Fn(u64) -> (&'static [&'static str], bool),
    ) -> Vec<u64> {
        let mut announcer = Announcer::default();
        let mut all = Vec::new();
        for ms in 0..end {
            let (guests, uplink) = up(ms);
            let uplinks = if uplink { names(&["up"]) } else { names(&[]) };
            announcer.look(names(guests), uplinks, ms * MS);
            let wait = announcer.wait(ms * MS);
            let due = announcer.due(ms * MS);
            assert_eq!(wait == Some(0), !due.is_empty(), "{ms} ms: it says when to look");
            all.extend(due.iter().filter(|n| n.as_str() == name).map(|_| ms));
        }
        assert_eq!(announcer.wait(end * MS), None, "and then sleeps");
        all
    }

    #[test]
    fn a_guest_is_announced_four_times() {
        let up = |ms| (if ms < 7 { &[][..] } else { &["a", "b"][..] }, true);
        assert_eq!(times("a", 2000, up), [7, 67, 307, 1007]);
    }

    #[test]
    fn who_flaps_is_announced_four_times_a_second() {
        let up = |ms| (if ms >= 3000 || ms % 20 < 10 { &["a"][..] } else { &[] }, true);
        let all = times("a", 6000, up);
        assert!(all.windows(5).all(|w| w[4] - w[0] >= 900), "{all:?}");
    }

    #[test]
    fn an_uplink_that_is_back_hears_of_all() {
        let up = |ms| (&["a"][..], !(2000..2500).contains(&ms));
        assert_eq!(times("a", 6000, up), [0, 60, 300, 1000, 2500, 2560, 2800, 3500]);
    }

    #[test]
    fn the_form_is_that_of_the_uplink() {
        let frame = announcement(Mac::new([2, 0, 0, 0, 0, 1]), None);
        assert_eq!(tagged(&frame, Form::Payload), frame);
        let tagged = tagged(&frame, Form::Tagged(10));
        assert_eq!((&tagged[12..18], tagged.len()), (&[0x81, 0, 0, 10, 0x80, 0x35][..], 64));
    }
}
