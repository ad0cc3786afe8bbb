//! What two hostile peers and an operator can do to a switch.

use arbitrary::Arbitrary;
use vmlan_attach::fuzz::LONGEST;

/// The ports that hostile peers have: `v`, virtio-net, and `c`, a chip.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hostile {
    V,
    C,
}

/// All ports.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Who {
    A,
    B,
    V,
    C,
}

/// MAC addresses: those of the four, and others.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Address {
    Of(Who),
    All,
    Group(u8),
    Zero,
    Other(u8),
}

/// One step.
#[derive(Arbitrary, Debug)]
pub(super) enum Act<'a> {
    /// Of the tables of [`vmlan_attach::fuzz`]: messages, registers, memory.
    Step {
        who: Hostile,
        step: u8,
        bytes: &'a [u8],
    },
    /// Says all that an honest one says, with its rings in order.
    SetUp(Hostile),
    /// Posts a frame, if it is set up.
    Send {
        who: Hostile,
        header: [u8; 10],
        frame: Frame<'a>,
    },
    /// Ends its connection.
    HangUp(Hostile),
    /// The workers go to sleep, and are woken.
    Sleep,
    /// So many microseconds pass.
    Time(u32),
    Operator(Operator<'a>),
}

/// What comes by the API. Honest ports are changed in nothing that would cost them frames.
#[derive(Arbitrary, Debug)]
pub(super) enum Operator<'a> {
    Add(Hostile, Keys),
    Remove(Hostile),
    Set(Hostile, Keys),
    Weight(bool, u16),
    Pin(Address, Who, Option<u16>),
    Unpin(Address, Option<u16>),
    Limit(bool, u8),
    NoLimit(bool),
    /// A file with both honest ports and with these.
    Apply {
        v: Option<Keys>,
        c: Option<Keys>,
        dry: bool,
    },
    Explain(Who, Frame<'a>),
    /// Lists, counters.
    Look,
    Age,
    Forget,
}

/// Keys and their values, by their places in [`KEYS`].
#[derive(Arbitrary, Debug)]
pub(super) struct Keys(pub [(u8, u8); 3]);

/// A frame: addresses, a tag, and what is in it.
#[derive(Arbitrary, Debug)]
pub(super) struct Frame<'a> {
    to: Address,
    from: Address,
    tag: Option<(bool, u16)>,
    what: What,
    len: u16,
    rest: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum What {
    /// An EtherType, and anything behind it.
    Kind(u16),
    Arp,
    Ipv6,
    /// IPv4 and TCP that ask to be cut, or not, and to have a checksum filled in.
    Tcp(u16),
}

/// Keys of hostile ports. None names an honest port as an uplink, which would make it wait for its
/// turn.
const KEYS: &[(&str, &[&str])] = &[
    ("macs", &["any", "first", "02:00:00:00:00:0c", "02:00:00:00:00:0c+02:00:00:00:00:0d", ""]),
    ("ips", &["any", "none", "leased", "10.0.0.3+10.1.0.0/16", "2001:db8::/32", ""]),
    ("dhcp_guard", &["on", "off"]),
    ("ra_guard", &["on", "off"]),
    ("member", &["red", "red+blue", ""]),
    ("reach", &["all", "none", "red", "blue", ""]),
    ("uplink", &["any", "v", "c", ""]),
    ("vlan", &["10", "20", ""]),
    ("trunk", &["all", "1+10-20", ""]),
    ("native", &["10", "30", ""]),
    ("qinq", &["10", "100", ""]),
    ("qinq_trunk", &["all", "10+100", ""]),
    ("broadcast_frames", &["1", "1k", ""]),
    ("multicast_frames", &["1", "1k", ""]),
    ("unknown_frames", &["1", "1k", ""]),
    ("from_rate", &["64kbit", "1Gbit", ""]),
    ("from_frames", &["1", "1M", ""]),
    ("from_burst", &["100us", "1s", ""]),
    ("from_limit", &["one", "two", ""]),
    ("to_rate", &["64kbit", "1Gbit", ""]),
    ("to_frames", &["1", "1M", ""]),
    ("to_burst", &["100us", "1s", ""]),
    ("to_limit", &["one", "two", ""]),
    ("weight", &["1", "1000", ""]),
    ("watch", &["all", "a+b", "v", "c", ""]),
    ("watch_vlan", &["10", ""]),
    ("irq_rate_max", &["0", "1000", ""]),
    ("link", &["up", "down", ""]),
    ("queues", &["2", ""]),
    ("unknown", &["drop", "flood", ""]),
    ("reserved", &["pass", "drop", ""]),
    ("multicast", &["joined", "all", ""]),
    ("team", &["red", "blue", ""]),
    ("announce", &["on", "off", ""]),
    ("steer", &["ip", "hash:src+dst+ports", "hash:src", ""]),
];

impl Hostile {
    pub(super) fn name(self) -> &'static str {
        Who::from(self).name()
    }
}

impl From<Hostile> for Who {
    fn from(who: Hostile) -> Self {
        match who {
            Hostile::V => Self::V,
            Hostile::C => Self::C,
        }
    }
}

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::V => "v",
            Self::C => "c",
        }
    }
}

/// The address of the port's guest.
pub(super) fn mac_of(who: Who) -> [u8; 6] {
    let last = match who {
        Who::A => 0xa,
        Who::B => 0xb,
        Who::V => 0xd,
        Who::C => 0xc,
    };
    [2, 0, 0, 0, 0, last]
}

impl Address {
    pub(super) fn octets(self) -> [u8; 6] {
        match self {
            Self::Of(who) => mac_of(who),
            Self::All => [0xff; 6],
            Self::Group(n) => [1, 0, 0x5e, 0, 0, n],
            Self::Zero => [0; 6],
            Self::Other(n) => [2, 1, 0, 0, 0, n],
        }
    }
}

impl Keys {
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.iter().filter_map(|(key, value)| {
            let (key, values) = KEYS.get(usize::from(*key) % (KEYS.len() + 1))?;
            Some((*key, *values.get(usize::from(*value) % values.len())?))
        })
    }
}

impl Frame<'_> {
    /// Its bytes; and what virtio-net's header is to say of them, if that is not `header`.
    pub(super) fn bytes(&self, header: [u8; 10]) -> ([u8; 10], Vec<u8>) {
        let mut bytes = [self.to.octets(), self.from.octets()].concat();
        if let Some((service, tag)) = self.tag {
            bytes.extend(if service { [0x88, 0xa8] } else { [0x81, 0] });
            bytes.extend(tag.to_be_bytes());
        }
        let tags = bytes.len() - 12;
        let len = (usize::from(self.len) % (LONGEST + 1)).max(14 + tags);
        let mut said = header;
        match self.what {
            What::Kind(kind) => bytes.extend(kind.to_be_bytes()),
            What::Arp => bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]),
            What::Ipv6 => bytes.extend([0x86, 0xdd, 0x60]),
            What::Tcp(size) => {
                let [i0, i1] =
                    u16::try_from(len.max(54 + tags) - 14 - tags).unwrap_or(0).to_be_bytes();
                bytes.extend([8, 0, 0x45, 0, i0, i1, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 3]);
                bytes.extend([10, 0, 0, 4, 0, 80, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10]);
                bytes.extend([0; 6]);
                let [s0, s1] = size.to_le_bytes();
                let tags = u8::try_from(tags).unwrap_or(0);
                said = [1, u8::from(size > 0), 54 + tags, 0, s0, s1, 34 + tags, 0, 16, 0];
            }
        }
        bytes.extend(self.rest);
        bytes.resize(len.max(bytes.len().min(54 + tags)), 0x5a);
        (said, bytes)
    }
}
