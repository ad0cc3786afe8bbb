//! A `nat:` port: a port like that of a VM, and the gateway's process that plugs into it.
//!
//! The gateway is a guest like any other: it may be killed, and may be taken over by what it
//! parses. What must outlive it, leases and what it is to do, is here.

mod heard;
mod kept;
mod link;
mod setup;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vmlan_attach::vhost_user;
use vmlan_config::address::PortName;
use vmlan_config::gateway::{
    Dns, FromGateway, GatewayCounters, LANES, Lease, Network6, Setup, ToGateway,
};
use vmlan_frame::{Changed, error_chain};

use super::open::Holding;
use crate::resolvers;
use heard::{Log, shortened};
use kept::KeptLeases;
use link::Link;
pub(super) use setup::{Wanted, now};

/// Leases that are remembered.
const LEASES: usize = 16_384;

/// What all gateways of a switch share.
#[derive(Clone)]
pub(super) struct Host {
    /// Where their sockets are made.
    pub(super) dir: PathBuf,
    /// Called when a gateway has said something.
    pub(super) news: Changed,
}

/// A gateway's port.
pub(super) struct Nat {
    vm: vhost_user::VhostUser,
    link: Link,
    setup: Setup,
    /// Names are asked of the host's servers.
    asks_host: bool,
    leases: BTreeMap<IpAddr, Lease>,
    kept: Option<KeptLeases>,
    counters: GatewayCounters,
    forwards: Vec<(String, Option<String>)>,
    is_ready: bool,
    log: Log,
}

impl Nat {
    /// Opens the port, and has a gateway started, with the leases that the last switch has left.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(super) fn open(
        name: &PortName,
        wanted: &Wanted<'_>,
        host: &Host,
        holding: &mut Holding,
        changed: &Changed,
    ) -> Result<Self, String> {
        if let Some(text) = setup::overlap(wanted.network) {
            return Err(text);
        }
        let path = socket(&host.dir, name);
        let config = vhost_user::Config {
            name: Some(name.to_string()),
            path: path.clone(),
            connect: false,
            mode: Some(0o600),
            group: None,
            queues: LANES,
            mac: None,
            mtu: None,
            irq_rate_max: 0,
            memory: vmlan_attach::Files::Ram,
            steer_by_source: true,
            hold: None,
        };
        let vm = vhost_user::attach(config, changed.clone()).map_err(|e| error_chain(&e))?;
        let setup = setup::of(name, &path, wanted);
        let mut leases = BTreeMap::new();
        for lease in holding.found.remove(&kept::name(name.as_str())).map_or(vec![], kept::read) {
            let _ = remember(&setup, &mut leases, lease);
        }
        let known = leases.values().cloned().collect();
        let link = Link::start(name, setup.clone(), known, host.news.clone())
            .map_err(|e| format!("cannot start the gateway's thread: {e}"))?;
        let kept = holding.hold.clone().map(|hold| KeptLeases::new(hold, name.as_str()));
        Ok(Self {
            vm,
            link,
            setup,
            asks_host: asks_host(wanted),
            leases,
            kept,
            counters: GatewayCounters::default(),
            forwards: Vec::new(),
            is_ready: false,
            log: Log::new(),
        })
    }

    /// Its port.
    pub(super) fn vm(&self) -> &vhost_user::VhostUser {
        &self.vm
    }

    /// Goes on as `wanted` says.
    pub(super) fn follow(&mut self, name: &PortName, wanted: &Wanted<'_>) {
        self.asks_host = asks_host(wanted);
        let mut setup = setup::of(name, Path::new(&self.setup.socket), wanted);
        setup.now = self.setup.now;
        if setup != self.setup {
            self.setup = setup;
            self.link.set(&self.setup);
        }
    }

    /// The host may ask others for names than before. It is looked at when the gateway has done
    /// something, and so while a guest waits for an answer: a question is asked again.
    fn follow_host(&mut self, name: &PortName) {
        if !self.asks_host {
            return;
        }
        let dns = Dns::Ask(resolvers::read());
        if dns != self.setup.dns {
            log::info!("port {name}: the host has other servers of names now");
            self.setup.dns = dns;
            self.link.set(&self.setup);
        }
    }

    /// What its gateway has said, dealt with; `whose` tells which port a NIC is behind. True if
    /// leases have changed.
    pub(super) fn hear(&mut self, name: &PortName, whose: impl Fn(&str) -> Option<String>) -> bool {
        let mut changed = false;
        for news in self.link.news() {
            match news {
                FromGateway::Ready => self.is_ready = true,
                FromGateway::Whose(mac) => {
                    let port = whose(&mac);
                    self.link.tell(&ToGateway::Whose { mac, port });
                }
                FromGateway::Lease(lease) => match remember(&self.setup, &mut self.leases, lease) {
                    Ok(is_new) => changed |= is_new,
                    Err(strange) => self.log.doubt(name, strange),
                },
                FromGateway::Released(ip) => changed |= self.leases.remove(&ip).is_some(),
                FromGateway::Counters(counters) => {
                    self.follow_host(name);
                    let (counters, all) = heard::counters(counters);
                    self.counters = counters;
                    if !all {
                        self.log.doubt(name, "counters that have no names, or too many");
                    }
                }
                FromGateway::Forwards(list) => self.say_forwards(name, list),
                FromGateway::Log { warn, text } => {
                    let level = if warn { log::Level::Warn } else { log::Level::Info };
                    self.log.say(level, name, &text);
                }
            }
        }
        if changed {
            self.have_changed();
        }
        changed
    }

    /// The next gateway, and that of the next switch, are to know the leases.
    fn have_changed(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.changed(Instant::now()));
        self.link.keep(self.leases.values().cloned().collect());
    }

    /// Has the leases held for the next switch, if they have changed. Says when it has to be called
    /// again.
    pub(super) fn keep(&mut self) -> Option<Duration> {
        let leases = || self.leases.values().cloned().collect();
        self.kept.as_mut().and_then(|kept| kept.keep(Instant::now(), leases))
    }

    /// Has all that has changed held at once: nobody can ask for that without end.
    fn flush(&mut self) {
        let leases = || self.leases.values().cloned().collect();
        self.kept.iter_mut().for_each(|kept| kept.flush(leases));
    }

    /// The LAN's addresses of IPv6.
    pub(super) fn network6(&self) -> Option<Network6> {
        self.setup.network6
    }

    fn say_forwards(
        &mut self,
        name: &PortName,
        list: Vec<(vmlan_config::gateway::Forward, Option<String>)>,
    ) {
        let ours = list.into_iter().filter(|(forward, _)| self.setup.forwards.contains(forward));
        let list: Vec<_> = ours
            .take(self.setup.forwards.len())
            .map(|(forward, wrong)| (forward.to_string(), wrong.map(|text| shortened(&text))))
            .collect();
        for (_, wrong) in list.iter().filter(|said| !self.forwards.contains(said)) {
            if let Some(wrong) = wrong {
                self.log.say(log::Level::Warn, name, wrong);
            }
        }
        self.forwards = list;
    }

    /// The leases that are in force.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        let now = now();
        self.leases.values().filter(move |lease| lease.expires > now)
    }

    /// Each forward, and what is wrong with it.
    pub(super) fn forwards(&self) -> &[(String, Option<String>)] {
        &self.forwards
    }

    /// Whoever has this address loses it. False: nobody has.
    pub(super) fn forget(&mut self, ip: IpAddr) -> bool {
        let had = self.leases.remove(&ip).is_some();
        if had {
            // In this order: a gateway that begins in between knows nothing of it.
            self.have_changed();
            self.link.tell(&ToGateway::Forget(ip));
            // Before it is answered.
            self.flush();
        }
        had
    }

    pub(super) fn counters(&self) -> &GatewayCounters {
        &self.counters
    }

    pub(super) fn details(&self) -> Vec<(&'static str, String)> {
        let network = self.setup.network;
        let (first, last) = network.pool();
        let mut details = self.vm.details();
        details.retain(|(key, _)| *key == "state");
        if let Some((_, state)) = details.iter_mut().find(|_| !self.is_ready) {
            "starting the gateway".clone_into(state);
        }
        details.push(("gateway", network.gateway().to_string()));
        details.push(("pool", format!("{first}-{last}")));
        details.extend(self.network6().map(|network| ("prefix", network.to_string())));
        details.push(("mtu", self.setup.mtu.to_string()));
        details.push(("leases", self.leases().count().to_string()));
        let wrong = self.forwards.iter().filter_map(|(_, wrong)| wrong.as_deref());
        details.extend(wrong.map(|wrong| ("trouble", wrong.to_owned())));
        details
    }

    /// Its leases are held for the next switch.
    pub(super) fn is_held(&self) -> bool {
        self.kept.is_some()
    }

    /// Leaves them to the next switch; otherwise as [`Nat::close`].
    pub(super) fn hand_over(&mut self) {
        self.flush();
        self.kept = None;
        self.close();
    }

    /// Begins to close: a gateway that was taken over may keep its port's thread.
    pub(super) fn stop(&mut self) {
        self.link.stop();
        self.vm.stop();
    }

    /// Ends the gateway, then the port.
    pub(super) fn close(&mut self) {
        self.link.close();
        self.vm.close();
        self.kept.take().iter().for_each(KeptLeases::forget);
    }
}

/// The user has named no servers.
fn asks_host(wanted: &Wanted<'_>) -> bool {
    wanted.spec.dns.as_ref().is_some_and(Vec::is_empty)
}

/// False: it is none of this LAN's. A NIC has one address of IPv4, and several of IPv6.
///
/// # Errors
/// It is no lease at all.
fn remember(
    setup: &Setup,
    leases: &mut BTreeMap<IpAddr, Lease>,
    lease: Lease,
) -> Result<bool, &'static str> {
    if !heard::is_sound(&lease) {
        return Err("a lease whose NIC, port or host name is none");
    }
    let ours = match lease.ip {
        IpAddr::V4(ip) => setup.network.is_for_hosts(ip),
        IpAddr::V6(ip) => {
            let own = setup.network6.filter(|network| network.is_for_hosts(ip));
            own.is_some() || Network6::local().contains(ip)
        }
    };
    if !ours {
        return Ok(false);
    }
    if leases.len() >= LEASES && !leases.contains_key(&lease.ip) {
        // Those that have ended come first.
        let first = leases.iter().min_by_key(|(_, old)| old.expires).map(|(ip, _)| *ip);
        first.into_iter().for_each(|ip| _ = leases.remove(&ip));
    }
    if lease.ip.is_ipv4() {
        let other = |ip: &IpAddr, old: &Lease| ip.is_ipv4() && old.mac == lease.mac;
        leases.retain(|ip, old| *ip == lease.ip || !other(ip, old));
    }
    leases.insert(lease.ip, heard::limited(lease, now(), setup));
    Ok(true)
}

/// The socket between switch and gateway: a name that no other switch has.
fn socket(dir: &Path, name: &PortName) -> PathBuf {
    dir.join(format!(".vmlan-{}-{name}.sock", std::process::id()))
}
