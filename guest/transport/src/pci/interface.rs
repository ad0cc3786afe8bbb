//! A kernel's network interface: what is lost when its driver is unbound, and how it comes back.
//!
//! Addresses and routes are kept as the very messages in which the kernel lists them
//! (`rtnetlink(7)`), and sent back to it with the interface's new index.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::sys;
use super::sysfs::Sysfs;

/// How long an interface may take to appear, and to be renamed by udev.
const PATIENCE: Duration = Duration::from_secs(3);

const RTM_NEWLINK: u16 = 16; // Message types (`linux/rtnetlink.h`).
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Flags: a request; answered; all of them; made if it is not there, replaced if it is.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const REPLACE: u16 = 0x100;
/// Length of a message's header, of `ifaddrmsg`, of `rtmsg`, and where in the latter the route's
/// origin lies.
const HEAD: usize = 16;
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;
const RTM_TABLE: usize = 4;
const RTM_PROTOCOL: usize = 5;
const RTM_TYPE: usize = 7;
/// Routes that the kernel makes itself with an address; the main table; a route to somewhere.
const BY_KERNEL: u8 = 2;
const MAIN: u8 = 254;
const UNICAST: u8 = 1;
const RTA_OIF: u16 = 4; // The attribute of a route with its interface.
const UP: u32 = 1;

/// What is known of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    name: String,
    up: bool,
    mtu: u32,
    /// Messages of addresses and routes, without the header: their type and the rest.
    messages: Vec<(u16, Vec<u8>)>,
}

fn attribute(name: &str, what: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok()?;
    Some(text.trim().to_owned())
}

fn index(name: &str) -> Option<u32> {
    attribute(name, "ifindex")?.parse().ok()
}

impl Interface {
    /// The interface of this name as it is. What cannot be read is not restored.
    pub fn of(name: &str) -> Self {
        let flags = attribute(name, "flags")
            .and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        let mtu = attribute(name, "mtu").and_then(|text| text.parse().ok()).unwrap_or(0);
        let messages = index(name).and_then(|index| Netlink::new().ok()?.listed(index).ok());
        let up = flags.unwrap_or(0) & UP != 0;
        Self { name: name.into(), up, mtu, messages: messages.unwrap_or_default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One line, for [`Self::parse`].
    pub fn to_line(&self) -> String {
        let mut line = format!("{} {} {}", self.name, u8::from(self.up), self.mtu);
        for (kind, body) in &self.messages {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            line.push_str(&format!(" {kind}:{hex}"));
        }
        line
    }

    /// The interface that [`Self::to_line`] wrote.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (name, up, mtu) = (words.next()?.to_owned(), words.next()? == "1", words.next()?);
        let message = |word: &str| {
            let (kind, hex) = word.split_once(':')?;
            let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            let body: Option<_> = (0..hex.len()).step_by(2).map(byte).collect();
            Some((kind.parse().ok()?, body?))
        };
        let messages = words.map(message).collect::<Option<_>>()?;
        Some(Self { name, up, mtu: mtu.parse().ok()?, messages })
    }

    /// Gives the device's interface what this one had.
    ///
    /// # Errors
    /// What the kernel says, `NotFound` when there is no interface after a while.
    pub fn restore(&self, sysfs: &Sysfs) -> io::Result<()> {
        let index = self.wait_for(sysfs)?;
        let mut netlink = Netlink::new()?;
        netlink.ask(RTM_NEWLINK, 0, &link(index, self.up, self.mtu))?;
        let mut first = Ok(());
        // Addresses before routes: a route's gateway has to be on one of the interface's networks.
        for (kind, body) in &self.messages {
            let mut body = body.clone();
            aim(*kind, &mut body, index);
            let done = netlink.ask(*kind, CREATE | REPLACE, &body);
            first = first.and(done);
        }
        first
    }

    /// The new interface's index: of the one with the old name if it comes, as udev may rename it,
    /// or else of any.
    fn wait_for(&self, sysfs: &Sysfs) -> io::Result<u32> {
        let end = Instant::now() + PATIENCE;
        loop {
            let there = sysfs.interfaces();
            let late = Instant::now() >= end;
            let found = there.iter().find(|name| late || **name == self.name);
            if let Some(index) = found.and_then(|name| index(name)) {
                return Ok(index);
            }
            if late {
                return Err(io::ErrorKind::NotFound.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// `ifinfomsg` with the flag of being up, and an attribute with the MTU.
fn link(index: u32, up: bool, mtu: u32) -> Vec<u8> {
    const IFLA_MTU: u16 = 4;
    let flags = if up { UP } else { 0 };
    let words = [0, index, flags, UP];
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if mtu > 0 {
        body.extend(8_u16.to_ne_bytes());
        body.extend(IFLA_MTU.to_ne_bytes());
        body.extend(mtu.to_ne_bytes());
    }
    body
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Where a message names its interface.
fn index_at(kind: u16, body: &[u8]) -> Option<usize> {
    if kind == RTM_NEWADDR {
        return Some(4);
    }
    let mut at = RTMSG;
    while let (Some(len), Some(attribute)) = (u16_at(body, at), u16_at(body, at + 2)) {
        if attribute == RTA_OIF {
            return Some(at + 4);
        }
        at += usize::from(len.max(4)).next_multiple_of(4);
    }
    None
}

fn aim(kind: u16, body: &mut [u8], index: u32) {
    if let Some(place) = index_at(kind, body).and_then(|at| body.get_mut(at..at + 4)) {
        place.copy_from_slice(&index.to_ne_bytes());
    }
}

/// Is it an address or route of this interface that does not come back by itself?
fn is_wanted(kind: u16, body: &[u8], index: u32) -> bool {
    let ours = index_at(kind, body).and_then(|at| u32_at(body, at)) == Some(index);
    let route = || {
        body.get(RTM_PROTOCOL).is_some_and(|by| *by != BY_KERNEL)
            && body.get(RTM_TABLE) == Some(&MAIN)
            && body.get(RTM_TYPE) == Some(&UNICAST)
    };
    ours && (kind == RTM_NEWADDR || kind == RTM_NEWROUTE && route())
}

/// A conversation with the kernel.
struct Netlink {
    socket: File,
    sequence: u32,
}

impl Netlink {
    fn new() -> io::Result<Self> {
        Ok(Self { socket: sys::rtnetlink()?, sequence: 0 })
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let len = u32::try_from(HEAD + body.len()).map_err(io::Error::other)?;
        let mut message = len.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((flags | REQUEST).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        self.socket.write_all(&message)
    }

    /// Passes the messages of the answer to `each`, until that says that it was the last one.
    fn hear(&mut self, mut each: impl FnMut(u16, &[u8]) -> io::Result<bool>) -> io::Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let got = self.socket.read(&mut bytes)?;
            let mut rest = bytes.get(..got).unwrap_or_default();
            while let (Some(len), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
                let len = (len as usize).clamp(HEAD, rest.len().max(HEAD));
                if each(kind, rest.get(HEAD..len).unwrap_or_default())? {
                    return Ok(());
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    /// Asks for something to be done.
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(kind, flags | ACK, body)?;
        self.hear(
            |kind, body| if kind == NLMSG_ERROR { refusal(body).map(|()| true) } else { Ok(false) },
        )
    }

    /// The addresses, then the routes of an interface.
    fn listed(&mut self, index: u32) -> io::Result<Vec<(u16, Vec<u8>)>> {
        let mut all = Vec::new();
        for (ask, len) in [(RTM_GETADDR, IFADDRMSG), (RTM_GETROUTE, RTMSG)] {
            self.send(ask, DUMP, &vec![0; len])?;
            self.hear(|kind, body| {
                if is_wanted(kind, body, index) {
                    all.push((kind, body.to_vec()));
                }
                if kind == NLMSG_ERROR {
                    refusal(body).map(|()| true)
                } else {
                    Ok(kind == NLMSG_DONE)
                }
            })?;
        }
        Ok(all)
    }
}

/// The error number at the start of an error message; 0: none, but an acknowledgement.
fn refusal(body: &[u8]) -> io::Result<()> {
    let number = i32::from_ne_bytes(u32_at(body, 0).unwrap_or(0).to_ne_bytes());
    if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-number)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_everything() {
        let messages = vec![(RTM_NEWADDR, vec![2, 24, 0, 255]), (RTM_NEWROUTE, vec![])];
        let interface = Interface { name: "eth0".into(), up: true, mtu: 1500, messages };
        assert_eq!(Interface::parse(&interface.to_line()), Some(interface));
        for bad in ["", "eth0", "eth0 1", "eth0 1 x", "eth0 1 1500 20:0", "eth0 1 1500 20:zz"] {
            assert_eq!(Interface::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_message_is_aimed_at_the_new_interface() {
        // Two attributes of a route, the second of which is its interface.
        let mut route = vec![0; RTMSG];
        route.extend([5, 0, 1, 0, 7, 0, 0, 0]);
        route.extend([8, 0, 4, 0, 3, 0, 0, 0]);
        (route[RTM_TABLE], route[RTM_TYPE]) = (MAIN, UNICAST);
        assert!(is_wanted(RTM_NEWROUTE, &route, 3) && !is_wanted(RTM_NEWROUTE, &route, 4));
        aim(RTM_NEWROUTE, &mut route, 9);
        assert_eq!(u32_at(&route, RTMSG + 12), Some(9));
        route[RTM_PROTOCOL] = BY_KERNEL;
        assert!(!is_wanted(RTM_NEWROUTE, &route, 9), "comes with the address");
        assert!(!is_wanted(RTM_NEWROUTE, &route[..RTMSG], 0));
    }

    #[test]
    fn loopback_is_listed_with_its_address() {
        let lo = Interface::of("lo");
        assert!(lo.mtu > 0);
        let down = !lo.up;
        assert!(down || lo.messages.iter().any(|(_, body)| body.ends_with(&[]) && body.len() > 8));
        assert_eq!(Interface::of("no-such-interface").messages, []);
    }
}
