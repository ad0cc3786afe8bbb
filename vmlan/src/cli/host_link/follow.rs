//! Tells the kernel which addresses guests have: zebra passes neighbours of a bridge on to bgpd,
//! and the bridges of other hosts answer ARP and neighbour solicitations for them.
//!
//! The switch could not do it: it has no privileges, and a guest's word is no proof. Told are
//! addresses that a `nat:` port has given, and those in `ips=` of a port whose NIC is known (one
//! address in `macs=`, or `mac=`), while their port is up.
//!
//! The kernel forgets all of it when the bridge goes down or away, so it is looked what it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use super::{ApiArgs, shell};
use crate::exit::Failure;
use crate::log_format;
use vmlan_api::{Client, LeaseList, PortList};
use vmlan_config::address::{Address, IpRule, Spec};
use vmlan_config::host_link::HostLink;
use vmlan_engine::info::{LeaseInfo, PortInfo};
use vmlan_frame::Mac;

/// Shortest time between two looks, however much happens.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest: leases are no events.
const REST: Duration = Duration::from_secs(2);

type Neighbours = BTreeMap<IpAddr, Mac>;

/// Goes on until it is killed. While no switch runs, the kernel is left with what it was told.
pub(super) fn run(link: &HostLink, api: &ApiArgs) -> Result<(), Failure> {
    log_format::init();
    let client = api.client()?;
    let bridge = link.bridge();
    // Of an earlier one.
    let flush = format!("ip neigh flush dev {bridge} nud permanent");
    shell(&flush).map_err(|why| Failure::Failed(format!("{flush}: {why}")))?;
    let news = listen(api.client()?);
    let (mut told, mut failing) = (Neighbours::new(), BTreeSet::new());
    loop {
        match wanted(&client) {
            Ok(wanted) => tell(link, &mut told, &wanted, &mut failing, shell),
            Err(failure) => log::debug!("host-link: {failure}"),
        }
        sleep(PAUSE);
        if news.recv_timeout(REST) == Err(RecvTimeoutError::Disconnected) {
            return Err(Failure::Failed("the thread that listens has ended".into()));
        }
        while news.try_recv().is_ok() {}
    }
}

/// Something happened: once for each event, from a thread of its own.
fn listen(client: Client) -> Receiver<()> {
    let (sender, receiver) = channel();
    spawn(move || {
        loop {
            let mut listens = true;
            let ended = client.events(|_| {
                listens = sender.send(()).is_ok();
                listens
            });
            if !listens {
                return;
            }
            if let Err(e) = ended {
                log::debug!("host-link: {e}");
            }
            sleep(REST);
        }
    });
    receiver
}

/// What the kernel is to know.
fn wanted(client: &Client) -> Result<Neighbours, Failure> {
    let ports: PortList = client.get("/v1/ports")?;
    let leases: LeaseList = client.get("/v1/leases")?;
    Ok(neighbours(&ports.ports, &leases.leases))
}

fn neighbours(ports: &[PortInfo], leases: &[LeaseInfo]) -> Neighbours {
    let up = |name: &str| ports.iter().any(|port| port.up && port.name == name);
    let given = leases.iter().filter(|lease| up(&lease.port));
    let given = given.filter_map(|l| Some((l.ip.parse().ok()?, l.mac.parse().ok()?)));
    let listed = ports.iter().filter(|port| port.up).flat_map(listed);
    // Of two words for one address the operator's is the last.
    given.chain(listed).collect()
}

/// The addresses of a port that has one NIC.
fn listed(port: &PortInfo) -> Vec<(IpAddr, Mac)> {
    let Ok(address) = port.address.parse::<Address>() else { return Vec::new() };
    let policy = address.policy();
    let mac = match (policy.macs.listed(), address.spec()) {
        ([mac], _) => Some(*mac),
        ([], Spec::VhostUser(spec)) => spec.mac,
        ([], Spec::VfioUser(spec)) => spec.mac,
        ([], Spec::Stream(spec)) => spec.mac,
        _ => None,
    };
    let (Some(mac), IpRule::Listed(ranges)) = (mac, &policy.ips) else { return Vec::new() };
    let whole = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    let ranges = ranges.iter().filter(|range| range.bits == whole(range.address));
    ranges.map(|range| (range.address, mac)).collect()
}

/// Tells the difference; what fails is tried again at the next look. `failing` are the lines that
/// have failed at the last one: each is said once. `shell` runs a line.
fn tell(
    link: &HostLink,
    told: &mut Neighbours,
    wanted: &Neighbours,
    failing: &mut BTreeSet<String>,
    mut shell: impl FnMut(&str) -> Result<String, String>,
) {
    let mut failed = BTreeSet::new();
    let mut run = |line: String| match shell(&line) {
        Ok(said) => Some(said),
        Err(why) => {
            if !failing.contains(&line) {
                log::warn!("{line}: {why}");
            }
            failed.insert(line);
            None
        }
    };
    // A look that fails says nothing about what the kernel knows.
    if let Some(list) = run(format!("ip neigh show dev {} nud permanent", link.bridge())) {
        let known = known(&list);
        told.retain(|ip, mac| known.get(ip) == Some(mac));
        told.retain(|ip, mac| {
            let gone = !wanted.contains_key(ip);
            !(gone && link.neighbour(*ip, *mac).undo.is_some_and(|line| run(line).is_some()))
        });
        for (ip, mac) in wanted {
            if told.get(ip) != Some(mac) && run(link.neighbour(*ip, *mac).line).is_some() {
                told.insert(*ip, *mac);
            }
        }
    }
    *failing = failed;
}

/// What `ip neigh` lists: `10.0.0.1 lladdr 52:54:00:00:00:01 PERMANENT`.
fn known(list: &str) -> Neighbours {
    let one = |line: &str| {
        let mut words = line.split_whitespace();
        let ip = words.next()?.parse().ok()?;
        Some((ip, words.skip_while(|word| *word != "lladdr").nth(1)?.parse().ok()?))
    };
    list.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_are_guests_that_are_there_and_known() {
        let port = |name: &str, address: &str, up: bool| PortInfo {
            name: name.into(),
            address: address.into(),
            up,
            ..PortInfo::default()
        };
        let lease = |port: &str, ip: &str| LeaseInfo {
            port: port.into(),
            ip: ip.into(),
            mac: "52:54:00:00:00:09".into(),
            ..LeaseInfo::default()
        };
        let one = "macs=52:54:00:00:00:01,ips=10.0.0.1+fd00::1+10.1.0.0/16";
        let ports = [
            port("a", &format!("vhost-user:/a,{one}"), true),
            port("down", &format!("vhost-user:/b,{one}").replace("10.0.0.1", "10.0.0.2"), false),
            port(
                "two",
                "vhost-user:/c,macs=52:54:00:00:00:03+52:54:00:00:00:04,ips=10.0.0.3",
                true,
            ),
            port("any", "vhost-user:/d,ips=10.0.0.4", true),
            port("nic", "vhost-user:/d,ips=10.0.0.7,mac=52:54:00:00:00:07", true),
            port("leased", "vhost-user:/e", true),
        ];
        let leases = [lease("leased", "10.0.0.5"), lease("down", "10.0.0.6")];
        let all = neighbours(&ports, &leases);
        let all: Vec<_> = all.iter().map(|(ip, mac)| format!("{ip} {mac}")).collect();
        let want = [
            "10.0.0.1 52:54:00:00:00:01",
            "10.0.0.5 52:54:00:00:00:09",
            "10.0.0.7 52:54:00:00:00:07",
            "fd00::1 52:54:00:00:00:01",
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn a_guest_that_leaves_before_a_look_that_fails_is_undone_at_the_next() {
        let link = HostLink {
            uplink: "lan0".into(),
            user: None,
            queues: 1,
            vni: 100,
            local: "192.0.2.1".parse().unwrap(),
            peers: Vec::new(),
            underlay: 1500,
            evpn: None,
        };
        let (mut told, mut failing) = (Neighbours::new(), BTreeSet::new());
        let guest = ("10.0.0.1".parse().unwrap(), "52:54:00:00:00:01".parse().unwrap());
        let known = "10.0.0.1 lladdr 52:54:00:00:00:01 PERMANENT\n";
        // Whether the guest is there, what is listed, and what is run then.
        let looks = [
            (true, Ok(""), Some(link.neighbour(guest.0, guest.1).line)),
            (true, Ok(known), None),
            (false, Err("fork: Resource temporarily unavailable"), None),
            (false, Ok(known), link.neighbour(guest.0, guest.1).undo),
            (false, Ok(""), None),
        ];
        for (look, (is_there, listed, want)) in looks.into_iter().enumerate() {
            let wanted = is_there.then_some(guest).into_iter().collect();
            let mut run = Vec::new();
            tell(&link, &mut told, &wanted, &mut failing, |line| {
                if line.starts_with("ip neigh show ") {
                    return listed.map(str::to_owned).map_err(str::to_owned);
                }
                run.push(line.to_owned());
                Ok(String::new())
            });
            assert_eq!(run, Vec::from_iter(want), "look {look}");
        }
    }
}
