//! The bodies of the fuzz targets: frames into a gateway, DHCP messages, DNS from both sides. Kept
//! inputs are replayed as plain tests. Nothing may panic, no bound may be exceeded, and no answer
//! may be malformed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::time::Instant;
use smoltcp::wire::{DhcpPacket, DhcpRepr};
use vmlan_config::gateway::{Dns, Setup};

use crate::gateway::Gateway;
use crate::link::{self, Arrived, Link, Mac, Offload};
use crate::services::{Leases, Who, dhcp, dns};

/// Frames that a gateway sent.
#[derive(Debug, Default)]
pub(crate) struct Frames(pub(crate) Vec<(Vec<u8>, Offload)>);

impl Link for Frames {
    fn room(&mut self) -> usize {
        1024
    }

    fn send(&mut self, frame: &[u8], offload: Offload) {
        self.0.push((frame.to_vec(), offload));
    }
}

/// A guest's address on the LAN of [`Setup::default`].
pub(crate) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The one that it takes by IPv6.
pub(crate) const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0xff, 0xfe00, 1);
/// Its NIC.
pub(crate) const NIC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// The gateway's.
pub(crate) const OWN: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);

/// A gateway that leads nowhere.
pub(crate) fn closed() -> Gateway {
    let setup = Setup { allow: None, dns: Dns::Ask(Vec::new()), ..Setup::default() };
    Gateway::new(setup, true, 1024, Instant::ZERO).unwrap()
}

/// Frames, one behind the other: two bytes of length, a byte whose low bit says that the sum is
/// trusted, then the frame; if the next bit is set, only what follows the Ethernet header, which is
/// that of an IPv4 packet for the gateway, or of an IPv6 packet if the third bit is set as well.
///
/// # Panics
/// When the gateway does something that it must not.
pub fn frames(mut data: &[u8]) {
    let (mut gateway, mut sent) = (closed(), Frames::default());
    let mut now = 0;
    while let [high, low, how, rest @ ..] = data {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (bytes, next) = rest.split_at(len);
        data = next;
        let mut frame = Vec::new();
        if how & 2 != 0 {
            frame.extend(OWN.0);
            frame.extend(NIC.0);
            frame.extend(if how & 4 != 0 { [0x86, 0xdd] } else { [8, 0] });
        }
        frame.extend(bytes);
        now += i64::from(*how);
        let arrived = Arrived { trusted: how & 1 != 0, lane: usize::from(how >> 6) };
        gateway.frame(&frame, arrived, &mut sent, Instant::from_millis(now));
        gateway.run(&mut sent, Instant::from_millis(now));
        gateway.news();
    }
    for (frame, offload) in &sent.0 {
        let parsed = link::parse(frame).expect("what it sends can be read");
        assert_eq!(parsed.from, OWN);
        if let (link::Inner::Ip(ip), None) = (&parsed.inner, offload.checksum) {
            assert!(ip.is_intact(), "its sums are right");
        }
    }
}

/// A DHCP message of a client.
///
/// # Panics
/// When the answer cannot be read.
pub fn dhcp(data: &[u8]) {
    let setup = Setup::default();
    let mut leases = Leases::new(setup.network, Default::default());
    for (n, message) in data.chunks(600).enumerate() {
        let mut message = message.to_vec();
        // The client's own NIC, so that the lie is not the only thing that is seen.
        if let Some(place) = message.get_mut(28..34).filter(|_| n % 2 == 0) {
            place.copy_from_slice(&NIC.0);
        }
        let mut server = dhcp::Server { setup: &setup, leases: &mut leases };
        let Ok(outcome) = server.serve(&message, Who { mac: NIC, port: "vm1" }, 1000) else {
            continue;
        };
        if let Some(reply) = outcome.reply {
            let packet = DhcpPacket::new_checked(reply.bytes.as_slice()).expect("a message");
            let repr = DhcpRepr::parse(&packet).expect("one that can be read");
            let leased = repr.lease_duration.is_some();
            assert!(!leased || setup.network.is_for_hosts(repr.your_ip), "{repr:?}");
        }
    }
    assert!(leases.count(1000) <= 1, "one NIC has one address");
}

struct Nobody;

impl dns::Names for Nobody {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        let all = vec![GUEST.into(), GUEST6.into()];
        if host.starts_with('v') { all } else { Vec::new() }
    }

    fn name(&self, address: IpAddr) -> Option<Option<String>> {
        let ours = match address {
            IpAddr::V4(ip) => ip.is_private(),
            IpAddr::V6(ip) => ip.is_unique_local(),
        };
        ours.then(|| Some("vm1".to_owned()))
    }
}

/// A DNS message of a guest or a server.
///
/// # Panics
/// When an answer does not repeat its question.
pub fn dns(data: &[u8]) {
    let Some(question) = dns::question(data) else { return };
    for answer in [
        dns::answer(&question, data, "lan", &Nobody),
        Some(question.empty(data, dns::Code::ServerFailure)),
        Some(question.truncated(data)),
    ]
    .into_iter()
    .flatten()
    {
        let again = dns::question(&answer).expect("an answer repeats its question");
        assert!(again.asks_the_same(&question) && !again.is_query());
        assert_eq!(again.id, question.id);
        assert!(answer.len() <= data.len() + 300);
    }
    assert_eq!(dns::renumbered(data, 7).len(), data.len());
}

/// A datagram of the guest's.
#[cfg(test)]
pub(crate) fn datagram(
    from: std::net::SocketAddr,
    to: std::net::SocketAddr,
    mac: Mac,
    data: &[u8],
) -> Vec<u8> {
    link::udp(link::Packet { from: NIC, to: mac }, from, to, data)
}

#[cfg(test)]
mod kept {
    fn replay(target: &str, least: usize, run: fn(&[u8])) {
        let corpus = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let files: Vec<_> = std::fs::read_dir(&corpus).unwrap().collect();
        assert!(files.len() >= least, "the seeds are gone from {corpus}");
        files.into_iter().for_each(|file| run(&std::fs::read(file.unwrap().path()).unwrap()));
    }

    #[test]
    fn frames() {
        replay("gateway_frames", 4, super::frames);
    }

    #[test]
    fn dhcp() {
        replay("gateway_dhcp", 4, super::dhcp);
    }

    #[test]
    fn dns() {
        replay("gateway_dns", 4, super::dns);
    }
}
