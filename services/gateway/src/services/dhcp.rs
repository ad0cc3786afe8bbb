//! DHCP for IPv4 (RFC 2131): what comes of a client's message.

use std::net::Ipv4Addr;

use smoltcp::wire::{DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr};
use vmlan_config::gateway::Setup;

use super::{Change, Leases, Who};
use crate::counters::Reason;
use crate::link::Mac;

/// The port of servers.
pub(crate) const SERVER: u16 = 67;
/// The port of clients.
pub(crate) const CLIENT: u16 = 68;

/// Shortest message: some clients drop shorter ones (RFC 1542, 2.1).
const SHORTEST: usize = 300;

const HOSTNAME: u8 = 12;
const DOMAIN: u8 = 15;
const MTU: u8 = 26;
const BROADCAST: u8 = 28;
const CLIENT_ID: u8 = 61;
const SEARCH: u8 = 119;

/// An answer, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) to: Ipv4Addr,
    pub(crate) mac: Mac,
}

/// What came of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) reply: Option<Reply>,
    pub(crate) changes: Vec<Change>,
}

/// The server.
pub(crate) struct Server<'s> {
    pub(crate) setup: &'s Setup,
    pub(crate) leases: &'s mut Leases,
}

struct Request<'a> {
    repr: &'a DhcpRepr<'a>,
    client_id: Option<&'a [u8]>,
    hostname: Option<String>,
}

impl Server<'_> {
    /// Answers a client's message, which came from `who`; `now` in seconds since 1970.
    pub(crate) fn serve(
        &mut self,
        message: &[u8],
        who: Who<'_>,
        now: u64,
    ) -> Result<Outcome, Reason> {
        let packet = DhcpPacket::new_checked(message).map_err(|_| Reason::Malformed)?;
        let repr = DhcpRepr::parse(&packet).map_err(|_| Reason::Malformed)?;
        // Whoever is asked for an address in another's name is being starved of addresses.
        if repr.client_hardware_address != who.mac || !repr.relay_agent_ip.is_unspecified() {
            return Err(Reason::DhcpRefused);
        }
        let option = |kind| packet.options().find(|o| o.kind == kind).map(|o| o.data);
        let hostname = option(HOSTNAME).and_then(name);
        let request = Request { repr: &repr, client_id: option(CLIENT_ID), hostname };
        match repr.message_type {
            DhcpMessageType::Discover => self.discover(&request, who, now),
            DhcpMessageType::Request => self.request(request, who, now),
            DhcpMessageType::Inform => {
                let reply = self.reply(&request, DhcpMessageType::Ack, Ipv4Addr::UNSPECIFIED);
                Ok(Outcome { reply: Some(reply?), changes: Vec::new() })
            }
            DhcpMessageType::Release => {
                let ip = repr.client_ip;
                let released = self.leases.release(who.mac, ip);
                Ok(Outcome { reply: None, changes: no_longer(ip, released) })
            }
            DhcpMessageType::Decline => {
                let ip = repr.requested_ip.ok_or(Reason::Malformed)?;
                let declined = self.leases.decline(who, ip, now);
                Ok(Outcome { reply: None, changes: no_longer(ip, declined) })
            }
            _ => Err(Reason::Malformed),
        }
    }

    fn discover(
        &mut self,
        request: &Request<'_>,
        who: Who<'_>,
        now: u64,
    ) -> Result<Outcome, Reason> {
        let wanted = request.repr.requested_ip;
        let ip = self.leases.offer(who, wanted, now).ok_or(Reason::DhcpExhausted)?;
        let reply = self.reply(request, DhcpMessageType::Offer, ip)?;
        Ok(Outcome { reply: Some(reply), changes: Vec::new() })
    }

    fn request(&mut self, request: Request<'_>, who: Who<'_>, now: u64) -> Result<Outcome, Reason> {
        let repr = request.repr;
        if repr.server_identifier.is_some_and(|server| server != self.setup.network.gateway()) {
            return Ok(Outcome::default());
        }
        let current = Some(repr.client_ip).filter(|ip| !ip.is_unspecified());
        let ip = repr.requested_ip.or(current).ok_or(Reason::Malformed)?;
        let times = (now, now + u64::from(self.setup.lease));
        let changes = self.leases.request(who, ip, request.hostname.clone(), times);
        let kind = if changes.is_some() { DhcpMessageType::Ack } else { DhcpMessageType::Nak };
        let reply = self.reply(&request, kind, ip)?;
        Ok(Outcome { reply: Some(reply), changes: changes.unwrap_or_default() })
    }

    fn reply(
        &self,
        request: &Request<'_>,
        kind: DhcpMessageType,
        ip: Ipv4Addr,
    ) -> Result<Reply, Reason> {
        let (setup, asked) = (self.setup, request.repr);
        let network = setup.network;
        let nak = kind == DhcpMessageType::Nak;
        let leased = !nak && !ip.is_unspecified();
        let search = labels(&setup.domain);
        let (mtu, broadcast) = (setup.mtu.to_be_bytes(), network.broadcast().octets());
        let client_id = request.client_id.map(|data| DhcpOption { kind: CLIENT_ID, data });
        let option = |kind, data| (!nak).then_some(DhcpOption { kind, data });
        let options: Vec<_> = [
            client_id,
            option(DOMAIN, setup.domain.as_bytes()),
            option(MTU, &mtu),
            option(BROADCAST, &broadcast),
            option(SEARCH, &search),
        ]
        .into_iter()
        .flatten()
        .collect();
        let names = (setup.dns != vmlan_config::gateway::Dns::Off && !nak)
            .then(|| [network.gateway()].into_iter().collect());
        let repr = DhcpRepr {
            message_type: kind,
            transaction_id: asked.transaction_id,
            secs: 0,
            client_hardware_address: asked.client_hardware_address,
            client_ip: if nak { Ipv4Addr::UNSPECIFIED } else { asked.client_ip },
            your_ip: if leased { ip } else { Ipv4Addr::UNSPECIFIED },
            server_ip: Ipv4Addr::UNSPECIFIED,
            router: (!nak).then(|| network.gateway()),
            subnet_mask: (!nak).then(|| network.mask()),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: asked.broadcast,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(network.gateway()),
            parameter_request_list: None,
            dns_servers: names,
            max_size: None,
            lease_duration: leased.then_some(setup.lease),
            renew_duration: leased.then_some(setup.lease / 2),
            rebind_duration: leased.then_some(setup.lease / 8 * 7),
            additional_options: &options,
        };
        let mut bytes = vec![0; repr.buffer_len().max(SHORTEST)];
        let mut packet = DhcpPacket::new_unchecked(bytes.as_mut_slice());
        repr.emit(&mut packet).map_err(|_| Reason::Malformed)?;
        let everybody = (Ipv4Addr::BROADCAST, Mac::BROADCAST);
        let (to, mac) = match (asked.client_ip, asked.broadcast) {
            _ if nak => everybody,
            (current, _) if !current.is_unspecified() => (current, asked.client_hardware_address),
            (_, true) => everybody,
            _ => (ip, asked.client_hardware_address),
        };
        Ok(Reply { bytes, to, mac })
    }
}

/// What the switch is told if nobody has `ip` any longer.
fn no_longer(ip: Ipv4Addr, released: bool) -> Vec<Change> {
    released.then_some(Change::Released(ip.into())).into_iter().collect()
}

/// A name as DNS writes it (RFC 1035, 3.1).
pub(crate) fn labels(domain: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in domain.split('.').filter(|label| (1..=63).contains(&label.len())) {
        out.push(u8::try_from(label.len()).unwrap_or(0));
        out.extend(label.bytes());
    }
    out.push(0);
    out
}

/// A host name that may be shown.
fn name(bytes: &[u8]) -> Option<String> {
    let good = |b: &u8| b.is_ascii_alphanumeric() || b"-._".contains(b);
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let ok = (1..=63).contains(&bytes.len()) && bytes.iter().all(good);
    ok.then(|| String::from_utf8_lossy(bytes).into_owned())
}
