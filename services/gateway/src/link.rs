//! The NIC, and frames as bytes.

mod build;
mod nic;
mod parse;

#[cfg(test)]
pub(crate) use build::ipv4;
pub(crate) use build::{Packet, arp, echo_reply, reset_of, udp, unreachable};
pub(crate) use nic::VirtioLink;
pub(crate) use parse::{Inner, Ip, Parsed, parse};
pub(crate) use smoltcp::wire::EthernetAddress as Mac;

/// A MAC address from its text.
pub(crate) fn parse_mac(text: &str) -> Option<Mac> {
    text.parse::<vmlan_transport::Mac>().ok().map(|mac| smoltcp::wire::EthernetAddress(mac.0))
}

/// A MAC address as the switch writes it.
pub(crate) fn mac_text(mac: Mac) -> String {
    vmlan_transport::Mac(mac.0).to_string()
}

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// Longest frame in either direction: a segment of 64 KiB.
pub(crate) const LARGEST: usize = ETHERNET + 65_535;

/// What a frame leaves to do to whoever receives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    /// The sum at this offset of the layer that begins at this offset is to be completed.
    pub(crate) checksum: Option<(u16, u16)>,
    /// TCP, to be cut into segments of so many bytes.
    pub(crate) segment: Option<u16>,
}

/// Where frames go.
pub(crate) trait Link {
    /// Frames that can be sent now.
    fn room(&mut self) -> usize;
    /// Sends a frame. Without room it is lost.
    fn send(&mut self, frame: &[u8], offload: Offload);
}
