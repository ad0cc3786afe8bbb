//! Values of keys, and what each key takes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use vmlan_frame::Mac;
use vmlan_switch::policy::Steer;

use super::PortName;
use super::amount::{COUNT, Count, RATE, Rate, Time, digits, parse_count, parse_rate, parse_time};
use super::list::{IpRule, MacRule, ValueError, VidList, card, items, joined, name};
use crate::gateway::{Forward, HostPorts, Ipv6, Prefix};

/// What a key's value may be.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Takes {
    /// `on` or `off`; the bare key means `on`.
    OnOff,
    /// A number between two bounds, both included.
    Number(u32, u32),
    /// As [`Takes::Number`], of 16 bits.
    Short(u16, u16),
    /// A time between two bounds, both included, in whole `us`, `ms` or `s`.
    Time(Duration, Duration),
    /// Bits a second.
    Rate,
    /// Frames a second.
    Count,
    /// One of these words.
    Word(&'static [&'static str]),
    Mac,
    /// `any`, `first`, or addresses of network cards.
    Macs,
    Ip,
    Ipv4,
    /// `any`, `none`, or ranges of IP addresses.
    Ips,
    Socket,
    /// VLANs, or `all`.
    Vids,
    Mode,
    Text,
    Ports,
    /// Names of ports, or `all`.
    Watch,
    Uplink,
    Groups,
    /// Names of groups, or `all`, or `none`.
    Reach,
    Limit,
    Team,
    /// How a team's member is chosen.
    Steer,
    /// A domain of names.
    Domain,
    /// `host`, `off`, or addresses of servers.
    Servers,
    /// `on`, `off`, or a prefix of 64 bits.
    Ipv6,
    /// Ports of the host that lead to VMs.
    Forwards,
    /// Ports of the host's loopback.
    HostPorts,
    /// Prefixes.
    Prefixes,
    /// Prefixes, or `none`.
    AllowedPrefixes,
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Value {
    OnOff(bool),
    Number(u32),
    Short(u16),
    Time(Duration),
    Rate(u64),
    Count(u64),
    Word(&'static str),
    Mac(Mac),
    Macs(MacRule),
    Ip(IpAddr),
    Ips(IpRule),
    Socket(SocketAddr),
    /// Of [`Takes::Vids`]; `None`: all.
    Vids(Option<VidList>),
    Mode(u32),
    /// Of [`Takes::Text`] and [`Takes::Domain`].
    Text(String),
    /// Of [`Takes::Ports`] and [`Takes::Groups`].
    Names(Vec<PortName>),
    /// Of [`Takes::Watch`] and [`Takes::Reach`]; `None`: all.
    Some(Option<Vec<PortName>>),
    /// Of [`Takes::Uplink`], [`Takes::Limit`] and [`Takes::Team`]; `None`: any.
    Name(Option<PortName>),
    Steer(Steer),
    /// Of [`Takes::Servers`]; `None`: nobody. Empty: the host's.
    Servers(Option<Vec<IpAddr>>),
    /// Of [`Takes::Ipv6`].
    Ipv6(Ipv6),
    /// Of [`Takes::Forwards`].
    Forwards(Vec<Forward>),
    /// Of [`Takes::HostPorts`].
    HostPorts(HostPorts),
    /// Of [`Takes::Prefixes`] and [`Takes::AllowedPrefixes`]; `None`: nowhere.
    Prefixes(Option<Vec<Prefix>>),
}

impl Takes {
    /// The value `text` stands for.
    ///
    /// # Errors
    /// [`ValueError`] if it stands for none.
    pub fn parse(&self, text: &str) -> Result<Value, ValueError> {
        match self {
            Self::Macs => text.parse().map(Value::Macs),
            Self::Ips => text.parse().map(Value::Ips),
            Self::Vids if text == "all" => Ok(Value::Vids(None)),
            Self::Vids => text.parse().map(|list| Value::Vids(Some(list))),
            Self::Groups => items(text, name).map(Value::Names),
            Self::Watch | Self::Reach => Ok(Value::Some(match (text, self) {
                ("all", _) => None,
                ("none", Self::Reach) => Some(Vec::new()),
                _ => Some(items(text, name)?),
            })),
            Self::Servers => Ok(Value::Servers(match text {
                "off" => None,
                "host" => Some(Vec::new()),
                _ => Some(items(text, |t| t.parse().ok())?),
            })),
            Self::Forwards => items(text, |t| t.parse().ok()).map(Value::Forwards),
            Self::Prefixes | Self::AllowedPrefixes => Ok(Value::Prefixes(match (text, self) {
                ("none", Self::AllowedPrefixes) => None,
                _ => Some(items(text, |t| t.parse().ok())?),
            })),
            _ => self.parse_one(text).ok_or(ValueError::Form),
        }
    }

    /// Values that are not lists.
    fn parse_one(&self, text: &str) -> Option<Value> {
        match self {
            Self::OnOff => match text {
                "on" => Some(Value::OnOff(true)),
                "off" => Some(Value::OnOff(false)),
                _ => None,
            },
            Self::Number(least, most) => {
                let n = digits(text).and_then(|n| u32::try_from(n).ok())?;
                (*least..=*most).contains(&n).then_some(Value::Number(n))
            }
            Self::Short(least, most) => {
                let n = digits(text).and_then(|n| u16::try_from(n).ok())?;
                (*least..=*most).contains(&n).then_some(Value::Short(n))
            }
            Self::Time(least, most) => {
                let time = parse_time(text)?;
                (*least..=*most).contains(&time).then_some(Value::Time(time))
            }
            Self::Rate => parse_rate(text).map(Value::Rate),
            Self::Count => parse_count(text).map(Value::Count),
            Self::Word(words) => words.iter().find(|w| **w == text).map(|w| Value::Word(w)),
            Self::Mac => card(text).map(Value::Mac),
            Self::Ip => text.parse().ok().map(Value::Ip),
            Self::Ipv4 => text.parse().ok().map(|ip| Value::Ip(IpAddr::V4(ip))),
            Self::Socket => {
                let socket: SocketAddr = text.parse().ok()?;
                (socket.port() != 0).then_some(Value::Socket(socket))
            }
            Self::Mode => parse_mode(text).map(Value::Mode),
            Self::Text => (!text.is_empty()).then(|| Value::Text(text.into())),
            Self::Ports => {
                let names: Result<Vec<PortName>, _> = text.split('+').map(str::parse).collect();
                names.ok().map(Value::Names)
            }
            Self::Uplink if text == "any" => Some(Value::Name(None)),
            Self::Steer => text.parse().ok().map(Value::Steer),
            Self::Uplink | Self::Limit | Self::Team => {
                name(text).map(|name| Value::Name(Some(name)))
            }
            Self::Domain => domain(text).then(|| Value::Text(text.into())),
            Self::Ipv6 => text.parse().ok().map(Value::Ipv6),
            Self::HostPorts => text.parse().ok().map(Value::HostPorts),
            // Those are lists.
            _ => None,
        }
    }

    /// Two items of a list, for messages.
    pub const fn example(&self) -> (&'static str, &'static str) {
        match self {
            Self::Macs => ("52:54:00:00:00:01", "52:54:00:00:00:02"),
            Self::Ips => ("10.0.0.1", "fd00::/64"),
            Self::Vids => ("1", "10-20"),
            Self::Groups | Self::Reach => ("web", "db"),
            Self::Servers => ("9.9.9.9", "1.1.1.1"),
            Self::Forwards => ("2222:vm1:22", "8080:vm1:80"),
            Self::HostPorts => ("tcp:5432", "udp:53"),
            Self::Prefixes | Self::AllowedPrefixes => ("10.0.0.0/8", "192.168.0.0/16"),
            _ => ("vm1", "vm2"),
        }
    }

    /// True if a value may be a list.
    pub const fn is_list(&self) -> bool {
        matches!(
            self,
            Self::Ports
                | Self::Macs
                | Self::Ips
                | Self::Vids
                | Self::Groups
                | Self::Watch
                | Self::Reach
                | Self::Servers
                | Self::Forwards
                | Self::HostPorts
                | Self::Prefixes
                | Self::AllowedPrefixes
        )
    }
}

/// One or more labels of a domain name, in small letters.
fn domain(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |l: &str| (1..=63).contains(&l.len()) && l.bytes().all(good);
    text.len() <= 100 && text.split('.').all(label)
}

/// Permission bits in octal: `660`, `0660`.
pub fn parse_mode(text: &str) -> Option<u32> {
    let octal = text.bytes().all(|b| (b'0'..=b'7').contains(&b)) && (3..=4).contains(&text.len());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| octal)?;
    (mode <= 0o777).then_some(mode)
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnOff => f.write_str("on or off"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Short(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Time(least, most) => {
                write!(f, "a time from {} to {}, like 1ms,", Time(*least), Time(*most))
            }
            Self::Rate => {
                write!(f, "a rate from {} to {}, like 2.5Gbit,", Rate(RATE.0), Rate(RATE.1))
            }
            Self::Count => {
                write!(f, "a number from {} to {}, like 10k,", Count(COUNT.0), Count(COUNT.1))
            }
            Self::Word([most @ .., last]) if !most.is_empty() => {
                write!(f, "{} or {last}", most.join(", "))
            }
            Self::Word(words) => f.write_str(&words.concat()),
            Self::Mac => f.write_str("the MAC address of one card, like 52:54:00:12:34:56,"),
            Self::Macs => f.write_str(
                "any, first, or MAC addresses of cards joined by '+', like 52:54:00:12:34:56,",
            ),
            Self::Ip => f.write_str("an IP address"),
            Self::Ipv4 => f.write_str("an IPv4 address"),
            Self::Ips => f.write_str(
                "any, none, leased, or addresses and prefixes joined by '+', like \
                    10.0.0.1+fd00::/64 (no bits behind the prefix),",
            ),
            Self::Socket => f.write_str("IP:PORT, like 10.0.0.1:6343 or [fd00::1]:6343,"),
            Self::Vids => f.write_str("all, or VLANs from 1 to 4094, like 1+10-20,"),
            Self::Mode => f.write_str("an octal mode like 0660"),
            Self::Text => f.write_str("some text"),
            Self::Ports => f.write_str("names of ports joined by '+', like vm1+vm2,"),
            Self::Watch => f.write_str("all, or names of ports joined by '+', like vm1+vm2,"),
            Self::Uplink => f.write_str("any, or the name of a port"),
            Self::Groups => f.write_str("names of groups joined by '+', like web+db,"),
            Self::Reach => f.write_str("all, none, or names of groups joined by '+', like web+db,"),
            Self::Limit => f.write_str("the name of a limit"),
            Self::Team => f.write_str("the name of a team"),
            Self::Steer => f.write_str("ip, or hash: and some of src+dst+ports"),
            Self::Domain => f.write_str("a domain in small letters, like lan or vms.example,"),
            Self::Servers => f.write_str("host, off, or addresses joined by '+', like 9.9.9.9,"),
            Self::Ipv6 => f.write_str("on, off, or a prefix of 64 bits like fd00:77::/64"),
            Self::Forwards => f.write_str(
                "[tcp:|udp:][ADDRESS:]PORT:VM:PORT, joined by '+', like 2222:vm1:22+8080:vm1:80,",
            ),
            Self::HostPorts => f.write_str("all, or ports joined by '+', like tcp:5432+udp:53,"),
            Self::Prefixes => f.write_str("prefixes joined by '+', like 10.0.0.0/8,"),
            Self::AllowedPrefixes => {
                f.write_str("none, or prefixes joined by '+', like 10.0.0.0/8,")
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnOff(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Number(n) => write!(f, "{n}"),
            Self::Short(n) => write!(f, "{n}"),
            Self::Time(time) => Time(*time).fmt(f),
            Self::Rate(bits) => Rate(*bits).fmt(f),
            Self::Count(n) => Count(*n).fmt(f),
            Self::Word(word) => f.write_str(word),
            Self::Mac(mac) => write!(f, "{mac}"),
            Self::Macs(macs) => macs.fmt(f),
            Self::Ip(ip) => ip.fmt(f),
            Self::Socket(socket) => socket.fmt(f),
            Self::Mode(mode) => write!(f, "{mode:04o}"),
            Self::Text(text) => f.write_str(text),
            Self::Vids(Some(vids)) => vids.fmt(f),
            Self::Ips(ips) => ips.fmt(f),
            Self::Steer(steer) => steer.fmt(f),
            Self::Name(None) => f.write_str("any"),
            Self::Vids(None) | Self::Some(None) => f.write_str("all"),
            Self::Some(Some(list)) if list.is_empty() => f.write_str("none"),
            Self::Names(list) | Self::Some(Some(list)) => joined(f, list),
            Self::Name(Some(name)) => name.fmt(f),
            Self::Servers(None) => f.write_str("off"),
            Self::Servers(Some(list)) if list.is_empty() => f.write_str("host"),
            Self::Servers(Some(list)) => joined(f, list),
            Self::Ipv6(rule) => rule.fmt(f),
            Self::Forwards(list) => joined(f, list),
            Self::HostPorts(ports) => ports.fmt(f),
            Self::Prefixes(None) => f.write_str("none"),
            Self::Prefixes(Some(list)) => joined(f, list),
        }
    }
}
