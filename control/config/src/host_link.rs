//! What makes the LANs of several hosts one: behind an uplink's TAP device a bridge, and on it a
//! VXLAN (RFC 7348) of the kernel's. Hosts find each other by a list, or by BGP (EVPN, RFC 8365),
//! which FRR speaks.
//!
//! All of it is text: lines for a shell, which an operator can read and which are run as they are
//! printed, and FRR's configuration.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use vmlan_frame::Mac;

use crate::gateway::Prefix;

/// The port of VXLAN (RFC 7348, section 8).
const PORT: u16 = 4789;

/// Longest name of an interface (`IFNAMSIZ`, without its end).
const NAME: usize = 15;

/// Hosts that may reach a route reflector, at most: FRR takes 100 if it is not told.
const CLIENTS: u16 = 65_535;

/// An uplink's part of a LAN of several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// The TAP device.
    pub uplink: String,
    /// Who may open it without privileges; `None`: whoever has them.
    pub user: Option<String>,
    /// Its queues.
    pub queues: u16,
    /// The LAN's number on the wire (VNI), 1 to 2^24 - 1.
    pub vni: u32,
    /// This host's address.
    pub local: IpAddr,
    /// Those of the others; with BGP those of its neighbours.
    pub peers: Vec<IpAddr>,
    /// Bytes of the longest packet between hosts.
    pub underlay: u16,
    /// `None`: hosts know each other by [`HostLink::peers`].
    pub evpn: Option<Evpn>,
}

/// How BGP is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evpn {
    /// The autonomous system of all hosts.
    pub asn: u32,
    /// This host's name in BGP.
    pub router_id: Ipv4Addr,
    /// This host is a route reflector (RFC 4456) for hosts with these addresses.
    pub clients: Option<Prefix>,
}

/// One line of a shell, and the line that takes it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line.
    pub line: String,
    /// `None`: what the line does ends with what another one made.
    pub undo: Option<String>,
}

impl HostLink {
    /// What is wrong with it, in a line that says what to do.
    ///
    /// # Errors
    /// That line.
    pub fn check(&self) -> Result<(), String> {
        let word = |text: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && text.chars().all(plain)
        };
        if !word(&self.uplink) || self.uplink.len() > NAME {
            let text = "name the TAP device of the uplink, 1 to 15 letters, digits, '.', '_', '-'";
            return Err(format!("{}: {text}", self.uplink));
        }
        if let Some(user) = self.user.as_ref().filter(|user| !word(user)) {
            return Err(format!("--user {user}: give a user's name or number"));
        }
        if !(1..1 << 24).contains(&self.vni) {
            return Err(format!("--vni {}: give a number from 1 to 16777215", self.vni));
        }
        if !(1..=256).contains(&self.queues) {
            return Err(format!("--queues {}: give a number from 1 to 256", self.queues));
        }
        let most = 9216 + self.overhead();
        if !(1280 + self.overhead()..=most).contains(&self.underlay) {
            let least = 1280 + self.overhead();
            let given = self.underlay;
            return Err(format!("--underlay-mtu {given}: give a number from {least} to {most}"));
        }
        self.check_peers()
    }

    fn check_peers(&self) -> Result<(), String> {
        let unicast = |ip: &IpAddr| {
            let v4 = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback() && !v4
        };
        let mut seen = BTreeSet::from([self.local]);
        for ip in std::iter::once(&self.local).chain(&self.peers) {
            if !unicast(ip) {
                let text = "not an address of a host: give one by which others reach it";
                return Err(format!("{ip}: {text}"));
            }
            if ip.is_ipv4() != self.local.is_ipv4() {
                let local = self.local;
                let text = "is of the other IP version: give addresses of one";
                return Err(format!("--peer {ip}: {local} {text}"));
            }
        }
        if let Some(twice) = self.peers.iter().find(|ip| !seen.insert(**ip)) {
            return Err(format!("--peer {twice}: is there twice, or this host: leave it out"));
        }
        let clients = self.evpn.as_ref().and_then(|evpn| evpn.clients);
        if self.peers.is_empty() && clients.is_none() {
            return Err("--peer: give the address of at least one other host".into());
        }
        match clients {
            Some(clients) if clients.0.address.is_ipv4() != self.local.is_ipv4() => {
                let text = "is of the other IP version: give addresses of one";
                Err(format!("--reflector {clients}: {} {text}", self.local))
            }
            _ => Ok(()),
        }
    }

    /// The bridge.
    pub fn bridge(&self) -> String {
        format!("br{}", self.vni)
    }

    fn vxlan(&self) -> String {
        format!("vx{}", self.vni)
    }

    /// Bytes that VXLAN adds to a packet: outer IP, UDP, VXLAN, and the inner Ethernet header.
    fn overhead(&self) -> u16 {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        ip + 8 + 8 + 14
    }

    /// Bytes of the longest packet that guests may send through it, untagged.
    pub fn mtu(&self) -> u16 {
        self.underlay.saturating_sub(self.overhead())
    }

    /// The set-up of this host.
    pub fn steps(&self) -> Vec<Step> {
        let Self { uplink, vni, local, .. } = self;
        let (bridge, vxlan, mtu) = (self.bridge(), self.vxlan(), self.mtu());
        let step = |line: String| Step { line, undo: None };
        let made = |line, device: &str, undo: String| Step {
            line,
            undo: Some(format!("! {} || {undo}", exists(device))),
        };
        // With BGP addresses are learned from other hosts' words, not from their frames.
        let (learns, port) = match self.evpn {
            Some(_) => (" nolearning", " neigh_suppress on learning off"),
            None => ("", ""),
        };
        let mut steps = vec![
            step(format!("{} || {}", exists(uplink), self.tap())),
            made(
                format!("ip link add {bridge} type bridge stp_state 0 forward_delay 0"),
                &bridge,
                format!("ip link del {bridge}"),
            ),
            step(format!("ip link set {bridge} addrgenmode none up")),
            made(
                format!(
                    "ip link add {vxlan} type vxlan id {vni} local {local} dstport {PORT}{learns}"
                ),
                &vxlan,
                format!("ip link del {vxlan}"),
            ),
            step(format!("ip link set {vxlan} mtu {mtu} addrgenmode none master {bridge}")),
        ];
        if !port.is_empty() {
            steps.push(step(format!("ip link set {vxlan} type bridge_slave{port}")));
        }
        steps.push(step(format!("ip link set {vxlan} up")));
        if self.evpn.is_none() {
            let all = Mac::default();
            steps.extend(
                self.peers
                    .iter()
                    .map(|peer| step(format!("bridge fdb append {all} dev {vxlan} dst {peer}"))),
            );
        }
        steps.push(made(
            format!("ip link set {uplink} mtu {mtu} master {bridge} up"),
            uplink,
            format!("ip link set {uplink} mtu 1500 nomaster"),
        ));
        steps
    }

    /// A device that outlives the switch, and with it its place on the bridge.
    fn tap(&self) -> String {
        let user = self.user.as_ref().map(|user| format!(" user {user}")).unwrap_or_default();
        let queues = if self.queues > 1 { " multi_queue" } else { "" };
        format!("ip tuntap add {} mode tap{user}{queues} vnet_hdr", self.uplink)
    }

    /// What takes it away, whatever is left of it. The TAP device stays.
    pub fn undo(&self) -> Vec<String> {
        self.steps().into_iter().rev().filter_map(|step| step.undo).collect()
    }

    /// The lines by which the kernel, and so BGP, knows that the guest `mac` of this host has `ip`.
    pub fn neighbour(&self, ip: IpAddr, mac: Mac) -> Step {
        let bridge = self.bridge();
        Step {
            line: format!("ip neigh replace {ip} lladdr {mac} dev {bridge} nud permanent"),
            undo: Some(format!("ip neigh del {ip} dev {bridge}")),
        }
    }

    /// FRR's configuration; `None`: nobody speaks BGP.
    pub fn frr(&self) -> Option<String> {
        let Evpn { asn, router_id, clients } = self.evpn.as_ref()?;
        let mut text = format!(
            "frr defaults datacenter\nrouter bgp {asn}\n bgp router-id {router_id}\n \
             no bgp default ipv4-unicast\n"
        );
        let mut family = String::new();
        for peer in &self.peers {
            let _ = write!(
                text,
                " neighbor {peer} remote-as internal\n neighbor {peer} timers connect 1\n"
            );
            let _ = writeln!(family, "  neighbor {peer} activate");
        }
        if let Some(clients) = clients {
            let _ = write!(
                text,
                " neighbor hosts peer-group\n neighbor hosts remote-as internal\n \
                 bgp listen limit {CLIENTS}\n bgp listen range {clients} peer-group hosts\n"
            );
            family += "  neighbor hosts activate\n  neighbor hosts route-reflector-client\n";
        }
        let _ = write!(
            text,
            " address-family l2vpn evpn\n{family}  advertise-all-vni\n exit-address-family\n"
        );
        Some(text)
    }
}

/// True in a shell if there is such an interface.
fn exists(device: &str) -> String {
    format!("ip link show {device} >/dev/null 2>&1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(local: &str, peers: &[&str], evpn: bool) -> HostLink {
        HostLink {
            uplink: "lan0".into(),
            user: Some("me".into()),
            queues: 1,
            vni: 100,
            local: local.parse().unwrap(),
            peers: peers.iter().map(|ip| ip.parse().unwrap()).collect(),
            underlay: 1500,
            evpn: evpn.then(|| Evpn {
                asn: 65000,
                router_id: Ipv4Addr::new(192, 0, 2, 1),
                clients: None,
            }),
        }
    }

    fn lines(link: &HostLink) -> Vec<String> {
        link.steps().into_iter().map(|step| step.line).collect()
    }

    #[test]
    fn a_few_hosts_know_each_other_by_a_list() {
        let link = link("192.0.2.1", &["192.0.2.2", "192.0.2.3"], false);
        link.check().unwrap();
        assert_eq!(
            lines(&link),
            [
                "ip link show lan0 >/dev/null 2>&1 || \
                 ip tuntap add lan0 mode tap user me vnet_hdr",
                "ip link add br100 type bridge stp_state 0 forward_delay 0",
                "ip link set br100 addrgenmode none up",
                "ip link add vx100 type vxlan id 100 local 192.0.2.1 dstport 4789",
                "ip link set vx100 mtu 1450 addrgenmode none master br100",
                "ip link set vx100 up",
                "bridge fdb append 00:00:00:00:00:00 dev vx100 dst 192.0.2.2",
                "bridge fdb append 00:00:00:00:00:00 dev vx100 dst 192.0.2.3",
                "ip link set lan0 mtu 1450 master br100 up",
            ]
        );
        assert_eq!(
            link.undo(),
            [
                "! ip link show lan0 >/dev/null 2>&1 || ip link set lan0 mtu 1500 nomaster",
                "! ip link show vx100 >/dev/null 2>&1 || ip link del vx100",
                "! ip link show br100 >/dev/null 2>&1 || ip link del br100",
            ]
        );
        assert_eq!(link.frr(), None);
    }

    #[test]
    fn many_find_each_other_by_bgp() {
        let mut link = link("2001:db8::1", &["2001:db8::9"], true);
        link.check().unwrap();
        let all = lines(&link).join("\n");
        assert!(all.contains("local 2001:db8::1 dstport 4789 nolearning"), "{all}");
        assert!(all.contains("type bridge_slave neigh_suppress on learning off"), "{all}");
        assert!(all.contains("mtu 1430") && !all.contains("append"), "{all}");
        let frr = link.frr().unwrap();
        assert!(frr.contains(" neighbor 2001:db8::9 remote-as internal\n"), "{frr}");
        assert!(frr.contains("\n  neighbor 2001:db8::9 activate\n  advertise-all-vni\n"), "{frr}");
        assert!(!frr.contains("peer-group"), "{frr}");
        link.peers.clear();
        assert!(link.check().unwrap_err().contains("--peer"));
        link.evpn.as_mut().unwrap().clients = Some("2001:db8::/32".parse().unwrap());
        link.check().unwrap();
        let frr = link.frr().unwrap();
        assert!(frr.contains("bgp listen range 2001:db8::/32 peer-group hosts\n"), "{frr}");
        assert!(frr.contains("  neighbor hosts route-reflector-client\n"), "{frr}");
    }

    /// What is printed is run by a shell.
    #[test]
    fn nothing_but_names_numbers_and_addresses_gets_into_a_line() {
        let good = link("192.0.2.1", &["192.0.2.2"], false);
        let wrong = |change: fn(&mut HostLink), said: &str| {
            let mut link = good.clone();
            change(&mut link);
            let error = link.check().unwrap_err();
            assert!(error.contains(said), "{error}");
        };
        for name in ["", "a b", "a;b", "$(a)", "-a", "sixteen-letters-", "a/b", "\n"] {
            let link = HostLink { uplink: name.into(), ..good.clone() };
            assert!(link.check().unwrap_err().contains("TAP device"), "{name:?}");
            let link = HostLink { user: Some(name.into()), ..good.clone() };
            assert_eq!(link.check().is_err(), name != "sixteen-letters-", "{name:?}");
        }
        wrong(|l| l.vni = 0, "--vni");
        wrong(|l| l.vni = 1 << 24, "--vni");
        wrong(|l| l.underlay = 1329, "from 1330 to 9266");
        wrong(|l| l.queues = 0, "--queues");
        wrong(|l| l.peers.clear(), "at least one");
        wrong(|l| l.peers.push(l.local), "twice");
        wrong(|l| l.peers.push(l.peers[0]), "twice");
        wrong(|l| l.peers.push("2001:db8::1".parse().unwrap()), "other IP version");
        wrong(|l| l.local = "0.0.0.0".parse().unwrap(), "not an address of a host");
        wrong(|l| l.peers.push("224.0.0.1".parse().unwrap()), "not an address of a host");
        let most = HostLink { vni: (1 << 24) - 1, underlay: 9266, ..good };
        most.check().unwrap();
        assert!(most.bridge().len() <= NAME && most.mtu() == 9216);
    }
}
