//! Whom this host asks for names: `/etc/resolv.conf` (resolv.conf(5)).

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The list. The sandbox lets the switch open the one that was there when it started; the starter
/// opens another (`vmlan_keeper::open_file`).
pub const FILE: &CStr = c"/etc/resolv.conf";

/// The port of servers.
const PORT: u16 = 53;
/// Servers that are used of a list.
const MOST: usize = 3;
/// Bytes of a list that are read.
const LONGEST: u64 = 64 << 10;
/// Who is asked if the list names nobody.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// How long a list that could not be read is left alone, unless it changes: its file may hold up
/// whoever opens it.
const AGAIN: Duration = Duration::from_secs(30);
/// Interfaces by number and name, of those that have an IPv6 address.
const INTERFACES: &str = "/proc/self/net/if_inet6";

static KNOWN: Mutex<Known> = Mutex::new(Known::new());

/// The host's servers as they are now. If its list has changed and cannot be read, those that were
/// read last.
#[must_use]
pub fn read() -> Vec<SocketAddr> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = FILE.to_str().map_or(Path::new(""), Path::new);
    known.look(path, Instant::now(), || open(path));
    known.servers.clone()
}

/// Opens the list; what this process may not open, the starter does.
fn open(path: &Path) -> io::Result<File> {
    File::open(path).or_else(|e| match e.kind() {
        ErrorKind::PermissionDenied => vmlan_keeper::open_file().map(Into::into),
        _ => Err(e),
    })
}

/// What a file is known by: one that is replaced or written differs in some of it.
type Mark = (u64, u64, u64, [i64; 4]);

#[derive(Debug)]
struct Known {
    /// `None`: nobody has looked yet.
    as_of: Option<Result<Mark, ErrorKind>>,
    /// Why it could not be read then, and when it is tried again.
    failed: Option<(String, Instant)>,
    servers: Vec<SocketAddr>,
}

impl Known {
    const fn new() -> Self {
        Self { as_of: None, failed: None, servers: Vec::new() }
    }

    /// Reads the list, which `open` opens, if it has changed or could not be read some time ago.
    fn look(&mut self, path: &Path, now: Instant, open: impl FnOnce() -> io::Result<File>) {
        let mark = std::fs::metadata(path).map_err(|e| e.kind()).map(|m| {
            let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
            (m.dev(), m.ino(), m.size(), times)
        });
        let is_due = self.failed.as_ref().is_some_and(|(_, again)| now >= *again);
        if self.as_of.replace(mark) == Some(mark) && !is_due {
            return;
        }
        let mut text = Vec::new();
        match open().and_then(|file| file.take(LONGEST).read_to_end(&mut text)) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                let (path, why) = (path.display(), e.to_string());
                if self.failed.as_ref().is_none_or(|(before, _)| *before != why) {
                    log::warn!("{path}: {why}: guests' questions go to the servers known before");
                }
                self.failed = Some((why, now + AGAIN));
            }
            _ => {
                self.failed = None;
                let interfaces = std::fs::read_to_string(INTERFACES).unwrap_or_default();
                self.servers = parse(&String::from_utf8_lossy(&text), &interfaces);
            }
        }
    }
}

/// The servers of a list, on a host with these interfaces.
fn parse(text: &str, interfaces: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        let Some((address, zone)) = address.split_once('%') else {
            return Some(SocketAddr::new(address.parse().ok()?, PORT));
        };
        let address: Ipv6Addr = address.parse().ok()?;
        let number = zone.parse().ok().or_else(|| number_of(zone, interfaces))?;
        Some(SocketAddrV6::new(address, PORT, 0, number).into())
    };
    let list: Vec<_> = text.lines().filter_map(server).take(MOST).collect();
    if list.is_empty() { vec![USUAL] } else { list }
}

/// The number of an interface, whose name says nothing to a process that has no files.
fn number_of(name: &str, interfaces: &str) -> Option<u32> {
    let number = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = words.get(1).filter(|_| words.last() == Some(&name))?;
        u32::from_str_radix(number, 16).ok()
    };
    interfaces.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<const N: usize>(list: [&str; N]) -> Vec<SocketAddr> {
        list.map(|a| a.parse().unwrap()).to_vec()
    }

    #[test]
    fn servers_are_found_among_the_rest() {
        let text = "# by hand\nsearch lan\nnameserver 127.0.0.53\nnameserver fe80::1%gone0\n\
                    nameserver ::1 # here\noptions edns0\nnameserver\nnameserver fe80::1%eth0\n\
                    nameserver 9.9.9.9\n";
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n\
                          fe800000000000000042acfffe110002 1f 40 20 80     eth0\n";
        let found = parse(text, interfaces);
        assert_eq!(found, all(["127.0.0.53:53", "[::1]:53", "[fe80::1%31]:53"]));
        // As the gateway is told.
        let told = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<SocketAddr>>(&told).unwrap(), found);
        assert_eq!(parse("nameserver fe80::1%2\n", ""), all(["[fe80::1%2]:53"]));
        for none in ["", "options edns0\n", "nameserver x\n"] {
            assert_eq!(parse(none, interfaces), [USUAL], "as the host's own programs do");
        }
    }

    #[test]
    fn a_list_that_is_replaced_is_read_again_and_one_that_cannot_be_read_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("resolv.conf"), dir.path().join("new"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut known = Known::new();
        let now = Instant::now();
        let open = || File::open(&link);
        known.look(&link, now, open);
        assert_eq!(known.servers, [USUAL], "there is none yet");
        for server in ["192.0.2.1", "192.0.2.2"] {
            std::fs::write(&new, format!("nameserver {server}\n")).unwrap();
            std::fs::rename(&new, &path).unwrap();
            known.look(&link, now, open);
            assert_eq!(known.servers, all([&format!("{server}:53")]));
        }
        // Not read as long as it is the same.
        known.servers = all(["192.0.2.3:53"]);
        known.look(&link, now, open);
        assert_eq!(known.servers, all(["192.0.2.3:53"]));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        known.look(&link, now, open);
        assert_eq!(known.servers, all(["192.0.2.3:53"]), "who is no file says nothing");
    }

    #[test]
    fn a_list_that_could_not_be_read_is_read_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let mut known = Known::new();
        let start = Instant::now();
        let mut tries = 0;
        for second in 0..2 * AGAIN.as_secs() {
            known.look(&path, start + Duration::from_secs(second), || {
                tries += 1;
                Err(ErrorKind::TimedOut.into())
            });
        }
        assert_eq!(tries, 2, "it may hold us up each time");
        known.look(&path, start + 2 * AGAIN, || File::open(&path));
        assert_eq!(known.servers, all(["192.0.2.1:53"]));
        // One that is replaced is looked at at once, whatever became of the last.
        std::fs::write(&path, "nameserver 192.0.2.22\n").unwrap();
        known.look(&path, start + 2 * AGAIN, || Err(ErrorKind::TimedOut.into()));
        std::fs::write(&path, "nameserver 192.0.2.123\n").unwrap();
        known.look(&path, start + 2 * AGAIN, || File::open(&path));
        assert_eq!(known.servers, all(["192.0.2.123:53"]));
    }
}
