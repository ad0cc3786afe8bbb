//! Why frames are dropped. Every drop names one of these and is counted.
//!
//! A new one comes last: what is saved of a NIC has its counts in this order.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word used in statistics, captures and logs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than an Ethernet header.
    Runt = "runt",
    /// Longer than the switch, the receiver's largest buffer or the link behind the receiver can
    /// take.
    TooLong = "too-long",
    /// Offload fields that contradict the frame: checksum or segmentation outside it, unknown
    /// kinds.
    BadOffload = "bad-offload",
    /// Headers that cannot be segmented or are longer than the snapshot.
    BadHeader = "bad-header",
    /// A descriptor, chain or ring of the guest that breaks the rules.
    BadDescriptor = "bad-descriptor",
    /// A group address as source, or zero.
    BadSource = "bad-source",
    /// The destination is the port the frame came from.
    SamePort = "same-port",
    /// Nobody to deliver it to: the switch has no other port that is up and wants it.
    NoReceiver = "no-receiver",
    /// The receiver has no room, and its time of waiting is used up.
    ReceiverFull = "receiver-full",
    /// The receiver is not connected, or its driver is not ready.
    LinkDown = "link-down",
    /// The receiving device refused the frame (an error from a TAP, a socket, a file).
    DeviceError = "device-error",
    /// The source address is pinned to another port.
    NotAllowed = "not-allowed",
    /// A source MAC address that the port may not use (`macs`).
    SpoofedMac = "spoofed-mac",
    /// A source IP address that the port may not claim (`ips`).
    SpoofedIp = "spoofed-ip",
    /// An ARP or RARP packet about addresses that are not the port's (`macs`, `ips`).
    SpoofedArp = "spoofed-arp",
    /// A neighbour discovery message about addresses that are not the port's (`macs`, `ips`).
    SpoofedNd = "spoofed-nd",
    /// Under a check, and not understood to its end: fragments, odd headers, unknown protocols.
    NotParsed = "not-parsed",
    /// An answer of a DHCP server from a port that must not be one (`dhcp_guard`).
    DhcpGuard = "dhcp-guard",
    /// A router advertisement or redirect from a port that must not be a router (`ra_guard`).
    RaGuard = "ra-guard",
    /// A VLAN tag, or none, where the port's VLAN settings do not allow it.
    Vlan = "vlan",
    /// The port may not reach the one that the frame is for (`reach`).
    Isolated = "isolated",
    /// Nobody knows where the destination is, and the port may send to known ones only
    /// (`unknown=drop`).
    Unknown = "unknown",
    /// The destination is reserved for the protocols of bridges, which pass none of them on
    /// (`reserved`).
    Reserved = "reserved",
    /// A query for members of multicast groups, or what could be one, from a port that is no router
    /// (`multicast=joined`).
    MulticastGuard = "multicast-guard",
    /// More broadcast, multicast or unknown unicast than the port may send (`broadcast_frames` and
    /// so on).
    Storm = "storm",
    /// Over the limit of frames to the port (`to_rate`, `to_frames`, `to_limit`).
    OverLimit = "over-limit",
    /// The interface had more frames than were taken from it in time.
    Overrun = "overrun",
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
}
