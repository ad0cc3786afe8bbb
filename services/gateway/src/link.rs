//! The NIC, and frames as bytes.

mod build;
mod fragments;
pub(crate) mod ndisc;
mod nic;
mod parse;

#[cfg(test)]
pub(crate) use build::ip;
pub(crate) use build::{Packet, Unreachable, arp, echo_reply, reset_of, udp, unreachable};
#[cfg(test)]
pub(crate) use fragments::cut;
pub(crate) use fragments::{Fragment, Fragments};
pub(crate) use nic::VirtioLink;
pub(crate) use parse::{Inner, Ip, Parsed, packet, parse};
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

/// How a frame came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The queue, which is that of all frames of its port, and of some other ports.
    pub(crate) lane: usize,
    /// The sum of what is in it is right, or not finished yet.
    pub(crate) trusted: bool,
}

/// What a frame leaves to do to whoever receives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    /// The sum at this offset of the layer that begins at this offset is to be completed.
    pub(crate) checksum: Option<(u16, u16)>,
    /// TCP, to be cut into segments of so many bytes.
    pub(crate) segment: Option<u16>,
}

/// Frames at most of one IP packet, however long it is: as many as there must be room for.
pub(crate) const PIECES: usize = 60;

/// Sends a frame with an IP packet, in pieces if it is longer than the LAN's.
pub(crate) fn send(link: &mut dyn Link, frame: &[u8], mtu: u16) {
    if frame.len() <= ETHERNET + usize::from(mtu) {
        return link.send(frame, Offload::default());
    }
    let id = u32::try_from(crate::random() >> 32).unwrap_or_default();
    for piece in fragments::cut(frame, mtu, id) {
        link.send(&piece, Offload::default());
    }
}

/// Where frames go.
pub(crate) trait Link {
    /// Frames that can be sent now.
    fn room(&mut self) -> usize;
    /// Sends a frame. Without room it is lost.
    fn send(&mut self, frame: &[u8], offload: Offload);
}
