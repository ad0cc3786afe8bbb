//! From an address to a running port of its kind.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlan_attach::{Files, ask_keepers, vfio_user, vhost_user};
use vmlan_frame::{Changed, Mirror, Port, error_chain};
use vmlan_keeper::Asked;
use vmlan_keeper::hold::{Held, Hold, HoldError};
use vmlan_uplink::{packet, pcap, stream, tap, xdp};

use vmlan_config::address::{Address, Doorbell, Model, PortName, Spec, VfioUser, VhostUser};
use vmlan_config::gateway::GatewayCounters;
use vmlan_config::vm_args::nic_mac_of;

use super::held_tap::HeldTap;
use super::keepers::Keepers;
use super::nat::{Host, Nat, Wanted};

/// What gateways need beside their own address.
pub(super) struct Gateways<'a> {
    pub(super) host: &'a Host,
    /// Addresses kept for ports, by their names.
    pub(super) reserved: BTreeMap<String, Ipv4Addr>,
}

impl Gateways<'_> {
    /// What the gateway at `address` is to do on a LAN with links that carry `narrowest`.
    pub(super) fn wanted<'s>(
        &self,
        address: &Address,
        spec: &'s vmlan_config::address::Nat,
        narrowest: Option<u16>,
    ) -> Result<Wanted<'s>, String> {
        let network = address.place().parse()?;
        Ok(Wanted { network, spec, reserved: self.reserved.clone(), narrowest })
    }
}

/// Who has ports' descriptors for the next switch, and what was left by the one before.
#[derive(Debug, Default)]
pub(super) struct Holding {
    pub(super) hold: Option<Arc<dyn Hold>>,
    /// By what log lines call the ports.
    pub(super) found: BTreeMap<String, Held>,
    /// All keepers of these ports were asked at once.
    asked: Option<Asked>,
    claimed: bool,
    /// It was said that who held it has gone.
    warned: bool,
}

impl Holding {
    /// With what `hold` has now.
    pub(super) fn new(hold: Arc<dyn Hold>) -> Result<Self, HoldError> {
        let found = hold.all()?;
        let asked = Some(ask_keepers(&found));
        let found = found.into_iter().map(|held| (held.name.clone(), held)).collect();
        Ok(Self { hold: Some(hold), found, asked, claimed: false, warned: false })
    }

    /// Ports that went on with what was held have been closed again, and it is held on.
    pub(super) fn find_again(&mut self) {
        if let Some(Ok(again)) = self.hold.clone().map(Self::new) {
            *self = again;
        }
    }

    /// Who held things has gone, and nothing is held any more.
    pub(super) fn has_gone(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.has_gone())
    }

    /// Says once that who held things has gone.
    pub(super) fn warn(&mut self) {
        if !self.warned && self.has_gone() {
            self.warned = true;
            log::warn!("the holder has gone: until this switch is started anew, nothing is held");
        }
    }

    /// What is held of the port that log lines call so, and what its keeper was asked.
    fn take(&mut self, label: &str) -> Option<(Held, Asked)> {
        self.found.remove(label).zip(self.asked)
    }

    /// Every port that goes on with what was held has claimed it.
    pub(super) fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// Lets go of what no port has claimed.
    pub(super) fn forget_unclaimed(&mut self) {
        self.claimed = true;
        for (name, held) in std::mem::take(&mut self.found) {
            log::warn!("{name}: is not wanted any more: what was held of it is let go");
            self.hold.iter().for_each(|hold| drop(hold.forget(&name)));
            held.let_go();
        }
    }
}

/// A running port.
pub(super) enum Opened {
    Vm(vhost_user::VhostUser),
    Nic(vfio_user::VfioUser),
    Tap(HeldTap),
    Packet(packet::Packet),
    Xdp(xdp::Xdp),
    Stream(stream::Stream),
    Pcap(pcap::Pcap),
    Nat(Box<Nat>),
    #[cfg(any(test, feature = "fuzz"))]
    Given(super::given::Given),
}

impl Opened {
    /// Opens the port.
    ///
    /// # Errors
    /// One line that names the value and says what to do.
    pub(super) fn new(
        name: &PortName,
        address: &Address,
        changed: &Changed,
        gateways: &Gateways<'_>,
        holding: &mut Holding,
    ) -> Result<Self, String> {
        #[cfg(any(test, feature = "fuzz"))]
        if let Some(port) = super::given::take(address.place(), changed) {
            return Ok(Self::Given(port));
        }
        let path = PathBuf::from(address.place());
        let (label, hold) = (format!("port {name}"), holding.hold.clone());
        match address.spec() {
            Spec::VhostUser(spec) => {
                let config = vhost_user::Config { hold, ..vhost_user(name, path, spec) };
                let opened = match holding.take(&label) {
                    Some((held, asked)) => vhost_user::adopt(config, held, asked, changed.clone()),
                    None => vhost_user::attach(config, changed.clone()),
                };
                opened.map(Self::Vm).map_err(|e| error_chain(&e))
            }
            Spec::VfioUser(spec) => {
                let config = vfio_user::Config { hold, ..vfio_user(name, path, spec) };
                let opened = match holding.take(&label) {
                    Some((held, asked)) => vfio_user::adopt(config, held, asked, changed.clone()),
                    None => vfio_user::attach(config, changed.clone()),
                };
                opened.map(Self::Nic).map_err(|e| error_chain(&e))
            }
            Spec::Tap(spec) => {
                let (queues, offload) = (spec.queues, spec.offload);
                let plain = tap::Config::new(address.place());
                let config = tap::Config { label, queues, offload, ..plain };
                HeldTap::open(config, holding, changed.clone()).map(Self::Tap)
            }
            Spec::Packet(_) => {
                let config = packet::Config { label, name: address.place().to_owned() };
                let opened = packet::open(&config, changed.clone());
                opened.map(Self::Packet).map_err(|e| error_chain(&e))
            }
            Spec::Xdp(spec) => {
                let (queues, zero_copy) = (spec.queues, spec.zero_copy);
                let name = address.place().to_owned();
                let config = xdp::Config { label, name, queues, zero_copy };
                xdp::open(config, changed.clone()).map(Self::Xdp).map_err(|e| error_chain(&e))
            }
            Spec::Stream(spec) => {
                let (connect, mode) = (spec.connect, spec.mode);
                let keepers = Arc::new(Keepers);
                let plain = stream::Config::new(path);
                let config = stream::Config { label, connect, mode, keepers, ..plain };
                stream::open(config, changed.clone()).map(Self::Stream).map_err(|e| error_chain(&e))
            }
            Spec::Nat(spec) => {
                // What the LAN's links carry it is told when it takes part.
                let wanted = gateways.wanted(address, spec, None)?;
                Nat::open(name, &wanted, gateways.host, holding, changed)
                    .map(|n| Self::Nat(n.into()))
            }
            Spec::Pcap(spec) => {
                let plain = pcap::Config::new(path);
                let snaplen = spec.snaplen.unwrap_or(plain.snaplen);
                let config = pcap::Config { label, snaplen, ..plain };
                pcap::open(config).map(Self::Pcap).map_err(|e| error_chain(&e))
            }
        }
    }

    pub(super) fn port(&self) -> Arc<dyn Port> {
        match self {
            Self::Vm(p) => p.port(),
            Self::Nic(p) => p.port(),
            Self::Tap(p) => p.port(),
            Self::Packet(p) => p.port(),
            Self::Xdp(p) => p.port(),
            Self::Stream(p) => p.port(),
            Self::Pcap(p) => p.port(),
            Self::Nat(p) => p.vm().port(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.port(),
        }
    }

    /// The MTU of a device of the host.
    pub(super) fn mtu(&self) -> Option<u16> {
        let mtu = match self {
            Self::Tap(p) => p.mtu(),
            Self::Packet(p) => p.mtu(),
            Self::Xdp(p) => p.mtu(),
            _ => None,
        };
        mtu.and_then(|mtu| u16::try_from(mtu).ok())
    }

    /// False for a capture file: it watches, and no frame is addressed to it.
    pub(super) fn moves_frames(&self) -> bool {
        !matches!(self, Self::Pcap(_))
    }

    /// Counts frames that the kernel has lost, if nothing but this does.
    pub(super) fn count_losses(&self) {
        if let Self::Xdp(p) = self {
            p.port().count_doorbells();
        }
    }

    /// What watches other ports' frames.
    pub(super) fn mirror(&self) -> Option<Arc<dyn Mirror>> {
        match self {
            Self::Pcap(p) => Some(p.mirror()),
            _ => None,
        }
    }

    /// The number of `port` in this capture file.
    pub(super) fn interface(&self, port: &str) -> Option<u32> {
        match self {
            Self::Pcap(p) => Some(p.add_interface(port)),
            _ => None,
        }
    }

    pub(super) fn details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Vm(p) => p.details(),
            Self::Nic(p) => p.details(),
            Self::Tap(p) => p.details(),
            Self::Packet(p) => p.details(),
            Self::Xdp(p) => p.details(),
            Self::Stream(p) => p.details(),
            Self::Pcap(p) => p.details(),
            Self::Nat(p) => p.details(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(_) => Vec::new(),
        }
    }

    /// What a gateway has counted.
    pub(super) fn gateway(&self) -> Option<GatewayCounters> {
        match self {
            Self::Nat(p) => Some(p.counters().clone()),
            _ => None,
        }
    }

    /// Plugs the NIC's cable in, or unplugs it; ignored by ports that have none.
    pub(super) fn set_link(&self, up: bool) {
        if let Self::Nic(p) = self {
            p.set_link(up);
        }
    }

    /// Interrupts a second at most, 0: no limit; ignored by ports that do not interrupt.
    pub(super) fn set_irq_rate_max(&self, n: u32) {
        match self {
            Self::Vm(p) => p.set_irq_rate_max(n),
            Self::Nic(p) => p.set_irq_rate_max(n),
            _ => {}
        }
    }

    /// Waits until it has gone on with what was held, and not for longer than until `end`.
    pub(super) fn wait_for_adoption(&mut self, end: Instant) {
        match self {
            Self::Vm(p) => p.wait_for_adoption(end),
            Self::Nic(p) => p.wait_for_adoption(end),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.note("wait for"),
            _ => {}
        }
    }

    /// It is held for the next switch.
    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Vm(p) => p.is_held(),
            Self::Nic(p) => p.is_held(),
            Self::Tap(p) => p.is_held(),
            Self::Nat(p) => p.is_held(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.is_held(),
            _ => false,
        }
    }

    /// The holder has all that it is to have of it.
    pub(super) fn outlives(&self) -> bool {
        match self {
            Self::Vm(p) => p.outlives(),
            Self::Nic(p) => p.outlives(),
            Self::Tap(p) => p.outlives(),
            _ => false,
        }
    }

    /// Has held what it has now, if that is something else than before. Says when it has to be
    /// called again.
    pub(super) fn keep(&mut self) -> Option<Duration> {
        match self {
            Self::Tap(p) => {
                p.keep();
                None
            }
            Self::Nat(p) => p.keep(),
            _ => None,
        }
    }

    /// Takes no more frames from it, if it is held.
    pub(super) fn pause(&self) {
        match self {
            Self::Vm(p) if p.is_held() => p.vhost_port().pause(),
            Self::Nic(p) if p.is_held() => p.vfio_port().pause(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.note("pause"),
            _ => {}
        }
    }

    /// Begins to leave it to the next switch, if it is held: for several that are left together.
    pub(super) fn leave(&mut self) {
        match self {
            Self::Vm(p) => p.leave(),
            Self::Nic(p) => p.leave(),
            Self::Nat(p) => p.stop(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.note("leave"),
            // Nobody can keep their threads.
            _ => {}
        }
    }

    /// Leaves it to the next switch, if it is held.
    pub(super) fn hand_over(&mut self) {
        match self {
            Self::Vm(p) => p.hand_over(),
            Self::Nic(p) => p.hand_over(),
            Self::Tap(p) => p.hand_over(),
            Self::Nat(p) => p.hand_over(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(p) => p.note("hand over"),
            _ => {}
        }
    }

    /// Begins to close: for several that are closed together.
    pub(super) fn stop(&mut self) {
        match self {
            Self::Vm(p) => p.stop(),
            Self::Nic(p) => p.stop(),
            Self::Stream(p) => p.stop(),
            Self::Pcap(p) => p.stop(),
            Self::Nat(p) => p.stop(),
            // Nobody can keep their threads.
            _ => {}
        }
    }

    /// Stops its threads and removes the socket file it made.
    pub(super) fn close(&mut self) {
        match self {
            Self::Vm(p) => p.close(),
            Self::Nic(p) => p.close(),
            Self::Tap(p) => p.close(),
            Self::Packet(p) => p.close(),
            Self::Xdp(p) => p.close(),
            Self::Stream(p) => p.close(),
            Self::Pcap(p) => p.close(),
            Self::Nat(p) => p.close(),
            #[cfg(any(test, feature = "fuzz"))]
            Self::Given(_) => {}
        }
    }
}

fn files(disk: bool) -> Files {
    if disk { Files::Disk } else { Files::Ram }
}

fn vhost_user(name: &PortName, path: PathBuf, spec: &VhostUser) -> vhost_user::Config {
    vhost_user::Config {
        name: Some(name.to_string()),
        path,
        connect: spec.connect,
        mode: spec.mode,
        group: spec.group.clone(),
        queues: spec.queues,
        mac: spec.mac,
        mtu: spec.mtu,
        irq_rate_max: spec.irq_rate_max,
        memory: files(spec.disk_memory),
        steer_by_source: false,
        hold: None,
    }
}

fn vfio_user(name: &PortName, path: PathBuf, spec: &VfioUser) -> vfio_user::Config {
    let plain = vfio_user::Config::new(path, spec.mac.unwrap_or_else(|| nic_mac_of(name)));
    vfio_user::Config {
        name: Some(name.to_string()),
        mode: spec.mode,
        group: spec.group.clone(),
        model: match spec.model {
            Model::E1000 => vfio_user::Model::E1000,
            Model::E1000e => vfio_user::Model::E1000e,
            Model::R8169 => vfio_user::Model::R8169,
            Model::Rtl8139 { plus } => vfio_user::Model::Rtl8139 { plus },
            Model::Vmxnet3 => vfio_user::Model::Vmxnet3,
        },
        irq_rate_max: spec.irq_rate_max,
        doorbell: match spec.doorbell {
            Doorbell::Mapped => vfio_user::Doorbell::Mapped,
            Doorbell::Trapped => vfio_user::Doorbell::Trapped,
        },
        csb: spec.csb,
        poll_idle: spec.poll_idle.unwrap_or(plain.poll_idle),
        link: spec.link,
        memory: files(spec.disk_memory),
        ..plain
    }
}
