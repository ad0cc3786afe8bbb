//! The kinds of ports.

use std::fmt;
use std::str::FromStr;

use super::AddressError;
use crate::nearest_word::hint;

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A VM's virtio-net NIC over a vhost-user socket.
    VhostUser,
    /// A VM's emulated NIC over a vfio-user socket.
    VfioUser,
    /// A TAP device of this host.
    Tap,
    /// An interface of this host, by a packet socket.
    Packet,
    /// An interface of this host, by XDP sockets.
    Xdp,
    /// QEMU's `-netdev stream` framing over a UNIX socket.
    Stream,
    /// A capture file that other ports are mirrored into.
    Pcap,
    /// A gateway with addresses, names and a way out, in a process of its own.
    Nat,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::VhostUser,
        Self::VfioUser,
        Self::Tap,
        Self::Packet,
        Self::Xdp,
        Self::Stream,
        Self::Pcap,
        Self::Nat,
    ];

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost-user",
            Self::VfioUser => "vfio-user",
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Stream => "stream",
            Self::Pcap => "pcap",
            Self::Nat => "nat",
        }
    }

    /// What PLACE is, for messages.
    pub const fn place(self) -> &'static str {
        match self {
            Self::VhostUser | Self::VfioUser | Self::Stream => "the path of a UNIX socket",
            Self::Tap | Self::Packet | Self::Xdp => {
                "the name of a network interface (1 to 15 characters)"
            }
            Self::Pcap => "the path of a file",
            Self::Nat => "an IPv4 network of 16 to 29 bits, like 10.77.0.0/24,",
        }
    }

    /// True if the place is a network interface of this host: its port is a way out.
    pub const fn is_interface(self) -> bool {
        matches!(self, Self::Tap | Self::Packet | Self::Xdp)
    }

    fn names() -> [&'static str; 8] {
        Self::ALL.map(Self::name)
    }
}

impl FromStr for Kind {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, AddressError> {
        let found = Self::ALL.into_iter().find(|k| k.name() == s);
        found.ok_or_else(|| AddressError::Kind { given: s.into(), hint: hint(s, &Self::names()) })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
