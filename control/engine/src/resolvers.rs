//! Whom this host asks for names: `/etc/resolv.conf` (resolv.conf(5)).

use std::net::{IpAddr, SocketAddr};

/// The port of servers.
const PORT: u16 = 53;
/// Servers that are used of a list.
const MOST: usize = 3;

/// The host's servers; none if it has none, or its list cannot be read.
#[must_use]
pub fn read() -> Vec<SocketAddr> {
    parse(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // Behind '%' stands an interface, which another process cannot use by its name.
        let address: IpAddr = address.parse().ok()?;
        Some(SocketAddr::new(address, PORT))
    };
    text.lines().filter_map(server).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_among_the_rest() {
        let text = "# by hand\nsearch lan\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n\
                    nameserver ::1\noptions edns0\nnameserver\n";
        let want: [SocketAddr; 2] = ["127.0.0.53:53", "[::1]:53"].map(|a| a.parse().unwrap());
        assert_eq!(parse(text), want);
    }
}
