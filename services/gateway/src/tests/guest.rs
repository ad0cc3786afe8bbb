//! A guest made of frames.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::time::Instant;
use smoltcp::wire::{IpProtocol, UdpPacket};
use vmlan_config::gateway::{FromGateway, Setup};

use crate::fuzz::{Frames, GUEST, GUEST6, NIC, OWN, datagram};
use crate::gateway::Gateway;
use crate::link::{self, Arrived, Inner, Ip, Mac};

/// A LAN with one gateway.
pub(super) struct Lan {
    pub(super) gateway: Gateway,
    pub(super) frames: Frames,
    pub(super) now: i64,
    /// Which ports NICs are behind, if there is a switch to ask.
    pub(super) ports: HashMap<Mac, &'static str>,
    news: Vec<FromGateway>,
}

impl Lan {
    pub(super) fn new(setup: Setup) -> Self {
        Self::with(setup, true)
    }

    /// One with a switch, which knows the `ports`.
    pub(super) fn of_a_switch(setup: Setup) -> Self {
        Self::with(setup, false)
    }

    fn with(setup: Setup, alone: bool) -> Self {
        let gateway = Gateway::new(setup, alone, 1024, Instant::ZERO).unwrap();
        let (frames, ports) = (Frames::default(), HashMap::new());
        let mut lan = Self { gateway, frames, now: 0, ports, news: Vec::new() };
        // What the router says to all at first.
        lan.turn();
        lan.take();
        lan
    }

    /// To servers on this host's loopback as well.
    pub(super) fn open() -> Self {
        let allow = Some(vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        Self::new(Setup { allow, ..Setup::default() })
    }

    pub(super) fn time(&self) -> Instant {
        Instant::from_millis(self.now)
    }

    /// A frame of a guest's.
    pub(super) fn put(&mut self, frame: &[u8]) {
        let now = self.time();
        self.gateway.frame(frame, Arrived::default(), &mut self.frames, now);
        self.turn();
    }

    /// Everything has a turn for which there is something, after a moment in which the host's
    /// kernel may do its part.
    pub(super) fn turn(&mut self) {
        use rustix::event::{Timespec, epoll};
        let now = self.time();
        for _ in 0..20 {
            let mut events = Vec::with_capacity(64);
            let wait = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(self.gateway.nat().epoll(), room, Some(&wait)).unwrap();
            for event in &events {
                let epoll::Event { data, flags } = *event;
                match data.u64() {
                    number if number >= crate::nat::FORWARDS => {
                        self.gateway.forwards().event(number);
                    }
                    number => self.gateway.nat().event(number, flags),
                }
            }
            let due = self.gateway.due().is_some_and(|due| due <= now);
            let idle = events.is_empty() && !self.gateway.is_busy() && !due;
            self.gateway.run(&mut self.frames, now);
            let asked = self.answer();
            if idle && !asked {
                break;
            }
        }
    }

    /// The switch answers. True if it was asked.
    fn answer(&mut self) -> bool {
        let (now, mut asked) = (self.time(), false);
        for news in self.gateway.news() {
            if let FromGateway::Whose(mac) = &news {
                let port = link::parse_mac(mac).and_then(|mac| self.ports.get(&mac).copied());
                self.gateway.answer(mac, port, &mut self.frames, now);
                asked = true;
            } else {
                self.news.push(news);
            }
        }
        asked
    }

    pub(super) fn udp(&mut self, from: u16, to: SocketAddr, data: &[u8]) {
        let own: IpAddr = if to.is_ipv4() { GUEST.into() } else { GUEST6.into() };
        self.put(&datagram(SocketAddr::new(own, from), to, OWN, data));
    }

    /// What guests received since the last call: frames.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames.0).into_iter().map(|(frame, _)| frame).collect()
    }

    /// The datagrams among them: where from, to which port, what.
    pub(super) fn datagrams(&mut self) -> Vec<(SocketAddr, u16, Vec<u8>)> {
        let read = |frame: Vec<u8>| {
            let ip = packet(&frame)?;
            let udp = UdpPacket::new_checked(ip.payload).ok()?;
            let from = SocketAddr::new(ip.from, udp.src_port());
            (ip.protocol == IpProtocol::Udp).then(|| (from, udp.dst_port(), udp.payload().to_vec()))
        };
        self.take().into_iter().filter_map(read).collect()
    }

    /// How often something was refused for this reason.
    pub(super) fn refused(&mut self, reason: &str) -> u64 {
        self.counters().refused.get(reason).copied().unwrap_or(0)
    }

    pub(super) fn counters(&mut self) -> vmlan_config::gateway::GatewayCounters {
        self.gateway.all_counters()
    }

    pub(super) fn news(&mut self) -> Vec<FromGateway> {
        self.news.extend(self.gateway.news());
        std::mem::take(&mut self.news)
    }
}

/// The IP packet in a frame.
pub(super) fn packet(frame: &[u8]) -> Option<Ip<'_>> {
    match link::parse(frame).ok()?.inner {
        Inner::Ip(ip) => Some(ip),
        _ => None,
    }
}

pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The n-th NIC of a hostile or busy guest.
pub(super) fn nic(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, n])
}

/// The first NIC.
pub(super) const FIRST: Mac = NIC;
